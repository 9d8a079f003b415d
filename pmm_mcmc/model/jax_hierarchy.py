"""Non-centring of a log density that is a JAX function, from locations and scales that are functions too.

The map is that of :mod:`pmm_mcmc.coordinates.child`, learnt as for a PyMC model.  When the location or scale of a
*child*, a variable that may be non-centred, is evaluated, its own elements and all later children are NaN: if it
depends on one of them after all, the density is NaN rather than wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmm_mcmc.coordinates.child import Child, element_to_x, parameter_slices
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.children import in_order

__all__ = ["Children", "checked_children", "compose_functions"]

# By name: the child's coordinates, and its location and scale as functions of all coordinates.
Children = Mapping[str, tuple[slice, Callable[[Any], Any], Callable[[Any], Any]]]


def checked_children(children: Any, d: int) -> dict[str, tuple[slice, Any, Any]]:
    """Return children, parents before their children, with locations and scales in the shape of the child."""
    form = "must be a dict of name: (slice(start, stop), location, scale), the last two functions of the whole vector"
    if not isinstance(children, Mapping):
        raise ValueError(f"children={children!r}: {form}")
    taken: dict[int, str] = {}
    checked: dict[str, tuple[slice, Any, Any]] = {}
    for name, child in children.items():
        what = f"children[{name!r}]"
        if not (isinstance(name, str) and isinstance(child, tuple) and len(child) == 3 and isinstance(child[0], slice)):
            raise ValueError(f"{what}={child!r}: {form}")
        coordinates = child[0]
        ends = coordinates.start, coordinates.stop
        is_range = coordinates.step in (None, 1) and all(isinstance(end, int | np.integer) for end in ends)
        if not (is_range and 0 <= coordinates.start < coordinates.stop <= d):
            raise ValueError(f"{what}: {coordinates} must be slice(start, stop) of some of the {d} coordinates")
        for i in range(coordinates.start, coordinates.stop):
            if taken.setdefault(i, name) != name:
                raise ValueError(f"{what}: coordinate {i} is of {taken[i]!r} too; each belongs to one child at most")
        size = coordinates.stop - coordinates.start
        location = _sized(child[1], d, size, f"{what}: its location")
        scale = _sized(child[2], d, size, f"{what}: its scale")
        checked[name] = slice(int(coordinates.start), int(coordinates.stop)), location, scale
    return _ordered(checked, d)


def _sized(function: Any, d: int, size: int, what: str) -> Callable[[Any], Any]:
    """Return a location or scale broadcast to ``size`` elements; its shape is checked."""
    if not callable(function):
        raise ValueError(f"{what} is {function!r}: must be a function of the whole vector, such as lambda x: x[0]")
    try:
        with jax.enable_x64(True):
            out = jax.eval_shape(function, jax.ShapeDtypeStruct((d,), np.float64))
    except Exception as error:
        raise ValueError(f"{what} cannot be traced by JAX for a vector of length {d}: {error}") from error
    shape = getattr(out, "shape", None)
    if shape not in ((), (1,), (size,)):
        raise ValueError(f"{what} has shape {shape}: must return one number, or one for each of the {size} elements")
    return lambda x: jnp.broadcast_to(jnp.asarray(function(x), x.dtype), (size,))


def _ordered(children: dict[str, tuple[slice, Any, Any]], d: int) -> dict[str, tuple[slice, Any, Any]]:
    """Return the children, parents first, after a check of what their locations and scales depend on: NaN spreads."""
    with jax.enable_x64(True):
        points = [np.zeros(d), np.random.default_rng(0).normal(size=d)]
        needs = {}
        for name, (coordinates, location, scale) in children.items():
            values = [np.concatenate([location(x), scale(x)]) for x in map(jnp.asarray, points)]
            size = coordinates.stop - coordinates.start
            sound = [i for i, v in enumerate(values) if np.isfinite(v).all() and (v[size:] != 0.0).all()]
            if not sound:
                raise ValueError(
                    f"children[{name!r}]: its location or scale is not finite, or its scale is 0, at the origin "
                    f"({values[0]}) and at random ({values[1]}); scales must be positive, such as exp(x[1])"
                )

            def depends(on: slice, x: Any = points[sound[0]], of: Any = (location, scale)) -> bool:
                poisoned = jnp.asarray(x).at[on].set(jnp.nan)
                return any(bool(jnp.isnan(f(poisoned)).any()) for f in of)

            if depends(coordinates):
                raise ValueError(
                    f"children[{name!r}]: its location or scale depends on {name!r} itself; read what they need by "
                    "index, such as x[0]: a product with zeros depends on all that it is made of"
                )
            needs[name] = {other for other, (where, *_) in children.items() if other != name and depends(where)}
    ordered = in_order(needs)
    if len(ordered) < len(children):
        raise ValueError(f"children: {', '.join(n for n in children if n not in ordered)} depend on each other")
    return {name: children[name] for name in ordered}


def compose_functions(
    fn: Callable[[Any], Any], d: int, children: Children, fixed: Mapping[str, bool]
) -> tuple[Callable[[Any, Any], tuple[Any, Any]], Structure]:
    """Return log density and evaluation as a function of ``z`` and ``noncentring``, and the structure.

    ``fixed`` says which children are non-centred, and whether fully so.
    """
    noncentred = []
    for name, is_fixed in fixed.items():
        coordinates = children[name][0]
        shape = (coordinates.stop - coordinates.start,)
        noncentred.append(Child(name, "elementwise", coordinates.start, shape, is_fixed))
    laws = [children[child.name][1:] for child in noncentred]
    slices = parameter_slices(noncentred)
    free = np.setdiff1d(np.arange(d), np.concatenate([np.arange(d)[child.at] for child in noncentred]))
    free = free.astype(np.int32)  # the same in both precisions: JAX traces the map in each

    def to_x(z: Any, noncentring: Any) -> tuple[Any, Any]:
        """Return ``x`` and the log determinant of the map."""
        x = jnp.full(d, jnp.nan, z.dtype).at[free].set(z[free])
        log_det = jnp.zeros((), z.dtype)
        for child, indices, (location, scale) in zip(noncentred, slices, laws, strict=True):
            mu = location(x)
            L = scale(x)
            element, B = element_to_x(jnp, mu, L, *child.split(noncentring[indices]), z[child.at])
            x = x.at[child.at].set(element)
            log_det += (jnp.log(jnp.abs(L)) - 0.5 * jnp.log(B)).sum()
        return x, log_det

    def evaluate(z: Any, noncentring: Any) -> tuple[Any, Any]:
        (x, log_det), pull_back = jax.vjp(lambda z: to_x(z, noncentring), z)
        lp, gradient = jax.value_and_grad(fn)(x)
        (slope,) = pull_back((gradient, jnp.ones_like(log_det)))
        return lp + log_det, jnp.concatenate([slope, x, gradient, log_det[None]])

    def pulled(z: Any, gradient: Any, noncentring: Any) -> tuple[Any, Any]:
        (x, log_det), pull_back = jax.vjp(lambda z: to_x(z, noncentring), z)
        return x, pull_back((gradient, jnp.ones_like(log_det)))[0]

    pull = _of_many(pulled, (0, 0, None))
    scales = _of_many(lambda x: [(location(x), scale(x)) for location, scale in laws], (0,))
    return evaluate, Structure(d, noncentred, scales, pull)


def _of_many(function: Callable[..., Any], axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return a function of many positions, in double precision; their number is padded to a power of two."""
    compiled = jax.jit(jax.vmap(function, axes))

    def call(*arrays: np.ndarray) -> Any:
        n = len(arrays[0])
        more = (1 << max(n - 1, 63).bit_length()) - n
        padded = [
            a if axis is None else np.concatenate([a, np.broadcast_to(a[:1], (more, *a.shape[1:]))])
            for a, axis in zip(arrays, axes, strict=True)
        ]
        with jax.enable_x64(True):
            return jax.tree.map(lambda out: np.asarray(out)[:n], compiled(*padded))

    return call
