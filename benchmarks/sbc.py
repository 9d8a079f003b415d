"""Calibration by simulation: its cost beside simuk, planted faults and false alarms: ``python -m benchmarks sbc``.

``model``: three models, by ``pmm.sbc`` with 1,000 replicates and by simuk, which compiles each anew, with five: CPU
seconds of all processes, after a replicate that compiles what is kept.  simuk's samplers run where they are named and
installed: simuk 0.3.0 and nutpie 0.16.11 in an environment of their own, since nutpie makes itself the default of
``pm.sample``.

``fault``: 150 replicates of a model in which what is drawn is not what the density says, or that a biased step samples,
and of a sound one: ``--models fault --seeds $(seq 20)``.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from tables import RESULTS, Row, Rows, good, grouped
from tasks import Task, main

import pmm_mcmc as pmm

OURS = "pmm.sbc"
# What simuk hands to pm.sample.
SIMUK = {"simuk, PyMC NUTS": {"nuts_sampler": "pymc"}, "simuk, nutpie": {"nuts_sampler": "nutpie"}}
REPLICATES = {OURS: 1000} | dict.fromkeys(SIMUK, 5)
OF_FAULTS = 150


def eight_schools() -> pm.Model:
    """Return eight schools with proper priors."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfNormal("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, [15.0, 10, 16, 11, 9, 11, 10, 18], observed=np.zeros(8))
    return model


def logistic() -> pm.Model:
    """Return a logistic regression of 200 observations on nine coefficients."""
    x = np.random.default_rng(1).normal(size=(200, 8))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=9)
        pm.Bernoulli("y", logit_p=b[0] + x @ b[1:], observed=np.zeros(200, int))
    return model


def groups() -> pm.Model:
    """Return 50 groups of ten observations."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        sigma = pm.HalfNormal("sigma", 1)
        a = pm.Normal("a", mu, tau, shape=50)
        pm.Normal("y", a[np.repeat(np.arange(50), 10)], sigma, observed=np.zeros(500))
    return model


def with_fault(fault: str) -> pm.Model:
    """Return a model of two pairs of observations in which what is drawn is not what the density says."""

    def half_normal(rng=None, size=None):
        return np.abs(rng.normal(size=size))

    def normal(location, scale, rng=None, size=None):
        return rng.normal(location[..., ::-1] if fault == "swapped index" else location, scale, size=size)

    with pm.Model() as model:
        sd_of_prior = 0.5 if fault == "wrong prior" else 1.0
        mu = pm.CustomDist(
            "mu",
            logp=lambda v: -0.5 * (v / sd_of_prior) ** 2,
            random=lambda rng=None, size=None: rng.normal(size=size),
        )
        jacobian = pt.log if fault == "missing Jacobian" else pt.zeros_like
        sd = pm.CustomDist(
            "sd",
            logp=lambda v: -0.5 * v**2 - jacobian(v),
            random=half_normal,
            transform=pm.distributions.transforms.log,
            initval=1.0,
        )
        two = pm.Normal("two", 0, 1, shape=2)
        pm.CustomDist(
            "y", mu + two, sd,
            logp=lambda y, m, s: pm.logp(pm.Normal.dist(m, s), y),
            random=normal,
            observed=np.zeros((2, 2)),
        )  # fmt: skip
    return model


MODELS = {"eight schools": eight_schools, "logistic regression": logistic, "50 groups": groups}
FAULTS = ("none", "wrong prior", "missing Jacobian", "swapped index", "biased step")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def least_effective(draws: dict[str, np.ndarray]) -> float:
    """Return the least bulk effective sample size of draws ``(chain, draw, ...)`` by name."""
    ess = az.ess(az.from_dict({"posterior": draws}))
    return min(float(values.min()) for values in ess.data_vars.values())


def by_simuk(model: pm.Model, options: dict[str, Any], replicates: int, seed: int) -> Row:
    """Return effective draws of simuk's fits; they are kept in memory."""
    import simuk

    options = {"cores": 1, "chains": 4, "progressbar": False, "compute_convergence_checks": False, **options}
    study = simuk.SBC(model, num_simulations=replicates, seed=seed, sample_kwargs=options, progress_bar=False)
    study.run_simulations()
    fits = [fit.unstack("sample").transpose("chain", "draw", ...) for fit in study.posteriors]
    fits = [{name: fit[name].values for name in study.var_names} for fit in fits]
    return {"ess": float(np.median([least_effective(fit) for fit in fits]))}


def by_us(model: pm.Model, replicates: int, seed: int) -> Row:
    """Return effective draws, gradients and outcome of a study."""
    study = pmm.sbc(model, replicates, random_seed=seed, cores=1, progressbar=False)
    ess = np.concatenate([v.values.reshape(replicates, -1) for v in study["ess"].data_vars.values()], axis=1)
    return {
        "ess": float(np.median(ess.min(axis=1))),
        "gradients": float(study["fits"]["gradients"].mean()),
        "untrusted": int((study["fits"]["state"] != "trusted").sum()),
        "calibrated": bool(study.attrs["calibrated"]),
    }


def measured(target: str, sampler: str, seed: int, replicates: int | None) -> Row:
    """Return the row of a study."""
    logging.disable(logging.CRITICAL)
    kind, name = target.split("/")
    if kind == "fault":
        step = pmm.OLMC(step_size=1.0) if name == "biased step" else None
        study = pmm.sbc(with_fault(name), OF_FAULTS, step=step, random_seed=seed, cores=1, progressbar=False)
        return {"alarm": not study.attrs["calibrated"], "sentence": study.attrs["sentence"]}
    model = MODELS[name]()
    number = replicates or REPLICATES[sampler]

    def study(number: int) -> Row:
        return by_us(model, number, seed) if sampler == OURS else by_simuk(model, SIMUK[sampler], number, seed)

    study(1)
    load = os.getloadavg()[0]
    before = cpu_seconds()
    row = study(number)
    return {**row, "replicates": number, "cpu": cpu_seconds() - before, "load": load}


def page(rows: Rows, facts: str) -> str:
    """Return both tables."""
    lines = [
        "CPU seconds of a replicate and, in proportion to it, of 1,000; ESS is the least of a replicate, the median.",
        "", facts, "",
        f"{'':20s} {'':17s} {'replicates':>10s} {'a replicate':>11s} {'1,000':>7s} {'ESS':>6s} {'CPU s/1000 ESS':>14s} "
        f"{'gradients':>9s} {'not trusted':>11s} {'calibrated':>10s}",
    ]  # fmt: skip
    for row in sorted(good(rows), key=lambda row: TASK.models.index(row["target"])):
        if row["target"].startswith("model/"):
            each = row["cpu"] / row["replicates"]
            ours = ""
            if row["sampler"] == OURS:
                ours = f"{row['gradients']:9.0f} {row['untrusted']:11d} {row['calibrated']!s:>10s}"
            name = row["target"].partition("/")[2]
            lines.append(
                f"{name:20s} {row['sampler']:17s} {row['replicates']:10d} {each:11.3f} {1000 * each:7.0f} "
                f"{row['ess']:6.0f} {1000 * each / row['ess']:14.3f} {ours}".rstrip()
            )
    lines += ["", f"Alarms, in runs of {OF_FAULTS} replicates"]
    faults = grouped(row for row in good(rows) if row["target"].startswith("fault/"))
    for target, of in faults.items():
        lines.append(f"{target.partition('/')[2]:20s} {sum(row['alarm'] for row in of):3d} of {len(of)}")
    failed = [
        f"{row['target']}, {row['sampler']}, seed {row['seed']}: {row['error']}" for row in rows if "error" in row
    ]
    return "\n".join([*lines, "", f"Failed: {len(failed)}", *failed, ""])


TASK = Task(
    words=__doc__,
    path=RESULTS / "sbc.json",
    measure=measured,
    page=page,
    models=[*(f"model/{name}" for name in MODELS), *(f"fault/{name}" for name in FAULTS)],
    samplers=[OURS],
    others=[*SIMUK],
    quick=["model/eight schools"],
    seeds=(1,),
    seconds=3600.0,
    setting=lambda asked: {"replicates": asked.replicates or (10 if asked.quick else None)},
    arguments={"--replicates": {"type": int, "help": "in place of the numbers above"}},
)

if __name__ == "__main__":
    sys.exit(main(TASK))
