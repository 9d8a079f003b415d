r"""The arithmetic of one transition, coordinate by coordinate.

The functions are sums and products of their arguments: state ``(u, v)``, drift ``b``, noise of the path, and the
coefficients of :mod:`pmm_mcmc.langevin.flows`.  The same functions are compiled by numba for scalars and traced by JAX
for arrays; loops, gradients, random numbers and failures belong to the engines.

With drift ``b`` (minus the gradient of the potential), midpoints :math:`\tau_1 < \dots < \tau_N` in
``[0, alpha)`` and weights :math:`w_k` (:mod:`pmm_mcmc.langevin.midpoints`), one step of every method is

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

from pmm_mcmc.langevin.flows import Flow

# A rejection halves a chain's step, an accepted transition lengthens it by 1 %: slowly enough that the chain leaves
# the region where steps are too long.  The floor keeps a chain at a hard wall moving.
SHRINK = 0.5
RECOVER = 1.01
SHORTEST = 2.0**-8
# A step that fails is refined: SUBSTEPS shorter steps follow the same noise path, at most MOST_REFINEMENTS times, each
# time with SUBSTEPS times as many steps.
SUBSTEPS = 4
MOST_REFINEMENTS = 2
# The persistent number s of the Metropolis test moves on by this before each test.  An effective draw of the worst mean
# and square of 16 models cost .79 and .95 of an unadjusted one; .93 and 1.35 with 0.03, .98 and 1.26 with a fresh one.
CLIMB = 0.1
# A proposal is refined if |s| is at least this many times its ratio: rare where the step suits.  Of 64 chains on a
# two-parameter logistic one stood still without it and none with it.  Other values were not tried.
FAR_BELOW = 3.0
# Ratio e^-10 below which even the shortest proposal counts as a divergence.
DIVERGENCE = 4.54e-5
# Largest log ratio, so that no ratio overflows.
LARGEST = 700.0
# Smallest cosine between a displacement and the change of the gradient along it that enters a curvature estimate.
LEAST_COSINE = 0.2
# Share of a step before which a midpoint is too near its start for a curvature estimate.
EARLIEST = 0.01


@register_jitable
def noise(w1: Any, w2: Any, gap: Flow) -> tuple[Any, Any]:
    """Return the path noise ``(nu, nv)`` over a gap, from two standard normals."""
    return gap.n_uv * w1 + gap.n_uu * w2, gap.n_vv * w1


@register_jitable
def path(mu: Any, mv: Any, nu: Any, nv: Any, gap: Flow) -> tuple[Any, Any]:
    """Propagate the noise path ``M`` over a gap and add the noise of the gap (step 2)."""
    return gap.a_uu * mu + gap.a_uv * mv + nu, gap.a_vu * mu + gap.a_vv * mv + nv


def build_gain(where: Callable[..., Any]) -> Callable[..., Any]:
    r"""Return the function ``gain(gap, remaining, both)``: the gain matrix of :func:`bridged`, row by row.

    It is :math:`\Gamma_{gap}^2 A_{remaining}^T (\Gamma_{both}^2)^{-1}`: the share of a deviation at the end of a path
    that the noise over a ``gap`` takes up.  ``remaining`` is the flow over the path after the gap, ``both`` that over
    the two.  ``where`` is that of :func:`pmm_mcmc.langevin.flows.build_flows`.
    """

    @register_jitable
    def gain(gap, remaining, both):
        s_uu = gap.n_uu * gap.n_uu + gap.n_uv * gap.n_uv
        s_uv = gap.n_uv * gap.n_vv
        s_vv = gap.n_vv * gap.n_vv
        b_uu = s_uu * remaining.a_uu + s_uv * remaining.a_uv
        b_uv = s_uu * remaining.a_vu + s_uv * remaining.a_vv
        b_vu = s_uv * remaining.a_uu + s_vv * remaining.a_uv
        b_vv = s_uv * remaining.a_vu + s_vv * remaining.a_vv
        # The inverse follows from that of the triangular root.  Overdamped dynamics have no noise in the velocity.
        moving = both.n_vv > 0.0
        v = where(moving, 1.0 / where(moving, both.n_vv, 1.0), 0.0)
        u = 1.0 / both.n_uu
        across = -u * both.n_uv * v
        i_uu = u * u
        i_uv = u * across
        i_vv = across * across + v * v
        return (
            b_uu * i_uu + b_uv * i_uv,
            b_uu * i_uv + b_uv * i_vv,
            b_vu * i_uu + b_vv * i_uv,
            b_vu * i_uv + b_vv * i_vv,
        )

    return gain


@register_jitable
def bridged(
    nu: Any, nv: Any, later_u: Any, later_v: Any, total_u: Any, total_v: Any, remaining: Flow, gain: Any
) -> tuple[Any, Any, Any, Any]:
    r"""Return the noise over a gap and that over its remaining path, given the ``total`` noise at the path's end.

    With :math:`N` (over the gap) and :math:`N'` (``later``) drawn independently,

    .. math:: N + \Gamma_{gap}^2 A_{remaining}^T (\Gamma_{both}^2)^{-1} (R - A_{remaining} N - N')

    has the law of the noise over the gap given the noise :math:`R` over both (a Gaussian bridge).
    """
    u = total_u - remaining.a_uu * nu - remaining.a_uv * nv - later_u
    v = total_v - remaining.a_vu * nu - remaining.a_vv * nv - later_v
    nu = nu + gain[0] * u + gain[1] * v
    nv = nv + gain[2] * u + gain[3] * v
    return (
        nu,
        nv,
        total_u - remaining.a_uu * nu - remaining.a_uv * nv,
        total_v - remaining.a_vu * nu - remaining.a_vv * nv,
    )


@register_jitable
def interpolate(u: Any, v: Any, b: Any, mu: Any, flow: Flow) -> Any:
    """Return the position of the cheap interpolation at a midpoint (step 3)."""
    return flow.a_uu * u + flow.a_uv * v + flow.g_u * b + mu


@register_jitable
def interpolate_velocity(u: Any, v: Any, b: Any, mv: Any, flow: Flow) -> Any:
    """Return the velocity of the cheap interpolation at a midpoint."""
    return flow.a_vu * u + flow.a_vv * v + flow.g_v * b + mv


@register_jitable
def end(u: Any, v: Any, b: Any, mu: Any, mv: Any, cu: Any, cv: Any, flow: Flow) -> tuple[Any, Any]:
    """Return the state after the step, from the path ``(mu, mv)`` and the summed corrections ``(cu, cv)`` (step 5)."""
    return (
        flow.a_uu * u + flow.a_uv * v + flow.g_u * b + mu + cu,
        flow.a_vu * u + flow.a_vv * v + flow.g_v * b + mv + cv,
    )


@register_jitable
def renewal(retained: Any) -> Any:
    r"""Return the share of a standard normal in a velocity of which the share ``retained`` is kept.

    With ``retained`` :math:`= e^{-\gamma h}` this is friction :math:`\gamma` over a step of length :math:`h`, which
    leaves the normal law of the velocity as it is.
    """
    return (1.0 - retained * retained) ** 0.5


@register_jitable
def refreshed(v: Any, w: Any, retained: Any, renewed: Any) -> Any:
    """Return a velocity with shares of its last value and of a standard normal ``w`` (:func:`renewal`)."""
    return retained * v + renewed * w


@register_jitable
def kick(v: Any, b: Any, step: Any) -> tuple[Any, Any]:
    r"""Return the velocity after the force ``b`` has acted for half a step, and the kinetic energy it gains.

    A proposal is half a kick, the exact flow of the harmonic dynamics without friction, and half a kick.  It is
    reversible and preserves volume, and on a Gaussian that the coordinates whiten ``b`` is zero.
    """
    gain = 0.5 * step * b
    return v + gain, gain * (v + 0.5 * gain)


@register_jitable
def harmonic_log_ratio(u: Any, u_new: Any) -> Any:
    r"""Return the change of the harmonic part of the potential over a proposal, for one coordinate.

    With :math:`F = |u|^2/2 + R(u)` the potential in whitened coordinates, the flow between two kicks conserves its
    part :math:`|u|^2/2` with the kinetic energy.  The log ratio of the acceptance is therefore :math:`R(u) - R(u')`
    minus the kinetic energy that all kicks have gained: the ratio of the densities, plus this for all coordinates,
    minus that.
    """
    return 0.5 * (u_new - u) * (u_new + u)


@register_jitable
def advanced_persistent(persistent: Any) -> Any:
    r"""Return the persistent number of a chain's Metropolis tests before the next one, in ``[-1, 1)``.

    A number :math:`s` with the uniform law on :math:`[-1, 1)` stays with a chain.  A proposal with the ratio :math:`r`
    of densities is accepted if :math:`|s| < r`, and then :math:`s` becomes :math:`s / r`: the height
    :math:`|s|\,\pi` under the density does not change [1]_.  Between tests :math:`s` moves on by :data:`CLIMB`, round
    the interval.  So rejections, each of which turns the velocity round, come in clusters, and between them a chain
    moves on along one path.

    .. [1] R. M. Neal, "Non-reversibly updating a uniform [0,1] value for Metropolis accept/reject decisions",
       arXiv:2001.11950 (2020).
    """
    return (persistent + (1.0 + CLIMB)) % 2.0 - 1.0


@register_jitable
def far_below(ratio: Any, persistent: Any) -> Any:
    r"""Return whether the ratio of densities of a proposal is so far below :math:`|s|` that it is refined.

    Where a posterior is too steep for a step, the proposal is repeated over the same time with shorter steps:
    :data:`SUBSTEPS` of them, then as many for each (delayed rejection [1]_, on the slice of Neal's number).  The last
    proposal in the slice is accepted if, from its end and with the velocity turned round, all earlier ones lie far
    below, too: the way back is then the same.

    .. [1] C. Modi, A. Barnett and B. Carpenter, "Delayed rejection Hamiltonian Monte Carlo for sampling multiscale
       distributions", Bayesian Analysis 19 (2024).
    """
    return abs(persistent) >= FAR_BELOW * ratio


@register_jitable
def potential_rise(u: Any, evaluated: Any, b: Any, stiffness: Any) -> Any:
    r"""Return the rise of the potential from the evaluated point to ``u``, to second order, for one coordinate.

    ``b`` is the base drift at the evaluated point: minus the gradient of the potential, plus :math:`k u` for a flow
    that integrates the part :math:`k u^2 / 2` of the potential (``stiffness`` ``k``).
    """
    displacement = u - evaluated
    return displacement * (stiffness * evaluated - b + 0.5 * displacement)


@register_jitable
def gradient_change(y: Any, evaluated: Any, b_mid: Any, b: Any, stiffness: Any) -> Any:
    """Return the change of the potential's gradient from the evaluated point to a midpoint (:func:`potential_rise`)."""
    return stiffness * (y - evaluated) - (b_mid - b)


def build_limits(xp: Any, where: Callable[..., Any]) -> SimpleNamespace:
    r"""Return the functions that limit the step size, over an array library.

    ``curvature(rise, length, projection, stiffness)`` estimates the curvature of the potential between an evaluated
    point and a midpoint, from the change :math:`g` of its gradient and the displacement :math:`s`: ``rise`` is
    :math:`|g|^2`, ``length`` :math:`|s|^2` and ``projection`` :math:`g \cdot s`.  The estimate is
    :math:`|g|^2 / (g \cdot s)` (Barzilai and Borwein), which is more sensitive to a few steep directions among many
    than :math:`|g| / |s|`, but at most ``1 / LEAST_COSINE`` times the latter, since it has no meaning where the
    potential is not convex.

    ``limit(steepest, times, has_velocity)`` is the largest curvature for a step that is ``times`` times shorter than
    one with the limit ``steepest``.  ``accepted(factor)``, ``rejected(factor)`` and, on the way down in warm-up,
    ``refined(factor)`` update the factor that shortens the steps of a chain.  Arguments are those of
    :func:`pmm_mcmc.langevin.flows.build_flows`.
    """

    @register_jitable
    def curvature(rise, length, projection, stiffness):
        positive = (rise > 0.0) & (length > 0.0)
        ratio = xp.sqrt(where(positive, rise, 0.0) / where(positive, length, 1.0))
        cosine = where(positive, projection, 0.0) / xp.sqrt(where(positive, rise * length, 1.0))
        return where(cosine > 0.0, ratio / xp.maximum(cosine, LEAST_COSINE), ratio) - stiffness

    @register_jitable
    def limit(steepest, times, has_velocity):
        return steepest * where(has_velocity, times * times, times)

    @register_jitable
    def accepted(factor):
        return xp.minimum(1.0, RECOVER * factor)

    @register_jitable
    def rejected(factor):
        return xp.maximum(SHORTEST, SHRINK * factor)

    @register_jitable
    def refined(factor):
        return xp.maximum(SHORTEST, factor / SUBSTEPS)

    return SimpleNamespace(curvature=curvature, limit=limit, accepted=accepted, rejected=rejected, refined=refined)
