r"""Mixtures of Gaussians from which a ladder of temperatures may start: draws, and the density as graph or function.

The density is :math:`\sum_k e^{f_k - |R_k^{-1} (x - o) - b_k|^2 / 2}` with any origin ``o``: of a component with weight
:math:`w_k`, mean :math:`m_k` and covariance :math:`R_k R_k^T`, :math:`b_k = R_k^{-1} (m_k - o)` and
:math:`f_k = \log w_k - \log|\det R_k| - \tfrac d2 \log 2\pi`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import MOST_DENSE

__all__ = ["GaussianMixture", "mixture_density", "path_numbers"]

_LOG_2PI = float(np.log(2.0 * np.pi))


class GaussianMixture(NamedTuple):
    """Gaussians and their weights.

    Attributes
    ----------
    log_weight : (k,)
        Logarithms of the weights, up to a constant.
    mean : (k, d)
    root : (k, d, d) or (k, d)
        Roots of the covariances: matrices up to ``MOST_DENSE`` coordinates, otherwise their diagonals.
    """

    log_weight: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, mean: np.ndarray, root: np.ndarray) -> GaussianMixture:
        """Return one Gaussian; the root of its covariance is a matrix or its diagonal."""
        d = len(mean)
        if root.ndim == 1 and d <= MOST_DENSE:
            root = np.diag(root)
        return cls(np.zeros(1), mean[None], root[None])

    @property
    def log_volume(self) -> np.ndarray:
        """Logarithms ``(k,)`` of the determinants of the roots."""
        if self.root.ndim == 2:
            return np.log(np.abs(self.root)).sum(axis=1)
        return np.linalg.slogdet(self.root)[1]

    def numbers(self) -> np.ndarray:
        """Return what :func:`mixture_density` takes: ``o``, and a row of ``f``, ``b`` and the inverse root for each."""
        k, d = self.mean.shape
        weight = self.log_weight - np.logaddexp.reduce(self.log_weight)
        origin = np.exp(weight) @ self.mean
        centred = self.mean - origin
        if self.root.ndim == 2:
            inverse = 1.0 / self.root
            offset = inverse * centred
        else:
            inverse = np.linalg.inv(self.root)
            offset = (inverse @ centred[:, :, None])[:, :, 0]
        factor = weight - self.log_volume - 0.5 * d * _LOG_2PI
        return np.concatenate([origin, np.concatenate([factor[:, None], offset, inverse.reshape(k, -1)], 1).ravel()])

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` independent draws ``(n, d)``."""
        k, d = self.mean.shape
        noise = rng.standard_normal((n, d))
        share = np.cumsum(np.exp(self.log_weight - np.logaddexp.reduce(self.log_weight)))
        component = np.searchsorted(share, rng.random(n)).clip(0, k - 1)
        out = np.empty((n, d))
        for i in range(k):
            members = component == i
            root = self.root[i]
            out[members] = self.mean[i] + (noise[members] * root if root.ndim == 1 else noise[members] @ root.T)
        return out


def path_numbers(beta: float, mixture: GaussianMixture | None, d: int) -> np.ndarray:
    """Return the numbers of a path at a temperature: from a mixture, or from the prior."""
    some = GaussianMixture.of(np.zeros(d), np.ones(d)) if mixture is None else mixture
    return np.concatenate([[beta, float(mixture is not None)], some.numbers()])


def mixture_density(xp: Any, x: Any, numbers: Any, d: int) -> tuple[Any, Any]:
    """Return the log density of a mixture of any number of Gaussians and its gradient, for PyTensor or JAX."""
    dense = d <= MOST_DENSE
    table = numbers[d:].reshape((-1, 1 + d + (d * d if dense else d)))
    factor = table[:, 0]
    offset = table[:, 1 : 1 + d]
    inverse = table[:, 1 + d :]
    u = x - numbers[:d]
    if dense:
        inverse = inverse.reshape((-1, d))
        y = xp.dot(inverse, u).reshape((-1, d)) - offset
    else:
        y = inverse * u - offset
    logs = factor - 0.5 * xp.sum(y**2, axis=1)
    top = xp.max(logs)
    parts = xp.exp(logs - top)
    total = xp.sum(parts)
    pulled = (parts / total)[:, None] * y
    slope = xp.dot(inverse.T, pulled.reshape((-1,))) if dense else xp.sum(inverse * pulled, axis=0)
    return top + xp.log(total), -slope
