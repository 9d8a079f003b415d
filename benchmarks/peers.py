"""Gradients that other samplers need: ``python benchmarks/peers.py [target ...]`` prints the table.

PyMC's NUTS with its defaults (jitter and adapted diagonal scale, 1000 tuning iterations) and BlackJAX's MCLMC with its
own tuner start from points of the same law, uniform within one unit of the model's initial point, and run on the same
log density. Gradients are counted as follows.

* NUTS: leapfrog steps (``n_steps``), of warm-up too. The gradient at the start of a trajectory is known from the
  last one and is not counted, although PyMC 6.4 evaluates it again.
* MCLMC: evaluations in a step of its integrator, counted when the step is traced: two for the isokinetic minimal-norm
  (McLachlan) one, which takes the gradient at two new positions and reuses the last. The tuner takes a third of
  ``tuner_steps`` in steps (a tenth for each of its three phases, and a third of a tenth after the scale was set).

Needs ``jax`` and ``blackjax``. A run is lengthened fourfold until both statistics are settled in its first half or the
next one would take longer than the limit, or too much memory: no draw is left out, which would change the figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from first_times import LIMIT, STATISTICS, Crossing, Run, curves, gradients_to
from jax_peers import MCLMC, TUNER_STEPS

__all__ = ["LIMIT", "STATISTICS", "Crossing", "Run", "curves", "gradients_to", "mclmc", "nuts"]

MEMORY = 3 * 2**30  # bytes of positions
FIRST, GROWTH = {"NUTS": 1000, "MCLMC": 10_000}, 4
SEED = 1
HEADER = """\
Gradients a chain until the error b2 of the second moments is below {limit}, medians over {chains} chains, seed {seed}.
{versions}; MCLMC's tuner is told {tuner} steps.

warm-up   gradients of tuning                       total    warm-up and gradients to b2_max
b2_max    first time that the median is below       spent    gradients after warm-up
10-90 %   of the chains' own first times            final    median of b2_max after them
settled   b2_max stays below from here              pooled   b2_max of all chains' draws together
b2_avg    as b2_max, mean over coordinates          secs     of CPU of the last run, with compilation

          warm-up   b2_max         10-90 %  settled   b2_avg    total    spent    final   pooled  secs"""


def nuts(model: pm.Model, draws: int, chains: int = 8, seed: int = 1, *, tune: int = 1000) -> Run:
    """PyMC's own NUTS with its defaults, chains one after the other; see `Run` and the module for the counts.

    Parameters
    ----------
    model
        All of its variables must be continuous.
    draws
        Draws of each chain after warm-up.
    chains, seed
        Number of chains and seed of all of them.
    tune
        Warm-up iterations of each chain.
    """
    return nuts_and_seconds(model, draws, chains, seed, tune=tune)[0]


def nuts_and_seconds(
    model: pm.Model, draws: int, chains: int, seed: int, *, tune: int = 1000
) -> tuple[Run, float, float, int]:
    """As `nuts`, with the seconds of CPU within transitions of the warm-up and of the draws, and the divergences."""
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dt = pm.sample(
            draws=draws,
            tune=tune,
            chains=chains,
            cores=1,
            nuts_sampler="pymc",
            random_seed=seed,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            progressbar=False,
            quiet=True,
            idata_kwargs={"include_transformed": True},
        )
    flat = [np.asarray(dt["posterior"][v.name]).reshape(chains, draws, -1) for v in model.continuous_value_vars]
    stats, warm = dt["sample_stats"], dt["warmup_sample_stats"]
    divergences = int(stats["diverging"].sum())
    run = Run(
        name="NUTS",
        draws=np.concatenate(flat, axis=2),
        gradients_per_draw=np.asarray(stats["n_steps"]),
        warmup_gradients=np.asarray(warm["n_steps"].sum("draw")),
        note=f"{divergences} divergences" if divergences else "",
    )
    return run, float(warm["process_time_diff"].sum()), float(stats["process_time_diff"].sum()), divergences


def mclmc(model: pm.Model, draws: int, chains: int = 8, seed: int = 1, *, tuner_steps: int = TUNER_STEPS) -> Run:
    """BlackJAX's microcanonical Langevin sampler with its own tuner, each chain tuned by itself, chains in one batch.

    Parameters
    ----------
    model
        All of its variables must be continuous.
    draws
        Steps of each chain after tuning; each is a draw.
    chains, seed
        Number of chains and seed of all of them.
    tuner_steps
        The ``num_steps`` of ``blackjax.mclmc_find_L_and_step_size``: about a third of it is spent.
    """
    sampler = MCLMC(model, chains, tuner_steps=tuner_steps)
    sampler.begin(seed)
    sampler.lengthen(draws)
    return sampler.run()


RUNNERS: dict[str, Callable[..., Run]] = {"NUTS": nuts, "MCLMC": mclmc}


def measure(sampler: str, model: pm.Model, reference: Any, chains: int, seed: int, limit: float) -> None:
    """Run a sampler as long as it needs, or as ``limit`` seconds of CPU allow, and print its row."""
    draws = FIRST[sampler]
    while True:
        began = time.process_time()
        run = RUNNERS[sampler](model, draws, chains, seed)
        seconds = time.process_time() - began
        found = {name: gradients_to(run.draws, run.gradients_per_draw, reference, name) for name in STATISTICS}
        done = all(c.settled <= 0.5 * c.spent for c in found.values())
        if done or GROWTH * seconds > limit or GROWTH * run.draws.nbytes > MEMORY:
            break
        draws *= GROWTH
    worst, mean = found["b2_max"], found["b2_avg"]
    second = np.mean([np.mean(chain**2, axis=0) for chain in run.draws], axis=0)
    pooled = np.max((second - reference.second) ** 2 / reference.variance_of_square)
    warmup = np.median(run.warmup_gradients)
    total = f"{'' if math.isfinite(worst.first) else '>'}{warmup + min(worst.first, worst.spent):.0f}"
    chains_own = f"{worst.low:.0f}-{worst.high:.0f}"
    print(
        f"  {sampler:6s} {warmup:8.0f} {worst!s:>8s} {chains_own:>15s} {worst.settled:8.0f} {mean!s:>8s} {total:>8s} "
        f"{worst.spent:8.0f} {worst.final:8.2g} {pooled:8.2g} {seconds:5.0f}  {run.note}",
        flush=True,
    )


def main() -> None:
    from targets import TARGETS, reference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--samplers", nargs="*", default=list(RUNNERS), choices=list(RUNNERS))
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.0, help="limit of CPU time for one sampler on one target")
    parser.add_argument("--quick", action="store_true", help="the first, short run only")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}: take some of {', '.join(TARGETS)}")
    limit = 0.0 if arguments.quick else 60 * arguments.minutes
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("pymc", "blackjax", "jax", "numpy"))
    print(HEADER.format(limit=LIMIT, chains=arguments.chains, seed=SEED, versions=versions, tuner=TUNER_STEPS))
    for name in arguments.targets or TARGETS:
        model, known = TARGETS[name].build(), reference(name)
        print(f"{name} (d={len(known.second)})", flush=True)
        for sampler in arguments.samplers:
            measure(sampler, model, known, arguments.chains, SEED, limit)


if __name__ == "__main__":
    main()
