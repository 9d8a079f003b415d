"""The regression that learns how far a child is non-centred from draws and their gradients."""

from __future__ import annotations

import numpy as np

__all__ = ["learn"]

# Ridge: a = 0 and H = 0, fully non-centred, counts for so many draws.
_RIDGE = 4.0
_TINY = 1e-300  # keeps divisions by zero weights finite


def learn(r: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit ``r = a - H x`` by weighted least squares, group by group; both 0 where not finite.

    ``r`` and ``x`` ``(n, G, K)`` are the gradient of the rest of the posterior and the position of ``G`` groups of
    ``K`` elements, at draws of any distribution; ``weight`` ``(n, G)`` is the inverse variance of the noise of ``r``,
    up to a constant.  ``H`` ``(G, K, K)`` is symmetric with no negative eigenvalue.
    """
    total = weight.sum(axis=0)[:, None]
    unit = weight.mean(axis=0)[:, None]
    weight = weight[..., None]
    centre = (weight * x).sum(axis=0) / np.maximum(total, _TINY)
    dx = x - centre
    intercept = (weight * r).sum(axis=0) / (total + _RIDGE * unit + _TINY)
    weighted = (weight * dx)[..., None]
    gram = (weighted * dx[..., None, :]).sum(axis=0)
    gram += (_RIDGE * unit * unit + _TINY)[..., None] * np.eye(x.shape[2])
    cross = (weighted * (r - intercept)[..., None, :]).sum(axis=0)
    H = -np.linalg.solve(gram, cross)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    H = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)
    a = intercept + np.einsum("gkl,gl->gk", H, centre)
    bad = ~(np.isfinite(a).all(axis=1) & np.isfinite(H).all(axis=(1, 2)))
    return np.where(bad[:, None], 0.0, a), np.where(bad[:, None, None], 0.0, H)
