"""How far samples lie from the data: sliced Wasserstein and Frechet distances, and the excess of negative log density.

All but the last are squared where the literature squares them (Frechet), not where it does not (Wasserstein).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["NAMES", "Distances", "frechet"]

NAMES = ("SW2", "FD features", "FD pixels", "NLL excess")
_PROJECTIONS = 100


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(axis=0), np.cov(x, rowvar=False)


def frechet(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> float:
    r"""Frechet distance :math:`|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a^{1/2} C_b C_a^{1/2})^{1/2})`."""
    values, vectors = np.linalg.eigh(a[1])
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    both = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ b[1] @ root), 0.0)).sum()
    return float(np.sum((a[0] - b[0]) ** 2) + np.trace(a[1]) + np.trace(b[1]) - 2.0 * both)


class Distances:
    """Distances from a reference sample; also of its own exact moments and density, where they are known.

    Parameters
    ----------
    reference
        ``(m, d)``; more than the samples that are to be judged.
    features
        Weights and offsets of the features, of which the positive part is taken; None for none.
    moments
        Exact mean and covariance, in place of those of the reference.
    nll
        Mean negative log density of a sample.
    """

    def __init__(
        self,
        reference: np.ndarray,
        features: tuple[np.ndarray, np.ndarray] | None = None,
        moments: tuple[np.ndarray, np.ndarray] | None = None,
        nll: Callable[[np.ndarray], float] | None = None,
    ) -> None:
        directions = np.random.default_rng(0).standard_normal((reference.shape[1], _PROJECTIONS))
        self._directions = directions / np.linalg.norm(directions, axis=0)
        self._projected = np.sort(reference @ self._directions, axis=0)
        self._features = features
        self._moments = _moments(reference) if moments is None else moments
        self._of_features = None if features is None else _moments(self._seen(reference))
        self._nll = nll
        self._level = None if nll is None else nll(reference)

    def _seen(self, x: np.ndarray) -> np.ndarray:
        weights, offsets = self._features
        # What leaves the range of the pixels is cut, as it is where samples are stored as images.
        return np.maximum(np.clip(x, -1.0, 1.0) @ weights + offsets, 0.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the distances of :data:`NAMES`; NaN where one is not defined."""
        x = np.asarray(x, dtype=float)
        projected = np.sort(x @ self._directions, axis=0)
        at = (np.arange(len(x)) + 0.5) / len(x) * len(self._projected) - 0.5
        low = np.clip(np.floor(at).astype(int), 0, len(self._projected) - 2)
        share = np.clip(at - low, 0.0, 1.0)[:, None]
        quantiles = (1.0 - share) * self._projected[low] + share * self._projected[low + 1]
        return np.array(
            [
                np.sqrt(np.mean((projected - quantiles) ** 2)),
                np.nan if self._features is None else frechet(self._of_features, _moments(self._seen(x))),
                frechet(self._moments, _moments(x)),
                np.nan if self._nll is None else self._nll(x) - self._level,
            ]
        )
