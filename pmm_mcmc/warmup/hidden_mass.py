"""Mass that no draw has met and that has no maximum which ascents reach: a slab around the draws, a spike within them.

Both masses are means of importance weights at places ``(m, d)`` whose law is known, with log densities ``places_lp``.
They are compared with the mass of the draws ``y`` ``(n, d)``, with log densities ``lp``.  All positions are whitened,
and log densities are up to one constant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["follows_gradient", "lowest_typical_lp", "slab_mass", "spike_mass"]


def slab_mass(places: np.ndarray, places_lp: np.ndarray, y: np.ndarray, lp: np.ndarray) -> float:
    r"""Return the share of the mass that is around the draws; 0 if it is small.

    The places have uniform directions and radii :math:`r` of density :math:`1 / (r \log(b/a))`, so that the mean of
    :math:`p(y)\,r^d\,|S^{d-1}| \log(b/a)` is the mass.  Only places that are half as far again as the furthest draw
    count: heavy tails that chains do visit have no mass to speak of there.
    """
    d = y.shape[1]
    radius = np.sqrt((places**2).sum(axis=1))
    log_sphere = np.log(2.0) + 0.5 * d * np.log(np.pi) - gammaln(0.5 * d)
    log_span = np.log(np.log(SEARCH.furthest / SEARCH.nearest))
    centre = y.mean(axis=0)
    furthest = np.sqrt(((y - centre) ** 2).sum(axis=1).max()) + np.linalg.norm(centre)
    log_weights = places_lp + d * np.log(radius) + log_sphere + log_span
    return _share(np.where(radius > 1.5 * furthest, log_weights, -np.inf), y, lp)


def spike_mass(
    maximum: np.ndarray,
    maximum_lp: float,
    spectrum: tuple[np.ndarray, np.ndarray],
    z: np.ndarray,
    value: Callable[[np.ndarray], np.ndarray],
    y: np.ndarray,
    lp: np.ndarray,
) -> float:
    """Return the share of the mass that is in a spike about a maximum; 0 if it is small.

    The spike is where the log density is as high as nearly all of a Gaussian's is; no draw is as high.  The places are
    made of standard normals ``z`` as draws of Laplace's Gaussian.  ``spectrum`` has eigenvalues and eigenvectors of the
    negative Hessian matrix, ``value`` returns log densities at positions.
    """
    values, vectors = spectrum
    if not values[0] > SEARCH.flattest * values[-1]:
        return 0.0
    places_lp = value(maximum + (z / np.sqrt(values)) @ vectors.T)
    log_q = 0.5 * np.log(values / (2.0 * np.pi)).sum() - 0.5 * (z**2).sum(axis=1)
    in_spike = places_lp >= lowest_typical_lp(maximum_lp, len(maximum))
    return _share(np.where(in_spike, places_lp - log_q, -np.inf), y, lp)


def lowest_typical_lp(maximum_lp: float, d: int) -> float:
    """Return the log density above which nearly all draws of a Gaussian with this maximum are."""
    return maximum_lp - 0.5 * d - 3.0 * np.sqrt(0.5 * d)


def follows_gradient(
    value: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], y: np.ndarray, longest: float
) -> np.ndarray:
    """Return of each position ``y`` ``(n, d)`` whether the log density changes inwards as its gradients say.

    A difference of large numbers, such as of log-gamma functions, is rounding far out, of thousands if they are of
    1e19: it does not follow its gradient, or that does not follow itself.  ``value`` returns log densities and
    gradients; the way inwards is the share of ``y`` on which the gradient says 2 nats, ``longest`` at most.
    """
    lp, gradient = value(y)
    slope = (gradient * y).sum(axis=1)
    way = np.minimum(longest, 2.0 / np.maximum(np.abs(slope), 1e-300))
    inner_lp, inner = value((1.0 - way)[:, None] * y)
    at_ends = 0.5 * way * np.stack([slope, (inner * y).sum(axis=1)])
    off = np.abs(lp - inner_lp - at_ends.sum(axis=0))
    return (off < 1.0) & (np.abs(at_ends[0] - at_ends[1]) < 1.0)


def _share(log_weights: np.ndarray, y: np.ndarray, lp: np.ndarray) -> float:
    """Return the mean of the weights over its sum with the mass that draws stand for; 0 if it is small.

    Draws stand for the exponential of the mean log density and the entropy.  That of independent Gaussians as wide, and
    no narrower than the whitened coordinates should be, is larger: draws stand for less, not more.
    """
    if not np.isfinite(log_weights).any():
        return 0.0
    entropy = 0.5 * np.log(2.0 * np.pi * np.e * np.maximum(y.var(axis=0), 1.0)).sum()
    ratio = np.logaddexp.reduce(log_weights) - np.log(len(log_weights)) - np.mean(lp) - entropy
    return float(1.0 / (1.0 + np.exp(-min(ratio, 700.0)))) if ratio > np.log(SEARCH.hidden_mass) else 0.0
