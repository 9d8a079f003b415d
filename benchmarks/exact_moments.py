"""Exact moments for the acceptance set: closed forms, and quadrature over one variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Reference", "bent_pairs", "eight_schools", "funnel", "gaussian", "mixture"]


@dataclass(frozen=True)
class Reference:
    """Moments of each coordinate, arrays of shape ``(d,)``; standard errors are 0 where the moments are exact."""

    mean: np.ndarray
    second: np.ndarray
    variance_of_x: np.ndarray
    variance_of_square: np.ndarray
    se_mean: np.ndarray
    se_second: np.ndarray


def _from_moments(moments: np.ndarray) -> Reference:
    """Exact reference from raw moments 1, 2 and 4, shape ``(3, d)``."""
    first, second, fourth = moments
    zero = np.zeros_like(second)
    return Reference(first, second, second - first**2, fourth - second**2, zero, zero)


def _gaussian_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Raw moments 1, 2 and 4 of Gaussians, stacked along a new first axis."""
    return np.stack([mean, mean**2 + variance, mean**4 + 6 * mean**2 * variance + 3 * variance**2])


def gaussian(variance: np.ndarray) -> Reference:
    """Moments of a Gaussian about 0 with these marginal variances."""
    return _from_moments(_gaussian_moments(np.zeros_like(variance), variance))


def bent_pairs(
    pairs: int, mean: float, sd: float, curve: Callable[[np.ndarray], np.ndarray], noise_variance: float
) -> Reference:
    """Moments of pairs a ~ N(mean, sd^2), b ~ N(curve(a), noise): first all a, then all b.

    Exact where ``curve`` is a polynomial of degree at most 19: the quadrature is exact up to degree 79.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    centre = curve(mean + sd * nodes)
    bent = _gaussian_moments(centre, np.full_like(centre, noise_variance)) @ (weights / weights.sum())
    straight = _gaussian_moments(np.array(mean), np.array(sd**2))
    return _from_moments(np.repeat(np.column_stack([straight, bent]), pairs, axis=1))


def funnel(sd: float, others: int) -> Reference:
    """Moments of y ~ N(0, sd^2) and x ~ N(0, exp(y)), for E exp(k y) = exp(k^2 sd^2 / 2)."""
    neck = _gaussian_moments(np.array([0.0]), np.array([sd**2]))
    rest = np.array([0.0, np.exp(sd**2 / 2), 3 * np.exp(2 * sd**2)])
    return _from_moments(np.concatenate([neck, np.repeat(rest[:, None], others, axis=1)], axis=1))


def mixture(weight: np.ndarray, mean: np.ndarray, d: int) -> Reference:
    """Moments of a mixture of unit Gaussians whose means lie on the first axis."""
    first = _gaussian_moments(mean, np.ones_like(mean)) @ weight
    rest = _gaussian_moments(np.zeros(d - 1), np.ones(d - 1))
    return _from_moments(np.concatenate([first[:, None], rest], axis=1))


def eight_schools(
    effect: np.ndarray, error: np.ndarray, mu_sd: float, tau_scale: float, centred: bool, points: int = 4001
) -> Reference:
    """Moments of mu, log tau and the schools: given tau, all but tau are jointly Gaussian; log tau on a grid."""
    log_tau = np.linspace(-40.0, 12.0, points)
    tau = np.exp(log_tau)[:, None]
    spread = error**2 + tau**2
    mu_variance = 1 / (1 / mu_sd**2 + (1 / spread).sum(axis=1))
    mu_mean = mu_variance * (effect / spread).sum(axis=1)
    log_weight = (
        log_tau
        - np.log1p((tau[:, 0] / tau_scale) ** 2)
        - 0.5 * (np.log(spread) + effect**2 / spread).sum(axis=1)
        + 0.5 * (np.log(mu_variance) + mu_mean**2 / mu_variance)
    )
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    # The school's z, in theta = mu + tau z, is Gaussian given mu and tau, with mean slope (effect - mu).
    slope = tau / spread
    centre, gain, own = slope * (effect - mu_mean[:, None]), -slope, error**2 / spread
    if centred:
        centre, gain, own = mu_mean[:, None] + tau * centre, 1 + tau * gain, tau**2 * own
    schools = _gaussian_moments(centre, own + gain**2 * mu_variance[:, None])
    top = np.stack([_gaussian_moments(mu_mean, mu_variance), [log_tau, log_tau**2, log_tau**4]], axis=-1)
    return _from_moments(np.einsum("t,ktj->kj", weight, np.concatenate([top, schools], axis=-1)))
