"""Diffusion samplers by network calls: ``python benchmarks/diffusion.py`` prints the tables, on one core in minutes.

Two problems: the exact score of a Gaussian mixture fitted to scikit-learn's digits, where the samplers are all that
errs, and a small network trained on the digits.  Then the claims of the paper with the figures for and against
(``diffusion_claims.py``), the constants of the package on targets on which they were not chosen
(``diffusion_fresh.py``), and whether the law of the midpoints helps the MCMC methods (``diffusion_midpoints.py``).

``--quick`` runs a little of everything; ``--write`` keeps the tables in ``benchmarks/results`` and draws the digits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import diffusion_claims
import diffusion_fresh
import diffusion_midpoints
import diffusion_picture
import jax
import numpy as np
from diffusion_distances import NAMES, Distances
from diffusion_network import train
from diffusion_targets import digit_features, digits, fitted

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks, poisson_midpoint_sample
from pmm_mcmc.diffusion.jax import ddim_sample, ddpm_sample, dpm_solver_sample, sde_dpm_solver_sample

__all__ = ["Problem", "Sampler", "Size", "main", "samplers"]

ROOT = Path(__file__).parents[1]
PAPER = {"midpoint": "uniform", "frozen": "epsilon"}
GOLD = 10**6


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
class Sampler:
    """A method at a number of network calls: ``sample(key, network, x_T, prediction=...)``."""

    family: str
    calls: int
    sample: Callable[..., jax.Array]


@dataclass(frozen=True)
class Problem:
    """A network and what its samples are held against, by name."""

    name: str
    network: Callable[[jax.Array, jax.Array], jax.Array]
    prediction: str
    dimension: int
    distances: dict[str, Distances]
    floor: str
    draw_floor: Callable[[int], np.ndarray]
    words: str


def schedules() -> dict[str, DiffusionSchedule]:
    return {variant: DiffusionSchedule.named("linear", 1000, variant) for variant in ("2", "3")}


def samplers(quick: bool = False) -> Iterator[Sampler]:
    """Yield everything that is compared."""
    chains = schedules()
    yield Sampler("DDPM", 1000, partial(_ddpm, chains["2"]))
    if not quick:
        yield Sampler("DDPM, variant 3", 1000, partial(_ddpm, chains["3"]))
    for n in () if quick else (250, 80, 40, 20):
        yield Sampler("DDPM", n, partial(_ddpm, chains["2"].respaced(n)))
    for n in (40,) if quick else (80, 40, 20):
        yield Sampler("DDIM", n, partial(_ddim, chains["2"], n))
    for n in () if quick else (80, 40, 20, 10):
        yield Sampler("DPM-Solver++ 2M", n, partial(_solver, chains["2"], n, 2))
        yield Sampler("DPM-Solver++ 3M", n, partial(_solver, chains["2"], n, 3))
        yield Sampler("SDE-DPM-Solver++", n, partial(_sde_solver, chains["2"], n))
    for variant in ("2",) if quick else ("2", "3"):
        for n in (40,) if quick else (100, 80, 50, 40):
            blocks = Blocks.equal(1000, n // 2, **PAPER)
            yield Sampler(f"paper, variant {variant}", n, partial(_method, chains[variant], blocks))
    for variant in ("2",) if quick else ("2", "3"):
        for n in (40,) if quick else (80, 40, 30, 20):
            blocks = _planned(variant, n)
            yield Sampler(f"planned, variant {variant}", n, partial(_method, chains[variant], blocks))


@cache
def _planned(variant: str, calls: int) -> Blocks:
    return plan_blocks(schedules()[variant], calls // 2)


def _ddpm(schedule: DiffusionSchedule, key: jax.Array, network: Any, x: jax.Array, prediction: str) -> jax.Array:
    return ddpm_sample(key, network, x, schedule, prediction=prediction)


def _ddim(schedule: DiffusionSchedule, n: int, key: jax.Array, network: Any, x: jax.Array, prediction: str):
    return ddim_sample(key, network, x, schedule, n, prediction=prediction)


def _solver(schedule: DiffusionSchedule, n: int, order: int, key: jax.Array, network: Any, x: jax.Array, prediction):
    return dpm_solver_sample(network, x, schedule, n, order=order, prediction=prediction)


def _sde_solver(schedule: DiffusionSchedule, n: int, key: jax.Array, network: Any, x: jax.Array, prediction: str):
    return sde_dpm_solver_sample(key, network, x, schedule, n, prediction=prediction)


def _method(schedule: DiffusionSchedule, blocks: Blocks, key: jax.Array, network: Any, x: jax.Array, prediction: str):
    return poisson_midpoint_sample(key, network, x, schedule, blocks, prediction=prediction)


def draw(problem: Problem, sampler: Sampler, samples: int, seeds: list[int]) -> list[np.ndarray]:
    """Samples for each seed; the starts are the same for all samplers."""
    run = jax.jit(lambda key, x: sampler.sample(key, problem.network, x, prediction=problem.prediction))
    drawn = []
    for seed in seeds:
        key, start = jax.random.split(jax.random.key(seed))
        drawn.append(np.asarray(run(key, jax.random.normal(start, (samples, problem.dimension)))))
    return drawn


def exact_score(size: Size) -> Problem:
    """The mixture of the digits: what is measured is the sampler's own error."""
    mixture = fitted(digits()[0], 10)
    reference = mixture.sample(np.random.default_rng(GOLD), 20 * size.samples)
    distances = Distances(reference, digit_features(), mixture.moments(), mixture.nll)
    return Problem(
        "exact score",
        mixture.network(schedules()["2"]),
        "epsilon",
        64,
        {"data": distances},
        "exact sampling",
        lambda seed: mixture.sample(np.random.default_rng(seed), size.samples),
        "exact score of a mixture of 10 Gaussians fitted to the digits",
    )


def trained_network(size: Size) -> Problem:
    """A network of the digits: distances from digits it has not seen, and from what its own chain makes."""
    data, _ = digits()
    held_out, seen = data[: size.held_out], data[size.held_out :]
    found = train(seen, held_out, schedules()["2"], size.iterations)
    problem = Problem(
        "trained network",
        found.network,
        "v",
        64,
        {"data": Distances(held_out, digit_features())},
        "training digits",
        lambda seed: seen,
        f"network of {found.parameters} parameters after {size.iterations} iterations on {len(seen)} digits, loss on "
        f"the {len(held_out)} others {found.held_out_loss:.3f}",
    )
    gold = Sampler("DDPM", 1000, partial(_ddpm, schedules()["2"]))
    chain = np.concatenate(draw(problem, gold, size.samples, [GOLD] if size.quick else [GOLD, GOLD + 1]))
    problem.distances["chain"] = Distances(chain, digit_features())
    return problem


def measure(problem: Problem, size: Size) -> dict[tuple[str, int, str], np.ndarray]:
    """Distances ``(seeds, 4)`` by family, calls and what they are from; first the floor, of which ``calls`` is 0."""
    seeds = list(range(1, size.seeds + 1))
    floor = [problem.distances["data"](problem.draw_floor(seed)) for seed in seeds]
    found = {(problem.floor, 0, "data"): np.array(floor)}
    for sampler in samplers(size.quick):
        drawn = draw(problem, sampler, size.samples, seeds)
        for name, distance in problem.distances.items():
            found[sampler.family, sampler.calls, name] = np.array([distance(x) for x in drawn])
    return found


def table(found: dict[tuple[str, int, str], np.ndarray], name: str) -> list[str]:
    """Lines of mean and standard error over the seeds, for the distances from one thing."""
    lines = [f"{'sampler':22}{'calls':>6}  " + "".join(f"{column:>20}" for column in NAMES)]
    for (family, calls, of), values in found.items():
        if of == name:
            mean, error = diffusion_claims.mean_and_error(values)
            cells = (_cell(m, e) for m, e in zip(mean, error, strict=True))
            lines.append(f"{family:22}{calls or '-':>6}  " + "".join(cells).rstrip())
    return lines


def section(name: str, words: str, found: dict[tuple[str, int, str], np.ndarray]) -> list[str]:
    """Lines on a problem: tables and claims."""
    lines = [f"{name.upper()}: {words}"]
    kinds = list(dict.fromkeys(of for _, _, of in found))
    for kind in kinds:
        lines += ["", f"Distances from the {kind}", *table(found, kind)]
    return [*lines, "", *diffusion_claims.report(found, kinds)]


def _cell(mean: float, error: float) -> str:
    """A mean with its error, or without where nothing in it is random."""
    if not np.isfinite(mean):
        return " " * 20
    return f"{mean:>11.4g} +-{error:7.2g}" if error > 1e-6 * abs(mean) else f"{mean:>11.4g}{'':9}"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print its tables and return what they hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a little of everything, in half a minute")
    parser.add_argument("--write", action="store_true", help="keep tables and picture")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    began, lines, kept = time.process_time(), [], {}

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)

    say(f"{size.samples} samples a seed, {size.seeds} seeds; mean and its standard error. Linear schedule, N = 1000.")
    for make in (exact_score, trained_network):
        problem = make(size)
        found = measure(problem, size)
        say("", *section(problem.name, problem.words, found))
        rows = [{"sampler": f, "calls": c, "from": of, "by seed": v.tolist()} for (f, c, of), v in found.items()]
        kept[problem.name] = {"words": problem.words, "distances": NAMES, "rows": rows}
    for part in (diffusion_fresh, diffusion_midpoints):
        text, kept[part.__name__] = part.report(size.quick)
        say("", *text)
    say("", f"{time.process_time() - began:.0f} seconds of one core; jax {jax.__version__}, numpy {np.__version__}")
    if options.write:
        results = ROOT / "benchmarks" / "results"
        (results / "diffusion.txt").write_text("\n".join(lines) + "\n")
        (results / "diffusion.json").write_text(json.dumps(_rounded(kept)) + "\n")
        diffusion_picture.draw(problem, samplers(), draw, ROOT / "docs" / "images" / "digits.png")
    return kept


def _rounded(value: Any) -> Any:
    """Numbers to four digits, NaN as None: for a file that is read and compared by people too."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value


if __name__ == "__main__":
    main()
