"""What the compiled kernels share: random numbers, memory of a chain, the model, coordinates, and the drift.

The model's log density and gradient are addresses of C functions of :data:`pmm_mcmc.model.native.SIGNATURE`.

Random numbers are keyed by (seed, chain, transition). Every transition has its own stream: the generator SFC64 of
Chris Doty-Humphrey (PractRand), seeded with two words for seed and chain and one that counts transitions, and mixed
for the twelve rounds that its author prescribes. Draws therefore depend only on the key, and not on chunk lengths,
restarts or other chains. Normals come from the ziggurat of Marsaglia and Tsang (2000) with 256 layers, in NumPy's
form: both are tested bit for bit against ``numpy.random.Generator(SFC64)``.
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

_LAYERS = 256  # of the ziggurat
_TAIL = 3.6541528853610088  # start of the tail
_AREA = _TAIL * math.exp(-0.5 * _TAIL**2) + math.sqrt(0.5 * math.pi) * math.erfc(_TAIL / math.sqrt(2.0))


def _ziggurat_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each layer the scale of 52 bits, below which of them a draw is inside, and the density at its edge."""
    edges = np.zeros(_LAYERS)
    edges[-1] = _TAIL
    for i in range(_LAYERS - 2, 0, -1):
        height = math.exp(-0.5 * edges[i + 1] ** 2)
        edges[i] = math.sqrt(-2.0 * math.log(_AREA / edges[i + 1] + height))
    density = np.exp(-0.5 * edges**2)
    density[0] = 1.0
    base = _AREA / math.exp(-0.5 * _TAIL**2)
    scale = edges / 2.0**52
    scale[0] = base / 2.0**52
    of_layers = (edges[1:-1] / edges[2:] * 2.0**52).astype(np.int64)
    inside = np.concatenate([np.array([_TAIL / base * 2.0**52, 0.0]).astype(np.int64), of_layers])
    return scale, inside, density


_SCALE, _INSIDE, _DENSITY = _ziggurat_tables()


# Scalars, which are kept in registers.
@numba.njit(inline="always")
def _round(a, b, c, counter):
    """Return the output of a round of SFC64 and the state after it."""
    out = a + b + counter
    rotated = (c << np.uint64(24)) | (c >> np.uint64(40))
    return out, b ^ (b >> np.uint64(11)), c + (c << np.uint64(3)), rotated + out, counter + np.uint64(1)


@numba.njit
def start_stream(state, key0, key1, transition):
    """Set ``state`` (4 uint64) to the start of the stream of one transition of one chain."""
    a = np.uint64(key0)
    b = np.uint64(key1)
    c = np.uint64(transition)
    counter = np.uint64(1)
    for _ in range(12):
        _, a, b, c, counter = _round(a, b, c, counter)
    state[0] = a
    state[1] = b
    state[2] = c
    state[3] = counter


@numba.njit
def uniform(state):
    """Draw one number uniform in [0, 1), with 53 bits."""
    out, state[0], state[1], state[2], state[3] = _round(state[0], state[1], state[2], state[3])
    return np.int64(out >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@numba.njit
def _outside(state, layer, bits, x):
    """Return a draw outside the rectangle of its layer, as one in a hundred is; NaN to try again."""
    if layer == 0:
        while True:
            xx = -math.log1p(-uniform(state)) / _TAIL
            yy = -math.log1p(-uniform(state))
            if yy + yy > xx * xx:
                return -(_TAIL + xx) if (bits >> 8) & 1 else _TAIL + xx
    step = _DENSITY[layer - 1] - _DENSITY[layer]
    if step * uniform(state) + _DENSITY[layer] < math.exp(-0.5 * x * x):
        return x
    return math.nan


@numba.njit
def fill_normals(state, out):
    """Fill ``out`` with standard normals."""
    a = state[0]
    b = state[1]
    c = state[2]
    counter = state[3]
    i = 0
    while i < out.size:
        word, a, b, c, counter = _round(a, b, c, counter)
        layer = np.int64(word & np.uint64(0xFF))
        bits = np.int64((word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF))
        x = (1.0 - 2.0 * np.int64((word >> np.uint64(8)) & np.uint64(1))) * (bits * _SCALE[layer])
        if bits >= _INSIDE[layer]:
            state[0] = a
            state[1] = b
            state[2] = c
            state[3] = counter
            x = _outside(state, layer, bits, x)
            a = state[0]
            b = state[1]
            c = state[2]
            counter = state[3]
            if math.isnan(x):
                continue
        out[i] = x
        i += 1
    state[0] = a
    state[1] = b
    state[2] = c
    state[3] = counter


@numba.njit(cache=True)
def _fill_rows(keys, out):
    state = np.empty(4, dtype=np.uint64)
    for i in range(len(out)):
        start_stream(state, keys[i, 0], keys[i, 1], 0)
        fill_normals(state, out[i])


def normals_of_draws(position: np.ndarray, n_grad: np.ndarray, width: int) -> np.ndarray:
    """Return standard normals ``(..., width)`` for draws at positions ``(..., d)`` after so many gradients ``(...)``.

    They are keyed by both, and so independent of each other, and the same however a run is cut into chunks: a chain
    whose move was rejected is where it was, but has spent more gradients.
    """
    d = position.shape[-1]
    multipliers = np.random.SFC64(0).random_raw(d) | np.uint64(1)
    bits = np.ascontiguousarray(position, dtype=float).reshape(-1, d).view(np.uint64)
    keys = np.column_stack([(bits * multipliers).sum(axis=1, dtype=np.uint64), n_grad.ravel().astype(np.uint64)])
    out = np.empty((len(keys), width))
    _fill_rows(keys, out)
    return out.reshape(*position.shape[:-1], width)


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
