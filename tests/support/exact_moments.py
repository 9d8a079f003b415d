"""Exact moments for the acceptance set, by the formulas of :mod:`pmm_mcmc.workbench.targets`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.workbench import targets as gallery
from pmm_mcmc.workbench.targets import moments

__all__ = ["Reference", "bent_pairs", "funnel", "gaussian", "of_gallery"]


@dataclass(frozen=True)
class Reference:
    """Moments of each coordinate, arrays of shape ``(d,)``; standard errors are 0 where the moments are exact."""

    mean: np.ndarray
    second: np.ndarray
    variance_of_x: np.ndarray
    variance_of_square: np.ndarray
    se_mean: np.ndarray
    se_second: np.ndarray


def _exact(found: gallery.Reference) -> Reference:
    """Take over moments that have no errors."""
    if not found.exact:
        raise ValueError(f"found: these moments are not exact: {found.source}")
    zero = np.zeros_like(found.mean)
    variance = found.second_moment - found.mean**2
    return Reference(found.mean, found.second_moment, variance, found.square_variance, zero, zero)


def of_gallery(name: str) -> Reference:
    """Moments of a target of :mod:`pmm_mcmc.workbench.targets` that has exact ones."""
    return _exact(gallery.get(name).reference)


def gaussian(variance: np.ndarray) -> Reference:
    """Moments of a Gaussian about 0 with these marginal variances."""
    return _exact(moments.from_moments(moments.gaussian_moments(np.zeros_like(variance), variance), "Closed form."))


def bent_pairs(
    pairs: int, mean: float, sd: float, curve: Callable[[np.ndarray], np.ndarray], noise_variance: float
) -> Reference:
    """Moments of pairs a ~ N(mean, sd^2), b ~ N(curve(a), noise): see ``bent_pairs`` of the targets' moments."""
    return _exact(moments.from_moments(moments.bent_pairs(pairs, mean, sd, curve, noise_variance), "Quadrature."))


def funnel(sd: float, others: int) -> Reference:
    """Moments of y ~ N(0, sd^2) and so many x ~ N(0, exp(y))."""
    return _exact(moments.from_moments(moments.funnel(sd, others), "Closed form."))
