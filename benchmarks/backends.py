"""Numba or JAX on a CPU: ``python -m benchmarks backends [model ...]`` times a transition of many chains on both.

Seconds of wall time of a transition of the default method, over the number of chains, at the setting that a warm-up of
64 chains finds and from its last draws: the least of three measurements, compilation left out.  Ratios above 1 say
that JAX is faster.  In brackets: the seconds that JAX compiles first, and numba, which chose the setting, did before.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import time
import warnings
from typing import Any

import jax
import numba
import numpy as np
import pymc as pm
import wall_clock_models
from targets import TARGETS
from warm_ups import warm_up

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Ensemble
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.jax_density import JaxDensity
from pmm_mcmc.model.pymc_density import log_density

SIZES, LEARNING, TRANSITIONS = (256, 1024, 4096), 64, 40_000


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 25))
    return x, (rng.random(1000) < 1 / (1 + np.exp(-x @ rng.normal(size=25) / 3))).astype(int)


def logistic() -> pm.Model:
    """A logistic regression with 1,000 observations of 25 covariates, the model of ``many_chains``."""
    x, y = data()
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.math.dot(x, pm.Normal("slope", shape=25)), observed=y)
    return model


MODELS = {
    "logistic": logistic,
    **{name: TARGETS[name].build for name in ("breast_cancer", "poisson_glm", "eight_schools")},
    **{name: getattr(wall_clock_models, name) for name in wall_clock_models.__all__},
    "stochastic_volatility": TARGETS["stochastic_volatility"].build,
}


def microseconds(engine: Any, tuned: Any, starts: np.ndarray, chains: int) -> tuple[float, float]:
    """Return the time of a transition of one of many chains, and seconds of the first call."""
    positions = starts[np.arange(chains) % len(starts)]
    began = time.perf_counter()
    ensemble = Ensemble.start(engine, tuned.coordinates, positions, np.random.default_rng(1))
    ensemble.prepare(engine, tuned)
    first, n, best = time.perf_counter() - began, max(2, TRANSITIONS // chains), np.inf
    for _ in range(3):
        began = time.perf_counter()
        ensemble.advance(engine, tuned, 1, thin=n)
        best = min(best, time.perf_counter() - began)
    return best / n / chains * 1e6, first


def row(name: str) -> str:
    """Return a model's line of the table."""
    model = MODELS[name]()
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="auto")
    point = model.initial_point(0)
    density = log_density(list(model.value_vars), model, point, arguments.noncentring)
    on_jax = JaxDensity.from_model(density)
    by_numba = NumbaEngine.of(arguments, density, len(os.sched_getaffinity(0)))
    start = np.concatenate([np.ravel(point[var.name]) for var in model.value_vars]).astype(float)
    rng = np.random.default_rng(2)
    warm = warm_up(by_numba, arguments, start + 0.1 * rng.normal(size=(LEARNING, density.d)), length=400, rng=rng)
    d = density.d
    starts = warm.tuned.coordinates.place(warm.ensemble.state[:, 3 * d : 4 * d])
    cells, first = [], 0.0
    for chains in SIZES:
        ours, _ = microseconds(by_numba, warm.tuned, starts, chains)
        theirs, first = microseconds(JaxEngine(arguments.kernel, on_jax, chains), warm.tuned, starts, chains)
        cells.append(f"{ours:8.2f} {theirs:8.2f} {ours / theirs:6.2f}")
    return f"  {name:22s} {d:4d} {'   '.join(cells)}   ({first:.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print(
        f"Microseconds of a transition of a chain: numba, JAX, numba over JAX; at {', '.join(map(str, SIZES))} chains\n"
        f"jax {jax.__version__}, numba {numba.__version__}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    for name in options.models:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
