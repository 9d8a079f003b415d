"""Calibration by simulation: seconds of three models, and how often planted faults are found and sound models blamed.

``python benchmarks/sbc.py [REPLICATES] [RUNS]`` prints both tables: by default 1,000 replicates of each model, and 20
runs of 150 replicates of each fault.
"""

from __future__ import annotations

import logging
import resource
import sys
import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pmm_mcmc as pmm

SEED = 1


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
    x = np.random.default_rng(SEED).normal(size=(200, 8))
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


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def main() -> None:
    """Print both tables."""
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print(
        f"{replicates} replicates       seconds  CPU s a fit  least ESS  gradients  not trusted  calibrated", flush=True
    )
    for model in (eight_schools(), logistic(), groups()):
        pmm.sbc(model, 2, random_seed=0, progressbar=False)  # compiles
        began = time.perf_counter()
        spent = cpu_seconds()
        dt = pmm.sbc(model, replicates, random_seed=SEED, progressbar=False)
        cpu = (cpu_seconds() - spent) / replicates
        ess = np.median([dt["ess"].to_dataset().min(dim=dims_of(dt)).to_array().min("variable")])
        untrusted = int((dt["fits"]["state"] != "trusted").sum())
        name = {10: "eight schools", 9: "logistic, 9", 53: "50 groups"}[count(dt)]
        print(
            f"{name:20s} {time.perf_counter() - began:10.0f} {cpu:12.3f} {ess:10.0f} "
            f"{float(dt['fits']['gradients'].mean()):10.0f} {untrusted:12d} {bool(dt.attrs['calibrated'])!s:>11s}",
            flush=True,
        )
    print(f"\nfault             alarms in {runs} runs of 150 replicates", flush=True)
    for fault in ("none", "wrong prior", "missing Jacobian", "swapped index", "biased step"):
        model = with_fault(fault)
        step = pmm.OLMC(step_size=1.0) if fault == "biased step" else None
        alarms = [
            not pmm.sbc(model, 150, step=step, random_seed=seed, progressbar=False).attrs["calibrated"]
            for seed in range(runs)
        ]
        print(f"{fault:18s}{sum(alarms):6d}", flush=True)


def dims_of(dt):
    """Return the dims of parameters."""
    return [dim for dim in dt["ess"].dims if dim != "replicate"]


def count(dt) -> int:
    """Return the number of parameters."""
    return sum(int(np.prod(values.shape[1:])) for values in dt["mean"].data_vars.values())


if __name__ == "__main__":
    main()
