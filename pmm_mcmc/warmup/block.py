"""The draws that one update of a warm-up learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.contract import Chunk

__all__ = ["Block"]


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
