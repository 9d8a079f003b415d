"""Potentials from physics and from test suites: double well and banana."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.target import Reference, Target

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]

# The barrier of the double well.
BARRIER = 4.0
# A tilt that makes the right well the heavier one.
TILT = 0.25
# Coordinates that follow the first, and their noise.
FOLLOWERS = 4
NOISE = 0.5
# Number of pairs, standard deviation of the first coordinate, and curvature of the second.
PAIRS = 5
SD = 10.0
CURVE = 0.03


def well(a: Any) -> Any:
    return -BARRIER * (a**2 - 1) ** 2 + TILT * a


def double_well() -> pm.Model:
    """Build a tilted double well in the first coordinate; the others follow it."""
    import pymc as pm

    with pm.Model() as model:
        x = pm.Flat("x", shape=1 + FOLLOWERS)
        pm.Potential("log_density", well(x[0]) - 0.5 * (((x[1:] - x[0]) / NOISE) ** 2).sum())
    return model


def well_reference() -> Reference:
    grid = moments.Grid.of(well, -3.0, 3.0, 1200)
    followers = moments.gaussian_moments(grid.nodes, np.full_like(grid.nodes, NOISE**2)) @ grid.weight
    columns = np.column_stack([grid.moments(), *[followers] * FOLLOWERS])
    return moments.from_moments(columns, "Quadrature over the first coordinate, 12 digits.")


def bend(a: Any) -> Any:
    """Centre of a banana's second coordinate, given the first."""
    return CURVE * (a**2 - SD**2)


def banana() -> pm.Model:
    """Build five pairs whose second coordinate follows the square of the first (Haario, Saksman, Tamminen, 1999)."""
    import pymc as pm

    with pm.Model() as model:
        a = pm.Normal("a", 0.0, SD, shape=PAIRS)
        pm.Normal("b", bend(a), 1.0, shape=PAIRS)
    return model


def banana_reference() -> Reference:
    columns = moments.bent_pairs(PAIRS, 0.0, SD, bend, 1.0)
    return moments.from_moments(columns, "Gauss-Hermite quadrature of polynomials, exact to rounding.")


TARGETS = (
    Target(
        name="double_well",
        title="tilted double well, d = 5",
        note="Two wells at -1 and 1 in the first coordinate with a barrier of 4 between them, the right one a little "
        "deeper; four coordinates follow the first. The wells have to be crossed often enough to get their weights "
        "right, and the quartic walls are steeper than any Gaussian's: long steps overshoot there.",
        build=double_well,
        find_reference=well_reference,
    ),
    Target(
        name="banana",
        title="five bananas, d = 10",
        note="Five pairs whose second coordinate follows the square of the first (Haario, Saksman and Tamminen, 1999). "
        "No linear preconditioner removes the curvature: the step that the thin direction allows is short against the "
        "length.",
        build=banana,
        find_reference=banana_reference,
    ),
)
