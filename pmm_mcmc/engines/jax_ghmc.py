"""The adjusted methods, generalised HMC and MALA, for a group of chains in lockstep, traced by JAX.

The velocity is refreshed in part, a leapfrog step is proposed, and the proposal is accepted if ``|s| < r``, with its
ratio ``r`` of densities and the *persistent number* ``s`` of a chain's tests, which takes the place of a uniform number
(:func:`pmm_mcmc.langevin.transitions.advanced_persistent`).  The few proposals with a ratio far below ``|s|`` are
refined, that is repeated in shorter steps, in smaller batches (:func:`~pmm_mcmc.langevin.transitions.far_below`).

It follows :mod:`pmm_mcmc.engines.numba_ghmc` step by step, with arrays ``(group, d)`` in place of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pmm_mcmc.engines.contract import Chains, Parameters
from pmm_mcmc.engines.jax_shared import END, Counts, Drift, Keyed, as_count, choose, renew_few, total
from pmm_mcmc.langevin.flows import Flow, build_flows
from pmm_mcmc.langevin.methods import HARMONIC, Kernel, Scheme
from pmm_mcmc.langevin.transitions import (
    DIVERGENCE,
    LARGEST,
    MOST_REFINEMENTS,
    SUBSTEPS,
    advanced_persistent,
    far_below,
    harmonic_log_ratio,
    kick,
    path,
    refreshed,
    renewal,
)

_flows = build_flows(jnp, jnp.where)


class _Outcome(NamedTuple):
    """Proposals ``(n, ...)`` and what became of them.

    Attributes
    ----------
    chains
        The chains after the transition: at their proposals, or where they were, with the velocity turned round.
    good : (n, 1)
        Whether a proposal is accepted.
    ratio : (n, 1)
        Ratio of densities of the last proposal, 0 where a value is not finite.
    n_grad : (n, 1)
        Gradients spent.
    """

    chains: Chains
    good: Array
    ratio: Array
    n_grad: Array


def _as_ratio(log_ratio: Array) -> Array:
    """Return a ratio of densities, 0 where it is not a number."""
    lost = jnp.isnan(log_ratio)
    return jnp.where(lost, 0.0, jnp.exp(jnp.minimum(jnp.where(lost, 0.0, log_ratio), LARGEST)))


def _rotation(step: Array, harmonic: bool) -> Flow:
    """Return the flow between the kicks of a step."""
    flow = _flows.harmonic if harmonic else _flows.underdamped
    # Without the barrier the compiler may recompute the coefficients for each coordinate.
    return lax.optimization_barrier(flow(step, 0.0))


def _leapfrog(
    drift: Drift, begin: Chains, step: Array, rotation: Flow, substeps: int, harmonic: bool = True
) -> tuple[Chains, Array, Array]:
    """Return chains after ``substeps`` steps, the log ratio of densities, and gradients spent.

    A step is a half kick by the drift, a rotation of ``(u, v)``, the exact flow of the unit Gaussian, and a half kick.
    """

    def once(_: Any, carry: Any) -> Any:
        """Take one step."""
        now, gained, n_grad = carry
        v, first_gain = kick(now.v, now.b, step)
        u, v = path(now.u, v, 0.0, 0.0, rotation)
        lp, evaluation, b = drift(u)
        v, second_gain = kick(v, b, step)
        alive = ~jnp.isnan(now.lp)  # gradients after a value that is not finite are not counted
        moved = Chains(u, v, b, u, evaluation, jnp.where(alive, lp, jnp.nan), now.factor)
        moved = Chains(*(new.astype(old.dtype) for new, old in zip(moved, now, strict=True)))
        return moved, gained + total(first_gain + second_gain), n_grad + alive

    zero = jnp.zeros_like(begin.lp)
    end, gained, n_grad = lax.fori_loop(0, substeps, once, (begin, zero, jnp.zeros(zero.shape, jnp.int32)))
    log_ratio = end.lp - begin.lp - gained
    return end, log_ratio + total(harmonic_log_ratio(begin.u, end.u)) if harmonic else log_ratio, n_grad


# The attempts at refined proposals, one after the other: the substeps of each, whether it begins at the chain's place
# or goes back there from the last end, and whether it is the last with that end.
_ATTEMPTS = [
    (SUBSTEPS**length, length == level, length == level - 1)
    for level in range(1, MOST_REFINEMENTS + 1)
    for length in (level, *range(level))
]


class _Ladder(NamedTuple):
    """Refined proposals on their way: the next attempt, chains that go on, the last end, its ratio, who may take it."""

    attempt: Array
    outcome: _Outcome
    going: Array
    end: Chains
    ratio: Array
    good: Array


def _refined(drift: Drift, step: Array, outcome: _Outcome) -> _Outcome:
    """Repeat the proposals of some rejected chains in shorter and shorter substeps, until one is accepted.

    From an end inside, with the velocity turned round, all longer steps must be refined, too: detailed balance.
    """
    begin = outcome.chains._replace(v=-outcome.chains.v)
    persistent = begin.factor
    substeps, forward, last = (jnp.asarray(values) for values in zip(*_ATTEMPTS, strict=True))

    def attempt(now: _Ladder) -> _Ladder:
        """Follow all chains forward, or back from their ends: those that go on, or may take these, are counted."""
        n = substeps[now.attempt]
        is_forward = forward[now.attempt]
        start = choose(is_forward, begin, now.end._replace(v=-now.end.v))
        length = step / n.astype(step.dtype)
        end, log_ratio, n_evaluations = _leapfrog(drift, start, length, _rotation(length, True), n)
        reached = _as_ratio(log_ratio)
        counted = jnp.where(is_forward, now.going, now.good)
        n_grad = now.outcome.n_grad + jnp.where(counted, n_evaluations, 0)
        ratio = jnp.where(is_forward, reached, now.ratio)
        good = counted & jnp.where(is_forward, jnp.abs(persistent) < ratio, far_below(ratio * reached, persistent))
        end = choose(is_forward, end, now.end)
        moved = end._replace(factor=persistent / jnp.where(good, ratio, 1.0))
        taken = good & last[now.attempt]
        outcome = _Outcome(
            choose(taken, moved, now.outcome.chains),
            now.outcome.good | taken,
            jnp.where(now.going, ratio, now.outcome.ratio),
            n_grad,
        )
        on = now.going & ~(jnp.abs(persistent) < ratio) & far_below(ratio, persistent)
        going = jnp.where(last[now.attempt], on, now.going)
        return _Ladder(now.attempt + 1, outcome, going, end, ratio, good)

    everyone = jnp.ones_like(outcome.good)
    ladder = _Ladder(jnp.int32(0), outcome, everyone, begin, outcome.ratio, everyone)
    more = lambda now: (now.attempt < len(_ATTEMPTS)) & jnp.any(now.going)  # noqa: E731
    return lax.while_loop(more, attempt, ladder).outcome


def begun(chains: Chains, draws: Keyed) -> Chains:
    """Return the chains, of which those at rest, with a 1 for a persistent number, draw a velocity and a number."""
    ((number, *_),) = draws.take(END)
    at_rest = ~(chains.factor < 1.0)
    return choose(at_rest, chains._replace(v=draws.velocity(), factor=2.0 * number - 1.0), chains)


def adjusted(kernel: Kernel, p: Parameters, drift: Drift) -> Callable[[Chains, Keyed], tuple[Chains, Counts]]:
    """Return the function that makes one transition of every chain of a group, by the random numbers of it.

    Its chains have :func:`begun`; those of MALA begin anew each time.  They stand at their evaluated points.
    """
    harmonic = kernel.dynamics == HARMONIC
    persists = kernel.scheme == Scheme.GHMC
    rotation = _rotation(p.alpha, harmonic)
    retained = jnp.exp(-p.friction * p.alpha)
    renewed = renewal(retained)

    def transition(chains: Chains, draws: Keyed) -> tuple[Chains, Counts]:
        """Refresh velocities and propose; what lies far below is refined."""
        if persists:
            ((_, _, normals),) = draws.take(END)
            v = refreshed(chains.v, normals, retained, renewed)
            chains = chains._replace(v=v.astype(chains.v.dtype))
        else:
            chains = begun(chains, draws)
        persistent = advanced_persistent(chains.factor).astype(chains.factor.dtype)
        begin = chains._replace(factor=persistent)
        proposals, log_ratio, n_grad = _leapfrog(drift, begin, p.alpha, rotation, 1, harmonic)
        ratio = _as_ratio(log_ratio)
        good = jnp.abs(persistent) < ratio
        proposals = proposals._replace(factor=persistent / jnp.where(good, ratio, 1.0))
        outcome = _Outcome(choose(good, proposals, begin._replace(v=-begin.v)), good, ratio, n_grad)
        divergence = ratio == 0.0
        if persists:
            below = ~good & far_below(ratio, persistent)
            outcome = renew_few(below[:, 0], outcome, lambda _, few: _refined(drift, p.alpha, few))
            divergence = outcome.ratio < DIVERGENCE
        after = outcome.chains
        if not persists:  # the next one starts from rest, too
            after = after._replace(factor=jnp.ones_like(after.factor))
        refined = outcome.good & ~good
        counts = Counts(
            jnp.where(refined, 1.0, jnp.minimum(ratio, 1.0))[:, 0].astype(after.u.dtype),
            as_count(outcome.n_grad),
            as_count(~outcome.good & divergence),
            as_count(refined),
            as_count(jnp.zeros_like(good)),
        )
        return after._replace(evaluated=after.u), counts

    return transition
