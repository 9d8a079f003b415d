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

from pmm_mcmc.langevin.flows import Flow, build_flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import build_cells, cell_weight, continuous_weight, one_in
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

__all__ = ["Chains", "Draws", "Drift", "Known", "Midpoints", "Parameters", "evaluate_midpoints", "total"]

_flows, _cells, _gain = build_flows(jnp, jnp.where), build_cells(jnp, jnp.where), build_gain(jnp.where)
_limits = build_limits(jnp, jnp.where)
_FLOW = (_flows.overdamped, _flows.underdamped, _flows.harmonic)
# Option 1: a step has more midpoints than this with probability below 1e-16.
_MOST_MIDPOINTS = 18
# A batch holds the mean number of midpoints of a group plus _SPARE standard deviations; the list has room for _ROOM
# standard deviations, which it exceeds with probability below 1e-16 (Chernoff).
_SPARE, _ROOM = 2.5, 9.0

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


class Parameters(NamedTuple):
    """Tuned parameters and limits of a step, as traced numbers: new values need no compilation.

    The fields are those of :class:`pmm_mcmc.engines.numba_step.Parameters`.
    """

    alpha: Any
    friction: Any
    K: Any
    threshold: Any
    threshold_of_part: Any
    steepest: Any
    tolerance: Any


class Chains(NamedTuple):
    """A group of ``g`` chains: arrays ``(g, d)``; log density and factor of the step size as ``(g, 1)``.

    ``gradient`` ``(g, width)`` is the evaluation at the evaluated point.
    """

    u: Any
    v: Any
    b: Any
    evaluated: Any
    gradient: Any
    lp: Any
    factor: Any


class Known(NamedTuple):
    """Known noise ``(g, d)`` over the rest of a path, the time ``(g, 1)`` to its end, whether this step ends there."""

    u: Any
    v: Any
    ahead: Any
    last: Any


class Midpoints(NamedTuple):
    """The flow and noise path of a step, and what its midpoints contribute."""

    whole: Flow
    mu: Any
    mv: Any
    known: tuple[Any, Any]  # the noise of the path beyond the step, where the path is known
    cu: Any
    cv: Any
    steep: Any
    n_grad: Any
    finite: Any  # (g, 1)
    bad: Any  # (g, d): the first midpoint with a value that is not finite
    y: Any  # the last midpoint, and the evaluation there
    v_mid: Any
    lp: Any
    gradient: Any
    b: Any


def total(x: Any) -> Any:
    """Return sums over coordinates, ``(n, 1)``."""
    return jnp.sum(x, axis=-1, keepdims=True)


def evaluate_midpoints(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, known: Known | None
) -> Midpoints:
    """Draw midpoints and noise of a step of length ``step`` ``(g, 1)`` and evaluate the drift at the midpoints.

    In a part of a refined step the noise is conditioned on the ``known`` noise of the whole.
    """
    option_1 = kernel.scheme == Scheme.CELLS and kernel.option == 1
    return (_midpoints if option_1 else _midpoint)(kernel, p, drift, chains, draws, step, known)


def _flows_over(kernel: Kernel, p: Parameters, *times: Any) -> list[Flow]:
    """Return the flows over several times ``(g, 1)``, in one array so that their series are compiled once."""
    together = _FLOW[kernel.dynamics](jnp.concatenate(times, axis=1), p.friction)
    # Without the barrier the compiler may recompute a chain's coefficients for each coordinate.
    together = lax.optimization_barrier(together)
    return [Flow(*(part[:, i : i + 1] for part in together)) for i in range(len(times))]


def _times_beyond(known: Known | None, length: Any) -> tuple[Any, ...]:
    """Return the times from the end and from the start of a gap to the end of a known path, for :func:`_extend`."""
    return () if known is None else (jnp.maximum(known.ahead - length, 0.0), known.ahead)


def _extend(
    mu: Any, mv: Any, w: Any, beyond: Any, gap: Flow, length: Any, known: Known | None, flows_beyond: Sequence[Flow]
) -> tuple[Any, Any, Any]:
    """Extend the noise path of the step over a gap; return it, and the known noise from there on."""
    nu, nv = noise(*w, gap)
    if known is not None:
        rest, left = flows_beyond
        after, gain = noise(*beyond, rest), _gain(gap, rest, left)
        nu, nv, u, v = bridged(nu, nv, *after, known.u, known.v, rest, gain)
        known = Known(u, v, known.ahead - length, known.last)
    return *path(mu, mv, nu, nv, gap), known


def _finish(
    mu: Any, mv: Any, w: Any, beyond: Any, gap: Flow, length: Any, known: Known | None, flows_beyond: Sequence[Flow]
) -> tuple[Any, Any, tuple[Any, Any]]:
    """Extend the noise path to the end of the step; return it, and the known noise beyond."""
    *found, after = _extend(mu, mv, w, beyond, gap, length, known, flows_beyond)
    if known is None:
        return *found, tuple(found)
    at_end = path(mu, mv, known.u, known.v, gap)
    mu, mv = (jnp.where(known.last, a, b) for a, b in zip(at_end, found, strict=True))
    return mu, mv, (after.u, after.v)


def _steepness(kernel: Kernel, chains: Chains, y: Any, b: Any, time: Any, step: Any) -> Any:
    stiffness = 1.0 * (kernel.dynamics == HARMONIC)
    way, rise = y - chains.evaluated, fall(y, chains.evaluated, b, chains.b, stiffness)
    found = _limits.curvature(total(rise * rise), total(way * way), total(rise * way), stiffness)
    return jnp.where(time > EARLIEST * step, found, 0.0)


def _midpoint(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, known: Known | None
) -> Midpoints:
    """Evaluate the one midpoint of Option 2, or of the continuous law."""
    u, v, b = chains[:3]
    # The numbers of a step are drawn at once, and its flows computed at once: each call is compiled by itself.
    (number, *near), (_, *to_end), *beyond = draws.take(0, -1, beyond=known is not None)
    if kernel.scheme == Scheme.CELLS:
        cell = _cells.one_cell(number, p.K, kernel.power)
        time = step * (cell + kernel.offset) / p.K
        times = [time, step - time, step, step * (p.K - 1.0 - cell) / p.K, step / p.K]
    else:
        time = step * number
        times = [time, step - time, step]
    if known is not None:
        from_midpoint, from_start = _times_beyond(known, time)
        from_end, _ = _times_beyond(known._replace(ahead=from_midpoint), step - time)
        times = [*times, from_end, from_midpoint, from_start]
    at, gap, whole, *others = _flows_over(kernel, p, *times)
    if kernel.scheme == Scheme.CELLS:
        wu, wv = cell_weight(others[0], others[1], one_in(cell, p.K, kernel.power))
    else:
        wu, wv = continuous_weight(gap, step, kernel.dynamics != OVERDAMPED)
    zero = jnp.zeros_like(u)
    far: list[Any] = [w[1:] for w in beyond] or [None, None]
    mu, mv, known = _extend(zero, zero, near, far[0], at, time, known, others[-2:])
    mu_end, mv_end, after = _finish(mu, mv, to_end, far[1], gap, step - time, known, others[-3:-1])
    y, v_mid = interpolate(u, v, b, mu, at), interpolate_velocity(u, v, b, mv, at)
    used = time > 0.0
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        # With a single cell, as in OLMC and ULMC, no chain needs the gradient.
        lp_mid, gradient_mid, b_mid = lax.cond(
            jnp.any(used), drift, lambda y: (jnp.zeros_like(step), jnp.zeros_like(chains.gradient), zero), y
        )
    else:
        lp_mid, gradient_mid, b_mid = drift(y)
    finite = ~used | jnp.isfinite(total(b_mid))
    if kernel.scheme == Scheme.RECYCLED:
        finite &= ~jnp.isnan(lp_mid)
    change = jnp.where(used, b_mid - (0.0 if kernel.scheme == Scheme.CONTINUOUS else b), 0.0)
    return Midpoints(
        whole, mu_end, mv_end, after, wu * change, wv * change, _steepness(kernel, chains, y, b_mid, time, step),
        used.astype(jnp.int32), finite, y, y, v_mid, lp_mid, gradient_mid, b_mid,
    )  # fmt: skip


def _batches(g: int) -> tuple[int, int]:
    """Return the number of midpoints in a batch for ``g`` chains, and the room for all, in whole batches."""
    most = min(g + math.ceil(_ROOM * math.sqrt(g)) + _MOST_MIDPOINTS, _MOST_MIDPOINTS * g)
    batch = min(g + math.ceil(_SPARE * math.sqrt(g)), most)
    return batch, -(-most // batch) * batch


def _midpoints(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any, known: Known | None
) -> Midpoints:
    """Evaluate the midpoints of Option 1: first their positions, then their gradients in full batches."""
    u, v, b, _, gradient, lp, _ = chains
    (g, d), zero, slots = u.shape, jnp.zeros_like(u), _MOST_MIDPOINTS

    numbers = draws.uniforms(slots)

    def mark(carry: Any) -> Any:
        slot, cell, cells = carry
        cell = _cells.next_cell(cell, numbers[slot], p.K).astype(cell.dtype)
        return slot + 1, cell, cells.at[slot].set(cell)

    more = lambda carry: (carry[0] < slots) & jnp.any(carry[1] < p.K)  # noqa: E731
    none = jnp.broadcast_to(p.K.astype(u.dtype), (slots, g, 1))
    count, _, cells = lax.while_loop(more, mark, (0, jnp.full_like(step, -1.0), none))
    times = step * (cells + kernel.offset) / p.K
    used = ((cells < p.K) & (times > 0.0))[:, :, 0]

    # One list of the midpoints of all chains, in batches of fixed size; most often one batch is enough.
    batch, room = _batches(g)
    ranks = jnp.cumsum(used.reshape(-1), dtype=jnp.int32)
    rows = jnp.where(used, ranks.reshape(slots, g) - 1, room)
    which = jnp.zeros(room, jnp.int32).at[rows.reshape(-1)].set(jnp.arange(slots * g, dtype=jnp.int32), mode="drop")
    wanted = lambda carry: carry[0] * batch < ranks[-1]  # noqa: E731

    def normals_of(source: Draws) -> Any:
        def draw(carry: Any) -> Any:
            i, w = carry
            part = lax.dynamic_slice(which, (i * batch,), (batch,))
            found = jnp.stack(source.normals(part % g, part // g)).astype(w.dtype)
            return i + 1, lax.dynamic_update_slice(w, found, (0, i * batch, 0))

        return lax.while_loop(wanted, draw, (0, jnp.zeros((2, room, d), u.dtype)))[1]

    near = normals_of(draws)
    beyond = None if known is None else normals_of(draws.beyond())

    def place(slot: Any, carry: Any) -> Any:
        reached, mu, mv, known, ys = carry
        on, row = used[slot][:, None], jnp.minimum(rows[slot], room - 1)
        time = jnp.where(on, times[slot], reached)
        gap, at, *rest = _flows_over(kernel, p, time - reached, time, *_times_beyond(known, time - reached))
        after = None if beyond is None else beyond[:, row]
        mu_new, mv_new, known_new = _extend(mu, mv, near[:, row], after, gap, time - reached, known, rest)
        mu, mv = jnp.where(on, mu_new, mu), jnp.where(on, mv_new, mv)
        if known is not None:
            u_new, v_new, ahead, last = known_new
            known = Known(jnp.where(on, u_new, known.u), jnp.where(on, v_new, known.v), ahead, last)
        return time, mu, mv, known, ys.at[rows[slot]].set(interpolate(u, v, b, mu, at), mode="drop")

    start = jnp.zeros_like(step), zero, zero, known, jnp.zeros((room, d), u.dtype)
    reached, mu, mv, known, ys = lax.fori_loop(0, count, place, start)

    def evaluate(carry: Any) -> Any:
        i, found = carry
        _, _, drifts = drift(lax.dynamic_slice(ys, (i * batch, 0), (batch, d)))
        return i + 1, lax.dynamic_update_slice(found, drifts.astype(found.dtype), (i * batch, 0))

    _, found = lax.while_loop(wanted, evaluate, (0, jnp.zeros_like(ys)))

    ahead = _times_beyond(known, step - reached)
    gap, whole, one, *rest = _flows_over(kernel, p, step - reached, step, step / p.K, *ahead)
    (_, *w), *far = draws.take(-1, beyond=known is not None)
    mu, mv, after = _finish(mu, mv, w, far and far[0][1:], gap, step - reached, known, rest)

    def correct(slot: Any, carry: Any) -> Any:
        cu, cv, steep, n_grad, finite, bad = carry
        on, row = used[slot][:, None], jnp.minimum(rows[slot], room - 1)
        y, b_mid = ys[row], found[row]
        (rest,) = _flows_over(kernel, p, jnp.where(on, step * (p.K - 1.0 - cells[slot]) / p.K, 0.0))
        wu, wv = cell_weight(rest, one, p.K)
        change = jnp.where(on, b_mid - b, 0.0)
        finite_here = ~on | jnp.isfinite(total(b_mid))
        bad = jnp.where(finite & ~finite_here, y, bad)
        steep = jnp.maximum(steep, jnp.where(on, _steepness(kernel, chains, y, b_mid, times[slot], step), 0.0))
        # Gradients after a non-finite value are not counted: numba does not compute them.
        return cu + wu * change, cv + wv * change, steep, n_grad + (on & finite), finite & finite_here, bad

    nothing = (zero, zero, jnp.zeros_like(step), jnp.zeros((g, 1), jnp.int32), jnp.ones((g, 1), bool), u)
    cu, cv, steep, n_grad, finite, bad = lax.fori_loop(0, count, correct, nothing)
    return Midpoints(whole, mu, mv, after, cu, cv, steep, n_grad, finite, bad, u, v, lp, gradient, b)
