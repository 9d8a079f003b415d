"""The whitened coordinates in which every sampler works."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.noncentring.funnel_map import FunnelMap

__all__ = ["Coordinates"]


class Coordinates(NamedTuple):
    r"""The map from whitened coordinates ``y`` to the model's unconstrained ones: ``x = centre + W y``, or beyond it.

    Attributes
    ----------
    centre : (d,)
        Where ``y = 0`` lies.
    scale : (d,), (d, d) or (k + 2, d) with k + 2 < d
        ``W``: its diagonal, the whole matrix, or a diagonal times few stretches,
        :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)` with ``U`` of ``k`` orthonormal columns:
        then ``s`` in row 0, ``l`` in row 1 (filled up with ones), and the rows of :math:`U^T`.
    funnels
        A non-centring that the affine map feeds: ``x`` is its image of ``centre + W y``.
    """

    centre: np.ndarray
    scale: np.ndarray
    funnels: FunnelMap | None = None

    @classmethod
    def low_rank(cls, centre: np.ndarray, s: np.ndarray, stretch: np.ndarray, directions: np.ndarray) -> Coordinates:
        r"""Return the coordinates of :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)`.

        Parameters
        ----------
        centre, s : (d,)
            Where ``y = 0`` lies, and the diagonal.
        stretch : (k,)
            ``l``, all positive.
        directions : (d, k)
            ``U``, orthonormal columns.  Without any, the scale is the diagonal.

        Raises
        ------
        ValueError
            Where ``k + 2 >= d``: the whole matrix is smaller.
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
        """Map whitened positions ``(..., d)`` to the model's."""
        z = self._affine(y)
        return z if self.funnels is None else self.funnels.to_x(z)

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Map the model's positions ``(..., d)`` to whitened ones."""
        offset = (x if self.funnels is None else self.funnels.to_z(x)) - self.centre
        if self._is_dense:
            return np.linalg.solve(self.scale, offset.reshape(-1, offset.shape[-1]).T).T.reshape(offset.shape)
        return self._stretched(offset / self._diagonal, -1.0)

    def pull_back(self, gradient: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Map gradients ``(..., d)`` with respect to the model's positions to those of the log density of ``y``.

        Through funnels they depend on where, ``y``, and the log density has :meth:`log_det` added.
        """
        if self.funnels is not None:
            assert y is not None
            gradient = self.funnels.pull_back(self._affine(y), gradient)
        return gradient @ self.scale if self._is_dense else self._stretched(gradient * self._diagonal, 1.0)

    def log_det(self, y: np.ndarray) -> np.ndarray:
        """Return what the log density of ``y`` ``(..., d)`` has beyond the model's, up to a constant."""
        return np.zeros(y.shape[:-1]) if self.funnels is None else self.funnels.log_det(self._affine(y))

    def _affine(self, y: np.ndarray) -> np.ndarray:
        if self._is_dense:
            return self.centre + y @ self.scale.T
        return self.centre + self._diagonal * self._stretched(y, 1.0)

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
