"""The structure of a PyMC model, read from its graph, and its log density as a function of non-centred coordinates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pmm_mcmc.coordinates.banded import banded_sites
from pmm_mcmc.coordinates.site import elementwise, grouped_shift, grouped_terms, place
from pmm_mcmc.coordinates.structure import Child, Structure
from pmm_mcmc.model.families import MOST_GROUPED, SIGNED, Law, law_of
from pmm_mcmc.model.outputs import python_function

__all__ = ["Composed", "compose"]

_log = logging.getLogger("pmm_mcmc")

# Where a scale must vanish with the one that it is sampled with the sign of: its logarithm here.
_NECK = -30.0


class _Read(NamedTuple):
    """A child as read: its random variable, value variable, law in terms of value variables, and its parents."""

    rv: Any
    value: Any
    law: Law
    location: Any
    scale: Any
    rho: Any
    parents: set[Any]
    fixed: bool


class Composed(NamedTuple):
    """A log density in non-centred coordinates.

    Attributes
    ----------
    structure
        What is non-centred.
    flat
        The input ``z``.
    outputs
        Log density and gradient of ``z``; ``x``, the gradient of the model's log density there, log determinant.
    sites
        The shared variable of the sites' numbers.
    """

    structure: Structure
    flat: Any
    outputs: list[Any]
    sites: Any


def compose(
    model: pm.Model,
    vars: Sequence[Any],
    layout: Sequence[tuple[str, tuple[int, ...], int, Any]],
    flat: Any,
    logp: Any,
    gradient: Any,
    start: np.ndarray,
    choices: Mapping[str, str],
) -> Composed | None:
    """Read what is to be non-centred, and compose the change of variables into the log density.

    Parameters
    ----------
    model, vars, layout
        The model, all its value variables, and their names, shapes, sizes and dtypes within the flat vector.
    flat, logp, gradient
        The flat input, the log density and its gradient.
    start
        A flat position at which shapes are looked at.
    choices
        ``"centred"`` or ``"noncentred"`` by name of random variable; the others follow the draws.

    Returns
    -------
    Composed or None
        None where there is nothing to non-centre.
    """
    shapes = {var: shape for var, (_, shape, _, _) in zip(vars, layout, strict=True)}
    children = _in_order(_read(model, shapes, choices))
    if not children:
        return None
    begins = dict(zip(vars, np.cumsum([0, *(size for _, _, size, _ in layout)]), strict=False))
    parts = _split(flat, vars, begins, shapes)
    laws = [_law_at(child, parts, shapes[child.value]) for child in children]
    scales = _scales_function(flat, laws)
    good = [_is_sound(*pair) for pair in scales(start[None])]
    if not all(good):
        names = ", ".join(child.rv.name for child, sound in zip(children, good, strict=True) if not sound)
        _log.warning("The scale of %s is 0 or not finite at the start: sampled as it is written", names)
        centred = {child.rv.name: "centred" for child, sound in zip(children, good, strict=True) if not sound}
        return compose(model, vars, layout, flat, logp, gradient, start, {**choices, **centred})
    signs, signed = _signs(model, vars, children, laws, begins, shapes, scales, start)
    described = [
        Child(
            child.rv.name, law.kind, int(begins[child.value]), shapes[child.value], child.fixed,
            *_parents(model, child, i, begins, shapes, scales, start), sign,
        )
        for i, (child, law, sign) in enumerate(zip(children, laws, signs, strict=True))
    ]  # fmt: skip
    sizes = [one.n_sites for one in described]
    ends = np.cumsum([0, *sizes])
    coordinates = _coordinates(signed, begins, shapes)
    sites = pytensor.shared(np.zeros(ends[-1] + len(coordinates), dtype=flat.dtype), name="sites of the non-centring")

    z = flat.type("z")
    placed, log_det = _split(z, vars, begins, shapes), pt.zeros((), dtype=flat.dtype)
    end_of_signed = int(ends[-1])
    for var in signed:
        v, size = placed[var], int(np.prod(shapes[var], dtype=int))
        unit = sites[end_of_signed : end_of_signed + size].reshape(shapes[var])
        end_of_signed += size
        placed[var] = unit + pt.log(pt.abs(pt.sinh(v)))
        log_det = log_det - pt.log(pt.abs(pt.tanh(v))).sum()
    if len(signed):
        signs_at_z = pt.sign(z)
    for child, one, end in zip(children, described, ends[1:], strict=True):
        law = _law_at(child, placed, one.shape)
        scale = law.scale
        for which in one.signs:
            sign = pt.where(which >= 0, signs_at_z[np.maximum(which, 0)], 1.0)
            scale = scale * sign.astype(flat.dtype)
        own = z[one.begin : one.begin + one.size]
        a, h = one.site(sites[int(end) - one.n_sites : int(end)])
        x, more = _placed(one, law.location, scale, law.rho, a, h, own)
        placed[child.value] = x.reshape(one.shape).astype(child.value.dtype)
        log_det = log_det + more
    x = pt.concatenate([placed[var].ravel() for var in vars]).astype(flat.dtype)
    lp_x, g_x = graph_replace([logp, gradient], {flat: x}, strict=True)
    slope = pytensor.grad((g_x * x).sum() + log_det, z, consider_constant=[g_x])
    pull = _pull_function(z, x, log_det, sites)
    structure = Structure(int(start.size), described, coordinates, scales, pull)
    return Composed(structure, z, [lp_x + log_det, slope, x, g_x, log_det], sites)


def _read(model: pm.Model, shapes: Mapping[Any, tuple[int, ...]], choices: Mapping[str, str]) -> list[_Read]:
    """Return the variables that are a location and a scale given others.

    Raises
    ------
    ValueError
        If a choice is made for a variable that the model does not have, or that cannot be non-centred.
    """
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


def _in_order(children: list[_Read]) -> list[_Read]:
    """Return the children in an order in which each comes after its parents."""
    ordered: list[_Read] = []
    waiting = list(children)
    while waiting:
        values = {child.value for child in waiting}
        ready = [child for child in waiting if not (child.parents & values)]
        if not ready:
            return ordered  # variables that depend on each other: they stay as they are
        ordered += ready
        waiting = [child for child in waiting if child.value not in {one.value for one in ready}]
    return ordered


def _split(
    flat: Any, vars: Sequence[Any], begins: dict[Any, int], shapes: dict[Any, tuple[int, ...]]
) -> dict[Any, Any]:
    out = {}
    for var in vars:
        begin, size = int(begins[var]), int(np.prod(shapes[var], dtype=int))
        out[var] = flat[begin : begin + size].reshape(shapes[var]).astype(var.dtype)
    return out


def _law_at(child: _Read, parts: dict[Any, Any], shape: tuple[int, ...]) -> Law:
    """Return the law as a function of the flat vector, in the shapes that the formulas take."""
    terms = [child.location, child.scale] + ([] if child.rho is None else [child.rho])
    replaced = {var: part for var, part in parts.items() if var in child.parents}
    location, scale, *rho = graph_replace(terms, replaced, strict=False)
    kind, size = child.law.kind, int(np.prod(shape, dtype=int))
    if kind == "vector":
        K = shape[-1]
        kind = "grouped" if K <= MOST_GROUPED else "dense"
        location = pt.broadcast_to(location, shape).reshape((size // K, K) if kind == "grouped" else (size,))
    else:
        location, scale = (pt.broadcast_to(part, shape).reshape((size,)) for part in (location, scale))
    return child.law._replace(location=location, scale=scale, kind=kind, rho=rho[0] if rho else None)


def _placed(child: Child, mu: Any, L: Any, rho: Any, a: Any, h: Any, z: Any) -> tuple[Any, Any]:
    """Return the child's coordinates and the log determinant."""
    if child.kind == "elementwise":
        pull, B = elementwise(mu, L, a, h)
        return mu + L * place(pt, pull, B, z), (pt.log(pt.abs(L)) - 0.5 * pt.log(B)).sum()
    if child.kind == "grouped":
        K = child.shape[-1]
        pull, B = grouped_terms(pt, mu, L, a, h, K)
        w = place(pt, pull, B, z.reshape(a.shape))
        return mu + grouped_shift(pt, L, w, K), child.size // K * pt.log(pt.diagonal(L)).sum() - 0.5 * pt.log(B).sum()
    if child.kind == "dense":
        C = pt.linalg.cholesky(pt.eye(child.size, dtype=z.dtype) + (L.T * h) @ L)
        w = pt.linalg.solve_triangular(C, L.T @ (a - h * mu), lower=True) + z
        w = pt.linalg.solve_triangular(C.T, w, lower=False)
        return mu + L @ w, pt.log(pt.diagonal(L)).sum() - pt.log(pt.diagonal(C)).sum()
    return banded_sites(rho, L**2, mu, a, h, z * pt.sign(L) if child.signs else z)


def _scales_function(flat: Any, laws: list[Law]) -> Any:
    """Return locations and scales of the children at many positions."""
    outputs = []
    for law in laws:
        outputs += [law.location, law.scale] + ([] if law.rho is None else [law.rho])
    batch = pt.matrix("positions", dtype=flat.dtype)
    many = [pt.broadcast_to(v, (batch.shape[0], *v.shape[1:])) if v.ndim > u.ndim else _repeated(v, batch)
            for u, v in zip(outputs, vectorize_graph(outputs, {flat: batch}), strict=True)]  # fmt: skip
    compiled: list[Any] = []

    def scales(x: np.ndarray) -> list[tuple[Any, Any]]:
        if not compiled:
            compiled.append(python_function([batch], many))
        with np.errstate(all="ignore"):
            values = iter([np.asarray(v, dtype=float) for v in compiled[0](np.ascontiguousarray(x, batch.dtype))])
        found: list[tuple[Any, Any]] = []
        for law in laws:
            mu, L = next(values), next(values)
            found.append((mu, L) if law.rho is None else (mu, (L**2, next(values))))
        return found

    return scales


def _is_sound(mu: np.ndarray, L: Any) -> bool:
    """Whether a location is finite, and a scale finite and not 0."""
    scale = L[0] if isinstance(L, tuple) else L
    diagonal = np.diagonal(scale, axis1=-2, axis2=-1) if scale.ndim > 2 else scale
    return bool(np.isfinite(mu).all() and np.isfinite(scale).all() and (diagonal != 0.0).all())


def _repeated(value: Any, batch: Any) -> Any:
    """Return what does not depend on the position once for each."""
    return pt.broadcast_to(value, (batch.shape[0], *value.shape))


def _pull_function(z: Any, x: Any, log_det: Any, sites: Any) -> Any:
    """Return ``x`` and the gradient of the log density of ``z`` from that of ``x``, at many positions."""
    g = z.type("gradient")
    slope = pytensor.grad((g * x).sum() + log_det, z, consider_constant=[g])
    numbers = pt.vector("sites", dtype=sites.dtype)
    outputs = graph_replace([x, slope], {sites: numbers}, strict=True)
    many_z, many_g = (pt.matrix(name, dtype=z.dtype) for name in ("positions", "gradients"))
    many = vectorize_graph(outputs, {z: many_z, g: many_g})
    compiled: list[Any] = []

    def pull(at: np.ndarray, gradient: np.ndarray, numbers_now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not compiled:
            compiled.append(python_function([many_z, many_g, numbers], many))
        arrays = (np.ascontiguousarray(part, dtype=z.dtype) for part in (at, gradient, numbers_now))
        with np.errstate(all="ignore"):
            found = compiled[0](*arrays)
        return tuple(np.asarray(part, dtype=float) for part in found)  # type: ignore[return-value]

    return pull


# -- signs -----------------------------------------------------------------------------------------------------------


def _signs(
    model: pm.Model, vars: Sequence[Any], children: list[_Read], laws: list[Law], begins: dict[Any, int],
    shapes: dict[Any, tuple[int, ...]], scales: Any, start: np.ndarray,
) -> tuple[list[tuple[np.ndarray, ...]], list[Any]]:  # fmt: skip
    """Find the scales that may be sampled with a sign, and whose sign each element of a child has.

    A scale may where it is a variable without parents of a family in :data:`SIGNED`, and where every child whose scale
    vanishes with it has symmetric noise and is proportional to it in the end: then the child is a smooth function of
    the signed scale across 0.  Factors of a product of such scales, as a horseshoe has, keep their logarithms: with
    signs two of three runs of each horseshoe of ``benchmarks/hierarchies.py`` were refused, without none of six.
    """
    candidates: list[tuple[Any, dict[int, np.ndarray]]] = []
    taken = {child.value for child in children}
    for rv in model.free_RVs:
        var = model.rvs_to_values[rv]
        transform = type(model.rvs_to_transforms[rv]).__name__
        if type(rv.owner.op).__name__ not in SIGNED or transform != "LogTransform" or var in taken:
            continue
        found = [_owners(var, law, i, begins, shapes, scales, start) for i, law in enumerate(laws)
                 if var in children[i].parents]  # fmt: skip
        which = [i for i in range(len(laws)) if var in children[i].parents]
        owners = {i: owner for i, owner in zip(which, found, strict=True) if owner is not None}
        if len(owners) == len(which) and any((owner >= 0).any() for owner in owners.values()):
            candidates.append((var, {i: owner for i, owner in owners.items() if (owner >= 0).any()}))
    factors = [i for _, owners in candidates for i in owners]
    chosen = [(var, owners) for var, owners in candidates if all(factors.count(i) == 1 for i in owners)]
    signs = [tuple(owners[i] for _, owners in chosen if i in owners) for i in range(len(children))]
    return signs, [var for var, _ in chosen]


def _owners(
    var: Any, law: Law, i: int, begins: dict[Any, int], shapes: dict[Any, tuple[int, ...]], scales: Any,
    start: np.ndarray,
) -> np.ndarray | None:  # fmt: skip
    """Return for each element of a child the coordinate of ``var`` that its scale is proportional to, near 0, or -1.

    None where the scale vanishes otherwise, or the sign would matter.
    """
    size = int(np.prod(shapes[var], dtype=int))
    at = slice(int(begins[var]), int(begins[var]) + size)
    rng = np.random.default_rng(0)
    x = np.repeat(start[None, :], 3, axis=0)
    x[:, at] = _NECK
    shift = rng.uniform(0.2, 1.0, size=(2, size))
    x[1:, at] += shift
    mu, L = scales(x)[i]
    if not np.allclose(mu[1:], mu[0], rtol=1e-6, atol=1e-6):
        return None  # of a location that goes to infinity the sign would be seen
    if law.kind == "walk":
        L = np.sqrt(L[0])
    if law.kind in ("grouped", "dense"):
        L = L.reshape(3, -1)
        with np.errstate(all="ignore"):
            same = np.allclose(L[1:], L[0], rtol=1e-6, atol=0.0)
        return np.full(1, -1) if same else None
    with np.errstate(all="ignore"):
        change = np.log(L[1:] / L[0])
    owner = np.full(L.shape[1], -1)
    still = (np.abs(change) < 1e-6).all(axis=0)
    order = np.argsort(shift[0])
    place = np.clip(np.searchsorted(shift[0][order], change[0]), 0, size - 1)
    nearest = np.where(
        np.abs(shift[0][order][np.maximum(place - 1, 0)] - change[0]) < np.abs(shift[0][order][place] - change[0]),
        order[np.maximum(place - 1, 0)], order[place],
    )  # fmt: skip
    follows = (np.abs(shift[:, nearest] - change) < 1e-4).all(axis=0)
    if not law.symmetric or not (still | follows).all():
        return owner if still.all() else None
    owner[follows & ~still] = at.start + nearest[follows & ~still]
    return owner


def _coordinates(signed: list[Any], begins: dict[Any, int], shapes: dict[Any, tuple[int, ...]]) -> np.ndarray:
    parts = [np.arange(int(np.prod(shapes[var], dtype=int))) + int(begins[var]) for var in signed]
    return np.concatenate(parts).astype(int) if parts else np.zeros(0, dtype=int)


# -- names -----------------------------------------------------------------------------------------------------------


def _parents(
    model: pm.Model, child: _Read, i: int, begins: dict[Any, int], shapes: dict[Any, tuple[int, ...]], scales: Any,
    start: np.ndarray,
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """Return the names of what a child is non-centred about and scaled by: the nearest named variables.

    Graphs mention some for their shape alone: values decide.
    """
    rng, moving = np.random.default_rng(1), []
    for var in child.parents:
        x = np.repeat(start[None, :], 2, axis=0)
        size = int(np.prod(shapes[var], dtype=int))
        x[1, int(begins[var]) : int(begins[var]) + size] += rng.uniform(0.1, 0.5, size)
        mu, L = scales(x)[i]
        L = L[0] if child.law.kind == "walk" else L
        moving.append((var, *(not np.array_equal(part[0], part[1], equal_nan=True) for part in (mu, L))))
    return tuple(
        _names(model, graph, {var for var, *moves in moving if moves[which]})
        for which, graph in enumerate((child.law.location, child.law.scale))
    )  # type: ignore[return-value]


def _names(model: pm.Model, graph: Any, values: set[Any]) -> tuple[str, ...]:
    """Return the named variables nearest to a graph that it is a function of, by the value variables behind them."""
    named = {*model.free_RVs, *model.deterministics}
    of = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    found: dict[str, None] = {}
    seen, waiting = set(), [graph]
    while waiting:
        variable = waiting.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if variable in named:
            if any(of.get(above) in values for above in ancestors([variable])):
                found[variable.name] = None
        elif variable.owner is not None:
            waiting += reversed(variable.owner.inputs)
    return tuple(found)
