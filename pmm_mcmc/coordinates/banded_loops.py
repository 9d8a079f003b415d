"""The map of :mod:`pmm_mcmc.coordinates.banded` and its adjoint, as loops for numba; JAX shares the arithmetic.

Elements are eliminated from the last to the first.  What is then known of those before ``t`` is a quadratic form in the
``p`` of them (``known``, with a linear part ``pull``), whose first row is ``g_t - h_t`` and ``k_t``.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["LENGTHS", "SHAPES", "given", "kept_by", "passed_on", "place", "pull_back", "undo", "undo_rows"]

SHAPES = "(p),(n),(n),(n),(n),(n)->(n),()"
LENGTHS = "v, m, a, h and z (or x) must have one length, and rho at least one element"


def kept_by(v, g):
    """Return which part of an innovation's variance is left by what is known from later."""
    return 1.0 / (1.0 + v * g)


def given(rho, k, v, g, kept):
    """Return the loadings on elements before, and what is known from later of their sum with those; entries or rows."""
    return (rho - v * k) * kept, g * rho + k


def passed_on(phi_i, phi_j, k_i, k_j, c_i, c_j, v, g, kept, later):
    """Return what is then known of the elements before, an entry or all: a sum of squares, as Joseph's form."""
    return g * phi_i * phi_j + phi_i * k_j + k_i * phi_j + later + v * (kept * c_i) * (kept * c_j)


_loop = numba.njit(error_model="numpy")
_kept_one, _given_entry, _passed_on_entry = _loop(kept_by), _loop(given), _loop(passed_on)


# Columns of what elimination leaves of each element; k and the loadings phi follow, p columns each.
_G, _KEPT, _ETA, _K = 0, 1, 2, 3


@_loop
def _eliminated(rho, v, m, a, h):
    """Return ``g``, ``kept``, ``eta``, ``k`` and ``phi`` of each element, ``(n, 3 + 2 p)``."""
    if rho.size == 0 or not v.size == m.size == a.size == h.size:
        raise ValueError(LENGTHS)
    n, p = v.size, rho.size
    # Few arrays, indexed one element at a time: these loops are compiled into every model's graph.
    row, known, pull, c = np.empty((n, 3 + 2 * p), v.dtype), np.zeros((p, p)), np.zeros(p), np.empty(p)
    for t in range(n - 1, -1, -1):
        g, eta = known[0, 0] + h[t], pull[0] + a[t] - h[t] * m[t]
        kept = _kept_one(v[t], g)
        row[t, _G], row[t, _KEPT], row[t, _ETA] = g, kept, eta
        for i in range(p):
            k = known[i + 1, 0] if i + 1 < p else 0.0
            row[t, _K + i] = k
            row[t, _K + p + i], c[i] = _given_entry(rho[i], k, v[t], g, kept)
            pull[i] = row[t, _K + p + i] * eta + (pull[i + 1] if i + 1 < p else 0.0)
        # In place, the lower triangle only: an entry takes from the one diagonally below.
        for i in range(p):
            for j in range(i + 1):
                later = known[i + 1, j + 1] if i + 1 < p else 0.0
                phi_i, phi_j, k_i, k_j = row[t, _K + p + i], row[t, _K + p + j], row[t, _K + i], row[t, _K + j]
                known[i, j] = _passed_on_entry(phi_i, phi_j, k_i, k_j, c[i], c[j], v[t], g, kept, later)
    return row


@_loop
def _deviations(v, row, p, z):
    """Return ``x - m``, from the first to the last."""
    if z.size != v.size:
        raise ValueError(LENGTHS)
    d = np.empty(z.size, z.dtype)
    for t in range(z.size):
        tau = v[t] * row[t, _KEPT]
        d[t] = tau * row[t, _ETA] + np.sqrt(tau) * z[t]
        for i in range(min(t, p)):
            d[t] += row[t, _K + p + i] * d[t - 1 - i]
    return d


@numba.njit(cache=True, error_model="numpy")
def place(rho, v, m, a, h, z):
    """Return ``x`` and ``log |dx / dz|``."""
    row = _eliminated(rho, v, m, a, h)
    x, log_det = _deviations(v, row, rho.size, z), 0.0
    for t in range(x.size):
        x[t] += m[t]
        log_det += 0.5 * np.log(v[t] * row[t, _KEPT])
    return x, np.array(log_det, z.dtype)


@numba.njit(cache=True, error_model="numpy")
def undo(rho, v, m, a, h, x):
    """Return ``z`` and ``log |dx / dz|``."""
    if x.size != v.size:
        raise ValueError(LENGTHS)
    row, p = _eliminated(rho, v, m, a, h), rho.size
    z, log_det = np.empty(x.size, x.dtype), 0.0
    for t in range(x.size):
        tau = v[t] * row[t, _KEPT]
        log_det += 0.5 * np.log(tau)
        rest = x[t] - m[t] - tau * row[t, _ETA]
        for i in range(min(t, p)):
            rest -= row[t, _K + p + i] * (x[t - 1 - i] - m[t - 1 - i])
        z[t] = rest / np.sqrt(tau)
    return z, np.array(log_det, x.dtype)


@numba.njit(cache=True, error_model="numpy")
def pull_back(rho, v, m, a, h, z, x_bar, log_det_bar):
    """Return the adjoints of all six inputs: of :func:`_deviations` from the last element, of the rest from the first.

    In the second loop ``q`` is the (symmetric) adjoint of what is passed on, ``u`` that of its linear part.
    """
    n, p = z.size, rho.size
    row = _eliminated(rho, v, m, a, h)
    d = _deviations(v, row, p, z)
    v_bar, m_bar, a_bar, h_bar, z_bar = (
        np.empty_like(v),
        np.empty_like(m),
        np.empty_like(a),
        np.empty_like(h),
        x_bar.copy(),
    )
    rho_bar, phi_bar, c, u = np.zeros(p, v.dtype), np.empty(p), np.empty(p), np.zeros(p)
    q, q_phi, q_c = np.zeros((p, p)), np.empty(p), np.empty(p)
    for t in range(n - 1, -1, -1):
        for i in range(min(t, p)):
            z_bar[t - 1 - i] += row[t, _K + p + i] * z_bar[t]
    for t in range(n):
        g, kept, eta, d_bar = row[t, _G], row[t, _KEPT], row[t, _ETA], z_bar[t]
        tau, slope = v[t] * kept, v[t] * kept * kept
        z_bar[t] = np.sqrt(tau) * d_bar
        log_tau_bar = tau * eta * d_bar + 0.5 * z[t] * z_bar[t] + 0.5 * log_det_bar[()]
        eta_bar, g_bar, slope_bar, by_v, by_g = tau * d_bar, 0.0, 0.0, 0.0, 0.0
        for i in range(p):
            c[i] = _given_entry(rho[i], row[t, _K + i], v[t], g, kept)[1]
        for i in range(p):
            q_phi[i], q_c[i], q_k = 0.0, 0.0, 0.0
            for j in range(p):
                q_phi[i] += q[i, j] * row[t, _K + p + j]
                q_c[i] += q[i, j] * c[j]
                q_k += q[i, j] * row[t, _K + j]
            phi = row[t, _K + p + i]
            phi_bar[i] = u[i] * eta + 2.0 * (g * q_phi[i] + q_k) + (d_bar * d[t - 1 - i] if i < t else 0.0)
            eta_bar += u[i] * phi
            g_bar += phi * q_phi[i] + 2.0 * slope * q_c[i] * rho[i]
            slope_bar += c[i] * q_c[i]
            by_v += phi_bar[i] * c[i]
            by_g += phi_bar[i] * phi
            rho_bar[i] += 2.0 * slope * q_c[i] * g + phi_bar[i] * kept
        g_bar -= tau * (log_tau_bar + by_g + 2.0 * slope * slope_bar)
        v_bar[t] = log_tau_bar * kept / v[t] + kept * kept * (slope_bar * (1.0 - v[t] * g) * kept - by_v)
        m_bar[t], a_bar[t], h_bar[t] = x_bar[t] - h[t] * eta_bar, eta_bar, g_bar - m[t] * eta_bar
        for i in range(p - 1, 0, -1):
            for j in range(p - 1, 0, -1):
                q[i, j] = q[i - 1, j - 1]
            u[i] = u[i - 1]
        q[0, 0], u[0] = g_bar, eta_bar
        for i in range(1, p):
            q[0, i] = q[i, 0] = q_phi[i - 1] + slope * q_c[i - 1] - 0.5 * tau * phi_bar[i - 1]
    return rho_bar, v_bar, m_bar, a_bar, h_bar, z_bar


def undo_rows(rho, v, m, a, h, x):
    """Return ``z`` and ``log |dx / dz|`` of the ``x`` that :func:`place` gives: arrays whose leading axes broadcast."""

    def one(*row):
        return undo(*(np.array(part, float) for part in row))  # copies, as in _Kernel.perform

    return np.vectorize(one, otypes="dd", signature=SHAPES)(rho, v, m, a, h, x)
