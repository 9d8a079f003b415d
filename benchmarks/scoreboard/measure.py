"""One run of one sampler on one model, against what is known of the posterior: a row of the scoreboard."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from first_times import STATISTICS, gradients_to
from peers import build
from posteriors import (
    BIASED,
    EFFECTIVE,
    FIELDS,
    R_HAT,
    diagnosed,
    errors,
    failures_of,
    gradients_of,
    judged,
    moments_of,
    overheard,
    timed,
)
from scoreboard.entries import ENTRIES
from scoreboard.truth import Truth

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.reading import two_errors
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.model.outputs import model_layout

# Options of ``pmm.sample``; a step is made within the model.
SCHEMES: dict[str, Callable[[], dict[str, Any]]] = {
    "default": lambda: {},
    "unadjusted": lambda: {"adjusted": False},
    "paper": lambda: {"step": pmm.PoissonULMC(K=16, grid="left")},
}
# Steps in PyMC's own loop.
IN_LOOP: dict[str, Callable[[], Any]] = {"step GHMC": pmm.GHMC, "step PoissonULMC": pmm.PoissonULMC}
PEERS = (*IN_LOOP, "nutpie NUTS", "nutpie low rank", "PyMC NUTS", "NumPyro NUTS", "MCLMC")
CHAINS, DRAWS = 4, 1000
# A draw of MCLMC is one step, of two gradients: with so many it spends what a thousand trajectories of NUTS do.
STEPS = {"MCLMC": 4000}
# What the cost of a mean is measured by: effective draws of the worst.
WANTED = 400


@cache
def _known(key: str) -> tuple[pm.Model, Truth]:
    entry = ENTRIES[key]
    return entry.build(), entry.truth()


def measured(key: str, sampler: str, seed: int) -> dict[str, Any]:
    """Return the row of a run: our schemes by name, or a peer."""
    model, truth = _known(key)
    with overheard():
        found = (theirs if sampler in PEERS and sampler not in IN_LOOP else ours)(model, truth, sampler, seed)
    return {"d": int(sum(np.size(v) for v in model.initial_point(0).values())), **found}


def ours(model: pm.Model, truth: Truth, scheme: str, seed: int) -> dict[str, Any]:
    """Run one of ours as a user would, by either door."""

    def run(**short: int) -> Any:
        with model:
            if scheme in IN_LOOP:
                options = {"quiet": True, "compute_convergence_checks": False, "cores": 1, **short}
                return pm.sample(chains=CHAINS, random_seed=seed, progressbar=False, step=IN_LOOP[scheme](), **options)
            return pmm.sample(chains=CHAINS, random_seed=seed, progressbar=False, **SCHEMES[scheme](), **short)

    tree, cpu = timed(run)
    stats, draws = tree["sample_stats"].dataset, truth.draws(model, tree)
    row = errors_and_costs(truth, draws, *gradients_of(stats))
    asked = model if scheme in IN_LOOP else None  # which other modes are looked for with
    return {**row, **judged(tree, asked), **claims(truth, draws, tree), "unstable": failures_of(stats), "cpu": cpu}


def theirs(
    model: pm.Model, truth: Truth, peer: str, seed: int, chains: int = CHAINS, draws: int | None = None
) -> dict[str, Any]:
    """Run another sampler, with its defaults."""
    run = build(peer, model, chains).run(seed, draws or STEPS.get(peer, DRAWS))
    draws = run.draws[..., : len(truth.labels)]
    if truth.names:
        values = model_layout(model, model.continuous_value_vars, model.initial_point(0)).values(run.draws)
        parts = [values[name] for name in truth.names]
        draws = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)
    row = errors_and_costs(truth, draws, run.gradients, run.warm_up)
    good = not run.failing and row["r_hat"] <= R_HAT and row["ess"] >= EFFECTIVE
    return {**row, "state": "no warning" if good else "warns", "unstable": run.failing, "cpu": run.seconds}


def errors_and_costs(truth: Truth, draws: np.ndarray, each: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """Return the worst errors of means and standard deviations with z, and what the run cost.

    ``each`` (chain, draw) are gradients of a draw, ``before`` (chain,) those of the warm-up.
    """
    known = {field: getattr(truth, field) for field in FIELDS}
    row: dict[str, Any] = errors(moments_of(draws), known, truth.labels)
    row["wrong"] = any(row[what]["wrong"] for what in ("mean", "sd"))
    # Neither wrong nor right is a run too short to tell.
    row["right"] = all(abs(row[what]["off"]) <= BIASED for what in ("mean", "sd"))
    row |= costs(draws, truth.mean, each, before)
    row["ess_per_1000"] = 1000 * row["ess"] / float(each.sum())
    if truth.second is not None and truth.variance_of_square is not None:
        for name in STATISTICS:
            first = gradients_to(draws, each, truth, name)
            row[name] = row["warm_up"] + first if math.isfinite(first) else None
    return row


def costs(draws: np.ndarray, mean: np.ndarray, each: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """Return the fewest effective draws of a mean and of a square about ``mean``, and the gradients for 400 of either.

    ``for_400`` and ``for_400_square`` are gradients of a chain, warm-up included.
    """
    row, warm_up, spent = diagnosed(draws), float(np.median(before)), each.sum(axis=1)
    row |= {"ess_square": diagnosed((draws - mean) ** 2)["ess"]}
    row |= {"warm_up": warm_up, "gradients": float((before + spent).max())}
    for name, ess in (("for_400", row["ess"]), ("for_400_square", row["ess_square"])):
        row[name] = warm_up + WANTED / max(1, ess) * float(spent.mean())  # chains that stand still have none
    return row


def claims(truth: Truth, draws: np.ndarray, tree: Any) -> dict[str, Any]:
    """Return what the run says of its means, and how much of it holds.

    ``within``: two standard errors of the worst corrected mean, in posterior sds, as the sentence of a trusted run has
    it.  ``covered`` of ``means`` lie within two standard errors, of the run and of the reference together.
    """
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), draws)}, attrs=tree["posterior"].attrs)
    table = bias_table(xr.DataTree.from_dict({"posterior": posterior, "sample_stats": tree["sample_stats"].dataset}))
    moving = table["sd"].to_numpy() > 0
    error = table["mcse_cv"].to_numpy()
    off = np.abs(table["mean_cv"].to_numpy() - truth.mean)
    with np.errstate(invalid="ignore"):
        inside = off <= 2 * np.hypot(error, truth.mcse_mean)
    within = two_errors(table)
    return {
        "within": float(within.max()) if within.notna().any() else None,
        "covered": int((inside & moving).sum()),
        "means": int(moving.sum()),
    }
