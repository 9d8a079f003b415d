"""Our samplers on a PyMC model, warmed up together by the package's own schedule."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from versus.first_times import Run
from warm_ups import warm_up

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import empty_state, in_model_coordinates
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.pymc_density import log_density

__all__ = ["SAMPLERS", "Ours", "engine_for", "starts"]

UNDERDAMPED, OVERDAMPED = {"dynamics": "underdamped"}, {"dynamics": "overdamped"}
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("PoissonULMC", UNDERDAMPED),
    "centred": ("PoissonULMC", {**UNDERDAMPED, "grid": "centred"}),
    "importance": ("PoissonULMC", {**UNDERDAMPED, "midpoint": "importance"}),
    "recycled": ("PoissonULMC", {**UNDERDAMPED, "scheme": "recycled"}),
    "PoissonOLMC": ("PoissonOLMC", OVERDAMPED),
    "OLMC": ("OLMC", OVERDAMPED),
    "RLMC": ("RLMC", UNDERDAMPED),
    "ULMC": ("ULMC", UNDERDAMPED),
    "GHMC": ("GHMC", UNDERDAMPED),
}
WARMUP = 1900


def engine_for(model: Any, arguments: MethodArguments) -> NumbaEngine:
    density = log_density(list(model.continuous_value_vars), model, model.initial_point(0), arguments.noncentring)
    return NumbaEngine.of(arguments, density)


def starts(model: Any, engine: NumbaEngine, chains: int, rng: np.random.Generator) -> np.ndarray:
    """Points within one unit of the initial point where the density and its gradient are finite."""
    point = model.initial_point(0)
    origin = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars]).astype(float)
    structure, unit = engine.structure, Coordinates(np.zeros(len(origin)), np.ones(len(origin)))
    found: list[np.ndarray] = []
    while len(found) < chains:
        x = origin + rng.uniform(-1.0, 1.0, size=len(origin))
        state = empty_state(structure.to_z(x, structure.initial_noncentring())[0], np.zeros(len(x)))
        if np.all(np.isfinite(engine.evaluate(unit, state))) and math.isfinite(state[4 * len(x)]):
            found.append(x)
    return np.array(found)


class Ours:
    """One of our samplers on one model: compiled once, warmed up by ``begin`` from any seed, lengthened at will."""

    first = 500

    def __init__(self, name: str, model: Any, chains: int = 8, **given: Any):
        method, arguments = SAMPLERS[name]
        self.name, self.model, self.chains = name, model, chains
        self.arguments = MethodArguments.checked(method, **{**arguments, **given})
        self.engine = engine_for(model, self.arguments)

    def begin(self, seed: int, length: int = WARMUP) -> None:
        """Start anew from a seed, and warm up."""
        rng = np.random.default_rng(seed)
        begin = starts(self.model, self.engine, self.chains, rng)
        began = time.process_time()
        self.warmed = warm_up(self.engine, self.arguments, begin, length=length, rng=rng)
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
        position, gradient = in_model_coordinates(joined("position"), joined("evaluation"))
        return Run(self.name, position, joined("n_grad"), self.warmed.n_grad, gradient, note)
