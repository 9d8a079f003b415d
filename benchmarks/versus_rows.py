"""One row of the comparison: a sampler on a target from one seed, in gradients, effective samples and seconds."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any

import arviz as az
import gradients
import numpy as np
import pymc as pm
from first_times import Run, lengthened

from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.settings import MethodArguments
from pmm_mcmc.model.log_density import log_density
from pmm_mcmc.run.sample import warm_up

__all__ = ["OURS", "PEERS", "REMEDIES", "Ours", "build", "effective", "failure", "measure"]

UNDERDAMPED, OVERDAMPED = {"dynamics": "underdamped"}, {"dynamics": "overdamped"}
RECYCLED = {**UNDERDAMPED, "scheme": "recycled"}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "PoissonULMC": ("PoissonULMC", UNDERDAMPED),
    "PoissonULMC, centred": ("PoissonULMC", {**UNDERDAMPED, "grid": "centred"}),
    "PoissonULMC, importance": ("PoissonULMC", {**UNDERDAMPED, "midpoint": "importance"}),
    "PoissonULMC, recycled": ("PoissonULMC", RECYCLED),
    "PoissonOLMC": ("PoissonOLMC", OVERDAMPED),
    "OLMC": ("OLMC", OVERDAMPED),
    "RLMC": ("RLMC", UNDERDAMPED),
    "ULMC": ("ULMC", UNDERDAMPED),
    "MALA": ("MALA", OVERDAMPED),
}
# MethodArguments tried where a peer leads; not in a run unless named.
REMEDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "recycled, friction 0.5": ("PoissonULMC", {**RECYCLED, "friction": 0.5}),
    "recycled, friction 2": ("PoissonULMC", {**RECYCLED, "friction": 2.0}),
    "recycled, bias 0.1": ("PoissonULMC", {**RECYCLED, "target_bias": 0.1}),
    "recycled, bias 0.2": ("PoissonULMC", {**RECYCLED, "target_bias": 0.2}),
    "paper, friction 0.5": ("PoissonULMC", {**UNDERDAMPED, "friction": 0.5}),
    "paper, bias 0.1": ("PoissonULMC", {**UNDERDAMPED, "target_bias": 0.1}),
}


def _peer(name: str, model: pm.Model, known: Any, chains: int) -> Any:
    """Import and compile a peer."""
    import jax_peers as jp
    import more_peers as mp

    makers: dict[str, Callable[[], Any]] = {
        "PyMC NUTS": lambda: mp.PyMCNUTS(model, chains),
        "nutpie NUTS": lambda: mp.Nutpie(model, chains),
        "nutpie flow": lambda: mp.NutpieFlow(model, chains),
        "WALNUTS": lambda: mp.Walnuts(model, chains),
        "NumPyro NUTS": lambda: mp.NumPyroNUTS(model, chains),
        "MCLMC": lambda: jp.MCLMC(model, chains),
        "MCLMC, short tuning": lambda: jp.MCLMC(model, chains, tuner_steps=4_000),
        "adjusted MCLMC": lambda: jp.AdjustedMCLMC(model, chains),
        "BlackJAX MALA": lambda: jp.MALA(model, chains, scale=np.sqrt(known.variance_of_x)),
        "ALIGN": lambda: mp.Solver(model, chains, kind="ALIGN", known=known),
        "QUICSORT": lambda: mp.Solver(model, chains, kind="QUICSORT", known=known),
    }
    return makers[name]()


PEERS = (
    *("PyMC NUTS", "nutpie NUTS", "NumPyro NUTS", "MCLMC", "MCLMC, short tuning", "adjusted MCLMC"),
    *("BlackJAX MALA", "ALIGN", "QUICSORT"),
)
WARMUP = gradients.WARMUP
# Draws of each chain and coordinates whose effective samples are computed: more would take longer than the run.
EFFECTIVE_DRAWS, FIRST_COORDINATES, COORDINATES = 8000, 10, 50
CORRECTED = 2000  # draws of each chain that corrected estimates are made of, at most


@functools.lru_cache(maxsize=1)
def _density(model: pm.Model) -> Any:
    return log_density(list(model.continuous_value_vars), model, model.initial_point(0))


class Ours:
    """One of our samplers on one model: compiled once, warmed up by ``begin`` from any seed, lengthened at will."""

    first = gradients.FIRST

    def __init__(self, name: str, model: pm.Model, chains: int = 8):
        method, given = {**OURS, **REMEDIES}[name]
        self.name, self.model, self.chains = name, model, chains
        self.settings = MethodArguments.checked(method, **given)
        self.engine = NumbaEngine.of(self.settings, _density(model))
        # Whatever is compiled when it is first used is compiled here.
        self.begin(0, length=300)
        self.lengthen(10)

    def begin(self, seed: int, length: int = WARMUP) -> None:
        """Start anew from a seed, and warm up."""
        rng = np.random.default_rng(seed)
        begin = gradients.starts(self.model, self.engine, self.chains, rng)
        began = time.process_time()
        self.warmed = warm_up(self.engine, self.settings, begin, length=length, rng=rng)
        self.warm_up_seconds, self.seconds = time.process_time() - began, 0.0
        self._parts: list[Any] = []

    def lengthen(self, draws: int) -> None:
        """Make the run longer by so many draws, each a transition."""
        began = time.process_time()
        self._parts.append(self.warmed.ensemble.advance(self.engine, self.warmed.tuned, draws))
        self.seconds += time.process_time() - began

    def run(self) -> Run:
        """Return the whole run."""

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in self._parts], axis=1)

        self.failing = int(joined("unstable").sum())
        tuned = self.warmed.tuned
        note = f"step {tuned.step_size:.2f}, friction {tuned.friction:g}, K {tuned.K}"
        return Run(self.name, joined("position"), joined("n_grad"), self.warmed.n_grad, joined("gradient"), note)


def build(name: str, model: pm.Model, known: Any, chains: int) -> Any:
    """Compile a sampler, ours or a peer."""
    return Ours(name, model, chains) if name in OURS or name in REMEDIES else _peer(name, model, known, chains)


def effective(draws: np.ndarray) -> tuple[float, float]:
    """Smallest bulk effective sample size of coordinates, and of their squares: of at most 50 coordinates.

    Of long runs every n-th draw is taken, so that at most 8,000 of each chain remain, and of many coordinates the
    first ten and forty more, evenly spaced.
    """
    d = draws.shape[2]
    if d > COORDINATES:
        rest = np.linspace(FIRST_COORDINATES, d - 1, COORDINATES - FIRST_COORDINATES).round().astype(int)
        draws = draws[:, :, np.concatenate([np.arange(FIRST_COORDINATES), rest])]
    x = draws[:, :: math.ceil(draws.shape[1] / EFFECTIVE_DRAWS)]
    least = [float(np.min(az.ess(values, method="bulk", chain_axis=0, draw_axis=1))) for values in (x, x**2)]
    return least[0], least[1]


def _finite(value: float) -> float | None:
    """JSON has no infinity: None is "not within what was spent"."""
    return float(value) if math.isfinite(value) else None


def failure(error: Exception) -> dict[str, Any]:
    """The row of a run that did not come to an end."""
    words = " ".join(str(error).split())[:120]
    return {"error": f"{type(error).__name__}: {words}" if words else type(error).__name__}


def measure(sampler: Any, known: Any, seed: int, seconds: float) -> dict[str, Any]:
    """Run a sampler until its errors are settled, or as long as ``seconds`` of CPU allow, and return its row."""
    began = time.process_time()
    load = os.getloadavg()[0]
    sampler.begin(seed)
    run, found = lengthened(sampler, known, seconds - (time.process_time() - began))
    total = float(run.gradients_per_draw.sum())
    ess, ess_square = effective(run.draws)
    pooled = (np.mean(run.draws**2, axis=(0, 1)) - known.second) ** 2 / known.variance_of_square
    crossings = {
        name: {
            "first": _finite(c.first),
            "settled": _finite(c.settled),
            "low": _finite(c.low),
            "high": _finite(c.high),
            "final": c.final,
        }
        for name, c in found.items()
    }
    corrected = gradients.corrected_crossing(run, known, CORRECTED)
    return {
        "warm_up": float(np.median(run.warmup_gradients)),
        **crossings,
        "corrected": _finite(corrected) if run.log_density_gradients is not None else None,
        "spent": found["b2_max"].spent,
        "pooled": float(pooled.max()),
        "draws": run.draws.shape[1],
        "ess_per_1000": 1000 * ess / total,
        "ess_square_per_1000": 1000 * ess_square / total,
        "ess_per_second": ess / sampler.seconds,
        "ess_square_per_second": ess_square / sampler.seconds,
        "warm_up_seconds": sampler.warm_up_seconds,
        "seconds": sampler.seconds,
        "failing": sampler.failing,
        "load": round(load, 1),
        "note": run.note,
    }
