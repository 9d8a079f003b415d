r"""Exact flows of the linear SDEs behind every method: :math:`A_h`, :math:`G_h`, :math:`\Gamma_h`.

A *dynamics* is a linear SDE plus a constant drift ``b``.  Over a time ``h`` its state, position and velocity
``(u, v)``, moves by

.. math:: X_{t+h} = A_h X_t + G_h b + \Gamma_h W, \qquad W \sim N(0, I),

coordinate by coordinate: every matrix is 2 x 2 and the same for all coordinates.  The Poisson midpoint method relies
on the *scaling relations* :math:`A_{g+h} = A_g A_h`, :math:`G_{g+h} = A_h G_g + G_h` and
:math:`\Gamma_{g+h}^2 = A_h \Gamma_g^2 A_h^T + \Gamma_h^2`.

Each function is written once, over the namespace of an array library: NumPy (which numba compiles) or JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable


class Flow(NamedTuple):
    r"""The flow over a time ``h``: the entries of :math:`A_h`, :math:`G_h` and a square root of :math:`\Gamma_h^2`.

    The root is triangular with the velocity first: with standard normals ``w1``, ``w2`` the noise is
    ``nv = n_vv * w1`` and ``nu = n_uv * w1 + n_uu * w2``.
    """

    a_uu: Any
    a_uv: Any
    a_vu: Any
    a_vv: Any
    g_u: Any
    g_v: Any
    n_vv: Any
    n_uv: Any
    n_uu: Any


# Below this gamma*h the closed forms of the underdamped flow lose digits (one in x^2, two in x^3) and a
# power series takes over: 19 terms leave 0.5^19 2^21 / 22! < 1e-20.
_SERIES_BELOW = 0.5
_PHI2_SERIES = tuple((-1.0) ** n / math.factorial(n + 2) for n in range(19))
_PSI3_SERIES = tuple((-1.0) ** n * (2.0 ** (n + 2) - 2.0) / math.factorial(n + 3) for n in range(19))
# The harmonic flow likewise: a recurrence of 24 terms below h * max(1, friction) = 0.5.
_HARMONIC_TERMS = 24
_INVERSES = (0.0, *(1.0 / n for n in range(1, _HARMONIC_TERMS + 2)))


@register_jitable
def _horner(x, coefficients):
    """Return a polynomial at ``x``, from its coefficients with the constant first."""
    total = 0.0 * x
    for n in range(len(coefficients) - 1, -1, -1):
        total = total * x + coefficients[n]
    return total


@register_jitable
def select(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` or ``b``: ``numpy.where`` for scalars, which numba would turn into 0-dimensional arrays."""
    return a if condition else b


@register_jitable
def _harmonic_series(h, friction):
    """Return ``a_uv``, ``a_vv``, ``1 - a_uu`` and the variances of position and velocity, for a short time.

    ``s`` and ``c`` are Taylor terms of ``a_uv`` and ``a_vv`` (a linear ODE), ``p``, ``q`` and ``r`` those of their
    products ``a_uv^2``, ``a_uv a_vv`` and ``a_vv^2``.  The variances of the noise are integrals of these, without the
    cancellation in ``1 - a_uu^2 - a_uv^2``.
    """
    s = 0.0 * h
    c = 1.0 + 0.0 * h
    p = 0.0 * h
    q = 0.0 * h
    r = 1.0 + 0.0 * h
    a_uv = s
    a_vv = c
    one_minus_a_uu = 0.0 * h
    int_p = 0.0 * h
    int_r = h
    for n in range(1, _HARMONIC_TERMS):
        k = h * _INVERSES[n]
        next_c = k * (-friction * c - s)
        s = k * c
        c = next_c
        next_q = k * (r - friction * q - p)
        p = k * 2.0 * q
        r = k * (-2.0 * friction * r - 2.0 * q)
        q = next_q
        k = h * _INVERSES[n + 1]
        a_uv = a_uv + s
        a_vv = a_vv + c
        one_minus_a_uu = one_minus_a_uu + k * s
        int_p = int_p + k * p
        int_r = int_r + k * r
    return a_uv, a_vv, one_minus_a_uu, 2.0 * friction * int_p, 2.0 * friction * int_r


def _build_harmonic(xp: Any, where: Callable[..., Any]) -> Callable[..., Flow]:
    """Return the flow ``harmonic``; the arguments are those of :func:`build_flows`."""

    @register_jitable
    def harmonic_closed(h, friction):
        """Return what :func:`_harmonic_series` does, by the closed form: damped ``cos(w h)`` and ``sin(w h) / w``.

        ``disc`` is ``w^2``: negative under strong friction, where they are hyperbolic; near 0 power series take over.
        """
        half = 0.5 * friction
        disc = 1.0 - half * half
        z2 = disc * h * h
        root = xp.sqrt(xp.abs(disc))
        rate = where(root > 0.0, root, 1.0)
        z = rate * h
        decay = xp.exp(-half * h)
        real = where(disc < 0.0, root, 0.0)
        slow = xp.exp((real - half) * h)
        fast = xp.exp(-(real + half) * h)
        near = xp.abs(z2) < 1e-2
        cos_like = where(disc > 0.0, decay * xp.cos(z), 0.5 * (slow + fast))
        sin_like = where(disc > 0.0, decay * xp.sin(z) / rate, 0.5 * (slow - fast) / rate)
        limit = where(near, z2, 0.0)
        cos_like = where(
            near,
            decay * (1.0 - limit / 2.0 * (1.0 - limit / 12.0 * (1.0 - limit / 30.0 * (1.0 - limit / 56.0)))),
            cos_like,
        )
        sin_like = where(
            near,
            decay * h * (1.0 - limit / 6.0 * (1.0 - limit / 20.0 * (1.0 - limit / 42.0 * (1.0 - limit / 72.0)))),
            sin_like,
        )
        a_uv = sin_like
        a_vv = cos_like - half * sin_like
        a_uu = cos_like + half * sin_like
        return (
            a_uv,
            a_vv,
            1.0 - a_uu,
            xp.maximum(1.0 - a_uu * a_uu - a_uv * a_uv, 0.0),
            xp.maximum(1.0 - a_uv * a_uv - a_vv * a_vv, 0.0),
        )

    def harmonic(h, friction):
        r"""Kinetic Langevin on a unit Gaussian, ``dv = -friction v dt - u dt + b dt + sqrt(2 friction) dB``.

        :math:`A_h = \exp(h [[0, 1], [-1, -\gamma]])` and :math:`\Gamma_h^2 = I - A_h A_h^T`.
        """
        small = h * xp.maximum(friction, 1.0) < _SERIES_BELOW
        series = _harmonic_series(where(small, h, 0.0), friction)
        closed = harmonic_closed(where(small, 1.0, h), friction)
        a_uv = where(small, series[0], closed[0])
        a_vv = where(small, series[1], closed[1])
        one_minus_a_uu = where(small, series[2], closed[2])
        var_u = where(small, series[3], closed[3])
        var_v = where(small, series[4], closed[4])
        n_vv = xp.sqrt(var_v)
        n_uv = friction * a_uv * a_uv / where(n_vv > 0.0, n_vv, 1.0)
        n_uu = xp.sqrt(xp.maximum(var_u - n_uv * n_uv, 0.0))
        return Flow(1.0 - one_minus_a_uu, a_uv, -a_uv, a_vv, one_minus_a_uu, a_uv, n_vv, n_uv, n_uu)

    return harmonic


def build_flows(xp: Any, where: Callable[..., Any]) -> SimpleNamespace:
    """Return the flows ``overdamped``, ``underdamped`` and ``harmonic``, each a function of ``(h, friction)``.

    ``xp`` is ``numpy`` or ``jax.numpy``; ``where`` is ``xp.where`` for arrays, :func:`select` for the scalars of a
    numba loop.
    """

    @register_jitable
    def phi1(x):
        """Return ``(1 - exp(-x)) / x``."""
        return where(x > 0.0, -xp.expm1(-x) / where(x > 0.0, x, 1.0), 1.0)

    @register_jitable
    def phi2(x):
        """Return ``(x - 1 + exp(-x)) / x^2``."""
        large = where(x > _SERIES_BELOW, x, 1.0)
        return where(
            x > _SERIES_BELOW,
            (large + xp.expm1(-large)) / (large * large),
            _horner(where(x > _SERIES_BELOW, 0.0, x), _PHI2_SERIES),
        )

    @register_jitable
    def psi3(x):
        """Return ``(x - 2 (1 - exp(-x)) + (1 - exp(-2 x)) / 2) / x^3``."""
        large = where(x > _SERIES_BELOW, x, 1.0)
        return where(
            x > _SERIES_BELOW,
            (large + 2.0 * xp.expm1(-large) - 0.5 * xp.expm1(-2.0 * large)) / (large * large * large),
            _horner(where(x > _SERIES_BELOW, 0.0, x), _PSI3_SERIES),
        )

    def overdamped(h, friction):
        r"""Overdamped Langevin: ``A = 1``, ``G = h``, ``Gamma = sqrt(2 h)`` on the position; there is no velocity."""
        zero = 0.0 * h
        return Flow(1.0 + zero, zero, zero, zero, h + zero, zero, zero, zero, xp.sqrt(2.0 * h))

    def underdamped(h, friction):
        r"""Kinetic Langevin, ``du = v dt``, ``dv = -friction v dt + b dt + sqrt(2 friction) dB``."""
        x = friction * h
        p1 = phi1(x)
        p1_twice = phi1(2.0 * x)
        n_vv = xp.sqrt(2.0 * x * p1_twice)
        n_uv = h * xp.sqrt(x) * p1 * p1 / xp.sqrt(2.0 * p1_twice)
        schur = 2.0 * psi3(x) - p1 * p1 * p1 * p1 / (2.0 * p1_twice)
        n_uu = h * xp.sqrt(x * schur)
        return Flow(1.0 + 0.0 * h, h * p1, 0.0 * h, xp.exp(-x), h * h * phi2(x), h * p1, n_vv, n_uv, n_uu)

    return SimpleNamespace(overdamped=overdamped, underdamped=underdamped, harmonic=_build_harmonic(xp, where))


flows = build_flows(np, np.where)
