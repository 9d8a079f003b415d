"""The coordinates of :mod:`pmm_mcmc.coordinates` for compiled functions of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.saturation import build_saturation
from pmm_mcmc.tuning.scale import MOST_DENSE, MOST_DIRECTIONS

__all__ = ["JaxCoordinates"]

_saturate = build_saturation(jnp, jnp.where)


class JaxCoordinates(NamedTuple):
    """Affine maps of any kind in arrays of fixed shape, so that one compiled function serves all, and funnels.

    Beside the diagonal there is the whole matrix where there may be one, which in so few coordinates costs no more than
    the largest number of directions; in more coordinates there are the directions.  Funnels have shapes of their own:
    a run that finds some compiles once more.
    """

    plain: Any
    centre: Any
    diagonal: Any
    matrix: Any
    stretch: Any
    directions: Any
    funnels: tuple[_Level, ...]

    @classmethod
    def of(cls, coordinates: Coordinates, dtype: np.dtype) -> JaxCoordinates:
        """Return coordinates as arrays of a type."""
        centre, scale, funnels = coordinates
        d = centre.size
        whole = d <= MOST_DENSE
        most = 0 if whole else MOST_DIRECTIONS
        diagonal, matrix = np.ones(d), np.zeros((d, d) if whole else (0, 0))
        stretch, directions = np.zeros(most), np.zeros((most, d))
        if scale.ndim == 1:
            diagonal = scale
        elif whole:
            matrix = coordinates._replace(funnels=None).pull_back(np.eye(d))
        else:
            k = len(scale) - 2
            diagonal, stretch[:k], directions[:k] = scale[0], scale[1, :k] - 1.0, scale[2:]
        levels = () if funnels is None else tuple(_Level.of(funnels, at) for at in funnels.levels())
        found = cls(np.bool_(scale.ndim == 1), centre, diagonal, matrix, stretch, directions, levels)
        return jax.tree.map(lambda part: part.astype(dtype) if part.dtype.kind == "f" else part, found)

    def place(self, y: Any) -> tuple[Any, Any]:
        """Return the model's positions of ``y`` ``(n, d)``, and what the log density of ``y`` has beyond theirs."""
        return self._straight(self._affine(y))

    def place_and_back(self, y: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Return these, and the function from gradients at the positions to those of the log density of ``y``."""
        if not self.funnels:
            return *self.place(y), self._pull_back
        (x, log_det), back = jax.vjp(self._straight, self._affine(y))
        return x, log_det, lambda gradient: self._pull_back(back((gradient, jnp.ones_like(log_det)))[0])

    def _straight(self, z: Any) -> tuple[Any, Any]:
        log_det = jnp.zeros(len(z), z.dtype)
        for level in self.funnels:
            z, more = level(z)
            log_det += more
        return z, log_det

    def _affine(self, y: Any) -> Any:
        if self.matrix.size:
            other = lambda: self.centre + _product(y, self.matrix.T)  # noqa: E731
        else:
            other = lambda: self.centre + self.diagonal * self._stretched(y)  # noqa: E731
        return lax.cond(self.plain, lambda: self.centre + self.diagonal * y, other)

    def _pull_back(self, gradient: Any) -> Any:
        if self.matrix.size:
            other = lambda: _product(gradient, self.matrix)  # noqa: E731
        else:
            other = lambda: self._stretched(self.diagonal * gradient)  # noqa: E731
        return lax.cond(self.plain, lambda: self.diagonal * gradient, other)

    def _stretched(self, y: Any) -> Any:
        return y + _product(_product(y, self.directions.T) * self.stretch, self.directions)


class _Level(NamedTuple):
    """Sinks none of which is a source of another: see :class:`pmm_mcmc.noncentring.funnel_map.FunnelMap`.

    ``sources`` are those of any of them, so that sums over sources are products with small matrices: the sums of
    their gradients then have an order of their own, which scattered additions would not.
    """

    sink: Any
    sources: Any
    slope: Any
    load: Any
    anchor_load: Any
    log_scale: Any
    location: Any
    ceiling: Any
    anchor: Any

    @classmethod
    def of(cls, funnels: FunnelMap, at: slice) -> _Level:
        start = funnels.start[at.start : at.stop + 1]
        inside = slice(start[0], start[-1])
        sources, column = np.unique(funnels.source[inside], return_inverse=True)
        row = np.repeat(np.arange(at.stop - at.start), np.diff(start))
        effects = np.zeros((3, at.stop - at.start, len(sources)))
        for matrix, part in zip(effects, (funnels.slope, funnels.load, funnels.anchor_load), strict=True):
            np.add.at(matrix, (row, column), part[inside])
        return cls(funnels.sink[at], sources, *effects, *(part[at] for part in funnels[6:]))

    def __call__(self, x: Any) -> tuple[Any, Any]:
        own, at = x[:, self.sink], x[:, self.sources]
        log_scale, w = _saturate(self.log_scale + _product(at, self.slope.T), self.ceiling)
        anchor = self.anchor + _product(at, self.anchor_load.T)
        apart = self.location + _product(at, self.load.T) - anchor
        x = x.at[:, self.sink].set(
            anchor + w * apart + jnp.exp(log_scale) * own, unique_indices=True, mode="promise_in_bounds"
        )
        return x, log_scale.sum(axis=1)


def _product(a: Any, b: Any) -> Any:
    # Accelerators would round float32 to fewer digits, for ``W`` and its transpose in different ways.
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
