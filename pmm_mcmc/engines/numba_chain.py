"""The loop of the CPU engine: one numba function that advances a chain over many transitions.

It is compiled once per machine and cached on disk, for all models.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.cgutils import get_null_value
from numba.extending import intrinsic

from pmm_mcmc.engines import contract, numba_adjusted, numba_random, numba_step
from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.engines.numba_adjusted import propose
from pmm_mcmc.engines.numba_random import fill_normals, start_stream, uniform
from pmm_mcmc.engines.numba_step import (
    Functions,
    NoisePath,
    Space,
    StepLength,
    attempt,
    copy,
    drift,
    flow,
    inlined,
    inner,
    place,
)
from pmm_mcmc.langevin import flows, methods, midpoints, transitions
from pmm_mcmc.langevin.flows import select
from pmm_mcmc.langevin.methods import OVERDAMPED, Scheme
from pmm_mcmc.langevin.transitions import (
    DIVERGENCE,
    MOST_REFINEMENTS,
    SUBSTEPS,
    advanced_persistent,
    build_limits,
    refreshed,
)
from pmm_mcmc.model import native

__all__ = ["evaluate", "memory_for", "run"]

# Each substep of a refined step has a random stream of its own: this odd number (2^64 over the golden ratio) times the
# substep's number changes the first word of the key.
_KEY_OF_SUBSTEP = np.uint64(0x9E3779B97F4A7C15)
_limits = build_limits(np, select)
_limit = inner(_limits.limit)
_accepted = inner(_limits.accepted)
_rejected = inner(_limits.rejected)
_refined = inner(_limits.refined)


def _fingerprint() -> str:
    """Return a hash of the files of all that the loop calls: numba's cache key covers this file alone."""
    of_engine = contract, numba_random, numba_step, numba_adjusted, sys.modules[__name__]
    modules = (flows, midpoints, transitions, methods, native, *of_engine)
    return hashlib.sha256(b"".join(inspect.getsource(module).encode() for module in modules)).hexdigest()


class _Chain(NamedTuple):
    """Views of the state of a chain (:mod:`pmm_mcmc.engines.contract`), all of it, its evaluation, and its key."""

    u: Any
    v: Any
    b: Any
    evaluated: Any
    state: Any
    evaluation: Any
    key: Any


@intrinsic
def _uncounted(typingctx, array):
    """Return an array without its count of references, which would take longer than a transition of a small model."""

    def codegen(context, builder, signature, args):
        view = context.make_array(array)(context, builder, args[0])
        view.meminfo = get_null_value(view.meminfo.type)
        view.parent = get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), codegen


def memory_for(d: int, width: int) -> np.ndarray:
    """Return what :func:`run` computes in, for chains of ``d`` coordinates with evaluations of a width."""
    return np.zeros(23 * d + 2 * width + 4)


@inlined
def _space(memory, d, width, has_velocity):
    """Return arrays in the memory of :func:`memory_for`."""
    rows = memory[: 23 * d].reshape(23, d)
    wide = memory[23 * d : -4].reshape(2, width)
    stream = memory[-4:].view(np.uint64)
    proposal = (rows[0], rows[1], rows[2], wide[0], rows[3])
    between = (rows[4], rows[5], rows[6], wide[1], rows[7])
    noise_path = NoisePath(rows[8], rows[9], rows[10], rows[11])
    w = memory[12 * d : 14 * d]
    w[:] = 0.0
    random = stream, w if has_velocity else w[d:], w, memory[14 * d : 16 * d]
    work = (rows[16], rows[17], rows[18], (rows[19], rows[20]))
    return Space(proposal, between, noise_path, rows[21:], random, work)


@inlined
def _adjusted(functions, parameters, kernel, coordinates, chain, space):
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
        for j in range(d):
            v[j] = refreshed(v[j], normals[j], retained)
    persistent = advanced_persistent(state[4 * d + 1])
    begin = (u, v, b, evaluated, state[4 * d])
    good, first_ratio, ratio, lp_new, n_grad, substeps = propose(
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


@inlined
def _unadjusted(functions, parameters, kernel, coordinates, chain, transition, flows, space):
    """Make one transition of an unadjusted method: a step, refined where it fails or is too steep.

    It is refined by shorter and shorter substeps along the same noise path, until all are stable.  If they fail too,
    the chain restarts at the evaluated point.  Returns acceptance, gradients, whether the chain restarted, whether the
    step was refined, and whether the model failed.  The last number of the state is the factor of the step; ``flows``
    are that of the whole step and that of one of its cells.
    """
    alpha, friction, K, threshold, threshold_of_substep, steepest, tolerance = parameters
    u, v, b, evaluated, state, evaluation, key = chain
    u_new, v_new, new_b, new_evaluation, y = space.proposal
    sub_u, sub_v, sub_b, _, sub_evaluated = space.between
    noise_path = space.noise_path
    d = u.size
    has_velocity = kernel.dynamics != OVERDAMPED
    factor = state[4 * d + 1]
    step = alpha * factor
    step_flow, cell_flow = flows
    good = False
    by_model = False
    lp = 0.0
    n_grad = 0
    remaining = 0.0  # nothing is known yet of the noise path
    substeps = 1
    while True:
        length = step / substeps
        limit = _limit(steepest, substeps / factor, has_velocity)
        copy(u, sub_u)
        copy(v, sub_v)
        copy(b, sub_b)
        copy(evaluated, sub_evaluated)
        lp = state[4 * d]
        for i in range(substeps):
            if substeps > 1:
                key_of_substep = key[0] ^ (np.uint64(substeps + i) * _KEY_OF_SUBSTEP)
                start_stream(space.random[0], key_of_substep, key[1], np.uint64(transition))
                remaining = step - i * length
            lengths = StepLength(length, remaining, threshold, limit, step_flow, cell_flow)
            begin = sub_u, sub_v, sub_b, sub_evaluated, lp
            good, by_model, lp, n_evaluations = attempt(
                functions, parameters, kernel, coordinates, lengths, begin, space
            )
            n_grad += n_evaluations
            if not good:
                break
            if i + 1 < substeps:
                copy(u_new, sub_u)
                copy(v_new, sub_v)
                copy(new_b, sub_b)
                copy(y, sub_evaluated)
        if good or substeps == SUBSTEPS**MOST_REFINEMENTS:
            break
        if substeps == 1:
            copy(noise_path.u, space.step_noise[0])
            copy(noise_path.v, space.step_noise[1])
            threshold = threshold_of_substep
        copy(space.step_noise[0], noise_path.known_u)
        copy(space.step_noise[1], noise_path.known_v)
        substeps *= SUBSTEPS
        step_flow = flow(kernel.dynamics, step / substeps, friction)
        cell_flow = flow(kernel.dynamics, step / substeps / K, friction)
    if good:
        copy(u_new, u)
        copy(v_new, v)
        copy(new_b, b)
        copy(y, evaluated)
        copy(new_evaluation, evaluation)
        # In warm-up, keep the shorter step until the next fit: it comes as far as substeps of a long one.
        adapts = substeps > 1 and tolerance > 0.0
        state[4 * d] = lp
        state[4 * d + 1] = _refined(factor) if adapts else _accepted(factor)
    else:
        # Restart at the evaluated point, which costs no gradient, with a fresh velocity and a shorter step.
        copy(evaluated, u)
        if has_velocity:
            fill_normals(space.random[0], v)
        state[4 * d + 1] = _rejected(factor)
    return 1.0 if good else 0.0, n_grad, not good, good and substeps > 1, by_model and not good


@inlined
def run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, out):
    """Advance one chain, its state, evaluation, key and memory, by ``thin`` transitions a draw; fill in the chunk."""
    state, evaluation, key, memory = chain
    d = coordinates[0].size
    evaluated = state[3 * d : 4 * d]
    views = _Chain(state[:d], state[d : 2 * d], state[2 * d : 3 * d], evaluated, state, evaluation, key)
    space = _space(memory, d, evaluation.size, kernel.dynamics != OVERDAMPED)
    transition = first_transition
    step = 0.0
    step_flow = flow(kernel.dynamics, parameters.alpha, parameters.friction)
    cell_flow = step_flow
    for row in range(out.lp.size):
        n_grad = 0
        unstable = 0
        refined = 0
        model_failures = 0
        accept = 0.0
        for _ in range(thin):
            start_stream(space.random[0], key[0], key[1], np.uint64(transition))
            if kernel.scheme == Scheme.GHMC or kernel.scheme == Scheme.MALA:
                acceptance, gradients, failed, repeated = _adjusted(
                    functions, parameters, kernel, coordinates, views, space
                )
            else:
                if step != parameters.alpha * state[4 * d + 1]:
                    step = parameters.alpha * state[4 * d + 1]
                    step_flow = flow(kernel.dynamics, step, parameters.friction)
                    cell_flow = flow(kernel.dynamics, step / parameters.K, parameters.friction)
                flows = (step_flow, cell_flow)
                acceptance, gradients, failed, repeated, by_model = _unadjusted(
                    functions, parameters, kernel, coordinates, views, transition, flows, space
                )
                model_failures += by_model
            transition += 1
            accept += acceptance
            n_grad += gradients
            unstable += failed
            refined += repeated

        place(coordinates, evaluated, out.position[row])
        copy(evaluation, out.evaluation[row])
        out.lp[row] = state[4 * d]
        if evaluation.size > d:  # the last entry of the evaluation is the log determinant of the map from z to x
            out.lp[row] -= evaluation[3 * d]
        if row < len(out.state):
            copy(state, out.state[row])
        out.n_grad[row] = n_grad
        out.unstable[row] = unstable
        out.refined[row] = refined
        out.accept[row] = accept / thin
        out.model_failures[row] = model_failures


def _cached(sources: str) -> tuple[Any, Any]:
    """Return :func:`evaluate` and :func:`run`, cached on disk under a key that contains ``sources``.

    Why a closure: numba's cache key contains the pickled closure variables, and this is the only way to add to it.
    Without ``sources``, a change in another file would run the old machine code (a compiled function as second
    closure variable would notice, but pickles differently in each process and would defeat the cache).
    """

    @numba.njit(cache=True, nogil=True)
    def evaluate(function, table, dynamics, coordinates, states, evaluations):
        """Evaluate at each ``u``; make it the evaluated point and its drift the base drift; fill in the evaluations."""
        sources  # noqa: B018
        d = coordinates[0].size
        scratch = (np.empty(d), np.empty(d))
        for i in range(len(states)):
            state = states[i]
            u = state[:d]
            b = state[2 * d : 3 * d]
            state[4 * d] = drift(function, table, dynamics, u, coordinates, scratch, evaluations[i], b)
            copy(u, state[3 * d : 4 * d])

    @numba.njit(cache=True, nogil=True)
    def run(functions, parameters, kernel, coordinates, chains, first_transition, thin, out):
        """Advance chains one after the other, each into its rows of ``out``.

        ``chains`` are their states, evaluations and keys, and memory of :func:`memory_for`.
        """
        sources  # noqa: B018
        states, evaluations, keys, memory = chains
        joint, joint_table, midpoint, midpoint_table = functions
        functions = Functions(joint, _uncounted(joint_table), midpoint, _uncounted(midpoint_table))
        coordinates = (_uncounted(coordinates[0]), _uncounted(coordinates[1]))
        for i in range(len(states)):
            chain = (_uncounted(states[i]), _uncounted(evaluations[i]), _uncounted(keys[i]), _uncounted(memory))
            chain_out = Chunk(
                out.position[i], out.evaluation[i], out.lp[i], out.accept[i], out.n_grad[i], out.unstable[i],
                out.refined[i], out.model_failures[i], out.state[i],
            )  # fmt: skip
            run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, chain_out)

    return evaluate, run


evaluate, run = _cached(_fingerprint())
