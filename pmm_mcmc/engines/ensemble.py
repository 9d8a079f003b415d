"""Chains that advance together, block by block, under one setting: walkers of a warm-up, or a run's chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.numba_engine import Chunk, NumbaEngine, change_coordinates, empty_state
from pmm_mcmc.methods import OVERDAMPED

__all__ = ["Ensemble", "Setting"]


class Setting(Protocol):
    """What the engine runs with."""

    @property
    def step_size(self) -> float:
        """Length of a step."""

    @property
    def friction(self) -> float:
        """Friction of the underdamped dynamics."""

    @property
    def K(self) -> int:
        """Cells of a step."""

    @property
    def coordinates(self) -> Coordinates:
        """The whitened coordinates."""


@dataclass
class Ensemble:
    """Chains of one method, each with randomness of its own.

    Attributes
    ----------
    state, gradient : (chain, 4 d + 2), (chain, d)
        The engine's state of each chain, and the gradient at its anchor.
    keys : (chain, 2) uint64
        What each chain's randomness depends on, beside the number of the transition.
    transition : int
        Transitions made by each of them.
    """

    state: np.ndarray
    gradient: np.ndarray
    keys: np.ndarray
    transition: int = field(default=0)

    @classmethod
    def start(
        cls, engine: NumbaEngine, coordinates: Coordinates, positions: np.ndarray, rng: np.random.Generator
    ) -> Ensemble:
        """Begin at positions ``(chain, d)`` with a finite density: a gradient each."""
        chains, d = positions.shape
        keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        velocity = rng.standard_normal((chains, d)) * (engine.kernel.dynamics != OVERDAMPED)
        state = np.stack([empty_state(coordinates.whiten(x), v) for x, v in zip(positions, velocity, strict=True)])
        gradient = np.stack([engine.evaluate(coordinates, row) for row in state])
        return cls(state, gradient, keys)

    def advance(
        self, engine: NumbaEngine, setting: Setting, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Run every chain for ``rows`` draws; return their chunk, each array with a leading axis for the chains."""
        chunks = [
            engine.run(
                setting.coordinates,
                setting.step_size,
                setting.friction,
                setting.K,
                state,
                gradient,
                key,
                self.transition,
                rows,
                thin,
                tolerance,
            )
            for state, gradient, key in zip(self.state, self.gradient, self.keys, strict=True)
        ]
        self.transition += rows * thin
        return Chunk(*(np.stack(part) for part in zip(*chunks, strict=True)))

    def change(self, engine: NumbaEngine, old: Coordinates, new: Coordinates) -> None:
        """Express all states in other coordinates."""
        pairs = zip(self.state, self.gradient, strict=True)
        self.state = np.stack([change_coordinates(s, g, old, new, engine.kernel) for s, g in pairs])

    def copy_from(self, source: np.ndarray) -> None:
        """Put chain ``i`` where chain ``source[i]`` stands."""
        self.state, self.gradient = self.state[source], self.gradient[source]
