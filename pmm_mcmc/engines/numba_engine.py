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
from pmm_mcmc.methods import HARMONIC, Kernel, Scheme

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
    repeated : (n,)
        Those of them that failed again at a quarter of the step: the model fails there, not the step.
    n_probe : (n,)
        Gradients spent to find that out.
    """

    position: np.ndarray
    gradient: np.ndarray
    state: np.ndarray
    lp: np.ndarray
    accept: np.ndarray
    n_grad: np.ndarray
    unstable: np.ndarray
    repeated: np.ndarray
    n_probe: np.ndarray


# A rejected transition is tried again over four times the time of a step at a quarter of its length, with noise of its
# own: a model that is not finite in a region is met there again more often than not, a step that is too large is not.
_SHORTER, _AGAIN = 0.25, 16
# So many rejections of a draw are looked into; the rest count like the last of them.
_LOOKED_INTO = 3
_OTHER_NOISE = np.array([0x9E3779B97F4A7C15, 0], np.uint64)


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
        setting = (coordinates, step_size, friction, K)
        before = state.copy(), gradient.copy()
        out = self._run(setting, state, gradient, key, first, rows, thin, tolerance)
        if self.kernel.scheme != Scheme.MALA:
            for row in np.flatnonzero(out.unstable):
                start = (out.state[row - 1], out.gradient[row - 1]) if row else before
                self._look_into(setting, start, key, first + int(row) * thin, thin, tolerance, out, int(row))
        return out

    def _look_into(
        self,
        setting: tuple[Coordinates, float, float, int],
        start: tuple[np.ndarray, np.ndarray],
        key: np.ndarray,
        first: int,
        thin: int,
        tolerance: float,
        out: Chunk,
        row: int,
    ) -> None:
        """Find out which of a draw's rejected transitions fail at a shorter step too."""
        state, gradient = start[0].copy(), start[1].copy()
        coordinates, step_size, friction, K = setting
        looked_into, again = 0, False
        for transition in range(first, first + thin):
            here, gradient_here = state.copy(), gradient.copy()
            if thin > 1:
                one = self._run(setting, state, gradient, key, transition, 1, 1, tolerance)
                out.n_probe[row] += one.n_grad[0]
                if not one.unstable[0]:
                    continue
            if looked_into < _LOOKED_INTO:
                looked_into += 1
                again = bool(here[4 * self.d + 1] <= _SHORTER)  # this chain's step is that short at present
                if not again:
                    shorter = (coordinates, _SHORTER * step_size, friction, K)
                    noise = key ^ _OTHER_NOISE
                    more = self._run(shorter, here, gradient_here, noise, transition, 1, _AGAIN, tolerance)
                    out.n_probe[row] += more.n_grad[0]
                    again = bool(more.unstable[0] > 0)
            out.repeated[row] += again

    def _run(
        self,
        setting: tuple[Coordinates, float, float, int],
        state: np.ndarray,
        gradient: np.ndarray,
        key: np.ndarray,
        first: int,
        rows: int,
        thin: int,
        tolerance: float,
    ) -> Chunk:
        d = self.d
        coordinates, step_size, friction, K = setting
        out = Chunk(
            np.empty((rows, d)),
            np.empty((rows, d)),
            np.empty((rows, 4 * d + 2)),
            np.empty(rows),
            np.empty(rows),
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
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
            out[:7],
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
