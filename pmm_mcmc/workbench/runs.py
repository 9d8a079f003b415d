"""Runs of samplers under a budget of gradients, and draws on the unconstrained scale of their model."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.api import METHODS, MethodArguments, Verdict, flat_names, sample, unconstraining_of, verdict

__all__ = ["FEWEST", "PEERS", "Run", "model_labels", "name_of", "run", "unconstrained_draws"]

# Samplers that have a name, and what tables call them.
PEERS = {"default": "pmm.sample", "nuts": "NUTS", "nutpie": "nutpie"}
# Fewest draws of each chain for a row of the table.
FEWEST = 50
# Numbers that the draws of one sampler may hold: 128 megabytes.
_MOST_NUMBERS = 2**24


class Run(NamedTuple):
    """A sampler's run within its budget.

    Attributes
    ----------
    position : (chain, draw, d)
        Unconstrained draws after warm-up.
    n_grad : int
        Gradients of all chains, warm-up included.
    verdict : Verdict
        What ``pmm.verdict`` says of these draws.
    """

    position: np.ndarray
    n_grad: int
    verdict: Verdict


def run(sampler: Any, model: Any, budget: int, chains: int, seed: int) -> Run:
    """Run a sampler until its chains together have spent the budget.

    A first, very short run with the same seed shows the cost of warm-up and draws.  The second run repeats its warm-up.

    Raises
    ------
    ValueError
        If the budget does not cover the warm-up and some draws.
    """
    # PyMC's own length of a warm-up.
    options = {"tune": 1000, "chains": chains, "random_seed": seed, "model": model}
    options |= {"progressbar": False, "compute_convergence_checks": False}
    dt, n_grad, warmup = _drawn(sampler, FEWEST, options)
    per_draw = float(n_grad.mean())
    if budget - warmup < FEWEST * per_draw:
        enough = math.ceil((warmup + 2 * FEWEST * per_draw) / 1000) * 1000
        raise ValueError(
            f"the warm-up took {warmup:,} of {budget:,} gradients and left too few for {FEWEST} draws of each "
            f"chain: give n_grad={enough:_} or more"
        )
    # A tenth more, since gradients of a draw vary; what is beyond the budget is cut off.
    draws = math.ceil(1.1 * (budget - warmup) / per_draw)
    numbers = sum(array.size for name in ("posterior", "sample_stats") for array in dt[name].data_vars.values())
    dt, n_grad, warmup = _drawn(sampler, min(draws, max(FEWEST, FEWEST * _MOST_NUMBERS // numbers)), options)
    gradients = warmup + np.cumsum(n_grad)
    n = max(int(np.searchsorted(gradients, budget, side="right")), 4)  # a verdict needs four
    dt = dt.isel(draw=slice(n), missing_dims="ignore")
    return Run(unconstrained_draws(dt, model), int(gradients[n - 1]), verdict(dt, model=model))


def _drawn(sampler: Any, draws: int, options: dict[str, Any]) -> tuple[xr.DataTree, np.ndarray, int]:
    """Return a result, the gradients of each draw ``(draw,)`` and of the warm-up, of all chains together."""
    if sampler in ("nuts", "nutpie"):  # gradients are the leapfrog steps of its trees
        import pymc as pm

        engine = "pymc" if sampler == "nuts" else sampler
        dt = pm.sample(draws, nuts_sampler=engine, cores=1, discard_tuned_samples=False, quiet=True, **options)
        n_grad, warmup = (dt[group]["n_steps"].values for group in ("sample_stats", "warmup_sample_stats"))
    else:
        dt = sample(draws, step=None if sampler == "default" else sampler, **options)
        stats = dt["sample_stats"].to_dataset()
        n_grad = stats["n_steps" if "n_steps" in stats else "n_grad"].values
        warmup = stats["n_grad_total"].values[:, 0] - n_grad[:, 0]
    return dt, n_grad.sum(axis=0), int(warmup.sum())


def name_of(step: Any) -> str:
    """Return a name for a step: its method, with the arguments that are not defaults."""
    arguments = step.arguments
    plain = MethodArguments.checked(arguments.method, dynamics=arguments.dynamics)
    settings = [
        f"{field.name}={getattr(arguments, field.name)!r}"
        for field in fields(MethodArguments)
        if field.name not in ("method", "dynamics", "scaling")
        and getattr(arguments, field.name) != getattr(plain, field.name)
    ]
    if len(METHODS[arguments.method].dynamics) > 1:
        settings.insert(0, f"dynamics={arguments.dynamics!r}")
    if arguments.scaling is not None:
        settings.append("scaling=...")
    return f"{arguments.method}({', '.join(settings)})" if settings else arguments.method


def model_labels(model: Any) -> list[str]:
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


def unconstrained_draws(dt: Any, model: Any) -> np.ndarray:
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
        raise ValueError(f"reference: it has no draws of {', '.join(missing)}: bring draws of all variables")
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
