"""What every engine takes and returns: settings, states, chunks of draws.

A chain's state is one flat array of floats, so that saving, restoring and comparing it is a copy:
``u`` (position), ``v`` (velocity), ``b`` (base drift), ``evaluated`` (the last point whose gradient is known, which
is also the draw), all in whitened coordinates (:mod:`pmm_mcmc.coordinates.affine`), then the log density there, up to
the affine map's constant, and the factor by which this chain's step is shortened at present.

Beside the state stands what the density said at that point, ``(width,)``: the gradient with respect to ``z``, the
coordinates in which chains move, and, where these are not the model's own, also the model's position ``x``, the
gradient with respect to it, and the log determinant of ``x`` by ``z``; ``width`` is ``d`` or ``3 d + 1``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.settings import TunedParameters
from pmm_mcmc.langevin.methods import HARMONIC, Kernel

__all__ = ["Chunk", "Engine", "change_coordinates", "empty_state", "model_side", "with_model_side"]


class Chunk(NamedTuple):
    """What a run of ``n`` draws returns; ``d`` is the number of coordinates, and many chains are a leading axis.

    Attributes
    ----------
    position, gradient : (n, d), (n, width)
        Draws ``z``, and what the density said there.
    lp, accept : (n,)
        Log density of the model at the draw; mean acceptance probability of its transitions (1 where nothing is
        adjusted).
    n_grad : (n,)
        Gradients spent for the draw.
    unstable, refined : (n,)
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
    refined: np.ndarray
    model_failures: np.ndarray
    state: np.ndarray

    @property
    def model_position(self) -> np.ndarray:
        """The draws in the model's coordinates."""
        return model_side(self.position, self.gradient)[0]

    @property
    def sampled_lp(self) -> np.ndarray:
        """The log density of ``z`` at the draws."""
        d = self.position.shape[-1]
        return self.lp if self.gradient.shape[-1] == d else self.lp + self.gradient[..., 3 * d]

    @classmethod
    def empty(cls, shape: tuple[int, ...], d: int, width: int, states: int = 0) -> Chunk:
        """Return arrays to be filled, of ``shape`` ``(n,)`` or ``(chain, n)``."""
        position, gradient = np.empty((*shape, d)), np.empty((*shape, width))
        n_grad, unstable, refined, model_failures = (np.empty(shape, np.int64) for _ in range(4))
        state = np.empty((*shape[:-1], states, 4 * d + 2))
        lp, accept = np.empty(shape), np.empty(shape)
        return cls(position, gradient, lp, accept, n_grad, unstable, refined, model_failures, state)


class Engine(Protocol):
    """Chains of one method over one log density."""

    kernel: Kernel
    d: int
    structure: Structure | None

    def gradient_at(self, position: np.ndarray, sites: np.ndarray | None = None) -> np.ndarray:
        """Gradients at positions ``z`` ``(..., d)``, under some sites; NaN where anything is not finite."""

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)`` and make them the evaluated points, in place.

        Returns what the density said there, ``(..., width)``; a log density in the state is NaN where anything is not
        finite.  Costs one gradient a chain.
        """

    def advance(
        self,
        setting: TunedParameters,
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
            The chains, ``(chain, 4 d + 2)``, and what the density said at their evaluated points, ``(chain, width)``.
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


def model_side(z: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the model's positions and gradients ``(..., d)`` from what the density said at ``z``."""
    d = z.shape[-1]
    return (z, said) if said.shape[-1] == d else (said[..., d : 2 * d], said[..., 2 * d : 3 * d])


def with_model_side(slope: np.ndarray, x: np.ndarray, gradient: np.ndarray, log_det: np.ndarray) -> np.ndarray:
    """Return what the density says where ``x`` is not ``z``: see the top of this module."""
    return np.concatenate([slope, x, gradient, log_det[..., None]], axis=-1)


def change_coordinates(
    state: np.ndarray,
    gradient: np.ndarray,
    old: Coordinates,
    new: Coordinates,
    kernel: Kernel,
    structure: Structure | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Express states ``(..., 4 d + 2)``, and what the density said at their evaluated points, in other coordinates.

    Velocities, standard normal in any, are kept.  Costs no gradient.
    """
    d = state.shape[-1] // 4
    out = state.copy()
    u, evaluated = slice(0, d), slice(3 * d, 4 * d)
    at_u, at_evaluated = old.place(state[..., u]), old.place(state[..., evaluated])
    if structure is not None and not _same_sites(old, new):
        assert old.sites is not None and new.sites is not None
        x, slope = model_side(at_evaluated, gradient)
        at_u, _ = structure.to_z(structure.to_x(at_u, old.sites), new.sites)
        at_evaluated, log_det = structure.to_z(x, new.sites)
        out[..., 4 * d] += log_det - gradient[..., 3 * d]
        _, of_z = structure.pull_back(at_evaluated, slope, new.sites)
        gradient = with_model_side(of_z, x, slope, log_det)
    out[..., u], out[..., evaluated] = new.whiten(at_u), new.whiten(at_evaluated)
    out[..., 2 * d : 3 * d] = new.pull_back(gradient[..., :d])
    if kernel.dynamics == HARMONIC:
        out[..., 2 * d : 3 * d] += out[..., evaluated]
    return out, gradient


def _same_sites(old: Coordinates, new: Coordinates) -> bool:
    return old.sites is new.sites or np.array_equal(old.sites, new.sites)  # type: ignore[arg-type]
