"""The loop of the CPU engine: one numba function that advances a chain over all its transitions.

It is compiled once per machine and cached on disk, for every model.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from typing import Any

import numba
import numpy as np

from pmm_mcmc.engines import numba_random, numba_step
from pmm_mcmc.engines.numba_random import fill_normals, start_stream, uniform
from pmm_mcmc.engines.numba_step import attempt, drift, flow, place
from pmm_mcmc.langevin import flows, methods, midpoints, transitions
from pmm_mcmc.langevin.flows import select
from pmm_mcmc.langevin.methods import OVERDAMPED, Scheme
from pmm_mcmc.langevin.transitions import MOST_REFINEMENTS, SUBSTEPS, build_limits, mala_log_ratio

__all__ = ["evaluate", "run"]

# Every part of a step has a stream of its own.
_OF_PART = np.uint64(0x9E3779B97F4A7C15)
_limits = build_limits(np, select)
_limit = numba.njit(_limits.limit)
_accepted, _rejected = numba.njit(_limits.accepted), numba.njit(_limits.rejected)


def _fingerprint() -> str:
    # numba looks only at the file of the function that it caches: the others it is made of must be in the key too.
    parts = (flows, midpoints, transitions, methods, numba_random, numba_step, sys.modules[__name__])
    return hashlib.sha256(b"".join(inspect.getsource(part).encode() for part in parts)).hexdigest()


@numba.njit(nogil=True)
def run_one(
    joint,
    joint_table,
    gradient_only,
    gradient_table,
    numbers,
    kernel,
    coordinates,
    gradient,
    state,
    key,
    first,
    thin,
    out,
):
    """Advance one chain by ``thin`` transitions for each row of ``out``.

    ``state`` and ``gradient`` (what the density said at the evaluated point) are updated in place; ``first`` numbers
    the first transition. A step that fails, or along which the curvature is above ``steepest``, is taken again in
    parts, along the same path of the noise.
    """
    alpha, friction, K, threshold, threshold_of_part, steepest, tolerance = numbers
    scheme, kind = kernel[0], kernel[1]
    position_out, gradient_out, lp_out, accept_out, counts_out = out
    n_grad_out, unstable_out, redone_out, model_failures_out, state_out = counts_out
    d = coordinates[0].size
    u, v, b, evaluated = state[:d], state[d : 2 * d], state[2 * d : 3 * d], state[3 * d : 4 * d]
    path_noise, of_step, known = (np.empty(d), np.empty(d)), (np.empty(d), np.empty(d)), (np.empty(d), np.empty(d))
    y, new_gradient, new_b = np.empty(d), np.empty(gradient.size), np.empty(d)
    scratch = (np.empty(d), np.empty(d))
    u_new, v_new, w = np.empty(d), np.zeros(d), np.empty(2 * d)
    at_u, at_v, at_b, at_evaluated = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    stream = np.empty(4, np.uint64)
    has_velocity = kind != OVERDAMPED
    # The recycled scheme draws its midpoints: they want the log density, others' midpoints do without.
    middle, middle_table = gradient_only, gradient_table
    if scheme == Scheme.RECYCLED:
        middle, middle_table = joint, joint_table
    if not has_velocity:
        w[:d] = 0.0
    normals = w if has_velocity else w[d:]
    draw = stream, normals, w, np.empty(2 * d)
    work, found = (np.empty(d), np.empty(d), np.empty(d), scratch), (u_new, v_new, new_b, new_gradient, y)
    few = friction, K, tolerance
    transition = first
    step, whole, cell_flow = 0.0, flow(kind, alpha, friction), flow(kind, alpha, friction)

    for row in range(lp_out.size):
        n_grad, unstable, refined, model_failures, accept = 0, 0, 0, 0, 0.0
        for _ in range(thin):
            start_stream(stream, key[0], key[1], np.uint64(transition))
            transition += 1
            lp, shorter = state[4 * d], state[4 * d + 1]
            if step != alpha * state[4 * d + 1]:
                step = alpha * state[4 * d + 1]
                whole = flow(kind, step, friction)
                cell_flow = flow(kind, step / K, friction)

            if scheme == Scheme.MALA:
                fill_normals(stream, normals)
                for j in range(d):
                    u_new[j] = u[j] + step * b[j] + whole.n_uu * w[d + j]
                lp_new = drift(joint, joint_table, kind, u_new, coordinates, scratch, new_gradient, new_b)
                n_grad += 1
                log_ratio = lp_new - lp
                for j in range(d):
                    log_ratio += mala_log_ratio(u[j], b[j], u_new[j], new_b[j], step)
                if math.isnan(log_ratio):
                    unstable += 1
                    model_failures += 1
                    continue
                accept += min(1.0, math.exp(min(log_ratio, 0.0)))
                if math.log1p(-uniform(stream)) < log_ratio:
                    u[:], b[:], gradient[:], state[4 * d] = u_new, new_b, new_gradient, lp_new
                    evaluated[:] = u
                continue

            limit = _limit(steepest, 1.0 / shorter, has_velocity)
            good, by_model, lp_new, spent = attempt(
                joint, joint_table, middle, middle_table, few, kernel, coordinates,
                (step, 0.0, threshold, limit, whole, cell_flow), (u, v, b, evaluated, lp), found, path_noise, known,
                draw, work,
            )  # fmt: skip
            n_grad, parts = n_grad + spent, 1
            if not good:
                of_step[0][:], of_step[1][:] = path_noise
            while not good and parts < SUBSTEPS**MOST_REFINEMENTS:
                # Again in parts: where the whole goes wrong, they may not.
                parts *= SUBSTEPS
                length, limit = step / parts, _limit(steepest, parts / shorter, has_velocity)
                flow_of_part, cell_of_part = flow(kind, length, friction), flow(kind, length / K, friction)
                at_u[:], at_v[:], at_b[:], at_evaluated[:], lp_new = u, v, b, evaluated, lp
                known[0][:], known[1][:] = of_step
                for i in range(parts):
                    start_stream(stream, key[0] ^ (np.uint64(parts + i) * _OF_PART), key[1], np.uint64(transition - 1))
                    good, by_model, lp_new, spent = attempt(
                        joint, joint_table, middle, middle_table, few, kernel, coordinates,
                        (length, step - i * length, threshold_of_part, limit, flow_of_part, cell_of_part),
                        (at_u, at_v, at_b, at_evaluated, lp_new), found, path_noise, known, draw, work,
                    )  # fmt: skip
                    n_grad += spent
                    if not good:
                        break
                    at_u[:], at_v[:], at_b[:], at_evaluated[:] = u_new, v_new, new_b, y
            refined += good and parts > 1

            if good:
                evaluated[:] = y
                u[:], v[:], b[:], gradient[:], state[4 * d] = u_new, v_new, new_b, new_gradient, lp_new
                state[4 * d + 1] = _accepted(state[4 * d + 1])
                accept += 1.0
            else:
                # Restart where the gradient was last known (free), with a fresh velocity and a shorter step.
                unstable += 1
                model_failures += by_model
                u[:] = evaluated
                if has_velocity:
                    fill_normals(stream, v)
                state[4 * d + 1] = _rejected(state[4 * d + 1])

        place(coordinates, evaluated, position_out[row])
        gradient_out[row], lp_out[row] = gradient, state[4 * d]
        if gradient.size > d:
            lp_out[row] -= gradient[3 * d]
        if row < len(state_out):
            state_out[row] = state
        n_grad_out[row], unstable_out[row], redone_out[row], accept_out[row] = n_grad, unstable, refined, accept / thin
        model_failures_out[row] = model_failures


def _cached(sources: str) -> tuple[Any, Any]:
    """Return :func:`evaluate` and :func:`run`, cached on disk under a key that holds ``sources``.

    They may close over nothing else: numba's key holds the pickles of what they do, and a compiled function's is
    another one in every process.
    """

    @numba.njit(cache=True, nogil=True)
    def evaluate(function, table, kind, coordinates, state, width):
        """Evaluate at ``u``, make it the evaluated point with its drift as base; return what the density says there."""
        sources  # noqa: B018
        d = coordinates[0].size
        gradient, scratch = np.empty(width), (np.empty(d), np.empty(d))
        state[4 * d] = drift(function, table, kind, state[:d], coordinates, scratch, gradient, state[2 * d : 3 * d])
        state[3 * d : 4 * d] = state[:d]
        return gradient

    @numba.njit(cache=True, nogil=True)
    def run(
        joint,
        joint_table,
        gradient_only,
        gradient_table,
        numbers,
        kernel,
        coordinates,
        gradient,
        state,
        keys,
        first,
        thin,
        out,
    ):
        """Advance chains, one after the other: :func:`run_one` of each row of ``gradient``, ``state`` and ``keys``."""
        sources  # noqa: B018
        position, slope, lp, accept, n_grad, unstable, refined, model_failures, states = out
        for i in range(len(state)):
            counts = (n_grad[i], unstable[i], refined[i], model_failures[i], states[i])
            own = (position[i], slope[i], lp[i], accept[i], counts)
            run_one(
                joint, joint_table, gradient_only, gradient_table, numbers, kernel, coordinates,
                gradient[i], state[i], keys[i], first, thin, own,
            )  # fmt: skip

    return evaluate, run


evaluate, run = _cached(_fingerprint())
