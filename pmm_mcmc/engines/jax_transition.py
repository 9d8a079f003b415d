"""One transition of a group of chains in lockstep, traced by JAX, over :mod:`pmm_mcmc.langevin.transitions`.

It follows :mod:`pmm_mcmc.engines.numba_chain` step by step, with arrays ``(group, d)`` in place of vectors.  Failed
steps, which are few, are refined in smaller batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pmm_mcmc.engines.contract import Chains, Parameters
from pmm_mcmc.engines.jax_adjusted import adjusted_outcome
from pmm_mcmc.engines.jax_batches import choose, renew_few
from pmm_mcmc.engines.jax_midpoints import Drift, PathNoise, evaluate_midpoint, total
from pmm_mcmc.engines.jax_random import Keyed
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.transitions import (
    DIVERGENCE,
    MOST_REFINEMENTS,
    SUBSTEPS,
    build_limits,
    end,
    potential_rise,
)

__all__ = ["Counts", "Drift", "transition"]

_limits = build_limits(jnp, jnp.where)


class Counts(NamedTuple):
    """Statistics of a transition of each chain, ``(g,)``; see :class:`pmm_mcmc.engines.contract.Chunk`."""

    accept: Any
    n_grad: Any
    unstable: Any
    refined: Any
    model_failures: Any


class _Step(NamedTuple):
    """A step of ``g`` chains."""

    chains: Chains  # at its end
    n_grad: Any  # (g, 1): gradients spent
    good: Any  # whether it is stable
    by_model: Any  # of a step that is not: whether the model is the cause
    noise: tuple[Any, Any]  # over the step, (g, d) for position and velocity


def _as_count(x: Any) -> Any:
    """Return a column ``(g, 1)`` as integers ``(g,)``."""
    return x.astype(jnp.int32)[:, 0]


def transition(
    kernel: Kernel, parameters: Parameters, drift: Drift, chains: Chains, draws: Keyed
) -> tuple[Chains, Counts]:
    """Make one transition of every chain of a group, by the random ``draws`` of this transition.

    ``drift`` maps whitened positions to log densities, evaluations and drifts, NaN where not finite.
    """
    if kernel.adjusted:
        return _adjusted(kernel, parameters, drift, chains, draws)
    p = parameters
    has_velocity = kernel.dynamics != OVERDAMPED
    step = p.alpha * chains.factor
    limits = p.threshold, _limits.limit(p.steepest, 1.0 / chains.factor, has_velocity)
    take = partial(_take, kernel, p, drift)
    unrefined, _ = take(chains, draws, step, limits, None)
    outcome = _refined(take, p, has_velocity, chains, draws, step, unrefined)
    good = outcome.good

    # Failed chains restart at the evaluated point, with a fresh velocity and a shorter step.
    v = chains.v
    if has_velocity:
        fresh = lax.cond(jnp.all(good), lambda: jnp.zeros_like(v), lambda: draws.velocity().astype(v.dtype))
    else:
        fresh = jnp.zeros_like(v)
    back = chains._replace(u=chains.evaluated, v=fresh)
    # In warm-up, keep the shorter step until the next fit: it comes as far as substeps of a long one.
    adapts = ~unrefined.good & (p.tolerance > 0.0)
    longer = jnp.where(adapts, _limits.refined(chains.factor), _limits.accepted(chains.factor))
    factor = jnp.where(good, longer, _limits.rejected(chains.factor)).astype(v.dtype)
    moved = choose(good, outcome.chains, back)._replace(factor=factor)
    counts = Counts(
        good[:, 0].astype(v.dtype),
        _as_count(outcome.n_grad),
        _as_count(~good),
        _as_count(good & ~unrefined.good),
        _as_count(~good & outcome.by_model),
    )
    return moved, counts


def _take(
    kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed, step: Any, limits: tuple[Any, Any],
    path_noise: PathNoise | None,
) -> tuple[_Step, tuple[Any, Any] | None]:  # fmt: skip
    """Take one step of every chain, stable or not; return it and, of a substep, the fixed noise after it.

    ``limits`` are the largest rise of the energy and the largest curvature.
    """
    threshold, steepest = limits
    mid = evaluate_midpoint(kernel, p, drift, chains, draws, step, path_noise)
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
    return _Step(moved, n_grad, good, by_model, (mid.mu, mid.mv)), mid.fixed


def _refined(
    take: Callable[..., Any], p: Parameters, has_velocity: bool, chains: Chains, draws: Keyed, step: Any,
    unrefined: _Step,
) -> _Step:  # fmt: skip
    """Take the steps that failed again, in substeps along the same path of the noise: in 4, and then in 16."""

    def in_substeps(substeps: Any, n_grad: Any, rows: Any) -> _Step:
        """Take the steps of some chains; after a substep that fails the others are left out."""
        begin, noise_of_step, n_grad = jax.tree.map(lambda x: x[rows], (chains, unrefined.noise, n_grad))
        length = step[rows] / substeps
        limits = p.threshold_of_substep, _limits.limit(p.steepest, substeps / chains.factor[rows], has_velocity)

        def take_substep(k: Any, carry: tuple[_Step, Any]) -> tuple[_Step, Any]:
            previous, noise = carry
            path_noise = PathNoise(noise[0], noise[1], length * (substeps - k), k == substeps - 1)
            one, beyond = take(previous.chains, draws.substep(rows, substeps + k), length, limits, path_noise)
            # Gradients after a failed substep are not counted.
            return choose(previous.good, one._replace(n_grad=previous.n_grad + one.n_grad), previous), beyond

        yes = jnp.ones((len(rows), 1), bool)
        none_taken = _Step(begin, n_grad, yes, ~yes, noise_of_step)
        return lax.fori_loop(0, substeps, take_substep, (none_taken, noise_of_step))[0]

    def take_failed_again(carry: tuple[Any, _Step]) -> tuple[Any, _Step]:
        substeps, outcome = carry
        renew = partial(in_substeps, substeps, outcome.n_grad)
        return substeps * SUBSTEPS, renew_few(~outcome.good[:, 0], outcome, renew)

    def some_fail(carry: tuple[Any, _Step]) -> Any:
        substeps, outcome = carry
        return (substeps <= SUBSTEPS**MOST_REFINEMENTS) & ~jnp.all(outcome.good)

    return lax.while_loop(some_fail, take_failed_again, (SUBSTEPS, unrefined))[1]


def _adjusted(kernel: Kernel, p: Parameters, drift: Drift, chains: Chains, draws: Keyed) -> tuple[Chains, Counts]:
    """Make a transition of an adjusted method: see :mod:`pmm_mcmc.engines.jax_adjusted`."""
    begin, outcome = adjusted_outcome(kernel, p, drift, chains, draws)
    good = outcome.good
    counts = Counts(
        jnp.where(outcome.refined, 1.0, jnp.minimum(outcome.first, 1.0))[:, 0].astype(chains.u.dtype),
        _as_count(outcome.n_grad),
        _as_count(~good & (outcome.last < DIVERGENCE if kernel.scheme == Scheme.GHMC else outcome.last == 0.0)),
        _as_count(outcome.refined),
        _as_count(jnp.zeros_like(good)),
    )
    return choose(good, outcome.chains, begin._replace(v=-begin.v)), counts
