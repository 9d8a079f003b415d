"""CPU seconds that a user waits on a model never seen: ``python -m benchmarks cold_start [model ...]``.

``cold_start growth`` asks for one draw after twenty steps of warm-up, of models of other sizes, on both backends:
CPU seconds of the first call, and in brackets of the same call again in the same process, which compiles nothing.

Otherwise each row is a process of its own, with import left out: a default run of four chains, compilation and all, by

PyMC NUTS    pm.sample(nuts_sampler="pymc")
nutpie       pm.sample(nuts_sampler="nutpie")
NumPyro      pm.sample(nuts_sampler="numpyro")
PoissonULMC  pm.sample(step=pmm.PoissonULMC())
pmm.sample   pmm.sample(backend="numba")
JAX          pmm.sample(backend="jax")

nothing      no compiled code on disk: the first model on a machine, or of its kind
another      what a run of the other model left on disk
seen         what a run of the same model left on disk

``--python`` names the interpreter of the peers, where nutpie is installed.  ``--write`` keeps
``results/cold_start.txt``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

HERE = Path(__file__).parent
OURS = {
    "PoissonULMC": "pm.sample(step=pmm.PoissonULMC(), cores=1, {})",
    "pmm.sample": "pmm.sample(backend='numba', {})",
    "JAX": "pmm.sample(backend='jax', {})",
}
PEERS = {
    "PyMC NUTS": "pm.sample(nuts_sampler='pymc', cores=1, {})",
    "nutpie": "pm.sample(nuts_sampler='nutpie', cores=1, {})",
    "NumPyro": "pm.sample(nuts_sampler='numpyro', {})",
}
NEEDS = {"JAX": "jax", "nutpie": "nutpie", "NumPyro": "numpyro"}


def regression(rng: np.random.Generator) -> tuple[np.ndarray, pt.TensorVariable]:
    """Return the design of 500 rows and the linear predictor of nine coefficients."""
    X = rng.normal(size=(500, 8))
    return X, pm.Normal("a", 0.0, 2.0) + X @ pm.Normal("b", 0.0, 1.0, shape=8)


def logistic() -> pm.Model:
    """A logistic regression."""
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        X, eta = regression(rng)
        chance = 1.0 / (1.0 + np.exp(-X @ np.linspace(-1.0, 1.0, 8)))
        pm.Bernoulli("y", logit_p=eta, observed=(rng.random(500) < chance).astype(int))
    return model


def negative_binomial() -> pm.Model:
    """A regression of counts."""
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        _, eta = regression(rng)
        alpha = pm.HalfNormal("alpha", 5.0)
        pm.NegativeBinomial("y", mu=pt.exp(eta), alpha=alpha, observed=rng.negative_binomial(3, 0.3, 500))
    return model


def thousand() -> pm.Model:
    """A hierarchy of 998 counts."""
    with pm.Model() as model:
        theta = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 2.0), shape=998)
        pm.Poisson("y", pt.exp(theta), observed=np.random.default_rng(5).poisson(3.0, 998))
    return model


def twenty() -> pm.Model:
    """Twenty variables of twelve families, in four likelihoods."""
    rng = np.random.default_rng(6)
    X, group = rng.normal(size=(200, 8)), rng.integers(0, 6, 200)
    with pm.Model() as model:
        eta = pm.Normal("intercept", 0.0, 2.0) + sum(X[:, i] * pm.Normal(f"slope{i}", 0.0, 1.0) for i in range(8))
        mean, sd = pm.Normal("group_mean", 0.0, 1.0), pm.HalfNormal("group_sd", 1.0)
        eta += pm.Normal("group", mean, sd, shape=6)[group] + pm.StudentT("shift", nu=4) * pm.Uniform("bound", 0.0, 1.0)
        nu, scale = pm.Gamma("nu", 2.0, 0.1), pm.HalfCauchy("scale", 1.0)
        pm.StudentT("y", nu=nu, mu=eta, sigma=scale, observed=X @ np.linspace(-1.0, 1.0, 8) + rng.normal(size=200))
        rate = pm.Exponential("rate", 1.0) * pm.LogNormal("power", 0.0, 0.3)
        pm.Poisson("counts", rate, observed=rng.poisson(1.5, 50))
        pm.Binomial("hits", 10, pm.Beta("weight", 2.0, 2.0), observed=rng.binomial(10, 0.4, 30))
        pm.Multinomial("cells", 20, pm.Dirichlet("p", np.ones(3)), observed=rng.multinomial(20, [0.2, 0.3, 0.5], 10))
    return model


def scan() -> pm.Model:
    """GARCH(1, 1) of 200 returns: a loop in the graph."""
    returns = np.random.default_rng(7).normal(size=200)
    with pm.Model() as model:
        omega, a, b = pm.HalfNormal("omega", 1.0), pm.Beta("a", 2.0, 5.0), pm.Beta("b", 5.0, 2.0)
        variance = pytensor.scan(
            lambda x, h, omega, a, b: omega + a * x**2 + b * h,
            sequences=[pt.as_tensor(returns[:-1])], outputs_info=[pt.constant(1.0, dtype="float64")],
            non_sequences=[omega, a, b], return_updates=False,
        )  # fmt: skip
        pm.Normal("y", 0.0, pt.sqrt(variance), observed=returns[1:])
    return model


MODELS = {"logistic": logistic, "negative_binomial": negative_binomial}
GROWTH = {
    "four chains": (logistic, 4), "10,000 chains": (logistic, 10_000), "d = 1,000": (thousand, 4),
    "20 variables": (twenty, 4), "a scan": (scan, 4),
}  # fmt: skip


def one(name: str, sampler: str) -> None:
    """Print CPU seconds of this process and its children, seconds of wall, for one run."""
    if sampler in OURS:
        import pmm_mcmc as pmm
        import pmm_mcmc.steps
    if sampler in NEEDS:
        __import__(NEEDS[sampler])
    build, chains = GROWTH[name] if name in GROWTH else (MODELS[name], 4)
    model = build()

    def spent() -> float:
        usage = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in usage)

    few = "draws=1, tune=20, " if name in GROWTH else ""
    call = (OURS | PEERS)[sampler].format(f"{few}chains={chains}, random_seed=1, progressbar=False")
    names = {"pm": pm, **({"pmm": pmm} if sampler in OURS else {})}
    warnings.simplefilter("ignore")
    cpu, wall = spent(), time.perf_counter()
    with model, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        eval(call, names)
        first, took = spent() - cpu, time.perf_counter() - wall
        if name in GROWTH:
            eval(call, names)
    print(json.dumps([first, spent() - cpu - first if name in GROWTH else took]))


def row(name: str, sampler: str, python: str, disk: str) -> list[float]:
    """Return what :func:`one` prints in a fresh process with caches in a directory."""
    environment = os.environ | {
        "PYTENSOR_FLAGS": f"base_compiledir={disk}/pytensor", "NUMBA_CACHE_DIR": f"{disk}/numba",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [python, "-W", "ignore", __file__, "--one", name, sampler]
    out = subprocess.run(command, env=environment, capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(out.stdout.splitlines()[-1])


def growth() -> None:
    """Print the table of models of other sizes; the package's own loop has been compiled by a regression of counts."""
    print(f"{'':16} {'numba, another':>16} {'numba, seen':>16} {'JAX':>16}")
    with tempfile.TemporaryDirectory() as disk:
        row("negative_binomial", "pmm.sample", sys.executable, disk)
        for name in GROWTH:
            kinds = ("pmm.sample", "pmm.sample", "JAX")
            found = [row(name, sampler, sys.executable, disk) for sampler in kinds]
            print(f"{name:16} " + " ".join(f"{first:7.1f} ({again:6.1f})" for first, again in found), flush=True)


def main(names: list[str], python: str, write: bool) -> None:
    """Print the table."""
    title = "CPU seconds (seconds of wall) of a default run with four chains, imports left out"
    lines = [title, "", f"{'model':18} {'sampler':12} {'nothing':>15} {'another':>15} {'seen':>15}"]
    print(*lines, sep="\n", flush=True)
    for name in names:
        other = next(model for model in MODELS if model != name)
        for sampler in OURS | PEERS:
            with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
                interpreter = python if sampler in PEERS else sys.executable
                found = [row(name, sampler, interpreter, first)]
                row(other, sampler, interpreter, second)
                found += [row(name, sampler, interpreter, second) for _ in range(2)]
            lines.append(f"{name:18} {sampler:12} " + " ".join(f"{cpu:7.1f} ({wall:5.1f})" for cpu, wall in found))
            print(lines[-1], flush=True)
    if write:
        (HERE / "results" / "cold_start.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"{', '.join(MODELS)}, growth")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one)
    elif chosen.models == ["growth"]:
        growth()
    else:
        main(chosen.models or list(MODELS), chosen.python, chosen.write)
