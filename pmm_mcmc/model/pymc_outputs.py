"""Posterior variables, dims and data of a PyMC model, computed as PyMC and ArviZ do.

This is the only module that relies on how they do it.  Names that PyMC does not document or may move:
``Model.unobserved_value_vars``, ``pymc.util.get_default_varnames``,
``pymc.backends.arviz.coords_and_dims_for_inferencedata``, ``find_observations`` and ``find_constants``,
``pymc.pytensorf.join_nonshared_inputs``, and the rewrites ``local_check_parameter_to_ninf_switch`` and
``local_remove_check_parameter``.  ``test_outputs.py`` fails first if one of them moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.pytensorf import join_nonshared_inputs
from pymc.util import get_default_varnames
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pmm_mcmc.model.building import building
from pmm_mcmc.model.initial_points import flat_position
from pmm_mcmc.model.model_cache import model_cache, state_of
from pmm_mcmc.model.outputs import ManyDraws
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.model.result_tree import ResultTree, flat_names

__all__ = ["coords_and_dims", "many_draws", "model_data", "model_layout", "outputs_of"]


def coords_and_dims(model: pm.Model) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the model's current coordinates by dimension, and dimensions by variable."""
    return coords_and_dims_for_inferencedata(model)


def model_data(model: pm.Model) -> dict[str, dict[str, Any]]:
    """Return the data groups that PyMC adds to a result."""
    constant = find_constants(model)
    return {"observed_data": find_observations(model), **({"constant_data": constant} if constant else {})}


def outputs_of(model: pm.Model) -> dict[str, Any]:
    """Return free variables on their own scale, then deterministics, by name, as graphs of the value variables."""
    named = {var.name: var for var in model.unobserved_value_vars}
    outputs = {name: named[name] for name in get_default_varnames(list(named), include_transformed=False)}
    for name, graph in outputs.items():
        if any(isinstance(node.type, RandomType) for node in ancestors([graph])):
            raise ValueError(
                f"{name} is random: it depends on a draw that the sampler does not make. Leave it out of the model and "
                "add it afterwards with pm.sample_posterior_predictive"
            )
    return {name: pt.as_tensor(graph, allow_xtensor_conversion=True) for name, graph in outputs.items()}


def many_draws(model: pm.Model, vars: Sequence[Any], point: dict[str, Any], backend: str) -> ManyDraws:
    """Compile the outputs of a model for many draws; the compiled functions are cached with the model.

    ``vars`` are its value variables in flat order, and an initial point gives their shapes; ``backend`` is ``"jax"``,
    or ``"numba"`` for evaluation without JAX.
    """
    point = {name: np.asarray(value) for name, value in point.items()}
    key = backend, state_of(model, vars), flat_layout(vars, point), model.check_bounds
    start = flat_position(point, vars)
    compiled: dict[tuple, ManyDraws] = model_cache(model, "outputs")
    if key not in compiled:
        outputs = outputs_of(model)
        joined, flat = join_nonshared_inputs(point=point, outputs=list(outputs.values()), inputs=list(vars))
        # Checks of parameters become values: one draw out of range must not raise for a whole block.
        check = "local_check_parameter_to_ninf_switch" if model.check_bounds else "local_remove_check_parameter"
        include = (
            "minimum_compile",
            "inline_ofg_expansion",
            "canonicalize",
            "stabilize",
            check,
            "local_remove_all_assert",
        )
        # Inner graphs are not compiled: compiled ones may work in place, and could not be inlined later.
        with building():
            graphs = rewrite_graph(joined, include=include, exclude=("compile_inner_graph",), clone=True)
        compiled[key] = ManyDraws(flat, dict(zip(outputs, graphs, strict=True)), backend, start)
    else:
        compiled[key].measure(start)
    return compiled[key]


def model_layout(
    model: pm.Model,
    vars: Sequence[Any],
    point: dict[str, Any],
    backend: str = "numba",
) -> ResultTree:
    """Return the map from flat positions to the variables of a PyMC model.

    The functions of the draws are compiled here and cached with the model.  Data are read when they are used, so that
    ``pm.set_data`` takes effect; where it changes a shape, build a new layout.

    The arguments, and the error for a random deterministic, are those of :func:`many_draws`.
    """
    return ResultTree(
        flat_names([(var.name, np.shape(point[var.name])) for var in vars]),
        many_draws(model, vars, point, backend),
        lambda: coords_and_dims(model),
        lambda: model_data(model),
    )
