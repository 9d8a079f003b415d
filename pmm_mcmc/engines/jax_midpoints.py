"""The midpoint of one step of a group of chains in lockstep, and the noise path through it, traced by JAX.

Every chain has one midpoint a step, by Option 2 of the paper or the continuous law.  Under Option 1 the number of
midpoints differs from chain to chain: it runs on numba alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pmm_mcmc.engines.contract import Chains, Parameters
from pmm_mcmc.engines.jax_random import END, MIDPOINT, Keyed
from pmm_mcmc.langevin.flows import Flow, build_flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import build_cells, cell_weight, continuous_weight, inverse_probability
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
    bridged,
    build_gain,
    build_limits,
    gradient_change,
    interpolate,
    interpolate_velocity,
    noise,
    path,
)

__all__ = ["Drift", "Midpoint", "PathNoise", "evaluate_midpoint", "total"]

_flows = build_flows(jnp, jnp.where)
_one_cell = build_cells(jnp, jnp.where).one_cell
_gain = build_gain(jnp.where)
_limits = build_limits(jnp, jnp.where)
_FLOW = (_flows.overdamped, _flows.underdamped, _flows.harmonic)

# Positions (n, d) to log densities (n, 1), evaluations (n, width) and drifts (n, d).
Drift = Callable[[Any], tuple[Any, Any, Any]]


class PathNoise(NamedTuple):
    """Fixed noise ``(g, d)`` of the remainder of a step, for a substep of it.

    ``remaining`` ``(g, 1)`` is the time to the end of the step, ``last`` whether the substep ends there.
    """

    u: Any
    v: Any
    remaining: Any
    last: Any


class Midpoint(NamedTuple):
    """The flow and noise path of a step of ``g`` chains, and what the midpoint adds to it; arrays ``(g, d)``."""

    step_flow: Flow
    mu: Any  # noise of position and velocity over the step
    mv: Any
    fixed: tuple[Any, Any] | None  # the fixed noise after a substep
    cu: Any  # corrections of position and velocity at the end of the step
    cv: Any
    curvature: Any  # (g, 1): of the potential between the evaluated point and the midpoint
    n_grad: Any
    finite: Any  # (g, 1): whether all values at the midpoint are
    y: Any  # the midpoint, its velocity, and the evaluation there
    v_mid: Any
    lp: Any
    evaluation: Any
    b: Any


def total(x: Any) -> Any:
    """Return sums over coordinates, ``(n, 1)``."""
    return jnp.sum(x, axis=-1, keepdims=True)


def _flows_over(kernel: Kernel, p: Parameters, *times: Any) -> list[Flow]:
    """Return the flows over several times ``(g, 1)``, in one array so that their series are compiled once."""
    flows = _FLOW[kernel.dynamics](jnp.concatenate(times, axis=1), p.friction)
    # Without the barrier the compiler may recompute a chain's coefficients for each coordinate.
    flows = lax.optimization_barrier(flows)
    return [Flow(*(field[:, i : i + 1] for field in flows)) for i in range(len(times))]


def _extend(noise_path: tuple[Any, Any], normals: Any, gap: Flow) -> tuple[Any, Any]:
    """Extend the noise path of a step over a gap."""
    return path(*noise_path, *noise(*normals, gap), gap)


def _extend_along(
    noise_path: tuple[Any, Any], fixed: tuple[Any, Any], normals: Sequence[Any], flows: tuple[Flow, Flow, Flow]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Extend the noise path of a step over a gap, given the ``fixed`` noise from its start to a later time.

    Returns the path, and the fixed noise after the gap.  ``normals`` are those of the gap and of the time after it,
    ``flows`` are those over the gap, over this time and over both.
    """
    gap, flow_after, flow_over_both = flows
    nu, nv = noise(*normals[0], gap)
    noise_after = noise(*normals[1], flow_after)
    gain = _gain(gap, flow_after, flow_over_both)
    nu, nv, fixed_u, fixed_v = bridged(nu, nv, *noise_after, *fixed, flow_after, gain)
    return path(*noise_path, nu, nv, gap), (fixed_u, fixed_v)


def _path_of_substep(path_noise: PathNoise, normals: Sequence[Any], flows: Sequence[Flow]) -> tuple[Any, Any, Any]:
    """Return the noise path of a substep at its midpoint and at its end, and the fixed noise after it.

    ``normals`` are those up to the midpoint, on to the end, from the midpoint to the end of the whole step and from the
    end of the substep to there; ``flows`` are those over the same four times, and over all that remains of the step.
    """
    to_midpoint, to_end, from_midpoint, from_end, over_rest = flows
    zero = jnp.zeros_like(path_noise.u)
    at_midpoint, fixed_from_midpoint = _extend_along(
        (zero, zero), (path_noise.u, path_noise.v), normals[::2], (to_midpoint, from_midpoint, over_rest)
    )
    at_end, fixed = _extend_along(at_midpoint, fixed_from_midpoint, normals[1::2], (to_end, from_end, from_midpoint))
    all_fixed = path(*at_midpoint, *fixed_from_midpoint, to_end)
    at_end = tuple(jnp.where(path_noise.last, a, b) for a, b in zip(all_fixed, at_end, strict=True))
    return at_midpoint, at_end, fixed


def _curvature(kernel: Kernel, chains: Chains, y: Any, b: Any, time: Any, step: Any) -> Any:
    """Return the curvature ``(g, 1)`` between the evaluated points and midpoints ``y`` with drifts ``b``."""
    stiffness = 1.0 * (kernel.dynamics == HARMONIC)
    shift = y - chains.evaluated
    change = gradient_change(y, chains.evaluated, b, chains.b, stiffness)
    curvature = _limits.curvature(total(change * change), total(shift * shift), total(change * shift), stiffness)
    return jnp.where(time > EARLIEST * step, curvature, 0.0)


def evaluate_midpoint(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed, step: Any, path_noise: PathNoise | None
) -> Midpoint:
    """Draw the midpoint and the noise of a step of length ``step`` ``(g, 1)`` and evaluate the drift at the midpoint.

    In a substep of a refined step the noise is drawn given ``path_noise``, that of the remaining step.
    """
    u, v, b = chains[:3]
    # One call draws the numbers of a step and one computes its flows, since each call is compiled by itself.
    (number, *to_midpoint), (_, *to_end), *more_numbers = draws.take(MIDPOINT, END, beyond=path_noise is not None)
    if kernel.scheme == Scheme.CELLS:
        cell = _one_cell(number, p.K, kernel.power)
        time = step * (cell + kernel.offset) / p.K
        times = [time, step - time, step, step * (p.K - 1.0 - cell) / p.K, step / p.K]
    else:
        time = step * number
        times = [time, step - time, step]
    if path_noise is not None:
        from_midpoint = jnp.maximum(path_noise.remaining - time, 0.0)
        times += [from_midpoint, jnp.maximum(from_midpoint - (step - time), 0.0), path_noise.remaining]
    flow_to_midpoint, flow_to_end, step_flow, *flows = _flows_over(kernel, p, *times)
    if kernel.scheme == Scheme.CELLS:
        wu, wv = cell_weight(flows[0], flows[1], inverse_probability(cell, p.K, kernel.power))
    else:
        wu, wv = continuous_weight(flow_to_end, step, kernel.dynamics != OVERDAMPED)
    zero = jnp.zeros_like(u)
    if path_noise is None:
        at_midpoint = _extend((zero, zero), to_midpoint, flow_to_midpoint)
        at_end = _extend(at_midpoint, to_end, flow_to_end)
        fixed = None
    else:
        normals = to_midpoint, to_end, *(pair for _, *pair in more_numbers)
        flows = [flow_to_midpoint, flow_to_end, *flows[-3:]]
        at_midpoint, at_end, fixed = _path_of_substep(path_noise, normals, flows)
    y = interpolate(u, v, b, at_midpoint[0], flow_to_midpoint)
    v_mid = interpolate_velocity(u, v, b, at_midpoint[1], flow_to_midpoint)
    used = time > 0.0
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        # With a single cell, as in OLMC and ULMC, no chain needs the gradient.
        lp_mid, evaluation_mid, b_mid = lax.cond(
            jnp.any(used), drift, lambda y: (jnp.zeros_like(step), jnp.zeros_like(chains.evaluation), zero), y
        )
    else:
        lp_mid, evaluation_mid, b_mid = drift(y)
    finite = ~used | jnp.isfinite(total(b_mid))
    if kernel.scheme == Scheme.RECYCLED:
        finite &= ~jnp.isnan(lp_mid)
    change = jnp.where(used, b_mid - (0.0 if kernel.scheme == Scheme.CONTINUOUS else b), 0.0)
    curvature = _curvature(kernel, chains, y, b_mid, time, step)
    return Midpoint(
        step_flow, *at_end, fixed, wu * change, wv * change, curvature,
        used.astype(jnp.int32), finite, y, v_mid, lp_mid, evaluation_mid, b_mid,
    )  # fmt: skip
