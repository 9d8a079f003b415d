r"""Posteriors that are improper since a prior is flat: the density does not fall off along a line.

The restriction of an integrable density to almost every line is integrable, and falls faster than :math:`1 / t` in the
distance ``t``.  Lines are followed from the draw that is furthest back: along the coordinates of variables with flat
priors, and along differences of draws in these, which wander in the directions in which nothing holds them.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.warmup.ascent import Density

__all__ = ["endless"]

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
