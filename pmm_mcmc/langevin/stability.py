r"""Limits of a stable step: the largest rise of the energy over it, and the largest curvature along it.

Where an explicit step is too long for the local curvature it multiplies its errors, and an unadjusted chain would
diverge.  On a Gaussian the rise :math:`R` of the energy over a step is a quadratic form in independent normals, for a
given midpoint the same in each of the ``d`` coordinates.  With the eigenvalues :math:`\lambda_k` of that form

.. math:: P(R > r) \le \exp\Bigl(-t r - \tfrac d2 \sum_k \log(1 - 2 t \lambda_k)\Bigr), \qquad 0 < 2 t \lambda_k < 1

(Chernoff).  The threshold is the smallest ``r`` for which this bound is :data:`FALSE_ALARM` at the worst midpoint, on
the unit Gaussian and at the step size in use, plus an allowance for posteriors that are not Gaussian.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.optimize import brentq

from pmm_mcmc.langevin.gaussian_law import growth_of_moments, step_maps
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme

FALSE_ALARM = 1e-8  # probability, by Chernoff's bound, that a good step on a Gaussian is refused
_ALLOWANCE = 5.0  # energy allowed in addition, since posteriors are not Gaussian
# Factors of the bound: all coordinates share the earlier midpoints, which shaped the state at the start of a step.
# In d = 3000 the randomised midpoint method at step 0.965 exceeded 1.5 times the bound 3 times in 5,000 steps, and
# never 1.8 times it.
_MARGIN = 1.25
_MARGIN_OF_RLMC = 1.8
# Share of the curvature at which the stationary law ceases to exist.  There the variances of the two-gradient methods
# are 10 to 40 % too large; the largest curvature that warm-up tunes a step for is at most three quarters of it.
SOUND = 0.6
_SLOPES = np.linspace(0.005, 0.995, 100)
# Logarithms of the curvatures, times the step to its power, between which that limit is searched.
_LOG_CURVATURES = np.log(1e-6), np.log(1e4)


def guard_threshold(kernel: Kernel, step_size: float, friction: float, K: int, d: int) -> float:
    """Return the largest rise of the energy over a stable step, in ``d`` whitened coordinates."""
    return _threshold(kernel, _rounded_up(step_size), float(friction), min(K, 8), d)


def _rounded_up(step_size: float) -> float:
    """Return a step longer by up to 2 %, which makes the caches useful: it has the larger rise and is less stable."""
    return float(1.02 ** np.ceil(np.log(step_size) / np.log(1.02)))


@functools.lru_cache(maxsize=4096)
def _threshold(kernel: Kernel, step_size: float, friction: float, K: int, d: int) -> float:
    """Return the threshold of the module's docstring."""
    if kernel.adjusted or d == 0:
        return np.inf  # the Metropolis test rejects such steps
    energy = np.diag([1.0, float(kernel.dynamics != OVERDAMPED)])
    steps = step_maps(kernel, step_size, friction, K)
    start = np.eye(2, steps.shape[2])
    rise = np.linalg.eigvalsh(0.5 * (steps.mT @ energy @ steps - start.T @ energy @ start))
    slope = _SLOPES / (2.0 * np.maximum(rise[:, -1:], 1e-300))
    with np.errstate(over="ignore", invalid="ignore"):
        bound = -0.5 * d * np.log1p(-2.0 * slope[:, :, None] * rise[:, None]).sum(axis=2)
        worst = max(0.0, float(np.nanmin((bound - np.log(FALSE_ALARM)) / slope, axis=1).max()))
    return worst * (_MARGIN_OF_RLMC if kernel.scheme == Scheme.CONTINUOUS else _MARGIN) + _ALLOWANCE


def steepest_curvature(kernel: Kernel, step_size: float, friction: float, K: int) -> float:
    """Return the largest curvature at which a step of this size is not refined.

    It is :data:`SOUND` times the largest curvature of a Gaussian on which the method has a stationary law.  For the
    recycled scheme it excludes the curvature 1 that the flow integrates; for adjusted methods it is infinite.
    """
    in_the_limit = kernel.scheme == Scheme.CELLS and kernel.option == 2 and K > 8
    return SOUND * _steepest(kernel, _rounded_up(step_size), float(friction), None if in_the_limit else min(K, 16))


@functools.lru_cache(maxsize=4096)
def _steepest(kernel: Kernel, step_size: float, friction: float, K: int | None) -> float:
    """Return the largest curvature with a stationary law."""
    if kernel.adjusted:
        return np.inf
    offset = float(kernel.dynamics == HARMONIC)
    order = 1.0 if kernel.dynamics == OVERDAMPED else 2.0
    scale = 1.0 / step_size**order

    def excess(log_ratio: float) -> float:
        # Moments that stay as they are have no stationary law either.
        growth = growth_of_moments(kernel, step_size, friction, K, scale * np.exp(log_ratio) + offset)
        return (growth - 1.0 or 1e-16) if growth < 2.0 else 1.0  # also where it is not a number

    low, high = _LOG_CURVATURES
    if excess(high) <= 0.0:
        return scale * float(np.exp(high))
    if excess(low) > 0.0:
        return scale * float(np.exp(low))
    return scale * float(np.exp(brentq(excess, low, high)))
