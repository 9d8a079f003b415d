r"""A search for jumps of a log density between draws: at a jump Stein's identity lacks a boundary term.

On a segment from ``a`` to ``b`` the trapezoidal rule for the gradient ``g`` of a smooth log density ``l`` has an error

.. math:: E = l(b) - l(a) - \tfrac12 (b - a) \cdot (g(a) + g(b))

of third order in the length, which falls to an eighth in each half of a short segment, and at a kink to about a half.
Across a jump one half keeps all of it.  The segments are the edges of a minimum spanning tree of some draws: a surface
with draws on both sides crosses one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.ascent import Density

__all__ = ["DRAWS", "largest_jump"]

# Draws that segments join: of a surface that cuts off a twentieth, 9 runs in 10 have some on each side.
DRAWS = 48
# Halvings after which an error that is still there is a jump: the steps of a sampler are much longer.
_HALVINGS = 16
# Gradients after which no more segments are halved.
_MOST_GRADIENTS = 400
# Error of half a segment over that of the segment, above which it persists.
_PERSISTS = 0.7
# Halvings in a row through which an error persists where there is a jump.
_SURE = 3
# Segments with a jump that are halved further, the worst ones.
_FEW = 6


class _Points(NamedTuple):
    """Positions ``(n, d)``, log densities ``(n,)`` and gradients ``(n, d)``."""

    x: np.ndarray
    lp: np.ndarray
    gradient: np.ndarray

    def take(self, indices: np.ndarray) -> _Points:
        return _Points(*(array[indices] for array in self))

    def followed_by(self, others: _Points) -> _Points:
        return _Points(*map(np.concatenate, zip(self, others, strict=True)))


def largest_jump(draws: np.ndarray, density: Density, rounding: float = 1e-10) -> tuple[float, int]:
    """Return the size of the largest jump between draws ``(n, d)``, 0 if there is none, and the gradients spent.

    ``rounding`` is the relative rounding error of a log density.  Segments are left out where the log density is not
    finite, and jumps where it is lower than at any draw.
    """
    x = np.unique(draws, axis=0)
    if len(x) < 3 or not np.isfinite(x).all():
        return 0.0, 0
    with np.errstate(all="ignore"):  # log densities that are not finite, or vast
        points = _Points(x, *density(x))
        sd = np.where(np.ptp(x, axis=0) > 0.0, x.std(axis=0), 1.0)
        edges = minimum_spanning_tree(squareform(pdist(x / sd))).tocoo()
        start = points.take(edges.row)
        end = points.take(edges.col)
        error = np.full(len(start.lp), np.inf)
        persisted = np.zeros(len(error), int)  # halvings in a row that left the error as it was
        n_grad = len(x)
        for _ in range(_HALVINGS):
            order = np.lexsort([-error, -persisted])
            sure = persisted[order] >= _SURE
            chosen = np.concatenate([order[sure][:_FEW], order[~sure]])[: max(_MOST_GRADIENTS - n_grad, 0)]
            if not chosen.size:
                return 0.0, n_grad
            middle_x = 0.5 * (start.x[chosen] + end.x[chosen])
            middle = _Points(middle_x, *density(middle_x))
            n_grad += len(chosen)
            # The first halves of the chosen segments, then the second ones.
            start = start.take(chosen).followed_by(middle)
            end = middle.followed_by(end.take(chosen))
            halved_error = _trapezoidal_error(start, end)
            persists = halved_error > _PERSISTS * np.tile(error[chosen], 2)
            persisted = np.where(persists, np.tile(persisted[chosen], 2) + 1, 0)
            left = halved_error > THRESHOLDS.jump + rounding * np.maximum(np.abs(start.lp), np.abs(end.lp))
            start = start.take(left)
            end = end.take(left)
            error = halved_error[left]
            persisted = persisted[left]
        probable = np.maximum(start.lp, end.lp) >= points.lp.min()
        return float(np.abs(end.lp - start.lp)[probable].max(initial=0.0)), n_grad


def _trapezoidal_error(start: _Points, end: _Points) -> np.ndarray:
    """Return the absolute errors ``(n,)`` of the trapezoidal rule on segments, NaN where something is not finite."""
    by_gradients = 0.5 * ((start.gradient + end.gradient) * (end.x - start.x)).sum(axis=1)
    return np.asarray(np.abs(end.lp - start.lp - by_gradients))
