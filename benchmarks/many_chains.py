"""Many chains at once: ``python -m benchmarks many_chains [step ess curve]``.

The model is a logistic regression with 1000 observations of 25 covariates.  Seconds are of wall time, compilation left
out, on whatever device JAX has.

step
    A transition of all chains against batched evaluations of the gradient by the same compiled function, two of the
    paper's scheme and one of recycled, by alternating measurements in one run.
ess
    Effective samples of the slowest coordinate, and of its square, a second, while sampling: this package on both
    backends, beside the seconds of its warm-up, and BlackJAX's MCLMC and NUTS, tuned on one chain.
curve
    Time of a transition by chains and coordinates of a unit Gaussian.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from accelerator_peers import peer, rate_of
from backends import data, logistic
from warm_ups import warm_up

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.pymc_density import log_density

jax.config.update("jax_enable_x64", True)
SEED, REPEATS, D = 1, 7, 25
METHODS = {
    "PoissonULMC(K=16)": ({"K": 16}, 2),
    "PoissonULMC(scheme='recycled')": ({"scheme": "recycled"}, 1),
}


def regression(b: Any) -> Any:
    """Log posterior of the logistic regression, as a JAX function."""
    x, y = map(jnp.asarray, data())
    eta = x.astype(b.dtype) @ b
    return jnp.sum(y.astype(b.dtype) * eta - jax.nn.softplus(eta)) - 0.5 * jnp.sum(b * b)


def engine_of(function: Callable[[Any], Any], options: dict[str, Any], chains: int, d: int = D) -> Any:
    """An engine, the arguments of its method, and the density."""
    density = pmm.LogDensity.from_jax(function, d)
    arguments = pmm.PoissonULMC(**options).arguments
    return JaxEngine(arguments.kernel, density, chains), arguments, density


def seconds(function: Callable[[], Any], at_least: float = 0.3) -> float:
    """Time of one call, from as many as take a while."""
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < at_least:
        function()
        calls += 1
    return (time.perf_counter() - began) / calls


def bare(density: Any, chains: int, n: int) -> Callable[[], Any]:
    """``n`` batched gradients, one after the other, in one compiled call."""
    x = np.random.default_rng(SEED).normal(size=(chains, density.d)) * 0.1

    @jax.jit
    def many(x):
        # Each depends on the last, so that none is left out.
        return jax.lax.fori_loop(0, n, lambda _, x: x + 1e-9 * density.batch(x, [], "float64")[1], x)

    return lambda: many(x).block_until_ready()


def transitions(engine: Any, arguments: Any, chains: int, n: int, d: int = D) -> Callable[[], Any]:
    """``n`` transitions of all chains, of which one draw is kept."""
    coordinates = Coordinates(np.zeros(d), np.full(d, 0.08))
    ensemble = Ensemble.start(engine, coordinates, np.zeros((chains, d)), np.random.default_rng(SEED))
    setting = TunedParameters(0.5, arguments.fixed_K or 16, 1.0, coordinates, 1)
    return lambda: ensemble.advance(engine, setting, 1, thin=n)


def step_table(asked: Any) -> None:
    """Transition against its bare gradients."""
    chains = asked.chains[0]
    print(f"\nA transition of {chains} chains against its gradients: median of {REPEATS} ratios (range)")
    for name, (options, count) in METHODS.items():
        engine, arguments, density = engine_of(regression, options, chains)
        ours, theirs = transitions(engine, arguments, chains, 50), bare(density, chains, 50)
        ours(), theirs()
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(REPEATS)]
        ratios = sorted(a / (count * b) for a, b in pairs)
        us = statistics.median(a for a, _ in pairs) / 50 / chains * 1e6
        span = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  {name:32s} {statistics.median(ratios):5.2f}  {span}  {us:6.2f} us a chain")


def measured(engine: Any, arguments: Any, chains: int, draws: int) -> tuple[list[float], float]:
    """Effective samples a second of an engine's run, and the seconds of its warm-up, which is run twice: to compile."""
    starts = np.random.default_rng(SEED).uniform(-1.0, 1.0, (chains, D))
    for _ in range(2):
        began = time.perf_counter()
        warm = warm_up(engine, arguments, starts, length=400, rng=np.random.default_rng(SEED))
        took = time.perf_counter() - began
    began = time.perf_counter()
    chunk = warm.ensemble.advance(engine, warm.tuned, draws, thin=warm.tuned.steps_per_draw)
    return rate_of(chunk.model_position, chains, time.perf_counter() - began), took


def ess_table(asked: Any) -> None:
    """Effective samples for each second."""
    print("\nEffective samples of the slowest coordinate a second, while sampling")
    model = logistic()
    density = log_density(model.value_vars, model, model.initial_point(0))
    for chains in asked.chains[1:]:
        draws = max(50, 12_800 // chains)
        rows: dict[str, tuple[list[float], float]] = {}
        for name, (options, _) in METHODS.items():
            engine, arguments, _ = engine_of(regression, options, chains)
            rows[f"{name}, JAX"] = measured(engine, arguments, chains, draws)
            on_numba = NumbaEngine.of(arguments, density, os.cpu_count() or 1)
            rows[f"{name}, numba"] = measured(on_numba, arguments, chains, draws)
        starts = np.random.default_rng(SEED).uniform(-1.0, 1.0, (chains, D))
        rows |= {f"BlackJAX {name}": (peer(name, regression, starts).rates, np.nan) for name in ("MCLMC", "NUTS")}
        print(f"  {chains:5d} chains{'':33s}{'x':>8s}{'x^2':>8s}  warm-up s")
        for name, (rates, warm) in rows.items():
            print(f"    {name:40s}{rates[0]:8.0f}{rates[1]:8.0f}{warm:11.2f}", flush=True)


def curve_table(asked: Any) -> None:
    """Cost by chains and coordinates."""
    print("\nNanoseconds a transition for each chain and coordinate, PoissonULMC(K=16), a unit Gaussian")
    dimensions = (5, 25, 125)
    print("  chains   " + "".join(f"d = {d:<10d}" for d in dimensions))
    for chains in asked.sizes:
        cells = []
        for d in dimensions:
            engine, arguments, _ = engine_of(lambda x: -0.5 * jnp.sum(x * x), {"K": 16}, chains, d)
            ours = transitions(engine, arguments, chains, 10, d)
            ours()
            cells.append(seconds(ours) / 10 / chains / d * 1e9)
        print(f"  {chains:<9d}" + "".join(f"{cell:<14.1f}" for cell in cells), flush=True)


TABLES = {"step": step_table, "ess": ess_table, "curve": curve_table}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--chains", type=int, nargs="+", default=[64, 256, 1024], help="first for step, others for ess")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096, 16384], help="for curve")
    asked = parser.parse_args()
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, blackjax {blackjax.__version__}, {device.platform} ({device.device_kind}), "
          f"{os.cpu_count()} cores, Python {platform.python_version()}, seconds of wall time")  # fmt: skip
    warnings.simplefilter("ignore")
    for name in asked.tables:
        TABLES[name](asked)


if __name__ == "__main__":
    main()
