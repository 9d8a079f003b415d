"""Functions of a symmetric matrix by Lanczos' method, from its products with vectors alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["spectrum"]

# A product whose residual is shorter than this share of its length is in the span of the basis.
_SPANNED = 1e-2


def spectrum(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return ``k`` eigenvalues and their weights, ``(n, k)``, in directions ``start`` ``(n, d)`` of unit length.

    With them :math:`v^T f(A) v = \sum_k w_k f(\lambda_k)`, exact for polynomials ``f`` of degree ``2 steps - 1``.  For
    directions of random signs over :math:`\sqrt{d}` the mean of ``d`` times this is the trace of :math:`f(A)`.

    ``product`` returns products with vectors ``(n, d)``, of one matrix or of one for each row; there are ``steps`` of
    them, fewer if the basis spans them.  Values are NaN where a product is not finite.
    """
    n, d = start.shape
    steps = min(steps, d)
    basis = [start]
    matrix = np.zeros((n, steps, steps))
    for i in range(steps):
        w = product(basis[-1])
        full_length = np.linalg.norm(w, axis=1)
        matrix[:, i, i] = (w * basis[-1]).sum(axis=1)
        for direction in basis:
            w = w - (w * direction).sum(axis=1, keepdims=True) * direction
        length = np.linalg.norm(w, axis=1)
        if i + 1 == steps or not (length > _SPANNED * full_length).any():
            break
        matrix[:, i, i + 1] = matrix[:, i + 1, i] = length
        basis.append(w / np.maximum(length, 1e-300)[:, None])
    matrix = matrix[:, : len(basis), : len(basis)]
    good = np.isfinite(matrix).all(axis=(1, 2))
    values, vectors = np.linalg.eigh(np.where(good[:, None, None], matrix, 0.0))
    return np.where(good[:, None], values, np.nan), vectors[:, 0] ** 2
