"""The whitened coordinates in which every sampler works: the preconditioner, or inverse mass matrix ``W W'``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Coordinates"]


class Coordinates(NamedTuple):
    r"""The map from whitened coordinates ``y`` to those in which chains move, ``z = centre + W y``.

    ``z`` are the model's unconstrained coordinates ``x`` or, non-centred, ``x`` is a function of ``z``.

    Attributes
    ----------
    centre : (d,)
        Where ``y = 0`` lies.
    scale : (d,), (d, d) or (k + 2, d) with k + 2 < d
        ``W``: its diagonal, the full matrix, or a diagonal times few stretches,
        :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)` with ``U`` of ``k`` orthonormal columns:
        then ``s`` in row 0, ``l`` in row 1 (filled up with ones), and the rows of :math:`U^T`.
    density_parameters : (k,), optional
        What the density of ``z`` takes beside the position: the parameters of a non-centring
        (:mod:`pmm_mcmc.coordinates.structure`), or temperature and reference of a tempered density.
    """

    centre: np.ndarray
    scale: np.ndarray
    density_parameters: np.ndarray | None = None

    @classmethod
    def low_rank(cls, centre: np.ndarray, s: np.ndarray, stretch: np.ndarray, directions: np.ndarray) -> Coordinates:
        r"""Return the coordinates of :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)`.

        ``stretch`` ``(k,)`` is ``l``, all positive; ``directions`` ``(d, k)`` are ``U``, orthonormal columns.  Without
        any the scale is the diagonal ``s``; ``k + 2 >= d``, with which the full matrix is smaller, is an error.
        """
        d, k = directions.shape
        if k == 0:
            return cls(centre, s)
        if k + 2 >= d:
            raise ValueError(f"directions has {k} columns: with d={d} at most {d - 3}; give the whole matrix instead")
        row = np.ones(d)
        row[:k] = stretch
        return cls(centre, np.concatenate([s[None], row[None], directions.T]))

    def place(self, y: np.ndarray) -> np.ndarray:
        """Map whitened positions ``(..., d)`` to ``z``."""
        if self._is_dense:
            return self.centre + y @ self.scale.T
        return self.centre + self._diagonal * self._stretched(y, 1.0)

    def whiten(self, z: np.ndarray) -> np.ndarray:
        """Map positions ``z`` ``(..., d)`` to whitened ones."""
        offset = z - self.centre
        if self._is_dense:
            return np.linalg.solve(self.scale, offset.reshape(-1, offset.shape[-1]).T).T.reshape(offset.shape)
        return self._stretched(offset / self._diagonal, -1.0)

    def pull_back(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients ``(..., d)`` with respect to ``z`` to gradients with respect to ``y``."""
        return gradient @ self.scale if self._is_dense else self._stretched(gradient * self._diagonal, 1.0)

    @property
    def _is_dense(self) -> bool:
        return self.scale.ndim == 2 and self.scale.shape[0] == self.scale.shape[1]

    @property
    def _diagonal(self) -> np.ndarray:
        return self.scale if self.scale.ndim == 1 else self.scale[0]

    def _stretched(self, y: np.ndarray, power: float) -> np.ndarray:
        """Apply ``(I + U diag(l - 1) U^T)^power``, symmetric: ``l`` becomes ``l^power``."""
        if self.scale.ndim == 1:
            return y
        directions = self.scale[2:]
        return y + (y @ directions.T * (self.scale[1, : len(directions)] ** power - 1.0)) @ directions
