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
from pmm_mcmc.midpoints import build_cells, cell_weight, continuous_weight
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
# Midpoints of a group are taken so many standard deviations above their mean number at a time.
_SPARE = 2.5

# Positions (n, d) to log densities (n,), gradients (n, d) in the model's coordinates, and drifts (n, d).
Drift = Callable[[Any], tuple[Any, Any, Any]]


class Draws(Protocol):
    """Random numbers of one transition of a group of ``g`` chains."""

    def uniform(self, slot: Any) -> Any:
        """``(g, 1)`` numbers in [0, 1) for a midpoint, or for an acceptance."""

    def normals(self, slot: Any) -> tuple[Any, Any]:
        """Two arrays ``(g, d)`` of standard normals for the noise up to a midpoint, or to the end (slot -1)."""

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
    """What the midpoints of a step have shown, and the noise path up to the last of them."""

    mu: Any
    mv: Any
    reached: Any
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
    p, flow = parameters, _FLOW[kernel.dynamics]
    has_velocity, stiffness = kernel.dynamics != OVERDAMPED, 1.0 * (kernel.dynamics == HARMONIC)
    step = p.alpha * chains.factor
    seen = (_midpoints if _is_option_1(kernel) else _midpoint)(kernel, p, drift, chains, draws, step)
    u, v, b, anchor, _, lp, _ = chains

    # The end point (step 5); the randomised midpoint method leaves the drift at the start out of it.
    base = 0.0 if kernel.scheme == Scheme.CONTINUOUS else 1.0
    gap = flow(step - seen.reached, p.friction)
    mu, mv = path(seen.mu, seen.mv, *noise(*draws.normals(-1), gap), gap)
    u_new, v_new = end(u, v, base * b, mu, mv, seen.cu, seen.cv, flow(step, p.friction))
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


def _weight(kernel: Kernel, p: Parameters, step: Any, time: Any, cell: Any) -> tuple[Any, Any]:
    flow = _FLOW[kernel.dynamics]
    if kernel.scheme == Scheme.CELLS:
        rest, one = flow(step * (p.K - 1.0 - cell) / p.K, p.friction), flow(step / p.K, p.friction)
        return cell_weight(rest, one, p.K)
    return continuous_weight(flow(step - time, p.friction), step, kernel.dynamics != OVERDAMPED)


def _steepness(chains: Chains, y: Any, b: Any, time: Any, step: Any) -> Any:
    change, length = _total((b - chains.b) ** 2), _total((y - chains.anchor) ** 2)
    telling = (time > TELLING * step) & (length > 0.0)
    return jnp.where(telling, jnp.sqrt(change / jnp.where(telling, length, 1.0)), 0.0)


def _midpoint(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any) -> _Seen:
    """Take the one midpoint of Option 2, or of the continuous law."""
    u, v, b = chains[:3]
    cell = jnp.zeros_like(step)
    if kernel.scheme == Scheme.CELLS:
        cell = _cells.one_cell(draws.uniform(0), p.K)
        time = step * (cell + kernel.offset) / p.K
    else:
        time = step * draws.uniform(0)
    at = _FLOW[kernel.dynamics](time, p.friction)
    zero = jnp.zeros_like(u)
    mu, mv = path(zero, zero, *noise(*draws.normals(0), at), at)
    y = interpolate(u, v, b, mu, at)
    lp_mid, gradient_mid, b_mid = drift(y)
    used = time > 0.0
    finite = ~used | jnp.isfinite(_total(b_mid))
    if kernel.scheme == Scheme.RECYCLED:
        finite &= ~jnp.isnan(lp_mid)
    wu, wv = _weight(kernel, p, step, time, cell)
    change = jnp.where(used, b_mid - (0.0 if kernel.scheme == Scheme.CONTINUOUS else b), 0.0)
    return _Seen(
        mu, mv, time, wu * change, wv * change, _steepness(chains, y, b_mid, time, step), used.astype(jnp.int32),
        finite, y, y, interpolate_velocity(u, v, b, mv, at), lp_mid, gradient_mid, b_mid,
    )  # fmt: skip


def _midpoints(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Draws, step: Any) -> _Seen:
    """Take the midpoints of Option 1: first where they lie, then their gradients in full batches."""
    u, v, b, _, gradient, lp, _ = chains
    flow, (g, d) = _FLOW[kernel.dynamics], u.shape
    zero, slots = jnp.zeros_like(u), _MOST_MIDPOINTS

    def place(carry: Any) -> Any:
        slot, cell, reached, mu, mv, ys, cells, used = carry
        cell = _cells.next_cell(cell, draws.uniform(slot), p.K).astype(cell.dtype)
        marked = cell < p.K
        time = jnp.where(marked, step * (cell + kernel.offset) / p.K, reached)
        gap = flow(time - reached, p.friction)
        mu_new, mv_new = path(mu, mv, *noise(*draws.normals(slot), gap), gap)
        mu, mv = jnp.where(marked, mu_new, mu), jnp.where(marked, mv_new, mv)
        y = interpolate(u, v, b, mu, flow(time, p.friction))
        return (
            slot + 1, cell, time, mu, mv,
            ys.at[slot].set(y), cells.at[slot].set(cell), used.at[slot].set((marked & (time > 0.0))[:, 0]),
        )  # fmt: skip

    start = (
        0, jnp.full_like(step, -1.0), jnp.zeros_like(step), zero, zero,
        jnp.zeros((slots, g, d), u.dtype), jnp.zeros((slots, g, 1), u.dtype), jnp.zeros((slots, g), bool),
    )  # fmt: skip
    more = lambda carry: (carry[0] < slots) & jnp.any(carry[1] < p.K)  # noqa: E731
    count, _, reached, mu, mv, ys, cells, used = lax.while_loop(more, place, start)

    # One list of all midpoints, in batches of fixed size, most often a single one.
    batch = min(g + math.ceil(_SPARE * math.sqrt(g)), slots * g)
    batches = -(-slots * g // batch)
    total = jnp.sum(used)
    where = jnp.nonzero(used.reshape(-1), size=batches * batch, fill_value=slots * g)[0]
    flat = ys.reshape(-1, d)

    def evaluate(carry: Any) -> Any:
        i, found = carry
        take = lax.dynamic_slice(where, (i * batch,), (batch,))
        _, _, drifts = drift(flat[jnp.minimum(take, slots * g - 1)])
        return i + 1, found.at[take].set(drifts.astype(found.dtype), mode="drop")

    _, found = lax.while_loop(lambda c: c[0] * batch < total, evaluate, (0, jnp.zeros_like(flat)))
    found = found.reshape(slots, g, d)

    def correct(slot: Any, carry: Any) -> Any:
        cu, cv, steep, n_grad, finite, bad = carry
        y, b_mid, cell, on = ys[slot], found[slot], cells[slot], used[slot][:, None]
        time = step * (cell + kernel.offset) / p.K
        wu, wv = _weight(kernel, p, step, time, cell)
        change = jnp.where(on, b_mid - b, 0.0)
        known = ~on | jnp.isfinite(_total(b_mid))
        bad = jnp.where(finite & ~known, y, bad)
        steep = jnp.maximum(steep, jnp.where(on, _steepness(chains, y, b_mid, time, step), 0.0))
        # After a value that is not finite no more gradients are wanted.
        return cu + wu * change, cv + wv * change, steep, n_grad + (on & finite), finite & known, bad

    nothing = (zero, zero, jnp.zeros_like(step), jnp.zeros((g, 1), jnp.int32), jnp.ones((g, 1), bool), u)
    cu, cv, steep, n_grad, finite, bad = lax.fori_loop(0, count, correct, nothing)
    return _Seen(mu, mv, reached, cu, cv, steep, n_grad, finite, bad, u, v, lp, gradient, b)


def _mala(p: Parameters, drift: Drift, chains: Chains, draws: Draws) -> tuple[Chains, Counts]:
    u, _, b, _, _, lp, _ = chains
    step = p.alpha * chains.factor
    whole: Flow = _flows.overdamped(step, p.friction)
    _, w = draws.normals(-1)
    u_new = u + step * b + whole.n_uu * w
    lp_new, gradient, b_new = drift(u_new)
    log_ratio = lp_new - lp + _total(mala_log_ratio(u, b, u_new, b_new, step))
    failed = jnp.isnan(log_ratio)
    good = jnp.log1p(-draws.uniform(0)) < log_ratio  # false for NaN
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
