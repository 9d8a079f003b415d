"""One run of one sampler on one Stan program, against what is known of its posterior: a row."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from posteriors import EFFECTIVE, R_HAT, failures_of, gradients_of, judged, overheard, timed
from scoreboard.measure import CHAINS, DRAWS, costs, errors_and_costs
from scoreboard.truth import Truth
from stan.database import DIVERGENT, nuts_gradients, programs

import pmm_mcmc as pmm

DEFAULT, UNADJUSTED, AS_WRITTEN, NUTS = "default", "unadjusted", "as written", "NUTS"


@cache
def _truth(key: str, root: Path) -> Truth | None:
    return programs(root)[key].truth()


def measured(key: str, sampler: str, seed: int, root: Path) -> dict[str, Any]:
    """Return the row of a run."""
    program, truth = programs(root)[key], _truth(key, root)
    with overheard():
        return of_nuts(program, truth, seed) if sampler == NUTS else ours(program, truth, sampler, seed)


def of_nuts(program: Any, truth: Truth | None, seed: int) -> dict[str, Any]:
    """Run Stan's NUTS with its defaults."""
    began = time.process_time()
    fit = program.nuts(chains=CHAINS, warmup=DRAWS, samples=DRAWS, seed=seed, save_warmup=True, refresh=0)
    cpu = time.process_time() - began
    each, before = nuts_gradients(fit, DRAWS)
    labels = program.labels if truth is None else truth.labels
    draws = np.stack([fit.draws(label)[:, DRAWS:] for label in labels], axis=-1)
    row = row_of(truth, draws, each, before)
    diverging = int(fit.sampler_stats[:, DRAWS:, DIVERGENT].sum())
    good = row["r_hat"] <= R_HAT and row["ess"] >= EFFECTIVE and not diverging
    return {**row, "state": "no warning" if good else "warns", "diverging": diverging, "cpu": cpu}


def ours(program: Any, truth: Truth | None, sampler: str, seed: int) -> dict[str, Any]:
    """Run ``pmm.sample`` by default, with unadjusted draws, or without reading a hierarchy."""
    children: Any = {} if sampler == AS_WRITTEN else None
    density = pmm.LogDensity.from_stan(program.file, program.data, children=children)
    options: dict[str, Any] = {"adjusted": False} if sampler == UNADJUSTED else {}

    def run(**short: int) -> Any:
        return pmm.sample(model=density, chains=CHAINS, random_seed=seed, progressbar=False, **options, **short)

    tree, cpu = timed(run)
    stats = tree["sample_stats"].dataset
    posterior = tree["posterior"].dataset
    values = {}
    for name, array in posterior.items():
        shape = array.shape[2:]
        for index in np.ndindex(*shape):
            label = f"{name}[{','.join(str(i + 1) for i in index)}]" if shape else str(name)
            values[label] = array.values[(slice(None), slice(None), *index)]
    labels = program.labels if truth is None else truth.labels
    row = row_of(truth, np.stack([values[label] for label in labels], axis=-1), *gradients_of(stats))
    row |= {"children": list(density.children), "unstable": failures_of(stats), "d": density.d}
    return {**row, **judged(tree), "cpu": cpu}


def row_of(truth: Truth | None, draws: np.ndarray, each: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """Return errors and costs; without a reference costs alone."""
    if truth is not None:
        return errors_and_costs(truth, draws, each, before)
    return costs(draws, draws.mean(axis=(0, 1)), each, before)
