"""What every engine takes and returns: settings, states, chunks of draws.

A chain's state is one flat array of floats, so that saving, restoring and comparing it is a copy:
``u`` (position), ``v`` (velocity), ``b`` (base drift), ``anchor`` (the last point whose gradient is known, which
is also the draw), all in whitened coordinates (:mod:`pmm_mcmc.coordinates`), then the log density of the anchor in
them, up to the affine map's constant, and the factor by which this chain's step is shortened at present.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.methods import HARMONIC, Kernel

__all__ = ["Chunk", "Engine", "Setting", "change_coordinates", "empty_state"]


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


class Chunk(NamedTuple):
    """What a run of ``n`` draws returns; ``d`` is the number of coordinates, and many chains are a leading axis.

    Attributes
    ----------
    position, gradient : (n, d)
        Draws, and the gradient of the log density there, in the coordinates of the model.
    lp, accept : (n,)
        Log density at the draw; mean acceptance probability of its transitions (1 where nothing is adjusted).
    n_grad : (n,)
        Gradients spent for the draw.
    unstable, redone : (n,)
        Transitions rejected as not finite or unstable even in parts; those that were taken in parts.
    model_failures : (n,)
        Those of the unstable ones that are the model's failures and not the step's: values that are not finite at a
        place where the energy of the whitened coordinates, ``|y|^2 / 2``, has not run away.
    state : (n, 4 d + 2)
        The chain's state after each draw; of no rows where many chains advance together.
    """

    position: np.ndarray
    gradient: np.ndarray
    lp: np.ndarray
    accept: np.ndarray
    n_grad: np.ndarray
    unstable: np.ndarray
    redone: np.ndarray
    model_failures: np.ndarray
    state: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...], d: int, states: int = 0) -> Chunk:
        """Return arrays to be filled, of ``shape`` ``(n,)`` or ``(chain, n)``."""
        position, gradient = np.empty((*shape, d)), np.empty((*shape, d))
        n_grad, unstable, redone, model_failures = (np.empty(shape, np.int64) for _ in range(4))
        state = np.empty((*shape[:-1], states, 4 * d + 2))
        lp, accept = np.empty(shape), np.empty(shape)
        return cls(position, gradient, lp, accept, n_grad, unstable, redone, model_failures, state)


class Engine(Protocol):
    """Chains of one method over one log density."""

    kernel: Kernel
    d: int

    def gradient_at(self, position: np.ndarray) -> np.ndarray:
        """Gradients at positions ``(..., d)`` of the model's own coordinates; NaN where anything is not finite."""

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)`` and make them the anchors, in place.

        Returns the gradients ``(..., d)``; a log density in the state is NaN where anything is not finite.  Costs one
        gradient a chain.
        """

    def advance(
        self,
        setting: Setting,
        state: np.ndarray,
        gradient: np.ndarray,
        keys: np.ndarray,
        first: int,
        rows: int,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance chains by ``rows * thin`` transitions, in place; return a draw of each after each ``thin`` of them.

        Parameters
        ----------
        setting
            Step size, friction, K and coordinates.
        state, gradient
            The chains, ``(chain, 4 d + 2)`` and ``(chain, d)``.
        keys, first
            Seed and chain, ``(chain, 2)`` uint64, and the number of the first transition: what randomness depends on.
        rows, thin
            Draws, and transitions for each.
        tolerance
            Share of the kinetic energies by which the energy may rise in a step beyond the guard's threshold: for
            chains on their way down from far out, where errors of the step are small only relative to it.
        """


def empty_state(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """States of chains at positions ``u`` ``(..., d)`` with velocities ``v``, not evaluated yet."""
    d = u.shape[-1]
    state = np.zeros((*u.shape[:-1], 4 * d + 2))
    state[..., :d], state[..., d : 2 * d], state[..., 4 * d + 1] = u, v, 1.0
    return state


def change_coordinates(
    state: np.ndarray, gradient: np.ndarray, old: Coordinates, new: Coordinates, kernel: Kernel
) -> np.ndarray:
    """Express states ``(..., 4 d + 2)`` in other coordinates.

    Velocities, standard normal in any, are kept.  Costs no gradient.
    """
    d = gradient.shape[-1]
    out = state.copy()
    anchor = slice(3 * d, 4 * d)
    for part in (slice(0, d), anchor):
        out[..., part] = new.whiten(old.place(state[..., part]))
    out[..., 2 * d : 3 * d] = new.pull_back(gradient, out[..., anchor])
    if old.funnels is not None or new.funnels is not None:
        out[..., 4 * d] += new.log_det(out[..., anchor]) - old.log_det(state[..., anchor])
    if kernel.dynamics == HARMONIC:
        out[..., 2 * d : 3 * d] += out[..., 3 * d : 4 * d]
    return out
