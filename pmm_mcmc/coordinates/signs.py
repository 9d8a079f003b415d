"""Scales that are sampled with a sign.

A signed scale is ``s = c sinh(v)`` with ``v`` its coordinate and ``c`` the median of its draws: linear through 0,
where a logarithm has a long tail, and logarithmic where the scale is large, where a linear coordinate has one.  If the
non-centred children that it scales change sign with ``v`` and, where it is one of several standard deviations, its
correlations do, the model is at the same point: the log density is a smooth function of ``v`` across 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Signs"]


class Signs(NamedTuple):
    """Which scales have a sign, and what changes sign with them.

    Attributes
    ----------
    signed : (k,) int
        Coordinates of their logarithms.
    flips : (d, j) int
        Coordinates of the signed scales whose signs each coordinate has, filled up with -1.
    by_hand
        Names of those that scale no child: the model is non-centred by hand.
    """

    signed: np.ndarray
    flips: np.ndarray
    by_hand: Sequence[str]

    @classmethod
    def none(cls, d: int) -> Signs:
        """Return that no scale of ``d`` coordinates has a sign."""
        return cls(np.zeros(0, int), np.zeros((d, 0), int), ())

    def positive(self, z: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same points as ``z`` ``(..., d)`` with positive scales, and the gradients there."""
        # A last 1 is the sign of -1, that is of no scale.
        sign = np.where(np.concatenate([z, np.ones_like(z[..., :1])], axis=-1) < 0.0, -1.0, 1.0)
        flip = sign[..., self.flips].prod(axis=-1)
        return z * flip, gradient * flip

    def mirrored(self, z: np.ndarray, gradient: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield for each scale the points ``z`` ``(n, d)`` on its other side: see ``Structure.mirrored``."""
        for scale in self.signed:
            flip = np.where((self.flips == scale).any(axis=1), -1.0, 1.0)
            yield z * flip, gradient * flip, int((flip < 0.0).sum())

    def with_sign(self, logarithm: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``v`` of logarithms ``(n, k)`` of scales, and the log determinants ``(n,)`` of the way back."""
        s = np.exp(logarithm)
        return np.arcsinh(s / c), (0.5 * np.log(s * s + c * c) - logarithm).sum(axis=1)

    def as_logarithms(self, z: np.ndarray, gradient: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z`` ``(..., d)`` with the logarithms of its positive scales, and gradients of its log density."""
        z = z.copy()
        gradient = gradient.copy()
        v = z[..., self.signed]
        gradient[..., self.signed] = np.tanh(v) * gradient[..., self.signed] + np.cosh(v) ** -2
        with np.errstate(divide="ignore"):
            z[..., self.signed] = np.log(c * np.sinh(v))
        return z, gradient
