"""Samplers that enter a comparison, each run within a budget of gradients.

``tests/workbench/test_compare.py`` fails first if ``sampling_state`` of PyMC's steps, which gives a step its start
back, moves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from pymc.step_methods.arraystep import BlockedStep

from pmm_mcmc.api import LangevinStep, Verdict, sample, temper, verdict
from pmm_mcmc.workbench.reference import unconstrained_draws

type Sampler = str | LangevinStep | BlockedStep | xr.DataTree | Callable[..., xr.DataTree]
# Samplers that have a name, and what tables call them.
NAMES = {"default": "pmm.sample", "nuts": "NUTS", "nutpie": "nutpie"}
# Fewest draws of each chain.
FEWEST = 50
# Numbers that the draws of one sampler may hold: 128 megabytes.
_MOST_NUMBERS = 2**24


class Run(NamedTuple):
    """A sampler's run.

    Attributes
    ----------
    position : (chain, draw, d)
        Unconstrained draws after warm-up.
    warm_up : float
        Gradients of the warm-up of all chains; NaN if the result does not tell.
    gradients : (draw,)
        Gradients of all chains up to each draw, warm-up included; NaN if the result does not tell.
    verdict : Verdict
        What ``pmm.verdict`` says of these draws.
    elsewhere : float
        Share of the posterior in modes that the chains are not in, by the verdict's search; NaN if it has no answer.
    """

    position: np.ndarray
    warm_up: float
    gradients: np.ndarray
    verdict: Verdict
    elsewhere: float = 0.0


def named(
    samplers: Sequence[Sampler] | Mapping[str, Sampler], model: pm.Model
) -> dict[str, Sampler]:  # fmt: skip
    """Check the samplers, and name them."""
    if isinstance(samplers, str) or not isinstance(samplers, Sequence | Mapping):
        raise TypeError(f"samplers={samplers!r}: must be a list, such as [pmm.PoissonULMC(), 'nuts'], or a dict")
    if not samplers:
        raise ValueError("samplers: is empty; name at least one")
    pairs = list(samplers.items()) if isinstance(samplers, Mapping) else [(None, sampler) for sampler in samplers]
    table: dict[str, Sampler] = {}
    for label, sampler in pairs:
        name = _name_of(sampler, model) if label is None else str(label)
        _name_of(sampler, model)  # what has a label is checked too
        if name in table:
            raise ValueError(f"samplers: {name} is there twice; leave one out, or give names with a dict")
        table[name] = sampler
    return table


def _name_of(sampler: Any, model: pm.Model) -> str:
    if isinstance(sampler, str):
        if sampler not in NAMES:
            raise ValueError(f"samplers: {sampler!r} is unknown; the ones with a name are {', '.join(NAMES)}")
        return NAMES[sampler]
    if isinstance(sampler, LangevinStep):
        if sampler.model is not None and sampler.model is not model:
            raise ValueError(f"samplers: {step_name(sampler)} was made for another model; make it outside any")
        return step_name(sampler)
    if isinstance(sampler, BlockedStep):
        return type(sampler).__name__
    if isinstance(sampler, xr.DataTree):
        if "posterior" not in sampler.children:
            raise TypeError("samplers: a DataTree without the group 'posterior' has no draws; give a result")
        return str(sampler["posterior"].attrs.get("inference_library", "draws"))
    if not callable(sampler) or isinstance(sampler, type):
        raise TypeError(
            f"samplers: {sampler!r} is none; take 'default', 'nuts' or 'nutpie', steps such as pmm.PoissonULMC() (with "
            "brackets), pmm.temper, a function (model, seed, n_grad) that returns a DataTree, or a DataTree"
        )
    return "pmm.temper" if sampler is temper else str(getattr(sampler, "__name__", sampler))


def step_name(step: LangevinStep) -> str:
    """Return a name for a step: its method, with the arguments that are not defaults."""
    settings = [f"{name}={'...' if name == 'scaling' else repr(value)}" for name, value in step.given.items()]
    return f"{step.arguments.method}({', '.join(settings)})" if settings else step.arguments.method


def run(sampler: Sampler, model: pm.Model, budget: int, chains: int, seed: int) -> Run:
    """Run a sampler until its chains together have spent the budget, warm-up included.

    A first, very short run with the same seed shows the cost of warm-up and draws; the second run repeats its warm-up.
    Where the warm-up leaves less than half of the budget, draws get that half all the same.  What somebody else drew,
    or draws in a function, is taken as it is.
    """
    if isinstance(sampler, xr.DataTree):
        return _run_of(sampler, model, None)
    if not (isinstance(sampler, str | BlockedStep) or sampler is temper):  # a Langevin step is a BlockedStep
        dt = sampler(model, seed, budget)
        if not isinstance(dt, xr.DataTree):
            raise TypeError(f"the function returned a {type(dt).__name__}: must be a DataTree")
        return _run_of(dt, model, None)
    nuts = sampler if isinstance(sampler, pm.NUTS) else None
    start = None if nuts is None else copy.deepcopy(nuts.sampling_state)
    dt = _drawn(sampler, FEWEST, model, chains, seed)
    warm_up, gradients = _costs(dt)
    each = float(gradients[-1] - warm_up) / FEWEST
    end = max(float(budget), warm_up + 0.5 * budget)
    # A tenth more, since gradients of a draw vary; what is beyond the budget is cut off.
    draws = max(FEWEST, math.ceil(1.1 * (end - warm_up) / each)) if each > 0.0 else FEWEST
    numbers = sum(array.size for name in ("posterior", "sample_stats") for array in dt[name].data_vars.values())
    if nuts is not None:
        nuts.sampling_state = copy.deepcopy(start)
    dt = _drawn(sampler, min(draws, max(FEWEST, FEWEST * _MOST_NUMBERS // numbers)), model, chains, seed)
    if nuts is not None:
        nuts.sampling_state = copy.deepcopy(start)
    return _run_of(dt, model, end)


def _drawn(sampler: Any, draws: int, model: pm.Model, chains: int, seed: int) -> xr.DataTree:
    options = {"random_seed": seed, "model": model, "progressbar": False, "compute_convergence_checks": False}
    if sampler is temper:
        return temper(draws, **options)
    options |= {"tune": 1000, "chains": chains}  # PyMC's own length of a warm-up
    if sampler == "default" or isinstance(sampler, LangevinStep):
        return sample(draws, step=None if isinstance(sampler, str) else sampler, **options)
    engine = {"step": sampler}
    if isinstance(sampler, str):
        engine = {"nuts_sampler": "pymc" if sampler == "nuts" else sampler}
    return pm.sample(draws, cores=1, discard_tuned_samples=False, quiet=True, **engine, **options)


def _costs(dt: xr.DataTree) -> tuple[float, np.ndarray]:
    """Return the gradients of the warm-up, NaN if not told, and those up to each draw, of all chains together."""
    stats = dt["sample_stats"].to_dataset() if "sample_stats" in dt.children else xr.Dataset()
    name = next((name for name in ("n_steps", "n_grad") if name in stats), None)
    if name is None:
        return np.nan, np.full(dt["posterior"].sizes["draw"], np.nan)
    each = stats[name].transpose("chain", "draw").values
    warm_up = np.nan
    if "n_grad_total" in stats:
        warm_up = float((stats["n_grad_total"].transpose("chain", "draw").values[:, 0] - each[:, 0]).sum())
    elif "warmup_sample_stats" in dt.children:  # leapfrog steps of NUTS
        warm_up = float(dt["warmup_sample_stats"][name].sum())
    return warm_up, np.nan_to_num(warm_up) + each.sum(axis=0).cumsum()


def _run_of(dt: xr.DataTree, model: pm.Model, end: float | None) -> Run:
    """Return what a result has, up to so many gradients."""
    warm_up, gradients = _costs(dt)
    count = len(gradients) if end is None else max(int(np.searchsorted(gradients, end, side="right")), 4)
    dt = dt.isel(draw=slice(count), missing_dims="ignore")  # a verdict needs four
    judgement = verdict(dt, model=model)
    masses = {reason.code: reason.value for reason in judgement.reasons}
    elsewhere = masses.get("modes") or (np.nan if "search" in masses else 0.0)
    return Run(unconstrained_draws(dt, model), warm_up, gradients[:count], judgement, elsewhere)
