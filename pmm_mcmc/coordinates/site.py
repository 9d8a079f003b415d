r"""The non-centring map of one variable given its location and scale, and the regression that learns it.

A child ``x`` with prior ``x = mu + L w`` given its parents, ``w`` of unit scale, is sampled as ``z``:

.. math:: w = C^{-T} \bigl(C^{-1} L^T (a - H \mu) + z\bigr), \qquad C C^T = B = I + L^T H L, \qquad
   \log\Bigl|\frac{\partial x}{\partial z}\Bigr| = \log|\det L| - \log|\det C| .

The *site* ``(a, H)`` stands for the rest of the posterior as ``x`` sees it, :math:`\exp(a^T x - x^T H x / 2)`.  With
``H = 0`` this is the non-centred form and with ``H`` large the centred one.  Nothing is divided by ``L``, so that the
map is exact at both ends: ``x -> mu + L z`` for ``L -> 0`` and ``x -> a/h + z / sqrt(h)`` for ``L -> inf``.  It is the
law of ``x`` under a Gaussian prior and a Gaussian site; for other priors it is a change of variables all the same.

Single elements are done here, for NumPy and PyTensor alike, groups and vectors in :mod:`pmm_mcmc.coordinates.vectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["elementwise", "learn_elementwise", "learn_grouped", "or_nan", "placed", "undone"]

# Draws that the prior guess of a site, none at all, counts for.
_RIDGE = 4.0


def elementwise(mu: Any, L: Any, a: Any, h: Any) -> tuple[Any, Any]:
    """Return ``L (a - h mu)`` and ``B`` of each element."""
    return L * (a - h * mu), 1.0 + L * L * h


def placed(xp: Any, mu: Any, L: Any, a: Any, h: Any, z: Any) -> tuple[Any, Any]:
    """Return ``x`` and ``B`` of each element, by NumPy, JAX or PyTensor."""
    pull, B = elementwise(mu, L, a, h)
    return mu + L * (pull / B + z / xp.sqrt(B)), B


def undone(mu: Any, L: Any, a: Any, h: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return ``z``, ``w`` and ``B`` of each element: the inverse of :func:`placed`."""
    pull, B = elementwise(mu, L, a, h)
    w = (x - mu) / L
    return np.sqrt(B) * (w - pull / B), w, B


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
    intercept = (weight * r).sum(axis=0) / (total + _RIDGE * unit + 1e-300)
    xx = (weight * dx * dx).sum(axis=0) + _RIDGE * unit * unit
    h = np.maximum(-(weight * dx * (r - intercept)).sum(axis=0) / np.maximum(xx, 1e-300), 0.0)
    a = intercept + h * centre
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
    total = weight.sum(axis=0)
    unit = weight.mean(axis=0)
    safe = np.maximum(total, 1e-300)
    centre = np.einsum("ng,ngk->gk", weight, x) / safe[:, None]
    dx = x - centre
    intercept = np.einsum("ng,ngk->gk", weight, r) / (total + _RIDGE * unit + 1e-300)[:, None]
    gram = np.einsum("ng,ngk,ngl->gkl", weight, dx, dx)
    gram += (_RIDGE * unit * unit + 1e-300)[:, None, None] * np.eye(K)
    cross = np.einsum("ng,ngk,ngl->gkl", weight, dx, r - intercept)
    H = -np.linalg.solve(gram, cross)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    H = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)
    a = intercept + np.einsum("gkl,gl->gk", H, centre)
    bad = ~(np.isfinite(a).all(axis=1) & np.isfinite(H).all(axis=(1, 2)))
    return np.where(bad[:, None], 0.0, a), np.where(bad[:, None, None], 0.0, H)


def or_nan(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Return what a function of ``numpy.linalg`` returns for arrays ``(n, ...)``, NaN where it refuses a matrix.

    So JAX's do; numpy's refuse all for one, as far out as the search for modes goes.
    """
    try:
        return function(*arrays)
    except np.linalg.LinAlgError:
        if len(arrays[0]) == 1:
            return np.full(arrays[-1].shape, np.nan)
    rows = zip(*(np.split(array, len(array)) for array in arrays), strict=True)
    return np.concatenate([or_nan(function, *row) for row in rows])
