"""A chain as PyMC advances it, draw by draw: its setting, its state, and what a draw changes in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, TunedParameters, chains_of
from pmm_mcmc.model.initial_points import spread_starts
from pmm_mcmc.warmup.ascent import raised_starts
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.learning import Learnt, Refinement
from pmm_mcmc.warmup.step_size import fixed_setting
from pmm_mcmc.warmup.thresholds import THRESHOLDS

# Transitions of a draw beside other steps, over those of a draw alone: one draw of all steps costs the gradients of the
# others, too, and one more.
_TIMES_BESIDE_OTHERS = 2


class NotFiniteError(Exception):
    """The log density or its gradient is not finite at the position of the chain."""


@dataclass
class Chain:
    """A chain with all that it needs to continue bit for bit."""

    tuned: TunedParameters
    ensemble: Ensemble  # of this chain alone
    position: np.ndarray  # (d,): the last draw, in the model's coordinates
    tuning: bool  # whether PyMC's warm-up is in progress
    moving: int  # draws of the warm-up that move the chain; at the others it rests
    setting_gradients: int  # that its setting took, before all chains
    tolerance: float  # energy that a step of the warm-up may gain: see Warmup.tolerance
    pending: int  # gradients that no draw has reported
    refinement: Refinement | None
    compiled: bool  # whether compiled functions advance it from its start on
    n_grad: int = 0  # those that draws have
    iteration: int = 0  # draws made
    unstable: int = 0  # transitions that failed, since the warm-up
    newest: Chunk | None = None

    @classmethod
    def begin(
        cls, arguments: MethodArguments, engine: Engine, learnt: Learnt | None, position: np.ndarray, *, default: bool,
        moves_all: bool, n_tune: int, compiled: bool, rng: np.random.Generator,
    ) -> Chain:  # fmt: skip
        """Start with a learnt setting or, without one, with the arguments as they are given.

        ``default`` says that nobody has chosen the ``position``: a chain then starts at one of the learnt places or,
        without any, within one unit of it, as PyMC does for NUTS.  Raises NotFiniteError if the log density or its
        gradient is not finite at the start.
        """
        structure = engine.structure
        tuned = None if learnt is None else learnt.tuned
        parameters = structure.initial_noncentring() if tuned is None else tuned.coordinates.density_parameters
        pending = 1

        def gradient_at(x: np.ndarray) -> np.ndarray:
            nonlocal pending
            pending += len(x)
            return engine.gradient_at(structure.to_z(x, parameters)[0], parameters)

        placed = False
        if default and learnt is not None:
            place = learnt.places[rng.integers(len(learnt.places))]
            placed = moves_all or bool(np.isfinite(gradient_at(place[None])).all())
            position = place if placed else position
        elif default:
            spread = spread_starts(position, 1, None, gradient_at, rng)
            position = position if spread is None else spread[0]
        z, _ = structure.to_z(position[None], parameters)
        if tuned is None:
            tuned = fixed_setting(arguments, z[0], parameters)
        elif not placed:
            gradient = gradient_at(position[None])
            if np.isfinite(gradient).all():
                z, _, ascent_gradients = raised_starts(engine, z, gradient, parameters)
                pending += int(ascent_gradients.sum())
        ensemble = Ensemble.start(engine, tuned.coordinates, z, rng)
        if np.isnan(chains_of(ensemble.state).lp).any():
            raise NotFiniteError
        if not moves_all and learnt is not None and arguments.steps_per_draw is None:
            tuned = tuned._replace(steps_per_draw=_TIMES_BESIDE_OTHERS * tuned.steps_per_draw)
        forgets = placed and moves_all and learnt is not None and learnt.settled
        fixed = arguments.step_size is not None and arguments.scaling is not None
        return cls(
            tuned, ensemble, structure.to_x(z, parameters)[0], n_tune > 0,
            moving=min(n_tune, learnt.forgetting) if learnt is not None and forgets else n_tune,
            setting_gradients=0 if learnt is None else learnt.n_grad,
            tolerance=0.0 if placed or learnt is None else THRESHOLDS.energy_tolerance,
            pending=pending,
            refinement=None if moves_all or learnt is None or fixed else Refinement(arguments),
            compiled=compiled,
        )  # fmt: skip

    @property
    def steps_per_draw(self) -> int:
        """Current number of transitions for each draw."""
        return 1 if self.tuning else self.tuned.steps_per_draw

    def stop_tuning(self, engine: Engine) -> None:
        """End the warm-up, early or not."""
        if self.refinement is not None:
            self._refine(engine)
            self.refinement = None
        self.tuning = False
        self.tolerance = 0.0
        self.unstable = 0

    def relocate(self, engine: Engine, position: np.ndarray | None) -> None:
        """Evaluate again, at another position or because the other variables of the model have changed.

        Raises NotFiniteError if the log density or its gradient is not finite there.
        """
        state = self.ensemble.state.copy()
        coordinates = self.tuned.coordinates
        if position is not None:
            z, _ = engine.structure.to_z(position[None], coordinates.density_parameters)
            chains_of(state).u[...] = coordinates.whiten(z)
            self.newest = None
        evaluation = engine.evaluate(coordinates, state)
        self.pending += 1
        if np.isnan(chains_of(state).lp).any():
            raise NotFiniteError
        self.ensemble.state = state
        self.ensemble.evaluation = evaluation

    def draw(self, engine: Engine) -> Chunk:
        """Return the next draw, ``(1, 1, ...)``."""
        if self.tuning and self.iteration >= self.moving and self.newest is not None:  # the last one again
            counts = ("n_grad", "unstable", "refined", "model_failures")
            chunk = self.newest._replace(**{name: np.zeros_like(getattr(self.newest, name)) for name in counts})
        else:
            chunk = self._moved(engine)
        self.iteration += 1
        self.unstable += int(chunk.unstable.sum())
        chunk.n_grad[...] += self.pending
        self.pending = 0
        self.n_grad += int(chunk.n_grad.sum())
        self.newest = chunk
        return chunk

    def _moved(self, engine: Engine) -> Chunk:
        ensemble = self.ensemble
        position = self.tuned.coordinates.place(chains_of(ensemble.state).evaluated)
        gradient = ensemble.evaluation.copy()
        chunk = ensemble.advance(engine, self.tuned, 1, thin=self.steps_per_draw, tolerance=self.tolerance)
        if self.refinement is not None:
            twice = Block(*(np.repeat(array, 2, axis=1) for array in Block.of(chunk)))
            twice.position[:, 0] = position
            twice.gradient[:, 0] = gradient
            self.refinement.pairs.append(twice._replace(gradient=twice.gradient[..., : engine.d]))
            if self.refinement.due:
                self._refine(engine)
        return chunk

    def _refine(self, engine: Engine) -> None:
        assert self.refinement is not None
        old = self.tuned.coordinates
        self.tuned = self.refinement.refine(self.tuned)
        self.ensemble.change_coordinates(engine, old, self.tuned.coordinates)
