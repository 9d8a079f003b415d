"""The friction of a run: 1 in whitened coordinates, unless directions that mix slowly are faster with a smaller one.

A smaller friction carries a chain further along wide directions before its velocity is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.scale import MOST_DENSE
from pmm_mcmc.langevin.methods import Kernel
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = [
    "DEFAULT_FRICTION", "FRICTIONS", "FrictionTrial", "adjusted_friction", "default_friction", "largest_spread",
    "slow_jumps",
]  # fmt: skip

FRICTIONS = (1.0, 0.5, 0.25)
DEFAULT_FRICTION = FRICTIONS[0]


def adjusted_friction(step: float) -> float:
    """Return the friction of adjusted draws over that of the warm-up."""
    return THRESHOLDS.adjusted_friction * (1.0 + 0.5 * step)


def default_friction(kernel: Kernel, step: float) -> float:
    """Return the friction of a method where nothing is slow: in whitened coordinates 1, of adjusted ones less."""
    return adjusted_friction(step) if kernel.adjusted else DEFAULT_FRICTION


def _spreads(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return variances of whitened draws ``(n, d)`` along principal directions, largest first, and these as columns."""
    n, d = position.shape
    centred = position - position.mean(axis=0)
    if d > min(MOST_DENSE, n // 2):
        variance = (centred**2).mean(axis=0)
        order = np.argsort(-variance)
        axes = np.zeros((d, min(d, 10)))
        axes[order[:10], np.arange(axes.shape[1])] = 1.0
        return variance[order], axes
    values, vectors = np.linalg.eigh(centred.T @ centred / n)
    # The largest of n independent draws of a unit Gaussian is about (1 + sqrt(d/n))^2 (Marchenko and Pastur).
    return values[::-1] / (1.0 + np.sqrt(d / n)) ** 2, vectors[:, ::-1]


def largest_spread(position: np.ndarray) -> float:
    """Return the largest standard deviation of whitened draws ``(n, d)`` along a principal direction."""
    return float(np.sqrt(_spreads(position)[0][0]))


def slow_jumps(position: np.ndarray, window: np.ndarray) -> float:
    """Return the mean squared jump over 15 transitions along the slowest directions, over their variances.

    The jumps are those of whitened draws ``(chain, n, d)`` at one friction.  Slow directions are those in which the
    ``window`` ``(m, d)`` of whitened draws has at least half the largest variance, at most 5.
    """
    variance, vectors = _spreads(window)
    slow = max(1, min(int((variance >= 0.5 * variance[0]).sum()), 5, vectors.shape[1]))
    lag = min(THRESHOLDS.jump_lag, position.shape[1] - 1)
    projections = position @ vectors[:, :slow]
    jumps = ((projections[:, lag:] - projections[:, :-lag]) ** 2).mean(axis=(0, 1))
    return float(np.mean(jumps / variance[:slow]))


@dataclass
class FrictionTrial:
    """A trial of one friction after the other, from the default down; the one with the largest jumps is the best.

    The jumps are :func:`slow_jumps`, along the slow directions of a ``window`` ``(m, d)`` of whitened draws.
    """

    window: np.ndarray
    _scores: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether all frictions have been tried."""
        return len(self._scores) == len(FRICTIONS)

    @property
    def next(self) -> float:
        """The friction to try next."""
        return FRICTIONS[len(self._scores)]

    @property
    def best(self) -> float:
        """The best friction tried so far; the default has a bonus of a tenth."""
        return FRICTIONS[int(np.argmax(self._scores))] if self._scores else DEFAULT_FRICTION

    def record(self, position: np.ndarray, stable: bool) -> None:
        """Score the present friction by its whitened draws ``(chain, n, d)``; one that is not ``stable`` scores 0."""
        bonus = THRESHOLDS.default_bonus if self.next == DEFAULT_FRICTION else 1.0
        self._scores.append(bonus * slow_jumps(position, self.window) if stable else 0.0)
