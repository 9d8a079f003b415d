"""Seconds that a PyMC user waits: ``python -m benchmarks wall_clock [model ...]``.

Four chains of 1000 draws after a warm-up of 1000, one after the other on one core, as a user would call them:

PyMC NUTS    pm.sample(nuts_sampler="pymc")
nutpie       pm.sample(nuts_sampler="nutpie")
NumPyro      pm.sample(nuts_sampler="numpyro")
PoissonULMC  pm.sample(step=pmm.PoissonULMC(scheme="paper"))
recycled     pm.sample(step=pmm.PoissonULMC(scheme="recycled"))
pmm default  pmm.sample(backend="numba")
pmm.sample   pmm.sample(pmm.PoissonULMC(scheme="paper"), backend="numba")
pmm recycled pmm.sample(pmm.PoissonULMC(scheme="recycled"), backend="numba")

Everything is the wall time of the call on a newly built model, compilation and conversion of the draws included; of
imports, and of what numba has to compile once for a process, a small model has relieved each sampler before.  Sampling
is warm-up and draws (``sampling_time``).  NumPyro compiles within it, so its kernel is compiled ahead and run once more
in a loop of our own (``versus``); ours may compile within it, so theirs is that of a second call.  Effective
samples are the least of all parameters as the user sees them, and of their squares.  ``--write`` keeps
``results/wall_clock.json`` and ``wall_clock.txt`` up to date after every row; a run begins where the rows end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import wall_clock_models
from targets import TARGETS
from versus.jax_peers import NumPyroNUTS
from versus.kept import about, append, missing, read, told
from versus.rows import failure

import pmm_mcmc as pmm

PATH = Path(__file__).parent / "results" / "wall_clock.json"
CHAINS, DRAWS, TUNE, SEEDS, BASE = 4, 1000, 1000, (1,), "PyMC NUTS"
MODELS: dict[str, Callable[[], pm.Model]] = {
    "eight_schools": TARGETS["eight_schools"].build,
    "breast_cancer": TARGETS["breast_cancer"].build,
    "radon": wall_clock_models.radon,
    "robust_regression": wall_clock_models.robust_regression,
    "item_response": wall_clock_models.item_response,
    "poisson_glm": TARGETS["poisson_glm"].build,
    "stochastic_volatility": TARGETS["stochastic_volatility"].build,
    "zero_inflated": wall_clock_models.zero_inflated,
    "survival": wall_clock_models.survival,
    "gaussian_process": wall_clock_models.gaussian_process,
}
HEADER = """\
{chains} chains, {draws} draws and a warm-up of {tune} each, on one core; seconds of wall time.

all       seconds of everything               ESS, ESS2   least bulk ESS of a parameter, and of a parameter's square
sampling  of warm-up and draws                a second    of sampling, then of everything, least of the two ESS
x NUTS    a second over that of PyMC NUTS, of sampling, then of everything

  sampler           all sampling     ESS    ESS2    a second      of all   x NUTS  of all  verdict"""


def quiet(seed: int, draws: int, tune: int) -> dict[str, Any]:
    """What all calls are told."""
    return {
        "draws": draws,
        "tune": tune,
        "chains": CHAINS,
        "random_seed": seed,
        "progressbar": False,
        "compute_convergence_checks": False,
    }


def nuts(kind: str, model: pm.Model, seed: int, draws: int = DRAWS, tune: int = TUNE) -> Any:
    """``pm.sample`` with NUTS of a package."""
    return pm.sample(model=model, nuts_sampler=kind, cores=1, quiet=True, **quiet(seed, draws, tune))


def step(scheme: str, model: pm.Model, seed: int, draws: int = DRAWS, tune: int = TUNE) -> Any:
    """``pm.sample`` with our step method."""
    with model:
        return pm.sample(step=pmm.PoissonULMC(scheme=scheme), cores=1, quiet=True, **quiet(seed, draws, tune))


def whole(scheme: str | None, model: pm.Model, seed: int, draws: int = DRAWS, tune: int = TUNE) -> Any:
    """``pmm.sample`` on numba."""
    with model:
        given = None if scheme is None else pmm.PoissonULMC(scheme=scheme)
        return pmm.sample(given, backend="numba", **quiet(seed, draws, tune))


SAMPLERS: dict[str, Callable[..., Any]] = {
    "PyMC NUTS": partial(nuts, "pymc"),
    "nutpie": partial(nuts, "nutpie"),
    "NumPyro": partial(nuts, "numpyro"),
    "PoissonULMC": partial(step, "paper"),
    "recycled": partial(step, "recycled"),
    "pmm default": partial(whole, None),
    "pmm.sample": partial(whole, "paper"),
    "pmm recycled": partial(whole, "recycled"),
}
OURS = {"PoissonULMC", "recycled", "pmm default", "pmm.sample", "pmm recycled"}


def least(tree: Any, model: pm.Model) -> tuple[float, float]:
    """Least bulk effective sample size of free variables, and of their squares."""
    posterior = tree["posterior"].dataset[[variable.name for variable in model.free_RVs]]
    found = []
    for power in (1, 2):
        sizes = [
            az.ess((posterior[name].values ** power).reshape(*posterior[name].shape[:2], -1), chain_axis=0, draw_axis=1)
            for name in posterior.data_vars
        ]
        found.append(float(np.nanmin(np.concatenate([np.ravel(size) for size in sizes]))))
    return found[0], found[1]


def sampling_time(tree: Any) -> float:
    """Seconds of sampling that a result names."""
    return float(tree["posterior"].attrs["sampling_time"])


def measure(sampler: str, build: Callable[[], pm.Model], seed: int) -> dict[str, Any]:
    """Sample a new model and return its row."""
    run, model = SAMPLERS[sampler], build()
    load = os.getloadavg()[0]
    began = time.perf_counter()
    tree = run(model, seed)
    everything = time.perf_counter() - began
    sampling = sampling_time(tree)
    if sampler == "NumPyro":
        peer = NumPyroNUTS(model, CHAINS)
        began = time.perf_counter()
        peer.begin(seed)
        peer.lengthen(DRAWS)
        sampling = time.perf_counter() - began
    elif sampler in OURS:
        sampling = sampling_time(run(model, seed))
    ess, ess_square = least(tree, model)
    words = ""
    if sampler in OURS:
        verdict = pmm.verdict(tree)
        words = "trusted" if verdict.trusted else f"{verdict.state}: {str(verdict.reasons[0])[:100]}"
    return {
        "everything": everything,
        "sampling": sampling,
        "ess": ess,
        "ess_square": ess_square,
        "load": round(load, 1),
        "verdict": words,
    }


def speeds(row: dict[str, Any]) -> tuple[float, float]:
    """Least effective samples a second, of sampling and of everything."""
    worst = min(row["ess"], row["ess_square"])
    return worst / row["sampling"], worst / row["everything"]


def table(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Everything that is printed."""
    lines = [HEADER.format(chains=CHAINS, draws=DRAWS, tune=TUNE), "", told(rows, facts)]
    for model in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == model]
        own.sort(key=lambda row: (list(SAMPLERS).index(row["sampler"]), row["seed"]))
        base = {row["seed"]: speeds(row) for row in own if row["sampler"] == BASE and "error" not in row}
        lines += ["", model]
        for row in own:
            if "error" in row:
                lines.append(f"  {row['sampler']:13s} failed: {row['error']}")
                continue
            fast = speeds(row)
            nuts_fast = base.get(row["seed"])
            against = [f"{a / b:.2f}" for a, b in zip(fast, nuts_fast, strict=True)] if nuts_fast else ["-", "-"]
            lines.append(
                f"  {row['sampler']:13s}{row['everything']:8.1f} {row['sampling']:8.1f} {row['ess']:7.0f}"
                f" {row['ess_square']:7.0f} {fast[0]:11.1f} {fast[1]:11.1f} {against[0]:>8s} {against[1]:>7s}"
                f"  {row['verdict']}"
            )
    return "\n".join(lines) + "\n"


def small() -> pm.Model:
    """What is compiled once for a process is compiled on this."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"names of models (default: {' '.join(MODELS)})")
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS), metavar="SAMPLER")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.models) - set(MODELS))
    if unknown:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(MODELS)}")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    facts, rows = about(), read(PATH) if arguments.write else []
    ready: set[str] = set()
    for name in arguments.models or MODELS:
        for sampler in arguments.samplers:
            for seed in missing(rows, name, sampler, arguments.seeds):
                row = {"target": name, "sampler": sampler, "seed": seed}
                try:
                    if sampler not in ready:
                        SAMPLERS[sampler](small(), seed, draws=100, tune=200)
                        ready.add(sampler)
                    row |= measure(sampler, MODELS[name], seed)
                except Exception as error:  # whatever happens in another package is its row
                    row |= failure(error)
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if arguments.write:
                    append(PATH, row, facts, table)
    print(table(rows, facts))


if __name__ == "__main__":
    main()
