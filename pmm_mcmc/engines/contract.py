"""The interface of every engine: states of chains, evaluations, chunks of draws, and the chains of a run.

The *state* of a chain is one flat array of ``4 d + 2`` floats, so that it is saved, restored and compared as an array.
In this order:

- ``u``, ``v``: position and velocity, in whitened coordinates (:mod:`pmm_mcmc.coordinates.affine`).
- ``b``: the base drift, which the next step starts with: the gradient of the log density at the evaluated point, less
  the part that the flow of the dynamics integrates.
- ``evaluated``: that point, the last at which the density was evaluated; it is also the draw.
- The log density there, without the constant of the affine map.
- Of unadjusted methods the factor by which the chain's step is shortened at present.  Of adjusted ones the persistent
  number ``s`` of the Metropolis test, which is below 1: a chain with a 1 there is *at rest*, and its next transition
  draws a velocity and a number.

The *evaluation* at the evaluated point is an array ``(width,)`` beside the state: the gradient with respect to ``z``
and, where ``z`` is not the model's own ``x`` (:mod:`pmm_mcmc.coordinates.structure`), ``x``, the gradient with respect
to ``x`` and the log determinant of the map from ``z`` to ``x``.  ``width`` is ``d`` or ``3 d + 1``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.langevin.transitions import SUBSTEPS


class Chains(NamedTuple):
    """States with names: arrays ``(..., d)``, ``lp`` and ``factor`` ``(..., 1)``, and evaluations ``(..., width)``.

    ``factor`` is the last number of a state: of adjusted methods the persistent number of the Metropolis test.
    """

    u: Any
    v: Any
    b: Any
    evaluated: Any
    evaluation: Any
    lp: Any
    factor: Any


def chains_of(state: Any, evaluation: Any = None) -> Chains:
    """Return states ``(..., 4 d + 2)`` with names, of NumPy's arrays as views, with their evaluations."""
    d = state.shape[-1] // 4
    u, v, b, evaluated = (state[..., i * d : (i + 1) * d] for i in range(4))
    return Chains(u, v, b, evaluated, evaluation, state[..., 4 * d : 4 * d + 1], state[..., 4 * d + 1 :])


class TunedParameters(NamedTuple):
    """The parameters that an engine runs with: step size, K, friction, whitened coordinates, transitions per draw."""

    step_size: float
    K: int
    friction: float
    coordinates: Coordinates
    steps_per_draw: int


class Parameters(NamedTuple):
    """Tuned parameters of a run and the limits of the stability check, as numbers."""

    alpha: Any  # step size
    friction: Any
    K: Any
    threshold: Any  # largest energy rise over a whole step
    threshold_of_substep: Any  # and over a substep of a refined step
    steepest: Any  # largest curvature at which a whole step is stable
    tolerance: Any  # share of the kinetic energies added to the threshold

    @classmethod
    def of(cls, kernel: Kernel, setting: TunedParameters, d: int, tolerance: float) -> Parameters:
        """Return the parameters and limits of a setting in ``d`` coordinates."""
        step, K, friction = setting[:3]
        rise = guard_threshold(kernel, step, friction, K, d)
        rise_of_substep = guard_threshold(kernel, step / SUBSTEPS, friction, K, d)
        return cls(step, friction, K, rise, rise_of_substep, steepest_curvature(kernel, step, friction, K), tolerance)


class Chunk(NamedTuple):
    """Draws of one chain, or of several along a leading axis; ``n`` draws in ``d`` coordinates.

    Attributes
    ----------
    position, evaluation : (n, d), (n, width)
        Draws ``z``, and the evaluations there.
    lp, energy, accept : (n,)
        Log density of the model at the draw; minus that of ``z``, plus the kinetic energy; mean acceptance probability
        of its transitions (unadjusted methods: the share of accepted ones).
    n_grad : (n,)
        Gradients spent for the draw.
    unstable, refined : (n,)
        Transitions rejected as non-finite or unstable even after refinement (adjusted methods: divergences, which are
        not finite or have a ratio below e^-10 even then); transitions that were refined.
    model_failures : (n,)
        Unstable transitions due to the model and not to the step: values are not finite at a place that a stable step
        may reach, by the energy ``|y|^2 / 2`` of the whitened coordinates.
    """

    position: np.ndarray
    evaluation: np.ndarray
    lp: np.ndarray
    energy: np.ndarray
    accept: np.ndarray
    n_grad: np.ndarray
    unstable: np.ndarray
    refined: np.ndarray
    model_failures: np.ndarray

    @property
    def model_position(self) -> np.ndarray:
        """The draws in the model's coordinates."""
        return in_model_coordinates(self.position, self.evaluation)[0]

    @classmethod
    def empty(cls, shape: tuple[int, ...], d: int, width: int) -> Chunk:
        """Return uninitialised arrays for draws of ``shape`` ``(n,)`` or ``(chain, n)``."""
        position = np.empty((*shape, d))
        evaluation = np.empty((*shape, width))
        counts = (np.empty(shape, np.int64) for _ in range(4))
        return cls(position, evaluation, *(np.empty(shape) for _ in range(3)), *counts)


class Engine(Protocol):
    """Chains of one method over one log density.

    ``periods`` ``(d,)`` are those of coordinates that are angles, 0 of others; None if no coordinate is one.
    """

    kernel: Kernel
    d: int
    width: int
    structure: Structure
    periods: np.ndarray | None = None

    def adjusted(self) -> Engine:
        """Return the engine of adjusted draws (generalised HMC) over the same density."""

    def gradient_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)``; NaN where a value is not finite."""
        return self.evaluations_at(position, density_parameters)[..., : self.d]

    def evaluations_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return evaluations ``(..., width)`` at positions ``z`` ``(..., d)``; NaN where a value is not finite."""
        lp, evaluation = evaluated_at(self.evaluate, position, density_parameters)
        return np.where(np.isfinite(lp)[..., None], evaluation, np.nan)

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)`` and make them the evaluated points, in place.

        Returns the evaluations ``(..., width)``.  The log density in a state is NaN where a value is not finite.  Each
        chain costs one gradient.
        """

    def advance(
        self,
        setting: TunedParameters,
        chains: Ensemble,
        rows: int,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance chains by ``rows * thin`` transitions, in place, and return every ``thin``-th one as a draw.

        Random numbers depend on the keys of the chains and the number of their first transition alone, which stays as
        it is.  ``tolerance`` is the share of the kinetic energies that is added to the largest stable rise of the
        energy.  Early warm-up uses it: for chains that move in from far out, errors of a step are small only relative
        to their energy.
        """


def empty_state(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return states of chains at positions ``u`` ``(..., d)`` with velocities ``v``, not evaluated yet."""
    d = u.shape[-1]
    state = np.zeros((*u.shape[:-1], 4 * d + 2))
    state[..., :d] = u
    state[..., d : 2 * d] = v
    state[..., 4 * d + 1] = 1.0
    return state


def evaluated_at(
    evaluate: Callable[[Coordinates, np.ndarray], np.ndarray],
    z: np.ndarray,
    density_parameters: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities of ``z`` ``(..., d)``, NaN where not finite, and the evaluations there.

    ``evaluate`` is that of an engine.
    """
    d = z.shape[-1]
    state = empty_state(z, np.zeros(d))
    evaluation = evaluate(Coordinates(np.zeros(d), np.ones(d), density_parameters), state)
    return chains_of(state).lp[..., 0], evaluation


def in_model_coordinates(z: np.ndarray, evaluation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the model's positions ``x`` and gradients there, ``(..., d)``, from the evaluations at ``z``."""
    d = z.shape[-1]
    if evaluation.shape[-1] == d:
        return z, evaluation
    return evaluation[..., d : 2 * d], evaluation[..., 2 * d : 3 * d]


def log_det_of(evaluation: Any, d: int) -> Any:
    """Return the log determinants of the map from ``z`` to ``x`` of evaluations ``(..., width)``."""
    return evaluation[..., 3 * d] if evaluation.shape[-1] > d else 0.0


def start_noncentring(engine: Engine) -> np.ndarray | None:
    """Return the non-centring of a start; None without hierarchy: a ladder's density has other parameters."""
    return None if engine.structure.is_identity else engine.structure.initial_noncentring()


def density_at(engine: Engine, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities ``(n,)`` and gradients at the model's positions ``(n, d)``; NaN where not finite."""
    density_parameters = start_noncentring(engine)
    z, _ = engine.structure.to_z(x, density_parameters)
    lp, evaluation = evaluated_at(engine.evaluate, z, density_parameters)
    return lp - log_det_of(evaluation, engine.d), in_model_coordinates(z, evaluation)[1]


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
