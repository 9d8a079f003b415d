r"""The neck below the draws: what a map does where chains have not been, from a few gradients taken there.

Errors of a location grow as :math:`e^{-L}` down a funnel.  Where the draws are they may be too small to be seen, and
keep chains out of the neck below, without a sign of bias.  So the straightened draws are moved down, along what scales
others; where the map is right, :math:`z + g^z` of the sinks stays as small there as it is above.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.pairs import some

__all__ = ["POINTS", "Necks", "below", "left_below"]

POINTS = 96
# Standard deviations down, from the first to the last point; sources that are moved one at a time, those of most sinks.
_NEAREST, _DEEPEST, _SINGLY = 0.5, 5.0, 3
# What a source must do to a log scale in a standard deviation to make a neck.
_LEAST_EFFECT = 0.3
# That a map is fitted to beside the points, of which each counts for so many: few draws are so deep, and location and
# slopes are what is to be right there.
_MOST_DRAWS, _WEIGHT = 1000, 4


def below(found: FunnelMap, x: np.ndarray, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points down the necks of a map, and which neck each is down.

    Parameters
    ----------
    found
        The map.
    x : (n, d)
        Draws, in the model's own coordinates.
    turn
        Another one gives other points.

    Returns
    -------
    (POINTS, d) ndarray, (POINTS,) int
        Positions in the model's own coordinates, not all of which need be finite; none where nothing scales anything.
    """
    z = found.to_z(x[np.linspace(0, len(x) - 1, POINTS).astype(int) - turn])
    sd = found.to_z(x).std(axis=0)
    effect, sinks = np.zeros(x.shape[1]), np.zeros(x.shape[1], int)
    np.add.at(effect, found.source, found.slope)
    np.add.at(sinks, found.source, np.abs(found.slope) * sd[found.source] > _LEAST_EFFECT)
    sources = np.flatnonzero(sinks)
    if not sources.size:
        return np.empty((0, x.shape[1])), np.zeros(0, int)
    order = sources[np.argsort(-sinks[sources], kind="stable")]
    which = [order[k : k + 1] for k in range(min(_SINGLY, len(order)))] + [order[_SINGLY:]] * (len(order) > _SINGLY)
    depth, neck = np.linspace(_NEAREST, _DEEPEST, POINTS)[:, None], (np.arange(POINTS) + turn) % len(which)
    for k, moved in enumerate(which):
        z[np.ix_(neck == k, moved)] -= np.sign(effect[moved]) * sd[moved] * depth[neck == k]
    with np.errstate(all="ignore"):
        return found.to_x(z), neck


def left_below(found: FunnelMap, x: np.ndarray, g: np.ndarray, neck: np.ndarray) -> float:
    """Return the median down a neck of ``(z + g^z)^2``, of the neck and the sink where it is largest; 0 without any."""
    z = found.to_z(x)
    residual = (z + found.pull_back(z, g))[:, found.sink] ** 2
    return float(max((np.median(residual[neck == k], axis=0).max() for k in np.unique(neck)), default=0.0))


class Necks:
    """Points down the necks of the maps in hand, with their gradients.

    Attributes
    ----------
    n_grad
        Gradients that were taken.
    """

    def __init__(self, x: np.ndarray, gradient_at: Callable[[np.ndarray], np.ndarray] | None):
        self._draws, self._gradient_at, self._turn, self.n_grad = x, gradient_at, 0, 0
        self._x, self._g = np.empty((0, x.shape[1])), np.empty((0, x.shape[1]))

    def look(self, found: FunnelMap) -> float:
        """Take gradients down the necks of a map; return what it leaves there."""
        if self._gradient_at is None:
            return 0.0
        x, neck = below(found, self._draws, self._turn)
        good = np.isfinite(x).all(axis=1)
        x, neck = x[good], neck[good]
        g = self._gradient_at(x) if len(x) else x
        self._turn, self.n_grad = self._turn + 1, self.n_grad + len(x)
        good = np.isfinite(g).all(axis=1)
        self._x, self._g = np.concatenate([self._x, x[good]]), np.concatenate([self._g, g[good]])
        return left_below(found, x[good], g[good], neck[good])

    def beside(self, x: np.ndarray, g: np.ndarray, chain: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return draws, not too many, and these points together, the points so often as they count."""
        few = some(len(x), _MOST_DRAWS)
        x, g, chain = x[few], g[few], chain[few]
        points, slopes = (np.repeat(part, _WEIGHT, axis=0) for part in (self._x, self._g))
        own = np.resize(chain, len(points))
        return np.concatenate([x, points]), np.concatenate([g, slopes]), np.concatenate([chain, own])
