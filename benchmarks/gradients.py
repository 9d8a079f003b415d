"""Gradients that samplers need: ``python benchmarks/gradients.py [target ...]`` prints the table.

All chains start at points uniform within one unit of the model's initial point.  Our chains are warmed up together, by
the package's own schedule, and every transition is a draw; NUTS and MCLMC (``benchmarks/peers.py``, which says how
their gradients are counted) tune each chain by itself, as their packages do.  MCLMC's tuner is told 4,000 or 10,000
steps, of which it spends a third: it has no default.  The corrected errors are of each chain's own Stein-corrected
second moments, with coefficients fitted on the other chains, over its first 5 draws and lengths growing by a quarter.
"""

from __future__ import annotations

import argparse
import functools
import math
from typing import Any

import numpy as np
import peers
from first_times import Run, lengthened
from targets import TARGETS, reference

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.stein import corrected_expectations
from pmm_mcmc.engines.contract import empty_state, model_side
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.settings import MethodArguments
from pmm_mcmc.model.log_density import log_density
from pmm_mcmc.run.sample import Warmed, warm_up

__all__ = ["SAMPLERS", "Ours", "engine_for", "starts"]

SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("PoissonULMC", {"dynamics": "underdamped"}),
    "centred": ("PoissonULMC", {"dynamics": "underdamped", "grid": "centred"}),
    "importance": ("PoissonULMC", {"dynamics": "underdamped", "midpoint": "importance"}),
    "recycled": ("PoissonULMC", {"dynamics": "underdamped", "scheme": "recycled"}),
    "ULMC": ("ULMC", {"dynamics": "underdamped"}),
    "MALA": ("MALA", {"dynamics": "overdamped"}),
}
PEERS: dict[str, Any] = {
    "NUTS": peers.nuts,
    "MCLMC 4k": functools.partial(peers.mclmc, tuner_steps=4_000),
    "MCLMC 10k": functools.partial(peers.mclmc, tuner_steps=10_000),
}
WARMUP = 1900
FIRST = 500
LIMIT, SEED = 0.01, 1
HEADER = """\
Gradients a chain until the error b2 of the second moments is below {limit}; medians over {chains} chains; seed {seed}.

warm-up    gradients of tuning                     corr.    as b2_max, each chain's Stein-corrected estimates
b2_max     first time the median is below          total    warm-up and the smaller of b2_max and corr.
b2_avg     likewise, mean over coordinates         pooled   b2_max of all chains' draws together
settled    b2_max stays below from here            failing  rejected transitions after warm-up

            warm-up   b2_max  settled   b2_avg    corr.    total   pooled failing  setting"""


def engine_for(model: Any, settings: MethodArguments) -> NumbaEngine:
    vars, point = list(model.continuous_value_vars), model.initial_point(0)
    return NumbaEngine.of(settings, log_density(vars, model, point, settings.noncentring))


def starts(model: Any, engine: NumbaEngine, chains: int, rng: np.random.Generator) -> np.ndarray:
    """Points within one unit of the initial point where the density and its gradient are finite."""
    point = model.initial_point(0)
    origin = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars]).astype(float)
    structure, unit = engine.structure, Coordinates(np.zeros(len(origin)), np.ones(len(origin)))
    found: list[np.ndarray] = []
    while len(found) < chains:
        x = origin + rng.uniform(-1.0, 1.0, size=len(origin))
        state = empty_state(x if structure is None else structure.to_z(x, structure.none())[0], np.zeros(len(x)))
        if np.all(np.isfinite(engine.evaluate(unit, state))) and math.isfinite(state[4 * len(x)]):
            found.append(x)
    return np.array(found)


class Ours:
    """One of our samplers on one model: warmed up once, lengthened at will."""

    first = FIRST

    def __init__(self, sampler: str, model: Any, chains: int, seed: int, **given: Any):
        method, arguments = SAMPLERS[sampler]
        self.name = sampler
        self.settings = MethodArguments.checked(method, **{**arguments, **given})
        self.engine = engine_for(model, self.settings)
        rng = np.random.default_rng(seed)
        begin = starts(model, self.engine, chains, rng)
        self.warmed: Warmed = warm_up(self.engine, self.settings, begin, length=WARMUP, rng=rng)
        self.parts: list[Any] = []

    def lengthen(self, draws: int, thin: int = 1) -> None:
        """Make the run longer by so many draws."""
        self.parts.append(self.warmed.ensemble.advance(self.engine, self.warmed.tuned, draws, thin=thin))

    def run(self) -> Run:
        """Return the whole run."""

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in self.parts], axis=1)

        self.failing = int(joined("unstable").sum())
        position, gradient = model_side(joined("position"), joined("gradient"))
        return Run(self.name, position, joined("n_grad"), self.warmed.n_grad, gradient)

    @property
    def note(self) -> str:
        """What was tuned."""
        tuned, d = self.warmed.tuned, self.engine.d
        kind = {1: "diagonal"}.get(
            tuned.coordinates.scale.ndim, "dense" if len(tuned.coordinates.scale) == d else "low"
        )
        return (
            f"step {tuned.step_size:.2f}, friction {tuned.friction:g}, K {tuned.K}, {kind}, "
            f"{tuned.steps_per_draw} a draw, frozen at {self.warmed.warmup.frozen}"
        )


class Theirs:
    """One of the other samplers: run anew from the start for every length."""

    failing, first = 0, 2000

    def __init__(self, sampler: str, model: Any, chains: int, seed: int):
        self.name, self.note = sampler, ""
        self._arguments = model, chains, seed
        self._draws = 0

    def lengthen(self, draws: int) -> None:
        """Make the run longer by so many draws."""
        self._draws += draws

    def run(self) -> Run:
        """Return the whole run."""
        model, chains, seed = self._arguments
        found = PEERS[self.name](model, self._draws, chains, seed)
        self.note = found.note
        return found


def corrected_crossing(run: Run, known: Any, end: int) -> float:
    """Gradients until the median over chains of b2_max of corrected estimates is below the limit, infinite if never."""
    if run.log_density_gradients is None:
        return math.inf
    draws, d = run.draws.shape[1:]
    own = np.arange(d)
    n = 5
    while n <= min(draws, end):
        x, g = run.draws[:, :n], run.log_density_gradients[:, :n]
        mean = x.mean(axis=(0, 1))
        first = corrected_expectations(x, x, g, own)
        second = corrected_expectations((x - mean) ** 2, x, g, own, follow=x)
        # E[x^2] = E[(x - m)^2] + 2 m E[x] - m^2
        value = second.by_chain + 2.0 * mean * first.by_chain - mean**2
        errors = ((value - known.second) ** 2 / known.variance_of_square).max(axis=1)
        if np.median(errors) < LIMIT:
            return float(np.median(run.gradients_per_draw[:, :n].sum(axis=1)))
        n = math.ceil(1.25 * n)
    return math.inf


def row(sampler: Ours | Theirs, known: Any, seconds: float) -> str:
    """Lengthen the run as it needs, or as the CPU time allows, and return its row."""
    run, found = lengthened(sampler, known, seconds)
    worst, mean = found["b2_max"], found["b2_avg"]
    corrected = corrected_crossing(run, known, 2000)
    warmup = float(np.median(run.warmup_gradients))
    best = min(worst.first, corrected)
    total = f"{warmup + best:.0f}" if math.isfinite(best) else f">{warmup + worst.spent:.0f}"
    pooled = np.max((np.mean(run.draws**2, axis=(0, 1)) - known.second) ** 2 / known.variance_of_square)
    corr = f"{corrected:.0f}" if math.isfinite(corrected) else "-"
    return (
        f"  {sampler.name:10s} {warmup:7.0f} {worst!s:>8s} {worst.settled:8.0f} {mean!s:>8s} {corr:>8s} {total:>8s} "
        f"{pooled:8.2g} {sampler.failing:7d}  {sampler.note}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--samplers", nargs="*", default=[*SAMPLERS, *PEERS], choices=[*SAMPLERS, *PEERS])
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="*", default=[SEED])
    parser.add_argument("--minutes", type=float, default=1.0, help="limit of CPU time for one sampler on one target")
    arguments = parser.parse_args()
    print(HEADER.format(limit=LIMIT, chains=arguments.chains, seed=", ".join(map(str, arguments.seeds))))
    for name in arguments.targets or TARGETS:
        model, known = TARGETS[name].build(), reference(name)
        print(f"{name} (d={len(known.second)})", flush=True)
        for sampler in arguments.samplers:
            for seed in arguments.seeds:
                kind = Ours if sampler in SAMPLERS else Theirs
                print(row(kind(sampler, model, arguments.chains, seed), known, 60 * arguments.minutes), flush=True)


if __name__ == "__main__":
    main()
