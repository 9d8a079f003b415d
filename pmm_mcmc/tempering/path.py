"""The path from a reference to the target, and moves of chains at one temperature on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Engine, Ensemble, TunedParameters, chains_of, empty_state, evaluated_at
from pmm_mcmc.model.tempered import GaussianMixture, path_numbers
from pmm_mcmc.warmup.ascent import Density

__all__ = ["MOST_TRANSITIONS", "Moved", "Points", "TemperingPath"]


class Points(NamedTuple):
    """Positions ``(n, d)``, and evaluations ``(n, 3 d + 2)`` there.

    Columns of an evaluation are the gradient at the temperature in use, the gradient of the reference and that of the
    log ratio, ``d`` each; then the log ratio itself and the log density of the reference.
    """

    position: np.ndarray
    evaluation: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Points], join: Callable[..., np.ndarray] = np.concatenate) -> Points:
        """Return several sets of points as one, one after the other, or along a new first axis by ``np.stack``."""
        return cls(*(join(arrays) for arrays in zip(*parts, strict=True)))

    @property
    def log_ratio(self) -> np.ndarray:
        """The log density of the target minus that of the reference."""
        return self.evaluation[:, -2]

    @property
    def lp(self) -> np.ndarray:
        """The log density of the target."""
        return self.evaluation[..., -2] + self.evaluation[..., -1]

    def slope(self, beta: float) -> np.ndarray:
        """Return the gradients of the log density at an inverse temperature."""
        d = self.position.shape[-1]
        return self.evaluation[..., d : 2 * d] + beta * self.evaluation[..., 2 * d : 3 * d]

    def take(self, indices: Any) -> Points:
        """Return copies of some of the points."""
        return Points(self.position[indices].copy(), self.evaluation[indices].copy())


# Transitions of a move at most.
MOST_TRANSITIONS = 64


class Moved(NamedTuple):
    """Points after some moves, with gradients spent, mean acceptance and divergences of each."""

    points: Points
    n_grad: np.ndarray
    accept: np.ndarray
    unstable: np.ndarray


class TemperingPath:
    """A path of densities, with the engine of adjusted draws that moves chains on it.

    ``prior`` is a function of a key and a number that draws from the prior; None where it is not known.
    """

    def __init__(self, engine: Engine, prior: Callable[[Sequence[int], int], np.ndarray] | None):
        self.engine = engine
        self.d = engine.d
        self._prior = prior
        self._mixture: GaussianMixture | None = None
        self._numbers = path_numbers(0.0, None, self.d)

    @property
    def has_prior(self) -> bool:
        """Whether there is a prior to draw from."""
        return self._prior is not None

    @property
    def mixture(self) -> GaussianMixture | None:
        """The reference; None where it is the prior."""
        return self._mixture

    @mixture.setter
    def mixture(self, mixture: GaussianMixture | None) -> None:
        self._mixture = mixture
        self._numbers = path_numbers(0.0, mixture, self.d)

    def parameters_at(self, beta: float) -> np.ndarray:
        """Return ``beta`` and the parameters of the reference, as the engine takes them."""
        numbers = self._numbers.copy()
        numbers[0] = beta
        return numbers

    def draw(self, key: Sequence[int], n: int) -> Points:
        """Return independent draws of the reference; ``log_ratio`` is minus infinity where the target is 0."""
        if self._mixture is not None:
            return self.evaluate(self._mixture.draw(n, np.random.default_rng(list(key))))
        assert self._prior is not None
        return self.evaluate(self._prior(key, n))

    def evaluate(self, position: np.ndarray) -> Points:
        """Return positions with their evaluations; each costs one gradient."""
        lp, evaluation = evaluated_at(self.engine.evaluate, position, self.parameters_at(0.0))
        bad = ~(np.isfinite(lp) & np.isfinite(evaluation).all(axis=1))
        evaluation[bad, -2] = -np.inf
        return Points(position, evaluation)

    def whitened_density(self, coordinates: Coordinates) -> Density:
        """Return the function of the target's log densities and gradients at whitened positions."""
        d = self.d

        def density(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with np.errstate(all="ignore"):
                points = self.evaluate(coordinates.place(y))
                gradient = coordinates.pull_back(points.evaluation[:, d : 2 * d] + points.evaluation[:, 2 * d : 3 * d])
            return np.where(np.isfinite(points.lp), points.lp, np.nan), gradient

        return density

    def move(self, setting: TunedParameters, points: Points, keys: np.ndarray, start: int, moves: int) -> Moved:
        """Make so many moves of each point at the temperature of a setting, of ``K`` transitions from rest each.

        ``start`` is the number of moves that the keys have been used for.
        """
        d = self.d
        beta = float(setting.coordinates.density_parameters[0])  # type: ignore[index]
        coordinates = setting.coordinates
        u = coordinates.whiten(points.position)
        state = empty_state(u, np.zeros(d))
        evaluation = points.evaluation.copy()
        evaluation[:, :d] = points.slope(beta)
        chains = chains_of(state)
        chains.b[:] = coordinates.pull_back(evaluation[:, :d]) + u
        chains.evaluated[:] = u
        chains.lp[:, 0] = evaluation[:, -1] + beta * evaluation[:, -2]
        ensemble = Ensemble(state, evaluation, keys, start * MOST_TRANSITIONS)
        chunk = self.engine.advance(setting, ensemble, 1, thin=moves * setting.K)
        moved = Points(chunk.position[:, 0].copy(), evaluation)
        return Moved(moved, chunk.n_grad[:, 0], chunk.accept[:, 0], chunk.unstable[:, 0])
