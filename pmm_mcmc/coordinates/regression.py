"""The regression that learns how far a child is non-centred from draws and their gradients."""

from __future__ import annotations

import numpy as np

__all__ = ["learn_elementwise", "learn_grouped"]

# Ridge: a = 0 and H = 0, fully non-centred, counts for so many draws.
_RIDGE = 4.0
_TINY = 1e-300  # keeps divisions by zero weights finite


def learn_elementwise(r: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit ``r = a - h x`` by weighted least squares, element by element, with ``h >= 0``; both 0 where not finite.

    ``r`` and ``x`` ``(n, m)`` are the gradient of the rest of the posterior and the position, at draws of any
    distribution; ``weight`` ``(n, m)`` is the inverse variance of the noise of ``r``, up to a constant.
    """
    total = weight.sum(axis=0)
    unit = weight.mean(axis=0)
    centre = (weight * x).sum(axis=0) / np.maximum(total, _TINY)
    dx = x - centre
    intercept = (weight * r).sum(axis=0) / (total + _RIDGE * unit + _TINY)
    xx = (weight * dx * dx).sum(axis=0) + _RIDGE * unit * unit
    h = np.maximum(-(weight * dx * (r - intercept)).sum(axis=0) / np.maximum(xx, _TINY), 0.0)
    a = intercept + h * centre
    bad = ~(np.isfinite(a) & np.isfinite(h))
    return np.where(bad, 0.0, a), np.where(bad, 0.0, h)


def learn_grouped(r: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit ``r = a - H x`` group by group, ``H`` ``(G, K, K)`` symmetric with no negative eigenvalue.

    As :func:`learn_elementwise`, from ``(n, G, K)`` and weights ``(n, G)`` of ``G`` groups of ``K`` elements.
    """
    K = x.shape[2]
    total = weight.sum(axis=0)
    unit = weight.mean(axis=0)
    centre = np.einsum("ng,ngk->gk", weight, x) / np.maximum(total, _TINY)[:, None]
    dx = x - centre
    intercept = np.einsum("ng,ngk->gk", weight, r) / (total + _RIDGE * unit + _TINY)[:, None]
    gram = np.einsum("ng,ngk,ngl->gkl", weight, dx, dx)
    gram += (_RIDGE * unit * unit + _TINY)[:, None, None] * np.eye(K)
    cross = np.einsum("ng,ngk,ngl->gkl", weight, dx, r - intercept)
    H = -np.linalg.solve(gram, cross)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    H = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)
    a = intercept + np.einsum("gkl,gl->gk", H, centre)
    bad = ~(np.isfinite(a).all(axis=1) & np.isfinite(H).all(axis=(1, 2)))
    return np.where(bad[:, None], 0.0, a), np.where(bad[:, None, None], 0.0, H)
