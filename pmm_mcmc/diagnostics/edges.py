r"""Edges of a log density, where Stein's identity lacks a boundary term: jumps and walls; and lines without an end.

On a segment from ``a`` to ``b`` the trapezoidal rule for the gradient ``g`` of a smooth log density ``l`` has an error

.. math:: E = l(b) - l(a) - \tfrac12 (b - a) \cdot (g(a) + g(b))

of third order in the length, which falls to an eighth in each half of a short segment, and at a kink to about a half.
Across a *jump* one half keeps all of it.  The segments are the edges of a minimum spanning tree of some draws: a
surface with draws on both sides crosses one.

A *wall* is a surface beyond which there are no draws: the density ends there, or falls to next to nothing at once, as
by a Potential of minus infinity or -50.  It is searched for on rays from draws.

A line *without an end* shows a posterior that is improper since a prior is flat.  The restriction of an integrable
density to almost every line is integrable, and falls faster than :math:`1 / t` in the distance ``t``.  Lines are
followed from the draw that is furthest back: along the coordinates of variables with flat priors, and along differences
of draws in these, which wander in the directions in which nothing holds them.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.langevin.transitions import DIVERGENCE
from pmm_mcmc.warmup.ascent import Density

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
# Rays that look for a wall, each three times as long as from a draw to another, and their halvings, to 1e-9 of a ray.
_RAYS = 24
_LENGTH = 3.0
_HALVINGS_OF_RAY = 32
# Fall of the log density that chains do not pass: that at which a transition counts as a divergence.
_FALL = -np.log(DIVERGENCE)
# How far below the middle draw the log density at a wall may be for chains to meet it often.
_NEARLY = 3.0
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
            d = start.shape[1] // 2
            gradients = (start + end)[:, 1 + d :]
            halved_error = np.abs(end[:, 0] - start[:, 0] - 0.5 * (gradients * (end - start)[:, 1 : 1 + d]).sum(axis=1))
            persists = halved_error > _PERSISTS * np.tile(error[chosen], 2)
            persisted = np.where(persists, np.tile(persisted[chosen], 2) + 1, 0)
            left = halved_error > THRESHOLDS.jump + rounding * np.maximum(np.abs(start[:, 0]), np.abs(end[:, 0]))
            start = start[left]
            end = end[left]
            error = halved_error[left]
            persisted = persisted[left]
        probable = np.maximum(start[:, 0], end[:, 0]) >= points[:, 0].min()
        return float(np.abs(end[:, 0] - start[:, 0])[probable].max(initial=0.0))


def has_wall(draws: np.ndarray, density: Density) -> bool:
    """Return whether rays from draws ``(n, d)`` meet a place where the log density falls at once.

    Only places count where it is, this side of them, as high as at half of the draws, or nearly.
    """
    x = np.random.default_rng(0).permutation(np.unique(draws, axis=0))[: 2 * _RAYS]
    if len(x) < 4 or not np.isfinite(x).all():
        return False
    with np.errstate(all="ignore"):
        half = len(x) // 2
        across = _LENGTH * (x[half : 2 * half] - x[:half])
        inner = np.concatenate([x[:half], x[:half]])
        ray = np.concatenate([across, -across])
        lp = density(inner)[0]
        probable = np.median(lp) - _NEARLY
        outer = inner + ray
        for _ in range(_HALVINGS_OF_RAY):
            middle = 0.5 * (inner + outer)
            lp_outer, lp_middle = np.nan_to_num(
                np.split(density(np.concatenate([outer, middle]))[0], 2), nan=-np.inf, posinf=-np.inf
            )
            falls = (lp - lp_outer > _FALL) & (lp > probable)
            if not falls.any():
                return False
            beyond = lp - lp_middle > _FALL
            inner = np.where(beyond[:, None], inner, middle)[falls]
            outer = np.where(beyond[:, None], middle, outer)[falls]
            lp = np.where(beyond, lp, lp_middle)[falls]
        return True


def _evaluated(x: np.ndarray, density: Density) -> np.ndarray:
    """Return log densities, positions and gradients side by side: ``(n, 1 + 2 d)``."""
    lp, gradient = density(x)
    return np.column_stack([lp, x, gradient])


# Distances of the places on a line, in spreads of the draws.
_FAR = np.append([1.0, 2.0, 4.0], 10.0 ** np.arange(1, 9))
# The same of logarithms: exponentials of fifty times as much are numbers yet.
_WIDEST = 5.0
# Differences of draws, and coordinates, that lines follow at most.
_DIFFERENCES = 8
_AXES = 20


def endless(draws: np.ndarray, axes: np.ndarray, logarithms: np.ndarray, density: Density) -> int:
    """Return a coordinate, of those in ``axes``, in which the density at draws ``(n, d)`` has no end; -1 if none.

    ``logarithms`` ``(d,)`` are coordinates whose exponentials overflow where draws wander.
    """
    axes = axes[:_AXES]
    if not axes.size or len(draws) < 2 or not np.isfinite(draws).all():
        return -1
    spread = np.where(np.ptp(draws, axis=0) > 0.0, np.ptp(draws, axis=0), 1.0)
    spread[logarithms] = np.minimum(spread[logarithms], _WIDEST)
    others = draws[np.linspace(0, len(draws) - 1, _DIFFERENCES).astype(int)]
    lines = np.zeros((len(axes) + len(others), draws.shape[1]))
    lines[np.arange(len(axes)), axes] = spread[axes]
    lines[len(axes) :, axes] = (others - np.roll(others, _DIFFERENCES // 2, axis=0))[:, axes]
    lines = np.concatenate([lines, -lines])
    start = draws[(draws / spread @ (lines / spread).T).argmin(axis=0)]
    with np.errstate(all="ignore"):  # densities that are not finite, or vast
        lp = density((start + _FAR[:, None, None] * lines).reshape(-1, draws.shape[1]))[0].reshape(len(_FAR), -1)
        finite = np.logical_and.accumulate(np.isfinite(lp), axis=0)
        last = finite.sum(axis=0) - 1
        columns = np.arange(len(lines))
        slope = (lp[last, columns] - lp[last - 1, columns]) / np.log(_FAR[last] / _FAR[last - 1])
    without_end = np.flatnonzero((last > 0) & (slope > -1.0) & lines.any(axis=1))
    if not without_end.size:
        return -1
    return int(axes[np.abs(lines[without_end[0]] / spread)[axes].argmax()])
