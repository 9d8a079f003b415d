"""Draws of a Gaussian block given the rest, and what follows from them: see :mod:`pmm_mcmc.model.gaussian_block`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pymc as pm
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.traversal import ancestors

from pmm_mcmc.model.functions import building, model_cache
from pmm_mcmc.model.gaussian_block import GaussianBlock
from pmm_mcmc.model.initial_points import flat_position, initial_point
from pmm_mcmc.model.outputs import ManyDraws, model_layout
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.model.result_tree import ResultTree, flat_names

# Most bytes of the precisions of the draws that are looked at together.
_MOST_BYTES = 2**24
_LOG_2PI = math.log(2.0 * math.pi)


def drawn_back(block: GaussianBlock, model: pm.Model, backend: str) -> ResultTree:
    """Return the map from positions of the rest of a model to all its variables.

    Of a position alone the block has its mean there; with standard normals it is a draw.
    """
    point = initial_point(model)
    layout = model_layout(model, list(model.value_vars), point, backend)
    parts = flat_layout(block.rest.value_vars, point)
    conditional = _conditional(block, point, backend)
    of_rest = _coordinates(model, point, [var.name for var in block.rest.value_vars])
    of_block = _coordinates(model, point, block.values)
    p = len(of_block)
    variables = {model[name] for name in block.names}
    moved = block.names + [var.name for var in model.deterministics if not variables.isdisjoint(ancestors([var]))]

    def draws(
        position: np.ndarray, noise: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
        x = np.empty((2, *position.shape[:-1], len(of_rest) + p))
        x[..., of_rest] = position
        density = np.empty(position.shape[:-1])
        rows = max(1, _MOST_BYTES // (8 * p * p))
        for chain in range(len(position)):
            for start in range(0, position.shape[1], rows):
                some = chain, slice(start, start + rows)
                law = conditional(position[some][None])
                drawn, mean, density[some] = _drawn(law["precision"][0], law["right"][0], noise[some])
                x[0][some][:, of_block] = drawn
                x[1][some][:, of_block] = 2.0 * mean - drawn
        values, mirrored = map(layout.values, x)
        return values, {name: 0.5 * (values[name] + mirrored[name]) for name in moved if name in values}, density

    def values(position: np.ndarray) -> dict[str, np.ndarray]:
        return draws(position, np.zeros((*position.shape[:-1], p)))[0]

    names = flat_names([(name, shape) for name, shape, *_ in parts])
    return dataclasses.replace(layout, names=names, values=values, noise=p, draws=draws)


def _coordinates(model: pm.Model, point: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the coordinates of variables in the flat vector of a model."""
    vars = model.value_vars
    ends = np.cumsum([0, *(np.size(point[var.name]) for var in vars)])
    begins = {var.name: (ends[i], ends[i + 1]) for i, var in enumerate(vars)}
    return np.concatenate([np.zeros(0, int), *(np.arange(*begins[name]) for name in names)])


def _conditional(block: GaussianBlock, point: dict[str, np.ndarray], backend: str) -> ManyDraws:
    """Return the function of many positions of the rest that returns precision and right-hand side there."""
    compiled: dict[str, ManyDraws] = model_cache(block.rest, "conditional of the block")
    if backend not in compiled:
        vars = block.rest.value_vars
        of_rest = {var.name: point[var.name] for var in vars}
        with building():
            graphs, flat = join_nonshared_inputs(point=of_rest, outputs=[block.precision, block.right], inputs=vars)
        outputs: dict[str, Any] = dict(zip(("precision", "right"), graphs, strict=True))
        compiled[backend] = ManyDraws(flat, outputs, backend, flat_position(of_rest, vars))
    return compiled[backend]


@numba.njit(cache=True)
def _drawn(precision, right, noise):
    """Return Gaussian draws ``(n, p)`` with means and log densities, from standard normals; NaN where there is none.

    Small matrices, one for each draw: calls of LAPACK from Python would take longer than the chains.
    """
    n, p = right.shape
    out = np.empty((n, p))
    mean = np.empty((n, p))
    density = np.empty(n)
    root = np.empty((p, p))
    for i in range(n):
        for j in range(p):
            for k in range(j + 1):
                value = precision[i, j, k]
                for m in range(k):
                    value -= root[j, m] * root[k, m]
                root[j, k] = value / root[k, k] if k < j else np.sqrt(value)
        log_density = -0.5 * p * _LOG_2PI
        for j in range(p):
            value = right[i, j]
            for k in range(j):
                value -= root[j, k] * out[i, k]
            out[i, j] = value / root[j, j]
            log_density += np.log(root[j, j]) - 0.5 * noise[i, j] ** 2
        for j in range(p - 1, -1, -1):
            centre = out[i, j]
            value = centre + noise[i, j]
            for k in range(j + 1, p):
                centre -= root[k, j] * mean[i, k]
                value -= root[k, j] * out[i, k]
            mean[i, j] = centre / root[j, j]
            out[i, j] = value / root[j, j]
        density[i] = log_density
    return out, mean, density
