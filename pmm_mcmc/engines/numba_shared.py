"""What the compiled kernels share: memory of a chain, the model's C functions, coordinates, and the drift.

The model's log density and gradient are addresses of C functions of :data:`pmm_mcmc.model.native.SIGNATURE`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.cgutils import get_null_value
from numba.extending import intrinsic

from pmm_mcmc.langevin.flows import build_flows, select
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED
from pmm_mcmc.model.native import call_native

# Called from compiled code alone: without the ways in from Python and C, which LLVM would compile, too.
inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Part of its caller: each function of its own is optimised again by LLVM with all that it calls.
inlined = numba.njit(inline="always")
_flows = build_flows(np, select)
_overdamped, _underdamped, _harmonic = (inner(f) for f in (_flows.overdamped, _flows.underdamped, _flows.harmonic))


class Functions(NamedTuple):
    """The addresses of the model's C functions at end points and at midpoints, each with the table of its data.

    An engine has the functions themselves, and in place of the tables what makes them of the density's parameters.
    """

    joint: Any
    joint_table: Any
    midpoint: Any  # the gradient alone; the joint function where draws are midpoints (recycled scheme)
    midpoint_table: Any


class ChainViews(NamedTuple):
    """Views of the state of a chain (:mod:`pmm_mcmc.engines.contract`), all of it, its evaluation, and its key."""

    u: Any
    v: Any
    b: Any
    evaluated: Any
    state: Any
    evaluation: Any
    key: Any


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


def memory_for(d: int, width: int) -> np.ndarray:
    """Return what :func:`run` computes in, for chains of ``d`` coordinates with evaluations of a width."""
    return np.zeros(23 * d + 2 * width + 4)


@inlined
def space_in(memory, d, width, has_velocity):
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


@intrinsic
def uncounted(typingctx, array):
    """Return an array without its count of references, which would take longer than a transition of a small model."""

    def codegen(context, builder, signature, args):
        view = context.make_array(array)(context, builder, args[0])
        view.meminfo = get_null_value(view.meminfo.type)
        view.parent = get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), codegen


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
