"""CPU seconds that a user waits on a model never seen: ``python -m benchmarks cold_start [model ...]``.

Each row is a process of its own, with import left out: a default run of four chains, compilation and all, by

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


MODELS = {"logistic": logistic, "negative_binomial": negative_binomial}


def one(name: str, sampler: str) -> None:
    """Print CPU seconds of this process and its children, seconds of wall, for one run."""
    if sampler in OURS:
        import pmm_mcmc as pmm
        import pmm_mcmc.steps
    if sampler in NEEDS:
        __import__(NEEDS[sampler])
    model = MODELS[name]()

    def spent() -> float:
        usage = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in usage)

    call = (OURS | PEERS)[sampler].format("chains=4, random_seed=1, progressbar=False")
    names = {"pm": pm, **({"pmm": pmm} if sampler in OURS else {})}
    warnings.simplefilter("ignore")
    cpu, wall = spent(), time.perf_counter()
    with model, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        eval(call, names)
    print(json.dumps([spent() - cpu, time.perf_counter() - wall]))


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
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one)
    else:
        main(chosen.models or list(MODELS), chosen.python, chosen.write)
