"""Thousands of chains on an accelerator, beside other samplers: ``python -m benchmarks accelerator [model ...]``.

**Where there is a GPU, first of all** ``--first-ten-minutes``: microseconds of a transition of all chains by the
program of the draws, at a fixed step, the faster of two calls after compiling.  Of one transition a call, so with all
that is fetched; of each of a full call's draws; and of a hundred without a draw between.  With CUDA graphs, without, in
the paper's method, and in single precision (unadjusted).  A crash is a row.

Each row is a process of its own and is kept in ``results/accelerator.json`` as soon as it is done.  The command goes
on where it stopped, for ``--minutes`` at a time.  Without an accelerator it runs on the CPU: ``--small`` is two models
with 64 and 256 chains.  All chains start within one unit of the model's initial point.

seconds, compiling
    Wall clock from the first line of the sampler (model built, imports done) until the errors stay below their limit:
    b2max = max_i (mean x_i^2 - E x_i^2)^2 / Var x_i^2 < 0.01 on the unconstrained coordinates, means over all chains
    and the later half of their steps so far.  Compiling is XLA's for the whole run, draws included; of MEADS, ChEES,
    MCLMC and NUTS that of all up to the draws, with tracing.
gradients
    In sequence, until then: what the slowest chain of a batch in lockstep waits for.
ESS(x^2)/s
    Effective samples of the slowest square for each second of sampling, compiled: of 256 chains, times their share.

pmm           pmm.sample(): its warm-up, its equilibration and the draws after it
pmm unadjusted  pmm.sample(adjusted=False), in float64, mixed and float32
LAPS          of BlackJAX, 500 unadjusted and 500 adjusted steps at most; the seconds are those of the whole run
MEADS, ChEES  of BlackJAX: their adaptation over all chains, then their kernel
MCLMC, NUTS   of BlackJAX, tuned on one chain (its seconds count, its gradients do not), then all chains

The peers run in float64; one that is not installed is an error, which is a row.  References are moments of PyMC's NUTS,
4 x 4,000 draws on the CPU, kept in ``results/accelerator_references.json``: ``--references`` makes the missing ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from accelerator_peers import FEW, SEED, Compiling, Followed, Known, laps, peer, rate_of
from tables import RESULTS, entries

KEPT, REFERENCES = RESULTS / "accelerator.json", RESULTS / "accelerator_references.json"
MODELS = ("german25", "german_sparse", "brownian_motion", "item_response", "stochastic_volatility", "eight_schools")
SMALL = ("german25", "eight_schools")
CHAINS = (64, 256, 1024, 4096, 16384, 65536)
PRECISIONS = ("float64", "mixed", "float32")
PEERS = ("LAPS", "MEADS", "ChEES", "MCLMC", "NUTS")
FIRST_CHAINS = (4096, 256, 16384)
FIRST_WAYS = ("draws", "draws, no graphs", "K=16", "K=16, float32")
MOST = 2e7  # coordinates of all chains together: a chunk of 20 draws is then 3 GB
LONGEST = 1000
FIRST_KEYS = ("ready", "alone", "full", "hundred")
OVER = {"error": "took too long"}


def build(name: str) -> Any:
    """Return a model by name."""
    from scoreboard.published import PUBLISHED
    from targets import TARGETS

    return {"eight_schools": TARGETS["eight_schools"].build, **PUBLISHED}[name]()


def make_reference(name: str) -> dict[str, list[float]]:
    """Return moments by long NUTS."""
    import pymc as pm
    from make_references import flat_draws

    model = build(name)
    with model:
        tree = pm.sample(4000, tune=2000, chains=4, cores=1, target_accept=0.95, random_seed=1, progressbar=False)
    square = flat_draws(model, tree).reshape(16_000, -1) ** 2
    return {"second": square.mean(axis=0).tolist(), "variance_of_square": square.var(axis=0).tolist()}


def ours(model: Any, x: np.ndarray, precision: str, adjusted: bool) -> Followed:
    """Warm-up, equilibration of adjusted draws, and draws of this package, block by block."""
    from pmm_mcmc.engines.processes import Processes
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request
    from pmm_mcmc.warmup.equilibration import Equilibration
    from pmm_mcmc.warmup.warm_up import Warming

    compiling, began = Compiling(), time.perf_counter()
    plan = SamplingPlan.of(Request(model=model, chains=len(x), backend="jax", precision=precision, adjusted=adjusted))
    rng = np.random.default_rng(SEED)
    warming = Warming.start(plan.engine, plan.arguments, x, LONGEST, rng, checked=not adjusted)
    squares, gradients, seconds = [(x**2).mean(axis=0)], [float(warming.n_grad.mean())], [time.perf_counter() - began]

    def look(which: slice, chunk: Any) -> None:
        now, rows = time.perf_counter() - began, chunk.lp.shape[1]
        squares.extend((chunk.model_position**2).mean(axis=0))
        # The gradients of a step of chains in lockstep are those of the slowest.
        gradients.extend(gradients[-1] + np.cumsum(chunk.n_grad.max(axis=0)))
        seconds.extend(seconds[-1] + (now - seconds[-1]) * np.arange(1, rows + 1) / rows)

    while not warming.finished:
        warming.block(plan.engine, None, look)
    engine, tuned = plan.engine, warming.tuned
    if adjusted:
        engine = plan.adjusted_engine
        equilibration = Equilibration.begin(warming, plan.engine.kernel, plan.arguments, LONGEST)
        while not equilibration.finished:
            equilibration.block(warming, engine, None, look, Processes(slice(0, len(x))))
        tuned = equilibration.tuned
    rows = int(np.clip(4e7 / x.size, 20, 400))
    for again in range(2):  # the first may compile, and goes on with the approach
        start = time.perf_counter()
        chunk = warming.ensemble.advance(engine, tuned, rows, thin=tuned.steps_per_draw)
        if not again:
            look(slice(0, len(x)), chunk)
    rates = rate_of(chunk.model_position[:FEW], len(x), time.perf_counter() - start)
    return Followed(squares, gradients, seconds, compiling.seconds, rates)


def one(name: str, sampler: str, precision: str, chains: int) -> dict[str, Any]:
    """Return the figures of a row."""
    import jax
    from jax_density import jax_log_density, starts

    model, known = build(name), Known(**{k: np.array(v) for k, v in kept(REFERENCES)[name].items()})
    density = jax_log_density(model)
    x = starts(model, chains, SEED, jax.jit(density))
    if sampler.startswith("pmm"):
        found = ours(model, x, precision, sampler == "pmm")
    else:
        found = laps(density, x) if sampler == "LAPS" else peer(sampler, density, x)
    return {"device": jax.devices()[0].device_kind, "jax": jax.__version__, **found.row(known)}


def first_row(name: str, way: str, _: str, chains: int) -> dict[str, Any]:
    """Return microseconds of a transition, compiled, and the seconds until then."""
    import jax

    import pmm_mcmc as pmm
    from pmm_mcmc.coordinates.affine import Coordinates
    from pmm_mcmc.engines.contract import Ensemble, TunedParameters, start_noncentring
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request

    began = time.perf_counter()
    step = None if way.startswith("draws") else pmm.PoissonULMC(K=16)
    precision = "float32" if way.endswith("float32") else "float64"
    adjusted = step is None
    request = Request(
        model=build(name), chains=chains, backend="jax", precision=precision, step=step, adjusted=adjusted
    )  # fmt: skip
    plan = SamplingPlan.of(request)
    engine = plan.adjusted_engine if adjusted else plan.engine
    coordinates = Coordinates(np.zeros(engine.d), np.full(engine.d, 0.3), start_noncentring(engine))
    setting = TunedParameters(0.3, 16, 1.4, coordinates, 1)
    starts = 0.3 * np.random.default_rng(SEED).normal(size=(chains, engine.d))
    ensemble = Ensemble.start(engine, coordinates, starts, np.random.default_rng(SEED))
    ensemble.prepare(engine, setting)
    row = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "ready": time.perf_counter() - began}
    for call, rows, thin in (("alone", 1, 1), ("full", engine.capacity, 1), ("hundred", 1, 100)):
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            ensemble.advance(engine, setting, rows, thin=thin)
            seconds.append(time.perf_counter() - start)
        row[call] = 1e6 * min(seconds) / (rows * thin)
    return row


def kept(path: Path) -> dict[str, Any]:
    """Return what a file holds."""
    return json.loads(path.read_text()) if path.exists() else {}


def rows(models: list[str], sizes: list[int], samplers: list[str], references: dict[str, Any]) -> list[list[Any]]:
    """Return the rows that fit, this package's first."""
    every = [
        [model, sampler, precision, chains]
        for sampler in samplers
        for model in models if model in references
        for precision in (PRECISIONS if sampler == "pmm unadjusted" else PRECISIONS[:1])
        for chains in sizes if chains * len(references[model]["second"]) <= MOST
    ]  # fmt: skip
    return sorted(every, key=lambda row: not row[1].startswith("pmm"))


def run(call: list[Any], seconds: float, *options: str) -> dict[str, Any]:
    """Return what a row's process prints, or its last words."""
    command = [sys.executable, "-W", "ignore", __file__, *options, "--row", json.dumps(call)]
    environment = os.environ | {"PMM_MCMC_CUDA_GRAPHS": "0"} if call[1].endswith("no graphs") else None
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return OVER
    lines = out.stdout.splitlines()
    return {"error": (out.stderr.splitlines() or ["?"])[-1][:200]} if out.returncode else json.loads(lines[-1])


def line(call: list[Any], found: dict[str, Any]) -> str:
    """Return a line of the table."""
    name, sampler, precision, chains = call
    start = f"{name:22}{sampler:15}{precision:9}{chains:7}"
    if "error" in found:
        return f"{start}  {found['error']}"
    if "ready" in found:
        return start + "".join(
            f"{found[key]:{width}.1f}" for key, width in zip(FIRST_KEYS, (9, 10, 9, 10), strict=True)
        )
    values = [found[key] for key in ("seconds", "compiling", "gradients", "last_b2max", "ess_of_squares_per_second")]
    shown = ["-" if value is None else f"{value:,}" for value in values]
    return f"{start}{shown[0]:>10}{shown[1]:>11}{shown[2]:>11}{shown[3]:>12}{shown[4]:>12}"


def first_table(given: Any) -> None:
    """Run and print what a GPU is asked first."""
    print(f"{'model':22}{'':15}{'':9}{'chains':>7}  s before   alone     full   hundred   (us a transition)")
    sizes = given.chains or FIRST_CHAINS
    calls = [[name, way, "", n] for n in sizes for name in given.models or SMALL for way in FIRST_WAYS]
    print_rows(calls, given, "--first-ten-minutes")
    print("Next: python -m benchmarks accelerator eight_schools german25 --chains 4096")


def main(given: Any) -> None:
    """Run what is missing and print the table."""
    models = given.models or list(SMALL if given.small else MODELS)
    if given.references:
        for name in (name for name in models if name not in kept(REFERENCES)):
            entries(REFERENCES, {**kept(REFERENCES), name: make_reference(name)})
    for name in (name for name in models if name not in kept(REFERENCES)):
        print(f"{name} has no reference and is left out: --references makes it, on the CPU")
    sizes = given.chains or list(CHAINS[:2] if given.small else CHAINS)
    print(f"{'model':22}{'sampler':15}{'':9}{'chains':>7}{'seconds':>10}{'compiling':>11}{'gradients':>11}"
          f"{'last b2max':>12}{'ESS(x^2)/s':>12}")  # fmt: skip
    print_rows(rows(models, sizes, given.samplers, kept(REFERENCES)), given)


def print_rows(calls: list[list[Any]], given: Any, *options: str) -> None:
    """Run what is missing of a table's rows, and print all, until time is up."""
    end = time.monotonic() + 60 * given.minutes
    for call in calls:
        key = "/".join(map(str, call))
        if key not in kept(given.into):
            left = end - time.monotonic()
            found = run(call, min(left, given.limit), *options) if left > 30 else OVER
            if found == OVER and left < given.limit:
                print("Time is up: the same command goes on from here.")
                break
            entries(given.into, {**kept(given.into), key: found})
        print(line(call, kept(given.into)[key]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)} (default: all; small: {', '.join(SMALL)})")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--chains", type=int, nargs="+", help=f"default: {CHAINS}, where they fit; small: {CHAINS[:2]}")
    parser.add_argument("--samplers", nargs="+", default=["pmm", "pmm unadjusted", *PEERS])
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a row at most")
    parser.add_argument("--first-ten-minutes", action="store_true")
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--into", type=Path, default=KEPT)
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.row:
        print(json.dumps((first_row if chosen.first_ten_minutes else one)(*chosen.row)))
    elif chosen.first_ten_minutes:
        first_table(chosen)
    else:
        main(chosen)
