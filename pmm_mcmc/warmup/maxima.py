r"""Local maxima of a log density in whitened coordinates, and the mass of the mode at each by Laplace's approximation.

The mass at :math:`\hat y` is :math:`p(\hat y)\,|{-\nabla^2 \log p(\hat y)}|^{-1/2}`, with the Hessian matrix by
differences of gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from pmm_mcmc.langevin.lanczos import spectrum
from pmm_mcmc.warmup.ascent import Density
from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["Maximum", "are_close", "are_one_mode", "distinct", "hessian_spectrum", "log_mass"]


class Maximum(NamedTuple):
    """A maximum: its position ``(d,)``, log density and gradient there, and the variance in some direction."""

    y: np.ndarray
    lp: float
    gradient: np.ndarray
    scale: float


def are_close(a: Maximum, b: Maximum) -> bool:
    """Return whether two maxima are the same up to the precision of ascents."""
    return abs(a.lp - b.lp) < 0.2 and bool(np.sum((a.y - b.y) ** 2) < 0.25 * min(a.scale, b.scale, 1.0) * len(a.y))


def distinct(maxima: Iterable[Maximum], others: list[Maximum]) -> list[Maximum]:
    """Return the maxima, each once, that are none of the ``others``."""
    new: list[Maximum] = []
    for maximum in maxima:
        if not any(are_close(maximum, other) for other in (*others, *new)):
            new.append(maximum)
    return new


def are_one_mode(a: Maximum, b: Maximum, density: Density) -> bool:
    """Return whether the log density does not dip between two maxima."""
    if are_close(a, b):
        return True
    shares = np.linspace(0.0, 1.0, SEARCH.points_between + 2)[1:-1, None]
    lp, _ = density(a.y + shares * (b.y - a.y))
    return bool(np.nan_to_num(lp, nan=-np.inf).min() > min(a.lp, b.lp) - SEARCH.dip)


def log_mass(maximum: Maximum, density: Density) -> float:
    """Return Laplace's log mass up to a constant; minus infinity where the log density has no strict maximum."""
    if len(maximum.y) > SEARCH.exact_hessian:
        return maximum.lp - 0.5 * _log_determinant(maximum, density)
    values, vectors = hessian_spectrum(maximum, density)
    if not values[0] > SEARCH.flattest * values[-1]:
        return -np.inf
    gain = 0.5 * float(((maximum.gradient @ vectors) ** 2 / values).sum())  # what the ascent has left
    return maximum.lp + gain - 0.5 * float(np.log(values).sum()) if gain < 1.0 else -np.inf


def hessian_spectrum(maximum: Maximum, density: Density) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors of the negative Hessian matrix; NaN where it is not finite."""
    hessian = _hessian_products(maximum, density, np.eye(len(maximum.y)))
    if not np.isfinite(hessian).all():
        return np.full(len(hessian), np.nan), hessian
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    return values, vectors


def _hessian_products(maximum: Maximum, density: Density, directions: np.ndarray) -> np.ndarray:
    """Return the negative Hessian matrix times directions ``(n, d)``."""
    distance = 0.1 * np.sqrt(maximum.scale)
    return -(density(maximum.y + distance * directions)[1] - maximum.gradient) / distance


def _log_determinant(maximum: Maximum, density: Density) -> float:
    """Return the log determinant of the negative Hessian matrix by Lanczos' method; inf where it is not positive.

    The directions that it starts from are the same at every maximum: their noise cancels in part in differences.
    """
    d = len(maximum.y)
    start = np.random.default_rng(d).choice([-1.0, 1.0], size=(2, d)) / np.sqrt(d)
    values, weights = spectrum(partial(_hessian_products, maximum, density), start, SEARCH.lanczos_steps)
    if not np.isfinite(values).all() or (values[:, 0] <= SEARCH.flattest * values[:, -1]).any():
        return np.inf
    return 0.5 * d * float((weights * np.log(values)).sum())
