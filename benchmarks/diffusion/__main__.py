"""Diffusion samplers by network calls: ``python -m benchmarks diffusion``.

Two problems: the exact score of a Gaussian mixture fitted to scikit-learn's digits, where the samplers are all that
errs, and a small network trained on the digits.  ``--quick`` runs a little of everything; ``--write`` keeps the tables
in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from diffusion.distances import Distances, compared, table
from diffusion.network import train
from diffusion.problems import digit_features, digits, fitted
from dpm_solver import dpm_solver_sample

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks, poisson_midpoint_sample
from pmm_mcmc.diffusion.jax import ddim_sample, ddpm_sample

PATH = Path(__file__).parents[1] / "results" / "diffusion.txt"
PAPER = {"midpoint": "uniform", "frozen": "epsilon"}
GOLD = 10**6
CHAINS = {"2": "DDPM", "3": "DDPM, variant 3"}
SOLVERS = ("DDIM", "DPM-Solver++ 2M", "DPM-Solver++ 3M", "SDE-DPM-Solver++", "DDPM")
# What the paper says of its method: that it matches the chain of 1000 calls, and beats solvers of as many calls.
METHODS = [
    (f"{method}, variant {variant}", chain) for method in ("paper", "planned") for variant, chain in CHAINS.items()
]
CLAIMS = [(method, n, chain, 1000) for method, chain in METHODS for n in range(20, 101, 10)]
CLAIMS += [(method, n, solver, n) for solver in SOLVERS for method, _ in METHODS for n in (40, 80)]


@dataclass(frozen=True)
class Size:
    """How much is run: samples a seed, seeds, iterations of the training, images held out of it."""

    samples: int = 1500
    seeds: int = 5
    iterations: int = 6000
    held_out: int = 360
    quick: bool = False


QUICK = Size(samples=150, seeds=2, iterations=100, quick=True)


@dataclass(frozen=True)
class Problem:
    """A network of 64 pixels and what its samples are held against: ``floor`` are distances of something exact."""

    words: str
    network: Callable[[jax.Array, jax.Array], jax.Array]
    prediction: str
    distances: Distances
    floor: dict[tuple[str, int], np.ndarray]


def schedules() -> dict[str, DiffusionSchedule]:
    return {variant: DiffusionSchedule.named("linear", 1000, variant) for variant in ("2", "3")}


def _call(function: Callable[..., jax.Array], *more: Any, **options: Any) -> Callable[..., jax.Array]:
    """A sampler with its schedule and the rest of its arguments."""
    return lambda key, network, x, prediction: function(key, network, x, *more, prediction=prediction, **options)


def _solved(key: jax.Array, *arguments: Any, **options: Any) -> jax.Array:
    return dpm_solver_sample(*arguments, **options)


def _solved_with_noise(key: jax.Array, *arguments: Any, **options: Any) -> jax.Array:
    return dpm_solver_sample(*arguments, key=key, **options)


def samplers(quick: bool) -> Iterator[tuple[str, int, Callable[..., jax.Array]]]:
    """Yield everything that is compared, with its network calls."""
    chains = schedules()
    plain = chains["2"]
    for variant in ("2",) if quick else chains:
        yield CHAINS[variant], 1000, _call(ddpm_sample, chains[variant])
    for n in () if quick else (250, 80, 40, 20):
        yield "DDPM", n, _call(ddpm_sample, plain.respaced(n))
    for n in (40,) if quick else (80, 40, 20):
        yield "DDIM", n, _call(ddim_sample, plain, n)
    for n in () if quick else (80, 40, 20, 10):
        yield "DPM-Solver++ 2M", n, _call(_solved, plain, n, order=2)
        yield "DPM-Solver++ 3M", n, _call(_solved, plain, n, order=3)
        yield "SDE-DPM-Solver++", n, _call(_solved_with_noise, plain, n)
    for variant in ("2",) if quick else chains:
        for n in (40,) if quick else (100, 80, 50, 40):
            blocks = Blocks.equal(1000, n // 2, **PAPER)
            yield f"paper, variant {variant}", n, _call(poisson_midpoint_sample, chains[variant], blocks)
        for n in (40,) if quick else (80, 40, 30, 20):
            blocks = _planned(variant, n)
            yield f"planned, variant {variant}", n, _call(poisson_midpoint_sample, chains[variant], blocks)


@cache
def _planned(variant: str, calls: int) -> Blocks:
    return plan_blocks(schedules()[variant], calls // 2)


def exact_score(size: Size) -> Problem:
    """The mixture of the digits: what is measured is the sampler's own error."""
    mixture = fitted(digits()[0], 10)
    reference = mixture.sample(np.random.default_rng(GOLD), 20 * size.samples)
    distances = Distances(reference, digit_features(), mixture.moments(), mixture.nll)
    draws = (mixture.sample(np.random.default_rng(seed), size.samples) for seed in range(1, size.seeds + 1))
    floor = {("exact sampling", 0): np.array([distances(x) for x in draws])}
    words = "EXACT SCORE of a mixture of 10 Gaussians fitted to the digits"
    return Problem(words, mixture.network(schedules()["2"]), "epsilon", distances, floor)


def trained_network(size: Size) -> Problem:
    """A network of the digits, and digits it has not seen."""
    data, _ = digits()
    held_out, seen = data[: size.held_out], data[size.held_out :]
    found = train(seen, held_out, schedules()["2"], size.iterations)
    distances = Distances(held_out, digit_features())
    words = (
        f"TRAINED NETWORK of {found.parameters} parameters after {size.iterations} iterations on {len(seen)} digits, "
        f"loss on the {len(held_out)} others {found.held_out_loss:.3f}"
    )
    floor = {("training digits", 0): np.array([distances(seen)] * size.seeds)}
    return Problem(words, found.network, "v", distances, floor)


def measure(problem: Problem, size: Size) -> dict[tuple[str, int], np.ndarray]:
    """Distances ``(seeds, 4)`` by sampler and calls; the starts are the same for all samplers."""
    found = dict(problem.floor)
    for family, calls, sample in samplers(size.quick):
        run = jax.jit(lambda key, x, sample=sample: sample(key, problem.network, x, prediction=problem.prediction))
        rows = []
        for seed in range(1, size.seeds + 1):
            key, start = jax.random.split(jax.random.key(seed))
            rows.append(problem.distances(np.asarray(run(key, jax.random.normal(start, (size.samples, 64))))))
        found[family, calls] = np.array(rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a little of everything, in half a minute")
    parser.add_argument("--write", action="store_true", help="keep the tables")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write keeps what a whole run finds; leave --quick out")
    size = QUICK if options.quick else Size()
    began, lines = time.process_time(), []

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)

    say(f"{size.samples} samples a seed, {size.seeds} seeds; mean and its standard error. Linear schedule, N = 1000.")
    for make in (exact_score, trained_network):
        problem = make(size)
        found = measure(problem, size)
        say("", problem.words, *table(found), "", *compared(found, CLAIMS))
    say("", f"{time.process_time() - began:.0f} seconds of one core; jax {jax.__version__}, numpy {np.__version__}")
    if options.write:
        PATH.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
