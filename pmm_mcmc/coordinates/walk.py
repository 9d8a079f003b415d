r"""Random walks and autoregressions of any order, non-centred element by element in O(n).

The prior is :math:`x_t - \mu_t = \sum_{k=1}^p \rho_k (x_{t-k} - \mu_{t-k}) + e_t`, :math:`e_t \sim N(0, v_t)`, with
terms before the first element left out: :math:`A (x - \mu) = e`.  The parameters of the non-centring stand for the
rest of the posterior, :math:`e^{a'x - x'Hx/2}` with :math:`H = diag(h)`.  Both make a Gaussian, whose precision is
:math:`P = A'D^{-1}A + H = R R'`, :math:`D = diag(v)`, and standard normals ``z`` are placed at

.. math:: x = \mu + P^{-1} (a - H \mu) + R^{-T} z.

``R`` is the upper factor: elements are eliminated from the last to the first, so that each is placed given those before
it (:mod:`pmm_mcmc.coordinates.walk_loops` has the recursion).  Nothing is divided by ``v``: ``h = 0`` is the walk drawn
forward, and ``v -> 0``, ``v -> inf`` and a wide start before tiny steps need no care.  (Elimination from the first
element loses the last of these: the precision of the level is below the rounding of 1/v.)
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates import walk_loops
from pmm_mcmc.coordinates.numba_op import NumbaMap, applied, version_of
from pmm_mcmc.coordinates.walk_loops import (
    SHAPES,
    loadings_of,
    native_place,
    native_pull_back,
    place,
    precision_before,
    pull_back,
    shrinkage_of,
)

__all__ = ["noncentred_walk"]


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

    version = version_of(walk_loops)
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
