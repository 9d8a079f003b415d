r"""The non-centring map of one variable given its location and scale, and the regression that learns it.

A child ``x`` with prior ``x = mu + L w`` given its parents, ``w`` of unit scale, is sampled as ``z``:

.. math:: w = C^{-T} \bigl(C^{-1} L^T (a - H \mu) + z\bigr), \qquad C C^T = B = I + L^T H L, \qquad
   \log\Bigl|\frac{\partial x}{\partial z}\Bigr| = \log|\det L| - \log|\det C| .

The *site* ``(a, H)`` stands for the rest of the posterior as ``x`` sees it, :math:`\exp(a^T x - x^T H x / 2)`.  With
``H = 0`` this is the non-centred form and with ``H`` large the centred one.  Nothing is divided by ``L``, so that the
map is exact at both ends: ``x -> mu + L z`` for ``L -> 0`` and ``x -> a/h + z / sqrt(h)`` for ``L -> inf``.  It is the
law of ``x`` under a Gaussian prior and a Gaussian site; for other priors it is a change of variables all the same.

Where ``C`` is diagonal (:func:`elementwise`, :func:`grouped`) the same functions serve NumPy, JAX and PyTensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["elementwise", "grouped_shift", "grouped_terms", "learn_elementwise", "learn_grouped", "place", "unplace"]

# Draws that the prior guess of a site, none at all, counts for.
_RIDGE = 4.0


def elementwise(mu: Any, L: Any, a: Any, h: Any) -> tuple[Any, Any]:
    """Return ``L (a - h mu)`` and ``B`` of each element; ``L`` may be negative."""
    return L * (a - h * mu), 1.0 + L * L * h


def grouped_terms(xp: Any, mu: Any, L: Any, a: Any, H: Any, K: int) -> tuple[Any, Any]:
    """Return ``L' (a - H mu)`` and the diagonal of ``B`` for ``G`` groups of ``K`` elements, ``(G, K)`` each.

    ``mu`` and ``a`` are ``(G, K)``, ``L`` is ``(K, K)`` and common to all groups, ``H`` is ``(G, K, K)``.  What is left
    of the correlations in a group is small, so that the diagonal stands for ``B``.  Written out element by element:
    PyTensor fuses that into one loop, where small batched products take it ten times as long to compile.
    """
    apart = [a[:, k] - sum(H[:, k, m] * mu[:, m] for m in range(K)) for k in range(K)]
    pull = [sum(L[k, j] * apart[k] for k in range(j, K)) for j in range(K)]
    B = [1.0 + sum(L[k, j] * H[:, k, m] * L[m, j] for k in range(j, K) for m in range(j, K)) for j in range(K)]
    return xp.stack(pull, axis=1), xp.stack(B, axis=1)


def grouped_shift(xp: Any, L: Any, w: Any, K: int) -> Any:
    """Return ``L w`` of each group, ``(G, K)``."""
    return xp.stack([sum(L[k, j] * w[:, j] for j in range(k + 1)) for k in range(K)], axis=1)


def place(xp: Any, pull: Any, B: Any, z: Any) -> Any:
    """Return ``w`` of ``z`` for a diagonal ``B``."""
    return pull / B + z / xp.sqrt(B)


def unplace(xp: Any, pull: Any, B: Any, w: Any) -> Any:
    """Return ``z`` of ``w``: undoes :func:`place`."""
    return xp.sqrt(B) * (w - pull / B)


def learn_elementwise(r: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit ``r = a - h x`` by weighted least squares, element by element, with ``h >= 0``.

    Parameters
    ----------
    r, x : (n, m)
        Gradient of the rest of the posterior and position, at draws of any distribution.
    weight : (n, m)
        ``L^2 / B``: the inverse variance of the noise of ``r``, up to a constant.

    Returns
    -------
    a, h : (m,)
    """
    total = weight.sum(axis=0)
    unit = weight.mean(axis=0)
    centre = (weight * x).sum(axis=0) / np.maximum(total, 1e-300)
    dx = x - centre
    first = (weight * r).sum(axis=0) / (total + _RIDGE * unit + 1e-300)
    xx = (weight * dx * dx).sum(axis=0) + _RIDGE * unit * unit
    h = np.maximum(-(weight * dx * (r - first)).sum(axis=0) / np.maximum(xx, 1e-300), 0.0)
    a = first + h * centre
    bad = ~(np.isfinite(a) & np.isfinite(h))
    return np.where(bad, 0.0, a), np.where(bad, 0.0, h)


def learn_grouped(r: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit ``r = a - H x`` group by group, ``H`` symmetric with no negative eigenvalue.

    Parameters
    ----------
    r, x : (n, G, K)
        As for :func:`learn_elementwise`.
    weight : (n, G)
        Of each draw of a group.

    Returns
    -------
    a : (G, K)
    H : (G, K, K)
    """
    K = x.shape[2]
    total, unit = weight.sum(axis=0), weight.mean(axis=0)
    safe = np.maximum(total, 1e-300)
    centre = np.einsum("ng,ngk->gk", weight, x) / safe[:, None]
    dx = x - centre
    first = np.einsum("ng,ngk->gk", weight, r) / (total + _RIDGE * unit + 1e-300)[:, None]
    gram = np.einsum("ng,ngk,ngl->gkl", weight, dx, dx)
    gram += (_RIDGE * unit * unit + 1e-300)[:, None, None] * np.eye(K)
    cross = np.einsum("ng,ngk,ngl->gkl", weight, dx, r - first)
    H = -np.linalg.solve(gram, cross)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    H = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)
    a = first + np.einsum("gkl,gl->gk", H, centre)
    bad = ~(np.isfinite(a).all(axis=1) & np.isfinite(H).all(axis=(1, 2)))
    return np.where(bad[:, None], 0.0, a), np.where(bad[:, None, None], 0.0, H)
