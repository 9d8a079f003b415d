r"""Non-centring of a log density that is a C function, such as a Stan model's.

Every element of a *child*, a variable that may be non-centred, has a location and a scale: each is a constant or a
function of one parent, :math:`c + f v^p`, where ``v`` is the parent on its own scale: the coordinate ``t`` itself,
``low + exp(t)``, ``high - exp(t)`` or a value between two bounds.  The map is that of
:mod:`pmm_mcmc.coordinates.elementwise`, learnt as for a PyMC model.  All of it is data of one compiled function, so
that nothing is compiled for another model.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import carray, cfunc, njit

from pmm_mcmc.coordinates.child import parameter_slices
from pmm_mcmc.coordinates.elementwise import elementwise
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.c_function import CFunction, evaluate
from pmm_mcmc.model.children import noncentred_children
from pmm_mcmc.model.native import SIGNATURE, as_pointer

__all__ = [
    "BOUNDED",
    "IDENTITY",
    "LOWER",
    "UPPER",
    "Elements",
    "LocationOrScale",
    "PointerChild",
    "elements_of",
    "noncentred_native",
    "parent_value",
]

# Maps from a coordinate to the value of a parent.
IDENTITY, LOWER, UPPER, BOUNDED = range(4)
_elementwise = njit(elementwise)


class LocationOrScale(NamedTuple):
    """The location or the scale of a child of ``m`` elements: ``constant + factor * value ** power``.

    Attributes
    ----------
    coordinate : (m,) int
        Coordinate of the parent of each element; -1 for none, whose value is 1.
    coefficients : (m, 6)
        Constant, factor and power; of the parent's value its kind (``IDENTITY`` and so on), its lower bound, and the
        width between its bounds (``UPPER``: its upper bound).
    names
        Names of the parameters that it depends on.
    """

    coordinate: np.ndarray
    coefficients: np.ndarray
    names: tuple[str, ...]


class PointerChild(NamedTuple):
    """A variable that may be sampled non-centred: its coordinates, location and scale."""

    coordinates: slice
    location: LocationOrScale
    scale: LocationOrScale


@njit(error_model="numpy")
def parent_value(kind, low, width, t):
    """Return the value of a parent on its own scale at its coordinate ``t``, and the derivative."""
    if kind == LOWER:
        slope = np.exp(t)
        return low + slope, slope
    if kind == UPPER:
        slope = -np.exp(t)
        return width + slope, slope
    if kind == BOUNDED:
        share = 1.0 / (1.0 + np.exp(-t))
        return low + width * share, width * share * (1.0 - share)
    return t, 1.0


@njit(error_model="numpy")
def _value_and_slope(coordinate, coefficients, x):
    """Return the value of a location or scale at ``x``, and its derivative by the parent's coordinate."""
    constant, factor, power, kind, low, width = coefficients
    if coordinate < 0:
        return constant + factor, 0.0
    value, slope = parent_value(kind, low, width, x[coordinate])
    if power == 1.0:
        return constant + factor * value, factor * slope
    return constant + factor * value**power, factor * power * value ** (power - 1.0) * slope


@njit(cache=True, error_model="numpy")
def _place(z, coordinates, parents, coefficients, noncentring, x):
    """Fill ``x`` with the model's position at ``z``; return the log determinant."""
    x[:] = z
    log_det = 0.0
    for e in range(len(coordinates)):
        mu, _ = _value_and_slope(parents[e, 0], coefficients[e, 0], x)
        L, _ = _value_and_slope(parents[e, 1], coefficients[e, 1], x)
        a, h = noncentring[e]
        pull, B = _elementwise(mu, L, a, h)
        x[coordinates[e]] = mu + L * (pull / B + z[coordinates[e]] / np.sqrt(B))
        log_det += np.log(np.abs(L)) - 0.5 * np.log(B)
    return log_det


@njit(cache=True, error_model="numpy")
def _pull_back(z, x, coordinates, parents, coefficients, noncentring, gradient):
    r"""Turn the ``gradient`` of the log density by ``x`` into that of the log density of ``z``, in place.

    With :math:`x = \mu + L p / B + L z / \sqrt{B}`, :math:`p = L (a - h \mu)` and :math:`B = 1 + L^2 h`,

    .. math::
       \partial x / \partial \mu = 1 / B, \quad \partial x / \partial L = 2 p / B^2 + z / B^{3/2}, \quad
       \partial \log|\partial x / \partial z| / \partial L = 1 / L - L h / B .
    """
    for e in range(len(coordinates) - 1, -1, -1):
        mu, slope_of_mu = _value_and_slope(parents[e, 0], coefficients[e, 0], x)
        L, slope_of_L = _value_and_slope(parents[e, 1], coefficients[e, 1], x)
        a, h = noncentring[e]
        pull, B = _elementwise(mu, L, a, h)
        by_x = gradient[coordinates[e]]
        if parents[e, 0] >= 0:
            gradient[parents[e, 0]] += by_x / B * slope_of_mu
        if parents[e, 1] >= 0:
            by_L = by_x * (2.0 * pull / (B * B) + z[coordinates[e]] / (B * np.sqrt(B))) + 1.0 / L - L * h / B
            gradient[parents[e, 1]] += by_L * slope_of_L
        gradient[coordinates[e]] = by_x * L / np.sqrt(B)


@njit(cache=True, error_model="numpy")
def _locations_and_scales(p, parents, coefficients):
    """Return locations and scales ``(n, m)`` at positions ``(n, d)``."""
    out = np.empty((2, len(p), len(parents)))
    for i in range(len(p)):
        for e in range(len(parents)):
            for side in range(2):
                out[side, i, e] = _value_and_slope(parents[e, side], coefficients[e, side], p[i])[0]
    return out


@njit(cache=True, error_model="numpy")
def _pull_many(z, gradient, coordinates, parents, coefficients, noncentring):
    """Return ``x`` and gradients of the log density of ``z`` from those by ``x``, all ``(n, d)``."""
    x = np.empty_like(z)
    of_z = gradient.copy()
    for i in range(len(z)):
        _place(z[i], coordinates, parents, coefficients, noncentring, x[i])
        _pull_back(z[i], x[i], coordinates, parents, coefficients, noncentring, of_z[i])
    return x, of_z


@cache
def noncentred_native() -> Any:
    """Return the C function of ``z`` for the engine, which reads :meth:`Elements.table`."""

    @cfunc(SIGNATURE)
    def native(z_pointer, evaluation_pointer, table, d):
        with_evaluation = table[3]
        n = table[4]
        coordinates = carray(as_pointer(table[5]), (n,), np.int64)
        parents = carray(as_pointer(table[6]), (n, 2), np.int64)
        coefficients = carray(as_pointer(table[7]), (n, 2, 6), np.float64)
        noncentring = carray(as_pointer(table[8]), (n, 2), np.float64)
        z = carray(z_pointer, (d,))
        of_z = carray(evaluation_pointer, (d,))
        x = np.empty(d)
        gradient = np.empty(d)
        log_det = _place(z, coordinates, parents, coefficients, noncentring, x)
        code, value = evaluate(x, gradient, carray(table, (3,)))
        if code != 0:
            return np.nan
        for i in range(d):
            of_z[i] = gradient[i]
        _pull_back(z, x, coordinates, parents, coefficients, noncentring, of_z)
        if with_evaluation:
            evaluation = carray(evaluation_pointer, (3 * d + 1,))
            for i in range(d):
                evaluation[d + i] = x[i]
                evaluation[2 * d + i] = gradient[i]
            evaluation[3 * d] = log_det
        return value + log_det

    return native


class Elements(NamedTuple):
    """The ``n`` elements of all children, in an order in which each comes after its parents."""

    coordinates: np.ndarray  # (n,)
    parents: np.ndarray  # (n, 2): coordinates of the parents that give location and scale, or -1
    coefficients: np.ndarray  # (n, 2, 6)
    order: np.ndarray  # (n, 2): where a and h of each are among the parameters of the non-centring

    def a_and_h(self, noncentring: np.ndarray) -> np.ndarray:
        """Return ``a`` and ``h`` of each element ``(n, 2)`` from the parameters of the non-centring."""
        return np.ascontiguousarray(noncentring[self.order], dtype=float)

    def table(self, function: CFunction, with_evaluation: bool, noncentring: np.ndarray) -> np.ndarray:
        """Return what :func:`noncentred_native` reads.

        It has the three entries of ``function``; whether evaluations are filled or gradients only
        (``with_evaluation``); the number of elements; the addresses of their coordinates, parents, coefficients and
        ``a`` and ``h``.
        """
        arrays = self.coordinates, self.parents, self.coefficients, self.a_and_h(noncentring)
        addresses = [array.ctypes.data for array in arrays]
        entries = [*function.table, with_evaluation, len(self.coordinates), *addresses]
        table = np.array(entries, dtype=np.int64)
        weakref.finalize(table, list, arrays).atexit = False
        return table


def elements_of(
    d: int, children: Mapping[str, PointerChild], choices: Mapping[str, str]
) -> tuple[Structure, Elements] | None:
    """Return the structure with children non-centred by the ``choices``, and its elements; None where none is left.

    ``children`` come after those that they depend on; ``choices`` are ``"centred"`` or ``"noncentred"`` by name.
    """
    noncentred = noncentred_children(children, choices)
    if not noncentred:
        return None
    laws = [children[child.name][1:] for child in noncentred]
    order = [np.arange(s.start, s.stop).reshape(2, -1).T for s in parameter_slices(noncentred)]
    elements = Elements(
        np.concatenate([np.arange(d)[child.at] for child in noncentred]),
        np.concatenate([np.stack([mu.coordinate, L.coordinate], axis=1) for mu, L in laws]),
        np.concatenate([np.stack([mu.coefficients, L.coefficients], axis=1) for mu, L in laws]),
        np.concatenate(order),
    )

    def scales(p: np.ndarray) -> list[tuple[Any, Any]]:
        mu, L = _locations_and_scales(np.ascontiguousarray(p), elements.parents, elements.coefficients)
        cuts = np.cumsum([child.size for child in noncentred])[:-1]
        return list(zip(np.split(mu, cuts, axis=1), np.split(L, cuts, axis=1), strict=True))

    def pull(z: np.ndarray, gradient: np.ndarray, noncentring: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _pull_many(z, gradient, *elements[:3], elements.a_and_h(noncentring))

    return Structure(d, noncentred, scales, pull), elements
