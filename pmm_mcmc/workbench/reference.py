"""What samplers are held against: a target's moments, draws of a user, or a long run that is trusted."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pmm_mcmc.api import flat_names, standard_error, unconstraining_of
from pmm_mcmc.workbench.targets import Target


class Truth(NamedTuple):
    """Mean and standard deviation of each unconstrained coordinate with their standard errors, ``(d,)``, and draws.

    ``draws`` ``(n, d)`` of the law itself are what quantiles and distances are measured by; None if there are none.
    """

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    error_of_sd: np.ndarray
    draws: np.ndarray | None = None


# Draws of the exact law: 5 % quantiles are then known to .007 sd of a Gaussian.
_EXACT = 100_000


def truth_of_target(target: Target) -> Truth:
    """Return the moments of a target, and draws where it has a sampler of its own law."""
    moments = target.reference
    error = np.zeros_like(moments.mean) if moments.error is None else moments.error
    draws = None if target.draw is None else target.draw(np.random.default_rng(0), _EXACT)
    # A user's target may lack the errors of its second moments.
    return Truth(moments.mean, moments.sd, error, np.nan_to_num(moments.error_of_sd), draws)


def model_labels(model: pm.Model) -> list[str]:
    """Return labels of a model's unconstrained coordinates, such as ``school[A]``, or ``log tau`` for a logarithm."""
    point = model.initial_point(0)
    labels: list[str] = []
    for value in model.continuous_value_vars:
        variable = model.values_to_rvs[value]
        transform = model.rvs_to_transforms.get(variable)
        name = variable.name if transform is None else f"{str(transform.name).replace('_', ' ')} {variable.name}"
        shape = np.shape(point[value.name])
        coords = [model.coords.get(dim) for dim in model.named_vars_to_dims.get(variable.name, ())]
        # A transform may remove a coordinate, and a dim may have no names.
        if len(shape) and tuple(len(each or ()) for each in coords) == shape:
            labels += [f"{name}[{', '.join(map(str, index))}]" for index in product(*coords)]
        else:
            labels += flat_names([(name, shape)])
    return labels


def unconstrained_draws(dt: xr.DataTree, model: pm.Model) -> np.ndarray:
    """Return the draws of a result on the unconstrained scale of a model: ``(chain, draw, d)``.

    Raises
    ------
    ValueError
        If the result lacks a variable of the model.
    """
    stats = dt["sample_stats"].to_dataset() if "sample_stats" in dt.children else {}
    if "unconstrained" in stats and stats["unconstrained"].shape[-1] == len(model_labels(model)):
        return np.asarray(stats["unconstrained"].values, dtype=float)
    posterior = dt["posterior"]
    missing = [variable.name for variable in model.free_RVs if variable.name not in posterior]
    if missing:
        raise ValueError(f"the result has no draws of {', '.join(missing)}: bring draws of all variables")
    values = [np.asarray(posterior[variable.name].values, dtype=float) for variable in model.free_RVs]
    forward = unconstraining_of(model)
    chains, draws = values[0].shape[:2]
    return np.array(
        [
            [np.concatenate([np.ravel(array) for array in forward(*(value[c, t] for value in values))])
             for t in range(draws)]
            for c in range(chains)
        ]
    )  # fmt: skip


def truth_of_draws(position: np.ndarray) -> Truth:
    """Return a reference from unconstrained draws ``(chain, draw, d)``.

    Raises
    ------
    ValueError
        If there are too few draws, a draw is not finite, or a coordinate is constant.
    """
    chains, draws, _ = position.shape
    if chains * draws < 100:
        raise ValueError(f"reference: {chains} x {draws} draws are too few; bring at least 100")
    if not np.all(np.isfinite(position)):
        raise ValueError("reference: some draws are not finite on the unconstrained scale; leave them out")
    mean = position.mean(axis=(0, 1))
    sd = position.std(axis=(0, 1))
    if not np.all(sd > 0):
        raise ValueError(f"reference: coordinate {int(np.argmin(sd))} is the same in all draws; bring draws that vary")
    errors = standard_error(position), standard_error((position - mean) ** 2) / (2.0 * sd)
    return Truth(mean, sd, *errors, position.reshape(-1, position.shape[2]))
