"""The coordinates of :mod:`pmm_mcmc.coordinates.affine` for compiled functions of JAX."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import MOST_DENSE, MOST_DIRECTIONS

__all__ = ["JaxCoordinates"]


class JaxCoordinates(NamedTuple):
    """Affine maps of any kind in arrays of fixed shape, so that one compiled function serves all.

    The arrays hold the diagonal, and the full matrix in few coordinates, where it costs no more than the largest number
    of directions, or the directions in more coordinates.
    """

    plain: Any
    centre: Any
    diagonal: Any
    matrix: Any
    stretch: Any
    directions: Any

    @classmethod
    def of(cls, coordinates: Coordinates, dtype: np.dtype) -> JaxCoordinates:
        """Return coordinates as arrays of a type."""
        centre, scale, _ = coordinates
        d = centre.size
        dense = d <= MOST_DENSE
        n_directions = 0 if dense else MOST_DIRECTIONS
        diagonal = np.ones(d)
        matrix = np.zeros((d, d) if dense else (0, 0))
        stretch = np.zeros(n_directions)
        directions = np.zeros((n_directions, d))
        if scale.ndim == 1:
            diagonal = scale
        elif dense:
            matrix = coordinates.pull_back(np.eye(d))
        else:
            k = len(scale) - 2
            diagonal = scale[0]
            stretch[:k] = scale[1, :k] - 1.0
            directions[:k] = scale[2:]
        arrays = cls(np.bool_(scale.ndim == 1), centre, diagonal, matrix, stretch, directions)
        return jax.tree.map(lambda values: values.astype(dtype) if values.dtype.kind == "f" else values, arrays)

    def place(self, y: Any) -> Any:
        """Return the positions ``z`` of ``y`` ``(n, d)``."""
        if self.matrix.size:
            other = lambda: self.centre + _product(y, self.matrix.T)  # noqa: E731
        else:
            other = lambda: self.centre + self.diagonal * self._stretched(y)  # noqa: E731
        return lax.cond(self.plain, lambda: self.centre + self.diagonal * y, other)

    def pull_back(self, gradient: Any) -> Any:
        """Return the gradients with respect to ``y`` of those with respect to ``z``."""
        if self.matrix.size:
            other = lambda: _product(gradient, self.matrix)  # noqa: E731
        else:
            other = lambda: self._stretched(self.diagonal * gradient)  # noqa: E731
        return lax.cond(self.plain, lambda: self.diagonal * gradient, other)

    def _stretched(self, y: Any) -> Any:
        return y + _product(_product(y, self.directions.T) * self.stretch, self.directions)


def _product(a: Any, b: Any) -> Any:
    # Accelerators would round float32 to fewer digits, for ``W`` and its transpose in different ways.
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
