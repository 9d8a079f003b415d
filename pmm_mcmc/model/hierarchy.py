"""The hierarchy of a PyMC model, read from its graph: which variables have a location and a scale made by others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.rewriting.vectorization import lower_rv
from pytensor.xtensor.shape import Transpose
from pytensor.xtensor.type import XTensorType
from pytensor.xtensor.vectorization import XRV

from pmm_mcmc.coordinates.affine import MOST_DENSE
from pmm_mcmc.coordinates.child import Child
from pmm_mcmc.coordinates.structure import Factor
from pmm_mcmc.model.functions import batched_function
from pmm_mcmc.model.pytensor_density import Layout

_log = logging.getLogger("pmm_mcmc")

# Groups of at most so many elements are non-centred; a single vector may have any length.
MOST_GROUPED = 5


class Law(NamedTuple):
    """The prior of a value variable given its parents: ``location + scale * noise``, in terms of random variables.

    Attributes
    ----------
    location, scale
        Graphs that broadcast to the value variable's shape; of groups and vectors the scale is lower triangular.
    symmetric
        Whether the noise has a symmetric law, so that the sign of the scale has no meaning.
    kind
        Of a child: see :mod:`pmm_mcmc.coordinates.child`.
    rho
        Of a walk: its coefficients.
    """

    location: Any
    scale: Any
    symmetric: bool
    kind: str = "elementwise"
    rho: Any = None

    @property
    def terms(self) -> list[Any]:
        """Location, scale and, of a walk, the coefficients."""
        return [self.location, self.scale] if self.rho is None else [self.location, self.scale, self.rho]

    def with_terms(self, location: Any, scale: Any, rho: Any = None) -> Law:
        """Return the law with other graphs in place of :attr:`terms`."""
        return self._replace(location=location, scale=scale, rho=rho)


# Operations of distributions whose last two parameters are location and scale of the value variable, by transform.
_LOCATION_SCALE = {
    "NoneType": ("NormalRV", "StudentTRV", "LaplaceRV", "CauchyRV", "LogisticRV", "GumbelRV"),
    "LogTransform": ("LogNormalRV",),
}
# Of positive variables: the last parameters of the operation to location and scale of the logarithm, which need not be
# exact: about the logarithm of the scale parameter, and the sd of the logarithm.
_OF_LOGARITHM: dict[str, tuple[int, Callable[..., tuple[Any, Any]]]] = {
    "HalfNormalRV": (1, lambda sigma: (pt.log(sigma), 1.11)),
    "HalfStudentTRV": (1, lambda sigma: (pt.log(sigma), 1.11)),
    "HalfCauchyRV": (1, lambda beta: (pt.log(beta), np.pi / 2)),
    "ExponentialRV": (1, lambda scale: (pt.log(scale), np.pi / np.sqrt(6))),
    "GammaRV": (2, lambda alpha, scale: (pt.log(alpha * scale), alpha**-0.5)),
    "InvGammaRV": (2, lambda alpha, beta: (pt.log(beta / alpha), alpha**-0.5)),
    "WeibullBetaRV": (2, lambda alpha, beta: (pt.log(beta), 1.0 / alpha)),
}
# Positive variables whose density at 0 is neither 0 nor infinite, so that as scales of others they may be sampled with
# a sign.  That of Exponential has a kink there.
SIGNED = ("HalfNormalRV", "HalfCauchyRV", "HalfStudentTRV", "ExponentialRV")


def family_of(rv: Any) -> str:
    """Return the name of the operation that makes a random variable, with or without named dimensions."""
    op = rv.owner.op
    while isinstance(op, Transpose):
        rv = rv.owner.inputs[0]
        op = rv.owner.op
    return type(op.core_op if isinstance(op, XRV) else op).__name__


def law_of(rv: Any, transform: Any, shape: tuple[int, ...]) -> Law | None:
    """Return the law of the value variable of a free random variable, if it is of a location and a scale.

    ``transform`` is PyMC's, or None; ``shape`` that of the value variable.
    """
    node = rv.owner
    if isinstance(node.op, Transpose):
        parent = law_of(node.inputs[0], transform, _before(node, shape))
        if parent is None or parent.kind != "elementwise":
            return None
        n = len(_axes(node))
        terms = [pt.shape_padleft(term, n - term.type.ndim).dimshuffle(_axes(node)) for term in parent.terms]
        return parent.with_terms(*terms)
    if isinstance(node.op, XRV):
        # What PyTensor makes of it: parameters whose axes are in the order of its own.
        rv = lower_rv.fn(None, node)[1].owner.inputs[0]
        node = rv.owner
    op = type(node.op).__name__
    kind = type(transform).__name__
    if op in _LOCATION_SCALE.get(kind, ()):
        location, scale = node.inputs[-2:]
        return Law(location, scale, op != "GumbelRV")
    if kind == "LogTransform" and op in _OF_LOGARITHM:
        count, law = _OF_LOGARITHM[op]
        location, sd = law(*node.inputs[-count:])
        return Law(location, pt.as_tensor_variable(sd), False)
    groups = len(shape) > 0 and int(np.prod(shape[:-1], dtype=int)) > 1 and shape[-1] <= MOST_GROUPED
    single = len(shape) > 0 and int(np.prod(shape[:-1], dtype=int)) == 1
    if op == "MvNormalRV" and transform is None and all(node.inputs[-1].type.broadcastable[:-2]) and (groups or single):
        kind = "grouped" if shape[-1] <= MOST_GROUPED else "dense"
        return Law(node.inputs[-2], _root(node.inputs[-1]), True, kind)
    if op == "ZeroSumNormalRV" and kind == "ZeroSumTransform":
        return Law(pt.zeros(()), node.inputs[-2], True)
    if op == "ICARRV" and transform is None:
        W = node.inputs[-3]
        sigma = node.inputs[-2]
        return Law(pt.zeros(()), sigma / pt.sqrt(W.sum(axis=-1)), True)
    if op == "CARRV" and transform is None and "sparse" not in type(node.inputs[-4].type).__module__:
        mu, W, _, tau, _ = node.inputs[-5:]
        return Law(mu, 1.0 / pt.sqrt(tau * W.sum(axis=-1)), True)
    if op in ("RandomWalkRV", "AutoRegressiveRV") and transform is None and rv.type.ndim == 1:
        return _walk(node, op, *shape)
    return None


def _axes(node: Any) -> list[int]:
    """Return which axis of its input each axis of a transposed variable is."""
    return [node.inputs[0].type.dims.index(dim) for dim in node.outputs[0].type.dims]


def _before(node: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[i] for i in np.argsort(_axes(node)))


def _root(covariance: Any) -> Any:
    """Return a lower triangular root of a covariance: the one that it was made from, where PyMC was given ``chol=``."""
    product = covariance
    while product.owner is not None and len(product.owner.inputs) == 1:
        product = product.owner.inputs[0]
    if product.owner is not None and len(product.owner.inputs) == 2:
        root = product.owner.inputs[0]
        if getattr(root.tag, "lower_triangular", False) and root.type.ndim == 2:
            return root
    # Without the batch axes of length one that PyMC adds to match those of the mean.
    return pt.linalg.cholesky(covariance[(0,) * (covariance.type.ndim - 2)])


def _walk(node: Any, op: str, steps: int) -> Law | None:
    """Return the law of a Gaussian random walk or autoregression: prior means, innovation sds, coefficients."""
    if op == "RandomWalkRV":
        initial, later, _ = node.inputs
        rho = pt.ones((1,))
    else:
        rho, sigma, initial = node.inputs[:3]
        if rho.type.ndim != 1:
            return None
        rho = rho[1:] if node.op.constant_term else rho
        later = None
    if type(initial.owner.op).__name__ != "NormalRV":
        return None
    mean, sd = (pt.atleast_1d(parameter) for parameter in initial.owner.inputs[-2:])
    if op == "AutoRegressiveRV":
        order = node.op.ar_order
        # Later values have the location of the last initial one, which is that of a stationary series; for others the
        # map is as exact, since it is a change of variables for any location.
        location = pt.concatenate([pt.broadcast_to(mean, (order,)), pt.broadcast_to(mean[-1], (steps - order,))])
        scale = pt.concatenate([pt.broadcast_to(sd, (order,)), pt.broadcast_to(sigma, (steps - order,))])
        return Law(location, scale, True, "walk", rho)
    if type(later.owner.op).__name__ != "NormalRV":
        return None
    drift, sigma = later.owner.inputs[-2:]
    location = pt.concatenate([mean, mean + pt.cumsum(pt.broadcast_to(pt.cast(drift, "floatX"), (steps - 1,)))])
    scale = pt.concatenate([sd, pt.broadcast_to(sigma, (steps - 1,))])
    return Law(location, scale, True, "walk", rho)


class ChildVariable(NamedTuple):
    """A variable that can be non-centred.

    Attributes
    ----------
    child
        What chains know of it.
    value
        Its value variable.
    law
        Its prior, in terms of value variables.
    parents
        The value variables among those terms.
    """

    child: Child
    value: Any
    law: Law
    parents: set[Any]


def read_hierarchy(
    model: pm.Model,
    vars: Sequence[Any],
    layout: Layout,
    flat: Any,
    start: np.ndarray,
    choices: Mapping[str, str],
) -> Hierarchy | None:
    """Read which variables can be non-centred and which scales may have a sign; None where there is neither.

    Parameters
    ----------
    model, vars, layout
        The model, all its value variables, and their names, shapes, sizes and dtypes within the flat vector.
    flat, start
        The flat input, and a position ``x`` at which shapes and scales are looked at.
    choices
        ``"centred"`` or ``"noncentred"`` by name of random variable; the others follow the draws.
    """
    shapes = {var: shape for var, (_, shape, _, _) in zip(vars, layout, strict=True)}
    children = ordered_children(_child_variables(model, shapes, choices))
    if not children and not any(family_of(rv) in SIGNED for rv in model.free_RVs):
        return None
    parents = set().union(*(child.parents for child in children))
    packed = [
        value
        for rv, value in model.rvs_to_values.items()
        if value in parents and type(model.rvs_to_transforms[rv]).__name__ == "CholeskyCovPacked"
    ]
    hierarchy = Hierarchy(shapes, children, packed, flat, start)
    scales = hierarchy.scales(hierarchy.start[None])
    bad = [variable.child.name for variable, pair in zip(children, scales, strict=True) if not _is_sound(*pair)]
    if not bad:
        hierarchy.children = _with_names(model, hierarchy)
        return hierarchy
    _log.warning("The scale of %s is 0 or not finite at the start: sampled as it is written", ", ".join(bad))
    return read_hierarchy(model, vars, layout, flat, start, {**choices, **dict.fromkeys(bad, "centred")})


def in_order(needs: Mapping[Any, Collection[Any]]) -> list[Any]:
    """Return the keys, each after those that it needs; without those that need themselves or each other."""
    ordered: list[Any] = []
    while ready := [key for key in needs if key not in ordered and set(needs[key]) <= set(ordered)]:
        ordered += ready
    return ordered


def ordered_children(children: Sequence[ChildVariable]) -> list[ChildVariable]:
    """Return the children, each after its parents, without those that depend on themselves or on each other."""
    by_value = {child.value: child for child in children}
    return [by_value[value] for value in in_order({child.value: child.parents & set(by_value) for child in children})]


def children_of(model: pm.Model) -> list[str]:
    """Return the names of the variables that can be non-centred."""
    point = model.initial_point(0)
    shapes = {var: point[var.name].shape for var in model.value_vars}
    return [variable.child.name for variable in _child_variables(model, shapes, {})]


def _child_variables(
    model: pm.Model, shapes: Mapping[Any, tuple[int, ...]], choices: Mapping[str, str]
) -> list[ChildVariable]:
    """Return the variables that are a location and a scale given others, in the model's order."""
    names = [rv.name for rv in model.free_RVs]
    for name in choices:
        if name not in names:
            raise ValueError(
                f"reparametrise: {name!r} is not a free variable of the model, which has {', '.join(names)}"
            )
    children = []
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes.values()]
    begins = dict(zip(shapes, np.cumsum([0, *sizes]).tolist(), strict=False))
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
        terms = model.replace_rvs_by_values([pt.as_tensor_variable(term) for term in law.terms])
        parents = {var for var in ancestors(terms) if var in shapes}
        if parents and value not in parents:
            child = Child(rv.name, law.kind, begins[value], shapes[value], choice == "noncentred")
            children.append(ChildVariable(child, value, law.with_terms(*terms), parents))
        elif choice == "noncentred":
            raise ValueError(f"reparametrise: {rv.name!r} has no parents to be non-centred about; leave it out")
    return children


def _is_sound(mu: np.ndarray, L: Any) -> bool:
    """Whether a location is finite, and a scale finite and positive."""
    scale = L[0] if isinstance(L, tuple) else L
    diagonal = np.diagonal(scale, axis1=-2, axis2=-1) if scale.ndim > 2 else scale
    return bool(np.isfinite(mu).all() and np.isfinite(scale).all() and (diagonal > 0.0).all())


class Hierarchy:
    """Variables that can be non-centred (*children*), and their locations and scales at a position, as graphs.

    ``x`` and ``p`` are kinds of positions: see :mod:`pmm_mcmc.coordinates.structure`.

    Attributes
    ----------
    shapes, slices : dict
        Shape and coordinates of each value variable, in the order of the flat vector.
    children : list of ChildVariable
        In an order in which each comes after its parents.
    factors : dict of Factor
        Parents that are packed Cholesky factors of covariances, by value variable.
    start : (d,)
        A position ``p``.
    """

    def __init__(
        self,
        shapes: Mapping[Any, tuple[int, ...]],
        children: list[ChildVariable],
        packed: Sequence[Any],
        flat: Any,
        start: np.ndarray,
    ):
        self.shapes = shapes
        self.children = children
        self.dtype = flat.dtype
        ends = np.cumsum([0, *(int(np.prod(shape, dtype=int)) for shape in shapes.values())])
        self.slices = {var: slice(int(ends[i]), int(ends[i + 1])) for i, var in enumerate(shapes)}
        self.factors = {value: Factor(self.slices[value].start, int(np.sqrt(2 * shapes[value][0]))) for value in packed}
        self.start = start.copy()
        for factor in self.factors.values():
            self.start[factor.at] = factor.from_x(start[None, factor.at])[0][0]
        values, _ = self.values({var: flat[indices] for var, indices in self.slices.items()})
        self._laws = [self.law_at(child, values) for child in children]
        self._terms = batched_function(flat, [term for law in self._laws for term in law.terms])

    def indices(self, var: Any) -> np.ndarray:
        """Return the coordinates of a value variable."""
        return np.arange(self.slices[var].start, self.slices[var].stop)

    def swept(self, candidates: Collection[Any]) -> np.ndarray:
        """Return coordinates of those value variables that no child needs and that are none.

        Vectors for which no dense matrix would be fitted have none either.
        """
        used = set(self.factors).union(*({child.value, *child.parents} for child in self.children))
        indices = [self.indices(var) for var in self.shapes if var in candidates and var not in used]
        indices = [of_var for of_var in indices if len(of_var) <= MOST_DENSE]
        return np.concatenate([np.zeros(0, int), *indices])

    def values(self, blocks: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any]:
        """Return the model's value variables, from their blocks of ``p``, and the log determinant of the map."""
        blocks = dict(blocks)
        log_det = pt.zeros((), dtype=self.dtype)
        for var, factor in self.factors.items():
            blocks[var], of_factor = factor.to_x(pt, blocks[var])
            log_det = log_det + of_factor
        return {var: block.reshape(self.shapes[var]).astype(var.dtype) for var, block in blocks.items()}, log_det

    def x_of(self, p: np.ndarray) -> np.ndarray:
        """Return the model's position."""
        x = p.copy()
        for factor in self.factors.values():
            x[factor.at] = factor.to_x(np, p[factor.at])[0]
        return x

    def law_at(self, child: ChildVariable, values: Mapping[Any, Any]) -> Law:
        """Return the law of a child given value variables, in the shapes that the formulas take."""
        parents = {var: value for var, value in values.items() if var in child.parents}
        law = child.law.with_terms(*graph_replace(*_as_tensors(child.law.terms, parents), strict=False))
        shape = self.shapes[child.value]
        size = int(np.prod(shape, dtype=int))
        if law.kind in ("grouped", "dense"):
            K = shape[-1]
            return law._replace(location=pt.broadcast_to(law.location, shape).reshape((size // K, K)))
        terms = [term if term.type.shape == shape else pt.broadcast_to(term, shape) for term in law.terms[:2]]
        location, scale = (term if term.ndim == 1 else term.reshape((size,)) for term in terms)
        return law._replace(location=location, scale=scale)

    def scales(self, p: np.ndarray) -> list[tuple[Any, Any]]:
        """Return locations and scales of the children at many positions ``p``, as ``Structure`` takes them."""
        with np.errstate(all="ignore"):
            values = self._terms(np.ascontiguousarray(p, self.dtype))
        terms = iter([np.asarray(value, dtype=float) for value in values])
        pairs: list[tuple[Any, Any]] = []
        for law in self._laws:
            mu = next(terms)
            L = next(terms)
            pairs.append((mu, L) if law.rho is None else (mu, (L**2, next(terms))))
        return pairs


def _as_tensors(terms: list[Any], parents: Mapping[Any, Any]) -> tuple[list[Any], Mapping[Any, Any]]:
    """Return graphs, and their parents to replace, without named dimensions."""
    if not any(isinstance(variable.type, XTensorType) for variable in ancestors(terms)):
        return terms, parents
    tensors = {var: value.type() for var, value in parents.items()}
    named = {var: var.type.filter_variable(tensor) for var, tensor in tensors.items()}
    lowered = rewrite_graph(graph_replace(terms, named, strict=False), include=("lower_xtensor",), clone=True)
    return lowered, {tensors[var]: value for var, value in parents.items()}


def _with_names(model: pm.Model, hierarchy: Hierarchy) -> list[ChildVariable]:
    """Return the children with the names of the nearest named variables that locations and scales depend on.

    Graphs mention some variables for their shape alone: values decide.
    """
    rng = np.random.default_rng(1)
    parents = list(dict.fromkeys(var for child in hierarchy.children for var in child.parents))
    p = np.repeat(hierarchy.start[None, :], 1 + len(parents), axis=0)
    for i, var in enumerate(parents):
        p[1 + i, hierarchy.slices[var]] += rng.uniform(0.1, 0.5, len(hierarchy.indices(var)))
    children = []
    for variable, (mu, L) in zip(hierarchy.children, hierarchy.scales(p), strict=True):
        rv = model[variable.child.name]
        # In terms of random variables, which have the names that users gave.
        law = law_of(rv, model.rvs_to_transforms[rv], variable.child.shape)
        assert law is not None
        names = []
        for graph, values in ((law.location, mu), (law.scale, L[0] if isinstance(L, tuple) else L)):
            moves_it = [not np.array_equal(values[0], moved, equal_nan=True) for moved in values[1:]]
            needed = {var for var, moves in zip(parents, moves_it, strict=True) if moves and var in variable.parents}
            names.append(_nearest_names(model, graph, needed))
        children.append(variable._replace(child=variable.child._replace(location=names[0], scale=names[1])))
    return children


def _nearest_names(model: pm.Model, graph: Any, values: set[Any]) -> tuple[str, ...]:
    """Return the names of the nearest variables on which a graph depends, if these depend on some of the ``values``."""
    named = {*model.free_RVs, *model.deterministics}
    value_of = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    names: dict[str, None] = {}
    visited = set()
    waiting = [graph]
    while waiting:
        variable = waiting.pop()
        if variable in visited:
            continue
        visited.add(variable)
        if variable in named:
            if any(value_of.get(ancestor) in values for ancestor in ancestors([variable])):
                names[variable.name] = None
        elif variable.owner is not None:
            waiting += reversed(variable.owner.inputs)
    return tuple(names)
