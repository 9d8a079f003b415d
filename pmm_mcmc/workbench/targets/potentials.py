"""Potentials from physics and from test suites: double well, phi^4 fields, banana, ripples."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.formulas import from_formula
from pmm_mcmc.workbench.targets.stored import stored_reference
from pmm_mcmc.workbench.targets.target import Modes, Reference, Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]


class _Well(NamedTuple):
    """A barrier, a tilt that makes the right well the heavier one, and coordinates that follow the first."""

    height: float = 4.0
    tilt: float = 0.25
    followers: int = 4
    noise: float = 0.5


class _Field(NamedTuple):
    """Sites of a side, and the coefficients of the square and of the fourth power at each site."""

    side: int
    mass: float
    coupling: float


class _Banana(NamedTuple):
    """Number of pairs, standard deviation of the first coordinate, and curvature of the second."""

    pairs: int = 5
    sd: float = 10.0
    curve: float = 0.03


class _Ripples(NamedTuple):
    """Dimension, and height and rate of the cosine."""

    dimension: int = 10
    height: float = 0.5
    rate: float = 8.0


WELL, BANANA, RIPPLES = _Well(), _Banana(), _Ripples()
# Symmetric phase, with a correlation length of about a quarter of the side (Albergo, Kanwar and Shanahan, 2019).
LATTICE = _Field(8, -4.0, 6.008)
RING = _Field(24, -3.0, 1.5)


# -- double well -------------------------------------------------------------------------------------------------------


def _well(a: Any) -> Any:
    return -WELL.height * (a**2 - 1) ** 2 + WELL.tilt * a


def double_well(x: Any, xp: Any) -> Any:
    """Log density of a tilted double well in the first coordinate; the others follow it."""
    return _well(x[0]) - 0.5 * (((x[1:] - x[0]) / WELL.noise) ** 2).sum()


@cache
def well_grid() -> moments.Grid:
    """Return the law of the first coordinate on a grid without a node at 0, the border of the wells."""
    return moments.Grid.of(_well, -3.0, 3.0, 1200)


def well_reference() -> Reference:
    grid = well_grid()
    followers = moments.gaussian_moments(grid.nodes, np.full_like(grid.nodes, WELL.noise**2)) @ grid.weight
    found = np.column_stack([grid.moments(), *[followers] * WELL.followers])
    return moments.from_moments(found, "Quadrature over the first coordinate, 12 digits.")


def well_modes() -> Modes:
    grid = well_grid()
    right = grid.weight[grid.nodes > 0].sum()
    return Modes(("left", "right"), np.array([1 - right, right]), _first_is_positive)


def _first_is_positive(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x)[..., 0] > 0).astype(int)


def draw_well(n: int, rng: np.random.Generator) -> np.ndarray:
    a = well_grid().draw(n, rng)[:, None]
    return np.concatenate([a, a + WELL.noise * rng.normal(size=(n, WELL.followers))], axis=1)


# -- phi^4 fields ------------------------------------------------------------------------------------------------------


def _field(field: Any, xp: Any, mass: float, coupling: float) -> Any:
    bonds = sum(((field - xp.roll(field, 1, axis=axis)) ** 2).sum() for axis in range(field.ndim))
    square = field**2
    return -(bonds + (mass * square + coupling * square**2).sum())


def lattice(field: Any, xp: Any) -> Any:
    """Log density of a scalar field on a periodic square lattice."""
    return _field(field, xp, LATTICE.mass, LATTICE.coupling)


def ring(field: Any, xp: Any) -> Any:
    """Log density of a scalar field on a periodic chain."""
    return _field(field, xp, RING.mass, RING.coupling)


def _sign_of_field(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x).mean(axis=-1) > 0).astype(int)


def field_modes() -> Modes:
    return Modes(("negative", "positive"), np.array([0.5, 0.5]), _sign_of_field)


@cache
def ring_law() -> moments.Ring:
    """Return the law of the ring by its transfer matrix, with half of each site's term in either of its bonds."""

    def log_transfer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        own = sum(RING.mass * x**2 + RING.coupling * x**4 for x in (a, b))
        return -((a - b) ** 2) - own / 2

    return moments.Ring(log_transfer, RING.side, -3.0, 3.0, 240)


def ring_reference() -> Reference:
    found = np.repeat(ring_law().site.moments()[:, None], RING.side, axis=1)
    found[0] = 0.0  # by symmetry; the sum over nodes leaves rounding
    return moments.from_moments(found, "Transfer matrix, 12 digits.")


def draw_ring(n: int, rng: np.random.Generator) -> np.ndarray:
    return ring_law().draw(n, rng)


# -- banana ------------------------------------------------------------------------------------------------------------


def bend(a: Any) -> Any:
    """Centre of a banana's second coordinate, given the first."""
    return BANANA.curve * (a**2 - BANANA.sd**2)


def banana() -> pm.Model:
    """Build five pairs whose second coordinate follows the square of the first (Haario, Saksman, Tamminen, 1999)."""
    import pymc as pm

    with pm.Model() as model:
        a = pm.Normal("a", 0.0, BANANA.sd, shape=BANANA.pairs)
        pm.Normal("b", bend(a), 1.0, shape=BANANA.pairs)
    return model


def banana_log_density(q: Any) -> Any:
    a, b = q[: BANANA.pairs], q[BANANA.pairs :]
    return -0.5 * ((a / BANANA.sd) ** 2).sum() - 0.5 * ((b - bend(a)) ** 2).sum()


def banana_reference() -> Reference:
    found = moments.bent_pairs(BANANA.pairs, 0.0, BANANA.sd, bend, 1.0)
    return moments.from_moments(found, "Gauss-Hermite quadrature of polynomials, exact to rounding.")


def draw_banana(n: int, rng: np.random.Generator) -> np.ndarray:
    a = BANANA.sd * rng.normal(size=(n, BANANA.pairs))
    return np.concatenate([a, bend(a) + rng.normal(size=a.shape)], axis=1)


# -- ripples -----------------------------------------------------------------------------------------------------------


def rippled(x: Any, xp: Any) -> Any:
    """Log density of a Gaussian with cosine ripples, the same in every coordinate."""
    return (RIPPLES.height * xp.cos(RIPPLES.rate * x) - 0.5 * x**2).sum()


def rippled_reference() -> Reference:
    grid = moments.Grid.of(lambda a: RIPPLES.height * np.cos(RIPPLES.rate * a) - 0.5 * a**2, -12.0, 12.0, 4001)
    found = np.repeat(grid.moments()[:, None], RIPPLES.dimension, axis=1)
    found[0] = 0.0
    return moments.from_moments(found, "Quadrature of one coordinate, 12 digits.")


def draw_rippled(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw by rejection from the Gaussian without ripples, of whose draws two thirds are kept."""
    draws = rng.normal(size=(n, RIPPLES.dimension))
    waiting = np.ones(draws.shape, dtype=bool)
    while waiting.any():
        draws[waiting] = rng.normal(size=waiting.sum())
        accept = np.exp(RIPPLES.height * (np.cos(RIPPLES.rate * draws[waiting]) - 1))
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
        (LATTICE.side, LATTICE.side),
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
        (RING.side,),
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
        labels=labels_of(a=(BANANA.pairs,), b=(BANANA.pairs,)),
        build=banana,
        find_reference=banana_reference,
        log_density_of=banana_log_density,
        draw=draw_banana,
    ),
    from_formula(
        rippled,
        "x",
        (RIPPLES.dimension,),
        name="rippled",
        title="rippled Gaussian, d = 10",
        note="A standard Gaussian with ripples of half a unit of log density, eight radians a standard deviation: "
        "curvature is between -31 and 33 and is unrelated to the width. A preconditioner learnt from draws is right, "
        "but the step has to resolve the ripples, not the Gaussian. Moments are those of the Gaussian, to 12 digits.",
        find_reference=rippled_reference,
        draw=draw_rippled,
    ),
)
