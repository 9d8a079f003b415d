"""Chains that advance together with the same tuned parameters: companion chains of a warm-up, or a run's chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import Chunk, Engine, change_coordinates, empty_state
from pmm_mcmc.langevin.methods import OVERDAMPED

__all__ = ["Ensemble"]


@dataclass
class Ensemble:
    """Chains of one method, each with its own random key.

    Attributes
    ----------
    state, gradient : (chain, 4 d + 2), (chain, width)
        State of each chain, and the evaluation at its evaluated point.
    keys : (chain, 2) uint64
        Random key of each chain.
    transition : int
        Number of transitions that each chain has made.
    """

    state: np.ndarray
    gradient: np.ndarray
    keys: np.ndarray
    transition: int = field(default=0)

    @classmethod
    def start(
        cls, engine: Engine, coordinates: Coordinates, positions: np.ndarray, rng: np.random.Generator
    ) -> Ensemble:
        """Start chains at positions ``z`` ``(chain, d)`` with a finite density; each costs one gradient."""
        chains, d = positions.shape
        keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        velocity = rng.standard_normal((chains, d)) * (engine.kernel.dynamics != OVERDAMPED)
        state = empty_state(coordinates.whiten(positions), velocity)
        return cls(state, engine.evaluate(coordinates, state), keys)

    def prepare(self, engine: Engine, setting: TunedParameters) -> None:
        """Compile whatever :meth:`advance` needs, by a call for no draws; the chains stay as they are."""
        engine.advance(setting, self.state[:1].copy(), self.gradient[:1].copy(), self.keys[:1], self.transition, 0)

    def advance(
        self, engine: Engine, setting: TunedParameters, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance every chain by ``rows`` draws; the arrays of the chunk have a leading axis for the chains."""
        ((_, chunk),) = self.advance_in_batches(engine, setting, rows, None, thin=thin, tolerance=tolerance)
        return chunk

    def advance_in_batches(
        self,
        engine: Engine,
        setting: TunedParameters,
        rows: int,
        batch: int | None,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Iterator[tuple[slice, Chunk]]:
        """Advance ``batch`` chains at a time (None: all) and yield each slice of chains with its chunk.

        The iterator must be exhausted: only then is the number of transitions updated.
        """
        chains = len(self.state)
        size = chains if batch is None else batch
        for start in range(0, chains, size):
            chain_slice = slice(start, min(start + size, chains))
            arrays = self.state[chain_slice], self.gradient[chain_slice], self.keys[chain_slice]
            yield chain_slice, engine.advance(setting, *arrays, self.transition, rows, thin=thin, tolerance=tolerance)
        self.transition += rows * thin

    def change(self, engine: Engine, old: Coordinates, new: Coordinates) -> None:
        """Express all states in other coordinates."""
        self.state, self.gradient = change_coordinates(
            self.state, self.gradient, old, new, engine.kernel, engine.structure
        )

    def copy_from(self, source: np.ndarray) -> None:
        """Move chain ``i`` to the state of chain ``source[i]``."""
        self.state = self.state[source]
        self.gradient = self.gradient[source]
