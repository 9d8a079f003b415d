"""What the draws of a block of warm-up show: which are past the transient, whether the setting fits, a new setting.

The *transient* is the way of a chain from its start to where the posterior has its mass.  Masks named ``usable``
``(chain, n)`` are true for draws past it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import HARMONIC
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.friction import largest_spread
from pmm_mcmc.warmup.stein_identity import too_wide
from pmm_mcmc.warmup.step_size import curvature_bound, rare_curvature
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = [
    "curvature",
    "failed",
    "narrowness",
    "past_transient",
    "refitted",
    "replacements",
    "steps_for_autocorrelation",
    "visibly_wide",
    "whitened",
    "whitens",
]  # fmt: skip

# Numbers of the positions whose autocorrelations are computed at a time: eight megabytes.
_TOGETHER = 2**20


def failed(block: Block) -> np.ndarray:
    """Return which transitions ``(chain, n)`` failed because the step is too long, not because of the model."""
    return (block.unstable - block.model_failures) > 0


def whitened(coordinates: Coordinates, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and gradients of a block in whitened coordinates."""
    return coordinates.whiten(block.position), coordinates.pull_back(block.gradient)


def whitens(coordinates: Coordinates, block: Block, usable: np.ndarray) -> bool:
    """Return whether a preconditioner that was fitted on older draws whitens those of a block."""
    if not usable.any() or block.position.shape[2] == 0:
        return bool(usable.any())
    y, g = (_rows(array, usable) for array in whitened(coordinates, block))
    misfit = np.sort((y**2).mean(axis=1) + (g**2).mean(axis=1))
    trimmed = misfit[: math.ceil(0.99 * len(misfit))].mean()  # with heavy tails few draws would decide
    return bool(trimmed < THRESHOLDS.misfit) and largest_spread(y) < THRESHOLDS.slow_sd


def refitted(arguments: MethodArguments, coordinates: Coordinates, window: Block, usable: np.ndarray) -> Coordinates:
    """Return the preconditioner fitted to the usable draws; of a fixed ``scaling`` only the centre is fitted."""
    # Rows in order of time: all chains at one transition, then all at the next.
    position = _rows(window.position.swapaxes(0, 1), usable.T)
    if arguments.scaling is not None:
        return coordinates._replace(centre=position.mean(axis=0))
    fitted = best_coordinates(position, _rows(window.gradient.swapaxes(0, 1), usable.T))
    return fitted._replace(density_parameters=coordinates.density_parameters)


def _rows(draws: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return the usable ones of draws ``(., ., d)`` as ``(n, d)``, where all are without a second copy."""
    return draws.reshape(usable.size, draws.shape[2]) if usable.all() else draws[usable]


def visibly_wide(block: Block, usable: np.ndarray, target_bias: float) -> bool:
    """Return whether draws show a bias well above the target; False unless nearly all are usable."""
    if usable.mean() < THRESHOLDS.settled_share or block.position.shape[2] == 0:
        return False
    return too_wide(block.position, block.gradient, target_bias)


def curvature(
    arguments: MethodArguments,
    coordinates: Coordinates,
    window: Block,
    usable: np.ndarray,
    local: LocalCurvature,
    gradient_at: Callable[[np.ndarray], np.ndarray] | None = None,
) -> float:
    """Return the largest whitened curvature that matters to the step.

    ``gradient_at`` evaluates the gradient at a position ``(d,)``; with it, ``local`` finds the steepest directions.
    """
    y, g = whitened(coordinates, window)
    harmonic = arguments.kernel.dynamics == HARMONIC
    if gradient_at is None or arguments.kernel.adjusted or window.position.shape[2] < 2:
        return curvature_bound(y, g, usable, harmonic, arguments.sees_curvature)

    def whitened_gradient(point: np.ndarray) -> np.ndarray:
        return coordinates.pull_back(gradient_at(coordinates.place(point)))

    typical = local(_rows(y, usable), _rows(g, usable), whitened_gradient, harmonic)
    return max(rare_curvature(y, g, usable, harmonic, arguments.sees_curvature), typical)


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


def steps_for_autocorrelation(position: np.ndarray) -> int:
    """Return the fewest transitions for a draw with which coordinates and their squares correlate by less than half.

    A coordinate that overshoots is far from its last value, and its square near: after a long step with little friction
    the mean is known at once, and the standard deviation is not.  From successive states ``(chain, n, d)``: at least 1,
    at most 64 (``THRESHOLDS.most_steps_per_draw``) and a quarter of ``n``.
    """
    n = position.shape[1]
    if n == 0:
        return 1
    largest = max(1, min(THRESHOLDS.most_steps_per_draw, n // 4))
    # Some coordinates at a time: their squares and differences take several times the memory of the positions.
    width = max(1, _TOGETHER // (position.shape[0] * n))
    column_blocks = [position[..., i : i + width] for i in range(0, position.shape[2], width)]
    lag = 1
    agreed = 0
    turn = 0
    while agreed < len(column_blocks) and lag < largest:
        next_lag = _first_lag(column_blocks[turn % len(column_blocks)], lag, largest)
        agreed = agreed + 1 if next_lag == lag else 1
        turn += 1
        lag = next_lag
    # The mean of a chain that has not mixed moves with it, which alone makes the autocorrelation fall late.
    return lag if lag <= max(1, n // 8) else largest


def _first_lag(position: np.ndarray, lag: int, largest: int) -> int:
    """Return the first lag, from ``lag`` on, at which all coordinates and squares correlate little."""
    centred = position - position.mean(axis=(0, 1))
    square = centred**2
    centred = np.concatenate([centred, square - square.mean(axis=(0, 1))], axis=2)
    variance = (centred**2).mean(axis=(0, 1))
    moving = variance > 0.0
    centred = centred[..., moving]
    variance = variance[moving]
    for later in range(lag, largest):
        correlation = (centred[:, later:] * centred[:, :-later]).mean(axis=(0, 1)) / variance
        if correlation.max(initial=-1.0) < THRESHOLDS.autocorrelation:
            return later
    return largest
