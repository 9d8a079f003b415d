"""Samplers of flow-matching models by network calls: ``python -m benchmarks paper.flow``.

The exact law on Gaussian data; 25 Gaussians in two dimensions, with the weights of the modes; the exact flow of a
mixture fitted to scikit-learn's digits; and a small network trained on the digits.  Where a sampler has a setting (the
amount of noise, the shift), it is chosen by calls with one network and the digits held out from it, and what is
reported is another network, with other digits held out: for ours as for the others.

``--quick`` runs a little of everything; ``--write`` keeps the tables in ``benchmarks/paper/results``.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from diffusion.distances import NAMES, Distances, compared, table
from diffusion.network import train
from diffusion.problems import Mixture, digit_features, digits, fitted
from paper.flow_samplers import FAMILIES, NOISE, Sample

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, gaussian_variance, plan_blocks

PATH = Path(__file__).parent / "results" / "flow.txt"
OURS = "Poisson midpoint"
VARIANCES = np.geomspace(1e-3, 100.0, 51)
GOLD = 10**6


@dataclass(frozen=True)
class Size:
    """How much is run: samples a seed, seeds, iterations of a training, digits held out, calls, points of 25 modes."""

    samples: int = 1500
    seeds: int = 5
    iterations: int = 6000
    held_out: int = 360
    calls: tuple[int, ...] = (20, 30, 40)
    points: int = 50_000


QUICK = Size(samples=150, seeds=2, iterations=100, calls=(20,), points=3000)
# Noise and shift by calls.
Settings = dict[int, tuple[float, float]]


def gaussians(quick: bool = False) -> list[str]:
    """Lines on the exact law: no Monte Carlo."""
    lines = [
        "GAUSSIAN DATA, exact network, exact law: largest deviation in per cent of the standard deviation of the "
        "samples",
        "from that of the SDE in 1000 steps, over 51 data variances from 0.001 to 100; 'even': blocks at sigmas as",
        "pipelines pass them, even before the shift; 'steps': the SDE itself in as many steps as calls",
        f"{'shift':>6}{'noise a':>9}{'calls':>7}{'planned':>10}{'even':>10}{'steps':>10}"
        f"{'1000 steps from the data':>28}",
    ]
    for shift, a in itertools.product((1.0, 3.0), (0.0, 0.5, 1.0, 2**0.5, 2.0)):
        chain = DiffusionSchedule.flow(1000, a, shift=shift)
        law = gaussian_variance(chain, VARIANCES)
        for calls in (40,) if quick else (20, 30, 40, 56):
            few = DiffusionSchedule.flow(calls, a, shift=shift)
            found = (
                gaussian_variance(chain, VARIANCES, plan_blocks(chain, calls // 2)),
                gaussian_variance(chain, VARIANCES, Blocks.equal(1000, calls // 2)),
                gaussian_variance(few, VARIANCES),
            )
            cells = "".join(f"{100 * np.abs(np.sqrt(f / law) - 1).max():>10.2f}" for f in found)
            off = 100 * np.abs(np.sqrt(law / VARIANCES) - 1).max()
            lines.append(f"{shift:>6g}{a:>9.3g}{calls:>7}{cells}{off:>28.2f}")
    return lines


def velocity(mixture: Mixture):
    """Exact prediction of a flow, noise minus data, a function of states and noise levels."""
    k, d = mixture.means.shape
    into = jnp.asarray(mixture.vectors.transpose(1, 0, 2).reshape(d, k * d), jnp.float32)
    centre = jnp.asarray(np.einsum("kij,ki->kj", mixture.vectors, mixture.means), jnp.float32)
    values = jnp.asarray(mixture.values, jnp.float32)
    log_weights = jnp.log(jnp.asarray(mixture.weights, jnp.float32))

    def predict(x, s):
        s = s[:, None, None]
        variance = (1.0 - s) ** 2 * values + s**2
        z = (x @ into).reshape(-1, k, d) - (1.0 - s) * centre
        logs = log_weights - 0.5 * jnp.sum(jnp.log(variance) + z**2 / variance, axis=2)
        share = jax.nn.softmax(logs, axis=1)[:, :, None]
        # Of each component: its noise, less its data.
        said = (s - (1.0 - s) * values) / variance * z - centre
        return (share * said).reshape(-1, k * d) @ into.T

    return predict


def twenty_five() -> Mixture:
    """Gaussians of standard deviation 0.05 on a grid of 5 by 5, with weights of their own from 0.4 % to 12 %."""
    weights = np.random.default_rng(25).dirichlet(np.full(25, 2.0))
    places = np.stack(np.meshgrid(*[np.linspace(-2.0, 2.0, 5)] * 2), axis=-1).reshape(-1, 2)
    return Mixture(weights, places, np.full((25, 2), 0.05**2), np.tile(np.eye(2), (25, 1, 1)))


def modes(x: np.ndarray, mixture: Mixture) -> dict[str, float]:
    """How far the weights of the modes are off, in standard errors, and how wide the modes are."""
    distance = np.linalg.norm(x[:, None] - mixture.means, axis=2)
    nearest, off = distance.argmin(axis=1), distance.min(axis=1)
    share = np.bincount(nearest, minlength=len(mixture.weights)) / len(x)
    z = (share - mixture.weights) / np.sqrt(mixture.weights * (1.0 - mixture.weights) / len(x))
    within = off < 0.3
    spread = np.sqrt(np.mean(np.sum((x - mixture.means[nearest])[within] ** 2, axis=1)) / 2.0) / 0.05
    return {
        "largest z": float(np.abs(z).max()),
        "beyond 3": int(np.sum(np.abs(z) > 3.0)),
        "root mean z^2": float(np.sqrt(np.mean(z**2))),
        "sd / true sd": float(spread),
        "stray, %": float(100.0 * np.mean(~within)),
    }


def modes_section(size: Size, settings: dict[str, Settings]) -> list[str]:
    """Lines on 25 Gaussians at 40 calls."""
    mixture, kept = twenty_five(), {}
    start, key = jax.random.split(jax.random.key(25))
    x = jax.random.normal(start, (size.points, 2))
    rows: list[tuple[str, float, Sample | None]] = [("exact sampling", 0.0, None)]
    for family, by_calls in settings.items():
        noise, shift = by_calls[max(size.calls)]
        rows.append((family, noise, FAMILIES[family](40, noise, shift)))
    rows += [(OURS, a, FAMILIES[OURS](40, a, 1.0)) for a in (0.0, 0.5, 1.0, 2**0.5)]
    for name, noise, sample in rows:
        if sample is None:
            found = mixture.sample(np.random.default_rng(1), size.points)
        else:
            found = np.asarray(jax.jit(lambda k, x, s=sample: s(k, velocity(mixture), x))(key, x))
        kept[f"{name}, noise {noise:.3g}"] = modes(found, mixture)
    names = list(next(iter(kept.values())))
    lines = [
        f"25 GAUSSIANS in two dimensions, exact flow, {size.points} points, 40 calls: weights of the modes, in errors",
        f"{'sampler':46}" + "".join(f"{name:>15}" for name in names),
    ]
    lines += [f"{row:46}" + "".join(f"{values[n]:>15.3g}" for n in names) for row, values in kept.items()]
    return lines


@dataclass(frozen=True)
class Problem:
    """A flow and what its samples are held against."""

    words: str
    network: Callable[[jax.Array, jax.Array], jax.Array]
    distances: Distances
    floor: str
    of_floor: np.ndarray


def exact_flow(size: Size) -> Problem:
    """The mixture of the digits: the samplers are all that errs."""
    mixture = fitted(digits()[0], 10)
    reference = mixture.sample(np.random.default_rng(GOLD), 20 * size.samples)
    distances = Distances(reference, digit_features(), mixture.moments(), mixture.nll)
    draws = (mixture.sample(np.random.default_rng(seed), size.samples) for seed in range(1, 1 + size.seeds))
    floor = np.array([distances(x) for x in draws])
    words = "exact flow of a mixture of 10 Gaussians fitted to the digits"
    return Problem(words, velocity(mixture), distances, "exact sampling", floor)


def trained_flow(size: Size, half: int) -> Problem:
    """A network of the digits and those held out from it, others for each ``half``; density by a mixture."""
    data, _ = digits()
    held = slice(half * size.held_out, (half + 1) * size.held_out)
    held_out, seen = data[held], np.delete(data, held, axis=0)
    found = train(seen, held_out, DiffusionSchedule.flow(1000), size.iterations, seed=half, prediction="flow")
    distances = Distances(held_out, digit_features(), nll=fitted(seen, 10).nll)
    words = (
        f"network of {found.parameters} parameters after {size.iterations} iterations on {len(seen)} digits, loss on "
        f"the {len(held_out)} others {found.held_out_loss:.3f}"
    )
    return Problem(words, found.network, distances, "training digits", np.array([distances(seen)] * size.seeds))


def measured(problem: Problem, sample: Sample, size: Size, seeds: list[int]) -> np.ndarray:
    """Distances ``(seeds, 4)``."""
    run = jax.jit(lambda key, x: sample(key, problem.network, x))
    found = []
    for seed in seeds:
        key, start = jax.random.split(jax.random.key(seed))
        found.append(problem.distances(np.asarray(run(key, jax.random.normal(start, (size.samples, 64))))))
    return np.array(found)


def choose(problem: Problem, size: Size) -> tuple[dict[str, Settings], list[str]]:
    """Return noise and shift of each family by calls, of the least sum of logarithms of SW2, FD and 1 + excess."""
    head = f"{'sampler':28}{'noise':>7}{'shift':>7}" + "".join(f"{calls:>6} calls" for calls in size.calls)
    chosen, lines = {}, [f"CHOSEN, the least, on the {problem.words}", head]
    index = [NAMES.index(name) for name in ("SW2", "FD features", "NLL excess")]
    for family in FAMILIES:
        if family == "SDE itself":
            continue
        shifts = (1.0, 3.0, 0.0) if family.endswith(("2M", "++")) else (1.0, 3.0)
        scores = {}
        for noise, shift in itertools.product(NOISE.get(family, (0.0,)), shifts):
            if family == OURS and shift != 1.0:
                continue
            scores[noise, shift] = []
            for calls in size.calls:
                found = measured(problem, FAMILIES[family](calls, noise, shift), size, [101, 102][: size.seeds])
                sw2, fd, excess = np.abs(found.mean(axis=0))[index]
                scores[noise, shift].append(float(np.log(sw2) + np.log(fd) + np.log1p(excess)))
            lines.append(f"{family:28}{noise:>7.3g}{shift:>7g}" + "".join(f"{x:>12.3f}" for x in scores[noise, shift]))
        chosen[family] = {calls: min(scores, key=lambda s, i=i: scores[s][i]) for i, calls in enumerate(size.calls)}
    return chosen, lines


def measure(problem: Problem, size: Size, settings: dict[str, Settings], gold: int) -> dict[tuple, np.ndarray]:
    """Distances by family and calls; first the floor, last the SDE and the ODE in many steps."""
    seeds = list(range(1, size.seeds + 1))
    found = {(problem.floor, 0): problem.of_floor}
    for (family, by_calls), calls in itertools.product(settings.items(), size.calls):
        noise, shift = by_calls[calls]
        found[family, calls] = measured(problem, FAMILIES[family](calls, noise, shift), size, seeds)
    for name, a in (("SDE, 1000 steps", settings[OURS][max(size.calls)][0]), ("ODE, 1000 steps", 0.0)):
        # Long, and there to be looked at: two seeds.
        found[name, gold] = measured(problem, FAMILIES["SDE itself"](gold, a, 1.0), size, seeds[:2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a little of everything, in a minute")
    parser.add_argument("--write", action="store_true", help="keep the tables")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write keeps what a whole run finds; leave --quick out")
    size, gold = (QUICK, 50) if options.quick else (Size(), 1000)
    began, lines = time.process_time(), []

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)

    say(*gaussians(options.quick))
    settings, words = choose(trained_flow(size, 0), replace(size, samples=size.samples // 2))
    say("", *words)
    say("", *modes_section(size, settings))
    pairs = [(OURS, calls, other, calls) for other in settings if other != OURS for calls in size.calls]
    for name, problem in (("exact flow", exact_flow(size)), ("trained network", trained_flow(size, 1))):
        found = measure(problem, size, settings, gold)
        say("", f"{name.upper()}: {problem.words}", *table(found), "", *compared(found, pairs))
    say("", f"{time.process_time() - began:.0f} seconds of one core; jax {jax.__version__}, numpy {np.__version__}")
    if options.write:
        PATH.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
