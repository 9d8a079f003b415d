"""Seconds that a PyMC user waits: ``python -m benchmarks wall_clock``.

Four chains of 1000 draws after a warm-up of 1000, one after the other on one core, as a user would call them:

PyMC NUTS    pm.sample(nuts_sampler="pymc")
nutpie       pm.sample(nuts_sampler="nutpie")
NumPyro      pm.sample(nuts_sampler="numpyro")
PoissonULMC  pm.sample(step=pmm.PoissonULMC(scheme="paper"))
recycled     pm.sample(step=pmm.PoissonULMC(scheme="recycled"))
pmm default  pmm.sample()
pmm.sample   pmm.sample(step=pmm.PoissonULMC(scheme="paper"))
pmm recycled pmm.sample(step=pmm.PoissonULMC(scheme="recycled"))

Everything is the wall time of the call on a newly built model, compilation and conversion of the draws included; of
imports, and of what numba has to compile once for a process, a small model has relieved each sampler before.  Sampling
is warm-up and draws (``sampling_time``).  NumPyro compiles within it, so its kernel is compiled ahead and run once more
in a loop of our own (``common/peers.py``); ours may compile within it, so theirs is that of a second call.  Effective
samples are the least of all parameters as the user sees them, and of their squares.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import wall_clock_models
from peers import NumPyroNUTS
from tables import RESULTS, Row, Rows, grouped
from targets import TARGETS
from tasks import Task, main

import pmm_mcmc as pmm

CHAINS, DRAWS, TUNE, BASE = 4, 1000, 1000, "PyMC NUTS"
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
HEADER = f"""\
{CHAINS} chains, {DRAWS} draws and a warm-up of {TUNE} each, on one core; seconds of wall time.

all       seconds of everything               ESS, ESS2   least bulk ESS of a parameter, and of a parameter's square
sampling  of warm-up and draws                a second    of sampling, then of everything, least of the two ESS
x NUTS    a second over that of PyMC NUTS, of sampling, then of everything

  sampler           all sampling     ESS    ESS2    a second      of all   x NUTS  of all  verdict"""


def call(kind: str, scheme: str | None, model: pm.Model, seed: int, draws: int = DRAWS, tune: int = TUNE) -> Any:
    """``pm.sample`` with NUTS of a package or with our step method, or ``pmm.sample``."""
    options = {"draws": draws, "tune": tune, "chains": CHAINS, "random_seed": seed}
    options |= {"progressbar": False, "compute_convergence_checks": False}
    with model:
        step = None if scheme is None else pmm.PoissonULMC(scheme=scheme)
        if kind == "pmm":
            return pmm.sample(step=step, **options)
        options |= {"cores": 1, "quiet": True}
        return pm.sample(step=step, **options) if kind == "step" else pm.sample(nuts_sampler=kind, **options)


SAMPLERS: dict[str, Callable[..., Any]] = {
    "PyMC NUTS": partial(call, "pymc", None),
    "nutpie": partial(call, "nutpie", None),
    "NumPyro": partial(call, "numpyro", None),
    "PoissonULMC": partial(call, "step", "paper"),
    "recycled": partial(call, "step", "recycled"),
    "pmm default": partial(call, "pmm", None),
    "pmm.sample": partial(call, "pmm", "paper"),
    "pmm recycled": partial(call, "pmm", "recycled"),
}
OURS = list(SAMPLERS)[3:]


def least(tree: Any, model: pm.Model) -> list[float]:
    """Least bulk effective sample size of free variables, and of their squares."""
    posterior = tree["posterior"].dataset[[variable.name for variable in model.free_RVs]]
    sizes: list[list[Any]] = [[], []]
    for values in (posterior[name].values for name in posterior.data_vars):
        for power, of_power in enumerate(sizes, start=1):
            x = (values**power).reshape(*values.shape[:2], -1)
            of_power.append(np.ravel(az.ess(x, chain_axis=0, draw_axis=1)))
    return [float(np.nanmin(np.concatenate(of_power))) for of_power in sizes]


@cache
def ready(sampler: str) -> None:
    """Compile what is compiled once for a process."""
    logging.disable(logging.WARNING)
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    SAMPLERS[sampler](model, 1, draws=100, tune=200)


def measured(target: str, sampler: str, seed: int) -> Row:
    """Sample a new model and return its row."""
    ready(sampler)
    run, model = SAMPLERS[sampler], MODELS[target]()
    load = os.getloadavg()[0]
    began = time.perf_counter()
    tree = run(model, seed)
    everything = time.perf_counter() - began
    sampling = float(tree["posterior"].attrs["sampling_time"])
    if sampler == "NumPyro":
        peer = NumPyroNUTS(model, CHAINS)
        began = time.perf_counter()
        peer.run(seed, DRAWS)
        sampling = time.perf_counter() - began
    elif sampler in OURS:
        sampling = float(run(model, seed)["posterior"].attrs["sampling_time"])
    ess, ess_square = least(tree, model)
    words = ""
    if sampler in OURS:
        verdict = pmm.verdict(tree, model=model)
        words = "trusted" if verdict.trusted else f"{verdict.state}: {str(verdict.reasons[0])[:100]}"
    seconds = {"everything": everything, "sampling": sampling}
    return {**seconds, "ess": ess, "ess_square": ess_square, "load": round(load, 1), "verdict": words}


def speeds(row: Row) -> list[float]:
    """Least effective samples a second, of sampling and of everything."""
    return [min(row["ess"], row["ess_square"]) / row[name] for name in ("sampling", "everything")]


def page(rows: Rows, facts: str) -> str:
    """Everything that is printed."""
    lines = [HEADER, "", facts]
    for model, of_model in grouped(rows).items():
        base = {row["seed"]: speeds(row) for row in of_model if row["sampler"] == BASE and "error" not in row}
        lines += ["", model]
        for row in sorted(of_model, key=lambda row: (list(SAMPLERS).index(row["sampler"]), row["seed"])):
            if "error" in row:
                lines.append(f"  {row['sampler']:13s} failed: {row['error']}")
                continue
            fast, against = speeds(row), ["-", "-"]
            if row["seed"] in base:
                against = [f"{a / b:.2f}" for a, b in zip(fast, base[row["seed"]], strict=True)]
            lines.append(
                f"  {row['sampler']:13s}{row['everything']:8.1f} {row['sampling']:8.1f} {row['ess']:7.0f}"
                f" {row['ess_square']:7.0f} {fast[0]:11.1f} {fast[1]:11.1f} {against[0]:>8s} {against[1]:>7s}"
                f"  {row['verdict']}"
            )
    return "\n".join(lines) + "\n"


TASK = Task(
    words=__doc__,
    path=RESULTS / "wall_clock.json",
    measure=measured,
    page=page,
    models=list(MODELS),
    samplers=list(SAMPLERS),
    quick=["poisson_glm"],
    quick_samplers=["pmm default"],
    seeds=[1],
    seconds=900.0,
)

if __name__ == "__main__":
    sys.exit(main(TASK))
