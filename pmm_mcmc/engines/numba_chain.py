"""The loop of the CPU engine: one numba function that advances a chain over many transitions.

It is compiled once per machine and cached on disk, for all models.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from typing import Any

import numba
import numpy as np

from pmm_mcmc.engines import contract, numba_adjusted, numba_random, numba_step
from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.engines.numba_adjusted import propose
from pmm_mcmc.engines.numba_random import fill_normals, start_stream, uniform
from pmm_mcmc.engines.numba_step import NoisePath, StepLength, attempt, copy, drift, flow, inner, place
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

__all__ = ["evaluate", "run"]

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


# Inlined, since each function of its own is optimised again by LLVM with all that it calls.  One function for both
# kinds of methods: arrays that are passed on for each transition are counted, which doubles the time of a small model.
@numba.njit(inline="always")
def run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, out):
    """Advance one chain by ``thin`` transitions for each draw, and fill in the chunk ``out``.

    ``chain`` is its state, evaluation and key; the last two numbers of a state are its log density, ``state[4 * d]``,
    and the factor of its step or persistent number, ``state[4 * d + 1]``.  An adjusted transition is a proposal,
    accepted or not.  An unadjusted step that fails, or meets a curvature above ``steepest``, is refined: taken again in
    shorter substeps along the same noise path.  If these fail too, the chain restarts at the evaluated point.
    """
    alpha, friction, K, threshold, threshold_of_substep, steepest, tolerance = parameters
    state, evaluation, key = chain
    scheme, dynamics, _, _, _ = kernel
    d = coordinates[0].size
    u = state[:d]
    v = state[d : 2 * d]
    b = state[2 * d : 3 * d]
    evaluated = state[3 * d : 4 * d]
    noise_path = NoisePath(np.empty(d), np.empty(d), np.empty(d), np.empty(d))
    step_noise_u = np.empty(d)
    step_noise_v = np.empty(d)
    y = np.empty(d)
    new_evaluation = np.empty(evaluation.size)
    new_b = np.empty(d)
    back_evaluation = np.empty(evaluation.size)
    scratch = (np.empty(d), np.empty(d))
    u_new = np.empty(d)
    v_new = np.zeros(d)
    w = np.empty(2 * d)
    # The state between two substeps; of adjusted methods the end of the way back.
    sub_u = np.empty(d)
    sub_v = np.empty(d)
    sub_b = np.empty(d)
    sub_evaluated = np.empty(d)
    stream = np.empty(4, np.uint64)
    has_velocity = dynamics != OVERDAMPED
    if not has_velocity:
        w[:d] = 0.0
    normals = w if has_velocity else w[d:]
    random = stream, normals, w, np.empty(2 * d)
    work = (np.empty(d), np.empty(d), np.empty(d), scratch)
    proposal = (u_new, v_new, new_b, new_evaluation, y)
    transition = first_transition
    step = 0.0
    step_flow = flow(dynamics, alpha, friction)
    cell_flow = flow(dynamics, alpha, friction)
    retained = math.exp(-friction * alpha)

    for row in range(out.lp.size):
        n_grad = 0
        unstable = 0
        refined = 0
        model_failures = 0
        accept = 0.0
        for _ in range(thin):
            start_stream(stream, key[0], key[1], np.uint64(transition))
            transition += 1
            if scheme == Scheme.GHMC:
                if not state[4 * d + 1] < 1.0:  # a chain at rest
                    state[4 * d + 1] = 2.0 * uniform(stream) - 1.0
                    fill_normals(stream, v)
                fill_normals(stream, sub_u)
                for j in range(d):
                    v[j] = refreshed(v[j], sub_u[j], retained)
                persistent = advanced_persistent(state[4 * d + 1])
                begin = (u, v, b, evaluated, state[4 * d])
                back = (sub_u, sub_v, sub_b, back_evaluation, sub_evaluated)
                good, first_ratio, ratio, lp_new, n_evaluations, substeps = propose(
                    functions, dynamics, alpha, persistent, coordinates, begin, proposal, back, scratch
                )
                n_grad += n_evaluations
                refined += good and substeps > 1
                if good:
                    copy(u_new, u)
                    copy(v_new, v)
                    copy(u_new, evaluated)
                    copy(new_b, b)
                    copy(new_evaluation, evaluation)
                    state[4 * d] = lp_new
                    state[4 * d + 1] = persistent / ratio
                else:
                    unstable += ratio < DIVERGENCE
                    state[4 * d + 1] = persistent
                    for j in range(d):
                        v[j] = -v[j]
                accept += 1.0 if good and substeps > 1 else min(1.0, first_ratio)
                continue

            lp = state[4 * d]
            shorter = state[4 * d + 1]
            if step != alpha * state[4 * d + 1]:
                step = alpha * state[4 * d + 1]
                step_flow = flow(dynamics, step, friction)
                cell_flow = flow(dynamics, step / K, friction)

            limit = _limit(steepest, 1.0 / shorter, has_velocity)
            lengths = StepLength(step, 0.0, threshold, limit, step_flow, cell_flow)
            begin = u, v, b, evaluated, lp
            good, by_model, lp_new, n_evaluations = attempt(
                functions, parameters, kernel, coordinates, lengths, begin, proposal, noise_path, random, work
            )
            n_grad += n_evaluations
            substeps = 1
            if not good:
                copy(noise_path.u, step_noise_u)
                copy(noise_path.v, step_noise_v)
            while not good and substeps < SUBSTEPS**MOST_REFINEMENTS:
                substeps *= SUBSTEPS
                length = step / substeps
                limit = _limit(steepest, substeps / shorter, has_velocity)
                flow_of_substep = flow(dynamics, length, friction)
                cell_of_substep = flow(dynamics, length / K, friction)
                copy(u, sub_u)
                copy(v, sub_v)
                copy(b, sub_b)
                copy(evaluated, sub_evaluated)
                lp_new = lp
                copy(step_noise_u, noise_path.known_u)
                copy(step_noise_v, noise_path.known_v)
                for i in range(substeps):
                    start_stream(
                        stream, key[0] ^ (np.uint64(substeps + i) * _KEY_OF_SUBSTEP), key[1], np.uint64(transition - 1)
                    )
                    lengths = StepLength(
                        length, step - i * length, threshold_of_substep, limit, flow_of_substep, cell_of_substep
                    )
                    begin = sub_u, sub_v, sub_b, sub_evaluated, lp_new
                    good, by_model, lp_new, n_evaluations = attempt(
                        functions, parameters, kernel, coordinates, lengths, begin, proposal, noise_path, random, work
                    )
                    n_grad += n_evaluations
                    if not good:
                        break
                    copy(u_new, sub_u)
                    copy(v_new, sub_v)
                    copy(new_b, sub_b)
                    copy(y, sub_evaluated)
            refined += good and substeps > 1

            if good:
                copy(u_new, u)
                copy(v_new, v)
                copy(new_b, b)
                copy(y, evaluated)
                copy(new_evaluation, evaluation)
                # In warm-up, keep the shorter step until the next fit: it comes as far as substeps of a long one.
                adapts = substeps > 1 and tolerance > 0.0
                state[4 * d] = lp_new
                state[4 * d + 1] = _refined(state[4 * d + 1]) if adapts else _accepted(state[4 * d + 1])
                accept += 1.0
            else:
                # Restart at the evaluated point, which costs no gradient, with a fresh velocity and a shorter step.
                unstable += 1
                model_failures += by_model
                copy(evaluated, u)
                if has_velocity:
                    fill_normals(stream, v)
                state[4 * d + 1] = _rejected(state[4 * d + 1])

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
        """Advance chains, their states, evaluations and keys, one after the other, each into its rows of ``out``."""
        sources  # noqa: B018
        states, evaluations, keys = chains
        for i in range(len(states)):
            chain = (states[i], evaluations[i], keys[i])
            chain_out = Chunk(
                out.position[i], out.evaluation[i], out.lp[i], out.accept[i], out.n_grad[i], out.unstable[i],
                out.refined[i], out.model_failures[i], out.state[i],
            )  # fmt: skip
            run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, chain_out)

    return evaluate, run


evaluate, run = _cached(_fingerprint())
