r"""The non-centring map of one element given its location and scale, for NumPy, JAX and PyTensor alike.

An element ``x`` with prior ``x = mu + L w`` given its parents, ``w`` of unit scale, is sampled as ``z``:

.. math:: w = \frac{L (a - h \mu)}{B} + \frac{z}{\sqrt B}, \qquad B = 1 + L^2 h, \qquad
   \log\Bigl|\frac{\partial x}{\partial z}\Bigr| = \log|L| - \tfrac12 \log B .

The parameters ``(a, h)`` stand for the rest of the posterior as ``x`` sees it, :math:`\exp(a x - h x^2 / 2)`.  With
``h = 0`` this is the non-centred form and with ``h`` large the centred one.  Nothing is divided by ``L``, so that the
map is exact at both ends: ``x -> mu + L z`` for ``L -> 0`` and ``x -> a/h + z / sqrt(h)`` for ``L -> inf``.  It is the
law of ``x`` if prior and rest are Gaussian; for others it is a change of variables all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["to_x", "to_z"]


def to_x(xp: Any, mu: Any, L: Any, a: Any, h: Any, z: Any) -> tuple[Any, Any]:
    """Return ``x`` and ``B`` of each element; ``xp`` is the namespace of NumPy, JAX or PyTensor."""
    B = 1.0 + L * L * h
    return mu + L * (L * (a - h * mu) / B + z / xp.sqrt(B)), B


def to_z(mu: Any, L: Any, a: Any, h: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return ``z``, ``w`` and ``B`` of each element: the inverse of :func:`to_x`."""
    B = 1.0 + L * L * h
    w = (x - mu) / L
    return np.sqrt(B) * (w - L * (a - h * mu) / B), w, B
