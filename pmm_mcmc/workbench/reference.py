"""Runs of samplers under a budget of gradients, and the moments that they are held against.

The reference of a comparison (a target's moments, a user's draws or a long, trusted run) and errors against it.
"""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import product
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from scipy.stats import t

from pmm_mcmc.api import (
    METHODS,
    NOT_TRUSTED,
    LangevinStep,
    MethodArguments,
    Verdict,
    degrees_of_freedom,
    flat_names,
    sample,
    standard_error,
    unconstraining_of,
    verdict,
)
from pmm_mcmc.workbench.targets import Target

__all__ = [
    "COLUMNS", "FEWEST", "PEERS", "Run", "Truth", "model_labels", "name_of", "row", "run", "truth_for",
    "truth_of_draws", "unconstrained_draws",
]  # fmt: skip

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


def run(sampler: str | LangevinStep, model: pm.Model, budget: int, chains: int, seed: int) -> Run:
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


def _drawn(sampler: str | LangevinStep, draws: int, options: dict[str, Any]) -> tuple[xr.DataTree, np.ndarray, int]:
    """Return a result, the gradients of each draw ``(draw,)`` and of the warm-up, of all chains together."""
    if isinstance(sampler, str) and sampler != "default":  # gradients are the leapfrog steps of its trees
        engine = "pymc" if sampler == "nuts" else sampler
        dt = pm.sample(draws, nuts_sampler=engine, cores=1, discard_tuned_samples=False, quiet=True, **options)
        n_grad, warmup = (dt[group]["n_steps"].values for group in ("sample_stats", "warmup_sample_stats"))
    else:
        dt = sample(draws, step=None if isinstance(sampler, str) else sampler, **options)
        stats = dt["sample_stats"].to_dataset()
        n_grad = stats["n_steps" if "n_steps" in stats else "n_grad"].values
        warmup = stats["n_grad_total"].values[:, 0] - n_grad[:, 0]
    return dt, n_grad.sum(axis=0), int(warmup.sum())


def name_of(step: LangevinStep) -> str:
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


COLUMNS: dict[str, str] = {
    "trusted": "Whether pmm.verdict trusts the run, without the reference.",
    "gradients": "Gradients of all chains, warm-up included.",
    "per_draw": "Gradients for an effective draw of the worst parameter (bulk), warm-up included.",
    "mean_error": "Largest error of a posterior mean, in posterior standard deviations.",
    "mean_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "mean_at": "The parameter whose mean has the largest error.",
    "sd_error": "Largest relative error of a posterior standard deviation.",
    "sd_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "sd_at": "The parameter whose standard deviation has the largest error.",
    "says": "What pmm.verdict says of the run, or why there is none.",
}
# Budget of a reference run, in budgets of a sampler.
_LONGER = 5


class Truth(NamedTuple):
    """Mean and standard deviation of each unconstrained coordinate with their standard errors: ``(d,)`` each."""

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    error_of_sd: np.ndarray


def truth_for(
    target: Target | None, model: pm.Model, reference: xr.DataTree | str | None, n_grad: int, chains: int, seed: int
) -> tuple[Truth | None, str]:
    """Return the reference, or None if nothing can be trusted to be one, and a sentence about it."""
    if reference is None and target is not None:
        moments = target.reference
        error = np.zeros_like(moments.mean) if moments.error is None else moments.error
        # A user's target may lack the errors of its second moments.
        return Truth(moments.mean, moments.sd, error, np.nan_to_num(moments.error_of_sd)), moments.source
    if reference is None or (isinstance(reference, str) and reference == "nuts"):
        return _of_a_long_run(model, n_grad, chains, seed + 1)
    if isinstance(reference, str) or "posterior" not in getattr(reference, "children", ()):
        raise TypeError(
            f"reference={reference!r}: must be 'nuts' for a long run, a result of pm.sample or pmm.sample, or None"
        )
    judgement = verdict(reference)
    if judgement.state == NOT_TRUSTED:
        return None, f"None, for the draws that were given are not to be trusted. {judgement.sentence}"
    position = unconstrained_draws(reference, model)
    return truth_of_draws(position), f"The draws that were given: {_size(position)}."


def _of_a_long_run(model: pm.Model, n_grad: int, chains: int, seed: int) -> tuple[Truth | None, str]:
    """Run NUTS and, if it is not trusted, ``pmm.sample``; return the first that is trusted."""
    refused = ""
    for sampler in ("nuts", "default"):
        try:
            long = run(sampler, model, _LONGER * n_grad, chains, seed)
        except Exception as error:  # the other may not fail
            refused += f" {PEERS[sampler]} is none: {error}."
            continue
        if long.verdict.trusted:
            source = f"A run of {PEERS[sampler]} of {_LONGER} times the budget: {_size(long.position)}."
            return truth_of_draws(long.position), source + refused
        refused += f" {PEERS[sampler]} is none: {long.verdict.sentence}"
    return None, f"None, so that no errors are known.{refused}"


def _size(position: np.ndarray) -> str:
    return f"{position.shape[1]:,} draws of each of {position.shape[0]} chains"


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
    return Truth(mean, sd, standard_error(position), standard_error((position - mean) ** 2) / (2.0 * sd))


def row(run: Run, truth: Truth | None, labels: list[str]) -> dict[str, Any]:
    """Return the values of :data:`COLUMNS` of a run; those of errors only where there is a reference."""
    x = run.position
    chains, draws, d = x.shape
    with np.errstate(all="ignore"):  # a constant coordinate has no effective draws
        effective = min(float(az.ess(x[..., i], method="bulk")) for i in range(d))
    values = {
        "trusted": run.verdict.trusted,
        "gradients": run.n_grad,
        "per_draw": run.n_grad / effective if x.std(axis=(0, 1)).all() else np.inf,
        "says": run.verdict.sentence,
    }
    if truth is None:
        return values
    # The spread about the true mean: its square root is a standard deviation, with the delta method for the error.
    square = (x - truth.mean) ** 2
    sd = np.sqrt(square.mean(axis=(0, 1)))
    sd_se = standard_error(square) / (2.0 * np.maximum(sd, 1e-300))
    # Noise alone puts the largest error of all parameters beyond this many standard errors in 5 % of runs.
    limit = t.ppf(1.0 - 0.5 * 0.05 / d, degrees_of_freedom(chains, draws))
    for name, error, se in (
        ("mean", x.mean(axis=(0, 1)) - truth.mean, np.hypot(standard_error(x), truth.error)),
        ("sd", sd - truth.sd, np.hypot(sd_se, truth.error_of_sd)),
    ):
        size = np.abs(error) / truth.sd
        worst = int(np.argmax(size))
        values[f"{name}_error"] = float(size[worst])
        values[f"{name}_noise"] = float(limit * se[worst] / truth.sd[worst])
        values[f"{name}_at"] = labels[worst]
    return values
