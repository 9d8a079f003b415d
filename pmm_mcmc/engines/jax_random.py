"""Random numbers keyed by (seed, chain, transition), for groups of chains on JAX.

Every chain has two words that stand for seed and chain, and every number a counter of its own within the transition:
Threefry of these words at (transition, counter) are its bits.  Draws therefore depend on nothing but the key: not on
chunk lengths, restarts or on what other chains do.

Normals come from them by the transform of Box and Muller (1958), with series for the sine and the cosine over half a
turn.  On a CPU that takes a fifth of the time of the inverse error function, with which :mod:`jax.random` makes them,
and saves a quarter to a half of what a transition takes beside its gradients.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32

__all__ = ["Keyed", "words_of"]

# Coefficients of cos(pi x / 2) and sin(pi x / 2) / x in powers of x^2, the highest first, to 1e-17 for |x| <= 1.
_TERMS = range(22, -1, -1)
_SERIES = [(-1) ** (n // 2) * (0.5 * math.pi) ** n / math.factorial(n) for n in _TERMS]
_COS, _SIN = _SERIES[::2], _SERIES[1::2]

# Blocks of counters of a step: more than it has midpoints.
_SLOTS = 32


def words_of(keys: Any) -> Any:
    """Return the two words ``(g, 2)`` of chains from their keys ``(g, 2, 2)``: seed and chain, in two words each."""
    return jax.vmap(threefry_2x32)(keys[:, 0], keys[:, 1])


class Keyed(NamedTuple):
    """Random numbers of one transition of a group: see :class:`pmm_mcmc.engines.jax_midpoints.Draws`.

    Everything that a step is sure to want is drawn at once, which costs a third of what draws one by one do.  The
    counters of the velocity, of the end of the step and of each midpoint lie apart, those of its parts behind them.
    """

    words: Any
    number: Any
    d: int
    dtype: Any
    has_velocity: bool
    first: Any = 0

    def take(self, *slots: int) -> list[tuple[Any, Any, Any]]:
        """Return numbers in [0, 1) ``(g, 1)`` and two arrays ``(g, d)`` of normals, for each slot."""
        blocks = jnp.broadcast_to(jnp.asarray([slot + 2 for slot in slots]), (len(self.words), len(slots)))
        bits = self._bits(self.words, blocks, 1 + self._most)
        uniforms, w = self._fraction(bits[:, :, :1]), self._split(bits[:, :, 1:])
        return [(uniforms[:, i], *(part[:, i] for part in w)) for i in range(len(slots))]

    def uniforms(self, slots: int) -> Any:
        """Return the first of these for so many midpoints, ``(slots, g, 1)``."""
        blocks = jnp.broadcast_to(jnp.arange(2, slots + 2), (len(self.words), slots))
        return self._fraction(self._bits(self.words, blocks, 1)).swapaxes(0, 1)

    def normals(self, chains: Any, slots: Any) -> tuple[Any, Any]:
        """Return the others for a list of midpoints ``(n,)``, ``(n, d)``: of which chain, and in which slot."""
        bits = self._bits(self.words[chains], slots[:, None] + 2, 1 + self._most)
        return self._split(bits[:, 0, 1:])

    def velocity(self) -> Any:
        """Return ``(g, d)`` normals for chains that start again."""
        bits = self._bits(self.words, jnp.zeros((len(self.words), 1), int), self.d + self.d % 2)
        return self._row(self._pairs(bits[:, 0]))

    def part(self, chains: Any, i: Any) -> Keyed:
        """Return those of part ``i`` of the step for some of the chains, ``(n,)``."""
        return self._replace(words=self.words[chains], first=2 * _SLOTS * (i + 1))

    def beyond(self) -> Keyed:
        """Return others, of the same shapes, for what lies beyond the gaps of this part."""
        return self._replace(first=self.first + _SLOTS)

    @property
    def _most(self) -> int:
        """Normals of a slot; they come in pairs."""
        return 2 * self.d if self.has_velocity else self.d + self.d % 2

    def _split(self, bits: Any) -> tuple[Any, Any]:
        """Return the normals of position and velocity; the former are zero where there is no velocity."""
        pairs = self._pairs(bits)
        if self.has_velocity:
            return pairs
        row = self._row(pairs)
        return jnp.zeros_like(row), row

    def _row(self, pairs: tuple[Any, Any]) -> Any:
        return jnp.concatenate(pairs, axis=-1)[..., : self.d]

    def _bits(self, words: Any, blocks: Any, n: int) -> Any:
        """Return ``n`` whole numbers ``(rows, block, n)``, of as many bits as a float, for each block of counters."""
        each = 8 // self.dtype.itemsize
        count = -(-n // each)
        start = (blocks + self.first).astype(jnp.uint32)[:, :, None] * np.uint32(1 + 2 * self.d)
        counters = (start + jnp.arange(count, dtype=jnp.uint32)).reshape(len(words), -1)
        numbers = jnp.full_like(counters, self.number)
        found = jax.vmap(threefry_2x32)(words, jnp.concatenate([numbers, counters], axis=1))
        high, low = found.reshape(len(words), 2, -1, count).swapaxes(0, 1)
        if each == 1:
            return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
        return jnp.stack([high, low], axis=-1).reshape(*high.shape[:2], each * count)[:, :, :n]

    def _fraction(self, bits: Any) -> Any:
        """Return numbers in [0, 1), all that a float tells apart."""
        digits = jnp.finfo(self.dtype).nmant + 1
        return (bits >> (8 * self.dtype.itemsize - digits)).astype(self.dtype) * 2.0**-digits

    def _pairs(self, bits: Any) -> tuple[Any, Any]:
        """Return two arrays of normals, half as many each as there are numbers."""
        first, second = jnp.split(bits, 2, axis=-1)
        # Small numbers keep all their digits, so that normals reach beyond 6.7 (single precision) and 9.4 (double).
        uniform = (first.astype(self.dtype) + 0.5) * 2.0 ** -(8 * self.dtype.itemsize)
        radius = jnp.sqrt(-2.0 * jnp.log(uniform))
        # A quarter of a turn to either side, and by the last digit, which this leaves out, to one half of the circle.
        x = 2.0 * self._fraction(second) - (1.0 - 2.0 ** -(jnp.finfo(self.dtype).nmant + 1))
        cos, sin = (reduce(lambda total, term: total * (x * x) + term, series) for series in (_COS, _SIN))
        pair = jnp.where((second & 1) == 1, -radius, radius) * cos, radius * x * sin
        # Else the compiler may work them out again wherever they are used.
        return lax.optimization_barrier(pair)
