"""One step of a chain, compiled by numba: noise path, midpoints, end point, and whether it is good.

The model's log density and gradient come in as C function pointers of :data:`SIGNATURE`
(:mod:`pmm_mcmc.model.log_density`).
"""

from __future__ import annotations

import math

import numba
import numpy as np

from pmm_mcmc.engines.numba_random import fill_normals, uniform
from pmm_mcmc.langevin.flows import build_flows, select
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight, next_cell, one_cell, one_in
from pmm_mcmc.langevin.transitions import (
    TELLING,
    bridged,
    build_gain,
    build_limits,
    end,
    energy_ahead,
    fall,
    interpolate,
    interpolate_velocity,
    noise,
    path,
)

__all__ = ["attempt", "drift", "flow", "place"]

_flows = build_flows(np, select)
_overdamped, _underdamped, _harmonic = (numba.njit(f) for f in (_flows.overdamped, _flows.underdamped, _flows.harmonic))
_gain, _curvature = numba.njit(build_gain(select)), numba.njit(build_limits(np, select).curvature)


@numba.njit
def flow(kind, h, friction):
    """Return the flow of a dynamics over a time."""
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
def place(coordinates, y, z):
    """Fill ``z``; ``coordinates`` holds the affine parts of :class:`pmm_mcmc.coordinates.affine.Coordinates`."""
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
        z += centre


@numba.njit
def drift(function, table, kind, y, coordinates, scratch, gradient, b):
    """Evaluate the log density of ``y``; fill what the density says and the drift ``b``; NaN where not finite."""
    scale = coordinates[1]
    z, slope = scratch
    place(coordinates, y, z)
    lp = function(z.ctypes, gradient.ctypes, table.ctypes, y.size)
    slope[:] = gradient[: y.size]
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
    beyond = flow(kind, rest, friction)
    gain = _gain(gap, beyond, flow(kind, ahead, friction))
    for j in range(d):
        nu, nv = noise(after[j], after[d + j], gap)
        after_u, after_v = noise(w[j], w[d + j], beyond)
        nu, nv, known_u[j], known_v[j] = bridged(nu, nv, after_u, after_v, known_u[j], known_v[j], beyond, gain)
        mu[j], mv[j] = path(mu[j], mv[j], nu, nv, gap)


@numba.njit
def attempt(
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
    u, v, b, evaluated, lp = begin
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
            gap, at = flow(kind, time - reached, friction), flow(kind, time, friction)
            left = ahead - reached if ahead > 0.0 else 0.0
            _gather(draw, left, kind, friction, gap, time - reached, path_noise, known)
            if finite:
                for j in range(d):
                    y[j] = interpolate(u[j], v[j], b[j], mu[j], at)
                    v_mid[j] = interpolate_velocity(u[j], v[j], b[j], mv[j], at)
                lp_mid = drift(middle, middle_table, kind, y, coordinates, scratch, new_gradient, new_b)
                # After a value that is not finite no more gradients are wanted, but where the path leads to is.
                finite = not math.isnan(lp_mid)
                n_grad += 1
                if scheme == Scheme.CELLS:
                    rest = flow(kind, step * (K - 1 - cell) / K, friction)
                    wu, wv = cell_weight(rest, cell_flow, one_in(cell, K, power))
                else:
                    rest = flow(kind, step - time, friction)
                    wu, wv = continuous_weight(rest, step, has_velocity)
                rise, length, along = 0.0, 0.0, 0.0
                for j in range(d):
                    cu[j] += wu * (new_b[j] - base * b[j])
                    cv[j] += wv * (new_b[j] - base * b[j])
                    way, more = y[j] - evaluated[j], fall(y[j], evaluated[j], new_b[j], b[j], stiffness)
                    rise += more * more
                    length += way * way
                    along += more * way
                if time > TELLING * step:
                    steep = max(steep, _curvature(rise, length, along, stiffness))
            reached = time

    # The end point (step 5); the randomised midpoint method leaves the drift at the start out of it.
    gap = flow(kind, step - reached, friction)
    left = ahead - reached if ahead > 0.0 else 0.0
    _gather(draw, left, kind, friction, gap, step - reached, path_noise, known)
    if not finite:
        return False, _is_near(y, u, threshold), lp_mid, n_grad
    for j in range(d):
        u_new[j], v_new[j] = end(u[j], v[j], base * b[j], mu[j], mv[j], cu[j], cv[j], whole)
    if scheme == Scheme.RECYCLED:
        lp_new = lp_mid
    else:
        lp_new = drift(joint, joint_table, kind, u_new, coordinates, scratch, new_gradient, new_b)
        n_grad += 1
        if math.isnan(lp_new):
            return False, _is_near(u_new, u, threshold), lp_new, n_grad
    # Energies are compared at times at which position and velocity are both known.  The recycled scheme knows no log
    # density at the start of its step: it follows from that at the evaluated point, to second order in whitened
    # coordinates.
    rise, motion = lp - lp_new, 0.0
    for j in range(d):
        kinetic = v_new[j]
        if scheme == Scheme.RECYCLED:
            kinetic = v_mid[j]
            rise -= energy_ahead(u[j], evaluated[j], b[j], stiffness)
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
