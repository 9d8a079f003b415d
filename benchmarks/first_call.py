"""Gradients by both doors, ``pm.sample(step=...)`` and ``pmm.sample(step=...)``: ``python -m benchmarks first_call``.

Four chains of 1,000 draws with ``tune=1000``.  A row has the gradients of all chains before the draws (by PyMC's loop:
those of the setting, learnt once, and of its own warm-up), those of an effective draw of the parameter that is known
least, all in, and the state of the verdict.  Instead, ``--beside`` has the effective draws of a step with an automatic
setting beside another that moves a coupled variable, over those of the same step with ``step_size`` given; ``--trust``
has unadjusted steps on curved laws, and too long ones beside other steps, with the worst error of an sd;
``--first-draw`` the CPU seconds of a draw by both doors in processes that know nothing of the model.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm

import pmm_mcmc as pmm

QUIET: dict[str, Any] = {"progressbar": False, "compute_convergence_checks": False}
STEPS: dict[str, Callable[[], Any]] = {
    "GHMC()": pmm.GHMC,
    "PoissonULMC()": pmm.PoissonULMC,
    "PoissonULMC(K=16)": lambda: pmm.PoissonULMC(K=16),
    "PoissonULMC(K=16, grid='left')": lambda: pmm.PoissonULMC(K=16, grid="left"),
    "PoissonULMC(scheme='paper')": lambda: pmm.PoissonULMC(scheme="paper"),
    "MALA()": pmm.MALA,
}


def schools() -> None:
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    theta = pm.Normal("theta", pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), shape=8)
    pm.Normal("y", theta, errors, observed=effects)


def regression() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 50))
    slope = pm.Normal("slope", 0, 2, shape=50)
    pm.Normal("y", x @ slope, pm.HalfNormal("sigma", 2), observed=x @ rng.normal(size=50) + rng.normal(size=200))


def groups() -> None:
    rng = np.random.default_rng(2)
    group, x = np.repeat(np.arange(30), 8), rng.normal(size=240)
    level = pm.Normal("level", pm.Normal("mean"), pm.HalfNormal("sd"), shape=30)
    y = rng.normal(size=30)[group] + 0.5 * x + rng.normal(size=240)
    pm.Normal("y", level[group] + pm.Normal("slope") * x, pm.HalfNormal("sigma"), observed=y)


def logistic(d: int) -> Callable[[], None]:
    def build() -> None:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(4 * d, d)) / np.sqrt(d)
        slope = pm.Normal("slope", 0, 2, shape=d)
        y = x @ rng.normal(size=d) * 2 + rng.logistic(size=4 * d) > 0
        pm.Bernoulli("y", logit_p=x @ slope, observed=y)

    return build


MODELS = {
    "schools": schools, "regression": regression, "groups": groups, "logistic20": logistic(20),
    "logistic500": logistic(500),
}  # fmt: skip


def coupled() -> Iterator[tuple[str, pm.Model, Callable[[], Any]]]:
    """Yield models in which another step moves what the law of ``x`` depends on, and that step."""
    with pm.Model() as model:
        k = pm.Poisson("k", 5.0)
        pm.Normal("x", 0.4 * k, 1.0, shape=2)
    yield "count by Metropolis", model, lambda k=k: pm.Metropolis([k])
    with pm.Model() as model:
        k = pm.Binomial("k", 4, 0.5)
        pm.Gamma("x", 2.0 + k, 1.0)
    yield "bounded, beside a count", model, lambda k=k: pm.Metropolis([k])
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("x", 0.0, pm.math.switch(k, 10.0, 1.0))
    yield "a scale moved by ten", model, lambda k=k: pm.BinaryGibbsMetropolis([k])
    for name, other in {
        "parent by GHMC": lambda k: pmm.GHMC([k]),
        "parent by NUTS": lambda k: pm.NUTS([k]),
        "parent by PoissonULMC": lambda k: pmm.PoissonULMC([k]),
        "parent by ULMC": lambda k: pmm.ULMC([k]),
        "parent by Metropolis": lambda k: pm.Metropolis([k]),
    }.items():
        with pm.Model() as model:
            k = pm.Normal("k")
            pm.Normal("x", k, 1.5, shape=2)
        yield name, model, lambda k=k, other=other: other(k)
    with pm.Model() as model:
        k = pm.Normal("k", shape=3)
        pm.Normal("x", shape=2)
    yield "uncoupled", model, lambda k=k: pm.Metropolis([k])
    with pm.Model() as model:
        k = pm.HalfNormal("k")
        pm.Normal("x", 0.0, k + 0.5, shape=4)
    yield "scale by Slice", model, lambda k=k: pm.Slice([k])


def doors(model: pm.Model, make: Callable[[], Any]) -> Iterator[tuple[str, float, float, str]]:
    """Yield, for each door, gradients before the draws, those of an effective draw, and the state of the verdict."""
    with model:
        dt = pm.sample(1000, tune=1000, chains=4, cores=1, step=make(), random_seed=1, quiet=True, **QUIET)
    whole = pmm.sample(1000, chains=4, step=make(), random_seed=1, model=model, **QUIET)
    for name, run in (("pm.sample", dt), ("pmm.sample", whole)):
        stats = run["sample_stats"]
        each = stats["n_steps" if "n_steps" in stats else "n_grad"].values
        total = stats["n_grad_total"].values[:, -1].sum()
        if "n_grad_setting" in stats:
            total += stats["n_grad_setting"].values.flat[0]
        effective = pmm.summary(run)["ess_bulk"].min()
        yield name, total - each.sum(), total / effective, pmm.verdict(run, model=model).state


def beside(model: pm.Model, other: Callable[[], Any], make: Callable[..., Any]) -> tuple[float, float]:
    """Return effective draws of ``x`` by an automatic and by a given step, of 4 x 1,000."""
    found = []
    for options in ({}, {"step_size": 0.5, "steps_per_draw": 2}):
        with model:
            dt = pm.sample(
                1000, tune=1000, chains=4, cores=1, step=[make([model["x"]], **options), other()], random_seed=1,
                quiet=True, **QUIET,
            )  # fmt: skip
        table = pmm.summary(dt, ["x"])
        found.append(float(table["ess_bulk"].astype(float).min()))
    return found[0], found[1]


def banana(bend: float) -> tuple[pm.Model, dict[str, float]]:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Normal("y", bend * (x**2 - 1.0), 1.0)
    return model, {"x": 1.0, "y": float(np.sqrt(1.0 + 2.0 * bend**2))}


def funnel(width: float) -> tuple[pm.Model, dict[str, float]]:
    with pm.Model() as model:
        pm.Normal("z", 0.0, pm.math.exp(0.5 * pm.Normal("v", 0.0, width)), shape=2)
    return model, {"v": width, "z": float(np.exp(0.25 * width**2))}


def student(nu: float) -> tuple[pm.Model, dict[str, float]]:
    with pm.Model() as model:
        pm.StudentT("t", nu=nu, mu=0.0, sigma=1.0, shape=3)
    return model, {"t": float(np.sqrt(nu / (nu - 2.0)))}


# Laws with known sds that unadjusted steps get wrong.
CURVED = {
    "banana .6": lambda: banana(0.6), "banana 1.3": lambda: banana(1.3), "banana 2.4": lambda: banana(2.4),
    "funnel .7": lambda: funnel(0.7), "Student 7": lambda: student(7.0),
}  # fmt: skip
OTHERS: dict[str, Callable[[Any], Any]] = {"NUTS": pm.NUTS, "GHMC": pmm.GHMC, "Slice": pm.Slice}


def trust() -> Iterator[tuple[str, str, float, str]]:
    """Yield runs by ``pm.sample``: law, step, the worst relative error of an sd, and the state of the verdict."""
    for law, build in CURVED.items():
        for label, make in (
            ("RLMC()", pmm.RLMC),
            ("ULMC()", pmm.ULMC),
            ("PoissonULMC(K=16)", STEPS["PoissonULMC(K=16)"]),
        ):
            for seed in (1, 2, 3):
                model, sds = build()
                with model:
                    dt = pm.sample(1000, chains=4, cores=1, step=make(), random_seed=seed, quiet=True, **QUIET)
                yield law, label, worst_sd(dt, sds), pmm.verdict(dt).state
    for label, other in OTHERS.items():
        for step_size in (0.5, 0.8, 1.2, 1.4, 1.5):
            with pm.Model():
                x, z = pm.Normal("x", shape=3), pm.Normal("z", shape=1)
                step = pmm.ULMC([x], step_size=step_size, friction=1.0, scaling=[1.0] * 3, steps_per_draw=4)
                dt = pm.sample(1000, chains=4, cores=1, step=[step, other([z])], random_seed=1, quiet=True, **QUIET)
            yield f"normal, beside {label}", f"ULMC({step_size})", worst_sd(dt, {"x": 1.0}), pmm.verdict(dt).state


def worst_sd(dt: Any, sds: dict[str, float]) -> float:
    """Return the largest relative error of a standard deviation, with its sign."""
    errors = [dt["posterior"][name].std(("chain", "draw")).values.ravel() / sd - 1.0 for name, sd in sds.items()]
    return float(max(np.concatenate(errors), key=abs))


def first_draw(door: str, name: str) -> float:
    """Return the CPU seconds of one draw by a door, in a process that knows nothing of the model but has its loops."""
    code = (
        f"import time, pymc as pm, pmm_mcmc as pmm, first_call as b; m = pm.Model()\nwith m: b.MODELS[{name!r}]()\n"
        f"o = b.QUIET | dict(draws=1, tune=20, chains=1, cores=1, random_seed=1)\nt = time.process_time()\n"
        f"with m: {door}\nprint(time.process_time() - t)"
    )
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={folder}".strip(",")
        environment = os.environ | {"PYTENSOR_FLAGS": flags}
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, check=True
        )
    return float(ran.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS)[:-1], choices=list(MODELS))
    parser.add_argument("--beside", action="store_true", help="a step beside others")
    parser.add_argument("--trust", action="store_true", help="steps whose draws have a bias")
    parser.add_argument("--first-draw", action="store_true", help="CPU seconds of a draw")
    asked = parser.parse_args()
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if asked.beside:
        for name, model, other in coupled():
            for method in (pmm.PoissonULMC, pmm.GHMC):
                automatic, given = beside(model, other, method)
                print(
                    f"{name:26s}{method.__name__:14s}{automatic:8.0f}{given:8.0f}{automatic / given:8.2f}", flush=True
                )
        return
    if asked.trust:
        for law, label, off, state in trust():
            print(f"{law:24s}{label:20s}{off:+8.3f}  {state}", flush=True)
        return
    if asked.first_draw:
        for name in asked.models:
            doors_of = (
                "pm.sample(step=pmm.GHMC(), quiet=True, **o)",
                "pmm.sample(**o)",
                "pmm.sample(step=pmm.GHMC(), **o)",
            )
            print(f"{name:14s}", *(f"{door}: {first_draw(door, name):.1f}" for door in doors_of), flush=True)
        return
    print(f"{'':44s}{'before draws':>14s}{'a draw':>8s}")
    for name in asked.models:
        with pm.Model() as model:
            MODELS[name]()
        for label, make in STEPS.items():
            for door, before, each, state in doors(model, make):
                print(f"{name:14s}{label:32s}{door:12s}{before:8,.0f}{each:8.1f}  {state}", flush=True)


if __name__ == "__main__":
    main()
