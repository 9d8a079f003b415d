"""The CPU engine: chains of one method over one log density, in compiled chunks.

A chain's state is one flat array of floats, so that saving, restoring and comparing it is a copy:
``u`` (position), ``v`` (velocity), ``b`` (base drift), ``anchor`` (the last point whose gradient is known, which
is also the draw), all in whitened coordinates (:mod:`pmm_mcmc.coordinates`), then the log density at the anchor and
the factor by which this chain's step is shortened at present.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.loop import SIGNATURE, evaluate, run
from pmm_mcmc.guard import guard_threshold, steepest_curvature
from pmm_mcmc.methods import HARMONIC, Kernel

__all__ = [
    "SIGNATURE",
    "Chunk",
    "Coordinates",
    "NumbaEngine",
    "change_coordinates",
    "empty_state",
]


class Chunk(NamedTuple):
    """What a run of ``n`` draws returns; ``d`` is the number of coordinates.

    Attributes
    ----------
    position, gradient : (n, d)
        Draws, and the gradient of the log density there, in the coordinates of the model.
    state : (n, 4 d + 2)
        The chain's state after each draw.
    lp, accept : (n,)
        Log density at the draw; mean acceptance probability of its transitions (1 where nothing is adjusted).
    n_grad, unstable : (n,)
        Gradients spent for the draw; transitions rejected as not finite or unstable.
    model_failures : (n,)
        Those of them that are the model's failures and not the step's: values that are not finite at a place where
        the energy of the whitened coordinates, ``|y|^2 / 2``, has not run away.
    """

    position: np.ndarray
    gradient: np.ndarray
    state: np.ndarray
    lp: np.ndarray
    accept: np.ndarray
    n_grad: np.ndarray
    unstable: np.ndarray
    model_failures: np.ndarray


class NumbaEngine:
    """Run chains of one method over one log density.

    Parameters
    ----------
    kernel
        The method.
    d
        Number of coordinates.
    joint, gradient
        C functions of :data:`SIGNATURE`: log density with gradient, and gradient alone.
    joint_table, gradient_table
        Functions that return the tables of data to pass to them, read anew for every run.
    """

    def __init__(
        self,
        kernel: Kernel,
        d: int,
        joint: Any,
        gradient: Any,
        joint_table: Callable[[], np.ndarray],
        gradient_table: Callable[[], np.ndarray],
    ):
        self.kernel, self.d = kernel, d
        self._joint, self._gradient = joint, gradient
        self._joint_table, self._gradient_table = joint_table, gradient_table

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the position of ``state`` and make it the anchor, in place; return the gradient ``(d,)``.

        ``state[4 d]``, the log density, is NaN where anything is not finite.  Costs one gradient.
        """
        return evaluate(self._joint, self._joint_table(), self.kernel.dynamics, *_for_loop(coordinates), state)

    def gradient_at(self, position: np.ndarray) -> np.ndarray:
        """Gradient ``(d,)`` at a position of the model's own coordinates; NaN where anything is not finite."""
        d = self.d
        state = empty_state(position, np.zeros(d))
        gradient = self.evaluate(Coordinates(np.zeros(d), np.ones(d)), state)
        return gradient if np.isfinite(state[4 * d]) else np.full(d, np.nan)

    def run(
        self,
        coordinates: Coordinates,
        step_size: float,
        friction: float,
        K: int,
        state: np.ndarray,
        gradient: np.ndarray,
        key: np.ndarray,
        first: int,
        rows: int,
        thin: int,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance a chain by ``rows * thin`` transitions, in place; return a draw after each ``thin`` of them.

        Parameters
        ----------
        coordinates, step_size, friction, K
            The setting, in whitened coordinates.
        state, gradient
            The chain, ``(4 d + 2,)`` and ``(d,)``.
        key, first
            Seed and chain (2 uint64) and the number of the first transition: what the randomness depends on.
        rows, thin
            Draws, and transitions for each.
        tolerance
            Share of the kinetic energies by which the energy may rise in a step beyond the guard's threshold: for
            chains on their way down from far out, where errors of the step are small only relative to it.
        """
        d = self.d
        out = Chunk(
            np.empty((rows, d)),
            np.empty((rows, d)),
            np.empty((rows, 4 * d + 2)),
            np.empty(rows),
            np.empty(rows),
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
        )
        run(
            self._joint,
            self._joint_table(),
            self._gradient,
            self._gradient_table(),
            self.kernel,
            step_size,
            friction,
            K,
            guard_threshold(self.kernel, step_size, friction, K, d),
            steepest_curvature(self.kernel, step_size, friction, K),
            tolerance,
            _for_loop(coordinates),
            gradient,
            state,
            key,
            first,
            thin,
            out,
        )
        return out


def _for_loop(coordinates: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of one type for every kind of scale, so that the loop is compiled once."""
    return coordinates.centre, np.ascontiguousarray(np.atleast_2d(coordinates.scale))


def empty_state(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """State of a chain at position ``u`` with velocity ``v``, not evaluated yet."""
    d = len(u)
    state = np.zeros(4 * d + 2)
    state[:d], state[d : 2 * d], state[4 * d + 1] = u, v, 1.0
    return state


def change_coordinates(
    state: np.ndarray, gradient: np.ndarray, old: Coordinates, new: Coordinates, kernel: Kernel
) -> np.ndarray:
    """Express a state in other coordinates; the velocity, standard normal in any, is kept.  Costs no gradient."""
    d = len(gradient)
    out = state.copy()
    for part in (slice(0, d), slice(3 * d, 4 * d)):
        out[part] = new.whiten(old.place(state[part]))
    out[2 * d : 3 * d] = new.pull_back(gradient)
    if kernel.dynamics == HARMONIC:
        out[2 * d : 3 * d] += out[3 * d : 4 * d]
    return out
