"""Random numbers keyed by (seed, chain, transition), for compiled loops.

Every transition has its own stream: the generator SFC64 of Chris Doty-Humphrey (PractRand), seeded with two words for
seed and chain and one that counts transitions, and mixed for the twelve rounds that its author prescribes.  Draws
therefore depend only on the key, and not on chunk lengths, restarts or other chains.  Normals come from the ziggurat of
Marsaglia and Tsang (2000) with 256 layers, in NumPy's form: both are tested bit for bit against
``numpy.random.Generator(SFC64)``.
"""

from __future__ import annotations

import math

import numba
import numpy as np

__all__ = ["fill_normals", "normals_of_draws", "start_stream", "uniform"]

_LAYERS = 256  # of the ziggurat
_TAIL = 3.6541528853610088  # start of the tail
_AREA = _TAIL * math.exp(-0.5 * _TAIL**2) + math.sqrt(0.5 * math.pi) * math.erfc(_TAIL / math.sqrt(2.0))


def _ziggurat_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each layer the scale of 52 bits, below which of them a draw is inside, and the density at its edge."""
    edges = np.empty(_LAYERS)
    edges[-1] = _TAIL
    for i in range(_LAYERS - 2, 0, -1):
        height = math.exp(-0.5 * edges[i + 1] ** 2)
        edges[i] = math.sqrt(-2.0 * math.log(_AREA / edges[i + 1] + height))
    density = np.exp(-0.5 * edges**2)
    density[0] = 1.0
    base = _AREA / math.exp(-0.5 * _TAIL**2)
    scale = edges / 2.0**52
    scale[0] = base / 2.0**52
    inside = np.empty(_LAYERS, dtype=np.int64)
    inside[0] = int(_TAIL / base * 2.0**52)
    inside[1] = 0
    inside[2:] = (edges[1:-1] / edges[2:] * 2.0**52).astype(np.int64)
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
