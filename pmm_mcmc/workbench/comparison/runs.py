"""Runs of samplers under a budget of gradients: draws, gradients and verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.statement import Verdict
from pmm_mcmc.diagnostics.verdict import verdict
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.model.result_tree import flat_names
from pmm_mcmc.run.sample import sample

__all__ = ["FEWEST", "PEERS", "Run", "TooSmall", "model_labels", "name_of", "run", "unconstrained_draws"]

# Samplers that have a name, and what tables call them.
PEERS = {"default": "pmm.sample", "nuts": "NUTS", "nutpie": "nutpie"}
# Most transitions of a warm-up, PyMC's own default.
TUNE = 1000
# Fewest draws of each chain for a row of the table.
FEWEST = 50
# Numbers that the draws of one sampler may hold: 128 megabytes.
_MOST_NUMBERS = 2**24


class TooSmall(ValueError):
    """The budget does not cover the warm-up and some draws."""


@dataclass(frozen=True)
class Run:
    """A sampler's run within its budget.

    Attributes
    ----------
    position : (chain, draw, d)
        Unconstrained draws after warm-up.
    spent : int
        Gradients of all chains, warm-up included.
    judged : Verdict
        What ``pmm.verdict`` says of these draws.
    """

    position: np.ndarray
    spent: int
    judged: Verdict


class _Result(NamedTuple):
    """A result, the gradients from one draw to the next of all chains, and those of the warm-up."""

    dt: xr.DataTree
    n_grad: np.ndarray
    warmup: int


def run(sampler: Any, model: Any, budget: int, chains: int, seed: int) -> Run:
    """Run a sampler until its chains together have spent the budget.

    A first, very short run with the same seed shows the cost of warm-up and draws.  The second run repeats its warm-up.

    Raises
    ------
    TooSmall
        If the budget does not cover the warm-up and some draws.
    """
    options = {"tune": TUNE, "chains": chains, "random_seed": seed, "model": model}
    options |= {"progressbar": False, "compute_convergence_checks": False}
    peer = isinstance(sampler, str) and sampler != "default"
    draw = partial(_peer if peer else _own, sampler, options)
    pilot = draw(FEWEST)
    each = float(pilot.n_grad.mean())
    left = budget - pilot.warmup
    if left < FEWEST * each:
        enough = math.ceil((pilot.warmup + 2 * FEWEST * each) / 1000) * 1000
        raise TooSmall(
            f"the warm-up took {pilot.warmup:,} of {budget:,} gradients and left too few for {FEWEST} draws of each "
            f"chain: give n_grad={enough:_} or more"
        )
    # A tenth more, since gradients of a draw vary; what is beyond the budget is cut off.
    numbers = sum(array.size for name in ("posterior", "sample_stats") for array in pilot.dt[name].data_vars.values())
    result = draw(min(math.ceil(1.1 * left / each), max(FEWEST, FEWEST * _MOST_NUMBERS // numbers)))
    gradients = result.warmup + np.cumsum(result.n_grad)
    n = max(int(np.searchsorted(gradients, budget, side="right")), 4)  # a verdict needs four
    dt = result.dt.isel(draw=slice(n), missing_dims="ignore")
    return Run(unconstrained_draws(dt, model), int(gradients[n - 1]), verdict(dt))


def _own(step: Any, options: dict[str, Any], draws: int) -> _Result:
    """Run a step of this package, or ``pmm.sample``'s default."""
    dt = sample(draws, step=None if step == "default" else step, **options)
    stats = dt["sample_stats"].to_dataset()
    n_grad = stats["n_steps" if "n_steps" in stats else "n_grad"].values
    warmup = stats["n_grad_total"].values[:, 0] - n_grad[:, 0]
    return _Result(dt, n_grad.sum(axis=0), int(warmup.sum()))


def _peer(name: str, options: dict[str, Any], draws: int) -> _Result:
    """Run NUTS of PyMC or of nutpie by ``pm.sample``; gradients are the leapfrog steps of its trees."""
    import pymc as pm

    engine = {"nuts": "pymc", "nutpie": "nutpie"}[name]
    dt = pm.sample(draws, nuts_sampler=engine, cores=1, discard_tuned_samples=False, quiet=True, **options)
    n_grad, warmup = (dt[f"{prefix}sample_stats"].to_dataset()["n_steps"] for prefix in ("", "warmup_"))
    return _Result(dt, n_grad.sum("chain").values, int(warmup.sum()))


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


# -- the unconstrained scale -------------------------------------------------------------------------------------------


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
    forward = _forward(model)
    chains, draws = values[0].shape[:2]
    flat = [
        np.concatenate([np.ravel(array) for array in forward(*(value[c, t] for value in values))])
        for c in range(chains)
        for t in range(draws)
    ]
    return np.array(flat).reshape(chains, draws, -1)


def _forward(model: Any) -> Any:
    """Compile the map from values of the random variables, in the order of ``free_RVs``, to unconstrained ones."""
    import pytensor
    from pytensor.graph.replace import graph_replace

    inputs = {variable: variable.type(name=variable.name) for variable in model.free_RVs}
    of_value = {model.rvs_to_values[variable]: variable for variable in model.free_RVs}
    outputs = []
    for value in model.continuous_value_vars:
        variable = of_value[value]
        transform = model.rvs_to_transforms[variable]
        outputs.append(
            inputs[variable] if transform is None else transform.forward(inputs[variable], *variable.owner.inputs)
        )
    outputs = graph_replace(outputs, inputs, strict=False)
    return pytensor.function(list(inputs.values()), outputs, on_unused_input="ignore")
