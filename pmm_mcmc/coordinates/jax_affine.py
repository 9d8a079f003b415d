"""The coordinates of :mod:`pmm_mcmc.coordinates.affine` for compiled functions of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.coordinates.affine import MOST_DENSE, MOST_DIRECTIONS, Coordinates


class JaxCoordinates(NamedTuple):
    """The map ``z = centre + W y`` with ``W`` of any form in arrays of fixed shape: one compiled function serves all.

    A ``W`` that is not diagonal is a full ``matrix`` where that costs no more than the largest number of directions,
    up to :data:`MOST_DENSE` coordinates; beyond them it is ``diag(s) (I + U diag(l - 1) U^T)``.  Arrays of the other
    form are empty.  A diagonal ``W`` is ``s`` alone where that is a branch; accelerators, on which a branch costs more
    than the product, have none: ``is_diagonal`` is empty.
    """

    is_diagonal: Any
    centre: Any
    diagonal: Any  # s
    matrix: Any
    stretch: Any  # l - 1 of each direction, 0 of missing ones
    directions: Any  # U^T, (k, d)

    @classmethod
    def of(cls, coordinates: Coordinates, dtype: np.dtype, branches: bool = True) -> JaxCoordinates:
        """Return coordinates as arrays of a type; ``branches`` makes a diagonal ``W`` a branch."""
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
            matrix = np.diag(scale) if dense and not branches else matrix
        elif dense:
            matrix = coordinates.pull_back(np.eye(d))
        else:
            k = len(scale) - 2
            diagonal = scale[0]
            stretch[:k] = scale[1, :k] - 1.0
            directions[:k] = scale[2:]
        is_diagonal = np.bool_(scale.ndim == 1) if branches else np.zeros(0, bool)
        arrays = cls(is_diagonal, centre, diagonal, matrix, stretch, directions)
        return jax.tree.map(lambda values: values.astype(dtype) if values.dtype.kind == "f" else values, arrays)

    def place(self, y: Any) -> Any:
        """Return the positions ``z`` of ``y`` ``(n, d)``."""
        if self.matrix.size:
            other = lambda: self.centre + _product(y, self.matrix.T)  # noqa: E731
        else:
            other = lambda: self.centre + self.diagonal * self._stretched(y)  # noqa: E731
        return self._chosen(lambda: self.centre + self.diagonal * y, other)

    def pull_back(self, gradient: Any) -> Any:
        """Return the gradients with respect to ``y`` of those with respect to ``z``."""
        if self.matrix.size:
            other = lambda: _product(gradient, self.matrix)  # noqa: E731
        else:
            other = lambda: self._stretched(self.diagonal * gradient)  # noqa: E731
        return self._chosen(lambda: self.diagonal * gradient, other)

    def _chosen(self, diagonal: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """Return the values of a diagonal ``W``, or of any."""
        return lax.cond(self.is_diagonal, diagonal, other) if self.is_diagonal.ndim == 0 else other()

    def _stretched(self, y: Any) -> Any:
        """Return ``(I + U diag(l - 1) U^T) y`` of each row."""
        return y + _product(_product(y, self.directions.T) * self.stretch, self.directions)


def _product(a: Any, b: Any) -> Any:
    """Return the product of two matrices."""
    # Accelerators would round float32 to fewer digits, for ``W`` and its transpose in different ways.
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
