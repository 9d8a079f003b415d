"""What a map leaves: how far straightened draws, and points down its necks, are from a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.neck import Necks
from pmm_mcmc.tuning.scale import MOST_DENSE, affine_scale, diagonal_scale

__all__ = ["FEWEST", "FITTED", "gaussian_divergence", "left", "left_by"]

FITTED = 0.6  # of the draws, the oldest: a map is fitted to these, and judged by the others
FEWEST = 100  # draws
_TRIMMED = 0.01
_DAMPING = 10.0  # of the dense scale: few draws for each of its numbers


def left_by(
    found: FunnelMap,
    position: np.ndarray,
    gradient: np.ndarray,
    gradient_at: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[float, int]:
    """Return what a map leaves in one coordinate.

    Parameters
    ----------
    found
        The map.
    position, gradient : (n, d)
        Draws and the gradient of the log density there, in the model's own coordinates, in order of time.
    gradient_at
        Gradients of the log density at positions ``(n, d)``: the map is then judged down its necks too.

    Returns
    -------
    float, int
        Divergence from a Gaussian of the coordinate where it is largest, of those that scale no other, or down a neck,
        where that is more; NaN if the draws are too few to say.  And the gradients that were taken.
    """
    good = np.isfinite(position).all(axis=1) & np.isfinite(gradient).all(axis=1)
    x, g = position[good], gradient[good]
    if len(x) < FEWEST:
        return math.nan, 0
    necks = Necks(x, gradient_at)
    return max(left(found, x, g)[1], necks.look(found)), necks.n_grad


def left(found: FunnelMap, x: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """Return the divergence on top of a map, of all coordinates and of the worst of those that scale none."""
    z = found.to_z(x)
    by_coordinate = gaussian_divergence(z, found.pull_back(z, g))
    # A log scale is not Gaussian itself: down the neck its density falls like its prior's.
    scales = np.isin(np.arange(x.shape[1]), found.source[found.slope != 0.0])
    return float(by_coordinate.mean()), float(by_coordinate[~scales].max(initial=0.0))


def gaussian_divergence(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return ``D`` of the newest draws by coordinate, the largest 1 % left out, with the best affine scale of others.

    These are the older ones, or, where chains were not there yet, the other half of the newest.  The roots that whiten
    are symmetric, so that whitened coordinates are the model's own as nearly as can be.
    """
    n, d = x.shape
    split = int(FITTED * n)
    middle = (split + n) // 2
    old, first, second, new = slice(split), slice(split, middle), slice(middle, n), slice(split, n)
    best = np.full(d, math.inf)
    for dense in (False, True):
        if dense and d > MOST_DENSE:
            continue
        for parts in (((old, new),), ((first, second), (second, first))):
            terms = np.concatenate([_residual(x, g, fitted, at, dense) for fitted, at in parts]) ** 2
            if np.all(np.isfinite(terms)):
                smallest = np.argsort(terms.sum(axis=1))[: len(terms) - math.ceil(_TRIMMED * len(terms))]
                best = min(best, terms[smallest].mean(axis=0), key=np.mean)
    return best


def _residual(x: np.ndarray, g: np.ndarray, fitted: slice, at: slice, dense: bool) -> np.ndarray:
    """Return whitened draws plus their gradients, with a scale of other draws; NaN where there is none."""
    try:
        with np.errstate(all="ignore"):
            if dense:
                scale = Coordinates(*affine_scale(x[fitted], g[fitted], dense=True, damping=_DAMPING))
            else:
                scale = Coordinates(*diagonal_scale(x[fitted], g[fitted], np.ones(x.shape[1])))
            return scale.whiten(x[at]) + scale.pull_back(g[at])
    except np.linalg.LinAlgError:
        return np.full((1, x.shape[1]), math.nan)
