"""Targets of one variable that are not log-concave, and how many steps bring a chain near them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax
from transfer_operator import Drift, Nodes, draws, gauss_hermite, operator, stationary

from pmm_mcmc.langevin.methods import Kernel, Scheme

WELL = 1.5
MODES, WEIGHTS = np.array([-3.0, 0.0, 3.0]), np.array([0.5, 0.3, 0.2])
# Mean and standard deviation of the position at the start, wide and off the centre.
START = (1.0, 2.0)
# Steps taken one by one before powers of the matrix are.
SINGLE = 1500
# A distance that only a chain has that is not stable.
EXPLODED = 2.0


class Target(NamedTuple):
    """A potential of one variable, and minus its slope."""

    words: str
    potential: Drift
    drift: Drift

    def density(self, x: np.ndarray) -> np.ndarray:
        """Density on a uniform grid that holds all of it."""
        found = np.exp(-self.potential(x))
        return found / (found.sum() * (x[1] - x[0]))


def three_potential(x: np.ndarray) -> np.ndarray:
    """Return minus the log density of three unit Gaussians."""
    return -logsumexp(-0.5 * (np.asarray(x)[..., None] - MODES) ** 2, b=WEIGHTS, axis=-1)


def three_drift(x: np.ndarray) -> np.ndarray:
    """Return its slope, downwards."""
    return softmax(np.log(WEIGHTS) - 0.5 * (np.asarray(x)[..., None] - MODES) ** 2, axis=-1) @ MODES - x


TARGETS = {
    "double well": Target(
        "0.5 N(-1.5, 1) + 0.5 N(1.5, 1), that is F = x^2 / 2 - log cosh(1.5 x)",
        lambda x: 0.5 * x**2 - np.logaddexp(WELL * x, -WELL * x),
        lambda x: -x + WELL * np.tanh(WELL * x),
    ),
    "three modes": Target("0.5 N(-3, 1) + 0.3 N(0, 1) + 0.2 N(3, 1)", three_potential, three_drift),
}


class Chain:
    """The law of a chain of one method at one step size, step by step.

    Parameters
    ----------
    target, kernel, alpha, K, friction
        What is sampled, and how; ``K=None``: cells without bound.
    """

    def __init__(self, target: Target, kernel: Kernel, alpha: float, K: int | None, friction: float):
        self.nodes = nodes = Nodes.of(kernel, target.drift)
        self.matrix = operator(nodes, kernel, target.drift, alpha, K, friction)
        self.recycled = kernel.scheme == Scheme.RECYCLED
        self._draws = draws(nodes, kernel, alpha, friction) if self.recycled else None
        self._target, self._remainder = target.density(nodes.fine), target.drift(nodes.x) + nodes.x

    def distance(self, masses: np.ndarray) -> float:
        """Total variation distance between the law of the position (of the next draw, recycled) and the target."""
        density = self.nodes.density(masses if self._draws is None else self._draws @ masses)
        return 0.5 * float(np.abs(density - self._target).sum()) * (self.nodes.fine[1] - self.nodes.fine[0])

    def floor(self) -> float:
        """Return the distance of the stationary law."""
        return self.distance(stationary(self.matrix))

    def start(self) -> np.ndarray:
        """Masses of a Gaussian position, wrapped around the grid, and a standard normal velocity."""
        nodes, (mean, sd) = self.nodes, START
        around = nodes.x[:, None] - mean + 2.0 * nodes.half_width * np.arange(-1, 2)
        position = np.exp(-0.5 * (around / sd) ** 2).sum(axis=1)
        _, weights = gauss_hermite(nodes.velocities)
        bases = nodes.lagrange(self._remainder) if self.recycled else np.ones((len(position), 1))
        return np.einsum("x,v,xj->xvj", position / position.sum(), weights, bases).ravel()

    def steps(self, eps: Sequence[float]) -> list[int | None]:
        """Return the first step after which the distance is at most each of ``eps`` (falling); None where it never is.

        By powers of the matrix and bisection once single steps are many: the distance falls until it settles.
        """
        floor, out = self.floor(), []
        here, reached, powers = self.start(), 0, [self.matrix]
        for bound in eps:
            if floor > bound:
                out.append(None)
                continue
            while reached < SINGLE and bound < self.distance(here) < EXPLODED:
                here, reached = self.matrix @ here, reached + 1
            if not self.distance(here) < EXPLODED:
                return [None] * len(eps)
            if self.distance(here) > bound:
                while self.distance(powers[-1] @ here) > bound:
                    powers.append(powers[-1] @ powers[-1])
                for power, length in zip(powers[::-1], 2 ** np.arange(len(powers))[::-1], strict=True):
                    ahead = power @ here
                    if self.distance(ahead) > bound:
                        here, reached = ahead, reached + int(length)
                here, reached = self.matrix @ here, reached + 1
            out.append(reached + self.recycled)
        return out
