r"""Random walks and autoregressions of any order, non-centred element by element in O(n).

The prior is :math:`x_t - \mu_t = \sum_{k=1}^p \rho_k (x_{t-k} - \mu_{t-k}) + e_t`, :math:`e_t \sim N(0, v_t)`, with
terms before the first element left out: :math:`A (x - \mu) = e`.  The parameters of the non-centring stand for the
rest of the posterior, :math:`e^{a'x - x'Hx/2}` with :math:`H = diag(h)`.  Both make a Gaussian, whose precision is
:math:`P = A'D^{-1}A + H = R R'`, :math:`D = diag(v)`, and standard normals ``z`` are placed at

.. math:: x = \mu + P^{-1} (a - H \mu) + R^{-T} z.

``R`` is the upper factor: elements are eliminated from the last to the first, so that each is placed given those before
it.  Nothing is divided by ``v``: ``h = 0`` is the walk drawn forward, and ``v -> 0``, ``v -> inf`` and a wide start
before tiny steps need no care.  (Elimination from the first element loses the last of these: the precision of the level
is below the rounding of 1/v.)

All elements after ``t``, integrated out, leave a Gaussian factor :math:`e^{b'd - d'\Lambda d/2}` of the ``p``
deviations :math:`d = (d_t, d_{t-1}, ...)` from ``mu``, the newest first (``precision`` :math:`\Lambda`, ``pull``
:math:`b`).  With the parameters ``a`` and ``h`` of element ``t`` and its prior :math:`d_t \sim N(\rho'y, v)` given the
``p`` deviations ``y`` before it,

.. math::
   g &= \Lambda_{00} + h, \quad k = (\Lambda_{01}, ..., \Lambda_{0,p-1}, 0), \quad \eta = b_0 + a - h \mu, \\
   s &= 1 / (1 + v g), \quad \varphi = s (\rho - v k), \quad c = g \rho + k,

its law is :math:`d_t \sim N(\varphi'y + v s\,\eta, v s)` with ``s`` the shrinkage of the variance, and the factor
that it leaves has

.. math:: \Lambda^{-} = g \varphi\varphi' + \varphi k' + k \varphi' + v s^2 c c' + \mathrm{shift}(\Lambda), \qquad
   b^{-} = \varphi \eta + \mathrm{shift}(b),

where ``shift`` leaves out the first row and column and adds zeros at the end.  The loops are for numba; JAX shares the
arithmetic.  An argument that ends in ``_bar`` is an adjoint: the derivative of a cost with respect to the value of that
name.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import carray

from pmm_mcmc.coordinates.numba_op import NATIVE, NumbaMap, applied, version_of

SHAPES = "(p),(n),(n),(n),(n),(n)->(n),()"


def shrinkage_of(v, g):
    """Return ``s``, the share of the innovation's variance that data on an element leave."""
    return 1.0 / (1.0 + v * g)


def loadings_of(rho, k, v, g, s):
    """Return ``phi`` and ``c`` of one deviation before, or of all."""
    return (rho - v * k) * s, g * rho + k


def precision_before(row, column, v, g, s, later):
    """Return an entry of the next ``precision``, or all: a sum of squares, as Joseph's form of a Kalman filter.

    ``row`` and ``column`` are ``phi``, ``k`` and ``c`` of those of the entry, and ``later`` is that of the shifted
    precision.
    """
    phi_i, k_i, c_i = row
    phi_j, k_j, c_j = column
    return g * phi_i * phi_j + phi_i * k_j + k_i * phi_j + later + v * (s * c_i) * (s * c_j)


_loop = numba.njit(error_model="numpy")
_shrinkage_of = _loop(shrinkage_of)
_loadings_of = _loop(loadings_of)
_precision_before = _loop(precision_before)


class _Elimination(NamedTuple):
    """What the elimination of each element gives: ``g``, ``s`` and ``eta`` ``(n,)``, ``k`` and ``phi`` ``(n, p)``."""

    g: Any
    s: Any
    eta: Any
    k: Any
    phi: Any


@_loop
def _eliminated(rho, v, mu, a, h):
    """Return the elimination of all elements, by the equations of the module."""
    n = v.size
    p = rho.size
    # Single elements instead of slices, because these loops are compiled into every model's graph.
    g = np.empty(n, v.dtype)
    s = np.empty(n, v.dtype)
    eta = np.empty(n, v.dtype)
    k = np.empty((n, p), v.dtype)
    phi = np.empty((n, p), v.dtype)
    precision = np.zeros((p, p))
    pull = np.zeros(p)
    c = np.empty(p)
    for t in range(n - 1, -1, -1):
        g_t = precision[0, 0] + h[t]
        eta_t = pull[0] + a[t] - h[t] * mu[t]
        s_t = _shrinkage_of(v[t], g_t)
        g[t] = g_t
        s[t] = s_t
        eta[t] = eta_t
        for i in range(p):
            k_i = precision[i + 1, 0] if i + 1 < p else 0.0
            k[t, i] = k_i
            phi[t, i], c[i] = _loadings_of(rho[i], k_i, v[t], g_t, s_t)
            pull[i] = phi[t, i] * eta_t + (pull[i + 1] if i + 1 < p else 0.0)
        # The lower triangle only, in place: an entry takes from the one diagonally below.
        for i in range(p):
            for j in range(i + 1):
                later = precision[i + 1, j + 1] if i + 1 < p else 0.0
                column = phi[t, j], k[t, j], c[j]
                precision[i, j] = _precision_before((phi[t, i], k[t, i], c[i]), column, v[t], g_t, s_t, later)
    return _Elimination(g, s, eta, k, phi)


@_loop
def _deviations(v, elimination, z):
    """Return ``x - mu`` ``(n,)`` at ``z``, from the first element to the last."""
    _, s, eta, _, phi = elimination
    d = np.empty(z.size, z.dtype)
    for t in range(z.size):
        tau = v[t] * s[t]
        d[t] = tau * eta[t] + np.sqrt(tau) * z[t]
        for i in range(min(t, phi.shape[1])):
            d[t] += phi[t, i] * d[t - 1 - i]
    return d


@numba.njit(cache=True, error_model="numpy")
def place(rho, v, mu, a, h, z):
    """Return ``x`` ``(n,)`` at ``z``, and ``log |dx / dz|``."""
    elimination = _eliminated(rho, v, mu, a, h)
    x = _deviations(v, elimination, z)
    log_det = 0.0
    for t in range(x.size):
        x[t] += mu[t]
        log_det += 0.5 * np.log(v[t] * elimination.s[t])
    return x, np.array(log_det, z.dtype)


@numba.njit(cache=True, error_model="numpy")
def to_z(rho, v, mu, a, h, x):
    """Return ``z`` ``(n,)`` at ``x``, and ``log |dx / dz|``: the inverse of :func:`place`."""
    _, s, eta, _, phi = _eliminated(rho, v, mu, a, h)
    z = np.empty(x.size, x.dtype)
    log_det = 0.0
    for t in range(x.size):
        tau = v[t] * s[t]
        log_det += 0.5 * np.log(tau)
        residual = x[t] - mu[t] - tau * eta[t]
        for i in range(min(t, rho.size)):
            residual -= phi[t, i] * (x[t - 1 - i] - mu[t - 1 - i])
        z[t] = residual / np.sqrt(tau)
    return z, np.array(log_det, x.dtype)


@numba.njit(cache=True, error_model="numpy")
def pull_back(rho, v, mu, a, h, z, x_bar, log_det_bar):
    r"""Return the adjoints of the six inputs of :func:`place` from those of its outputs.

    The deviations are undone from the last element, :math:`\bar d_{t-i} \mathrel{+}= \varphi_{ti} \bar d_t`.  Then the
    eliminations are undone from the first element: with ``Q``, symmetric, the adjoint of :math:`\Lambda^{-}`, with
    :math:`\tau = v s` and :math:`w = v s^2`,

    .. math::
       \bar\varphi &= \bar b^{-} \eta + 2 (g Q \varphi + Q k) + \bar d_t y, \quad
       \bar c = 2 w Q c, \quad \bar w = c'Qc, \\
       \bar k &= 2 Q \varphi + \bar c - \tau \bar\varphi, \quad
       \bar\rho \mathrel{+}= g \bar c + s \bar\varphi, \\
       \bar g &= \varphi'Q\varphi + \rho'\bar c
          - \tau (\overline{\log\tau} + \bar\varphi'\varphi + 2 w \bar w), \\
       \bar v &= \overline{\log\tau}\, s / v + s^2 (s (1 - v g) \bar w - \bar\varphi'c).
    """
    n = z.size
    p = rho.size
    elimination = _eliminated(rho, v, mu, a, h)
    d = _deviations(v, elimination, z)
    v_bar = np.empty_like(v)
    mu_bar = np.empty_like(mu)
    a_bar = np.empty_like(a)
    h_bar = np.empty_like(h)
    z_bar = x_bar.copy()
    rho_bar = np.zeros(p, v.dtype)
    for t in range(n - 1, -1, -1):
        for i in range(min(t, p)):
            z_bar[t - 1 - i] += elimination.phi[t, i] * z_bar[t]
    Q = np.zeros((p, p))
    pull_bar = np.zeros(p)
    k_bar = np.empty(p)
    c = np.empty(p)
    for t in range(n):
        g = elimination.g[t]
        s = elimination.s[t]
        eta = elimination.eta[t]
        tau = v[t] * s
        w = v[t] * s * s
        for i in range(p):
            c[i] = _loadings_of(rho[i], elimination.k[t, i], v[t], g, s)[1]
        d_bar = z_bar[t]
        z_bar[t] = np.sqrt(tau) * d_bar
        log_tau_bar = tau * eta * d_bar + 0.5 * z[t] * z_bar[t] + 0.5 * log_det_bar[()]
        eta_bar = tau * d_bar
        g_bar = 0.0
        w_bar = 0.0
        phi_bar_c = 0.0
        phi_bar_phi = 0.0
        for i in range(p):
            Q_phi = 0.0
            Q_c = 0.0
            Q_k = 0.0
            for j in range(p):
                Q_phi += Q[i, j] * elimination.phi[t, j]
                Q_c += Q[i, j] * c[j]
                Q_k += Q[i, j] * elimination.k[t, j]
            phi = elimination.phi[t, i]
            phi_bar = pull_bar[i] * eta + 2.0 * (g * Q_phi + Q_k) + (d_bar * d[t - 1 - i] if i < t else 0.0)
            c_bar = 2.0 * w * Q_c
            k_bar[i] = 2.0 * Q_phi + c_bar - tau * phi_bar
            rho_bar[i] += c_bar * g + phi_bar * s
            eta_bar += pull_bar[i] * phi
            g_bar += phi * Q_phi + c_bar * rho[i]
            w_bar += c[i] * Q_c
            phi_bar_c += phi_bar * c[i]
            phi_bar_phi += phi_bar * phi
        g_bar -= tau * (log_tau_bar + phi_bar_phi + 2.0 * w * w_bar)
        v_bar[t] = log_tau_bar * s / v[t] + s * s * (w_bar * (1.0 - v[t] * g) * s - phi_bar_c)
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
            Q[0, i] = Q[i, 0] = 0.5 * k_bar[i - 1]
    return rho_bar, v_bar, mu_bar, a_bar, h_bar, z_bar


@cache
def native_place():
    """Return :func:`place` as a C function, compiled once a machine."""

    @numba.cfunc(NATIVE, cache=True)
    def native_place(p_pointer, n_pointer, inputs, outputs):
        p = p_pointer[0]
        n = n_pointer[0]
        row = carray(inputs, (p + 5 * n,))
        rows = row[p:].reshape(5, n)
        x, log_det = place(row[:p], rows[0], rows[1], rows[2], rows[3], rows[4])
        out = carray(outputs, (n + 1,))
        out[:n] = x
        out[n] = log_det[()]

    return native_place


@cache
def native_pull_back():
    """Return :func:`pull_back` as a C function likewise."""

    @numba.cfunc(NATIVE, cache=True)
    def native_pull_back(p_pointer, n_pointer, inputs, outputs):
        p = p_pointer[0]
        n = n_pointer[0]
        row = carray(inputs, (p + 6 * n + 1,))
        rows = row[p : p + 6 * n].reshape(6, n)
        bars = pull_back(row[:p], rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], np.array(row[p + 6 * n]))
        out = carray(outputs, (p + 5 * n,))
        out[:p] = bars[0]
        out_rows = out[p:].reshape(5, n)
        out_rows[0], out_rows[1], out_rows[2], out_rows[3], out_rows[4] = bars[1:]

    return native_pull_back


def rows_to_z(rho, v, mu, a, h, x):
    """Return ``z`` and ``log |dx / dz|`` of the ``x`` that :func:`place` gives: arrays whose leading axes broadcast."""

    def one(*row):
        return to_z(*(np.array(values, float) for values in row))  # copies, as in NumbaOp.perform

    return np.vectorize(one, otypes="dd", signature=SHAPES)(rho, v, mu, a, h, x)


def _place_in_jax(rho, v, mu, a, h, z):
    """Return the outputs of :func:`place` by two scans: JAX cannot trace loops that write into arrays."""
    import jax
    import jax.numpy as jnp

    def eliminate(carry, element):
        precision, pull = carry
        v, h, linear = element
        g = precision[0, 0] + h
        eta = pull[0] + linear
        k = jnp.append(precision[0, 1:], 0.0)
        s = shrinkage_of(v, g)
        phi, c = loadings_of(rho, k, v, g, s)
        shifted = jnp.pad(precision[1:, 1:], ((0, 1), (0, 1)))
        precision = precision_before((phi[:, None], k[:, None], c[:, None]), (phi, k, c), v, g, s, shifted)
        return (precision, phi * eta + jnp.append(pull[1:], 0.0)), (v * s, phi, eta)

    def deviation(previous, element):
        tau, phi, eta, z = element
        d = phi @ previous + tau * eta + jnp.sqrt(tau) * z
        return jnp.append(d, previous[:-1]), d

    p = rho.shape[0]
    start = jnp.zeros((p, p), z.dtype), jnp.zeros(p, z.dtype)
    _, (tau, phi, eta) = jax.lax.scan(eliminate, start, (v, h, a - h * mu), reverse=True)
    _, d = jax.lax.scan(deviation, start[1], (tau, phi, eta, z))
    return mu + d, 0.5 * jnp.log(tau).sum()


class WalkMap(NumbaMap):
    """The map of :func:`noncentred_walk`."""

    version = version_of(sys.modules[__name__])
    gufunc_signature = SHAPES
    kernel = staticmethod(place)
    adjoint_kernel = staticmethod(pull_back)
    perform_jax = staticmethod(_place_in_jax)
    position = 5
    differentiable = range(6)

    def on_tape(self, builder, *values):
        """Append a call of the loop to a tape, and return the outputs."""
        n = len(values[self.position])
        out = builder.new((n + 1,))
        builder.foreign(native_place().address, len(values[0]), n, builder.join(0, values), out)
        return [out[:n], out[n:].reshape(())]

    def adjoints_on_tape(self, builder, *values):
        """Append a call of the adjoint loop to a tape, and return the adjoints."""
        p = len(values[0])
        n = len(values[1])
        out = builder.new((p + 5 * n,))
        builder.foreign(native_pull_back().address, p, n, builder.join(0, [np.atleast_1d(v) for v in values]), out)
        return [out[:p], *out[p:].reshape(5, n)]


def noncentred_walk(rho, v, mu, a, h, z):
    r"""Place a random walk or autoregression from standard normals, each element as far non-centred as ``h`` says.

    ``rho`` ``(p,)`` are the coefficients of the elements 1, ..., p before, ``[1.0]`` of a random walk; ``v`` and ``mu``
    ``(n,)`` the variances of the innovations and the means under the prior; ``a`` and ``h >= 0`` ``(n,)`` the
    parameters of the non-centring, both 0 in the non-centred form.  Returns, at ``z`` ``(n,)``, to whose dtype the
    others are cast, :math:`x = \mu + P^{-1} (a - h \mu) + R^{-T} z`, of the module's equation, and
    :math:`\log |dx / dz| = -\sum_t \log R_{tt}`.

    Time :math:`O(n p^2)`, memory :math:`O(n p)`, the gradient included.  With numba, JAX (``jit``, ``vmap``) and
    without a compiler; gradients by all arguments.  Leading axes are batches.
    """
    return applied(WalkMap(), rho, v, mu, a, h, z)
