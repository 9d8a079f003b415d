"""Regressions: Student-t errors with two modes, and a small Bayesian neural network."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.stored import DATA, stored_reference
from pmm_mcmc.workbench.targets.target import Modes, Reference, Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]

# Six points near the line y = x and six near y = -x, drawn once with errors of .3 and rounded.
LINE_X = np.array([-2.9, -2.5, -2.1, -1.7, -1.3, -0.9, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8])
LINE_Y = np.array([-2.8, 2.7, 2.2, -2.1, -1.0, 1.0, -1.0, 1.4, 1.7, -1.9, -2.4, 3.0])


class _Line(NamedTuple):
    """Degrees of freedom of the errors, and prior standard deviations of the coefficients and of the errors' scale."""

    degrees: float = 2.0
    sd: float = 2.0
    noise: float = 0.2


class _Network(NamedTuple):
    """Number of hidden units, and the prior standard deviation of all weights."""

    hidden: int = 2
    sd: float = 2.0


LINE, NETWORK = _Line(), _Network()


# -- Student-t errors --------------------------------------------------------------------------------------------------


def student_t() -> pm.Model:
    """Build a straight line with Student-t errors of two degrees of freedom."""
    import pymc as pm

    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, LINE.sd)
        slope = pm.Normal("slope", 0.0, LINE.sd)
        sigma = pm.HalfNormal("sigma", LINE.noise)
        pm.StudentT("y", nu=LINE.degrees, mu=intercept + slope * LINE_X, sigma=sigma, observed=LINE_Y)
    return model


def _student_t(intercept: Any, slope: Any, log_sigma: Any, xp: Any) -> Any:
    """Return the log density; parameters may be arrays of one shape."""
    sigma = xp.exp(log_sigma)
    total = -0.5 * (intercept**2 + slope**2) / LINE.sd**2 - 0.5 * (sigma / LINE.noise) ** 2 + log_sigma
    for x, y in zip(LINE_X, LINE_Y, strict=True):
        residual = (y - intercept - slope * x) / sigma
        total = total - log_sigma - (LINE.degrees + 1) / 2 * xp.log1p(residual**2 / LINE.degrees)
    return total


def student_t_log_density(q: Any) -> Any:
    import jax.numpy as jnp

    return _student_t(q[0], q[1], q[2], jnp)


class Cube(NamedTuple):
    """A law on a three-dimensional grid."""

    axes: tuple[np.ndarray, np.ndarray, np.ndarray]
    weight: np.ndarray

    def marginal(self, axis: int) -> moments.Grid:
        others = tuple(i for i in range(3) if i != axis)
        return moments.Grid(self.axes[axis], self.weight.sum(axis=others))


# Fine enough for moments, and for draws that are spread over cells.
POINTS = (240, 240, 60)


@cache
def student_t_cube(points: tuple[int, int, int] = POINTS) -> Cube:
    """Return the posterior on a grid without a node at slope 0, the border of the modes."""
    axes = (
        np.linspace(-4.5, 4.5, points[0]),
        np.linspace(-4.0, 4.0, points[1]),
        np.linspace(-5.0, 0.6, points[2]),
    )
    log_weight = _student_t(axes[0][:, None, None], axes[1][None, :, None], axes[2], np)
    weight = np.exp(log_weight - log_weight.max())
    return Cube(axes, weight / weight.sum())


def student_t_reference(points: tuple[int, int, int] = POINTS) -> Reference:
    cube = student_t_cube(points)
    found = np.column_stack([cube.marginal(axis).moments() for axis in range(3)])
    return moments.from_moments(found, "Quadrature on a grid of all three parameters, 6 digits.")


def student_t_modes() -> Modes:
    slope = student_t_cube().marginal(1)
    up = slope.weight[slope.nodes > 0].sum()
    return Modes(("falling line", "rising line"), np.array([1 - up, up]), lambda x: (np.asarray(x)[..., 1] > 0) + 0)


def draw_student_t(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw nodes of the grid, spread over their cells."""
    cube = student_t_cube()
    at = np.unravel_index(moments.draw_index(cube.weight.ravel(), n, rng), cube.weight.shape)
    return np.column_stack(
        [axis[index] + moments.within(axis, n, rng) for axis, index in zip(cube.axes, at, strict=True)]
    )


# -- a neural network --------------------------------------------------------------------------------------------------


@cache
def irises() -> tuple[np.ndarray, np.ndarray]:
    """Return standardised petal length and width of 100 irises, and whether each is an Iris virginica."""
    table = np.loadtxt(DATA / "iris.csv", delimiter=",", skiprows=3)
    petals = table[:, :2]
    return (petals - petals.mean(axis=0)) / petals.std(axis=0), table[:, 2]


def neural_network() -> pm.Model:
    """Build a classifier with one layer of hyperbolic tangents (Neal, 1996)."""
    import pymc as pm

    petals, virginica = irises()
    with pm.Model() as model:
        inward = pm.Normal("inward", 0.0, NETWORK.sd, shape=(2, NETWORK.hidden))
        threshold = pm.Normal("threshold", 0.0, NETWORK.sd, shape=NETWORK.hidden)
        outward = pm.Normal("outward", 0.0, NETWORK.sd, shape=NETWORK.hidden)
        offset = pm.Normal("offset", 0.0, NETWORK.sd)
        hidden = pm.math.tanh(petals @ inward + threshold)
        pm.Bernoulli("virginica", logit_p=hidden @ outward + offset, observed=virginica.astype(int))
    return model


def network_log_density(q: Any) -> Any:
    import jax.numpy as jnp
    from jax.nn import softplus

    petals, virginica = irises()
    inward, (threshold, outward) = (
        q[: 2 * NETWORK.hidden].reshape(2, NETWORK.hidden),
        q[2 * NETWORK.hidden : -1].reshape(2, NETWORK.hidden),
    )
    logit = jnp.tanh(petals @ inward + threshold) @ outward + q[-1]
    return -0.5 * ((q / NETWORK.sd) ** 2).sum() + (virginica * logit - softplus(logit)).sum()


def _signs_and_order(x: np.ndarray) -> np.ndarray:
    outward = np.asarray(x)[..., -1 - NETWORK.hidden : -1]
    first_is_larger = np.abs(outward[..., 0]) > np.abs(outward[..., 1])
    return 4 * first_is_larger + 2 * (outward[..., 0] > 0) + (outward[..., 1] > 0)


def network_modes() -> Modes:
    """Return the signs of the two hidden units and their order, which symmetries of the posterior permute."""
    names = tuple(
        f"{sign[0]}{sign[1]}, {order} unit larger" for order in ("second", "first") for sign in ("--", "-+", "+-", "++")
    )
    return Modes(names, np.full(8, 1 / 8), _signs_and_order)


TARGETS = (
    Target(
        name="student_t_regression",
        title="line with Student-t errors, two modes",
        note="Twelve points, half of them near a rising line and half near a falling one. Errors of two degrees of "
        "freedom let either half pass for outliers, so that there are two modes of different weight; with Gaussian "
        "errors there would be a single one between them. The likelihood has heavy shoulders and sharp ridges.",
        labels=labels_of(intercept=(), slope=(), log_sigma=()),
        build=student_t,
        find_reference=student_t_reference,
        log_density_of=student_t_log_density,
        find_modes=student_t_modes,
        draw=draw_student_t,
    ),
    Target(
        name="neural_network",
        title="neural network with two hidden units, d = 9",
        note="Two species of iris by the length and width of their petals (Fisher, 1936), through two hidden units. "
        "The signs of a unit's weights may all be flipped, and units exchanged: eight equal copies of every mode, "
        "between which chains rarely move, and ridges where a unit has no effect or two have the same.",
        labels=labels_of(inward=(2, NETWORK.hidden), threshold=(NETWORK.hidden,), outward=(NETWORK.hidden,), offset=()),
        build=neural_network,
        find_reference=partial(stored_reference, "neural_network"),
        log_density_of=network_log_density,
        find_modes=network_modes,
    ),
)
