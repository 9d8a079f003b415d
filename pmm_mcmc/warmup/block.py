"""The draws that one update of a warm-up learns from, and which are past the transient.

The transient is the way of a chain from its start to where the posterior has its mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.warmup.thresholds import THRESHOLDS


class Block(NamedTuple):
    """Draws of one block of warm-up, one for each transition.

    Positions ``z`` and gradients are ``(chain, n, d)``, the others ``(chain, n)``, as in
    :class:`pmm_mcmc.engines.contract.Chunk`.  Where they come from an engine, ``gradient`` are evaluations
    ``(chain, n, width)``, whose first ``d`` numbers are the gradient.
    """

    position: np.ndarray
    gradient: np.ndarray
    lp: np.ndarray
    unstable: np.ndarray
    refined: np.ndarray
    model_failures: np.ndarray
    accept: np.ndarray

    @classmethod
    def of(cls, chunk: Chunk) -> Block:
        """Return the fields of an engine's chunk that warm-up uses."""
        values = (getattr(chunk, "evaluation" if name == "gradient" else name) for name in cls._fields)
        return cls(*values)

    @classmethod
    def newest(cls, blocks: Sequence[Block], limit: int | None = None) -> Block:
        """Return the newest ``limit`` draws of successive blocks as one, by default all."""
        if len(blocks) == 1 and limit is None:
            return blocks[0]
        missing = sum(block.lp.shape[1] for block in blocks) if limit is None else limit
        pieces = []
        for block in reversed(blocks):
            if missing > 0:
                pieces.append(cls(*(array[:, -missing:] for array in block)))
                missing -= block.lp.shape[1]
        return cls(*(np.concatenate(array, axis=1) for array in zip(*reversed(pieces), strict=True)))


def past_transient(potential: np.ndarray, d: int, narrowness: np.ndarray | float = 0.0) -> np.ndarray:
    """Return which draws are past the transient, as a mask of the shape ``(chain, n)`` of the potentials.

    The potential is minus the log density.  A draw is in the transient if its potential exceeds a reference by more
    than ``d/2 + 6 sqrt(d/2) + 5``, six standard deviations on a Gaussian and more: its gradient would spoil the
    preconditioner.  The reference is the lowest, over 64 chains, of the medians of the newest quarter.  Potentials that
    are not finite count as too high.

    A chain in a narrow region has the higher density for the same mass, and would make all other chains look as if they
    were in the transient.  Adding each chain's :func:`narrowness` ``(chain,)`` compares masses instead.  With few
    transitions that is noisy, so draws that pass without it also stay.
    """
    with np.errstate(invalid="ignore"):
        keep = _low(potential + np.reshape(narrowness, (-1, 1)), d)
    if potential.shape[1] < THRESHOLDS.first_block:
        keep |= _low(potential, d)
    return keep if keep.sum() >= 2 else np.ones(potential.shape, dtype=bool)


def _low(potential: np.ndarray, d: int) -> np.ndarray:
    n = potential.shape[1]
    newest = potential[:, -max(1, n // 4) :]
    medians = np.median(np.where(np.isfinite(newest), newest, np.inf), axis=1)
    # Of thousands of chains the lowest is that of no typical one.
    rank = (len(medians) - 1) // THRESHOLDS.training_chains
    lowest = np.partition(medians, rank)[rank]
    return potential <= lowest + d / 2 + 6 * np.sqrt(d / 2) + 5


def narrowness(gradient: np.ndarray, d: int) -> np.ndarray:
    """Return minus the log volume, ``(chain,)``, of the region that each chain is in, up to a constant.

    For a Gaussian this is half the sum of the log curvatures; the mean squared gradient component over the newest
    quarter estimates each curvature.  Gradients are the first ``d`` columns of evaluations ``(chain, n, width)``.
    """
    n = gradient.shape[1]
    with np.errstate(over="ignore"):
        squares = (gradient[:, -max(1, n // 4) :, :d] ** 2).mean(axis=1)
    minus_log_volume = 0.5 * np.log(np.maximum(squares, np.finfo(float).tiny)).sum(axis=1)
    return np.where(np.isnan(minus_log_volume), np.inf, minus_log_volume)


def replacements(usable: np.ndarray, unstable: np.ndarray) -> np.ndarray:
    """Return for each chain the number of the chain that it continues from: a healthy one if it is stuck, else itself.

    A chain is stuck if no draw of the block's last quarter is ``usable`` ``(chain, n)``, past the transient, or if more
    than 30 % of its transitions were rejected.
    """
    chains, n = usable.shape
    newest = usable[:, -max(1, n // 4) :]
    healthy = newest.any(axis=1) & ((unstable > 0).mean(axis=1) <= THRESHOLDS.stuck)
    source = np.arange(chains)
    if healthy.any():
        among = np.flatnonzero(healthy)
        stuck = np.flatnonzero(~healthy)
        source[stuck] = among[np.arange(len(stuck)) % len(among)]
    return source
