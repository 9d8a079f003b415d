"""The methods: :data:`METHODS` is the registry, :class:`Kernel` a method in numbers."""

from __future__ import annotations

import enum
from typing import NamedTuple

# Dynamics, as numbers for the engines: position alone; with velocity; with velocity in the unit quadratic potential.
OVERDAMPED, UNDERDAMPED, HARMONIC = range(3)


class Scheme(enum.IntEnum):
    """How a step uses the drift within it."""

    CELLS = 0  # midpoints in marked cells correct the drift at the start (the paper; K = 1: LMC)
    CONTINUOUS = 1  # one uniform midpoint replaces the drift at the start (randomised midpoint)
    RECYCLED = 2  # one uniform midpoint corrects the drift at the previous midpoint: one gradient a step
    GHMC = 3  # a step from a partly refreshed velocity, accepted or rejected: the stationary law is the target
    MALA = 4  # a step from a fresh velocity, accepted or rejected by a fresh number: Metropolis-adjusted Langevin


class Kernel(NamedTuple):
    """A method as plain numbers, for the engines."""

    scheme: int  # a member of Scheme
    dynamics: int  # OVERDAMPED, UNDERDAMPED or HARMONIC
    option: int  # of the paper: cells marked independently of each other (1), or exactly one (2)
    offset: float  # of a midpoint within its cell: 0, or 1/2 on the centred grid
    power: float = 0.0  # of the importance law of the marked cell: see pmm_mcmc.langevin.midpoints

    @property
    def adjusted(self) -> bool:
        """Whether the stationary law is the target, by a Metropolis test."""
        return self.scheme in (Scheme.GHMC, Scheme.MALA)


# The kernel of adjusted draws.
GHMC = Kernel(int(Scheme.GHMC), HARMONIC, 2, 0.0)
# The baseline: its velocity is that of a proposal, along which no part of the potential is integrated.
MALA = Kernel(int(Scheme.MALA), UNDERDAMPED, 2, 0.0)


class Method(NamedTuple):
    """The dynamics that a method supports, and the largest automatic step size, in whitened coordinates.

    ``acceptance`` is that which the step of MALA is adapted to, the optimum for many independent coordinates (Roberts
    and Rosenthal 1998); None for the threshold of the warm-up.
    """

    dynamics: tuple[str, ...]
    largest_step: float
    acceptance: float | None = None


METHODS: dict[str, Method] = {
    "PoissonOLMC": Method(("overdamped",), 1.0),
    "PoissonULMC": Method(("underdamped",), 1.5),
    "OLMC": Method(("overdamped",), 1.0),
    "ULMC": Method(("underdamped",), 1.5),
    "RLMC": Method(("overdamped", "underdamped"), 1.5),
    "GHMC": Method(("underdamped",), 1.5),
    "MALA": Method(("overdamped",), 1.5, 0.574),
}
