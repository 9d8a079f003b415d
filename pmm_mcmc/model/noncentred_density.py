"""The log density of a PyMC model in non-centred coordinates: the change of variables is composed into its graph.

The coordinates ``z``, ``p`` and ``x`` are those of :mod:`pmm_mcmc.coordinates.structure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Split
from pytensor.tensor.shape import Shape

from pmm_mcmc.coordinates.child import Child, Places, element_to_offset, element_to_x
from pmm_mcmc.coordinates.groups import noncentred_groups
from pmm_mcmc.coordinates.structure import Signs, Structure
from pmm_mcmc.coordinates.walk import noncentred_walk
from pmm_mcmc.model.checks import CHECKS
from pmm_mcmc.model.functions import building, python_function
from pmm_mcmc.model.hierarchy import ChildVariable, Hierarchy, Law, read_hierarchy
from pmm_mcmc.model.pytensor_density import Layout, PyTensorDensity, SplitDensity, concatenate
from pmm_mcmc.model.signed_scales import signed_scales


def noncentred_density(
    model: pm.Model,
    vars: Sequence[Any],
    layout: Layout,
    density: SplitDensity,
    start: np.ndarray,
    choices: Mapping[str, str],
) -> PyTensorDensity | None:
    """Read what is to be non-centred of a model, and compose it into its log density; None where nothing is.

    Arguments are those of :func:`pmm_mcmc.model.hierarchy.read_hierarchy`.
    """
    flat = density.flat()
    hierarchy = read_hierarchy(model, vars, layout, flat, start, choices)
    if hierarchy is None:
        return None

    def log_density() -> Any:
        compiled = python_function([flat], list(density.at_flat(flat)))

        def values(x: np.ndarray) -> Any:
            try:
                return compiled(x)
            except CHECKS:  # out of range of a distribution
                return np.nan, np.full(len(x), np.nan)

        return values

    signs = signed_scales(model, hierarchy, log_density)
    if not hierarchy.children and not len(signs.signed):
        return None
    # What makes up for effects is added to them: it has no transform.  The logarithm of a noise follows only by chance.
    real = {value for rv, value in model.rvs_to_values.items() if model.rvs_to_transforms.get(rv) is None}
    return composed(hierarchy, signs, layout, density, hierarchy.swept(real))


@building()
def noncentred_op(
    value_and_gradient: Op, shapes: Mapping[Any, tuple[int, ...]], children: Sequence[ChildVariable]
) -> PyTensorDensity:
    """Return the density of variables, of which the children are non-centred, from an operation on their vector."""
    blocks = list(shapes)
    logp, gradient = value_and_gradient(concatenate(blocks))
    density = SplitDensity(blocks, logp, SplitDensity(blocks, logp, []).cut(gradient))
    d = int(gradient.type.shape[0])
    hierarchy = Hierarchy(shapes, list(children), [], density.flat(), np.zeros(d))
    return composed(hierarchy, Signs.none(d), (), density, hierarchy.swept(blocks))


def composed(
    hierarchy: Hierarchy, signs: Signs, layout: Layout, density: SplitDensity, swept: np.ndarray
) -> PyTensorDensity:
    """Compose a hierarchy into a log density of its variables, of which some coordinates may be swept."""
    flat = density.flat()
    vars = list(hierarchy.shapes)
    children = [variable.child for variable in hierarchy.children]
    places = Places.of(children, len(swept), len(signs.signed))
    n_parameters = (places.log_c.stop,)  # known shapes are not checked at every call
    noncentring = pytensor.shared(
        np.zeros(n_parameters, dtype=flat.dtype), name="parameters of the non-centring", shape=n_parameters
    )

    z = flat.type("z")
    p, of_signs = _without_signs(z, noncentring[places.log_c], signs) if len(signs.signed) else (z, 0.0)
    p_blocks = dict(zip(vars, density.cut(p), strict=True))
    values, log_det = hierarchy.values(p_blocks)
    in_common = []
    for variable, child, indices in zip(hierarchy.children, children, places.children, strict=True):
        parameters = child.split(noncentring[indices])
        law = hierarchy.law_at(variable, values)
        x, effect, of_child = _child_to_x(child, law, parameters, p_blocks[variable.value])
        values[variable.value] = x.reshape(child.shape).astype(variable.value.dtype)
        log_det = log_det + of_child
        if child.sweeps:
            in_common.append(child.in_common(effect.ravel(), noncentring[indices]))
    if len(swept) and in_common:
        weights = noncentring[places.weights].reshape((len(swept), sum(child.n_common for child in children)))
        moves = (weights * pt.concatenate(in_common)).sum(axis=1)
        for var in vars:
            rows = np.flatnonzero(np.isin(swept, hierarchy.indices(var)))
            if len(rows):
                values[var] = values[var] - moves[rows].reshape(hierarchy.shapes[var]).astype(var.dtype)
    x_blocks = [values[var].ravel().astype(flat.dtype) for var in vars]
    lp_x, of_x = density.at(x_blocks)
    # By blocks first: see pmm_mcmc.model.pytensor_density.
    gradient = concatenate(_pull_back(list(p_blocks.values()), x_blocks, log_det, of_x))
    if len(signs.signed):
        (gradient,) = _pull_back([z], [p], of_signs, [gradient])
    log_det = log_det + of_signs
    evaluation = concatenate([gradient, *x_blocks, *of_x, log_det])
    pull = _pull_function(z, concatenate(x_blocks), log_det, noncentring)
    factors = list(hierarchy.factors.values())
    structure = Structure(len(hierarchy.start), children, hierarchy.scales, pull, signs, factors, swept)
    return PyTensorDensity(layout, z, lp_x + log_det, gradient, evaluation, structure.width, structure, noncentring)


def _without_signs(z: Any, log_c: Any, signs: Signs) -> tuple[Any, Any]:
    """Return ``z`` with positive signs and the logarithms of signed scales, and the log determinant of these.

    A scale is ``s = c sinh(v)``, so that ``d log(s) / dv = 1 / tanh(v)``.
    """
    flips = signs.flips
    d = len(flips)
    sign = pt.concatenate([pt.where(z < 0.0, -1.0, 1.0), [1.0]]).astype(z.dtype)
    positive = z * sign[flips[:, 0]]
    if (flips[:, 1] >= 0).any():
        positive = positive * sign[flips[:, 1]]
    is_signed = np.isin(np.arange(d), signs.signed)
    v = pt.where(is_signed, positive, 1.0)
    order = np.where(is_signed, np.searchsorted(signs.signed, np.arange(d)), 0)
    logarithms = (log_c[order] + pt.log(pt.sinh(v))).astype(z.dtype)
    log_det = -pt.where(is_signed, pt.log(pt.tanh(v)), 0.0).sum()
    return pt.where(is_signed, logarithms, positive), log_det.astype(z.dtype)


def _child_to_x(child: Child, law: Law, parameters: tuple[Any, ...], z: Any) -> tuple[Any, Any, Any]:
    """Return the child's elements, what they are the offsets of, or they themselves, and the log determinant."""
    mu = law.location
    L = law.scale
    if child.kind == "elementwise":
        a, h, rho = parameters
        x, log_det = (element_to_offset if child.is_offset else element_to_x)(pt, mu, L, a, h, rho, z)
        return x, mu + L * x if child.is_offset else x, log_det
    a, h, *rho = parameters
    if child.kind == "walk":
        x, log_det = noncentred_walk(law.rho, L**2, mu, a, h, z)
    else:
        x, log_det = noncentred_groups(child.turned(mu, *rho) if rho else mu, L, a, h, z.reshape(mu.shape))
        x = child.turned(x, *rho) if rho else x
    if not child.is_offset:
        return x, x, log_det
    offsets: list[Any] = []
    for i in range(child.shape[-1]):
        earlier = sum((L[i, j] * offset for j, offset in enumerate(offsets)), mu[:, i])
        offsets.append((x[:, i] - earlier) / L[i, i])
    return pt.stack(offsets, axis=1), x, log_det - child.shape[0] * pt.log(pt.diagonal(L)).sum()


def _pull_back(inputs: list[Any], outputs: list[Any], log_det: Any, gradients: list[Any]) -> list[Any]:
    """Return gradients of a log density by the inputs of a map, with its determinant, from those by the outputs."""
    product = sum((g * output).sum() for g, output in zip(gradients, outputs, strict=True))
    return pytensor.grad(product + log_det, inputs, consider_constant=gradients)


@node_rewriter([Shape])
def _static_shape(fgraph: Any, node: Any) -> Any:
    shape = node.inputs[0].type.shape
    return None if None in shape else [pt.constant(np.array(shape, np.int64))]


@node_rewriter([Split])
def _split_by_slices(fgraph: Any, node: Any) -> Any:
    vector, sizes = node.inputs
    if vector.ndim != 1 or any(a.owner is None and not isinstance(a, Constant) for a in ancestors([sizes])):
        return None
    ends = np.cumsum([0, *python_function([], [sizes])()[0]]).tolist()
    return [vector[start:end] for start, end in pairwise(ends)]


# A shape or a split that a gradient asks for would be computed for each of many positions by itself.
_VECTORISABLE = EquilibriumGraphRewriter([_static_shape, _split_by_slices], max_use_ratio=100)


def _pull_function(z: Any, x: Any, log_det: Any, noncentring: Any) -> Any:
    """Return ``x`` and the gradient of the log density of ``z`` from that of ``x``, at many positions."""
    g = z.type("gradient")
    parameters = noncentring.type("noncentring")
    outputs = graph_replace([x, *_pull_back([z], [x], log_det, [g])], {noncentring: parameters}, strict=True)
    outputs = rewrite_graph(outputs, include=(), custom_rewrite=_VECTORISABLE, clone=True)
    many_z, many_g = (
        pt.matrix(name, dtype=z.dtype, shape=(None, *z.type.shape)) for name in ("positions", "gradients")
    )
    batched = vectorize_graph(outputs, {z: many_z, g: many_g})
    compiled: list[Any] = []

    def pull(positions: np.ndarray, gradient: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not compiled:
            compiled.append(python_function([many_z, many_g, parameters], batched))
        arrays = (np.ascontiguousarray(array, dtype=z.dtype) for array in (positions, gradient, values))
        with np.errstate(all="ignore"):
            results = compiled[0](*arrays)
        return tuple(np.asarray(array, dtype=float) for array in results)  # type: ignore[return-value]

    return pull
