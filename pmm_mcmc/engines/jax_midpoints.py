"""The midpoints of one step of a group of chains in lockstep, and the noise path through them, traced by JAX.

Under Option 1 chains have different numbers of midpoints.  The midpoints do not depend on the gradients there, so that
all midpoints of all chains are computed first, and their gradients in full batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax

from pmm_mcmc.engines.contract import Chains, Parameters
from pmm_mcmc.langevin.flows import Flow, build_flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import build_cells, cell_weight, continuous_weight, inverse_probability
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
    bridged,
    build_gain,
    build_limits,
    fall,
    interpolate,
    interpolate_velocity,
    noise,
    path,
)

__all__ = ["Draws", "Drift", "Midpoints", "PathNoise", "evaluate_midpoints", "total"]

_flows = build_flows(jnp, jnp.where)
_cells = build_cells(jnp, jnp.where)
_gain = build_gain(jnp.where)
_limits = build_limits(jnp, jnp.where)
_FLOW = (_flows.overdamped, _flows.underdamped, _flows.harmonic)
# Option 1: a step has more midpoints than this with probability below 1e-16.
_MOST_MIDPOINTS = 18
# A batch holds the mean number of midpoints of a group plus _SPARE standard deviations; the list has room for _ROOM
# standard deviations, which it exceeds with probability below 1e-16 (Chernoff).
_SPARE = 2.5
_ROOM = 9.0

# Positions (n, d) to log densities (n, 1), evaluations (n, width) and drifts (n, d).
Drift = Callable[[Any], tuple[Any, Any, Any]]


class Draws(Protocol):
    """Random numbers of one step of a group of ``g`` chains."""

    def take(self, *slots: Any, beyond: bool = False) -> list[tuple[Any, Any, Any]]:
        """Return for each slot uniform numbers ``(g, 1)`` and two arrays ``(g, d)`` of standard normals.

        Slots from 0 on are midpoints; slot -1 is the end of the step.  With ``beyond``, those of :meth:`beyond` for the
        same slots follow.
        """

    def uniforms(self, slots: int) -> Any:
        """Return the uniform numbers of the first midpoints, ``(slots, g, 1)``."""

    def normals(self, chains: Any, slots: Any) -> tuple[Any, Any]:
        """Return the normals ``(n, d)`` of midpoints listed by their chains ``(n,)`` and slots ``(n,)``."""

    def velocity(self) -> Any:
        """Return normals ``(g, d)``, the fresh velocities of chains whose step was rejected."""

    def part(self, chains: Any, i: Any) -> Draws:
        """Return the random numbers of part ``i`` of a refined step, for some chains ``(n,)``."""

    def beyond(self) -> Draws:
        """Return independent random numbers of the same shapes, for the noise beyond the gaps of this part."""


class PathNoise(NamedTuple):
    """Known noise ``(g, d)`` of the rest of a step, the time ``(g, 1)`` to its end; whether this part ends there."""

    u: Any
    v: Any
    remaining: Any
    last: Any


class Midpoints(NamedTuple):
    """The flow and noise path of a step, and what its midpoints contribute."""

    step_flow: Flow
    mu: Any
    mv: Any
    noise_beyond: tuple[Any, Any]  # of the path beyond the step, where the path is known
    cu: Any  # corrections of position and velocity
    cv: Any
    steep: Any  # largest curvature met
    n_grad: Any
    finite: Any  # (g, 1)
    bad: Any  # (g, d): the first midpoint with a value that is not finite
    y: Any  # the last midpoint, and the evaluation there
    v_mid: Any
    lp: Any
    evaluation: Any
    b: Any


def total(x: Any) -> Any:
    """Return sums over coordinates, ``(n, 1)``."""
    return jnp.sum(x, axis=-1, keepdims=True)


def evaluate_midpoints(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, path_noise: PathNoise | None
) -> Midpoints:
    """Draw midpoints and noise of a step of length ``step`` ``(g, 1)`` and evaluate the drift at the midpoints.

    In a part of a refined step the noise is conditioned on ``path_noise``, that of the whole step.
    """
    option_1 = kernel.scheme == Scheme.CELLS and kernel.option == 1
    return (_midpoints if option_1 else _midpoint)(kernel, p, drift, chains, draws, step, path_noise)


def _flows_over(kernel: Kernel, p: Parameters, *times: Any) -> list[Flow]:
    """Return the flows over several times ``(g, 1)``, in one array so that their series are compiled once."""
    flows = _FLOW[kernel.dynamics](jnp.concatenate(times, axis=1), p.friction)
    # Without the barrier the compiler may recompute a chain's coefficients for each coordinate.
    flows = lax.optimization_barrier(flows)
    return [Flow(*(field[:, i : i + 1] for field in flows)) for i in range(len(times))]


def _times_beyond(path_noise: PathNoise | None, length: Any) -> tuple[Any, ...]:
    """Return the times from the end and from the start of a gap to the end of a known path, for :func:`_extend`."""
    return () if path_noise is None else (jnp.maximum(path_noise.remaining - length, 0.0), path_noise.remaining)


def _extend(
    mu: Any, mv: Any, w: Any, beyond: Any, gap: Flow, length: Any, path_noise: PathNoise | None, flows: Sequence[Flow]
) -> tuple[Any, Any, Any]:
    """Extend the noise path of the step over a gap; return it, and the known noise of the remaining path."""
    nu, nv = noise(*w, gap)
    if path_noise is not None:
        flow_beyond, flow_to_end = flows
        noise_beyond = noise(*beyond, flow_beyond)
        gain = _gain(gap, flow_beyond, flow_to_end)
        nu, nv, u, v = bridged(nu, nv, *noise_beyond, path_noise.u, path_noise.v, flow_beyond, gain)
        path_noise = PathNoise(u, v, path_noise.remaining - length, path_noise.last)
    return *path(mu, mv, nu, nv, gap), path_noise


def _finish(
    mu: Any, mv: Any, w: Any, beyond: Any, gap: Flow, length: Any, path_noise: PathNoise | None, flows: Sequence[Flow]
) -> tuple[Any, Any, tuple[Any, Any]]:
    """Extend the noise path to the end of the step; return it, and the known noise beyond."""
    *extended, noise_beyond = _extend(mu, mv, w, beyond, gap, length, path_noise, flows)
    if path_noise is None:
        return *extended, tuple(extended)
    at_end = path(mu, mv, path_noise.u, path_noise.v, gap)
    mu, mv = (jnp.where(path_noise.last, a, b) for a, b in zip(at_end, extended, strict=True))
    return mu, mv, (noise_beyond.u, noise_beyond.v)


def _steepness(kernel: Kernel, chains: Chains, y: Any, b: Any, time: Any, step: Any) -> Any:
    stiffness = 1.0 * (kernel.dynamics == HARMONIC)
    shift = y - chains.evaluated
    change = fall(y, chains.evaluated, b, chains.b, stiffness)
    curvature = _limits.curvature(total(change * change), total(shift * shift), total(change * shift), stiffness)
    return jnp.where(time > EARLIEST * step, curvature, 0.0)


def _midpoint(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, path_noise: PathNoise | None
) -> Midpoints:
    """Evaluate the one midpoint of Option 2, or of the continuous law."""
    u, v, b = chains[:3]
    # One call draws the numbers of a step and one computes its flows, since each call is compiled by itself.
    (number, *near), (_, *to_end), *beyond = draws.take(0, -1, beyond=path_noise is not None)
    if kernel.scheme == Scheme.CELLS:
        cell = _cells.one_cell(number, p.K, kernel.power)
        time = step * (cell + kernel.offset) / p.K
        times = [time, step - time, step, step * (p.K - 1.0 - cell) / p.K, step / p.K]
    else:
        time = step * number
        times = [time, step - time, step]
    if path_noise is not None:
        from_midpoint, from_start = _times_beyond(path_noise, time)
        from_end, _ = _times_beyond(path_noise._replace(remaining=from_midpoint), step - time)
        times = [*times, from_end, from_midpoint, from_start]
    flow_to_midpoint, flow_to_end, step_flow, *others = _flows_over(kernel, p, *times)
    if kernel.scheme == Scheme.CELLS:
        wu, wv = cell_weight(others[0], others[1], inverse_probability(cell, p.K, kernel.power))
    else:
        wu, wv = continuous_weight(flow_to_end, step, kernel.dynamics != OVERDAMPED)
    zero = jnp.zeros_like(u)
    far: list[Any] = [w[1:] for w in beyond] or [None, None]
    mu, mv, path_noise = _extend(zero, zero, near, far[0], flow_to_midpoint, time, path_noise, others[-2:])
    mu_end, mv_end, noise_beyond = _finish(mu, mv, to_end, far[1], flow_to_end, step - time, path_noise, others[-3:-1])
    y = interpolate(u, v, b, mu, flow_to_midpoint)
    v_mid = interpolate_velocity(u, v, b, mv, flow_to_midpoint)
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
    steep = _steepness(kernel, chains, y, b_mid, time, step)
    return Midpoints(
        step_flow, mu_end, mv_end, noise_beyond, wu * change, wv * change, steep,
        used.astype(jnp.int32), finite, y, y, v_mid, lp_mid, evaluation_mid, b_mid,
    )  # fmt: skip


def _batches(g: int) -> tuple[int, int]:
    """Return the number of midpoints in a batch for ``g`` chains, and the room for all, in whole batches."""
    largest = min(g + math.ceil(_ROOM * math.sqrt(g)) + _MOST_MIDPOINTS, _MOST_MIDPOINTS * g)
    batch = min(g + math.ceil(_SPARE * math.sqrt(g)), largest)
    return batch, -(-largest // batch) * batch


def _marked_cells(last: Any, K: Any, numbers: Any, cell: Any) -> tuple[Any, Any]:
    """Return the largest number of cells that a chain marks, and these cells ``(slot, g, 1)``, then ``last``."""

    def mark(carry: Any) -> Any:
        slot, cell, cells = carry
        cell = _cells.next_cell(cell, numbers[slot], K).astype(cell.dtype)
        return slot + 1, cell, cells.at[slot].set(cell)

    more = lambda carry: (carry[0] < len(numbers)) & jnp.any(carry[1] < K)  # noqa: E731
    count, _, cells = lax.while_loop(more, mark, (0, cell, jnp.broadcast_to(last, numbers.shape)))
    return count, cells


def _midpoints(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, path_noise: PathNoise | None
) -> Midpoints:
    """Evaluate the midpoints of Option 1: first their positions, then their gradients in full batches."""
    u, v, b, _, evaluation, lp, _ = chains
    g, d = u.shape
    zero = jnp.zeros_like(u)
    slots = _MOST_MIDPOINTS
    count, cells = _marked_cells(p.K.astype(u.dtype), p.K, draws.uniforms(slots), jnp.full_like(step, -1.0))
    times = step * (cells + kernel.offset) / p.K
    used = ((cells < p.K) & (times > 0.0))[:, :, 0]

    # One list of the midpoints of all chains, in batches of fixed size; most often one batch is enough.
    batch, room = _batches(g)
    ranks = jnp.cumsum(used.reshape(-1), dtype=jnp.int32)
    rows = jnp.where(used, ranks.reshape(slots, g) - 1, room)
    midpoints = jnp.zeros(room, jnp.int32).at[rows.reshape(-1)].set(jnp.arange(slots * g, dtype=jnp.int32), mode="drop")
    wanted = lambda carry: carry[0] * batch < ranks[-1]  # noqa: E731

    def normals_of(source: Draws) -> Any:
        def draw(carry: Any) -> Any:
            i, w = carry
            indices = lax.dynamic_slice(midpoints, (i * batch,), (batch,))
            normals = jnp.stack(source.normals(indices % g, indices // g)).astype(w.dtype)
            return i + 1, lax.dynamic_update_slice(w, normals, (0, i * batch, 0))

        return lax.while_loop(wanted, draw, (0, jnp.zeros((2, room, d), u.dtype)))[1]

    near = normals_of(draws)
    beyond = None if path_noise is None else normals_of(draws.beyond())

    def place(slot: Any, carry: Any) -> Any:
        reached, mu, mv, path_noise, ys = carry
        on = used[slot][:, None]
        row = jnp.minimum(rows[slot], room - 1)
        time = jnp.where(on, times[slot], reached)
        length = time - reached
        gap, to_midpoint, *flows_beyond = _flows_over(kernel, p, length, time, *_times_beyond(path_noise, length))
        far = None if beyond is None else beyond[:, row]
        mu_new, mv_new, noise_new = _extend(mu, mv, near[:, row], far, gap, length, path_noise, flows_beyond)
        mu = jnp.where(on, mu_new, mu)
        mv = jnp.where(on, mv_new, mv)
        if path_noise is not None:
            u_new = jnp.where(on, noise_new.u, path_noise.u)
            path_noise = noise_new._replace(u=u_new, v=jnp.where(on, noise_new.v, path_noise.v))
        return time, mu, mv, path_noise, ys.at[rows[slot]].set(interpolate(u, v, b, mu, to_midpoint), mode="drop")

    start = jnp.zeros_like(step), zero, zero, path_noise, jnp.zeros((room, d), u.dtype)
    reached, mu, mv, path_noise, ys = lax.fori_loop(0, count, place, start)

    def evaluate(carry: Any) -> Any:
        i, drifts = carry
        _, _, batch_drifts = drift(lax.dynamic_slice(ys, (i * batch, 0), (batch, d)))
        return i + 1, lax.dynamic_update_slice(drifts, batch_drifts.astype(drifts.dtype), (i * batch, 0))

    _, drifts = lax.while_loop(wanted, evaluate, (0, jnp.zeros_like(ys)))

    times_beyond = _times_beyond(path_noise, step - reached)
    gap, step_flow, cell_flow, *flows_beyond = _flows_over(kernel, p, step - reached, step, step / p.K, *times_beyond)
    (_, *w), *far = draws.take(-1, beyond=path_noise is not None)
    mu, mv, noise_beyond = _finish(mu, mv, w, far and far[0][1:], gap, step - reached, path_noise, flows_beyond)

    def correct(slot: Any, carry: Any) -> Any:
        cu, cv, steep, n_grad, finite, bad = carry
        on = used[slot][:, None]
        row = jnp.minimum(rows[slot], room - 1)
        y = ys[row]
        b_mid = drifts[row]
        (to_end,) = _flows_over(kernel, p, jnp.where(on, step * (p.K - 1.0 - cells[slot]) / p.K, 0.0))
        wu, wv = cell_weight(to_end, cell_flow, p.K)
        change = jnp.where(on, b_mid - b, 0.0)
        finite_here = ~on | jnp.isfinite(total(b_mid))
        bad = jnp.where(finite & ~finite_here, y, bad)
        steep = jnp.maximum(steep, jnp.where(on, _steepness(kernel, chains, y, b_mid, times[slot], step), 0.0))
        # Gradients after a non-finite value are not counted: numba does not compute them.
        return cu + wu * change, cv + wv * change, steep, n_grad + (on & finite), finite & finite_here, bad

    nothing = (zero, zero, jnp.zeros_like(step), jnp.zeros((g, 1), jnp.int32), jnp.ones((g, 1), bool), u)
    cu, cv, steep, n_grad, finite, bad = lax.fori_loop(0, count, correct, nothing)
    return Midpoints(step_flow, mu, mv, noise_beyond, cu, cv, steep, n_grad, finite, bad, u, v, lp, evaluation, b)
