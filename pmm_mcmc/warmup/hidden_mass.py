"""Mass that draws have not met and that has no maximum of its own: around them, and in a spike within them.

Both are estimated without bias, as by importance sampling, from places ``(m, d)`` whose law is known, with their log
densities ``places_lp``, and compared with the mass of draws ``y`` ``(n, d)`` with their log densities ``lp``.  All
positions are whitened, and log densities are up to one constant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["follows_gradient", "lowest_of_gaussian", "mass_about", "mass_around"]


def mass_around(places: np.ndarray, places_lp: np.ndarray, y: np.ndarray, lp: np.ndarray) -> float:
    r"""Return the share of the mass beyond the draws; 0 if it is small.

    The places have uniform directions and radii :math:`r` of density :math:`1 / (r \log(b/a))`, so that the mean of
    :math:`p(y)\,r^d\,|S^{d-1}| \log(b/a)` is the mass.  Only those count that are half as far again as the furthest
    draw: heavy tails that chains do visit have no mass to speak of there.
    """
    d = y.shape[1]
    radius = np.sqrt((places**2).sum(axis=1))
    log_sphere = np.log(2.0) + 0.5 * d * np.log(np.pi) - gammaln(0.5 * d)
    log_span = np.log(np.log(SEARCH.furthest / SEARCH.nearest))
    centre = y.mean(axis=0)
    furthest = np.sqrt(((y - centre) ** 2).sum(axis=1).max()) + np.linalg.norm(centre)
    masses = np.where(radius > 1.5 * furthest, places_lp + d * np.log(radius) + log_sphere + log_span, -np.inf)
    return _share(masses, y, lp) if np.isfinite(masses).any() else 0.0


def follows_gradient(
    value: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], y: np.ndarray, longest: float
) -> np.ndarray:
    """Return whether the log density changes as its gradients say on a way inwards on which they say 2 nats at most.

    A difference of large numbers, such as of log-gamma functions, is rounding far out, of thousands if they are of
    1e19: it does not follow its gradient, or that does not follow itself.  ``value`` returns log densities and
    gradients at positions; the way is a share of a position ``y`` ``(n, d)``, ``longest`` at most.
    """
    lp, gradient = value(y)
    slope = (gradient * y).sum(axis=1)
    way = np.minimum(longest, 2.0 / np.maximum(np.abs(slope), 1e-300))
    inner_lp, inner = value((1.0 - way)[:, None] * y)
    at_ends = 0.5 * way * np.stack([slope, (inner * y).sum(axis=1)])
    off = np.abs(lp - inner_lp - at_ends.sum(axis=0))
    return (off < 1.0) & (np.abs(at_ends[0] - at_ends[1]) < 1.0)


def lowest_of_gaussian(top: float, d: int) -> float:
    """Return the log density above which nearly all draws of a Gaussian are whose highest one is ``top``."""
    return top - 0.5 * d - 3.0 * np.sqrt(0.5 * d)


def mass_about(
    maximum: np.ndarray,
    top: float,
    spectrum: tuple[np.ndarray, np.ndarray],
    z: np.ndarray,
    value: Callable[[np.ndarray], np.ndarray],
    y: np.ndarray,
    lp: np.ndarray,
) -> float:
    """Return the share of the mass that no draw has met about a maximum of log density ``top``; 0 if it is small.

    It is the mass of the places whose log density is as high as nearly all of a Gaussian's is, while none of the draws
    is as high, from places that Laplace's Gaussian makes of standard normals ``z``.  ``spectrum`` has eigenvalues and
    eigenvectors of the negative Hessian matrix, ``value`` returns log densities at positions.
    """
    values, vectors = spectrum
    if not values[0] > SEARCH.flattest * values[-1]:
        return 0.0
    places_lp = value(maximum + (z / np.sqrt(values)) @ vectors.T)
    log_q = 0.5 * np.log(values / (2.0 * np.pi)).sum() - 0.5 * (z**2).sum(axis=1)
    high = places_lp >= lowest_of_gaussian(top, len(maximum))
    return _share(np.where(high, places_lp - log_q, -np.inf), y, lp)


def _share(log_masses: np.ndarray, y: np.ndarray, lp: np.ndarray) -> float:
    """Return the mean of these masses over its sum with the mass that draws stand for; 0 if it is small.

    Draws stand for the exponential of the mean log density and the entropy.  That of independent Gaussians as wide, and
    no narrower than the whitened coordinates should be, is larger: draws stand for less, not more.
    """
    entropy = 0.5 * np.log(2.0 * np.pi * np.e * np.maximum(y.var(axis=0), 1.0)).sum()
    ratio = np.logaddexp.reduce(log_masses) - np.log(len(log_masses)) - np.mean(lp) - entropy
    return float(1.0 / (1.0 + np.exp(-min(ratio, 700.0)))) if ratio > np.log(SEARCH.hidden_mass) else 0.0
