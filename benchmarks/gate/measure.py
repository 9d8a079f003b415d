"""One run of the gate, with adjusted draws or without, against what is known of the posterior: a row."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pymc as pm
from gate.entries import ENTRIES
from posteriors import gradients_of, judged, overheard, timed
from scoreboard.measure import CHAINS, DRAWS, errors_and_costs
from scoreboard.truth import Truth

import pmm_mcmc as pmm

KINDS = ADJUSTED, UNADJUSTED = "adjusted", "unadjusted"


@cache
def _model_and_truth(key: str) -> tuple[pm.Model, Truth]:
    return ENTRIES[key].build(), ENTRIES[key].truth()


def run_of(model: pm.Model, adjusted: bool, seed: int, **options: Any) -> Any:
    """Return the result of a default run."""
    with model:
        return pmm.sample(chains=CHAINS, random_seed=seed, progressbar=False, adjusted=adjusted, **options)


def measured(key: str, sampler: str, seed: int, draws: int = DRAWS) -> dict[str, Any]:
    """Return the row of a run by ``adjusted`` or ``unadjusted``, or by these on a backend: ``adjusted jax``."""
    model, truth = _model_and_truth(key)
    kind, _, backend = sampler.partition(" ")
    options = {"backend": backend} if backend else {}
    with overheard():
        tree, cpu = timed(partial(run_of, model, kind == ADJUSTED, seed, **{"draws": draws, **options}))
        size = int(sum(np.size(value) for value in model.initial_point(0).values()))
        return {"d": size, **row_of(truth, truth.draws(model, tree), tree), **judged(tree), "cpu": cpu}


def row_of(truth: Truth, x: np.ndarray, tree: Any) -> dict[str, Any]:
    """Return errors and costs of draws ``(chain, draw, p)``, and what chains accepted.

    ``of_mean`` and ``of_square`` are the gradients of all chains for an effective draw of the worst x and of the worst
    ``(x - E[x])^2``, warm-up left out; ``warm_up`` those of a chain before its first draw.
    """
    stats = tree["sample_stats"].dataset
    each, before = gradients_of(stats)
    row = errors_and_costs(truth, x, each, before)
    # Chains that stand still have none.
    row["of_mean"] = float(each.sum()) / max(1, row["ess"])
    row["of_square"] = float(each.sum()) / max(1, row["ess_square"])
    if "acceptance_rate" in stats:
        of_chain = stats["acceptance_rate"].values.mean(axis=1)
        row["acceptance"] = [round(float(of_chain.mean()), 3), round(float(of_chain.min()), 3)]
    return row | {name: int(stats[name].sum()) for name in ("unstable", "diverging") if name in stats}
