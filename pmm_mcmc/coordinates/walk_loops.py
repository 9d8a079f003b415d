"""The map of :mod:`pmm_mcmc.coordinates.walk` and its adjoint, as loops for numba; JAX shares the arithmetic.

Elements are eliminated from the last to the first.  All elements after ``t``, integrated out, leave a Gaussian factor
of the ``p`` deviations ``x - mu`` up to ``t``, the newest first, with the matrix ``precision`` and the linear term
``pull``.  With it, of each element ``t``:

- ``g``: its precision but for the prior's: ``precision[0, 0] + h``.
- ``k`` ``(p,)``: what couples it to the ``p`` deviations before: ``precision[0, 1:]``, and 0.
- ``eta``: its linear term: ``pull[0] + a - h mu``.
- ``shrinkage``: ``1 / (1 + v g)``, the share of the innovation's variance ``v`` that ``g`` leaves.
- ``phi`` ``(p,)``: its loadings on the deviations before: ``(rho - v k) shrinkage``.
- ``c`` ``(p,)``: ``g rho + k``.

An argument that ends in ``_bar`` is an adjoint: the derivative of a cost with respect to the value of that name.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from numba import carray, types

__all__ = [
    "LENGTHS",
    "SHAPES",
    "loadings_of",
    "native_place",
    "native_pull_back",
    "place",
    "precision_before",
    "pull_back",
    "shrinkage_of",
    "undo",
    "undo_rows",
]

SHAPES = "(p),(n),(n),(n),(n),(n)->(n),()"
LENGTHS = "v, mu, a, h and z (or x) must have one length, and rho at least one element"


def shrinkage_of(v, g):
    """Return ``shrinkage``."""
    return 1.0 / (1.0 + v * g)


def loadings_of(rho, k, v, g, shrinkage):
    """Return ``phi`` and ``c``, of one deviation or of all."""
    return (rho - v * k) * shrinkage, g * rho + k


def precision_before(phi_i, phi_j, k_i, k_j, c_i, c_j, v, g, shrinkage, later):
    """Return an entry of the next ``precision``, or all: a sum of squares, as Joseph's form of a Kalman filter.

    ``later`` is the entry of the last ``precision`` diagonally below, or 0.
    """
    return g * phi_i * phi_j + phi_i * k_j + k_i * phi_j + later + v * (shrinkage * c_i) * (shrinkage * c_j)


_loop = numba.njit(error_model="numpy")
_shrinkage_of = _loop(shrinkage_of)
_loadings_of = _loop(loadings_of)
_precision_before = _loop(precision_before)


# Columns of what _eliminated returns; k begins at _K and phi p columns later.
_G = 0
_SHRINKAGE = 1
_ETA = 2
_K = 3


@_loop
def _eliminated(rho, v, mu, a, h):
    """Return ``g``, ``shrinkage``, ``eta``, ``k`` and ``phi`` of each element in a row, ``(n, 3 + 2 p)``."""
    if rho.size == 0 or not v.size == mu.size == a.size == h.size:
        raise ValueError(LENGTHS)
    n = v.size
    p = rho.size
    # Few arrays and single elements, because these loops are compiled into every model's graph.
    row = np.empty((n, 3 + 2 * p), v.dtype)
    precision = np.zeros((p, p))
    pull = np.zeros(p)
    c = np.empty(p)
    for t in range(n - 1, -1, -1):
        g = precision[0, 0] + h[t]
        eta = pull[0] + a[t] - h[t] * mu[t]
        shrinkage = _shrinkage_of(v[t], g)
        row[t, _G] = g
        row[t, _SHRINKAGE] = shrinkage
        row[t, _ETA] = eta
        for i in range(p):
            k = precision[i + 1, 0] if i + 1 < p else 0.0
            row[t, _K + i] = k
            row[t, _K + p + i], c[i] = _loadings_of(rho[i], k, v[t], g, shrinkage)
            pull[i] = row[t, _K + p + i] * eta + (pull[i + 1] if i + 1 < p else 0.0)
        # The lower triangle only, in place: an entry takes from the one diagonally below.
        for i in range(p):
            for j in range(i + 1):
                later = precision[i + 1, j + 1] if i + 1 < p else 0.0
                phi_i = row[t, _K + p + i]
                phi_j = row[t, _K + p + j]
                k_i = row[t, _K + i]
                k_j = row[t, _K + j]
                precision[i, j] = _precision_before(phi_i, phi_j, k_i, k_j, c[i], c[j], v[t], g, shrinkage, later)
    return row


@_loop
def _deviations(v, row, p, z):
    """Return ``x - mu`` ``(n,)`` at ``z``, from the first element to the last."""
    if z.size != v.size:
        raise ValueError(LENGTHS)
    d = np.empty(z.size, z.dtype)
    for t in range(z.size):
        tau = v[t] * row[t, _SHRINKAGE]
        d[t] = tau * row[t, _ETA] + np.sqrt(tau) * z[t]
        for i in range(min(t, p)):
            d[t] += row[t, _K + p + i] * d[t - 1 - i]
    return d


@numba.njit(cache=True, error_model="numpy")
def place(rho, v, mu, a, h, z):
    """Return ``x`` ``(n,)`` at ``z``, and ``log |dx / dz|``."""
    row = _eliminated(rho, v, mu, a, h)
    x = _deviations(v, row, rho.size, z)
    log_det = 0.0
    for t in range(x.size):
        x[t] += mu[t]
        log_det += 0.5 * np.log(v[t] * row[t, _SHRINKAGE])
    return x, np.array(log_det, z.dtype)


@numba.njit(cache=True, error_model="numpy")
def undo(rho, v, mu, a, h, x):
    """Return ``z`` ``(n,)`` at ``x``, and ``log |dx / dz|``: the inverse of :func:`place`."""
    if x.size != v.size:
        raise ValueError(LENGTHS)
    row = _eliminated(rho, v, mu, a, h)
    p = rho.size
    z = np.empty(x.size, x.dtype)
    log_det = 0.0
    for t in range(x.size):
        tau = v[t] * row[t, _SHRINKAGE]
        log_det += 0.5 * np.log(tau)
        residual = x[t] - mu[t] - tau * row[t, _ETA]
        for i in range(min(t, p)):
            residual -= row[t, _K + p + i] * (x[t - 1 - i] - mu[t - 1 - i])
        z[t] = residual / np.sqrt(tau)
    return z, np.array(log_det, x.dtype)


@numba.njit(cache=True, error_model="numpy")
def pull_back(rho, v, mu, a, h, z, x_bar, log_det_bar):
    """Return the adjoints of the six inputs of :func:`place` from those of its outputs.

    The first loop is the adjoint of :func:`_deviations`, from the last element; the second is that of
    :func:`_eliminated`, from the first element.  There ``Q`` is the adjoint of ``precision``, which is symmetric.
    """
    n = z.size
    p = rho.size
    row = _eliminated(rho, v, mu, a, h)
    d = _deviations(v, row, p, z)
    v_bar = np.empty_like(v)
    mu_bar = np.empty_like(mu)
    a_bar = np.empty_like(a)
    h_bar = np.empty_like(h)
    z_bar = x_bar.copy()
    rho_bar = np.zeros(p, v.dtype)
    phi_bar = np.empty(p)
    pull_bar = np.zeros(p)
    c = np.empty(p)
    Q = np.zeros((p, p))
    Q_phi = np.empty(p)
    Q_c = np.empty(p)
    for t in range(n - 1, -1, -1):
        for i in range(min(t, p)):
            z_bar[t - 1 - i] += row[t, _K + p + i] * z_bar[t]
    for t in range(n):
        g = row[t, _G]
        shrinkage = row[t, _SHRINKAGE]
        eta = row[t, _ETA]
        tau = v[t] * shrinkage
        slope = v[t] * shrinkage * shrinkage
        for i in range(p):
            c[i] = _loadings_of(rho[i], row[t, _K + i], v[t], g, shrinkage)[1]
        # The deviation of the element: tau eta + sqrt(tau) z and the terms of its loadings.
        d_bar = z_bar[t]
        z_bar[t] = np.sqrt(tau) * d_bar
        log_tau_bar = tau * eta * d_bar + 0.5 * z[t] * z_bar[t] + 0.5 * log_det_bar[()]
        eta_bar = tau * d_bar
        # The entries of the next precision and pull, of which each has one or two loadings.
        g_bar = 0.0
        slope_bar = 0.0
        phi_bar_c = 0.0
        phi_bar_phi = 0.0
        for i in range(p):
            Q_phi[i] = 0.0
            Q_c[i] = 0.0
            Q_k = 0.0
            for j in range(p):
                Q_phi[i] += Q[i, j] * row[t, _K + p + j]
                Q_c[i] += Q[i, j] * c[j]
                Q_k += Q[i, j] * row[t, _K + j]
            phi = row[t, _K + p + i]
            phi_bar[i] = pull_bar[i] * eta + 2.0 * (g * Q_phi[i] + Q_k) + (d_bar * d[t - 1 - i] if i < t else 0.0)
            eta_bar += pull_bar[i] * phi
            g_bar += phi * Q_phi[i] + 2.0 * slope * Q_c[i] * rho[i]
            slope_bar += c[i] * Q_c[i]
            phi_bar_c += phi_bar[i] * c[i]
            phi_bar_phi += phi_bar[i] * phi
            rho_bar[i] += 2.0 * slope * Q_c[i] * g + phi_bar[i] * shrinkage
        # The shrinkage, and the inputs at this element.
        g_bar -= tau * (log_tau_bar + phi_bar_phi + 2.0 * slope * slope_bar)
        v_bar[t] = log_tau_bar * shrinkage / v[t] + shrinkage * shrinkage * (
            slope_bar * (1.0 - v[t] * g) * shrinkage - phi_bar_c
        )
        mu_bar[t] = x_bar[t] - h[t] * eta_bar
        a_bar[t] = eta_bar
        h_bar[t] = g_bar - mu[t] * eta_bar
        # The adjoints of the precision and the pull that this element was eliminated from.
        for i in range(p - 1, 0, -1):
            for j in range(p - 1, 0, -1):
                Q[i, j] = Q[i - 1, j - 1]
            pull_bar[i] = pull_bar[i - 1]
        Q[0, 0] = g_bar
        pull_bar[0] = eta_bar
        for i in range(1, p):
            Q[0, i] = Q[i, 0] = Q_phi[i - 1] + slope * Q_c[i - 1] - 0.5 * tau * phi_bar[i - 1]
    return rho_bar, v_bar, mu_bar, a_bar, h_bar, z_bar


def _signature(arrays):
    """Return the signature of a C function of ``p``, ``n`` and arrays, each by its address."""
    return types.void(*[types.CPointer(types.int64)] * 2, *[types.CPointer(types.float64)] * arrays)


@cache
def native_place():
    """Return :func:`place` as a C function of the orders, inputs, and outputs in one row: compiled once a machine."""

    @numba.cfunc(_signature(7), cache=True)
    def native_place(p_pointer, n_pointer, rho, v, mu, a, h, z, outputs):
        p = (p_pointer[0],)
        n = (n_pointer[0],)
        x, log_det = place(carray(rho, p), carray(v, n), carray(mu, n), carray(a, n), carray(h, n), carray(z, n))
        out = carray(outputs, (n[0] + 1,))
        out[: n[0]] = x
        out[n[0]] = log_det[()]

    return native_place


@cache
def native_pull_back():
    """Return :func:`pull_back` as a C function likewise."""

    @numba.cfunc(_signature(9), cache=True)
    def native_pull_back(p_pointer, n_pointer, rho, v, mu, a, h, z, x_bar, log_det_bar, outputs):
        p = (p_pointer[0],)
        n = (n_pointer[0],)
        bars = pull_back(
            carray(rho, p), carray(v, n), carray(mu, n), carray(a, n), carray(h, n), carray(z, n), carray(x_bar, n),
            np.array(log_det_bar[0]),
        )  # fmt: skip
        out = carray(outputs, (p[0] + 5 * n[0],))
        out[: p[0]] = bars[0]
        rows = out[p[0] :].reshape(5, n[0])
        rows[0], rows[1], rows[2], rows[3], rows[4] = bars[1:]

    return native_pull_back


def undo_rows(rho, v, mu, a, h, x):
    """Return ``z`` and ``log |dx / dz|`` of the ``x`` that :func:`place` gives: arrays whose leading axes broadcast."""

    def one(*row):
        return undo(*(np.array(values, float) for values in row))  # copies, as in NumbaOp.perform

    return np.vectorize(one, otypes="dd", signature=SHAPES)(rho, v, mu, a, h, x)
