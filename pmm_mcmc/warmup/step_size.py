"""The automatic step size and number of midpoints: by the curvature, or by the acceptance rate of adjusted methods.

By the curvature, the step is the longest at which the relative error of the method's variance stays within
:func:`allowed_error`.  That error is known exactly on a Gaussian with the posterior's whitened curvature
(:mod:`pmm_mcmc.warmup.curvature`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.optimize import brentq

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.langevin.methods import METHODS, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.warmup.thresholds import THRESHOLDS

# Halvings of the range of steps before a root is looked for: of 150 curvatures, frictions and targets of the recycled
# scheme 7 have several, and without halvings another one is found.
_HALVINGS = 7
# Accuracy of a step, relative to the longest.
_ACCURACY = 1e-9

_DOUBLE = 2.0  # largest growth of a step from block to block


def adjusted_friction(step: float) -> float:
    """Return the friction of adjusted draws over that of the warm-up."""
    return THRESHOLDS.adjusted_friction * (1.0 + 0.5 * step)


def default_friction(kernel: Kernel, step: float) -> float:
    """Return the friction of a method in whitened coordinates: 1, of adjusted ones less."""
    return adjusted_friction(step) if kernel.adjusted else 1.0


def allowed_error(target_bias: float, d: int) -> float:
    r"""Return the relative error of a variance that keeps the bias of every mean within a target, in posterior sds.

    In few coordinates this is the target itself.  In many, small errors of all variances add up in a parameter that
    scales them: a log scale known from ``n`` values has a posterior standard deviation of at least
    :math:`1/\sqrt{2 n}`, and a common relative error :math:`\epsilon` of the variances moves it by
    :math:`\epsilon / 2`, which is :math:`\epsilon \sqrt{n / 2}` standard deviations.  It is less if data inform the
    values too, or if the scale is that of some of the coordinates only: half of it is allowed for, with ``n = d``.
    """
    return target_bias * min(1.0, float(np.sqrt(8.0 / max(d, 1))))


@functools.lru_cache(maxsize=512)
def _largest_step(
    kernel: Kernel, friction: float, K: int | None, limit: float, curvatures: tuple[float, ...], target: float
) -> float:
    """Return the longest step below a limit with variance errors on Gaussians within the target."""

    def excess(step_size: float) -> float:
        error = max(abs(variance_error(kernel, step_size, friction, K, c)) for c in curvatures)
        return error - target if error < 1.0 else 1.0  # also where it is not a number

    low = 0.0
    high = limit
    if kernel.power > 0.0:
        # Errors of midpoints by importance change sign: they are small again at some steps that are too long.
        high = float(next((step for step in np.geomspace(0.01 * limit, limit, 48) if excess(step) > 0.0), limit))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if excess(middle) <= 0.0:
            low = middle
        else:
            high = middle
    if high == limit and excess(high) <= 0.0:
        return high
    accuracy = _ACCURACY * limit
    low = max(low, accuracy)
    if excess(low) > 0.0:
        return 0.0
    return float(brentq(excess, low, high, xtol=accuracy)) - accuracy  # where the error is below it


def safe_step(arguments: MethodArguments, friction: float, curvature: float, target: float) -> float:
    """Return the longest step whose relative error of the variance stays within ``target``, at a whitened curvature.

    The recycled scheme integrates a curvature of 1 exactly; for it ``curvature`` is that of the remainder.
    """
    kernel = arguments.kernel
    largest = METHODS[arguments.method].largest_step
    if kernel.adjusted:
        raise ValueError("the step size of an adjusted method follows its acceptance rate")
    if kernel.scheme == Scheme.RECYCLED:
        remainder = _rounded(curvature)
        curvatures = 1.0 + remainder, max(1.0 - remainder, 1.0 / (1.0 + remainder))  # the largest and smallest in all
        return _largest_step(kernel, _rounded(friction), 1, largest, curvatures, target)
    K = arguments.fixed_K or (32 if arguments.option == 1 else None)
    if kernel.dynamics == OVERDAMPED:
        # On a Gaussian of curvature L, step alpha is step alpha L on the unit Gaussian.
        return float(min(_largest_step(kernel, 1.0, K, 2.0 * largest, (1.0,), target) / curvature, largest))
    # Likewise step alpha sqrt(L) with friction / sqrt(L).
    root = float(np.sqrt(curvature))
    unit = _largest_step(kernel, _rounded(friction / root), K, 2.0 * largest, (1.0,), target)
    return min(unit / root, largest)


def _rounded(value: float) -> float:
    """Round to the nearest 5 %, so that similar values share a root in the cache."""
    return float(1.05 ** np.round(np.log(value) / np.log(1.05)))


def midpoint_count(
    arguments: MethodArguments, step_size: float, friction: float, curvature: float, target: float
) -> int:
    """Return K for a step size: the fixed one, or the smallest power of two that adds little to the bias.

    The left grid adds the bias of Langevin Monte Carlo (K = 1) divided by K; the centred grid adds next to nothing from
    K = 4 on.  K costs no gradients.
    """
    if arguments.fixed_K is not None:
        return arguments.fixed_K
    kernel = arguments.kernel
    if arguments.grid == "centred":
        return THRESHOLDS.least_midpoints
    if kernel.dynamics == OVERDAMPED:
        floor = variance_error(kernel, step_size * curvature, friction, 1)
    else:
        root = float(np.sqrt(curvature))
        floor = variance_error(kernel, step_size * root, friction / root, 1)
    wanted = floor / (THRESHOLDS.midpoints_share * target)
    wanted = np.clip(wanted, THRESHOLDS.least_midpoints, THRESHOLDS.most_midpoints)
    return int(2 ** np.ceil(np.log2(wanted)))


def follows_curvature(arguments: MethodArguments) -> bool:
    """Return whether the step follows the curvature: it is neither fixed nor adapted to an acceptance rate."""
    return arguments.step_size is None and not arguments.kernel.adjusted


def longest_step(arguments: MethodArguments, tuned: TunedParameters, curvature: float) -> float:
    """Return the longest step whose error is allowed, at a curvature and the friction of a setting."""
    return safe_step(arguments, tuned.friction, curvature, _allowed(arguments, tuned))


def first_step(arguments: MethodArguments, tuned: TunedParameters, curvature: float) -> float:
    """Return the first step of a warm-up."""
    if arguments.step_size is not None:
        return arguments.step_size
    if arguments.kernel.adjusted:
        return min(0.5 / math.sqrt(1.0 + curvature), METHODS[arguments.method].largest_step)
    return 0.5 * longest_step(arguments, tuned, curvature)


def step_for_acceptance(
    step: float, accept: float, lengthening: float = THRESHOLDS.most_lengthening, method: str = "GHMC"
) -> float:
    r"""Return an adjusted method's step for the wanted acceptance rate, from one with the acceptance rate ``accept``.

    The share of rejected steps grows as :math:`h^3`, like the energy error of a step.  The step changes by a factor
    between ``THRESHOLDS.most_shortening`` and ``lengthening``.
    """
    share = (1.0 - (METHODS[method].acceptance or THRESHOLDS.adjusted_acceptance)) / max(1.0 - accept, 1e-6)
    factor = min(max(share ** (1.0 / 3.0), THRESHOLDS.most_shortening), lengthening)
    return min(step * factor, METHODS[method].largest_step)


def adapted(
    arguments: MethodArguments, tuned: TunedParameters, share: float, accept: float, shrinks: bool, curvature: float
) -> tuple[TunedParameters, float]:
    """Return the setting with the step that draws show, and the share of what their curvature allows that it takes.

    ``accept`` is their acceptance rate, and the share ``shrinks`` where they show that the step is too long.
    """
    step = tuned.step_size
    if arguments.kernel.adjusted and arguments.step_size is None:
        # Rejections before the coordinates fit must not leave a short step: it grows as fast as others.
        step = step_for_acceptance(step, accept, _DOUBLE, arguments.method)
    elif follows_curvature(arguments):
        share = THRESHOLDS.shrink * share if shrinks else min(1.0, share / THRESHOLDS.shrink)
        longest = share * longest_step(arguments, tuned, curvature)
        # On a slope that overflows no step is stable, and one of 0 would stay there.
        step = min(longest, _DOUBLE * step) if longest > 0.0 else THRESHOLDS.shrink * step
    return with_step(arguments, tuned, step, curvature), share


def with_step(arguments: MethodArguments, tuned: TunedParameters, step: float, curvature: float) -> TunedParameters:
    """Return the setting with another step and its number of midpoints."""
    if arguments.kernel.adjusted:
        return tuned._replace(step_size=step) if arguments.friction else with_adjusted_step(tuned, step)
    K = midpoint_count(arguments, step, tuned.friction, curvature, _allowed(arguments, tuned))
    return tuned._replace(step_size=step, K=K)


def with_adjusted_step(tuned: TunedParameters, step: float) -> TunedParameters:
    """Return the setting of adjusted draws with another step, and the friction that goes with it."""
    friction = tuned.friction * adjusted_friction(step) / adjusted_friction(tuned.step_size)
    return tuned._replace(step_size=step, friction=friction)


def _allowed(arguments: MethodArguments, tuned: TunedParameters) -> float:
    return allowed_error(arguments.target_bias, len(tuned.coordinates.centre))


def fixed_setting(
    arguments: MethodArguments, centre: np.ndarray, density_parameters: np.ndarray | None = None
) -> TunedParameters:
    """Return the setting of a run without warm-up; raise an error if the step size is "auto"."""
    if arguments.step_size is None:
        raise ValueError(
            "step_size='auto' with tune=0: a step size is found in warm-up. Let it tune (tune=1000), or give the step "
            "one, as in step=pmm.GHMC(step_size=...)"
        )
    scale = np.ones_like(centre) if arguments.scaling is None else np.array(arguments.scaling)
    friction = arguments.friction or default_friction(arguments.kernel, arguments.step_size)
    K = midpoint_count(arguments, arguments.step_size, friction, 1.0, allowed_error(arguments.target_bias, len(centre)))
    coordinates = Coordinates(centre.copy(), scale, density_parameters)
    return TunedParameters(arguments.step_size, K, friction, coordinates, arguments.steps_per_draw or 1)
