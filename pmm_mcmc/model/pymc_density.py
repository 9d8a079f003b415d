"""From a PyMC model to its log density of one vector: which variables it has, its layout, its graphs, its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import make_shared_replacements, rewrite_pregrad
from pymc.util import get_value_vars_from_user_vars
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.checks import check_free, refuse_overflows, refuse_what_does_not_fit
from pmm_mcmc.model.functions import building, model_cache, state_of
from pmm_mcmc.model.initial_points import flat_position, initial_point
from pmm_mcmc.model.noncentred_density import noncentred_density
from pmm_mcmc.model.pytensor_density import Layout, PyTensorDensity, SplitDensity


def choose_vars(vars: Any, model: pm.Model) -> list[Any]:
    """Return the value variables to sample, from random or value variables, or ``None`` for all continuous ones."""
    check_free(model)
    if vars is None:
        chosen = list(model.continuous_value_vars)
        if not chosen:
            raise ValueError(
                "the model has no continuous variable: a Langevin sampler has nothing to sample; "
                "leave step= out and PyMC will assign samplers for discrete variables"
            )
        return chosen
    chosen = list(vars) if isinstance(vars, list | tuple) else [vars]
    for var in chosen:
        if var not in model.value_vars and var not in model.free_RVs:
            names = ", ".join(rv.name for rv in model.free_RVs)
            raise ValueError(f"vars: {var} is not a free variable of this model, which has: {names}")
    chosen = get_value_vars_from_user_vars(chosen, model)
    for var in chosen:
        if var not in model.continuous_value_vars:
            raise ValueError(
                f"vars: {var.name} is discrete ({var.dtype}) and has no gradient: leave it out, and PyMC will "
                "assign it a sampler of its own"
            )
    return chosen


def flat_layout(vars: Sequence[Any], point: dict[str, np.ndarray]) -> Layout:
    """Return name, shape, size and dtype of each variable within the flat vector."""
    return tuple((v.name, np.shape(point[v.name]), int(np.size(point[v.name])), np.dtype(v.dtype)) for v in vars)


def periods_of(vars: Sequence[Any], model: pm.Model) -> np.ndarray | None:
    """Return the periods ``(d,)`` of coordinates that are angles, 0 of others; None if no coordinate is one."""
    point = initial_point(model)
    transforms = [model.rvs_to_transforms[model.values_to_rvs[var]] for var in vars]
    periods = [
        np.full(np.size(point[var.name]), 2.0 * np.pi * (type(transform).__name__ == "CircularTransform"))
        for var, transform in zip(vars, transforms, strict=True)
    ]
    joined_periods = np.concatenate(periods) if periods else np.empty(0)
    return joined_periods if joined_periods.any() else None


def differentiated(vars: Sequence[Any], layout: Layout, logp: Any, replacements: Mapping[Any, Any]) -> SplitDensity:
    """Return a log density of a model with its gradient, as graphs; other variables are replaced."""
    logp = rewrite_pregrad(logp)
    for node in ancestors([logp]):
        shared = isinstance(node, SharedVariable)
        random = node.owner is not None and isinstance(node.owner.op, RandomVariable)
        if random or (shared and isinstance(node.type, RandomType)):
            raise ValueError(
                "the log density of the model is random: it depends on a Minibatch or an unobserved draw, and every "
                "gradient would differ; use the whole data (pm.Data)"
            )
        if shared and not isinstance(node.get_value(borrow=True), np.ndarray):
            raise ValueError(
                f"shared variable {node.name} holds a {type(node.get_value(borrow=True)).__name__}, not an array: "
                "make it a constant of the model, or dense"
            )
    try:
        return SplitDensity.of(vars, layout, logp, replacements)
    except Exception as error:
        names = ", ".join(var.name for var in vars)
        raise ValueError(
            f"the log density of the model has no gradient with respect to {names}: {error}. Give the operation in "
            "question a gradient, or sample these variables with pm.Slice or pm.DEMetropolisZ"
        ) from error


@building()
def build_log_density(
    vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], noncentring: Mapping[str, str] | None = None
) -> PyTensorDensity:
    """Return the log density of a model, by the arguments of :func:`log_density`, which caches it."""
    layout = flat_layout(vars, point)
    replacements = make_shared_replacements(point, list(vars), model)
    others = {var.name: shared for var, shared in replacements.items()}
    logp = model.logp()
    refuse_overflows(model, logp)
    density = differentiated(vars, layout, logp, replacements)
    if noncentring and others:
        raise ValueError(
            f"reparametrise={dict(noncentring)!r}: variables are non-centred only by a step that moves all of the "
            "model; leave it out"
        )
    start = flat_position(point, vars)
    if noncentring is not None and not others and start.size:
        hierarchical = noncentred_density(model, vars, layout, density, start, noncentring)
        if hierarchical is not None:
            return hierarchical
    flat = density.flat()
    logp, gradient = density.at_flat(flat)
    structure = Structure.identity(start.size)
    return PyTensorDensity(layout, flat, logp, gradient, gradient, structure.width, structure, others=others)


def log_density(
    vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], noncentring: Mapping[str, str] | None = None
) -> PyTensorDensity:
    """Return the log density of a model in its current state, compiled once for each choice of variables and process.

    ``noncentring`` maps random variables to ``"centred"`` or ``"noncentred"``; others are learnt.  None disables
    non-centring.
    """
    choices = None if noncentring is None else tuple(sorted(noncentring.items()))
    key = state_of(model, vars), flat_layout(vars, point), choices
    densities: dict[tuple, PyTensorDensity] = model_cache(model, "log density")
    if key not in densities:
        try:
            densities[key] = build_log_density(vars, model, point, noncentring)
        except (ValueError, IndexError, TypeError):
            refuse_what_does_not_fit(model, point)
            raise
    return densities[key]
