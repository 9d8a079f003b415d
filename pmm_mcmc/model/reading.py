"""The variables of a PyMC model that are a location and a scale given others, as its graph shows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pmm_mcmc.coordinates.child import Child
from pmm_mcmc.coordinates.factors import Factor
from pmm_mcmc.model.children import in_order
from pmm_mcmc.model.families import MOST_GROUPED, SIGNED, Law, law_of
from pmm_mcmc.model.outputs import python_function

__all__ = ["Reading", "children_of", "read"]

_log = logging.getLogger("pmm_mcmc")


class _Read(NamedTuple):
    """A child: its random variable, value variable, law in terms of value variables, and parents."""

    rv: Any
    value: Any
    law: Law
    location: Any
    scale: Any
    rho: Any
    parents: set[Any]
    fixed: bool


def read(
    model: pm.Model,
    vars: Sequence[Any],
    layout: Sequence[tuple[str, tuple[int, ...], int, Any]],
    flat: Any,
    start: np.ndarray,
    choices: Mapping[str, str],
) -> Reading | None:
    """Read which variables can be non-centred and which scales may have a sign; None where there is neither.

    Parameters
    ----------
    model, vars, layout
        The model, all its value variables, and their names, shapes, sizes and dtypes within the flat vector.
    flat, start
        The flat input, and a position ``x`` at which shapes and scales are looked at.
    choices
        ``"centred"`` or ``"noncentred"`` by name of random variable; the others follow the draws.

    Raises
    ------
    ValueError
        If a choice is made for a variable that the model does not have, or that cannot be non-centred.
    """
    shapes = {var: shape for var, (_, shape, _, _) in zip(vars, layout, strict=True)}
    children = _ordered(_children(model, shapes, choices))
    if not children and not any(type(rv.owner.op).__name__ in SIGNED for rv in model.free_RVs):
        return None
    reading = Reading(model, shapes, children, flat, start)
    good = [_is_sound(*pair) for pair in reading.scales(reading.start[None])]
    if all(good):
        return reading
    bad = [child.rv.name for child, sound in zip(children, good, strict=True) if not sound]
    _log.warning("The scale of %s is 0 or not finite at the start: sampled as it is written", ", ".join(bad))
    return read(model, vars, layout, flat, start, {**choices, **{name: "centred" for name in bad}})


def children_of(model: pm.Model) -> list[str]:
    """Return the names of the variables that can be non-centred."""
    point = model.initial_point(0)
    return [child.rv.name for child in _children(model, {var: point[var.name].shape for var in model.value_vars}, {})]


class Reading:
    """The children of a model, and their locations and scales as functions of the position.

    Attributes
    ----------
    shapes, at : dict
        Shape and coordinates of each value variable, in the order of the flat vector.
    children : list of _Read
        In an order in which each comes after its parents.
    factors : dict of Factor
        Parents that are packed Cholesky factors of covariances, by value variable.
    start : (d,)
        A position ``p``.
    """

    def __init__(
        self,
        model: pm.Model,
        shapes: Mapping[Any, tuple[int, ...]],
        children: list[_Read],
        flat: Any,
        start: np.ndarray,
    ):
        self.model = model
        self.shapes = shapes
        self.children = children
        self._flat = flat
        sizes = [int(np.prod(shape, dtype=int)) for shape in shapes.values()]
        ends = np.cumsum([0, *sizes])
        self.at = {var: slice(int(ends[i]), int(ends[i + 1])) for i, var in enumerate(shapes)}
        parents = set().union(*(child.parents for child in children))
        self.factors = {
            value: Factor(self.at[value].start, int(np.sqrt(2 * shapes[value][0])))
            for rv, value in model.rvs_to_values.items()
            if value in parents and type(model.rvs_to_transforms[rv]).__name__ == "CholeskyCovPacked"
        }
        self.start = start.copy()
        for factor in self.factors.values():
            self.start[factor.at] = factor.undone(start[None, factor.at])[0][0]
        values, _ = self.values({var: flat[coordinates] for var, coordinates in self.at.items()})
        self._laws = [self.law_at(child, values) for child in children]
        self._function: Any = None

    def values(self, parts: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any]:
        """Return the model's value variables at the parts of ``p``, and the log determinant of them by it."""
        parts = dict(parts)
        log_det = pt.zeros((), dtype=self._flat.dtype)
        for var, factor in self.factors.items():
            parts[var], more = factor.to_x(pt, parts[var])
            log_det = log_det + more
        return {var: block.reshape(self.shapes[var]).astype(var.dtype) for var, block in parts.items()}, log_det

    def x_of(self, p: np.ndarray) -> np.ndarray:
        """Return the model's position."""
        x = p.copy()
        for factor in self.factors.values():
            x[factor.at] = factor.to_x(np, p[factor.at])[0]
        return x

    def law_at(self, child: _Read, values: Mapping[Any, Any]) -> Law:
        """Return the law as a function of the value variables given, in the shapes that the formulas take."""
        terms = [child.location, child.scale] + ([] if child.rho is None else [child.rho])
        replaced = {var: value for var, value in values.items() if var in child.parents}
        location, scale, *rho = graph_replace(terms, replaced, strict=False)
        kind = child.law.kind
        shape = self.shapes[child.value]
        size = int(np.prod(shape, dtype=int))
        if kind == "vector":
            K = shape[-1]
            kind = "grouped" if K <= MOST_GROUPED else "dense"
            location = pt.broadcast_to(location, shape).reshape((size // K, K))
        else:
            location, scale = (pt.broadcast_to(parameter, shape).reshape((size,)) for parameter in (location, scale))
        return child.law._replace(location=location, scale=scale, kind=kind, rho=rho[0] if rho else None)

    def scales(self, p: np.ndarray) -> list[tuple[Any, Any]]:
        """Return locations and scales of the children at many positions ``p``."""
        if self._function is None:
            outputs = []
            for law in self._laws:
                outputs += [law.location, law.scale] + ([] if law.rho is None else [law.rho])
            batch = pt.matrix("positions", dtype=self._flat.dtype, shape=(None, len(self.start)))
            batched = vectorize_graph(outputs, {self._flat: batch})
            # What does not depend on the position is repeated for each.
            repeated = [
                pt.broadcast_to(new, (batch.shape[0], *(new.shape[1:] if new.ndim > one.ndim else new.shape)))
                for one, new in zip(outputs, batched, strict=True)
            ]
            self._function = python_function([batch], repeated)
        with np.errstate(all="ignore"):
            results = self._function(np.ascontiguousarray(p, self._flat.dtype))
        values = iter([np.asarray(value, dtype=float) for value in results])
        out: list[tuple[Any, Any]] = []
        for law in self._laws:
            mu = next(values)
            L = next(values)
            out.append((mu, L) if law.rho is None else (mu, (L**2, next(values))))
        return out

    def described(self) -> list[Child]:
        """Return the children with the nearest named variables that their locations and scales depend on.

        Graphs mention some variables for their shape alone: values decide.
        """
        rng = np.random.default_rng(1)
        parents = list(dict.fromkeys(var for child in self.children for var in child.parents))
        p = np.repeat(self.start[None, :], 1 + len(parents), axis=0)
        for i, var in enumerate(parents):
            coordinates = self.at[var]
            p[1 + i, coordinates] += rng.uniform(0.1, 0.5, coordinates.stop - coordinates.start)
        out = []
        for child, law, (mu, L) in zip(self.children, self._laws, self.scales(p), strict=True):
            names = []
            for graph, values in ((child.law.location, mu), (child.law.scale, L[0] if isinstance(L, tuple) else L)):
                moved = {
                    var
                    for i, var in enumerate(parents)
                    if var in child.parents and not np.array_equal(values[0], values[1 + i], equal_nan=True)
                }
                names.append(_names(self.model, graph, moved))
            begin = self.at[child.value].start
            shape = self.shapes[child.value]
            out.append(Child(child.rv.name, law.kind, begin, shape, child.fixed, *names))
        return out

    def by_hand(self, signed: np.ndarray) -> tuple[str, ...]:
        """Return the names of signed scales of which no child is a function."""
        parents = {var for child in self.children for var in child.parents}
        return tuple(
            rv.name
            for rv in self.model.free_RVs
            if (value := self.model.rvs_to_values[rv]) not in parents
            and any(i in range(self.at[value].start, self.at[value].stop) for i in signed)
        )

    def scales_with_sign(self) -> list[np.ndarray]:
        """Return the coordinates, a variable each, of logarithms of scales whose density at 0 is symmetric or flat."""
        out = []
        taken = {child.value for child in self.children}
        for rv in self.model.free_RVs:
            value = self.model.rvs_to_values[rv]
            op = type(rv.owner.op).__name__
            if value in self.factors:
                if type(rv.owner.inputs[-1].owner.op).__name__ in SIGNED:
                    out.append(self.factors[value].scales)
            elif value not in taken and op in SIGNED:
                if type(self.model.rvs_to_transforms[rv]).__name__ == "LogTransform":
                    out.append(np.arange(self.at[value].start, self.at[value].stop))
        return out


def _children(model: pm.Model, shapes: Mapping[Any, tuple[int, ...]], choices: Mapping[str, str]) -> list[_Read]:
    """Return the variables that are a location and a scale given others."""
    names = [rv.name for rv in model.free_RVs]
    for name in choices:
        if name not in names:
            raise ValueError(
                f"reparametrise: {name!r} is not a free variable of the model, which has {', '.join(names)}"
            )
    children = []
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        choice = choices.get(rv.name)
        law = law_of(rv, model.rvs_to_transforms[rv], shapes[value])
        if law is None or choice == "centred":
            if choice == "noncentred":
                raise ValueError(
                    f"reparametrise: {rv.name!r} cannot be non-centred: its distribution is not one of a location and "
                    "a scale on the unconstrained scale; leave it out"
                )
            continue
        terms = [law.location, law.scale] + ([] if law.rho is None else [law.rho])
        location, scale, *rho = model.replace_rvs_by_values([pt.as_tensor_variable(term) for term in terms])
        parents = {v for v in ancestors([location, scale, *rho]) if v in shapes}
        if parents and value not in parents:
            fixed = choice == "noncentred"
            children.append(_Read(rv, value, law, location, scale, rho[0] if rho else None, parents, fixed))
        elif choice == "noncentred":
            raise ValueError(f"reparametrise: {rv.name!r} has no parents to be non-centred about; leave it out")
    return children


def _ordered(children: list[_Read]) -> list[_Read]:
    """Return the children, each after its parents; those that depend on each other stay as they are."""
    by_value = {child.value: child for child in children}
    return [
        by_value[value] for value in in_order({var: child.parents & set(by_value) for var, child in by_value.items()})
    ]


def _is_sound(mu: np.ndarray, L: Any) -> bool:
    """Whether a location is finite, and a scale finite and positive."""
    scale = L[0] if isinstance(L, tuple) else L
    diagonal = np.diagonal(scale, axis1=-2, axis2=-1) if scale.ndim > 2 else scale
    return bool(np.isfinite(mu).all() and np.isfinite(scale).all() and (diagonal > 0.0).all())


def _names(model: pm.Model, graph: Any, values: set[Any]) -> tuple[str, ...]:
    """Return the names of the nearest variables on which a graph depends, if these depend on some of the ``values``."""
    named = {*model.free_RVs, *model.deterministics}
    of = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    names: dict[str, None] = {}
    visited = set()
    waiting = [graph]
    while waiting:
        variable = waiting.pop()
        if variable in visited:
            continue
        visited.add(variable)
        if variable in named:
            if any(of.get(above) in values for above in ancestors([variable])):
                names[variable.name] = None
        elif variable.owner is not None:
            waiting += reversed(variable.owner.inputs)
    return tuple(names)
