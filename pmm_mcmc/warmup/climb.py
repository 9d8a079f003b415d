"""Many climbs to local maxima of a log density at the same time, in whitened coordinates: L-BFGS in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["Climbers", "Value", "along_coordinates"]

Value = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Pairs of steps and differences of gradients that each climber remembers.
_MEMORY = 8
# Gain that the next step promises, in nats, below which a climber has arrived: it is within 0.2 local sds of the top.
_ARRIVED = 0.02
# Length of the first step over that of the longest later one: the basin of a mode a fifth as wide has that radius.
_FIRST = 0.2
# Share of the promised gain that a step must bring.
_ARMIJO = 1e-3


@dataclass
class Climbers:
    """Climbers towards local maxima, each with its own memory.

    Attributes
    ----------
    position, gradient : (n, d)
    lp : (n,)
        Where the climbers are, and the log density with its gradient there.
    arrived : (n,)
        Whether each is at a maximum, to a small part of a local standard deviation.
    scale : (n,)
        A variance there, of the last step's direction.
    spent : int
        Gradients spent by all.
    """

    position: np.ndarray
    lp: np.ndarray
    gradient: np.ndarray
    arrived: np.ndarray
    scale: np.ndarray
    spent: int

    @classmethod
    def climb(cls, value: Value, start: np.ndarray, home: np.ndarray, limit: int) -> Climbers:
        """Climb from positions ``(n, d)`` until all have arrived, or ``limit`` gradients are spent.

        ``value`` returns log densities ``(n,)`` and gradients ``(n, d)``, NaN where they are not finite.  A climber
        whose start is not finite begins nearer to ``home`` ``(d,)``.  No step is longer than 1 plus half the distance
        from home, and the first, before any curvature is estimated, at most a fifth of that: a climber stays in the
        basin in which it begins.
        """
        self = cls._begin(value, np.array(start), home, limit)
        n, d = self.position.shape
        steps = np.zeros((n, _MEMORY, d))
        changes = np.zeros((n, _MEMORY, d))
        weights = np.zeros((n, _MEMORY))
        scale = self.scale
        going = np.isfinite(self.lp)
        step = np.zeros((n, d))
        share = np.ones(n)
        fresh = going.copy()  # climbers that need a direction
        while going.any():
            i = np.flatnonzero(going & fresh)
            if i.size:
                step[i] = _direction(self.gradient[i], steps[i], changes[i], weights[i], scale[i])
                self.arrived[i] = 0.5 * (self.gradient[i] * step[i]).sum(axis=1) < _ARRIVED
                going[i[self.arrived[i]]] = False
                longest = 1.0 + 0.5 * np.linalg.norm(self.position[i] - home, axis=1)
                longest[~steps[i].any(axis=(1, 2))] *= _FIRST
                share[i] = np.minimum(1.0, longest / np.maximum(np.linalg.norm(step[i], axis=1), 1e-300))
            i = np.flatnonzero(going)
            if not i.size or self.spent + i.size > limit:
                break
            tried = self.position[i] + share[i, None] * step[i]
            lp, gradient = value(tried)
            self.spent += i.size
            gain = share[i] * (self.gradient[i] * step[i]).sum(axis=1)
            # The next trial is the top of the parabola through both ends and the first slope, neither near nor far.
            with np.errstate(all="ignore"):
                good = np.isfinite(lp) & (lp - self.lp[i] >= _ARMIJO * gain)
                top = 0.5 * gain / (gain - (lp - self.lp[i]))
            shorter = share[i] * np.clip(np.nan_to_num(top, nan=0.1, posinf=0.5, neginf=0.1), 0.1, 0.5)
            fresh[i] = good
            share[i] = np.where(good, share[i], shorter)
            going[i[~good & (shorter < 1e-8)]] = False
            won = i[good]
            s = tried[good] - self.position[won]
            y = self.gradient[won] - gradient[good]
            curved = (s * y).sum(axis=1)
            convex = curved > 1e-6 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                weight = np.where(convex, 1.0 / curved, 0.0)
                scale[won] = np.where(convex, curved / (y**2).sum(axis=1), 4.0 * scale[won])
            for array, newest in ((steps, s), (changes, y), (weights, weight)):
                array[won] = np.concatenate([array[won, 1:], newest[:, None]], axis=1)
            weights[won[~convex]] = 0.0
            self.position[won] = tried[good]
            self.lp[won] = lp[good]
            self.gradient[won] = gradient[good]
        return self

    @classmethod
    def _begin(cls, value: Value, start: np.ndarray, home: np.ndarray, limit: int) -> Climbers:
        n, d = start.shape
        lp = np.full(n, np.nan)
        gradient = np.zeros((n, d))
        evaluations = 0
        missing = np.arange(n)
        while missing.size and evaluations + missing.size <= min(4 * n, limit):
            lp[missing], gradient[missing] = value(start[missing])
            evaluations += missing.size
            missing = missing[~np.isfinite(lp[missing])]
            start[missing] = home + 0.5 * (start[missing] - home)
        lp[missing] = np.nan
        return cls(start, lp, gradient, np.zeros(n, bool), np.ones(n), evaluations)


def along_coordinates(coordinates: Coordinates, limit: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to ``limit`` places on both sides of 0 along coordinates, at distances that grow evenly.

    The coordinates are the model's, the places ``(n, d)`` whitened.
    """
    steps = int(np.log(THRESHOLDS.furthest / THRESHOLDS.nearest) / np.log(THRESHOLDS.spacing))
    sides = rng.permutation(2 * d)[: limit // steps]
    axes = np.zeros((len(sides), d))
    axes[np.arange(len(sides)), sides // 2] = 1 - 2 * (sides % 2)
    axes = coordinates._replace(centre=np.zeros(d)).whiten(axes)
    lengths = np.linalg.norm(axes, axis=1, keepdims=True)
    has_length = lengths[:, 0] > 0.0  # scales may be beyond what a double holds
    axes = axes[has_length] / lengths[has_length]
    distances = THRESHOLDS.nearest * THRESHOLDS.spacing ** (np.arange(steps) + rng.uniform(size=(len(axes), 1)))
    return np.asarray(distances[:, :, None] * axes[:, None, :]).reshape(-1, d)


def _direction(
    gradient: np.ndarray, steps: np.ndarray, changes: np.ndarray, weights: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return the directions of L-BFGS by its two loops, for all climbers at once."""
    q = gradient.copy()
    alpha = np.zeros(weights.shape)
    for i in reversed(range(_MEMORY)):
        alpha[:, i] = weights[:, i] * (steps[:, i] * q).sum(axis=1)
        q -= alpha[:, i, None] * changes[:, i]
    q *= scale[:, None]
    for i in range(_MEMORY):
        beta = weights[:, i] * (changes[:, i] * q).sum(axis=1)
        q += (alpha[:, i] - beta)[:, None] * steps[:, i]
    return q
