"""Many climbs to local maxima of a log density at the same time, in whitened coordinates: L-BFGS in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Climbers", "Value"]

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
    def climb(cls, value: Value, start: np.ndarray, home: np.ndarray, most: int) -> Climbers:
        """Climb from positions ``(n, d)`` until all have arrived, or ``most`` gradients are spent.

        ``value`` returns log densities ``(n,)`` and gradients ``(n, d)``, NaN where they are not finite.  A climber
        whose start is not finite begins nearer to ``home`` ``(d,)``.  No step is longer than 1 plus half the distance
        from home, and the first, which knows of no curvature, at most a fifth of that: a climber stays in the basin in
        which it begins.
        """
        self = cls._begin(value, np.array(start), home, most)
        n, d = self.position.shape
        steps, changes, weights = np.zeros((n, _MEMORY, d)), np.zeros((n, _MEMORY, d)), np.zeros((n, _MEMORY))
        scale, going = self.scale, np.isfinite(self.lp)
        step, share = np.zeros((n, d)), np.ones(n)
        fresh = going.copy()  # climbers that need a direction
        while going.any():
            at = np.flatnonzero(going & fresh)
            if at.size:
                step[at] = _direction(self.gradient[at], steps[at], changes[at], weights[at], scale[at])
                promised = (self.gradient[at] * step[at]).sum(axis=1)
                self.arrived[at] = 0.5 * promised < _ARRIVED
                going[at[self.arrived[at]]] = False
                longest = 1.0 + 0.5 * np.linalg.norm(self.position[at] - home, axis=1)
                longest[~steps[at].any(axis=(1, 2))] *= _FIRST
                share[at] = np.minimum(1.0, longest / np.maximum(np.linalg.norm(step[at], axis=1), 1e-300))
            at = np.flatnonzero(going)
            if not at.size or self.spent + at.size > most:
                break
            tried = self.position[at] + share[at, None] * step[at]
            lp, gradient = value(tried)
            self.spent += at.size
            gain = share[at] * (self.gradient[at] * step[at]).sum(axis=1)
            with np.errstate(invalid="ignore"):
                good = np.isfinite(lp) & (lp - self.lp[at] >= _ARMIJO * gain)
            # Where the parabola through both ends and the first slope has its top, but neither near nor far.
            with np.errstate(all="ignore"):
                top = 0.5 * gain / (gain - (lp - self.lp[at]))
            shorter = share[at] * np.clip(np.nan_to_num(top, nan=0.1, posinf=0.5, neginf=0.1), 0.1, 0.5)
            fresh[at], share[at] = good, np.where(good, share[at], shorter)
            going[at[~good & (shorter < 1e-8)]] = False
            won, new = at[good], gradient[good]
            s, y = tried[good] - self.position[won], self.gradient[won] - new
            curved = (s * y).sum(axis=1)
            convex = curved > 1e-6 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
            for array, newest in ((steps, s), (changes, y)):
                array[won] = np.concatenate([array[won, 1:], newest[:, None]], axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                weight = np.where(convex, 1.0 / curved, 0.0)
                longer = np.where(convex, curved / (y**2).sum(axis=1), 4.0 * scale[won])
            weights[won] = np.concatenate([weights[won, 1:], weight[:, None]], axis=1)
            weights[won[~convex]] = 0.0
            scale[won] = longer
            self.position[won], self.lp[won], self.gradient[won] = tried[good], lp[good], new
        return self

    @classmethod
    def _begin(cls, value: Value, start: np.ndarray, home: np.ndarray, most: int) -> Climbers:
        n, d = start.shape
        lp, gradient, spent, missing = np.full(n, np.nan), np.zeros((n, d)), 0, np.arange(n)
        while missing.size and spent + missing.size <= min(4 * n, most):
            lp[missing], gradient[missing] = value(start[missing])
            spent += missing.size
            missing = missing[~np.isfinite(lp[missing])]
            start[missing] = home + 0.5 * (start[missing] - home)
        lp[missing] = np.nan
        return cls(start, lp, gradient, np.zeros(n, bool), np.ones(n), spent)


def _direction(
    gradient: np.ndarray, steps: np.ndarray, changes: np.ndarray, weights: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return the directions of L-BFGS by its two loops, for all climbers at once."""
    q, kept = gradient.copy(), []
    for i in reversed(range(_MEMORY)):
        a = weights[:, i] * (steps[:, i] * q).sum(axis=1)
        kept.append(a)
        q -= a[:, None] * changes[:, i]
    q *= scale[:, None]
    for i in range(_MEMORY):
        b = weights[:, i] * (changes[:, i] * q).sum(axis=1)
        q += (kept[_MEMORY - 1 - i] - b)[:, None] * steps[:, i]
    return q
