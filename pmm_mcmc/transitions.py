r"""The arithmetic of one transition, coordinate by coordinate.

Everything here is sums and products of what is passed in: state ``(u, v)``, drift ``b``, path noise,
and the coefficients of :mod:`pmm_mcmc.coefficients`.  The same functions are compiled by numba for scalars
and traced by JAX for arrays; engines own loops, gradients, randomness and failures.

With drift ``b`` (minus the gradient of the potential), midpoints :math:`\tau_1 < \dots < \tau_N` in
``[0, alpha)`` and weights :math:`w_k` (:mod:`pmm_mcmc.midpoints`), one step of every method is

.. math::

   M_k &= A_{\tau_k - \tau_{k-1}} M_{k-1} + \Gamma_{\tau_k - \tau_{k-1}} W_k, \\
   \hat X_k &= A_{\tau_k} X + G_{\tau_k} b + M_k, \\
   X' &= A_\alpha X + G_\alpha b + M_{N+1} + \sum_k w_k (b(\hat X_k) - b),

with :math:`\tau_{N+1} = \alpha` (steps 2, 3 and 5 of the paper; ``K``, not the printed ``K - 1``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from numba.extending import register_jitable

from pmm_mcmc.coefficients import Flow

__all__ = [
    "TELLING",
    "build_factors",
    "end",
    "energy_ahead",
    "interpolate",
    "interpolate_velocity",
    "mala_log_ratio",
    "noise",
    "path",
]

# A rejection halves the step, an accepted transition gives a hundredth back: long enough for the chain to leave where
# steps are too long.  The floor keeps a chain at a hard wall alive.
SHRINK, RECOVER, SHORTEST = 0.5, 1.01, 2.0**-8
# Part of a step before which differences of gradients are too small to tell a curvature.
TELLING = 0.01


@register_jitable
def noise(w1: Any, w2: Any, gap: Flow) -> tuple[Any, Any]:
    """Path noise ``(nu, nv)`` over a gap from two standard normals."""
    return gap.n_uv * w1 + gap.n_uu * w2, gap.n_vv * w1


@register_jitable
def path(mu: Any, mv: Any, nu: Any, nv: Any, gap: Flow) -> tuple[Any, Any]:
    """Carry the noise path ``M`` over a gap and add the noise of the gap (step 2)."""
    return gap.a_uu * mu + gap.a_uv * mv + nu, gap.a_vu * mu + gap.a_vv * mv + nv


@register_jitable
def interpolate(u: Any, v: Any, b: Any, mu: Any, flow: Flow) -> Any:
    """Position of the cheap interpolation at a midpoint (step 3)."""
    return flow.a_uu * u + flow.a_uv * v + flow.g_u * b + mu


@register_jitable
def interpolate_velocity(u: Any, v: Any, b: Any, mv: Any, flow: Flow) -> Any:
    """Velocity of the cheap interpolation at a midpoint."""
    return flow.a_vu * u + flow.a_vv * v + flow.g_v * b + mv


@register_jitable
def end(u: Any, v: Any, b: Any, mu: Any, mv: Any, cu: Any, cv: Any, flow: Flow) -> tuple[Any, Any]:
    """State after the step, given the path ``(mu, mv)`` and the summed corrections ``(cu, cv)`` (step 5)."""
    return (
        flow.a_uu * u + flow.a_uv * v + flow.g_u * b + mu + cu,
        flow.a_vu * u + flow.a_vv * v + flow.g_v * b + mv + cv,
    )


@register_jitable
def mala_log_ratio(u: Any, b: Any, u_new: Any, b_new: Any, step_size: Any) -> Any:
    r"""Log ratio of the Langevin proposal densities, ``log q(u | u') - log q(u' | u)``, one coordinate.

    The proposal is :math:`u' \sim N(u + \alpha b(u), 2 \alpha)`.
    """
    forward = u_new - u - step_size * b
    backward = u - u_new - step_size * b_new
    return (forward * forward - backward * backward) / (4.0 * step_size)


@register_jitable
def energy_ahead(u: Any, anchor: Any, b: Any, stiffness: Any) -> Any:
    r"""Rise of the potential from the anchor to ``u``, to second order in whitened coordinates, one coordinate.

    ``b`` is the drift at the anchor, minus the gradient of the potential with :math:`k u` added for a flow that
    integrates a part of ``stiffness`` ``k``.
    """
    ahead = u - anchor
    return ahead * (stiffness * anchor - b + 0.5 * ahead)


def build_factors(xp: Any, where: Callable[..., Any]) -> SimpleNamespace:
    """Return how the factor by which a chain's steps are shortened moves, over an array library.

    ``accepted(factor, steep, steepest, has_velocity)`` after a step along which the curvature was ``steep``, where a
    whole step is stable up to ``steepest``; ``rejected(factor)`` after one that was taken back.

    Parameters
    ----------
    xp, where
        Array namespace and its ``where``, as in :func:`pmm_mcmc.coefficients.build_flows`.
    """

    @register_jitable
    def accepted(factor, steep, steepest, has_velocity):
        ratio = where(steep > steepest, steepest / where(steep > 0.0, steep, 1.0), 1.0)
        longest = where(has_velocity, xp.sqrt(ratio), ratio)
        return xp.maximum(SHORTEST, xp.minimum(longest, RECOVER * factor))

    @register_jitable
    def rejected(factor):
        return xp.maximum(SHORTEST, SHRINK * factor)

    return SimpleNamespace(accepted=accepted, rejected=rejected)
