"""The whitened coordinates in which every sampler works."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Coordinates"]


class Coordinates(NamedTuple):
    """The affine map ``x = centre + W y`` from whitened coordinates ``y`` to the model's unconstrained ones.

    Attributes
    ----------
    centre : (d,)
        Where ``y = 0`` lies.
    scale : (d,) or (d, d)
        ``W``: its diagonal, or the whole matrix.
    """

    centre: np.ndarray
    scale: np.ndarray

    def place(self, y: np.ndarray) -> np.ndarray:
        """Map whitened positions ``(..., d)`` to the model's."""
        return self.centre + (self.scale * y if self.scale.ndim == 1 else y @ self.scale.T)

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Map the model's positions ``(..., d)`` to whitened ones."""
        if self.scale.ndim == 1:
            return (x - self.centre) / self.scale
        return np.linalg.solve(self.scale, (x - self.centre).T).T

    def pull_back(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients ``(..., d)`` with respect to the model's positions to those with respect to ``y``."""
        return gradient * self.scale if self.scale.ndim == 1 else gradient @ self.scale
