r"""The path from a reference to the target: moves of chains at one temperature, swaps, and the communication barrier.

The path from a reference ``q`` to a target ``gamma`` is :math:`\pi_\beta \propto q^{1-\beta} \gamma^\beta = q\,
e^{\beta l}` with :math:`l = \log\gamma - \log q`.  Chains at neighbouring temperatures swap by turns, even pairs and
odd pairs [1]_.  On fine ladders the sum over pairs of the rejections :math:`r_i` is the barrier

.. math:: \Lambda = \int_0^1 \tfrac12 E|l - l'|\,d\beta

for independent :math:`l, l'` at one temperature, and the best ladder rejects all pairs equally often.  On coarse ones a
pair's barrier is :math:`\Lambda_i = (2 / \sqrt\pi)\,\mathrm{erf}^{-1}(r_i)`, which is exact for normal ``l`` of one
variance.

.. [1] S. Syed, A. Bouchard-Cote, G. Deligiannidis and A. Doucet, "Non-reversible parallel tempering: a scalable highly
   parallel MCMC scheme", JRSS B 84 (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import erfinv

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Engine, Ensemble, TunedParameters, chains_of, empty_state, evaluated_at
from pmm_mcmc.model.tempered import GaussianMixture, path_numbers
from pmm_mcmc.warmup.ascent import Density

# A pair that rejects every swap has an infinite barrier, which no ladder could divide.
_MOST_REJECTED = 0.9999


def swap_log_ratio(betas: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """Return the log acceptance ratio ``(..., N)`` of swaps of neighbours, from ``l`` ``(..., N + 1)`` at each level.

    A reference may be drawn where the target's density is 0: there ``l`` is minus infinity, and nothing is swapped.
    """
    next_log_ratio = np.where(np.isfinite(log_ratio[..., 1:]), log_ratio[..., 1:], 0.0)
    return np.where(np.isfinite(log_ratio[..., 1:]), np.diff(betas) * (log_ratio[..., :-1] - next_log_ratio), 0.0)


def expected_rejections(betas: np.ndarray, log_ratio: list[np.ndarray]) -> np.ndarray:
    """Return the rejection ``(N,)`` of each pair of neighbours from independent values of ``l`` at each level."""
    out = np.empty(len(betas) - 1)
    for i, change in enumerate(np.diff(betas)):
        apart = change * (log_ratio[i][:, None] - log_ratio[i + 1][None, :])
        out[i] = 1.0 - np.exp(np.minimum(apart, 0.0)).mean()
    return out


def barriers(rejections: np.ndarray) -> np.ndarray:
    """Return the barrier between the neighbours of each pair."""
    return np.asarray(2.0 / math.sqrt(math.pi) * erfinv(np.clip(rejections, 0.0, _MOST_REJECTED)))


def equal_rejection(betas: np.ndarray, rejections: np.ndarray, pairs: int) -> np.ndarray:
    """Return the ladder ``(pairs + 1,)`` whose pairs are rejected equally often, by the barrier of another ladder."""
    # A pair that is never rejected still has a length: the barrier's inverse must be a function.
    lengths = barriers(rejections)
    lengths = np.maximum(lengths, 1e-6 * max(float(lengths.sum()), 1.0) * np.diff(betas))
    barrier = np.concatenate([[0.0], np.cumsum(lengths)])
    ladder = np.asarray(PchipInterpolator(barrier, betas)(np.linspace(0.0, barrier[-1], pairs + 1)))
    ladder[0] = 0.0
    ladder[-1] = 1.0
    return ladder


def pairs_for(barrier: float) -> int:
    """Return the number of pairs with which half of the swaps are accepted, two at least."""
    return max(2, math.ceil(2.0 * barrier))


def step_of_ess(log_ratio: np.ndarray, largest: float, share: float) -> float:
    """Return the largest step of temperature, up to ``largest``, that keeps an effective sample size.

    It is that of particles with weights ``exp(step l)``, as a ``share`` of their number; ``log_ratio`` ``(n,)`` are
    their values of ``l``.
    """

    def effective(step: float) -> float:
        weights = np.exp(step * (log_ratio - log_ratio.max()))
        return float(weights.sum() ** 2 / (weights**2).sum()) / len(weights)

    if effective(largest) >= share:
        return largest
    low = 0.0
    high = largest
    for _ in range(100):
        middle = 0.5 * (low + high) if low > 0.0 else high / 16.0
        low, high = (middle, high) if effective(middle) >= share else (low, middle)
        if low > 0.0 and high - low < 1e-3 * high:
            break
    return low if low > 0.0 else high


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

    def take(self, indices: np.ndarray | slice | tuple[slice, int]) -> Points:
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
