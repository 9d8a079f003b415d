"""The chains of a run: their states, evaluations and random keys, and what is done with all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import (
    Chunk,
    Engine,
    TunedParameters,
    chains_of,
    empty_state,
    in_model_coordinates,
    log_det_of,
)
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel

__all__ = ["Ensemble"]


@dataclass
class Ensemble:
    """Chains of one method, each with its own random key."""

    state: np.ndarray  # (chain, 4 d + 2)
    evaluation: np.ndarray  # (chain, width): at the evaluated point of each
    keys: np.ndarray  # (chain, 2) uint64
    transition: int = 0  # transitions that each chain has made

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

    def subset(self, chains: slice) -> Ensemble:
        """Return some of the chains, with views of their states and a separate count of transitions."""
        return Ensemble(self.state[chains], self.evaluation[chains], self.keys[chains], self.transition)

    def prepare(self, engine: Engine, setting: TunedParameters) -> None:
        """Compile whatever :meth:`advance` needs, by a call for no draws; the chains stay as they are."""
        engine.advance(setting, copy.deepcopy(self.subset(slice(0, 1))), 0)

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
            yield chain_slice, engine.advance(setting, self.subset(chain_slice), rows, thin=thin, tolerance=tolerance)
        self.transition += rows * thin

    def change_coordinates(self, engine: Engine, old: Coordinates, new: Coordinates) -> None:
        """Express the states and evaluations in other coordinates, at no cost in gradients.

        Velocities are kept: they are standard normal in all coordinates.  Steps that were shortened are whole again.
        """
        state = self.state.copy()
        chains = chains_of(state)
        at_u = old.place(chains.u)
        at_evaluated = old.place(chains.evaluated)
        structure = engine.structure
        same_map = np.array_equal(old.density_parameters, new.density_parameters)  # type: ignore[arg-type]
        if not structure.is_identity and not same_map:  # by way of the model's own coordinates
            x, gradient_of_x = in_model_coordinates(at_evaluated, self.evaluation)
            at_u, _ = structure.to_z(structure.to_x(at_u, old.density_parameters), new.density_parameters)
            at_evaluated, log_det = structure.to_z(x, new.density_parameters)
            chains.lp[..., 0] += log_det - log_det_of(self.evaluation, engine.d)
            _, gradient = structure.pull_back(at_evaluated, gradient_of_x, new.density_parameters)
            self.evaluation = np.concatenate([gradient, x, gradient_of_x, log_det[..., None]], axis=-1)
        chains.u[...] = new.whiten(at_u)
        chains.evaluated[...] = new.whiten(at_evaluated)
        chains.b[...] = new.pull_back(self.evaluation[..., : engine.d])
        if engine.kernel.dynamics == HARMONIC:  # whose flow integrates this part
            chains.b[...] += chains.evaluated
        if not engine.kernel.adjusted:
            chains.factor[...] = 1.0
        self.state = state

    def rest_at_draws(self, old: Kernel, new: Kernel) -> None:
        """Turn the chains into those of another method, at rest at their last draws, at no cost in gradients."""
        last = chains_of(self.state)
        self.state = empty_state(last.evaluated, np.zeros_like(last.v))
        chains = chains_of(self.state)
        linear = float(new.dynamics == HARMONIC) - float(old.dynamics == HARMONIC)
        chains.b[...] = last.b + linear * last.evaluated
        chains.evaluated[...] = last.evaluated
        chains.lp[...] = last.lp

    def copy_from(self, source: np.ndarray) -> None:
        """Move chain ``i`` to the state of chain ``source[i]``."""
        self.state = self.state[source]
        self.evaluation = self.evaluation[source]
