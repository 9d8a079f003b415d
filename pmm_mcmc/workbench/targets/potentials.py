"""Potentials from physics and from test suites: double well, phi^4 fields, banana, ripples."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.formulas import from_formula
from pmm_mcmc.workbench.targets.stored import stored_reference
from pmm_mcmc.workbench.targets.target import Modes, Reference, Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]

# A barrier of 4, a tilt that makes the right well heavier, and four coordinates that follow the first.
WELL_HEIGHT, WELL_TILT, WELL_FOLLOWERS, WELL_NOISE = 4.0, 0.25, 4, 0.5
# Symmetric phase, with a correlation length of about a quarter of the side (Albergo, Kanwar and Shanahan, 2019).
LATTICE_SIDE, LATTICE_MASS, LATTICE_COUPLING = 8, -4.0, 6.008
RING_SITES, RING_MASS, RING_COUPLING = 24, -3.0, 1.5
BANANA_PAIRS, BANANA_SD, BANANA_CURVE = 5, 10.0, 0.03
RIPPLE_DIMENSION, RIPPLE_HEIGHT, RIPPLE_RATE = 10, 0.5, 8.0


# -- double well -------------------------------------------------------------------------------------------------------


def _well(a: Any) -> Any:
    return -WELL_HEIGHT * (a**2 - 1) ** 2 + WELL_TILT * a


def double_well(x: Any, xp: Any) -> Any:
    """Return the log density of a tilted double well in the first coordinate, which the others follow."""
    return _well(x[0]) - 0.5 * (((x[1:] - x[0]) / WELL_NOISE) ** 2).sum()


@cache
def well_grid() -> moments.Grid:
    """Return the law of the first coordinate on a grid without a node at 0, the border of the wells."""
    return moments.Grid.of(_well, -3.0, 3.0, 1200)


def well_reference() -> Reference:
    grid = well_grid()
    followers = moments.gaussian_moments(grid.nodes, np.full_like(grid.nodes, WELL_NOISE**2)) @ grid.weight
    found = np.column_stack([grid.moments(), *[followers] * WELL_FOLLOWERS])
    return moments.from_moments(found, "Quadrature over the first coordinate, 12 digits.")


def well_modes() -> Modes:
    grid = well_grid()
    right = grid.weight[grid.nodes > 0].sum()
    return Modes(("left", "right"), np.array([1 - right, right]), _first_is_positive)


def _first_is_positive(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x)[..., 0] > 0).astype(int)


def draw_well(n: int, rng: np.random.Generator) -> np.ndarray:
    a = well_grid().draw(n, rng)[:, None]
    return np.concatenate([a, a + WELL_NOISE * rng.normal(size=(n, WELL_FOLLOWERS))], axis=1)


# -- phi^4 fields ------------------------------------------------------------------------------------------------------


def _field(field: Any, xp: Any, mass: float, coupling: float) -> Any:
    bonds = sum(((field - xp.roll(field, 1, axis=axis)) ** 2).sum() for axis in range(field.ndim))
    square = field**2
    return -(bonds + (mass * square + coupling * square**2).sum())


def lattice(field: Any, xp: Any) -> Any:
    """Return the log density of a scalar field on a periodic square lattice."""
    return _field(field, xp, LATTICE_MASS, LATTICE_COUPLING)


def ring(field: Any, xp: Any) -> Any:
    """Return the log density of a scalar field on a periodic chain."""
    return _field(field, xp, RING_MASS, RING_COUPLING)


def _sign_of_field(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x).mean(axis=-1) > 0).astype(int)


def field_modes() -> Modes:
    return Modes(("negative", "positive"), np.array([0.5, 0.5]), _sign_of_field)


@cache
def ring_law() -> moments.Ring:
    """Return the law of the ring by its transfer matrix, with half of each site's term in either of its bonds."""

    def log_transfer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        own = sum(RING_MASS * x**2 + RING_COUPLING * x**4 for x in (a, b))
        return -((a - b) ** 2) - own / 2

    return moments.Ring(log_transfer, RING_SITES, -3.0, 3.0, 240)


def ring_reference() -> Reference:
    found = np.repeat(ring_law().site.moments()[:, None], RING_SITES, axis=1)
    found[0] = 0.0  # by symmetry; the sum over nodes leaves rounding
    return moments.from_moments(found, "Transfer matrix, 12 digits.")


def draw_ring(n: int, rng: np.random.Generator) -> np.ndarray:
    return ring_law().draw(n, rng)


# -- banana ------------------------------------------------------------------------------------------------------------


def bend(a: Any) -> Any:
    """Return the mean of a banana's second coordinate, given the first."""
    return BANANA_CURVE * (a**2 - BANANA_SD**2)


def banana() -> pm.Model:
    """Build five pairs whose second coordinate follows the square of the first (Haario, Saksman, Tamminen, 1999)."""
    import pymc as pm

    with pm.Model() as model:
        a = pm.Normal("a", 0.0, BANANA_SD, shape=BANANA_PAIRS)
        pm.Normal("b", bend(a), 1.0, shape=BANANA_PAIRS)
    return model


def banana_log_density(q: Any) -> Any:
    a, b = q[:BANANA_PAIRS], q[BANANA_PAIRS:]
    return -0.5 * ((a / BANANA_SD) ** 2).sum() - 0.5 * ((b - bend(a)) ** 2).sum()


def banana_reference() -> Reference:
    found = moments.bent_pairs(BANANA_PAIRS, 0.0, BANANA_SD, bend, 1.0)
    return moments.from_moments(found, "Gauss-Hermite quadrature of polynomials, exact to rounding.")


def draw_banana(n: int, rng: np.random.Generator) -> np.ndarray:
    a = BANANA_SD * rng.normal(size=(n, BANANA_PAIRS))
    return np.concatenate([a, bend(a) + rng.normal(size=a.shape)], axis=1)


# -- ripples -----------------------------------------------------------------------------------------------------------


def rippled(x: Any, xp: Any) -> Any:
    """Return the log density of a Gaussian with cosine ripples, equal in every coordinate."""
    return (RIPPLE_HEIGHT * xp.cos(RIPPLE_RATE * x) - 0.5 * x**2).sum()


def rippled_reference() -> Reference:
    grid = moments.Grid.of(lambda a: RIPPLE_HEIGHT * np.cos(RIPPLE_RATE * a) - 0.5 * a**2, -12.0, 12.0, 4001)
    found = np.repeat(grid.moments()[:, None], RIPPLE_DIMENSION, axis=1)
    found[0] = 0.0
    return moments.from_moments(found, "Quadrature of one coordinate, 12 digits.")


def draw_rippled(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw by rejection from the Gaussian without ripples, which accepts two thirds of its draws."""
    draws = rng.normal(size=(n, RIPPLE_DIMENSION))
    waiting = np.ones(draws.shape, dtype=bool)
    while waiting.any():
        draws[waiting] = rng.normal(size=waiting.sum())
        accept = np.exp(RIPPLE_HEIGHT * (np.cos(RIPPLE_RATE * draws[waiting]) - 1))
        waiting[waiting] = rng.random(len(accept)) > accept
    return draws


TARGETS = (
    from_formula(
        double_well,
        "x",
        (5,),
        name="double_well",
        title="tilted double well, d = 5",
        note="Two wells at -1 and 1 in the first coordinate with a barrier of 4 between them, the right one a little "
        "deeper; four coordinates follow the first. The wells have to be crossed often enough to get their weights "
        "right, and the quartic walls are steeper than any Gaussian's: long steps overshoot there.",
        find_reference=well_reference,
        find_modes=well_modes,
        draw=draw_well,
    ),
    from_formula(
        lattice,
        "field",
        (LATTICE_SIDE, LATTICE_SIDE),
        name="phi4",
        title="phi^4 field on an 8 x 8 lattice",
        note="A scalar field on a periodic lattice, in the symmetric phase near its critical point (Albergo, Kanwar "
        "and Shanahan, 2019). At 0 there is a saddle between the two signs, and the sign of the whole field turns over "
        "slowly. By symmetry means are 0 whatever the weights of the signs, and second moments do not see them "
        "either.",
        find_reference=partial(stored_reference, "phi4"),
        find_modes=field_modes,
    ),
    from_formula(
        ring,
        "field",
        (RING_SITES,),
        name="phi4_ring",
        title="phi^4 field on a ring of 24 sites",
        note="The same kind of field in one dimension, where the transfer matrix gives exact moments and exact draws. "
        "Sites prefer either sign and agree with their neighbours, so that there are domains with moving walls: many "
        "local modes, and a sum that converges slowly.",
        find_reference=ring_reference,
        find_modes=field_modes,
        draw=draw_ring,
    ),
    Target(
        name="banana",
        title="five bananas, d = 10",
        note="Five pairs whose second coordinate follows the square of the first (Haario, Saksman and Tamminen, 1999). "
        "No linear preconditioner removes the curvature: the step that the thin direction allows is short against the "
        "length.",
        labels=labels_of(a=(BANANA_PAIRS,), b=(BANANA_PAIRS,)),
        build=banana,
        find_reference=banana_reference,
        log_density_of=banana_log_density,
        draw=draw_banana,
    ),
    from_formula(
        rippled,
        "x",
        (RIPPLE_DIMENSION,),
        name="rippled",
        title="rippled Gaussian, d = 10",
        note="A standard Gaussian with ripples of half a unit of log density, eight radians a standard deviation: "
        "curvature is between -31 and 33 and is unrelated to the width. A preconditioner learnt from draws is right, "
        "but the step has to resolve the ripples, not the Gaussian. Moments are those of the Gaussian, to 12 digits.",
        find_reference=rippled_reference,
        draw=draw_rippled,
    ),
)
