"""The loop of the CPU engine: one numba function that advances a chain over all its transitions.

It is compiled once per machine and cached on disk, for every model: the model's log density and gradient come in as C
function pointers of :data:`SIGNATURE` (:mod:`pmm_mcmc.logdensity`).
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from typing import Any

import numba
import numpy as np
from numba import types

from pmm_mcmc import coefficients, methods, midpoints, transitions
from pmm_mcmc.coefficients import build_flows, select
from pmm_mcmc.engines import random
from pmm_mcmc.engines.random import fill_normals, start_stream, uniform
from pmm_mcmc.methods import HARMONIC, OVERDAMPED, Scheme
from pmm_mcmc.midpoints import cell_weight, continuous_weight, next_cell, one_cell, one_in
from pmm_mcmc.noncentring import loops, saturation
from pmm_mcmc.noncentring.loops import place as place_sinks
from pmm_mcmc.noncentring.loops import pull_back as pull_back_sinks
from pmm_mcmc.transitions import (
    LEVELS,
    PARTS,
    TELLING,
    bridged,
    build_gain,
    build_limits,
    end,
    energy_ahead,
    fall,
    interpolate,
    interpolate_velocity,
    mala_log_ratio,
    noise,
    path,
)

__all__ = ["SIGNATURE", "evaluate", "run"]

_DOUBLES = types.CPointer(types.float64)
# (position, gradient out, table of data addresses and shapes, number of coordinates) -> log density, NaN on failure
SIGNATURE = types.float64(_DOUBLES, _DOUBLES, types.CPointer(types.int64), types.int64)

_flows = build_flows(np, select)
_overdamped, _underdamped, _harmonic = (numba.njit(f) for f in (_flows.overdamped, _flows.underdamped, _flows.harmonic))
# Every part of a step has a stream of its own.
_OF_PART = np.uint64(0x9E3779B97F4A7C15)
_limits, _gain = build_limits(np, select), numba.njit(build_gain(select))
_curvature, _limit = numba.njit(_limits.curvature), numba.njit(_limits.limit)
_accepted, _rejected = numba.njit(_limits.accepted), numba.njit(_limits.rejected)


@numba.njit
def _flow(kind, h, friction):
    if kind == OVERDAMPED:
        return _overdamped(h, friction)
    if kind == HARMONIC:
        return _harmonic(h, friction)
    return _underdamped(h, friction)


@numba.njit
def _stretch(scale, v, out):
    """Fill ``out = (I + U diag(l - 1) U^T) v``; ``scale`` holds ``l`` in row 1 and ``U^T`` below."""
    along = np.dot(scale[2:], v)
    for i in range(along.size):
        along[i] *= scale[1, i] - 1.0
    np.dot(scale[2:].T, along, out)
    out += v


@numba.njit
def _place(coordinates, y, x, work):
    """Fill ``x`` with the model's position; return what the log density of ``y`` has beyond that of ``x``.

    ``coordinates`` holds the parts of :class:`pmm_mcmc.coordinates.Coordinates`; ``work`` is filled for the funnels'
    :func:`pmm_mcmc.noncentring.loops.pull_back`.
    """
    centre, scale, funnels = coordinates
    if len(scale) == 1:
        for j in range(y.size):
            x[j] = centre[j] + scale[0, j] * y[j]
    elif len(scale) < y.size:
        _stretch(scale, y, x)
        for j in range(y.size):
            x[j] = centre[j] + scale[0, j] * x[j]
    else:
        np.dot(scale, y, x)
        x += centre
    return place_sinks(*funnels, x, work)


@numba.njit
def _drift(function, table, kind, y, coordinates, scratch, gradient, b):
    """Evaluate the log density of ``y``; fill the model's ``gradient`` and the drift ``b``; NaN where not finite."""
    _, scale, funnels = coordinates
    x, slope, work = scratch
    log_det = _place(coordinates, y, x, work)
    lp = function(x.ctypes, gradient.ctypes, table.ctypes, y.size) + log_det
    slope[:] = gradient
    pull_back_sinks(*funnels[:6], slope, work)
    total = lp
    if len(scale) == 1:
        for j in range(y.size):
            b[j] = scale[0, j] * slope[j]
    elif len(scale) < y.size:
        _stretch(scale, scale[0] * slope, b)
    else:
        np.dot(scale.T, slope, b)
    for j in range(y.size):
        total += b[j]
        if kind == HARMONIC:
            b[j] += y[j]
    return lp if math.isfinite(total) else math.nan


def _fingerprint() -> str:
    # numba looks only at the file of the function that it caches: the others it is made of must be in the key too.
    parts = (coefficients, midpoints, transitions, methods, random, saturation, loops, sys.modules[__name__])
    return hashlib.sha256(b"".join(inspect.getsource(part).encode() for part in parts)).hexdigest()


@numba.njit
def _gather(draw, ahead, kind, friction, gap, length, path_noise, known):
    """Draw the noise over a gap of some length and carry that of the step over it.

    ``ahead`` is the time to the end of the path, where its noise is ``known``; 0 where nothing is known.
    """
    stream, normals, w, after = draw
    mu, mv = path_noise
    known_u, known_v = known
    d = mu.size
    fill_normals(stream, normals)
    if ahead == 0.0:
        for j in range(d):
            nu, nv = noise(w[j], w[d + j], gap)
            mu[j], mv[j] = path(mu[j], mv[j], nu, nv, gap)
        return
    rest = ahead - length
    if rest < 1e-9 * ahead:
        for j in range(d):
            mu[j], mv[j] = path(mu[j], mv[j], known_u[j], known_v[j], gap)
        return
    after[:] = w
    fill_normals(stream, normals)
    beyond = _flow(kind, rest, friction)
    gain = _gain(gap, beyond, _flow(kind, ahead, friction))
    for j in range(d):
        nu, nv = noise(after[j], after[d + j], gap)
        after_u, after_v = noise(w[j], w[d + j], beyond)
        nu, nv, known_u[j], known_v[j] = bridged(nu, nv, after_u, after_v, known_u[j], known_v[j], beyond, gain)
        mu[j], mv[j] = path(mu[j], mv[j], nu, nv, gap)


@numba.njit
def _attempt(
    joint, joint_table, middle, middle_table, numbers, kernel, coordinates, lengths, begin, found, path_noise, known,
    draw, work,
):  # fmt: skip
    """Take one step from ``begin`` to ``found``; return if it is good, if not by the model's fault, lp, gradients.

    ``lengths`` holds the length of the step, what is left of a path whose noise is ``known`` at its end (0: it is not),
    by how much the energy may rise, how steep it may be, and flows over the step and over a cell.
    """
    friction, K, tolerance = numbers
    scheme, kind, option, offset, power = kernel
    step, ahead, threshold, steepest, whole, cell_flow = lengths
    u, v, b, anchor, lp = begin
    u_new, v_new, new_b, new_gradient, y = found
    mu, mv = path_noise
    cu, cv, v_mid, scratch = work
    stream = draw[0]
    d = u.size
    has_velocity, stiffness = kind != OVERDAMPED, 1.0 if kind == HARMONIC else 0.0
    base = 0.0 if scheme == Scheme.CONTINUOUS else 1.0
    # The noise path, the midpoints and their corrections, in order of time (steps 1 to 4).
    mu[:], mv[:], cu[:], cv[:] = 0.0, 0.0, 0.0, 0.0
    reached, finite, cell, lp_mid, steep, n_grad = 0.0, True, -1.0, math.nan, 0.0, 0
    while True:
        if scheme == Scheme.CONTINUOUS or scheme == Scheme.RECYCLED:
            if reached > 0.0:
                break
            time = step * uniform(stream)
        else:
            if option == 2:
                if cell >= 0.0:
                    break
                cell = one_cell(uniform(stream), K, power)
            else:
                cell = next_cell(cell, uniform(stream), K)
                if cell >= K:
                    break
            time = step * (cell + offset) / K
        if time > 0.0:
            gap, at = _flow(kind, time - reached, friction), _flow(kind, time, friction)
            left = ahead - reached if ahead > 0.0 else 0.0
            _gather(draw, left, kind, friction, gap, time - reached, path_noise, known)
            if finite:
                for j in range(d):
                    y[j] = interpolate(u[j], v[j], b[j], mu[j], at)
                    v_mid[j] = interpolate_velocity(u[j], v[j], b[j], mv[j], at)
                lp_mid = _drift(middle, middle_table, kind, y, coordinates, scratch, new_gradient, new_b)
                # After a value that is not finite no more gradients are wanted, but where the path leads to is.
                finite = not math.isnan(lp_mid)
                n_grad += 1
                if scheme == Scheme.CELLS:
                    rest = _flow(kind, step * (K - 1 - cell) / K, friction)
                    wu, wv = cell_weight(rest, cell_flow, one_in(cell, K, power))
                else:
                    rest = _flow(kind, step - time, friction)
                    wu, wv = continuous_weight(rest, step, has_velocity)
                rise, length, along = 0.0, 0.0, 0.0
                for j in range(d):
                    cu[j] += wu * (new_b[j] - base * b[j])
                    cv[j] += wv * (new_b[j] - base * b[j])
                    way, more = y[j] - anchor[j], fall(y[j], anchor[j], new_b[j], b[j], stiffness)
                    rise += more * more
                    length += way * way
                    along += more * way
                if time > TELLING * step:
                    steep = max(steep, _curvature(rise, length, along, stiffness))
            reached = time

    # The end point (step 5); the randomised midpoint method leaves the drift at the start out of it.
    gap = _flow(kind, step - reached, friction)
    left = ahead - reached if ahead > 0.0 else 0.0
    _gather(draw, left, kind, friction, gap, step - reached, path_noise, known)
    if not finite:
        return False, _is_near(y, u, threshold), lp_mid, n_grad
    for j in range(d):
        u_new[j], v_new[j] = end(u[j], v[j], base * b[j], mu[j], mv[j], cu[j], cv[j], whole)
    if scheme == Scheme.RECYCLED:
        lp_new = lp_mid
    else:
        lp_new = _drift(joint, joint_table, kind, u_new, coordinates, scratch, new_gradient, new_b)
        n_grad += 1
        if math.isnan(lp_new):
            return False, _is_near(u_new, u, threshold), lp_new, n_grad
    # Energies are compared at times at which position and velocity are both known.  The recycled scheme knows no log
    # density at the start of its step: it follows from that at the anchor, to second order in whitened coordinates.
    rise, motion = lp - lp_new, 0.0
    for j in range(d):
        kinetic = v_new[j]
        if scheme == Scheme.RECYCLED:
            kinetic = v_mid[j]
            rise -= energy_ahead(u[j], anchor[j], b[j], stiffness)
        rise += 0.5 * (kinetic * kinetic - v[j] * v[j])
        motion += 0.5 * (kinetic * kinetic + v[j] * v[j])
        finite = finite and math.isfinite(u_new[j] + v_new[j])
    if scheme != Scheme.RECYCLED:
        y[:] = u_new
    # False for NaN.
    return finite and rise <= threshold + tolerance * motion and steep <= steepest, False, lp_new, n_grad


@numba.njit
def _is_near(bad, u, threshold):
    """Whether a value that is not finite lies where a step that is not too long may well go: the model's failure."""
    rise = 0.0
    for j in range(u.size):
        rise += 0.5 * (bad[j] * bad[j] - u[j] * u[j])
    return rise <= threshold


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

    ``state`` and ``gradient`` (at the anchor) are updated in place; ``first`` numbers the first transition.
    A step that fails, or along which the curvature is above ``steepest``, is taken again in parts, along the same path
    of the noise.
    """
    alpha, friction, K, threshold, threshold_of_part, steepest, tolerance = numbers
    scheme, kind = kernel[0], kernel[1]
    position_out, gradient_out, lp_out, accept_out, counts_out = out
    n_grad_out, unstable_out, redone_out, model_failures_out, state_out = counts_out
    d = coordinates[0].size
    u, v, b, anchor = state[:d], state[d : 2 * d], state[2 * d : 3 * d], state[3 * d : 4 * d]
    path_noise, of_step, known = (np.empty(d), np.empty(d)), (np.empty(d), np.empty(d)), (np.empty(d), np.empty(d))
    y, new_gradient, new_b = np.empty(d), np.empty(d), np.empty(d)
    deep = np.empty((4, coordinates[2][0].size))
    scratch = (np.empty(d), np.empty(d), deep)
    u_new, v_new, w = np.empty(d), np.zeros(d), np.empty(2 * d)
    at_u, at_v, at_b, at_anchor = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
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
    step, whole, cell_flow = 0.0, _flow(kind, alpha, friction), _flow(kind, alpha, friction)

    for row in range(lp_out.size):
        n_grad, unstable, redone, model_failures, accept = 0, 0, 0, 0, 0.0
        for _ in range(thin):
            start_stream(stream, key[0], key[1], np.uint64(transition))
            transition += 1
            lp, shorter = state[4 * d], state[4 * d + 1]
            if step != alpha * state[4 * d + 1]:
                step = alpha * state[4 * d + 1]
                whole = _flow(kind, step, friction)
                cell_flow = _flow(kind, step / K, friction)

            if scheme == Scheme.MALA:
                fill_normals(stream, normals)
                for j in range(d):
                    u_new[j] = u[j] + step * b[j] + whole.n_uu * w[d + j]
                lp_new = _drift(joint, joint_table, kind, u_new, coordinates, scratch, new_gradient, new_b)
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
                    anchor[:] = u
                continue

            limit = _limit(steepest, 1.0 / shorter, has_velocity)
            good, by_model, lp_new, spent = _attempt(
                joint, joint_table, middle, middle_table, few, kernel, coordinates,
                (step, 0.0, threshold, limit, whole, cell_flow), (u, v, b, anchor, lp), found, path_noise, known,
                draw, work,
            )  # fmt: skip
            n_grad, parts = n_grad + spent, 1
            if not good:
                of_step[0][:], of_step[1][:] = path_noise
            while not good and parts < PARTS**LEVELS:
                # Again in parts: where the whole goes wrong, they may not.
                parts *= PARTS
                length, limit = step / parts, _limit(steepest, parts / shorter, has_velocity)
                flow_of_part, cell_of_part = _flow(kind, length, friction), _flow(kind, length / K, friction)
                at_u[:], at_v[:], at_b[:], at_anchor[:], lp_new = u, v, b, anchor, lp
                known[0][:], known[1][:] = of_step
                for i in range(parts):
                    start_stream(stream, key[0] ^ (np.uint64(parts + i) * _OF_PART), key[1], np.uint64(transition - 1))
                    good, by_model, lp_new, spent = _attempt(
                        joint, joint_table, middle, middle_table, few, kernel, coordinates,
                        (length, step - i * length, threshold_of_part, limit, flow_of_part, cell_of_part),
                        (at_u, at_v, at_b, at_anchor, lp_new), found, path_noise, known, draw, work,
                    )  # fmt: skip
                    n_grad += spent
                    if not good:
                        break
                    at_u[:], at_v[:], at_b[:], at_anchor[:] = u_new, v_new, new_b, y
            redone += good and parts > 1

            if good:
                anchor[:] = y
                u[:], v[:], b[:], gradient[:], state[4 * d] = u_new, v_new, new_b, new_gradient, lp_new
                state[4 * d + 1] = _accepted(state[4 * d + 1])
                accept += 1.0
            else:
                # Restart where the gradient was last known (free), with a fresh velocity and a shorter step.
                unstable += 1
                model_failures += by_model
                u[:] = anchor
                if has_velocity:
                    fill_normals(stream, v)
                state[4 * d + 1] = _rejected(state[4 * d + 1])

        log_det = _place(coordinates, anchor, position_out[row], deep)
        gradient_out[row], lp_out[row] = gradient, state[4 * d] - log_det
        if row < len(state_out):
            state_out[row] = state
        n_grad_out[row], unstable_out[row], redone_out[row], accept_out[row] = n_grad, unstable, redone, accept / thin
        model_failures_out[row] = model_failures


def _cached(sources: str) -> tuple[Any, Any]:
    """Return :func:`evaluate` and :func:`run`, cached on disk under a key that holds ``sources``.

    They may close over nothing else: numba's key holds the pickles of what they do, and a compiled function's is
    another one in every process.
    """

    @numba.njit(cache=True, nogil=True)
    def evaluate(function, table, kind, coordinates, state):
        """Evaluate at ``u``, make it the anchor with its drift as base; return the gradient (one evaluation)."""
        sources  # noqa: B018
        d = coordinates[0].size
        gradient, scratch = np.empty(d), (np.empty(d), np.empty(d), np.empty((4, coordinates[2][0].size)))
        state[4 * d] = _drift(function, table, kind, state[:d], coordinates, scratch, gradient, state[2 * d : 3 * d])
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
        position, slope, lp, accept, n_grad, unstable, redone, model_failures, states = out
        for i in range(len(state)):
            counts = (n_grad[i], unstable[i], redone[i], model_failures[i], states[i])
            own = (position[i], slope[i], lp[i], accept[i], counts)
            run_one(
                joint, joint_table, gradient_only, gradient_table, numbers, kernel, coordinates,
                gradient[i], state[i], keys[i], first, thin, own,
            )  # fmt: skip

    return evaluate, run


evaluate, run = _cached(_fingerprint())
