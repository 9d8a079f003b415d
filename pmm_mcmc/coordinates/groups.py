r"""Groups of correlated elements with one covariance ``L L'``, non-centred group by group.

Of each group of ``K`` elements, with mean ``mu`` and parameters ``(a, H)`` of the non-centring, standard normals ``z``
are placed at

.. math:: x = \mu + L w, \qquad w = C^{-T} \bigl(C^{-1} L^T (a - H \mu) + z\bigr), \qquad C C^T = B = I + L^T H L.

:math:`e^{a'x - x'Hx / 2}` stands for the rest of the posterior.  One group is a vector, such as a Gaussian process.
``C`` is upper triangular: then :math:`L C^{-T}` is the lower Cholesky factor of the covariance of ``x``, which where
``H`` is large does not depend on ``L``, whereas the lower root of ``B`` would turn ``x`` with it.  ``C`` is kept as its
transpose, ``T``: rows are contiguous.  An argument that ends in ``_bar`` is an adjoint: the
derivative of a cost with respect to the value of that name.
"""

from __future__ import annotations

import sys
from functools import cache

import numba
import numpy as np
from numba import carray

from pmm_mcmc.coordinates.numba_op import NATIVE, NumbaMap, applied, version_of

_loop = numba.njit(error_model="numpy")


@_loop
def _factor(L, H, HL, T):
    """Fill in ``HL``, the product of ``H`` and ``L``, and ``T``, the lower factor of ``B``."""
    K = len(L)
    HL[:] = 0.0
    T[:] = 0.0
    for i in range(K):
        T[i, i] = 1.0
        for k in range(K):
            if H[i, k] != 0.0:
                for j in range(k + 1):
                    HL[i, j] += H[i, k] * L[k, j]
    for k in range(K):
        for i in range(k + 1):
            for j in range(i + 1):
                T[i, j] += L[k, i] * HL[k, j]
    for k in range(K - 1, -1, -1):
        T[k, k] = np.sqrt(T[k, k])
        for j in range(k):
            T[k, j] /= T[k, k]
        for i in range(k):
            for j in range(i + 1):
                T[i, j] -= T[k, i] * T[k, j]


@_loop
def _unfactor(T, T_bar):
    """Replace the adjoint of the lower factor by that of the lower triangle of ``B``, in place."""
    K = len(T)
    for k in range(K):
        for i in range(k):
            for j in range(i + 1):
                T_bar[k, i] -= T_bar[i, j] * T[k, j]
                T_bar[k, j] -= T_bar[i, j] * T[k, i]
        for j in range(k):
            T_bar[k, j] /= T[k, k]
            T_bar[k, k] -= T_bar[k, j] * T[k, j]
        T_bar[k, k] /= 2.0 * T[k, k]


@_loop
def _up(T, y):
    """Solve ``C t = y`` in place."""
    for i in range(len(y) - 1, -1, -1):
        y[i] /= T[i, i]
        for j in range(i):
            y[j] -= T[i, j] * y[i]


@_loop
def _down(T, y):
    """Solve ``C' w = y`` in place."""
    for i in range(len(y)):
        for j in range(i):
            y[i] -= T[i, j] * y[j]
        y[i] /= T[i, i]


@_loop
def _times_transposed(L, e, out):
    """Fill in ``L' e``."""
    out[:] = 0.0
    for k in range(len(e)):
        for j in range(k + 1):
            out[j] += L[k, j] * e[k]


@_loop
def _group(mu, L, a, H, z, work):
    """Fill in what the map of a group makes: ``H L``, ``T``, ``e = a - H mu``, ``t = C^-1 L' e`` and ``w``."""
    K = len(z)
    HL = work[:K]
    T = work[K : 2 * K]
    e = work[2 * K]
    t = work[2 * K + 1]
    w = work[2 * K + 2]
    _factor(L, H, HL, T)
    for i in range(K):
        e[i] = a[i]
        for k in range(K):
            e[i] -= H[i, k] * mu[k]
    _times_transposed(L, e, t)
    _up(T, t)
    for i in range(K):
        w[i] = t[i] + z[i]
    _down(T, w)
    return HL, T, e, t, w


@numba.njit(cache=True, error_model="numpy")
def _place(mu, L, a, H, z):
    """Return ``x`` ``(G, K)`` at ``z``, and ``log |dx / dz|``."""
    G, K = z.shape
    x = mu.copy()
    log_det = 0.0
    work = np.empty((2 * K + 3, K), z.dtype)
    for g in range(G):
        _, T, _, _, w = _group(mu[g], L, a[g], H[g], z[g], work)
        for i in range(K):
            log_det += np.log(L[i, i]) - np.log(T[i, i])
            for j in range(i + 1):
                x[g, i] += L[i, j] * w[j]
    return x, np.array(log_det, z.dtype)


@numba.njit(cache=True, error_model="numpy")
def _pull_back(mu, L, a, H, z, x_bar, log_det_bar):
    r"""Return the adjoints of ``mu``, ``L`` and ``z`` from those of the outputs of :func:`_place`.

    With :math:`e = a - H \mu`, :math:`t = C^{-1} L^T e`, :math:`T = C^T` and the adjoint :math:`\bar\ell` of the log
    determinant,

    .. math::
       \bar z &= C^{-1} L^T \bar x, \quad r = C^{-T} \bar z, \quad \bar\mu = \bar x - H L r, \\
       \bar T &= -\bar z w^T - t r^T - \bar\ell\,\mathrm{diag}(1 / T_{ii}), \\
       \bar L &= H L (\bar B + \bar B^T) + e r^T + \bar x w^T + \bar\ell\,\mathrm{diag}(1 / L_{ii}) .
    """
    G, K = z.shape
    mu_bar = np.empty((G, K), z.dtype)
    L_bar = np.zeros((K, K), z.dtype)
    z_bar = np.empty((G, K), z.dtype)
    T_bar = np.empty((K, K), z.dtype)
    r = np.empty(K, z.dtype)
    work = np.empty((2 * K + 3, K), z.dtype)
    by_det = log_det_bar[()]
    for g in range(G):
        HL, T, e, t, w = _group(mu[g], L, a[g], H[g], z[g], work)
        _times_transposed(L, x_bar[g], z_bar[g])
        _up(T, z_bar[g])
        r[:] = z_bar[g]
        _down(T, r)
        for i in range(K):
            for j in range(i + 1):
                T_bar[i, j] = -w[j] * z_bar[g, i] - r[j] * t[i]
            T_bar[i, i] -= by_det / T[i, i]
        _unfactor(T, T_bar)
        for i in range(K):
            T_bar[i, i] *= 2.0
            for j in range(i):
                T_bar[j, i] = T_bar[i, j]
        for i in range(K):
            L_bar[i, i] += by_det / L[i, i]
            for k in range(K):
                for j in range(i + 1):
                    L_bar[i, j] += HL[i, k] * T_bar[k, j]
            mu_bar[g, i] = x_bar[g, i]
            for j in range(i + 1):
                L_bar[i, j] += e[i] * r[j] + x_bar[g, i] * w[j]
        for i in range(K):
            for j in range(K):
                mu_bar[g, i] -= HL[i, j] * r[j]
    return mu_bar, L_bar, z_bar


@cache
def _native_place():
    """Return :func:`_place` as a C function, compiled once a machine."""

    @numba.cfunc(NATIVE, cache=True)
    def native_place(G_pointer, K_pointer, inputs, outputs):
        G = G_pointer[0]
        K = K_pointer[0]
        n = G * K
        row = carray(inputs, (3 * n + K * K + n * K,))
        rows = row[: 3 * n].reshape(3, G, K)
        L = row[3 * n : 3 * n + K * K].reshape(K, K)
        x, log_det = _place(rows[0], L, rows[1], row[3 * n + K * K :].reshape(G, K, K), rows[2])
        out = carray(outputs, (n + 1,))
        out[:n] = x.ravel()
        out[n] = log_det[()]

    return native_place


@cache
def _native_pull_back():
    """Return :func:`_pull_back` as a C function likewise."""

    @numba.cfunc(NATIVE, cache=True)
    def native_pull_back(G_pointer, K_pointer, inputs, outputs):
        G = G_pointer[0]
        K = K_pointer[0]
        n = G * K
        row = carray(inputs, (4 * n + K * K + n * K + 1,))
        rows = row[: 4 * n].reshape(4, G, K)
        L = row[4 * n : 4 * n + K * K].reshape(K, K)
        end = len(row) - 1
        H = row[4 * n + K * K : end].reshape(G, K, K)
        mu_bar, L_bar, z_bar = _pull_back(rows[0], L, rows[1], H, rows[2], rows[3], np.array(row[end]))
        out = carray(outputs, (2 * n + K * K,))
        out[:n] = mu_bar.ravel()
        out[n : 2 * n] = z_bar.ravel()
        out[2 * n :] = L_bar.ravel()

    return native_pull_back


def upper_root(cholesky, B):
    """Return the upper triangular ``C`` with ``C C' = B``, by a function that returns the lower one."""
    return cholesky(B[..., ::-1, ::-1])[..., ::-1, ::-1]


def _place_in_jax(mu, L, a, H, z):
    """Return the outputs of :func:`_place` by JAX."""
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    C = upper_root(jnp.linalg.cholesky, jnp.eye(z.shape[1], dtype=z.dtype) + L.T @ H @ L)
    pull = (a - (H @ mu[..., None])[..., 0]) @ L
    t = solve_triangular(C, pull[..., None], lower=False)
    w = solve_triangular(C.mT, t + z[..., None], lower=True)[..., 0]
    of_C = jnp.log(jnp.diagonal(C, axis1=-2, axis2=-1)).sum()
    return mu + w @ L.T, z.shape[0] * jnp.log(jnp.diagonal(L)).sum() - of_C


class GroupMap(NumbaMap):
    """The map of :func:`noncentred_groups`."""

    version = version_of(sys.modules[__name__])
    gufunc_signature = "(g,k),(k,k),(g,k),(g,k,k),(g,k)->(g,k),()"
    kernel = staticmethod(_place)
    adjoint_kernel = staticmethod(_pull_back)
    perform_jax = staticmethod(_place_in_jax)
    position = 4
    differentiable = (0, 1, 4)

    def on_tape(self, builder, mu, L, a, H, z):
        """Append a call of the loop to a tape, and return the outputs."""
        out = builder.new((z.size + 1,))
        builder.foreign(_native_place().address, *z.shape, builder.in_a_row(mu, a, z, L, H), out)
        return [out[:-1].reshape(z.shape), out[-1:].reshape(())]

    def adjoints_on_tape(self, builder, mu, L, a, H, z, x_bar, log_det_bar):
        """Append a call of the adjoint loop to a tape, and return the adjoints."""
        n = z.size
        out = builder.new((2 * n + L.size,))
        values = builder.in_a_row(mu, a, z, x_bar, L, H, log_det_bar)
        builder.foreign(_native_pull_back().address, *z.shape, values, out)
        return [out[:n].reshape(z.shape), out[2 * n :].reshape(L.shape), out[n : 2 * n].reshape(z.shape)]


def noncentred_groups(mu, L, a, H, z):
    r"""Place groups of correlated elements from standard normals, as far non-centred as ``a`` and ``H`` say.

    ``mu`` ``(G, K)`` are means under the prior, ``L`` ``(K, K)`` the lower triangular root of each group's covariance,
    ``a`` ``(G, K)`` and ``H`` ``(G, K, K)``, without negative eigenvalues, the parameters of the non-centring.  Returns
    ``x`` at ``z`` ``(G, K)``, to whose dtype the others are cast, and :math:`\log |dx / dz|`.

    With numba, JAX and without a compiler; gradients by ``mu``, ``L`` and ``z``.  Leading axes are batches.
    """
    return applied(GroupMap(), mu, L, a, H, z)
