"""One step of a chain, compiled by numba: noise path, midpoints, end point, and whether the step is accepted.

The model's log density and gradient are addresses of C functions of :data:`pmm_mcmc.model.native.SIGNATURE`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from pmm_mcmc.engines.numba_random import fill_normals, uniform
from pmm_mcmc.langevin.flows import build_flows, select
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight, inverse_probability, next_cell, one_cell
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
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
from pmm_mcmc.model.native import call_native

__all__ = [
    "Functions", "NoisePath", "Space", "StepLength", "attempt", "copy", "drift", "flow", "inlined", "inner", "place",
]  # fmt: skip

# Called from compiled code alone: without the ways in from Python and C, which LLVM would compile, too.
inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Part of its caller: each function of its own is optimised again by LLVM with all that it calls.
inlined = numba.njit(inline="always")
_flows = build_flows(np, select)
_overdamped, _underdamped, _harmonic = (inner(f) for f in (_flows.overdamped, _flows.underdamped, _flows.harmonic))
_gain = inner(build_gain(select))
_curvature = inner(build_limits(np, select).curvature)


class Functions(NamedTuple):
    """The addresses of the model's C functions at end points and at midpoints, each with the table of its data.

    An engine has the functions themselves, and in place of the tables what makes them of the density's parameters.
    """

    joint: Any
    joint_table: Any
    midpoint: Any  # the gradient alone; the joint function where draws are midpoints (recycled scheme)
    midpoint_table: Any


class StepLength(NamedTuple):
    """The length of one step and what follows from it."""

    step: Any
    remaining: Any  # time to the end of a noise path whose noise is known; 0 where it is not
    threshold: Any
    steepest: Any
    step_flow: Any
    cell_flow: Any  # over one of its cells


class NoisePath(NamedTuple):
    """Noise ``(d,)`` accumulated since the start of a step, and the known noise over the remaining path."""

    u: Any
    v: Any
    known_u: Any
    known_v: Any


class Space(NamedTuple):
    """Arrays ``(d,)`` that transitions compute in."""

    proposal: Any  # to be filled: position, velocity, base drift, evaluation, evaluated point
    between: Any  # the same between two substeps; of adjusted methods the end of the way back
    noise_path: Any  # NoisePath
    step_noise: Any  # that of position and velocity over a whole step, while it is refined
    # Stream of random numbers, normals to fill, these as (2 d,) for position and velocity (overdamped: zeros for one of
    # them), and a second array of that shape.
    random: Any
    work: Any  # corrections of position and velocity, velocity at the midpoint, and a pair


@inner
def flow(dynamics, h, friction):
    """Return the flow of a dynamics over a time."""
    if dynamics == OVERDAMPED:
        return _overdamped(h, friction)
    if dynamics == HARMONIC:
        return _harmonic(h, friction)
    return _underdamped(h, friction)


@inner
def copy(source, out):
    """Fill ``out`` from the start of ``source``.

    Slices are assigned nowhere: numba takes seconds for the message that their lengths differ.
    """
    for i in range(out.size):
        out[i] = source[i]


@inner
def _stretch(scale, v, out):
    """Fill ``out`` with ``(I + U diag(l - 1) U^T) v``; ``scale`` holds ``l`` in row 1 and ``U^T`` below."""
    projections = np.dot(scale[2:], v)
    for i in range(projections.size):
        projections[i] *= scale[1, i] - 1.0
    np.dot(scale[2:].T, projections, out)
    for i in range(v.size):
        out[i] += v[i]


@inner
def place(coordinates, y, z):
    """Fill ``z`` with the position of whitened ``y``; ``coordinates`` is ``(centre, scale)`` of the affine map."""
    centre, scale = coordinates
    if len(scale) == 1:
        for j in range(y.size):
            z[j] = centre[j] + scale[0, j] * y[j]
    elif len(scale) < y.size:
        _stretch(scale, y, z)
        for j in range(y.size):
            z[j] = centre[j] + scale[0, j] * z[j]
    else:
        np.dot(scale, y, z)
        for j in range(y.size):
            z[j] += centre[j]


@inner
def drift(function, table, dynamics, y, coordinates, scratch, evaluation, b):
    """Return the log density at whitened ``y``, NaN where not finite; fill ``evaluation`` and the drift ``b``."""
    scale = coordinates[1]
    z, slope = scratch
    place(coordinates, y, z)
    lp = call_native(function, z.ctypes.data, evaluation.ctypes.data, table.ctypes.data, y.size)
    copy(evaluation, slope)
    total = lp
    if len(scale) == 1:
        for j in range(y.size):
            b[j] = scale[0, j] * slope[j]
    elif len(scale) < y.size:
        for j in range(y.size):
            z[j] = scale[0, j] * slope[j]
        _stretch(scale, z, b)
    else:
        np.dot(scale.T, slope, b)
    for j in range(y.size):
        total += b[j]
        if dynamics == HARMONIC:
            b[j] += y[j]
    return lp if math.isfinite(total) else math.nan


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


@inner
def attempt(functions, parameters, kernel, coordinates, lengths, begin, space):
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
def _midpoints(functions, parameters, kernel, coordinates, lengths, begin, space):
    """Make the noise path of a step, with its midpoints in order of time (steps 1 to 4 of the paper).

    ``wu`` and ``wv`` are the weights of a midpoint's correction.  Arguments are those of :func:`attempt`.  Returns
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
