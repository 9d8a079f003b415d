"""Ascents to local maxima of a log density from many starts at once, by L-BFGS in whitened coordinates.

Warm-up begins with some from starts at which the log density is lower by orders of magnitude than in the posterior.  A
Poisson regression whose linear predictor is 40 at a random start has a log density of -e^40 there, and a curvature as
large: a step that is stable there moves nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.engines.contract import Engine, evaluated_at

# Log densities ``(n,)`` and gradients ``(n, d)`` at positions ``(n, d)``; NaN where they are not finite.
Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Pairs of steps and changes of the gradient that L-BFGS remembers of each ascent.
_MEMORY = 8
# Gain that the next step promises, in nats, below which an ascent is over: it is within 0.2 local sds of the maximum.
_ARRIVED = 0.02
# Length of the first step over that of the longest later one: the basin of a mode a fifth as wide has that radius.
FIRST_STEP = 0.2
# Share of the promised gain that a step must bring (Armijo's condition).
_ARMIJO = 1e-3


@dataclass
class Ascents:
    """The ends of ``n`` ascents."""

    position: np.ndarray  # (n, d)
    lp: np.ndarray  # (n,): log density there
    gradient: np.ndarray  # (n, d)
    arrived: np.ndarray  # (n,): whether each is at a maximum, to a small part of a local standard deviation, or a wall
    scale: np.ndarray  # (n,): a variance there, of the last step's direction
    spent: int  # gradients of all together

    @classmethod
    def of(
        cls, density: Density, start: np.ndarray, centre: np.ndarray, limit: int, enough: float = _ARRIVED
    ) -> Ascents:
        """Ascend from positions ``(n, d)`` until all are at a maximum, or ``limit`` gradients are spent.

        An ascent is at a maximum, or near enough, where its next step promises less than ``enough`` nats.  A start
        where the density is not finite is moved towards the ``centre``, one ``(d,)`` or one of each start ``(n, d)``.
        No step is longer than 1 plus half the distance from the centre, and the first, before any curvature is
        estimated, at most a fifth of that: an ascent stays in the basin in which it begins.
        """
        n, d = start.shape
        centres = np.broadcast_to(centre, (n, d))
        self = cls._begin(density, np.array(start), centres, limit)
        steps = np.zeros((n, _MEMORY, d))
        changes = np.zeros((n, _MEMORY, d))
        weights = np.zeros((n, _MEMORY))
        going = np.isfinite(self.lp)
        needs_direction = going.copy()
        direction = np.zeros((n, d))
        share = np.ones(n)  # length of the next step over that of its direction
        while going.any():
            i = np.flatnonzero(going & needs_direction)
            if i.size:
                direction[i] = _direction(self.gradient[i], steps[i], changes[i], weights[i], self.scale[i])
                longest = 1.0 + 0.5 * np.linalg.norm(self.position[i] - centres[i], axis=1)
                longest[~steps[i].any(axis=(1, 2))] *= FIRST_STEP
                share[i] = np.minimum(1.0, longest / np.maximum(np.linalg.norm(direction[i], axis=1), 1e-300))
                gain = share[i] * (1.0 - 0.5 * share[i]) * (self.gradient[i] * direction[i]).sum(axis=1)
                self.arrived[i] = gain < enough
                going[i[self.arrived[i]]] = False
            i = np.flatnonzero(going)
            if not i.size or self.spent + i.size > limit:
                break
            tried = self.position[i] + share[i, None] * direction[i]
            lp, gradient = density(tried)
            self.spent += i.size
            promised = share[i] * (self.gradient[i] * direction[i]).sum(axis=1)
            # The next trial is the top of the parabola through both ends and the first slope, neither near nor far.
            with np.errstate(all="ignore"):
                good = np.isfinite(lp) & (lp - self.lp[i] >= _ARMIJO * promised)
                top = 0.5 * promised / (promised - (lp - self.lp[i]))
            shorter = share[i] * np.clip(np.nan_to_num(top, nan=0.1, posinf=0.5, neginf=0.1), 0.1, 0.5)
            needs_direction[i] = good
            share[i] = np.where(good, share[i], shorter)
            at_wall = i[~good & (shorter < 1e-8)]
            going[at_wall] = False
            self.arrived[at_wall] = True
            moved = i[good]
            step = tried[good] - self.position[moved]
            change = self.gradient[moved] - gradient[good]
            product = (step * change).sum(axis=1)
            concave = product > 1e-6 * np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                weight = np.where(concave, 1.0 / product, 0.0)
                scale = np.where(concave, product / (change**2).sum(axis=1), 4.0 * self.scale[moved])
            self.scale[moved] = scale
            for memory, newest in ((steps, step), (changes, change), (weights, weight)):
                memory[moved] = np.concatenate([memory[moved, 1:], newest[:, None]], axis=1)
            weights[moved[~concave]] = 0.0
            self.position[moved] = tried[good]
            self.lp[moved] = lp[good]
            self.gradient[moved] = gradient[good]
        return self

    @classmethod
    def _begin(cls, density: Density, start: np.ndarray, centres: np.ndarray, limit: int) -> Ascents:
        """Evaluate the starts; where the density is not finite they are moved half the way to their centres, thrice."""
        n, d = start.shape
        lp = np.full(n, np.nan)
        gradient = np.zeros((n, d))
        evaluations = 0
        missing = np.arange(n)
        while missing.size and evaluations + missing.size <= min(4 * n, limit):
            lp[missing], gradient[missing] = density(start[missing])
            evaluations += missing.size
            missing = missing[~np.isfinite(lp[missing])]
            start[missing] = centres[missing] + 0.5 * (start[missing] - centres[missing])
        lp[missing] = np.nan
        return cls(start, lp, gradient, np.zeros(n, bool), np.ones(n), evaluations)


def _direction(
    gradient: np.ndarray, steps: np.ndarray, changes: np.ndarray, weights: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return the directions ``(n, d)`` of L-BFGS by its two loops."""
    direction = gradient.copy()
    alpha = np.zeros(weights.shape)
    for i in reversed(range(_MEMORY)):
        alpha[:, i] = weights[:, i] * (steps[:, i] * direction).sum(axis=1)
        direction -= alpha[:, i, None] * changes[:, i]
    direction *= scale[:, None]
    for i in range(_MEMORY):
        beta = weights[:, i] * (changes[:, i] * direction).sum(axis=1)
        direction += (alpha[:, i] - beta)[:, None] * steps[:, i]
    return direction


# A start is low if the first step of an ascent promises so many nats for each coordinate.  Chosen on 36 Stan programs
# of posteriordb, of which random starts of 23 promise less (those of GLMM_Poisson, which failed, 1e10 to 1e17).  On 35
# others gradients for 400 effective draws are 0.96 times those without the rule (geometric mean; median 1.00).
_LOW = 1e3
# Gradients of an ascent, and ascents that go on side by side, whose memory is 16 positions each.
_GRADIENTS = 200
_TOGETHER = 16


def raised_starts(
    engine: Engine, starts: np.ndarray, gradients: np.ndarray, density_parameters: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts ``(n, d)``, the gradients there, and the number of gradients spent on each.

    The ascent from a low start goes on while its next step promises at least ``d`` nats; a start that has gained less
    stays.  Log densities of a Gaussian's draws have a standard deviation of ``sqrt(d / 2)``.  Positions are ``z`` of
    :mod:`pmm_mcmc.coordinates.structure`; ``gradients`` ``(n, d)`` are those at ``starts``.
    """

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            lp, evaluation = evaluated_at(engine.evaluate, z, density_parameters)
        return lp, evaluation[:, : engine.d]

    raised = np.array(starts)
    gradients = np.array(gradients)
    n_grad = np.zeros(len(starts), int)
    low = np.flatnonzero(FIRST_STEP * np.linalg.norm(gradients, axis=1) > _LOW * engine.d)
    for i in range(0, len(low), _TOGETHER):
        rows = low[i : i + _TOGETHER]
        lp, _ = density(starts[rows])
        ends = Ascents.of(density, starts[rows], starts[rows], _GRADIENTS * len(rows), enough=engine.d)
        n_grad[rows] = 1 - (-ends.spent // len(rows))
        gained = ends.lp - lp >= engine.d
        raised[rows[gained]] = ends.position[gained]
        gradients[rows[gained]] = ends.gradient[gained]
    return raised, gradients, n_grad
