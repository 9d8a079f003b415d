"""The unadjusted methods for a group of chains in lockstep, traced by JAX: midpoint, step, refinement, transition.

It follows :mod:`pmm_mcmc.engines.numba_poisson` step by step, with arrays ``(group, d)`` in place of vectors.  Every
chain has one midpoint a step, by Option 2 of the paper or the continuous law.  Under Option 1 the number of midpoints
differs from chain to chain: it runs on numba alone.  Failed steps, which are few, are refined in smaller batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pmm_mcmc.engines.contract import Chains, Parameters
from pmm_mcmc.engines.jax_shared import END, MIDPOINT, Counts, Drift, Keyed, Pair, as_count, choose, renew_few, total
from pmm_mcmc.langevin.flows import Flow, build_flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import build_cells, cell_weight, continuous_weight, inverse_probability
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
    MOST_REFINEMENTS,
    SUBSTEPS,
    bridged,
    build_gain,
    build_limits,
    end,
    gradient_change,
    interpolate,
    interpolate_velocity,
    noise,
    path,
    potential_rise,
)

_flows = build_flows(jnp, jnp.where)
_one_cell = build_cells(jnp, jnp.where).one_cell
_gain = build_gain(jnp.where)
_limits = build_limits(jnp, jnp.where)
_FLOW = (_flows.overdamped, _flows.underdamped, _flows.harmonic)


class _Times(NamedTuple):
    """Times ``(g, 1)`` of a step, or the flows over them; None is one that a step does not have.

    Attributes
    ----------
    to_midpoint, to_end, step
        To the midpoint, from there to the end, and both.
    after_cell, cell
        From the end of the midpoint's cell to the end of the step, and over a cell.
    from_midpoint, from_end, rest
        In a substep: to the end of the whole step, from the midpoint, from the end and from the start of the substep.
    """

    to_midpoint: Array
    to_end: Array
    step: Array
    after_cell: Array = None
    cell: Array = None
    from_midpoint: Array = None
    from_end: Array = None
    rest: Array = None


def _flows_over(kernel: Kernel, p: Parameters, times: _Times) -> _Times:
    """Return the flows over times, in one array so that their series are compiled once."""
    present = {name: time for name, time in times._asdict().items() if time is not None}
    flows = _FLOW[kernel.dynamics](jnp.concatenate(list(present.values()), axis=1), p.friction)
    # Without the barrier the compiler may recompute a chain's coefficients for each coordinate.
    flows = lax.optimization_barrier(flows)
    return _Times(**{name: Flow(*(field[:, i : i + 1] for field in flows)) for i, name in enumerate(present)})


class _PathNoise(NamedTuple):
    """Fixed noise ``(g, d)`` of the remainder of a step, for a substep of it.

    ``remaining`` ``(g, 1)`` is the time to the end of the step, ``last`` whether the substep ends there.
    """

    u: Array
    v: Array
    remaining: Array
    last: Array


def _extend(noise_path: Pair, normals: Array, gap: Flow) -> Pair:
    """Extend the noise path of a step over a gap."""
    return path(*noise_path, *noise(*normals, gap), gap)


def _extend_along(
    noise_path: Pair, fixed: Pair, normals: Sequence[Array], flows: tuple[Flow, Flow, Flow]
) -> tuple[Pair, Pair]:
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


def _path_of_substep(path_noise: _PathNoise, normals: Sequence[Array], flows: _Times) -> tuple[Array, Array, Array]:
    """Return the noise path of a substep at its midpoint and at its end, and the fixed noise after it.

    ``normals`` are those up to the midpoint, on to the end, from the midpoint to the end of the whole step and from the
    end of the substep to there.
    """
    zero = jnp.zeros_like(path_noise.u)
    at_midpoint, fixed_from_midpoint = _extend_along(
        (zero, zero), (path_noise.u, path_noise.v), normals[::2], (flows.to_midpoint, flows.from_midpoint, flows.rest)
    )
    at_end, fixed = _extend_along(
        at_midpoint, fixed_from_midpoint, normals[1::2], (flows.to_end, flows.from_end, flows.from_midpoint)
    )
    all_fixed = path(*at_midpoint, *fixed_from_midpoint, flows.to_end)
    last = tuple(jnp.where(path_noise.last, a, b) for a, b in zip(all_fixed, at_end, strict=True))
    return at_midpoint, last, fixed


class _Midpoint(NamedTuple):
    """The flow and noise path of a step of ``g`` chains, and what the midpoint adds to it; arrays ``(g, d)``."""

    step_flow: Flow
    mu: Array  # noise of position and velocity over the step
    mv: Array
    fixed: Pair | None  # the fixed noise after a substep
    cu: Array  # corrections of position and velocity at the end of the step
    cv: Array
    curvature: Array  # (g, 1): of the potential between the evaluated point and the midpoint
    n_grad: Array
    finite: Array  # (g, 1): whether all values at the midpoint are
    y: Array  # the midpoint, its velocity, and the evaluation there
    v_mid: Array
    lp: Array
    evaluation: Array
    b: Array


def _curvature(kernel: Kernel, chains: Chains, y: Array, b: Array, time: Array, step: Array) -> Array:
    """Return the curvature ``(g, 1)`` between the evaluated points and midpoints ``y`` with drifts ``b``."""
    stiffness = 1.0 * (kernel.dynamics == HARMONIC)
    shift = y - chains.evaluated
    change = gradient_change(y, chains.evaluated, b, chains.b, stiffness)
    curvature = _limits.curvature(total(change * change), total(shift * shift), total(change * shift), stiffness)
    return jnp.where(time > EARLIEST * step, curvature, 0.0)


def _evaluate_midpoint(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed, step: Array,
    path_noise: _PathNoise | None,
) -> _Midpoint:  # fmt: skip
    """Draw the midpoint and the noise of a step of length ``step`` ``(g, 1)`` and evaluate the drift at the midpoint.

    In a substep of a refined step the noise is drawn given ``path_noise``, that of the remaining step.
    """
    u, v, b = chains[:3]
    # One call draws the numbers of a step and one computes its flows, since each call is compiled by itself.
    (number, *to_midpoint), (_, *to_end), *more_numbers = draws.take(MIDPOINT, END, beyond=path_noise is not None)
    if kernel.scheme == Scheme.CELLS:
        cell = _one_cell(number, p.K, kernel.power)
        time = step * (cell + kernel.offset) / p.K
        times = _Times(time, step - time, step, step * (p.K - 1.0 - cell) / p.K, step / p.K)
    else:
        time = step * number
        times = _Times(time, step - time, step)
    if path_noise is not None:
        from_midpoint = jnp.maximum(path_noise.remaining - time, 0.0)
        from_end = jnp.maximum(from_midpoint - times.to_end, 0.0)
        times = times._replace(from_midpoint=from_midpoint, from_end=from_end, rest=path_noise.remaining)
    flows = _flows_over(kernel, p, times)
    if kernel.scheme == Scheme.CELLS:
        wu, wv = cell_weight(flows.after_cell, flows.cell, inverse_probability(cell, p.K, kernel.power))
    else:
        wu, wv = continuous_weight(flows.to_end, step, kernel.dynamics != OVERDAMPED)
    zero = jnp.zeros_like(u)
    if path_noise is None:
        at_midpoint = _extend((zero, zero), to_midpoint, flows.to_midpoint)
        at_end = _extend(at_midpoint, to_end, flows.to_end)
        fixed = None
    else:
        normals = to_midpoint, to_end, *(pair for _, *pair in more_numbers)
        at_midpoint, at_end, fixed = _path_of_substep(path_noise, normals, flows)
    y = interpolate(u, v, b, at_midpoint[0], flows.to_midpoint)
    v_mid = interpolate_velocity(u, v, b, at_midpoint[1], flows.to_midpoint)
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
    return _Midpoint(
        flows.step, *at_end, fixed, wu * change, wv * change, curvature,
        used.astype(jnp.int32), finite, y, v_mid, lp_mid, evaluation_mid, b_mid,
    )  # fmt: skip


class _Step(NamedTuple):
    """A step of ``g`` chains."""

    chains: Chains  # at its end
    n_grad: Array  # (g, 1): gradients spent
    good: Array  # whether it is stable
    by_model: Array  # of a step that is not: whether the model is the cause


def _take(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed, step: Array, limits: Pair,
    path_noise: _PathNoise | None,
) -> tuple[_Step, Pair, Pair | None]:  # fmt: skip
    """Take one step of every chain, stable or not; return it, its noise and, of a substep, the fixed noise after it.

    ``limits`` are the largest rise of the energy and the largest curvature.
    """
    threshold, steepest = limits
    mid = _evaluate_midpoint(kernel, p, drift, chains, draws, step, path_noise)
    u, v, b, evaluated, _, lp, _ = chains
    # End point (step 5); the randomised midpoint method omits the drift at the start.
    base = 0.0 if kernel.scheme == Scheme.CONTINUOUS else 1.0
    u_new, v_new = end(u, v, base * b, mid.mu, mid.mv, mid.cu, mid.cv, mid.step_flow)
    if kernel.scheme == Scheme.RECYCLED:
        evaluated_new = mid.y
        lp_new = mid.lp
        evaluation = mid.evaluation
        b_new = mid.b
        n_grad = mid.n_grad
        lost = ~mid.finite
        bad = mid.y
        velocity = mid.v_mid
        extrapolation = potential_rise(u, evaluated, b, 1.0 * (kernel.dynamics == HARMONIC))
    else:
        evaluated_new = u_new
        lp_new, evaluation, b_new = drift(u_new)
        lost = jnp.isnan(lp_new) | ~mid.finite
        bad = jnp.where(mid.finite, u_new, mid.y)
        velocity = v_new
        extrapolation = 0.0
        n_grad = mid.n_grad + mid.finite
    rise = lp - lp_new + total(0.5 * (velocity * velocity - v * v) - extrapolation)
    motion = total(0.5 * (velocity * velocity + v * v))
    stable = (rise <= threshold + p.tolerance * motion) & (mid.curvature <= steepest)
    good = ~lost & jnp.isfinite(total(u_new + v_new)) & stable
    # Values that are not finite at a place that a stable step may reach are the model's failure.
    by_model = lost & (total(0.5 * (bad * bad - u * u)) <= threshold)
    moved = Chains(u_new, v_new, b_new, evaluated_new, evaluation, lp_new, chains.factor)
    moved = Chains(*(new.astype(old.dtype) for new, old in zip(moved, chains, strict=True)))
    return _Step(moved, n_grad, good, by_model), (mid.mu, mid.mv), mid.fixed


def _refined(
    take: Callable[..., Any], p: Parameters, has_velocity: bool, chains: Chains, draws: Keyed, step: Any,
    unrefined: _Step, noise: Pair,
) -> _Step:  # fmt: skip
    """Take the steps that failed again, in substeps along the same path of the noise: in 4, and then in 16.

    Chains whose steps all fail restart at the evaluated point, with a fresh velocity.
    """

    def in_substeps(substeps: Array, rows: Array, failed: _Step) -> _Step:
        """Take the steps of some chains; after a substep that fails the others are left out."""
        begin = failed.chains
        few = draws.of(rows)
        noise_of_step = noise[0][rows], noise[1][rows]
        length = step[rows] / substeps
        limits = p.threshold_of_substep, _limits.limit(p.steepest, substeps / begin.factor, has_velocity)

        def take_substep(k: Array, carry: tuple[_Step, Pair]) -> tuple[_Step, Pair]:
            previous, noise = carry
            path_noise = _PathNoise(noise[0], noise[1], length * (substeps - k), k == substeps - 1)
            one, _, beyond = take(previous.chains, few.substep(substeps + k), length, limits, path_noise)
            # Gradients after a failed substep are not counted.
            return choose(previous.good, one._replace(n_grad=previous.n_grad + one.n_grad), previous), beyond

        yes = jnp.ones_like(failed.good)
        none_taken = failed._replace(good=yes, by_model=~yes)
        taken = lax.fori_loop(0, substeps, take_substep, (none_taken, noise_of_step))[0]
        restart = begin._replace(u=begin.evaluated, v=few.velocity() if has_velocity else begin.v)
        begin = choose(substeps == SUBSTEPS**MOST_REFINEMENTS, restart, begin)
        return taken._replace(chains=choose(taken.good, taken.chains, begin))

    def take_failed_again(carry: tuple[Array, _Step]) -> tuple[Array, _Step]:
        substeps, outcome = carry
        return substeps * SUBSTEPS, renew_few(~outcome.good[:, 0], outcome, partial(in_substeps, substeps))

    def some_fail(carry: tuple[Array, _Step]) -> Array:
        substeps, outcome = carry
        return (substeps <= SUBSTEPS**MOST_REFINEMENTS) & ~jnp.all(outcome.good)

    begun = unrefined._replace(chains=choose(unrefined.good, unrefined.chains, chains))
    return lax.while_loop(some_fail, take_failed_again, (SUBSTEPS, begun))[1]


def unadjusted(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed) -> tuple[Chains, Counts]:
    """Make one transition of every chain of a group, by the random ``draws`` of this transition.

    ``drift`` maps whitened positions to log densities, evaluations and drifts, NaN where not finite.
    """
    has_velocity = kernel.dynamics != OVERDAMPED
    step = p.alpha * chains.factor
    limits = p.threshold, _limits.limit(p.steepest, 1.0 / chains.factor, has_velocity)
    take = partial(_take, kernel, p, drift)
    unrefined, noise, _ = take(chains, draws, step, limits, None)
    outcome = _refined(take, p, has_velocity, chains, draws, step, unrefined, noise)
    good = outcome.good

    # Steps of failed chains are shorter.  In warm-up, so are those of refined ones until the next fit: a short step
    # comes as far as substeps of a long one.
    adapts = ~unrefined.good & (p.tolerance > 0.0)
    longer = jnp.where(adapts, _limits.refined(chains.factor), _limits.accepted(chains.factor))
    factor = jnp.where(good, longer, _limits.rejected(chains.factor)).astype(step.dtype)
    counts = Counts(
        good[:, 0].astype(step.dtype),
        as_count(outcome.n_grad),
        as_count(~good),
        as_count(good & ~unrefined.good),
        as_count(~good & outcome.by_model),
    )
    return outcome.chains._replace(factor=factor), counts
