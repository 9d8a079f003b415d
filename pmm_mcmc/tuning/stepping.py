"""The step that goes with a curvature: the first of a warm-up, the longest that it may take, and what that costs."""

from __future__ import annotations

import math

from pmm_mcmc.methods import Scheme, Settings
from pmm_mcmc.tuning.setting import Tuned
from pmm_mcmc.tuning.step_size import allowed_error, expected_bias, midpoint_count, safe_step

__all__ = ["found_by_curvature", "longest", "start", "towards_acceptance", "with_costs", "with_step"]

_TARGET_ACCEPT = 0.574  # optimal for MALA in high dimension (Roberts and Rosenthal 1998)


def found_by_curvature(settings: Settings) -> bool:
    """Whether the step is neither given nor adapted to an acceptance rate."""
    return settings.step_size is None and settings.kernel.scheme != Scheme.MALA


def longest(settings: Settings, tuned: Tuned, curvature: float, part: float = 1.0) -> float:
    """Return the longest step whose error stays within a part of what is allowed, with the friction in force."""
    return safe_step(settings, tuned.friction, curvature, part * _allowed(settings, tuned))


def start(settings: Settings, tuned: Tuned, curvature: float) -> float:
    """Return the step to begin with."""
    if settings.step_size is not None:
        return settings.step_size
    if settings.kernel.scheme == Scheme.MALA:
        return 0.5 / (curvature * max(len(tuned.coordinates.centre), 1) ** (1 / 3))
    return 0.5 * longest(settings, tuned, curvature)


def towards_acceptance(step: float, accept: float, blocks: int) -> float:
    """Return MALA's next step, after so many blocks of which the last had this acceptance rate."""
    gain = 2.0 / math.sqrt(1.0 + blocks)
    return step * math.exp(gain * (accept - _TARGET_ACCEPT))


def with_step(settings: Settings, tuned: Tuned, step: float, curvature: float) -> Tuned:
    """Return the setting with another step, and the midpoints that it needs."""
    K = midpoint_count(settings, step, tuned.friction, curvature, _allowed(settings, tuned))
    return tuned._replace(step_size=step, K=K)


def with_costs(settings: Settings, tuned: Tuned, curvature: float, redone: float) -> Tuned:
    """Return the setting with what half the bias would take, and with the bias that its step makes likely.

    ``redone`` is the share of the steps that are taken in parts.
    """
    cost = math.nan
    if found_by_curvature(settings):
        cost = longest(settings, tuned, curvature) / longest(settings, tuned, curvature, 0.5)
    d = len(tuned.coordinates.centre)
    bias = expected_bias(settings, tuned.step_size, tuned.friction, tuned.K, curvature, d, redone)
    return tuned._replace(halving_cost=cost, expected_bias=bias)


def _allowed(settings: Settings, tuned: Tuned) -> float:
    return allowed_error(settings.target_bias, len(tuned.coordinates.centre))
