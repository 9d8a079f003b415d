"""Step size and number of midpoints from how fast the gradient changes.

In whitened coordinates the step that a method can take follows from the curvature, seen as ``|dg| / |dy|`` between
successive draws.  The automatic step is the largest at which the method's exact relative error of the variance on the
Gaussian of that curvature stays within :func:`allowed_error`.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.settings import MethodArguments, TunedParameters
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.langevin.methods import METHODS, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.stability import SOUND, steepest_curvature
from pmm_mcmc.langevin.transitions import SUBSTEPS
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.friction import DEFAULT_FRICTION

__all__ = [
    "allowed_error",
    "expected_bias",
    "fixed_setting",
    "found_by_curvature",
    "lipschitz_bound",
    "longest",
    "midpoint_count",
    "rare_curvature",
    "safe_step",
    "start",
    "towards_acceptance",
    "with_costs",
    "with_step",
]


def lipschitz_bound(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool, in_parts: bool
) -> float:
    """Estimate how fast the gradient changes, from successive whitened positions and gradients ``(chain, n, d)``.

    The larger of two numbers: the 99 % quantile of ``|dg| / |dy|`` over successive draws, or the 99.9 % quantile for a
    method that must be stable nearly everywhere; and the 97 % quantile of the same along the direction in which the
    gradient varies most.  The second sees a few stiff directions that the first, an average over all, would miss; on a
    Gaussian it is their exact curvature.

    Parameters
    ----------
    position, gradient
        Rows in order of time.
    usable
        Mask ``(chain, n)`` of rows past the start-up transient.
    remainder
        Take the gradient after the linear part ``-y`` that the harmonic flow integrates.
    in_parts
        Whether steps are taken in parts where the posterior is too steep for them.
    """
    dy, dg = _changes(position, gradient, usable, remainder)
    if not len(dy):
        return 1.0
    direction = _main_direction((gradient + position if remainder else gradient)[usable])
    along, change = np.abs(dy @ direction), np.abs(dg @ direction)
    clear = along >= np.quantile(along, 0.8)  # where it is this direction that moved
    stiffest = np.quantile(change[clear] / along[clear], 0.97) if along[clear].min() > 0.0 else 0.0
    return float(max(_rare(dy, dg, in_parts), stiffest))


def rare_curvature(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool, in_parts: bool
) -> float:
    """Return the first number of :func:`lipschitz_bound` alone, for use where steep directions are known."""
    dy, dg = _changes(position, gradient, usable, remainder)
    return _rare(dy, dg, in_parts) if len(dy) else 1.0


def _changes(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Differences of successive rows that moved, of position and of gradient."""
    force = gradient + position if remainder else gradient
    pairs = usable[:, 1:] & usable[:, :-1]
    dy, dg = np.diff(position, axis=1)[pairs], np.diff(force, axis=1)[pairs]
    moved = (dy**2).sum(axis=1) > 0.0
    return dy[moved], dg[moved]


def _rare(dy: np.ndarray, dg: np.ndarray, in_parts: bool) -> float:
    ratio = np.sqrt((dg**2).sum(axis=1)) / np.sqrt((dy**2).sum(axis=1))
    return float(max(np.quantile(ratio, CALIBRATION.places if in_parts else CALIBRATION.nearly_all_places), 1e-3))


def _main_direction(rows: np.ndarray) -> np.ndarray:
    """First principal direction of rows, none of which counts for more than twice the median (power iteration)."""
    rows = rows - np.median(rows, axis=0)
    norms = np.sqrt((rows**2).sum(axis=1))
    median = np.median(norms)
    rows = rows * np.minimum(1.0, 2.0 * median / np.maximum(norms, 1e-300))[:, None]
    direction = rows[np.argmax(np.minimum(norms, 2.0 * median))]
    for _ in range(30):
        size = np.sqrt((direction**2).sum())
        if not size > 0.0:
            return np.zeros(rows.shape[1])
        direction = rows.T @ (rows @ (direction / size))
    return direction / max(np.sqrt((direction**2).sum()), 1e-300)


def allowed_error(target_bias: float, d: int) -> float:
    r"""Return the relative error of a variance that keeps the bias of every mean within a target.

    It is the target itself in few coordinates.  In many, small errors of all their variances add up where a parameter
    scales them: a log scale known from ``n`` values has a posterior standard deviation of at least
    :math:`1/\sqrt{2 n}`, and a common relative error :math:`\epsilon` of their variances moves it by
    :math:`\epsilon / 2`, which is :math:`\epsilon \sqrt{n / 2}` of these.  Data that tell the values apart, and values
    that the scale does not rule, make it less: half of that is allowed for, with ``n = d``.

    Parameters
    ----------
    target_bias
        In posterior standard deviations.
    d
        Number of coordinates.
    """
    return target_bias * min(1.0, float(np.sqrt(8.0 / max(d, 1))))


@functools.lru_cache(maxsize=512)
def _largest_step(
    kernel: Kernel, friction: float, K: int | None, limit: float, curvatures: tuple[float, ...], target: float
) -> float:
    """Largest step below a limit that keeps the variance errors on Gaussians within the target, by bisection."""

    def allowed(step_size: float) -> bool:
        return max(abs(variance_error(kernel, step_size, friction, K, c)) for c in curvatures) <= target

    low, high = 0.0, limit
    if kernel.power > 0.0:
        # Errors of either sign: they cancel at some long step, beyond shorter ones, of flatter directions, that do not.
        high = float(next((step for step in np.geomspace(0.01 * limit, limit, 48) if not allowed(step)), limit))
    for _ in range(24):
        middle = 0.5 * (low + high)
        if allowed(middle):
            low = middle
        else:
            high = middle
    return low


def safe_step(settings: MethodArguments, friction: float, lipschitz: float, target: float | None = None) -> float:
    """Step size for a curvature of ``lipschitz`` (of the remainder, for the recycled scheme), in whitened units.

    The ``target`` is the relative error of a variance; by default that of few dimensions.
    """
    kernel, method = settings.kernel, METHODS[settings.method]
    target = settings.target_bias if target is None else target
    if kernel.scheme == Scheme.MALA:
        raise ValueError("MALA's step size follows its acceptance rate")
    if kernel.scheme == Scheme.RECYCLED:
        curvatures = _around_one(_rounded(lipschitz))
        return _largest_step(kernel, _rounded(friction), 1, method.largest_step, curvatures, target)
    K = settings.fixed_K or (32 if settings.option == 1 else None)
    limit = 2.0 * method.largest_step
    if kernel.dynamics == OVERDAMPED:
        # A Gaussian of curvature L at step alpha is the unit one at alpha L.
        return float(min(_largest_step(kernel, 1.0, K, limit, (1.0,), target) / lipschitz, method.largest_step))
    # Likewise at alpha sqrt(L) and friction / sqrt(L).
    root = float(np.sqrt(lipschitz))
    unit = _largest_step(kernel, _rounded(friction / root), K, limit, (1.0,), target)
    return min(unit / root, method.largest_step)


def _around_one(lipschitz: float) -> tuple[float, float]:
    """Return the ends of the curvatures of the unit Gaussian with a remainder of slope up to ``lipschitz``."""
    return 1.0 + lipschitz, max(1.0 - lipschitz, 1.0 / (1.0 + lipschitz))


def expected_bias(
    settings: MethodArguments, step_size: float, friction: float, K: int, lipschitz: float, d: int, refined: float = 0.0
) -> float:
    r"""Return the bias of means that a step may well have where the curvature is ``lipschitz``, in posterior sds.

    The rule of :func:`allowed_error` read backwards: with :math:`\epsilon` the method's exact relative error of the
    variance on the Gaussian of that curvature,

    .. math:: \epsilon \, / \min(1, \sqrt{8 / d}) .

    The automatic step is the longest at which this is ``target_bias``.  It is no estimate of the bias, which may be
    much smaller.  Beyond the largest curvature at which a step has a stationary law the rule is read there, with an
    error of 1 at least; a method without midpoints knows no curvature, and it is infinite.  What is taken in parts
    counts by the same rule for steps of their length.  0 for MALA, which has no bias.

    Parameters
    ----------
    settings
        The method.
    step_size, friction, K
        What it runs with.
    lipschitz
        Largest curvature in whitened coordinates (of the remainder, for the recycled scheme).
    d
        Number of coordinates.
    refined
        Share of the steps that are taken in parts.
    """
    kernel = settings.kernel
    if kernel.scheme == Scheme.MALA:
        return 0.0
    if refined > 0.0:
        whole, part = (expected_bias(settings, h, friction, K, lipschitz, d) for h in (step_size, step_size / SUBSTEPS))
        return (1.0 - refined) * whole + refined * part
    least = 0.0
    if settings.sees_curvature:
        stable = CALIBRATION.stable_margin / SOUND * steepest_curvature(kernel, step_size, friction, K)
        lipschitz, least = min(lipschitz, stable), float(lipschitz > stable)
    curvatures = _around_one(lipschitz) if kernel.scheme == Scheme.RECYCLED else (lipschitz,)
    many = kernel.scheme == Scheme.CELLS and kernel.option == 2 and K > CALIBRATION.many_midpoints
    cells = None if many else min(K, CALIBRATION.many_midpoints)
    error = max(abs(variance_error(kernel, step_size, friction, cells, c)) for c in curvatures)
    return max(error, least) / allowed_error(1.0, d)


def _rounded(value: float) -> float:
    """To the nearest 5 %, so that bisections are remembered."""
    return float(1.05 ** np.round(np.log(value) / np.log(1.05)))


def midpoint_count(
    settings: MethodArguments, step_size: float, friction: float, lipschitz: float, target: float | None = None
) -> int:
    """Return K for a step size: given, or the smallest power of two that adds little to the bias.

    The left grid adds the bias of Langevin Monte Carlo (K = 1) divided by K; the centred grid nothing to speak of from
    K = 4 on.  K costs no gradients.
    """
    if settings.fixed_K is not None:
        return settings.fixed_K
    kernel = settings.kernel
    target = settings.target_bias if target is None else target
    if settings.grid == "centred":
        return CALIBRATION.least_midpoints
    if kernel.dynamics == OVERDAMPED:
        floor = variance_error(kernel, step_size * lipschitz, friction, 1)
    else:
        root = float(np.sqrt(lipschitz))
        floor = variance_error(kernel, step_size * root, friction / root, 1)
    wanted = floor / (CALIBRATION.midpoints_share * target)
    wanted = np.clip(wanted, CALIBRATION.least_midpoints, CALIBRATION.most_midpoints)
    return int(2 ** np.ceil(np.log2(wanted)))


def found_by_curvature(settings: MethodArguments) -> bool:
    """Whether the step is neither given nor adapted to an acceptance rate."""
    return settings.step_size is None and settings.kernel.scheme != Scheme.MALA


def longest(settings: MethodArguments, tuned: TunedParameters, curvature: float, part: float = 1.0) -> float:
    """Return the longest step whose error stays within a part of what is allowed, with the friction in force."""
    return safe_step(settings, tuned.friction, curvature, part * _allowed(settings, tuned))


def start(settings: MethodArguments, tuned: TunedParameters, curvature: float) -> float:
    """Return the step to begin with."""
    if settings.step_size is not None:
        return settings.step_size
    if settings.kernel.scheme == Scheme.MALA:
        return 0.5 / (curvature * max(len(tuned.coordinates.centre), 1) ** (1 / 3))
    return 0.5 * longest(settings, tuned, curvature)


def towards_acceptance(step: float, accept: float, blocks: int) -> float:
    """Return MALA's next step, after so many blocks of which the last had this acceptance rate."""
    gain = 2.0 / math.sqrt(1.0 + blocks)
    return step * math.exp(gain * (accept - CALIBRATION.acceptance))


def with_step(settings: MethodArguments, tuned: TunedParameters, step: float, curvature: float) -> TunedParameters:
    """Return the setting with another step, and the midpoints that it needs."""
    K = midpoint_count(settings, step, tuned.friction, curvature, _allowed(settings, tuned))
    return tuned._replace(step_size=step, K=K)


def with_costs(settings: MethodArguments, tuned: TunedParameters, curvature: float, refined: float) -> TunedParameters:
    """Return the setting with what half the bias would take, and with the bias that its step makes likely.

    ``refined`` is the share of the steps that are taken in parts.
    """
    cost = math.nan
    if found_by_curvature(settings):
        cost = longest(settings, tuned, curvature) / longest(settings, tuned, curvature, 0.5)
    d = len(tuned.coordinates.centre)
    bias = expected_bias(settings, tuned.step_size, tuned.friction, tuned.K, curvature, d, refined)
    return tuned._replace(halving_cost=cost, expected_bias=bias)


def _allowed(settings: MethodArguments, tuned: TunedParameters) -> float:
    return allowed_error(settings.target_bias, len(tuned.coordinates.centre))


def fixed_setting(settings: MethodArguments, centre: np.ndarray, sites: np.ndarray | None = None) -> TunedParameters:
    """Return the setting of a run without warm-up; raise where the step size is not given."""
    if settings.step_size is None:
        raise ValueError(
            f"step_size='auto' with tune=0: {settings.method} finds its step size in warm-up. "
            "Give step_size=, or let it tune (tune=1000)"
        )
    scale = np.ones_like(centre) if settings.scaling is None else np.array(settings.scaling)
    friction = settings.friction or DEFAULT_FRICTION
    K = midpoint_count(settings, settings.step_size, friction, 1.0, allowed_error(settings.target_bias, len(centre)))
    coordinates = Coordinates(centre.copy(), scale, sites)
    return TunedParameters(settings.step_size, K, friction, coordinates, settings.steps_per_draw or 1)
