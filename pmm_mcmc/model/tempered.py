r"""A PyMC model on the path from a reference ``q`` to its posterior, with both gradients kept apart.

The density at temperature :math:`\beta` is :math:`q\,e^{\beta l}`, ``l`` the log likelihood with potentials where
``q`` is the prior, and otherwise the log density of the model over that of a mixture of Gaussians.  Its evaluation is
an array of ``3 d + 2`` numbers: the gradient of the density at that temperature, those of ``log q`` and of ``l``, and
``l`` and ``log q`` themselves.  A state changes its temperature by these, without another gradient.

The parameters of this density are ``numbers``: beta, whether the reference is the mixture, and those of the mixture
(:mod:`pmm_mcmc.model.mixture`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_expression
from pymc.pytensorf import (
    collect_default_updates,
    compile,
    make_shared_replacements,
    replace_rng_nodes,
    reseed_rngs,
)

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.mixture import mixture_density, path_numbers
from pmm_mcmc.model.model_cache import model_cache, state_of
from pmm_mcmc.model.products import numba_mode
from pmm_mcmc.model.pymc_density import differentiated, flat_layout
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.model.split_density import concatenate

__all__ = ["path_density", "prior_sampler", "tempered_model", "width_of"]


def width_of(d: int) -> int:
    """Return the length of an evaluation."""
    return 3 * d + 2


def path_density(vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], reference: str) -> PyTensorDensity:
    """Return the log densities of a path to a model's posterior from ``"prior"`` or ``"gaussian"``: see the module."""
    layout = flat_layout(vars, point)
    replacements = make_shared_replacements(point, list(vars), model)
    graphs = [model.varlogp, pt.as_tensor(model.datalogp)] if reference == "prior" else [model.logp()]
    densities = [differentiated(vars, layout, graph.astype(pytensor.config.floatX), replacements) for graph in graphs]
    flat = densities[0].flat()
    d = flat.type.shape[0]
    numbers = pytensor.shared(path_numbers(0.0, None, d).astype(flat.dtype), name="numbers of the path")
    (lp, g), *likelihood = (density.at_flat(flat) for density in densities)
    logq, g0 = mixture_density(pt, flat, numbers[2:], d)
    log_ratio = lp - logq
    gl = g - g0
    for lp_likelihood, g_likelihood in likelihood:  # from the prior, unless the numbers have a mixture
        has_mixture = numbers[1] > 0.0
        log_ratio = pt.switch(has_mixture, log_ratio + lp_likelihood, lp_likelihood)
        gl = pt.switch(has_mixture, gl + g_likelihood, g_likelihood)
        logq = pt.switch(has_mixture, logq, lp)
        g0 = pt.switch(has_mixture, g0, g)
    beta = numbers[0]
    gradient = (g0 + beta * gl).astype(flat.dtype)
    scalars = [pt.atleast_1d(scalar).astype(flat.dtype) for scalar in (log_ratio, logq)]
    evaluation = pt.concatenate([gradient, g0, gl, *scalars]).astype(flat.dtype)
    logp = (logq + beta * log_ratio).astype(flat.dtype)
    return PyTensorDensity(layout, flat, logp, gradient, evaluation, width_of(d), Structure.identity(d), numbers)


def tempered_model(
    vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], reference: str
) -> tuple[PyTensorDensity, Callable[[Sequence[int], int], np.ndarray] | None]:
    """Return the path of a model in its current state and, if the reference is its prior, the sampler of that."""
    key = state_of(model, vars), flat_layout(vars, point)
    paths = model_cache(model, "path from " + reference)
    if key not in paths:
        sampler = None
        if reference == "prior":
            try:
                sampler = prior_sampler(model, vars)
                sampler((0, 0), 1)
            except Exception as error:
                raise ValueError(
                    f"reference='prior': nothing can be drawn from the prior ({error}); give its distributions a way "
                    "to draw (random=), or take reference='gaussian'"
                ) from error
        paths[key] = path_density(vars, model, point, reference), sampler
    return paths[key]


def prior_sampler(model: pm.Model, vars: Sequence[Any]) -> Callable[[Sequence[int], int], np.ndarray]:
    """Return a function of a key and a number ``n`` that draws ``(n, d)`` from the prior, unconstrained."""
    values = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=dict.fromkeys(model.free_RVs, "prior"),
        return_transformed=True,
    )
    values = replace_rng_nodes(values)  # the model's own generators stay as they are
    of = dict(zip((model.rvs_to_values[rv] for rv in model.free_RVs), values, strict=True))
    flat = concatenate([pt.as_tensor(of[var]).ravel().astype(pytensor.config.floatX) for var in vars])
    streams = list(collect_default_updates(inputs=[], outputs=[flat]))
    function = compile([], flat, random_seed=False, mode=numba_mode())

    def draw(key: Sequence[int], n: int) -> np.ndarray:
        reseed_rngs(streams, [int(word) for word in key])
        return np.stack([np.array(function(), dtype=float) for _ in range(n)])

    return draw
