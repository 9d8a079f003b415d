"""What the kernels of a group of chains share, traced by JAX: random numbers, counts, and work for a few of them.

Random numbers are keyed by (seed, chain, transition). Two words of 32 bits stand for seed and chain, and every number
has its own counter within a transition. Its bits are the Threefry hash of (transition, counter) under these words.
Draws therefore depend only on the key, and not on chunk lengths, restarts or other chains.

Normals come from these bits by the transform of Box and Muller (1958), with power series for sine and cosine over half
a turn.  On a CPU this takes a fifth of the time of the inverse error function, which :mod:`jax.random` uses, and
saves a quarter to a half of the time of a transition without its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import threefry_2x32

# Coefficients of cos(pi x / 2) and sin(pi x / 2) / x in powers of x^2, the highest first, to 1e-17 for |x| <= 1.
_TERMS = range(22, -1, -1)
_SERIES = [(-1) ** (n // 2) * (0.5 * math.pi) ** n / math.factorial(n) for n in _TERMS]
_COS = _SERIES[::2]
_SIN = _SERIES[1::2]

# Blocks of ``1 + 2 d`` counters: each has one uniform number and the normals of a noise or a velocity.
_VELOCITY, END, MIDPOINT = range(3)
# Blocks of a step.  As many more follow for the noise of the remaining path, which substeps draw; and then those of
# each substep of a refined step.
_BLOCKS = 32


def words_of(keys: Array) -> Array:
    """Return the two words ``(g, 2)`` of chains from their keys ``(g, 2, 2)``: two words each for seed and chain."""
    return jax.vmap(threefry_2x32)(keys[:, 0], keys[:, 1])


class Keyed(NamedTuple):
    """Random numbers of one transition of a group of ``g`` chains.

    Attributes
    ----------
    words : (g, 2)
        Words for seed and chain.
    number
        Number of the transition.
    d, dtype
        Number of coordinates, and type of the numbers.
    has_velocity
        Whether noise has a normal for the velocity of each coordinate, too.
    first
        Number of the first block of counters of the step or substep.
    """

    words: Array
    number: Array
    d: int
    dtype: Array
    has_velocity: bool
    first: Array = 0

    def take(self, *blocks: int, beyond: bool = False) -> list[tuple[Array, Array, Array]]:
        """Return for each block uniform numbers ``(g, 1)`` and two arrays ``(g, d)`` of normals.

        With ``beyond`` as many more follow, for the noise of the remaining path.  One call draws all numbers of a step,
        at a third of the cost of separate calls.
        """
        blocks += tuple(block + _BLOCKS for block in blocks) if beyond else ()
        rows = jnp.broadcast_to(jnp.asarray(blocks), (len(self.words), len(blocks)))
        bits = self._bits(rows, 1 + (2 * self.d if self.has_velocity else self.d + self.d % 2))
        uniforms = self._fraction(bits[:, :, :1])
        normals = self._pairs(bits[:, :, 1:])
        if not self.has_velocity:  # overdamped dynamics use the second normal alone
            row = self._row(normals)
            normals = jnp.zeros_like(row), row
        return [(uniforms[:, i], *(array[:, i] for array in normals)) for i in range(len(blocks))]

    def velocity(self) -> Array:
        """Return normals ``(g, d)``, the fresh velocities of chains whose step was rejected."""
        bits = self._bits(jnp.full((len(self.words), 1), _VELOCITY), self.d + self.d % 2)
        return self._row(self._pairs(bits[:, 0]))

    def of(self, chains: Array) -> Keyed:
        """Return the random numbers of some chains ``(n,)``."""
        return self._replace(words=self.words[chains])

    def substep(self, i: Array) -> Keyed:
        """Return the random numbers of substep ``i`` of a refined step."""
        return self._replace(first=2 * _BLOCKS * (i + 1))

    def _row(self, pairs: tuple[Array, Array]) -> Array:
        """Return the normals of two arrays as one array ``(..., d)``."""
        return jnp.concatenate(pairs, axis=-1)[..., : self.d]

    def _bits(self, blocks: Array, n: int) -> Array:
        """Return ``n`` unsigned integers, as wide as the floats, for blocks ``(g, m)`` of counters: ``(g, m, n)``."""
        each = 8 // self.dtype.itemsize
        count = -(-n // each)
        start = (blocks + self.first).astype(jnp.uint32)[:, :, None] * np.uint32(1 + 2 * self.d)
        counters = (start + jnp.arange(count, dtype=jnp.uint32)).reshape(len(self.words), -1)
        numbers = jnp.full_like(counters, self.number)
        hashes = jax.vmap(threefry_2x32)(self.words, jnp.concatenate([numbers, counters], axis=1))
        high, low = hashes.reshape(len(self.words), 2, -1, count).swapaxes(0, 1)
        if each == 1:
            return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
        return jnp.stack([high, low], axis=-1).reshape(*high.shape[:2], each * count)[:, :, :n]

    def _fraction(self, bits: Array) -> Array:
        """Return uniform numbers in [0, 1), with all digits of a float."""
        digits = jnp.finfo(self.dtype).nmant + 1
        return (bits >> (8 * self.dtype.itemsize - digits)).astype(self.dtype) * 2.0**-digits

    def _pairs(self, bits: Array) -> tuple[Array, Array]:
        """Return two arrays of normals from an even number of integers: half of them in each."""
        radius_bits, angle_bits = jnp.split(bits, 2, axis=-1)
        # Small uniforms keep all their digits, so that normals reach beyond 6.7 (single precision) and 9.4 (double).
        uniform = (radius_bits.astype(self.dtype) + 0.5) * 2.0 ** -(8 * self.dtype.itemsize)
        radius = jnp.sqrt(-2.0 * jnp.log(uniform))
        # The angle covers a quarter of a turn to either side; the last bit, unused here, chooses half of the circle.
        x = 2.0 * self._fraction(angle_bits) - (1.0 - 2.0 ** -(jnp.finfo(self.dtype).nmant + 1))
        cos, sin = (reduce(lambda total, term: total * (x * x) + term, series) for series in (_COS, _SIN))
        pair = jnp.where((angle_bits & 1) == 1, -radius, radius) * cos, radius * x * sin
        # Without the barrier the compiler may recompute them wherever they are used.
        return lax.optimization_barrier(pair)


# A batch is this share of a group (one over it).
_SHARE = 16

# Positions (n, d) to log densities (n, 1), evaluations (n, width) and drifts (n, d).
type Pair = tuple[Array, Array]
Drift = Callable[[Any], tuple[Any, Any, Any]]


class Counts(NamedTuple):
    """Statistics of a transition of each chain, ``(g,)``; see :class:`pmm_mcmc.engines.contract.Chunk`."""

    accept: Array
    n_grad: Array
    unstable: Array
    refined: Array
    model_failures: Array


def total(x: Array) -> Array:
    """Return sums over coordinates, ``(n, 1)``."""
    return jnp.sum(x, axis=-1, keepdims=True)


def as_count(x: Array) -> Array:
    """Return a column ``(g, 1)`` as integers ``(g,)``."""
    return x.astype(jnp.int32)[:, 0]


def choose(condition: Any, new: Any, old: Any) -> Any:
    """Return the arrays of ``new`` where a condition holds, else those of ``old``, whose types stay."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), new, old)


def renew_few(selected: Any, tree: Any, renew: Callable[[Any, Any], Any]) -> Any:
    """Return a tree of arrays ``(g, ...)`` in which the ``selected`` rows ``(g,)``, which are few, are renewed.

    As long as there are some, a batch of them goes through ``renew``, a function of their indices and of the tree of
    their values, which returns the new ones.  It may not read ``tree``: the compiler would copy all of it before.
    """
    g = len(selected)
    batch = -(-g // _SHARE)

    def some(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Renew the rows of one batch."""
        left, selected, values = carry
        ranks = jnp.cumsum(selected, dtype=jnp.int32)
        places = jnp.where(selected, ranks - 1, batch)
        rows = jnp.zeros(batch, jnp.int32).at[places].set(jnp.arange(g, dtype=jnp.int32), mode="drop")
        # Surplus rows of the last batch are copies of its first, and dropped.
        is_row = jnp.arange(batch) < left
        rows = jnp.where(is_row, rows, rows[0])
        to = jnp.where(is_row, rows, g)
        put = lambda old, new: old.at[to].set(new.astype(old.dtype), mode="drop")  # noqa: E731
        values = jax.tree.map(put, values, renew(rows, jax.tree.map(lambda x: x[rows], values)))
        return left - batch, selected & (ranks > batch), values

    left = jnp.sum(selected, dtype=jnp.int32)
    return lax.while_loop(lambda carry: carry[0] > 0, some, (left, selected, tree))[2]
