r"""A search for jumps of a log density between draws: at a jump Stein's identity lacks a boundary term.

On a segment from ``a`` to ``b`` the trapezoidal rule for the gradient ``g`` of a smooth log density ``l`` has an error

.. math:: E = l(b) - l(a) - \tfrac12 (b - a) \cdot (g(a) + g(b))

of third order in the length, which falls to an eighth in each half of a short segment, and at a kink to about a half.
Across a jump one half keeps all of it.  The segments are the edges of a minimum spanning tree of some draws: a surface
with draws on both sides crosses one.
"""

from __future__ import annotations

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


def largest_jump(draws: np.ndarray, density: Density, rounding: float = 1e-10) -> float:
    """Return the size of the largest jump between draws ``(n, d)``, 0 if there is none.

    ``rounding`` is the relative rounding error of a log density.  Segments are left out where the log density is not
    finite, and jumps where it is lower than at any draw.
    """
    x = np.unique(draws, axis=0)
    if len(x) < 3 or not np.isfinite(x).all():
        return 0.0
    with np.errstate(all="ignore"):  # log densities that are not finite, or vast
        points = _evaluated(x, density)
        sd = np.where(np.ptp(x, axis=0) > 0.0, x.std(axis=0), 1.0)
        edges = minimum_spanning_tree(squareform(pdist(x / sd))).tocoo()
        start = points[edges.row]
        end = points[edges.col]
        error = np.full(len(start), np.inf)
        persisted = np.zeros(len(error), int)  # halvings in a row that left the error as it was
        n_grad = len(x)
        for _ in range(_HALVINGS):
            order = np.lexsort([-error, -persisted])
            sure = persisted[order] >= _SURE
            chosen = np.concatenate([order[sure][:_FEW], order[~sure]])[: max(_MOST_GRADIENTS - n_grad, 0)]
            if not chosen.size:
                return 0.0
            middle = _evaluated(0.5 * (start + end)[chosen, 1 : 1 + x.shape[1]], density)
            n_grad += len(chosen)
            # The first halves of the chosen segments, then the second ones.
            start = np.concatenate([start[chosen], middle])
            end = np.concatenate([middle, end[chosen]])
            halved_error = _trapezoidal_error(start, end)
            persists = halved_error > _PERSISTS * np.tile(error[chosen], 2)
            persisted = np.where(persists, np.tile(persisted[chosen], 2) + 1, 0)
            left = halved_error > THRESHOLDS.jump + rounding * np.maximum(np.abs(start[:, 0]), np.abs(end[:, 0]))
            start = start[left]
            end = end[left]
            error = halved_error[left]
            persisted = persisted[left]
        probable = np.maximum(start[:, 0], end[:, 0]) >= points[:, 0].min()
        return float(np.abs(end[:, 0] - start[:, 0])[probable].max(initial=0.0))


def _evaluated(x: np.ndarray, density: Density) -> np.ndarray:
    """Return log densities, positions and gradients side by side: ``(n, 1 + 2 d)``."""
    lp, gradient = density(x)
    return np.column_stack([lp, x, gradient])


def _trapezoidal_error(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the absolute errors ``(n,)`` of the trapezoidal rule on segments, NaN where something is not finite."""
    d = start.shape[1] // 2
    gradients = (start + end)[:, 1 + d :]
    return np.abs(end[:, 0] - start[:, 0] - 0.5 * (gradients * (end - start)[:, 1 : 1 + d]).sum(axis=1))
