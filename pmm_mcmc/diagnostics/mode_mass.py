"""The mass of draws, and that of other modes, by importance sampling; and whether draws are where the mass is.

That of the chains is by bridge sampling between their draws and the Gaussian that is as wide [1]_.  That of a region is
a mean of importance weights, of draws of Student's t that adapts to it in a few rounds [2]_.  It is compared with the
share of the run's draws in the same *region*, where a Gaussian as heavy, about the same centre, is above that of the
chains: whatever the shape of the posterior, both are the same number if the chains visit the region.

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
from scipy.linalg import eigh_tridiagonal
from scipy.special import gammaln

from pmm_mcmc.diagnostics.thresholds import SEARCH
from pmm_mcmc.warmup.ascent import Density

# Log densities ``(n,)`` at positions ``(n, d)``.
Value = Callable[[np.ndarray], np.ndarray]
# Degrees of freedom of the places about a centre.
_DEGREES = 5.0
# Rounds of them at most.
_ROUNDS = 6
# Length of a new direction of Lanczos' method over that of the product, below which it is rounding.
_SPANNED = 1e-2
_LOG_2PI = float(np.log(2.0 * np.pi))


class Maximum(NamedTuple):
    """A maximum: its position ``(d,)``, log density and gradient there, and the variance in some direction."""

    y: np.ndarray
    lp: float
    gradient: np.ndarray
    scale: float


class Region(NamedTuple):
    """A region about a centre: its log mass, effective places, and the share of the draws that are in it."""

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
    constant = 0.5 * d * _LOG_2PI
    mass, variance = _bridge(
        lp + 0.5 * (some**2).sum(axis=1) + constant, value(places) + 0.5 * (places**2).sum(axis=1) + constant
    )
    if variance < 1.0:
        return mass
    if n > d:
        log_det = float(np.linalg.slogdet(np.cov(draws.T).reshape(d, d))[1]) + 0.5 * d * (d + 1) / n
    else:
        log_det = float(np.log(draws.var(axis=0)).sum())
    return float(lp.mean()) + constant + 0.5 * d + 0.5 * log_det


def _bridge(ratios: np.ndarray, place_ratios: np.ndarray) -> tuple[float, float]:
    """Return the log ratio of two masses by bridge sampling, and the variance of its error.

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
    shares = [np.exp(logs - logs.max()) for logs in (of_places, of_draws)]
    return log_mass, float(sum(share.var() / (share.mean() ** 2 * len(share)) for share in shares))


# -- the mass about a centre -------------------------------------------------------------------------------------------


def weighed(
    log_mass: float,
    root: np.ndarray,
    centre: np.ndarray,
    value: Value,
    log_chains: float,
    draws: np.ndarray,
    rng: np.random.Generator,
) -> Region:
    """Return the region about a centre, where chains have the log mass ``log_chains``, with its mass and draws.

    It begins with a ``log_mass`` and the ``root`` ``(d, d)`` of a covariance; ``value`` returns log densities, minus
    infinity where they do not count.
    """
    d = len(centre)
    contains = partial(_in_region, root, centre, log_mass, log_chains)
    if log_mass < log_chains - 15.0 - 0.5 * d:
        return Region(log_mass, np.inf, 0.0, contains)
    proposals: list[tuple[np.ndarray, np.ndarray]] = []
    places = np.empty((0, d))
    lp = np.empty(0)
    for rounds in range(_ROUNDS):
        contains = partial(_in_region, root, centre, log_mass, log_chains)
        proposals.append((centre, root))
        t = rng.standard_normal((SEARCH.places, d)) * np.sqrt(_DEGREES / rng.chisquare(_DEGREES, (SEARCH.places, 1)))
        places = np.concatenate([places, centre + t @ root.T])
        lp = np.concatenate([lp, value(places[-SEARCH.places :])])
        log_q = np.logaddexp.reduce([_log_t(places, *proposal) for proposal in proposals]) - np.log(len(proposals))
        log_weights = np.where(contains(places), lp - log_q, -np.inf)
        total = np.logaddexp.reduce(log_weights)
        if not np.isfinite(total):
            return Region(-np.inf, np.inf, 0.0, contains)
        log_mass = float(total - np.log(len(log_weights)))
        weights = np.exp(log_weights - total)
        effective = float(1.0 / (weights**2).sum())
        visited = float(contains(draws).mean())
        expected = np.exp(min(log_mass - log_chains, 0.0))
        if effective > SEARCH.effective and (rounds > 1 or expected < 1e-4 or visited > 0.5 * expected):
            break
        if effective > 4.0 * d + 2.0:
            centre, root = _adapted(places, weights, centre, root)
    return Region(log_mass, effective, visited, contains)


def _in_region(root: np.ndarray, centre: np.ndarray, log_mass: float, log_chains: float, y: np.ndarray) -> np.ndarray:
    """Return whether a Gaussian about ``centre`` is above that of the chains at each position ``(n, d)``."""
    height = log_mass - _log_det(root) - 0.5 * (np.linalg.solve(root, (y - centre).T) ** 2).sum(axis=0)
    return np.asarray(height > log_chains - 0.5 * (y**2).sum(axis=1))


def _adapted(
    places: np.ndarray, weights: np.ndarray, centre: np.ndarray, root: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and root of the covariance by weighted places."""
    mean = weights @ places
    offset = (places - mean) * np.sqrt(weights)[:, None]
    try:
        return mean, np.linalg.cholesky(offset.T @ offset)
    except np.linalg.LinAlgError:
        return centre, root


def _log_t(y: np.ndarray, centre: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Return the log density of Student's t at positions ``(n, d)``."""
    d = y.shape[1]
    square = (np.linalg.solve(root, (y - centre).T) ** 2).sum(axis=0)
    constant = gammaln(0.5 * (_DEGREES + d)) - gammaln(0.5 * _DEGREES) - 0.5 * d * np.log(_DEGREES * np.pi)
    return np.asarray(constant - _log_det(root) - 0.5 * (_DEGREES + d) * np.log1p(square / _DEGREES))


def _log_det(root: np.ndarray) -> float:
    return float(np.linalg.slogdet(root)[1])


def gaussian_about(
    maximum: Maximum, density: Density, value: Value, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Return log mass and covariance root of a Gaussian by slopes around a maximum, as far away as the density falls.

    A cusp has no curvature, and the tails of Student's t are further than it says.  No direction is wider than the
    maximum is far from the chains, or than they are wide.
    """
    d = len(maximum.y)
    widest = max(1.0, float(np.linalg.norm(maximum.y)))
    directions = rng.standard_normal((3, d))
    directions *= np.sqrt(d) / np.linalg.norm(directions, axis=1, keepdims=True)
    widths = 2.0 * widest * 2.0 ** np.arange(0.0, -15.0, -1.5)
    falls = maximum.lp - value((maximum.y + widths[:, None, None] * directions).reshape(-1, d)).reshape(-1, 3)
    width = float(widths[np.argmin(np.abs(np.median(falls, axis=1) - 0.5 * d))])
    slopes = -density(maximum.y + width * np.eye(d))[1] / width
    root = width * np.eye(d)
    if np.isfinite(slopes).all():
        values, vectors = np.linalg.eigh(0.5 * (slopes + slopes.T))
        root = np.asarray(vectors / np.sqrt(np.maximum(np.abs(values), widest**-2.0)))
    return maximum.lp + 0.5 * d * _LOG_2PI + _log_det(root), root


def half_log_determinant(maximum: Maximum, density: Density) -> float:
    """Return half the log determinant of the negative Hessian, by Lanczos' method; inf where it is not positive.

    The two directions that it starts from are the same at every maximum: their noise cancels in part in differences.
    """
    d = len(maximum.y)
    distance = 0.1 * np.sqrt(maximum.scale)
    total = 0.0
    for start in np.random.default_rng(d).choice([-1.0, 1.0], size=(2, d)) / np.sqrt(d):
        basis = [start]
        diagonal: list[float] = []
        off_diagonal: list[float] = []
        while len(diagonal) < SEARCH.lanczos_steps:
            product = (maximum.gradient - density((maximum.y + distance * basis[-1])[None])[1][0]) / distance
            if not np.isfinite(product).all():
                return np.inf
            diagonal.append(float(product @ basis[-1]))
            new = product - np.transpose(basis) @ (np.array(basis) @ product)
            if np.linalg.norm(new) < _SPANNED * np.linalg.norm(product):
                break
            off_diagonal.append(float(np.linalg.norm(new)))
            basis.append(new / off_diagonal[-1])
        values, vectors = eigh_tridiagonal(diagonal, off_diagonal[: len(diagonal) - 1])
        if values[0] <= 1e-8 * values[-1]:
            return np.inf
        total += 0.5 * d * float(vectors[0] ** 2 @ np.log(values))
    return 0.5 * total


# -- mass without a maximum --------------------------------------------------------------------------------------------


def slab_log_masses(places: np.ndarray, lp: np.ndarray, draws: np.ndarray) -> np.ndarray:
    r"""Return log masses ``(n,)``, whose mean is that of all that is around the draws.

    The places have uniform directions and radii :math:`r` of density :math:`1 / (r \log(b/a))`, so that the mean of
    :math:`p(y)\,r^d\,|S^{d-1}| \log(b/a)` is the mass.  Only places that are half as far again as the furthest draw
    count: heavy tails that chains do visit have no mass to speak of there.
    """
    d = draws.shape[1]
    radius = np.linalg.norm(places, axis=1)
    log_sphere = np.log(2.0) + 0.5 * d * np.log(np.pi) - gammaln(0.5 * d)
    log_span = np.log(np.log(SEARCH.furthest / SEARCH.nearest))
    beyond = radius > 1.5 * np.linalg.norm(draws, axis=1).max()
    return np.where(beyond, lp + d * np.log(radius) + log_sphere + log_span, -np.inf)


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
