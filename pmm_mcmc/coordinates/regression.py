"""How the parameters of a child's non-centring follow from gradients of the rest of the posterior.

The rest is as ``exp(a'x - x'Hx / 2)`` says, with ``H`` its curvature as the child sees it, all other coordinates of the
chains held, and ``a`` such that the mean of its gradient ``a - H x`` is that of draws.  ``H`` is not the slope of the
gradient over draws: where an intercept makes up for whatever a few effects have in common, the gradient is nearly the
same at all draws, and the data would seem not to hold any of them.

Of ``G`` groups of ``K`` elements, gradients and positions are ``(n, G, K)`` and weights, inverse variances of the
gradients up to a constant, ``(n, G)``.
"""

from __future__ import annotations

import numpy as np

__all__ = ["curvature", "intercept"]

# Ridge of the mean gradient: 0 counts for so many draws.
_RIDGE = 4.0
# Ridge of the curvature, as a share of the squared changes: without it fewer pairs than elements have no solution.
_LEAST = 1e-6
_TINY = 1e-300  # keeps divisions by zero weights finite


def curvature(dr: np.ndarray, dx: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return ``H`` ``(G, K, K)`` by ``dr = -H dx``, changes of gradient and position; 0 where not finite.

    It is fitted by weighted least squares, group by group, and is symmetric with no negative eigenvalue.
    """
    weighted = weight[..., None, None] * dx[..., None]
    gram = (weighted * dx[..., None, :]).sum(axis=0)
    size = np.trace(gram, axis1=1, axis2=2)[:, None, None]
    cross = (weighted * dr[..., None, :]).sum(axis=0)
    H = -np.linalg.solve(gram + (_LEAST * size + _TINY) * np.eye(dx.shape[2]), cross)
    bad = ~np.isfinite(H).all(axis=(1, 2), keepdims=True)
    H = np.where(bad, 0.0, H)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    return (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)


def intercept(r: np.ndarray, x: np.ndarray, weight: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Return ``a`` ``(G, K)`` of the curvatures ``H``, by the gradients ``r`` of draws ``x``; 0 where not finite."""
    total = weight.sum(axis=0)[:, None]
    unit = weight.mean(axis=0)[:, None]
    weight = weight[..., None]
    centre = (weight * x).sum(axis=0) / np.maximum(total, _TINY)
    mean = (weight * r).sum(axis=0) / (total + _RIDGE * unit + _TINY)
    a = mean + np.einsum("gkl,gl->gk", H, centre)
    return np.where(np.isfinite(a).all(axis=1, keepdims=True), a, 0.0)
