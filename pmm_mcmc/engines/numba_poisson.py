"""The unadjusted methods, compiled by numba: midpoints along a path of the noise, the step, and its refinement.

From top to bottom: how a step's noise is drawn, its midpoints, the step and whether it is stable, and a transition of a
chain, which takes a step that is not in shorter ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.engines.numba_shared import copy, drift, fill_normals, flow, inlined, inner, start_stream, uniform
from pmm_mcmc.langevin.flows import select
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight, inverse_probability, next_cell, one_cell
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
    MOST_REFINEMENTS,
    SUBSTEPS,
    bridged,
    build_gain,
    build_limits,
    end,
    gradient_change,
    interpolate,
    interpolate_velocity,
    noise,
    path,
    potential_rise,
)

# Each substep of a refined step has a random stream of its own: this odd number (2^64 over the golden ratio) times the
# substep's number changes the first word of the key.
_KEY_OF_SUBSTEP = np.uint64(0x9E3779B97F4A7C15)
_gain = inner(build_gain(select))
_limits = build_limits(np, select)
_curvature = inner(_limits.curvature)
_limit = inner(_limits.limit)
_accepted = inner(_limits.accepted)
_rejected = inner(_limits.rejected)
_refined = inner(_limits.refined)


class StepLength(NamedTuple):
    """The length of one step and what follows from it."""

    step: Any
    remaining: Any  # time to the end of a noise path whose noise is known; 0 where it is not
    threshold: Any
    steepest: Any
    step_flow: Any
    cell_flow: Any  # over one of its cells


@inner
def _extend(random, remaining, dynamics, friction, gap, length, noise_path):
    """Draw the noise over a gap of some ``length`` and extend the noise path of the step by it, in place.

    ``remaining`` is the time to the end of a path whose noise is known; 0 where nothing is known.
    """
    stream, normals, w, gap_normals = random
    mu, mv, known_u, known_v = noise_path
    d = mu.size
    fill_normals(stream, normals)
    if remaining == 0.0:
        for j in range(d):
            nu, nv = noise(w[j], w[d + j], gap)
            mu[j], mv[j] = path(mu[j], mv[j], nu, nv, gap)
        return
    time_beyond = remaining - length
    if time_beyond < 1e-9 * remaining:
        for j in range(d):
            mu[j], mv[j] = path(mu[j], mv[j], known_u[j], known_v[j], gap)
        return
    copy(w, gap_normals)
    fill_normals(stream, normals)
    beyond = flow(dynamics, time_beyond, friction)
    gain = _gain(gap, beyond, flow(dynamics, remaining, friction))
    for j in range(d):
        nu, nv = noise(gap_normals[j], gap_normals[d + j], gap)
        after_u, after_v = noise(w[j], w[d + j], beyond)
        nu, nv, known_u[j], known_v[j] = bridged(nu, nv, after_u, after_v, known_u[j], known_v[j], beyond, gain)
        mu[j], mv[j] = path(mu[j], mv[j], nu, nv, gap)


@inner
def _next_midpoint(stream, kernel, K, step, reached, cell):
    """Return the time of the midpoint after the one ``reached`` in ``cell`` (-1 at first), and its cell.

    The time is negative where no midpoint is left.
    """
    scheme, _, option, offset, power = kernel
    if scheme != Scheme.CELLS:
        return -1.0 if reached > 0.0 else step * uniform(stream), cell
    if option == 1:
        cell = next_cell(cell, uniform(stream), K)
    elif cell < 0.0:
        cell = one_cell(uniform(stream), K, power)
    else:
        return -1.0, cell
    return step * (cell + offset) / K if cell < K else -1.0, cell


@inlined
def _midpoints(functions, parameters, kernel, coordinates, lengths, begin, space):
    """Make the noise path of a step, with its midpoints in order of time (steps 1 to 4 of the paper).

    ``wu`` and ``wv`` are the weights of a midpoint's correction.  Arguments are those of :func:`_attempt`.  Returns
    whether all values are finite, the log density at the last midpoint, the largest curvature, and gradients spent.
    """
    _, _, midpoint, midpoint_table = functions
    scheme, dynamics, _, _, power = kernel
    step, remaining, _, _, _, cell_flow = lengths
    u, v, b, evaluated, _ = begin
    _, _, new_b, new_evaluation, y = space.proposal
    mu, mv, _, _ = space.noise_path
    cu, cv, v_mid, scratch = space.work
    _, friction, K, _, _, _, _ = parameters
    d = u.size
    stiffness = 1.0 if dynamics == HARMONIC else 0.0
    base = 0.0 if scheme == Scheme.CONTINUOUS else 1.0
    mu[:] = 0.0
    mv[:] = 0.0
    cu[:] = 0.0
    cv[:] = 0.0
    reached = 0.0
    finite = True
    cell = -1.0
    lp_mid = math.nan
    steep = 0.0
    n_grad = 0
    while True:
        time, cell = _next_midpoint(space.random[0], kernel, K, step, reached, cell)
        gap_end = time if time >= 0.0 else step
        if time != 0.0:
            gap = flow(dynamics, gap_end - reached, friction)
            left = remaining - reached if remaining > 0.0 else 0.0
            _extend(space.random, left, dynamics, friction, gap, gap_end - reached, space.noise_path)
        if time < 0.0:
            return finite, lp_mid, steep, n_grad
        if time > 0.0:
            if finite:
                flow_to_midpoint = flow(dynamics, time, friction)
                for j in range(d):
                    y[j] = interpolate(u[j], v[j], b[j], mu[j], flow_to_midpoint)
                    v_mid[j] = interpolate_velocity(u[j], v[j], b[j], mv[j], flow_to_midpoint)
                lp_mid = drift(midpoint, midpoint_table, dynamics, y, coordinates, scratch, new_evaluation, new_b)
                # After a non-finite value no more gradients are needed, but the noise path still is.
                finite = not math.isnan(lp_mid)
                n_grad += 1
                if scheme == Scheme.CELLS:
                    flow_to_end = flow(dynamics, step * (K - 1 - cell) / K, friction)
                    wu, wv = cell_weight(flow_to_end, cell_flow, inverse_probability(cell, K, power))
                else:
                    flow_to_end = flow(dynamics, step - time, friction)
                    wu, wv = continuous_weight(flow_to_end, step, dynamics != OVERDAMPED)
                change_square = 0.0
                shift_square = 0.0
                product = 0.0
                for j in range(d):
                    cu[j] += wu * (new_b[j] - base * b[j])
                    cv[j] += wv * (new_b[j] - base * b[j])
                    shift = y[j] - evaluated[j]
                    change = gradient_change(y[j], evaluated[j], new_b[j], b[j], stiffness)
                    change_square += change * change
                    shift_square += shift * shift
                    product += change * shift
                if time > EARLIEST * step:
                    steep = max(steep, _curvature(change_square, shift_square, product, stiffness))
            reached = time


@inner
def _is_near(bad, u, threshold):
    """Return whether a stable step may reach a non-finite value, which makes it the model's failure."""
    rise = 0.0
    for j in range(u.size):
        rise += 0.5 * (bad[j] * bad[j] - u[j] * u[j])
    return rise <= threshold


@inner
def _attempt(functions, parameters, kernel, coordinates, lengths, begin, space):
    """Take one step from ``begin`` and fill the proposal, by the equations of :mod:`pmm_mcmc.langevin.transitions`.

    ``mu`` and ``mv`` are the noise path ``M`` there, ``y`` and ``v_mid`` the state at a midpoint, ``cu`` and ``cv`` the
    sum of the corrections.

    Parameters
    ----------
    functions, parameters, kernel, lengths, space
        :class:`Functions`, :class:`pmm_mcmc.engines.contract.Parameters`, :class:`pmm_mcmc.langevin.methods.Kernel`,
        :class:`StepLength`, :class:`Space`.
    coordinates, begin
        Centre and scale of the affine map; position, velocity, base drift, evaluated point and log density there.

    Returns
    -------
    good, model_failure, lp, n_grad
        Whether the step is accepted; if not, whether by the model's failure; the log density; gradients spent.
    """
    joint, joint_table, _, _ = functions
    scheme, dynamics, _, _, _ = kernel
    u, v, b, evaluated, lp = begin
    u_new, v_new, new_b, new_evaluation, y = space.proposal
    cu, cv, v_mid, scratch = space.work
    mu = space.noise_path.u
    mv = space.noise_path.v
    stiffness = 1.0 if dynamics == HARMONIC else 0.0
    base = 0.0 if scheme == Scheme.CONTINUOUS else 1.0
    finite, lp_mid, steep, n_grad = _midpoints(functions, parameters, kernel, coordinates, lengths, begin, space)
    # End point (step 5); the randomised midpoint method omits the drift at the start.
    if not finite:
        return False, _is_near(y, u, lengths.threshold), lp_mid, n_grad
    for j in range(u.size):
        u_new[j], v_new[j] = end(u[j], v[j], base * b[j], mu[j], mv[j], cu[j], cv[j], lengths.step_flow)
    if scheme == Scheme.RECYCLED:
        lp_new = lp_mid
    else:
        lp_new = drift(joint, joint_table, dynamics, u_new, coordinates, scratch, new_evaluation, new_b)
        n_grad += 1
        if math.isnan(lp_new):
            return False, _is_near(u_new, u, lengths.threshold), lp_new, n_grad
    # Energies are compared at times at which position and velocity are both known.  The recycled scheme has no log
    # density at the start of its step: it is extrapolated from the evaluated point, to second order.
    rise = lp - lp_new
    motion = 0.0
    for j in range(u.size):
        velocity = v_new[j]
        if scheme == Scheme.RECYCLED:
            velocity = v_mid[j]
            rise -= potential_rise(u[j], evaluated[j], b[j], stiffness)
        rise += 0.5 * (velocity * velocity - v[j] * v[j])
        motion += 0.5 * (velocity * velocity + v[j] * v[j])
        finite = finite and math.isfinite(u_new[j] + v_new[j])
    if scheme != Scheme.RECYCLED:
        copy(u_new, y)
    # Comparisons with NaN are false.
    stable = rise <= lengths.threshold + parameters.tolerance * motion and steep <= lengths.steepest
    return finite and stable, False, lp_new, n_grad


@inlined
def unadjusted(functions, parameters, kernel, coordinates, chain, transition, flows, space):
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
            good, by_model, lp, n_evaluations = _attempt(
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
