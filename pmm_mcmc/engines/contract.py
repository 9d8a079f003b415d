"""The interface of every engine: states of chains, chunks of draws.

The state of a chain is one flat array of ``4 d + 2`` floats, so that it is saved, restored and compared as an array:
``u`` (position), ``v`` (velocity), ``b`` (base drift), ``evaluated`` (the last point whose gradient is known, which
is also the draw), all in whitened coordinates (:mod:`pmm_mcmc.coordinates.affine`); then the log density at the
evaluated point, without the constant of the affine map; and of unadjusted methods the current factor by which the
chain's step is shortened, of adjusted ones the persistent number of the Metropolis test.  This is below 1: a chain with
a 1 there is at rest, and its next transition draws a velocity and a number.

The *evaluation* at that point is an array ``(width,)`` beside the state: the gradient with respect to the non-centred
``z``; where ``z`` is not the model's own ``x``, followed by ``x``, the gradient with respect to ``x`` and the log
determinant of the map from ``z`` to ``x``.  ``width`` is ``d`` or ``3 d + 1``.  Arrays named ``gradient`` are
evaluations.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.langevin.methods import HARMONIC, Kernel

__all__ = [
    "Chunk", "Engine", "at_draw", "change_coordinates", "empty_state", "log_det_of", "model_side", "with_model_side",
]  # fmt: skip


class Chunk(NamedTuple):
    """Draws of one chain, or of several along a leading axis; ``n`` draws in ``d`` coordinates.

    Attributes
    ----------
    position, gradient : (n, d), (n, width)
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
    gradient: np.ndarray
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
        return model_side(self.position, self.gradient)[0]

    @property
    def sampled_lp(self) -> np.ndarray:
        """The log density of ``z`` at the draws, log determinant included."""
        return self.lp + log_det_of(self.gradient, self.position.shape[-1])

    @classmethod
    def empty(cls, shape: tuple[int, ...], d: int, width: int, states: int = 0) -> Chunk:
        """Return uninitialised arrays for draws of ``shape`` ``(n,)`` or ``(chain, n)``, with ``states`` states."""
        position = np.empty((*shape, d))
        gradient = np.empty((*shape, width))
        n_grad, unstable, refined, model_failures = (np.empty(shape, np.int64) for _ in range(4))
        state = np.empty((*shape[:-1], states, 4 * d + 2))
        lp = np.empty(shape)
        accept = np.empty(shape)
        return cls(position, gradient, lp, accept, n_grad, unstable, refined, model_failures, state)


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

    def gradient_at(self, position: np.ndarray, sites: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)`` for given sites; NaN where a value is not finite."""

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)`` and make them the evaluated points, in place.

        Returns the evaluations ``(..., width)``.  The log density in a state is NaN where a value is not finite.  Each
        chain costs one gradient.
        """

    def advance(
        self,
        setting: TunedParameters,
        state: np.ndarray,
        gradient: np.ndarray,
        keys: np.ndarray,
        first_transition: int,
        rows: int,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance chains by ``rows * thin`` transitions, in place, and return every ``thin``-th one as a draw.

        Parameters
        ----------
        setting
            Step size, friction, K and coordinates.
        state, gradient
            The chains, ``(chain, 4 d + 2)``, and the evaluations at their evaluated points, ``(chain, width)``.
        keys, first_transition
            Keys from seed and chain, ``(chain, 2)`` uint64, and the number of the first transition: all that the
            random numbers depend on.
        rows, thin
            Number of draws, and of transitions for each.
        tolerance
            Share of the kinetic energies that is added to the largest stable rise of the energy.  Early warm-up uses
            it: for chains that move in from far out, errors of a step are small only relative to their energy.
        """


def empty_state(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return states of chains at positions ``u`` ``(..., d)`` with velocities ``v``, not evaluated yet."""
    d = u.shape[-1]
    state = np.zeros((*u.shape[:-1], 4 * d + 2))
    state[..., :d] = u
    state[..., d : 2 * d] = v
    state[..., 4 * d + 1] = 1.0
    return state


def at_draw(state: np.ndarray, old: Kernel, new: Kernel) -> np.ndarray:
    """Return states ``(..., 4 d + 2)`` of another method at the last draws, at rest, at no cost in gradients."""
    d = state.shape[-1] // 4
    out = empty_state(state[..., 3 * d : 4 * d], np.zeros(d))
    out[..., 2 * d : 4 * d + 1] = state[..., 2 * d : 4 * d + 1]
    linear = float(new.dynamics == HARMONIC) - float(old.dynamics == HARMONIC)
    out[..., 2 * d : 3 * d] += linear * out[..., :d]
    return out


def model_side(z: np.ndarray, evaluation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the model's positions and gradients ``(..., d)`` from the evaluation at ``z``."""
    d = z.shape[-1]
    if evaluation.shape[-1] == d:
        return z, evaluation
    return evaluation[..., d : 2 * d], evaluation[..., 2 * d : 3 * d]


def log_det_of(evaluation: Any, d: int) -> Any:
    """Return the log determinants of the map from ``z`` to ``x`` of evaluations ``(..., width)``."""
    return evaluation[..., 3 * d] if evaluation.shape[-1] > d else 0.0


def with_model_side(slope: np.ndarray, x: np.ndarray, gradient: np.ndarray, log_det: np.ndarray) -> np.ndarray:
    """Return the evaluation where ``x`` is not ``z``: ``slope`` is the gradient with respect to ``z``."""
    return np.concatenate([slope, x, gradient, log_det[..., None]], axis=-1)


def change_coordinates(
    state: np.ndarray,
    gradient: np.ndarray,
    old: Coordinates,
    new: Coordinates,
    kernel: Kernel,
    structure: Structure,
) -> tuple[np.ndarray, np.ndarray]:
    """Return states ``(..., 4 d + 2)`` and their evaluations in other coordinates, at no cost in gradients.

    Velocities are kept: they are standard normal in all coordinates.  Steps that were shortened are whole again.
    """
    d = state.shape[-1] // 4
    out = state.copy()
    u = slice(0, d)
    evaluated = slice(3 * d, 4 * d)
    at_u = old.place(state[..., u])
    at_evaluated = old.place(state[..., evaluated])
    if not structure.is_identity and not _same_sites(old, new):
        x, slope = model_side(at_evaluated, gradient)
        at_u, _ = structure.to_z(structure.to_x(at_u, old.sites), new.sites)
        at_evaluated, log_det = structure.to_z(x, new.sites)
        out[..., 4 * d] += log_det - gradient[..., 3 * d]
        _, of_z = structure.pull_back(at_evaluated, slope, new.sites)
        gradient = with_model_side(of_z, x, slope, log_det)
    out[..., u] = new.whiten(at_u)
    out[..., evaluated] = new.whiten(at_evaluated)
    out[..., 2 * d : 3 * d] = new.pull_back(gradient[..., :d])
    if kernel.dynamics == HARMONIC:
        out[..., 2 * d : 3 * d] += out[..., evaluated]
    if not kernel.adjusted:
        out[..., 4 * d + 1] = 1.0
    return out, gradient


def _same_sites(old: Coordinates, new: Coordinates) -> bool:
    return old.sites is new.sites or np.array_equal(old.sites, new.sites)  # type: ignore[arg-type]
