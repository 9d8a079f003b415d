r"""The neck below the draws: what a map does where chains have not been, from a few gradients taken there.

Errors of a location grow as :math:`e^{-L}` down a funnel.  Where the draws are they may be too small to be seen, and
keep chains out of the neck below, without a sign of bias.  So the straightened draws are moved down, along what scales
others; where the map is right, :math:`z + g^z` of the sinks stays as small there as it is above.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.noncentring.funnel_map import FunnelMap

__all__ = ["POINTS", "below", "left_below"]

POINTS = 96
# Standard deviations down, from the first to the last point; sources that are moved one at a time, those of most sinks.
_NEAREST, _DEEPEST, _SINGLY = 0.5, 5.0, 3
# What a source must do to a log scale in a standard deviation to make a neck.
_LEAST_EFFECT = 0.3


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
