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

    Beside the diagonal there is the whole matrix where there may be one, which in so few coordinates costs no more than
    the largest number of directions; in more coordinates there are the directions.
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
        whole = d <= MOST_DENSE
        most = 0 if whole else MOST_DIRECTIONS
        diagonal, matrix = np.ones(d), np.zeros((d, d) if whole else (0, 0))
        stretch, directions = np.zeros(most), np.zeros((most, d))
        if scale.ndim == 1:
            diagonal = scale
        elif whole:
            matrix = coordinates.pull_back(np.eye(d))
        else:
            k = len(scale) - 2
            diagonal, stretch[:k], directions[:k] = scale[0], scale[1, :k] - 1.0, scale[2:]
        found = cls(np.bool_(scale.ndim == 1), centre, diagonal, matrix, stretch, directions)
        return jax.tree.map(lambda part: part.astype(dtype) if part.dtype.kind == "f" else part, found)

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
