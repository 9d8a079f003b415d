"""The constants of the package on targets and seeds on which they were not chosen.

Chosen by looking were the power of the shrinking blocks (2), the exponent of the law of the midpoints (0.5) and what is
frozen (``v``), on Gaussian data and on mixtures fitted to digits under the linear schedule.  Here: mixtures fitted to
two tables of another kind and one drawn at random, under three schedules.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from diffusion_claims import mean_and_error
from diffusion_distances import Distances
from diffusion_targets import Mixture, fitted, random_mixture, tabular

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks, poisson_midpoint_sample
from pmm_mcmc.diffusion.jax import ddpm_sample

__all__ = ["report"]

_SEED = 20_000


def _targets(quick: bool) -> dict[str, tuple[Mixture, DiffusionSchedule]]:
    all_of_them = {
        "random": lambda: (random_mixture(np.random.default_rng(_SEED), 6, 16), "scaled_linear"),
        "breast cancer": lambda: (fitted(tabular("breast cancer"), 4), "linear"),
        "wine": lambda: (fitted(tabular("wine"), 3), "cosine"),
    }
    names = ["random"] if quick else list(all_of_them)
    made = ((name, all_of_them[name]()) for name in names)
    return {name: (mixture, DiffusionSchedule.named(schedule, 1000)) for name, (mixture, schedule) in made}


def _choices(schedule: DiffusionSchedule, calls: int, quick: bool) -> dict[str, Blocks]:
    """What is compared, each with one constant away from the default."""
    n = calls // 2
    found = {"as in the paper": Blocks.equal(1000, n, midpoint="uniform", frozen="epsilon")}
    for power in (2.0,) if quick else (1.0, 1.5, 2.0, 2.5, 3.0):
        found[f"power {power:g}"] = Blocks.shrinking(1000, n, power)
    if not quick:
        for exponent in (0.0, 1.0):
            found[f"power 2, exponent {exponent:g}"] = Blocks.shrinking(1000, n, exponent=exponent)
        found["power 2, midpoint uniform"] = Blocks.shrinking(1000, n, midpoint="uniform")
        for frozen in ("epsilon", "x0"):
            found[f"power 2, frozen {frozen}"] = Blocks.shrinking(1000, n, frozen=frozen)
        found["planned"] = plan_blocks(schedule, n)
    return found


def report(quick: bool = False) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines, and their numbers: excess of negative log density over that of the chain, per dimension."""
    samples, seeds, calls = (300, 2, (30,)) if quick else (4000, 5, (20, 40))
    lines = [
        f"CONSTANTS ON FRESH TARGETS: {samples} samples, {seeds} seeds; against DDPM with 1000 calls, variant 3.",
        "Excess of the negative log density per dimension, in 0.001 nats; SW2 over that of exact samples, in 0.001.",
    ]
    rows: list[dict[str, Any]] = []
    for name, (mixture, schedule) in _targets(quick).items():
        network, d = mixture.network(schedule), mixture.means.shape[1]
        reference = mixture.sample(np.random.default_rng(_SEED + 1), 20 * samples)
        distances = Distances(reference, None, mixture.moments(), mixture.nll)
        keys = [jax.random.split(jax.random.key(_SEED + seed)) for seed in range(seeds)]

        def judge(sampler: Any, keys: Any = keys, d: int = d, distances: Distances = distances) -> np.ndarray:
            run = jax.jit(sampler)
            return np.array([distances(run(key, jax.random.normal(start, (samples, d)))) for key, start in keys])

        rng = np.random.default_rng(_SEED + 2)
        floor = np.array([distances(mixture.sample(rng, samples)) for _ in range(seeds)])
        chain = judge(lambda key, x, f=network, s=schedule: ddpm_sample(key, f, x, s))
        found = {"DDPM, 1000 calls": chain}
        choices = {n: _choices(schedule, n, quick) for n in calls}
        for label in choices[calls[0]]:
            for n in calls:
                blocks = choices[n][label]
                found[f"{n} {label}"] = judge(
                    lambda key, x, f=network, s=schedule, b=blocks: poisson_midpoint_sample(key, f, x, s, b)
                )
        numbers = {}
        for label, values in found.items():
            nll, nll_error = mean_and_error(1e3 * (values[:, 3] - chain[:, 3]) / d)
            wasserstein, wasserstein_error = mean_and_error(1e3 * (values[:, 0] - floor[:, 0].mean()))
            numbers[label] = (float(nll), float(nll_error), float(wasserstein), float(wasserstein_error))
            rows.append({"target": name, "choice": label, "nll and sw2 with errors": numbers[label]})
        lines += ["", f"{name} ({d} dimensions, {len(mixture.weights)} components, {schedule!r})"]
        of_chain = numbers["DDPM, 1000 calls"]
        lines.append(f"{'DDPM, 1000 calls: SW2':28}{of_chain[2]:10.1f} +-{of_chain[3]:4.1f}")
        head = "".join(f"{f'{n} calls: NLL':>20}{'SW2':>17}" for n in calls)
        lines.append(f"{'blocks':28}{head}")
        for label in choices[calls[0]]:
            cells = (numbers[f"{n} {label}"] for n in calls)
            text = "".join(f"{a:>13.4g} +-{b:4.1f}{c:>11.4g} +-{e:4.1f}" for a, b, c, e in cells)
            lines.append(f"{label:28}{text}")
    return lines, rows
