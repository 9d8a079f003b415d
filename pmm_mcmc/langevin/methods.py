"""The methods: :data:`METHODS` is the registry, :class:`Kernel` a method in numbers."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

__all__ = ["ADJUSTED", "METHODS", "TRAJECTORIES", "Kernel", "Method", "Scheme"]

# Dynamics, as numbers for the engines: position alone; with velocity; with velocity in the unit quadratic potential.
OVERDAMPED, UNDERDAMPED, HARMONIC = range(3)


class Scheme(enum.IntEnum):
    """How a step uses the drift within it."""

    CELLS = 0  # midpoints in marked cells correct the drift at the start (the paper; K = 1: LMC)
    CONTINUOUS = 1  # one uniform midpoint replaces the drift at the start (randomised midpoint)
    RECYCLED = 2  # one uniform midpoint corrects the drift at the previous midpoint: one gradient a step
    MALA = 3  # Euler proposal, accepted or rejected
    MALT = 4  # a trajectory of K steps from a fresh velocity, accepted or rejected as a whole


class Kernel(NamedTuple):
    """A method as plain numbers, for the engines."""

    scheme: int
    dynamics: int
    option: int
    offset: float
    power: float = 0.0  # of the importance law of the marked cell: see pmm_mcmc.langevin.midpoints


# Schemes whose stationary law is the target, by a Metropolis test.
ADJUSTED = (Scheme.MALA, Scheme.MALT)
# The method of an exact leg.
TRAJECTORIES = Kernel(int(Scheme.MALT), HARMONIC, 2, 0.0)


class Method(NamedTuple):
    """A row of the registry: the dynamics that a method supports, and its largest automatic step, whitened."""

    dynamics: tuple[str, ...]
    largest_step: float


METHODS: dict[str, Method] = {
    "PoissonOLMC": Method(("overdamped",), 1.0),
    "PoissonULMC": Method(("underdamped",), 1.5),
    "OLMC": Method(("overdamped",), 1.0),
    "ULMC": Method(("underdamped",), 1.5),
    "RLMC": Method(("overdamped", "underdamped"), 1.5),
    "MALA": Method(("overdamped",), math.inf),
}
