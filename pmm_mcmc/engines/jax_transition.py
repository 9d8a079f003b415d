"""One transition of a group of chains in lockstep, traced by JAX: the arithmetic of :mod:`pmm_mcmc.transitions`.

What :mod:`pmm_mcmc.engines.loop` does for one chain, step by step, with arrays ``(group, d)`` in place of vectors.
Under Option 1 chains have different numbers of midpoints; where they lie does not depend on the gradients found there,
so that all midpoints of all chains are known first and their gradients taken in full batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax

from pmm_mcmc.coefficients import Flow, build_flows
from pmm_mcmc.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.midpoints import build_cells, cell_weight, continuous_weight, one_in
from pmm_mcmc.transitions import (
    TELLING,
    build_factors,
    end,
    energy_ahead,
    interpolate,
    interpolate_velocity,
    mala_log_ratio,
    noise,
    path,
)

__all__ = ["Chains", "Counts", "Drift", "Parameters", "transition"]

_flows, _cells, _factors = build_flows(jnp, jnp.where), build_cells(jnp, jnp.where), build_factors(jnp, jnp.where)
_FLOW = (_flows.overdamped, _flows.underdamped, _flows.harmonic)
# Option 1: a step has more midpoints than this with probability below 1e-16.
_MOST_MIDPOINTS = 18
# Midpoints of a group are taken so many standard deviations above their mean number at a time, and there is room for
# so many more: they would not fit with probability below 1e-16 (Chernoff).
_SPARE, _ROOM = 2.5, 9.0

# Positions (n, d) to log densities (n,), gradients (n, d) in the model's coordinates, and drifts (n, d).
Drift = Callable[[Any], tuple[Any, Any, Any]]


class Draws(Protocol):
    """Random numbers of one transition of a group of ``g`` chains."""

    def take(self, *slots: Any) -> list[tuple[Any, Any, Any]]:
        """Return numbers in [0, 1) ``(g, 1)`` and two arrays ``(g, d)`` of standard normals, for each slot.

        Slots from 0 on are midpoints; slot -1 is the end of the step.
        """

    def uniforms(self, slots: int) -> Any:
        """Return the first of these for so many midpoints, ``(slots, g, 1)``."""

    def normals(self, chains: Any, slots: Any) -> tuple[Any, Any]:
        """Return the others for a list of midpoints ``(n,)``, ``(n, d)``: of which chain, and in which slot."""

    def velocity(self) -> Any:
        """``(g, d)`` standard normals for chains that start again."""


class Parameters(NamedTuple):
    """Numbers of the setting, traced: nothing is compiled anew when they change."""

    alpha: Any
    friction: Any
    K: Any
    threshold: Any
    steepest: Any
    tolerance: Any


class Chains(NamedTuple):
    """A group of ``g`` chains: arrays ``(g, d)``, and the log density and the factor of the step as ``(g, 1)``."""

    u: Any
    v: Any
    b: Any
    anchor: Any
    gradient: Any
    lp: Any
    factor: Any


class Counts(NamedTuple):
    """What a transition cost and how it went, ``(g,)`` each."""

    accept: Any
    n_grad: Any
    unstable: Any
    model_failures: Any


class _Seen(NamedTuple):
    """What the midpoints of a step have shown, and its flow and noise path, to the end."""

    whole: Flow
    mu: Any
    mv: Any
    cu: Any
    cv: Any
    steep: Any
    n_grad: Any
    finite: Any  # (g, 1)
    bad: Any  # (g, d): where a value was not finite, if any
    y: Any  # the last midpoint, with what was found there
    v_mid: Any
    lp: Any
    gradient: Any
    b: Any


def _total(x: Any) -> Any:
    return jnp.sum(x, axis=-1, keepdims=True)


def _flat(x: Any) -> Any:
    return x.astype(jnp.int32)[:, 0]


def transition(
    kernel: Kernel, parameters: Parameters, drift: Drift, chains: Chains, draws: Draws
) -> tuple[Chains, Counts]:
    """Make one transition of every chain of a group.

    Parameters
    ----------
    kernel
        The method.
    parameters
        Step size, friction, K, and the limits of the guard.
    drift
        Log density, gradient and drift, for any number of whitened positions at once; NaN where not finite.
    chains
        The group.
    draws
        Random numbers of this transition.

    Returns
    -------
    Chains, Counts
    """
    if kernel.scheme == Scheme.MALA:
        return _mala(parameters, drift, chains, draws)
    p = parameters
    has_velocity, stiffness = kernel.dynamics != OVERDAMPED, 1.0 * (kernel.dynamics == HARMONIC)
    step = p.alpha * chains.factor
    seen = (_midpoints if _is_option_1(kernel) else _midpoint)(kernel, p, drift, chains, draws, step)
    u, v, b, anchor, _, lp, _ = chains

    # The end point (step 5); the randomised midpoint method leaves the drift at the start out of it.
    base = 0.0 if kernel.scheme == Scheme.CONTINUOUS else 1.0
    u_new, v_new = end(u, v, base * b, seen.mu, seen.mv, seen.cu, seen.cv, seen.whole)
    if kernel.scheme == Scheme.RECYCLED:
        at, lp_new, gradient, b_new, n_grad = seen.y, seen.lp, seen.gradient, seen.b, seen.n_grad
        lost, bad, kinetic, ahead = ~seen.finite, seen.bad, seen.v_mid, energy_ahead(u, anchor, b, stiffness)
    else:
        at, (lp_new, gradient, b_new) = u_new, drift(u_new)
        lost = jnp.isnan(lp_new) | ~seen.finite
        bad = jnp.where(seen.finite, u_new, seen.bad)
        kinetic, ahead, n_grad = v_new, 0.0, seen.n_grad + seen.finite
    rise = lp - lp_new + _total(0.5 * (kinetic * kinetic - v * v) - ahead)
    motion = _total(0.5 * (kinetic * kinetic + v * v))
    good = ~lost & jnp.isfinite(_total(u_new + v_new)) & (rise <= p.threshold + p.tolerance * motion)

    # Where it failed: again from where the gradient was last known, with a fresh velocity and a shorter step.
    if has_velocity:
        fresh = lax.cond(jnp.all(good), lambda: jnp.zeros_like(v), lambda: draws.velocity().astype(v.dtype))
    else:
        fresh = jnp.zeros_like(v)
    away = _total(0.5 * (bad * bad - u * u))
    factor = jnp.where(
        good,
        _factors.accepted(chains.factor, seen.steep, p.steepest, has_velocity),
        _factors.rejected(chains.factor),
    )
    after = Chains(
        jnp.where(good, u_new, anchor),
        jnp.where(good, v_new, fresh),
        jnp.where(good, b_new, b),
        jnp.where(good, at, anchor),
        jnp.where(good, gradient, chains.gradient),
        jnp.where(good, lp_new, lp),
        factor,
    )
    model_failures = ~good & lost & (away <= p.threshold)
    counts = Counts(good[:, 0].astype(u.dtype), _flat(n_grad), _flat(~good), _flat(model_failures))
    return Chains(*(new.astype(old.dtype) for new, old in zip(after, chains, strict=True))), counts


def _is_option_1(kernel: Kernel) -> bool:
    return kernel.scheme == Scheme.CELLS and kernel.option == 1


def _flows_over(kernel: Kernel, p: Parameters, *times: Any) -> list[Flow]:
    """Return the flows over several times ``(g, 1)``, taken side by side: their series are compiled but once."""
    together = _FLOW[kernel.dynamics](jnp.concatenate(times, axis=1), p.friction)
    # Else the compiler may work out a chain's coefficients again for each of its coordinates.
    together = lax.optimization_barrier(together)
    return [Flow(*(part[:, i : i + 1] for part in together)) for i in range(len(times))]


def _steepness(chains: Chains, y: Any, b: Any, time: Any, step: Any) -> Any:
    change, length = _total((b - chains.b) ** 2), _total((y - chains.anchor) ** 2)
    telling = (time > TELLING * step) & (length > 0.0)
    return jnp.where(telling, jnp.sqrt(change / jnp.where(telling, length, 1.0)), 0.0)


def _midpoint(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any) -> _Seen:
    """Take the one midpoint of Option 2, or of the continuous law."""
    u, v, b = chains[:3]
    (number, *near), (_, *far) = draws.take(0, -1)
    if kernel.scheme == Scheme.CELLS:
        cell = _cells.one_cell(number, p.K, kernel.power)
        time = step * (cell + kernel.offset) / p.K
        times = (step * (p.K - 1.0 - cell) / p.K, step / p.K)
        at, gap, whole, *of_cell = _flows_over(kernel, p, time, step - time, step, *times)
        wu, wv = cell_weight(*of_cell, one_in(cell, p.K, kernel.power))
    else:
        time = step * number
        at, gap, whole = _flows_over(kernel, p, time, step - time, step)
        wu, wv = continuous_weight(gap, step, kernel.dynamics != OVERDAMPED)
    zero = jnp.zeros_like(u)
    mu, mv = path(zero, zero, *noise(*near, at), at)
    mu_end, mv_end = path(mu, mv, *noise(*far, gap), gap)
    y, v_mid = interpolate(u, v, b, mu, at), interpolate_velocity(u, v, b, mv, at)
    used = time > 0.0
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        # Of a single cell, as in OLMC and ULMC, no chain wants the gradient.
        lp_mid, gradient_mid, b_mid = lax.cond(jnp.any(used), drift, lambda y: (jnp.zeros_like(step), zero, zero), y)
    else:
        lp_mid, gradient_mid, b_mid = drift(y)
    finite = ~used | jnp.isfinite(_total(b_mid))
    if kernel.scheme == Scheme.RECYCLED:
        finite &= ~jnp.isnan(lp_mid)
    change = jnp.where(used, b_mid - (0.0 if kernel.scheme == Scheme.CONTINUOUS else b), 0.0)
    return _Seen(
        whole, mu_end, mv_end, wu * change, wv * change, _steepness(chains, y, b_mid, time, step),
        used.astype(jnp.int32), finite, y, y, v_mid, lp_mid, gradient_mid, b_mid,
    )  # fmt: skip


def _batches(g: int) -> tuple[int, int]:
    """Return how many midpoints of ``g`` chains are taken at a time, and how many there may be: whole batches."""
    most = min(g + math.ceil(_ROOM * math.sqrt(g)) + _MOST_MIDPOINTS, _MOST_MIDPOINTS * g)
    batch = min(g + math.ceil(_SPARE * math.sqrt(g)), most)
    return batch, -(-most // batch) * batch


def _midpoints(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any) -> _Seen:
    """Take the midpoints of Option 1: first where they lie, then their gradients in full batches."""
    u, v, b, _, gradient, lp, _ = chains
    (g, d), zero, slots = u.shape, jnp.zeros_like(u), _MOST_MIDPOINTS

    # Which cells are marked depends on nothing else.
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

    # One list of all midpoints, taken in batches of fixed size, most often a single one.
    batch, room = _batches(g)
    ranks = jnp.cumsum(used.reshape(-1), dtype=jnp.int32)
    rows = jnp.where(used, ranks.reshape(slots, g) - 1, room)
    which = jnp.zeros(room, jnp.int32).at[rows.reshape(-1)].set(jnp.arange(slots * g, dtype=jnp.int32), mode="drop")

    def draw(carry: Any) -> Any:
        i, w = carry
        part = lax.dynamic_slice(which, (i * batch,), (batch,))
        found = jnp.stack(draws.normals(part % g, part // g)).astype(w.dtype)
        return i + 1, lax.dynamic_update_slice(w, found, (0, i * batch, 0))

    wanted = lambda carry: carry[0] * batch < ranks[-1]  # noqa: E731
    _, (w1, w2) = lax.while_loop(wanted, draw, (0, jnp.zeros((2, room, d), u.dtype)))

    def place(slot: Any, carry: Any) -> Any:
        reached, mu, mv, ys = carry
        on, row = used[slot][:, None], jnp.minimum(rows[slot], room - 1)
        time = jnp.where(on, times[slot], reached)
        gap, at = _flows_over(kernel, p, time - reached, time)
        mu_new, mv_new = path(mu, mv, *noise(w1[row], w2[row], gap), gap)
        mu, mv = jnp.where(on, mu_new, mu), jnp.where(on, mv_new, mv)
        return time, mu, mv, ys.at[rows[slot]].set(interpolate(u, v, b, mu, at), mode="drop")

    start = jnp.zeros_like(step), zero, zero, jnp.zeros((room, d), u.dtype)
    reached, mu, mv, ys = lax.fori_loop(0, count, place, start)

    def evaluate(carry: Any) -> Any:
        i, found = carry
        _, _, drifts = drift(lax.dynamic_slice(ys, (i * batch, 0), (batch, d)))
        return i + 1, lax.dynamic_update_slice(found, drifts.astype(found.dtype), (i * batch, 0))

    _, found = lax.while_loop(wanted, evaluate, (0, jnp.zeros_like(ys)))

    gap, whole, one = _flows_over(kernel, p, step - reached, step, step / p.K)
    ((_, *far),) = draws.take(-1)
    mu, mv = path(mu, mv, *noise(*far, gap), gap)

    def correct(slot: Any, carry: Any) -> Any:
        cu, cv, steep, n_grad, finite, bad = carry
        on, row = used[slot][:, None], jnp.minimum(rows[slot], room - 1)
        y, b_mid = ys[row], found[row]
        (rest,) = _flows_over(kernel, p, jnp.where(on, step * (p.K - 1.0 - cells[slot]) / p.K, 0.0))
        wu, wv = cell_weight(rest, one, p.K)
        change = jnp.where(on, b_mid - b, 0.0)
        known = ~on | jnp.isfinite(_total(b_mid))
        bad = jnp.where(finite & ~known, y, bad)
        steep = jnp.maximum(steep, jnp.where(on, _steepness(chains, y, b_mid, times[slot], step), 0.0))
        # After a value that is not finite no more gradients are wanted.
        return cu + wu * change, cv + wv * change, steep, n_grad + (on & finite), finite & known, bad

    nothing = (zero, zero, jnp.zeros_like(step), jnp.zeros((g, 1), jnp.int32), jnp.ones((g, 1), bool), u)
    cu, cv, steep, n_grad, finite, bad = lax.fori_loop(0, count, correct, nothing)
    return _Seen(whole, mu, mv, cu, cv, steep, n_grad, finite, bad, u, v, lp, gradient, b)


def _mala(p: Parameters, drift: Drift, chains: Chains, draws: Draws) -> tuple[Chains, Counts]:
    u, _, b, _, _, lp, _ = chains
    step = p.alpha * chains.factor
    whole: Flow = _flows.overdamped(step, p.friction)
    ((number, _, w),) = draws.take(-1)
    u_new = u + step * b + whole.n_uu * w
    lp_new, gradient, b_new = drift(u_new)
    log_ratio = lp_new - lp + _total(mala_log_ratio(u, b, u_new, b_new, step))
    failed = jnp.isnan(log_ratio)
    good = jnp.log1p(-number) < log_ratio  # false for NaN
    accept = jnp.where(failed, 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    after = Chains(
        jnp.where(good, u_new, u),
        chains.v,
        jnp.where(good, b_new, b),
        jnp.where(good, u_new, chains.anchor),
        jnp.where(good, gradient, chains.gradient),
        jnp.where(good, lp_new, lp),
        chains.factor,
    )
    one = jnp.ones_like(failed)
    counts = Counts(accept[:, 0].astype(u.dtype), _flat(one), _flat(failed), _flat(failed))
    return Chains(*(new.astype(old.dtype) for new, old in zip(after, chains, strict=True))), counts
