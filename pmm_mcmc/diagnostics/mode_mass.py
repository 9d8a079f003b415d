"""The mass of draws, and that of other modes, by importance sampling; and whether draws are where the mass is.

That of the chains is by bridge sampling between their draws and the Gaussian that is as wide [1]_.  That about a
maximum is a mean of importance weights, of draws of Student's t that adapts to it in a few rounds [2]_.  It is compared
with the share of the run's draws in the same *region*, where a Gaussian about the maximum, as heavy, is above that of
the chains: whatever the shape of the posterior, both are the same number if the chains visit the region.

All positions are whitened, and log densities are up to one constant.

.. [1] X.-L. Meng and W. H. Wong, "Simulating ratios of normalizing constants via a simple identity", Statistica Sinica
   6 (1996) 831-860.
.. [2] J.-M. Cornuet, J.-M. Marin, A. Mira and C. P. Robert, "Adaptive multiple importance sampling", Scandinavian
   Journal of Statistics 39 (2012) 798-812.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from pmm_mcmc.diagnostics.thresholds import SEARCH
from pmm_mcmc.warmup.ascent import Density

__all__ = [
    "Maximum", "Weighed", "chain_mass", "distinct", "follows_gradient", "log_determinant", "slab_mass",
    "spectrum", "weighed",
]  # fmt: skip

# A product whose residual is shorter than this share of its length is in the span of the basis.
_SPANNED = 1e-2


def spectrum(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return ``k`` eigenvalues and their weights, ``(n, k)``, in directions ``start`` ``(n, d)`` of unit length.

    With them :math:`v^T f(A) v = \sum_k w_k f(\lambda_k)`, exact for polynomials ``f`` of degree ``2 steps - 1``.  For
    directions of random signs over :math:`\sqrt{d}` the mean of ``d`` times this is the trace of :math:`f(A)`.

    ``product`` returns products with vectors ``(n, d)``, of one matrix or of one for each row; there are ``steps`` of
    them, fewer if the basis spans them.  Values are NaN where a product is not finite.
    """
    n, d = start.shape
    steps = min(steps, d)
    basis = [start]
    matrix = np.zeros((n, steps, steps))
    for i in range(steps):
        w = product(basis[-1])
        full_length = np.linalg.norm(w, axis=1)
        matrix[:, i, i] = (w * basis[-1]).sum(axis=1)
        for direction in basis:
            w = w - (w * direction).sum(axis=1, keepdims=True) * direction
        length = np.linalg.norm(w, axis=1)
        if i + 1 == steps or not (length > _SPANNED * full_length).any():
            break
        matrix[:, i, i + 1] = matrix[:, i + 1, i] = length
        basis.append(w / np.maximum(length, 1e-300)[:, None])
    matrix = matrix[:, : len(basis), : len(basis)]
    good = np.isfinite(matrix).all(axis=(1, 2))
    values, vectors = np.linalg.eigh(np.where(good[:, None, None], matrix, 0.0))
    return np.where(good[:, None], values, np.nan), vectors[:, 0] ** 2


# Log densities ``(n,)`` at positions ``(n, d)``.
Value = Callable[[np.ndarray], np.ndarray]
# Degrees of freedom of the places about a maximum.
_DEGREES = 5.0
_LOG_2PI = float(np.log(2.0 * np.pi))


class Maximum(NamedTuple):
    """A maximum: its position ``(d,)``, log density and gradient there, and the variance in some direction."""

    y: np.ndarray
    lp: float
    gradient: np.ndarray
    scale: float


class Weighed(NamedTuple):
    """A region about a maximum: its log mass, effective places, and the share of the draws that are in it."""

    log_mass: float
    effective: float
    visited: float
    contains: Callable[[np.ndarray], np.ndarray]


def distinct(maxima: list[Maximum], others: list[Maximum]) -> list[Maximum]:
    """Return the maxima, each once, that are none of the ``others`` up to the precision of ascents."""
    new: list[Maximum] = []
    for a in maxima:
        width = 0.25 * len(a.y)
        equal = (
            abs(a.lp - b.lp) < 0.2 and np.sum((a.y - b.y) ** 2) < width * min(a.scale, b.scale, 1.0)
            for b in (*others, *new)
        )
        if not any(equal):
            new.append(a)
    return new


# -- the mass of the chains --------------------------------------------------------------------------------------------


def chain_mass(value: Value, draws: np.ndarray, some: np.ndarray, lp: np.ndarray, places: np.ndarray) -> float:
    """Return the log mass that draws ``(n, d)`` stand for, by ``some`` of them with finite log densities ``lp``.

    The ``places`` are standard normals.  Where they overlap too little with draws it is an upper bound: the mean log
    density and the entropy, of which no law as wide has more than the Gaussian.
    """
    n, d = draws.shape
    ratios, place_ratios = (
        heights + 0.5 * (y**2).sum(axis=1) + 0.5 * d * _LOG_2PI for heights, y in ((lp, some), (value(places), places))
    )
    mass, error = _bridge(ratios, place_ratios)
    if error < 1.0:
        return mass
    if n > d:
        log_det = float(np.linalg.slogdet(np.cov(draws.T).reshape(d, d))[1]) + 0.5 * d * (d + 1) / n
    else:
        log_det = float(np.log(draws.var(axis=0)).sum())
    return float(lp.mean()) + 0.5 * d * (_LOG_2PI + 1.0) + 0.5 * log_det


def _bridge(ratios: np.ndarray, place_ratios: np.ndarray) -> tuple[float, float]:
    """Return the log ratio of two masses by bridge sampling, and its standard error.

    Given are log ratios of the densities at draws of the first law, and at draws of the second, whose mass is 1.
    """
    log_mass = float(np.median(ratios))
    n = len(ratios)
    m = len(place_ratios)
    for _ in range(100):
        # Shares of the second law's draws, and of the first's, in the mixture of both.
        of_places = -np.logaddexp(np.log(n / (n + m)), np.log(m / (n + m)) + log_mass - place_ratios)
        of_draws = -np.logaddexp(np.log(n / (n + m)) + ratios, np.log(m / (n + m)) + log_mass)
        new = float(np.logaddexp.reduce(of_places) - np.log(m) - np.logaddexp.reduce(of_draws) + np.log(n))
        if not np.isfinite(new) or abs(new - log_mass) < 1e-6:
            break
        log_mass = new
    errors = (np.exp(2.0 * _log_spread(each)) / len(each) for each in (of_places, of_draws))
    return log_mass, float(np.sqrt(sum(errors)))


def _log_spread(log_values: np.ndarray) -> float:
    """Return the log of the standard deviation of values over their mean."""
    values = np.exp(log_values - log_values.max())
    return float(np.log(max(values.std() / values.mean(), 1e-300)))


# -- the mass about a maximum ------------------------------------------------------------------------------------------


def weighed(
    maximum: Maximum, density: Density, value: Value, log_chains: float, draws: np.ndarray, rng: np.random.Generator
) -> Weighed:
    """Return the region of a maximum, where the chains have the log mass ``log_chains``, with its mass and draws.

    ``density`` returns log densities and gradients, ``value`` log densities, minus infinity where they do not count.
    No direction is wider at first than the maximum is far from the chains, or than they are wide.
    """
    d = len(maximum.y)
    widest = max(1.0, float(np.linalg.norm(maximum.y)))
    root = _covariance_root(maximum, density, value, widest, rng)
    centre = maximum.y
    log_mass = maximum.lp + 0.5 * d * _LOG_2PI + _log_det(root)
    contains = partial(_in_region, root, centre, log_mass, log_chains)
    if log_mass < log_chains - 15.0 - 0.5 * d:
        return Weighed(log_mass, np.inf, 0.0, contains)
    proposals: list[tuple[np.ndarray, np.ndarray]] = []
    places = np.empty((0, d))
    lp = np.empty(0)
    effective = 0.0
    for rounds in range(6):
        proposals.append((centre, root))
        t = rng.standard_normal((SEARCH.places, d)) * np.sqrt(_DEGREES / rng.chisquare(_DEGREES, (SEARCH.places, 1)))
        places = np.concatenate([places, centre + t @ root.T])
        lp = np.concatenate([lp, value(places[-SEARCH.places :])])
        log_q = np.logaddexp.reduce([_log_t(places, *proposal) for proposal in proposals]) - np.log(len(proposals))
        log_weights = np.where(contains(places), lp - log_q, -np.inf)
        if not np.isfinite(log_weights).any():
            return Weighed(-np.inf, np.inf, 0.0, lambda y: np.zeros(len(y), bool))
        log_mass = float(np.logaddexp.reduce(log_weights) - np.log(len(log_weights)))
        weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        effective = float(1.0 / (weights**2).sum())
        centre, root = _adapted(places, weights, effective, centre, root)
        contains = partial(_in_region, root, centre, log_mass, log_chains)
        expected = np.exp(min(log_mass - log_chains, 0.0))
        if effective > SEARCH.effective and (rounds > 1 or expected < 1e-4 or contains(draws).mean() > 0.5 * expected):
            break
    inside = contains(places)
    log_mass = (
        float(np.logaddexp.reduce(np.where(inside, lp - log_q, -np.inf)) - np.log(len(lp))) if inside.any() else -np.inf
    )
    return Weighed(log_mass, effective, float(contains(draws).mean()), contains)


def _width(maximum: Maximum, widest: float, value: Value, rng: np.random.Generator) -> float:
    """Return the distance, in each direction, at which the density falls as that of a Gaussian one sd away."""
    d = len(maximum.y)
    directions = rng.standard_normal((4, d))
    directions *= np.sqrt(d) / np.linalg.norm(directions, axis=1, keepdims=True)
    low = -14.0
    high = float(np.log2(2.0 * widest))
    for _ in range(5):
        middle = 0.5 * (low + high)
        fall = float(np.median(maximum.lp - value(maximum.y + 2.0**middle * directions)))
        if fall < 0.5 * d:
            low = middle
        else:
            high = middle
    return float(2.0 ** (0.5 * (low + high)))


def _in_region(root: np.ndarray, centre: np.ndarray, log_mass: float, log_chains: float, y: np.ndarray) -> np.ndarray:
    """Return whether a Gaussian about ``centre`` is above that of the chains at each position ``(n, d)``."""
    height = log_mass - _log_det(root) - 0.5 * (np.linalg.solve(root, (y - centre).T) ** 2).sum(axis=0)
    return np.asarray(height > log_chains - 0.5 * (y**2).sum(axis=1))


def _adapted(
    places: np.ndarray, weights: np.ndarray, effective: float, centre: np.ndarray, root: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and root of the covariance by weighted places: its size alone where these are few."""
    d = places.shape[1]
    if effective > 4.0 * d + 2.0:
        centre = weights @ places
        offset = (places - centre) * np.sqrt(weights)[:, None]
        try:
            return centre, np.linalg.cholesky(offset.T @ offset)
        except np.linalg.LinAlgError:
            return centre, root
    square = float(weights @ (np.linalg.solve(root, (places - centre).T) ** 2).sum(axis=0))
    return centre, root * np.clip(np.sqrt(square / d), 0.5, 3.0)


def _log_t(y: np.ndarray, centre: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Return the log density of Student's t at positions ``(n, d)``."""
    d = y.shape[1]
    square = (np.linalg.solve(root, (y - centre).T) ** 2).sum(axis=0)
    constant = gammaln(0.5 * (_DEGREES + d)) - gammaln(0.5 * _DEGREES) - 0.5 * d * np.log(_DEGREES * np.pi)
    return np.asarray(constant - _log_det(root) - 0.5 * (_DEGREES + d) * np.log1p(square / _DEGREES))


def _log_det(root: np.ndarray) -> float:
    return float(np.linalg.slogdet(root)[1])


def _covariance_root(
    maximum: Maximum, density: Density, value: Value, widest: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the root of a covariance by the slopes around a maximum, as far away as the density falls.

    A cusp has no curvature, and the tails of Student's t are further than it says.
    """
    d = len(maximum.y)
    width = _width(maximum, widest, value, rng)
    slopes = -density(maximum.y + width * np.eye(d))[1] / width
    if not np.isfinite(slopes).all():
        return width * np.eye(d)
    values, vectors = np.linalg.eigh(0.5 * (slopes + slopes.T))
    return np.asarray(vectors / np.sqrt(np.maximum(np.abs(values), widest**-2.0)))


def _hessian_products(maximum: Maximum, density: Density, directions: np.ndarray) -> np.ndarray:
    """Return the negative Hessian matrix times directions ``(n, d)``."""
    distance = 0.1 * np.sqrt(maximum.scale)
    return -(density(maximum.y + distance * directions)[1] - maximum.gradient) / distance


def log_determinant(maximum: Maximum, density: Density) -> float:
    """Return the log determinant of the negative Hessian matrix by Lanczos' method; inf where it is not positive.

    The directions that it starts from are the same at every maximum: their noise cancels in part in differences.
    """
    d = len(maximum.y)
    start = np.random.default_rng(d).choice([-1.0, 1.0], size=(2, d)) / np.sqrt(d)
    values, weights = spectrum(partial(_hessian_products, maximum, density), start, SEARCH.lanczos_steps)
    if not np.isfinite(values).all() or (values[:, 0] <= 1e-8 * values[:, -1]).any():
        return np.inf
    return 0.5 * d * float((weights * np.log(values)).sum())


# -- mass without a maximum --------------------------------------------------------------------------------------------


def slab_mass(places: np.ndarray, places_lp: np.ndarray, draws: np.ndarray, log_chains: float) -> float:
    r"""Return the share of the mass that is around the draws; 0 if it is small.

    The places have uniform directions and radii :math:`r` of density :math:`1 / (r \log(b/a))`, so that the mean of
    :math:`p(y)\,r^d\,|S^{d-1}| \log(b/a)` is the mass.  Only places that are half as far again as the furthest draw
    count: heavy tails that chains do visit have no mass to speak of there.
    """
    d = draws.shape[1]
    radius = np.sqrt((places**2).sum(axis=1))
    log_sphere = np.log(2.0) + 0.5 * d * np.log(np.pi) - gammaln(0.5 * d)
    log_span = np.log(np.log(SEARCH.furthest / SEARCH.nearest))
    furthest = np.sqrt((draws**2).sum(axis=1).max())
    log_weights = np.where(radius > 1.5 * furthest, places_lp + d * np.log(radius) + log_sphere + log_span, -np.inf)
    if not np.isfinite(log_weights).any():
        return 0.0
    ratio = float(np.logaddexp.reduce(log_weights) - np.log(len(log_weights)) - log_chains)
    return float(1.0 / (1.0 + np.exp(-min(ratio, 700.0)))) if ratio > np.log(SEARCH.hidden_mass) else 0.0


def follows_gradient(density: Density, y: np.ndarray, way: float = 1.0, steps: int = 24) -> bool:
    """Return whether the log density changes as gradients say, in ``steps`` on a ``way`` inwards from ``y`` ``(d,)``.

    A difference of large numbers, such as of log-gamma functions, is rounding far out, of thousands if they are of
    1e19, and nothing beyond: it does not follow its gradient on the way there.  ``way`` is a share of ``y``.
    """
    shares = 1.0 - way * np.linspace(0.0, 1.0, steps + 1)
    lp, gradient = density(shares[:, None] * y)
    slopes = (way / steps) * (gradient @ y)
    with np.errstate(all="ignore"):
        change = lp[:-1] - lp[1:]
        integral = 0.5 * (slopes[:-1] + slopes[1:])
        off = np.abs(change - integral) - 0.5 * np.maximum(np.abs(change), np.abs(integral))
    return bool((np.nan_to_num(off, nan=np.inf) < 1.0).all())
