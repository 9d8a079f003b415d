"""The interface of every engine: states of chains, evaluations, chunks of draws.

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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.langevin.methods import Kernel
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.langevin.transitions import SUBSTEPS

if TYPE_CHECKING:
    from pmm_mcmc.engines.ensemble import Ensemble

__all__ = [
    "Chains",
    "Chunk",
    "Engine",
    "Parameters",
    "TunedParameters",
    "chains_of",
    "empty_state",
    "evaluated_at",
    "in_model_coordinates",
    "log_det_of",
]


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
    lp, accept : (n,)
        Log density of the model at the draw; mean acceptance probability of its transitions (unadjusted methods: the
        share of accepted ones).
    n_grad : (n,)
        Gradients spent for the draw.
    unstable, refined : (n,)
        Transitions rejected as non-finite or unstable even after refinement (adjusted methods: divergences, which are
        not finite or have a ratio below e^-10 even then); transitions that were refined.
    model_failures : (n,)
        Unstable transitions due to the model and not to the step: values are not finite at a place that a stable step
        may reach, by the energy ``|y|^2 / 2`` of the whitened coordinates.
    state : (n, 4 d + 2)
        State of the chain after each draw; empty where several chains advance together.
    """

    position: np.ndarray
    evaluation: np.ndarray
    lp: np.ndarray
    accept: np.ndarray
    n_grad: np.ndarray
    unstable: np.ndarray
    refined: np.ndarray
    model_failures: np.ndarray
    state: np.ndarray

    @property
    def model_position(self) -> np.ndarray:
        """The draws in the model's coordinates."""
        return in_model_coordinates(self.position, self.evaluation)[0]

    @property
    def sampled_lp(self) -> np.ndarray:
        """The log density of ``z`` at the draws, log determinant included."""
        return self.lp + log_det_of(self.evaluation, self.position.shape[-1])

    @classmethod
    def empty(cls, shape: tuple[int, ...], d: int, width: int, states: int = 0) -> Chunk:
        """Return uninitialised arrays for draws of ``shape`` ``(n,)`` or ``(chain, n)``, with ``states`` states."""
        position = np.empty((*shape, d))
        evaluation = np.empty((*shape, width))
        n_grad, unstable, refined, model_failures = (np.empty(shape, np.int64) for _ in range(4))
        state = np.empty((*shape[:-1], states, 4 * d + 2))
        lp = np.empty(shape)
        accept = np.empty(shape)
        return cls(position, evaluation, lp, accept, n_grad, unstable, refined, model_failures, state)


class Engine(Protocol):
    """Chains of one method over one log density.

    ``periods`` ``(d,)`` are those of coordinates that are angles, 0 of others; None if no coordinate is one.
    """

    kernel: Kernel
    d: int
    width: int
    structure: Structure
    periods: np.ndarray | None

    def adjusted(self) -> Engine:
        """Return the engine of adjusted draws (generalised HMC) over the same density."""

    def gradient_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)``; NaN where a value is not finite."""

    def evaluations_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return evaluations ``(..., width)`` at positions ``z`` ``(..., d)``; NaN where a value is not finite."""

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
