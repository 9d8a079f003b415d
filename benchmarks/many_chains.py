"""Many chains at once: ``python -m benchmarks many_chains [step ess curve precision]``.

The model is a logistic regression with 1000 observations of 25 covariates (``--model gaussian``: 25 coordinates).

step
    CPU time of a transition of all chains against two batched evaluations of the gradient by the same compiled
    function (recycled: against one), by alternating measurements in one run.
ess
    Effective samples of the slowest coordinate, and of its square, for each CPU second, while sampling: this package on
    both backends,
    BlackJAX's MCLMC and NUTS under ``jax.vmap``, each tuned by its own tuner on one chain (8,000 gradients for MCLMC,
    1,000 window-adaptation steps for NUTS), whose time is left out, as is all compilation.  Of this package the warm-up
    of all chains is shown beside it.
curve
    CPU time of a transition by chains and coordinates.
precision
    Time of a transition in double, mixed and single precision, and the part of it that the gradients take.

On an accelerator the same commands measure wall-clock time on it (``--seconds wall``); say which in the output.
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

import arviz as az
import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.warmup.pooled import warm_up

jax.config.update("jax_enable_x64", True)
SEED, REPEATS, D = 1, 7, 25
METHODS = {
    "PoissonULMC(K=16)": (dict(K=16), 2),
    "PoissonULMC(K=16, option=1)": (dict(K=16, option=1), 2),
    "PoissonULMC(scheme='recycled')": (dict(scheme="recycled"), 1),
}
# For effective samples also with twice the bias that is allowed by default.
MORE_BIAS = {"PoissonULMC(scheme='recycled', target_bias=0.1)": (dict(scheme="recycled", target_bias=0.1), 1)}
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
clock: Callable[[], float] = time.process_time


def logistic(d: int = D, n: int = 1000) -> Callable[[Any], Any]:
    """Log posterior of a logistic regression on simulated data, as a JAX function."""
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(n, d))
    y = jnp.asarray(rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(size=d) / 3)), float)
    x = jnp.asarray(x)

    def log_density(b):
        eta = x.astype(b.dtype) @ b
        return jnp.sum(y.astype(b.dtype) * eta - jax.nn.softplus(eta)) - 0.5 * jnp.sum(b * b)

    return log_density


def gaussian(d: int = D) -> Callable[[Any], Any]:
    """Log density of a unit Gaussian."""
    return lambda x: -0.5 * jnp.sum(x * x)


MODELS = {"logistic": logistic, "gaussian": gaussian}


def engine_of(log_density: Any, options: dict[str, Any], chains: int, d: int = D, precision: str = "float64") -> Any:
    """An engine, the arguments of its method, and the density."""
    density = pmm.LogDensity.from_jax(log_density, d)
    arguments = pmm.PoissonULMC(**options).arguments
    return JaxEngine(arguments.kernel, density, chains, precision), arguments, density


def seconds(function: Callable[[], Any], at_least: float = 0.3) -> float:
    """Time of one call, from as many as take a while."""
    calls, total = 0, 0.0
    while total < at_least:
        began = clock()
        function()
        total += clock() - began
        calls += 1
    return total / calls


def bare(density: Any, chains: int, n: int, precision: str = "float64") -> Callable[[], Any]:
    """``n`` batched gradients, one after the other, in one compiled call."""
    x = np.random.default_rng(SEED).normal(size=(chains, density.d)) * 0.1

    @jax.jit
    def many(x):
        # Each depends on the last, so that none is left out.
        def once(_, x):
            return x + 1e-9 * density.batch(x, [], precision)[1].astype(x.dtype)

        return jax.lax.fori_loop(0, n, once, x)

    return lambda: many(x).block_until_ready()


def transitions(engine: Any, arguments: Any, chains: int, n: int, d: int = D) -> Callable[[], Any]:
    """``n`` transitions of all chains, of which one draw is kept."""
    coordinates = Coordinates(np.zeros(d), np.full(d, 0.08))
    ensemble = Ensemble.start(engine, coordinates, np.zeros((chains, d)), np.random.default_rng(SEED))
    setting = TunedParameters(0.5, arguments.fixed_K or 16, 1.0, coordinates, 1)
    return lambda: ensemble.advance(engine, setting, 1, thin=n)


def step_table(model: str, chains: int) -> None:
    """Transition against its bare gradients."""
    print(f"\nA transition of {chains} chains against its gradients, {model}: median of {REPEATS} ratios (range)")
    for name, (options, count) in METHODS.items():
        engine, arguments, density = engine_of(MODELS[model](), options, chains)
        ours, theirs = transitions(engine, arguments, chains, 50), bare(density, chains, 50)
        ours(), theirs()
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(REPEATS)]
        ratios = sorted(a / (count * b) for a, b in pairs)
        us = statistics.median(a for a, _ in pairs) / 50 / chains * 1e6
        span = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  {name:32s} {statistics.median(ratios):5.2f}  {span}  {us:6.2f} us a chain")


def slowest(draws: np.ndarray) -> np.ndarray:
    """Effective sample size, in bulk, of the slowest coordinate, and of the slowest square."""
    centred = draws - draws.mean(axis=(0, 1))
    each = range(draws.shape[-1])
    return np.array([min(float(az.ess(x[..., i], method="bulk")) for i in each) for x in (draws, centred**2)])


def measured(engine: Any, arguments: Any, chains: int, draws: int) -> tuple[np.ndarray, float]:
    """Effective samples a second of an engine's run, and the seconds of its warm-up, which is run twice: to compile."""
    starts = np.random.default_rng(SEED).uniform(-1.0, 1.0, (chains, D))
    for _ in range(2):
        began = clock()
        warm = warm_up(engine, arguments, starts, length=400, rng=np.random.default_rng(SEED))
        took = clock() - began
    began = clock()
    chunk = warm.ensemble.advance(engine, warm.tuned, draws, thin=warm.tuned.steps_per_draw)
    seconds = clock() - began
    return slowest(chunk.model_position) / seconds, took


def numba_ess(options: dict[str, Any], chains: int, draws: int) -> tuple[np.ndarray, float]:
    """The same on CPU threads, for the PyMC model of the same posterior."""
    import pymc as pm

    from pmm_mcmc.engines.numba_engine import NumbaEngine
    from pmm_mcmc.model.log_density import log_density

    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(1000, D))
    y = (rng.random(1000) < 1 / (1 + np.exp(-x @ rng.normal(size=D) / 3))).astype(int)
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=D)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, slope), observed=y)
    arguments = pmm.PoissonULMC(**options).arguments
    density = log_density(model.value_vars, model, model.initial_point(0))
    engine = NumbaEngine.of(arguments, density, os.cpu_count() or 1)
    return measured(engine, arguments, chains, draws)


def mclmc(log_density: Any, x: Any, key: Any) -> tuple[Any, Any, int]:
    """BlackJAX's MCLMC, tuned on one chain: how it begins, a step, and the steps to where the others are."""
    kernel = blackjax.mclmc.build_kernel()
    _, parameters, _ = blackjax.mclmc_find_L_and_step_size(
        mclmc_kernel=kernel,
        num_steps=12_000,
        state=blackjax.mclmc.init(x, log_density, key),
        rng_key=key,
        logdensity_fn=log_density,
    )
    L, size, scale = parameters.L, parameters.step_size, parameters.inverse_mass_matrix

    def step(state, key):
        return kernel(key, state, log_density, scale, L, size)

    return lambda x, key: blackjax.mclmc.init(x, log_density, key), step, 300


def nuts(log_density: Any, x: Any, key: Any) -> tuple[Any, Any, int]:
    """BlackJAX's NUTS, adapted on one chain: likewise."""
    (_, parameters), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(key, x, 1000)
    algorithm = blackjax.nuts(log_density, **parameters)
    return lambda x, key: algorithm.init(x), lambda state, key: algorithm.step(key, state), 20


def their_ess(sampler: Callable[..., tuple[Any, Any, int]], log_density: Any, chains: int, draws: int) -> np.ndarray:
    """Effective samples a second of a sampler of BlackJAX, chains in one batch."""
    key, tune_key = jax.random.split(jax.random.key(SEED))
    x = jax.random.uniform(key, (chains, D), minval=-1.0, maxval=1.0)
    begin, step, before = sampler(log_density, x[0], tune_key)

    def one(x, key):
        def kept(state, key):
            state, _ = step(state, key)
            return state, state.position

        key, start = jax.random.split(key)
        state, _ = jax.lax.scan(kept, begin(x, start), jax.random.split(key, before))
        return jax.lax.scan(kept, state, jax.random.split(key, draws))[1]

    keys = jax.random.split(key, chains)
    compiled = jax.jit(jax.vmap(one)).lower(x, keys).compile()
    began = clock()
    positions = np.asarray(compiled(x, keys))
    # The steps that brought the chains to the posterior are no part of it.
    return slowest(positions) / ((clock() - began) * draws / (draws + before))


def ess_table(model: str, sizes: list[int]) -> None:
    """Effective samples for each second."""
    log_density = MODELS[model]()
    print(f"\nEffective samples of the slowest coordinate a second, while sampling, {model} ({UNIT})")
    for chains in sizes:
        draws = max(50, 12_800 // chains)
        rows: dict[str, tuple[np.ndarray, float]] = {}
        for name, (options, _) in (METHODS | MORE_BIAS).items():
            engine, arguments, _ = engine_of(log_density, options, chains)
            rows[f"{name}, JAX"] = measured(engine, arguments, chains, draws)
            if model == "logistic" and "option" not in options:
                rows[f"{name}, numba"] = numba_ess(options, chains, draws)
        rows["BlackJAX MCLMC"] = their_ess(mclmc, log_density, chains, 4 * draws), np.nan
        rows["BlackJAX NUTS"] = their_ess(nuts, log_density, chains, draws), np.nan
        print(
            f"  {chains} chains{'':43s}   x: a second, over MCLMC, NUTS   x^2: a second, over MCLMC, NUTS   warm-up s"
        )
        for name, (rates, warm) in rows.items():
            cells = [
                f"{rate:11.0f} {rate / rows['BlackJAX MCLMC'][0][i]:10.1f} {rate / rows['BlackJAX NUTS'][0][i]:8.1f}"
                for i, rate in enumerate(rates)
            ]
            print(f"    {name:53s} {'   '.join(cells)}   {warm:8.2f}", flush=True)


def curve_table(model: str, sizes: list[int]) -> None:
    """Cost by chains and coordinates."""
    print(f"\nNanoseconds a transition for each chain and coordinate, PoissonULMC(K=16), {model} ({UNIT})")
    dimensions = (5, 25, 125)
    print("  chains   " + "".join(f"d = {d:<10d}" for d in dimensions))
    for chains in sizes:
        cells = []
        for d in dimensions:
            engine, arguments, _ = engine_of(MODELS[model](d), {"K": 16}, chains, d)
            ours = transitions(engine, arguments, chains, 10, d)
            ours()
            cells.append(seconds(ours) / 10 / chains / d * 1e9)
        print(f"  {chains:<9d}" + "".join(f"{cell:<14.1f}" for cell in cells), flush=True)


def precision_table(model: str, chains: int) -> None:
    """Double, mixed and single precision."""
    print(f"\nMicroseconds a transition of a chain, PoissonULMC(K=16), {chains} chains, {model} ({UNIT})")
    for precision in ("float64", "mixed", "float32"):
        engine, arguments, density = engine_of(MODELS[model](), {"K": 16}, chains, precision=precision)
        with jax.enable_x64(precision != "float32"):
            ours, theirs = transitions(engine, arguments, chains, 50), bare(density, chains, 50, precision)
            ours(), theirs()
            a, b = seconds(ours) / 50 / chains, seconds(theirs) / 50 / chains
        print(f"  {precision:8s} {1e6 * a:7.2f}   gradients {min(2 * b / a, 1.0):.0%} of it")


TABLES = {
    "step": lambda a: step_table(a.model, a.chains[0]),
    "ess": lambda a: ess_table(a.model, a.chains[1:]),
    "curve": lambda a: curve_table("gaussian", a.sizes),
    "precision": lambda a: precision_table(a.model, a.chains[-1]),
}


def main() -> None:
    """Print the tables."""
    global clock, UNIT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--model", default="logistic", choices=list(MODELS))
    parser.add_argument("--chains", type=int, nargs="+", default=[64, 256, 1024], help="first for step, others for ess")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096, 16384])
    parser.add_argument("--seconds", default="cpu", choices=list(CLOCKS))
    options = parser.parse_args()
    clock, UNIT = CLOCKS[options.seconds], f"{options.seconds} seconds"
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, blackjax {blackjax.__version__}, {device.platform} ({device.device_kind}), "
          f"{os.cpu_count()} cores, Python {platform.python_version()}, {UNIT}")  # fmt: skip
    warnings.simplefilter("ignore")
    for name in options.tables:
        TABLES[name](options)


UNIT = "cpu seconds"

if __name__ == "__main__":
    main()
