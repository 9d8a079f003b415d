"""The adjusted methods, generalised HMC and MALA, compiled by numba: leapfrog, proposal, transition.

A proposal by a leapfrog step is accepted if ``|s| < r``, with its ratio ``r`` of densities and the *persistent number*
``s`` of a chain's tests (:func:`pmm_mcmc.langevin.transitions.advanced_persistent`).  One whose ratio is far below
``|s|`` is refined, that is repeated in shorter steps (:func:`~pmm_mcmc.langevin.transitions.far_below`).  Those of MALA
are never: its number is fresh, and its step, from a fresh velocity and without the rotation, is the Euler step of
overdamped Langevin dynamics.
"""

from __future__ import annotations

import math

from pmm_mcmc.engines.numba_shared import copy, drift, fill_normals, flow, inlined, inner, uniform
from pmm_mcmc.langevin.methods import HARMONIC, Scheme
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


@inner
def _leapfrog(functions, dynamics, substeps, step, coordinates, begin, proposal, scratch):
    """Fill ``proposal`` with the end of ``substeps`` steps from ``begin``, half kicks around a rotation each.

    Other dynamics than the harmonic ones have a free flight in place of the rotation.
    Returns the log ratio of the acceptance, NaN where a value is not finite, the log density at the end, and the
    gradients spent.  Other arguments are those of :func:`~pmm_mcmc.engines.numba_poisson.unadjusted`.
    """
    joint, joint_table, _, _ = functions
    rotation = flow(dynamics, step, 0.0)
    u, v, b, _, lp = begin
    u_new, v_new, new_b, new_evaluation, _ = proposal
    copy(u, u_new)
    copy(v, v_new)
    copy(b, new_b)
    gained = 0.0
    lp_new = lp
    for k in range(substeps):
        for j in range(u.size):
            v_new[j], gain = kick(v_new[j], new_b[j], step)
            gained += gain
            u_new[j], v_new[j] = path(u_new[j], v_new[j], 0.0, 0.0, rotation)
        lp_new = drift(joint, joint_table, dynamics, u_new, coordinates, scratch, new_evaluation, new_b)
        if math.isnan(lp_new):
            return math.nan, lp_new, k + 1
        for j in range(u.size):
            v_new[j], gain = kick(v_new[j], new_b[j], step)
            gained += gain
    log_ratio = lp_new - lp - gained
    if dynamics == HARMONIC:
        for j in range(u.size):
            log_ratio += harmonic_log_ratio(u[j], u_new[j])
    return log_ratio, lp_new, substeps


@inner
def _as_ratio(log_ratio):
    """Return a ratio of densities, 0 where it is not a number."""
    return 0.0 if math.isnan(log_ratio) else math.exp(min(log_ratio, LARGEST))


@inner
def _propose(functions, kernel, step, persistent, coordinates, begin, proposal, back, scratch):
    """Fill ``proposal`` by a step from ``begin``; that of generalised HMC is refined where it is far below ``|s|``.

    ``persistent`` is ``s``; ``back`` are arrays as of ``proposal``, for the way back;
    other arguments are those of :func:`~pmm_mcmc.engines.numba_poisson.unadjusted`.  Returns whether the proposal is
    accepted, the ratios of densities of the first proposal and of the last, 0 where a value is not finite, the log
    density at the last, the gradients spent, and the steps of the last.
    """
    u_new, v_new, new_b, _, turned = proposal
    substeps = 1
    limit = SUBSTEPS**MOST_REFINEMENTS if kernel.scheme == Scheme.GHMC else 1
    dynamics = kernel.dynamics
    log_ratio, lp, n_grad = _leapfrog(functions, dynamics, substeps, step, coordinates, begin, proposal, scratch)
    ratio = first_ratio = _as_ratio(log_ratio)
    while not abs(persistent) < ratio and far_below(ratio, persistent) and substeps < limit:
        substeps *= SUBSTEPS
        length = step / substeps
        log_ratio, lp, n_evaluations = _leapfrog(
            functions, dynamics, substeps, length, coordinates, begin, proposal, scratch
        )
        n_grad += n_evaluations
        ratio = _as_ratio(log_ratio)
        if abs(persistent) < ratio:
            # From the end, with the velocity turned round, all longer steps must be refined, too: detailed balance.
            for j in range(turned.size):
                turned[j] = -v_new[j]
            earlier = 1
            while earlier < substeps:
                turned_begin = u_new, turned, new_b, u_new, lp
                log_ratio, _, n_evaluations = _leapfrog(
                    functions, dynamics, earlier, step / earlier, coordinates, turned_begin, back, scratch
                )
                n_grad += n_evaluations
                if not far_below(ratio * _as_ratio(log_ratio), persistent):
                    return False, first_ratio, ratio, lp, n_grad, substeps
                earlier *= SUBSTEPS
    return abs(persistent) < ratio, first_ratio, ratio, lp, n_grad, substeps


@inlined
def adjusted(functions, parameters, kernel, coordinates, chain, space):
    """Make one transition of generalised HMC, or of MALA: a proposal, accepted or not.

    Returns acceptance, gradients, and whether it diverged and whether it was refined.  The last number of the state is
    the persistent number; that of MALA is 1, so that each of its proposals starts from rest.
    """
    u, v, b, evaluated, state, evaluation, _ = chain
    stream = space.random[0]
    normals = space.between[0]
    d = u.size
    if not state[4 * d + 1] < 1.0:  # a chain at rest
        state[4 * d + 1] = 2.0 * uniform(stream) - 1.0
        fill_normals(stream, v)
    persists = kernel.scheme == Scheme.GHMC
    if persists:
        fill_normals(stream, normals)
        retained = math.exp(-parameters.friction * parameters.alpha)
        renewed = renewal(retained)
        for j in range(d):
            v[j] = refreshed(v[j], normals[j], retained, renewed)
    persistent = advanced_persistent(state[4 * d + 1])
    begin = (u, v, b, evaluated, state[4 * d])
    good, first_ratio, ratio, lp_new, n_grad, substeps = _propose(
        functions, kernel, parameters.alpha, persistent, coordinates, begin, space.proposal, space.between,
        space.work[3],
    )  # fmt: skip
    unstable = 0
    if good:
        u_new, v_new, new_b, new_evaluation, _ = space.proposal
        copy(u_new, u)
        copy(v_new, v)
        copy(u_new, evaluated)
        copy(new_b, b)
        copy(new_evaluation, evaluation)
        state[4 * d] = lp_new
        state[4 * d + 1] = persistent / ratio if persists else 1.0
    else:
        # Without second tries a small ratio is a rejection like others: a divergence is not finite.
        unstable += ratio < DIVERGENCE if persists else ratio == 0.0
        state[4 * d + 1] = persistent if persists else 1.0
        for j in range(d):
            v[j] = -v[j]
    refined = good and substeps > 1
    return 1.0 if refined else min(1.0, first_ratio), n_grad, unstable, refined
