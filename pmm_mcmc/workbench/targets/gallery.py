"""The posteriors of the gallery: mixtures of several modes, potentials, and hierarchies with an unknown scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.targets.target import Reference, Target

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["CLUSTERS", "EFFECT", "ERROR", "FUNNEL_SD", "MU_SD", "TARGETS", "TAU_SCALE", "velocities"]

_DATA = Path(__file__).parent / "data"


def stored_reference(name: str) -> Reference:
    """Return the moments of a target: by a formula or quadrature (``benchmarks/shared``) or a long run."""
    return Reference(**json.loads((_DATA / "references.json").read_text(encoding="utf-8"))[name])


# -- several modes -----------------------------------------------------------------------------------------------------

CLUSTERS = 3


def gaussians(weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> pm.Model:
    """Build unit Gaussians whose means lie on the first axis."""
    import pymc as pm

    with pm.Model() as model:
        x = pm.Flat("x", shape=d)
        terms = [float(np.log(w)) - 0.5 * (x[0] - m) ** 2 for w, m in zip(weight, mean, strict=True)]
        pm.Potential("log_density", reduce(pm.math.logaddexp, terms) - 0.5 * (x[1:] ** 2).sum())
    return model


def draw_gaussians(
    weight: tuple[float, ...], mean: tuple[float, ...], d: int, rng: np.random.Generator, n: int
) -> np.ndarray:
    x = rng.normal(size=(n, d))
    x[:, 0] += rng.choice(mean, size=n, p=weight)
    return x


def region(borders: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Return the number of the mode: how many borders the first coordinate is beyond."""
    return np.searchsorted(borders, x[..., 0])


@cache
def velocities() -> np.ndarray:
    """Return the velocities of 82 galaxies in 1000 km/s (Roeder, 1990)."""
    return np.loadtxt(_DATA / "galaxies.csv", skiprows=3) / 1000.0


def galaxies() -> pm.Model:
    """Build a mixture of three Gaussians with exchangeable priors (Richardson and Green, 1997)."""
    import pymc as pm

    with pm.Model() as model:
        weight = pm.Dirichlet("weight", np.full(CLUSTERS, 2.0))
        mean = pm.Normal("mean", 21.0, 8.0, shape=CLUSTERS)
        variance = pm.InverseGamma("variance", 2.0, 2.0, shape=CLUSTERS)
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=pm.math.sqrt(variance), observed=velocities())
    return model


# -- potentials from physics and test suites ---------------------------------------------------------------------------

# The barrier of the double well.
BARRIER = 4.0
# A tilt that makes the right well the heavier one.
TILT = 0.25
# Coordinates that follow the first, and their noise.
FOLLOWERS = 4
NOISE = 0.5
# Probability of the left well, by quadrature.
WEIGHT_OF_LEFT = 0.385478879231
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


def draw_wells(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw by the inverse of the distribution function on a grid, which is exact to 1e-4."""
    grid = np.linspace(-3.0, 3.0, 60_001)
    share = np.exp(well(grid)).cumsum()
    a = np.interp(rng.random(n), share / share[-1], grid)[:, None]
    return np.concatenate([a, a + NOISE * rng.normal(size=(n, FOLLOWERS))], axis=1)


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


def draw_banana(rng: np.random.Generator, n: int) -> np.ndarray:
    a = SD * rng.normal(size=(n, PAIRS))
    return np.concatenate([a, bend(a) + rng.normal(size=a.shape)], axis=1)


# Pairs, and the variance of the second coordinate about the square of the first.
RIDGES = 18
ROSENBROCK_NOISE = 0.1
# Standard deviation of the squared radius.
RING = 0.1


def rosenbrock() -> pm.Model:
    """Build eighteen pairs of a hybrid Rosenbrock density: the second follows the square of the first closely."""
    import pymc as pm

    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 1.0, shape=RIDGES)
        pm.Normal("b", a**2, ROSENBROCK_NOISE**0.5, shape=RIDGES)
    return model


def draw_rosenbrock(rng: np.random.Generator, n: int) -> np.ndarray:
    a = rng.normal(1.0, 1.0, (n, RIDGES))
    return np.hstack([a, rng.normal(a**2, ROSENBROCK_NOISE**0.5)])


def ring() -> pm.Model:
    """Build a ring of width .05 about 0: |x|^2 is N(1, .1^2), ten standard deviations above its end at 0."""
    import pymc as pm

    with pm.Model() as model:
        x = pm.Flat("x", shape=2, initval=np.full(2, 0.7))
        pm.Potential("log_density", -0.5 * (((x**2).sum() - 1) / RING) ** 2)
    return model


def draw_ring(rng: np.random.Generator, n: int) -> np.ndarray:
    radius = np.sqrt(rng.normal(1, RING, n))
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def lattice() -> pm.Model:
    """Build a scalar field on a periodic lattice near its critical point (Albergo, Kanwar and Shanahan, 2019)."""
    import pymc as pm
    import pytensor.tensor as pt

    with pm.Model() as model:
        field = pm.Flat("field", shape=(8, 8))
        bonds = sum(((field - pt.roll(field, 1, axis=axis)) ** 2).sum() for axis in range(2))
        pm.Potential("log_density", -(bonds + (-4.0 * field**2 + 6.008 * field**4).sum()))
    return model


def magnetised(x: np.ndarray) -> np.ndarray:
    """Return 1 where the mean of the field is positive, of which the probability is 1/2 by symmetry."""
    return x.mean(axis=-1) > 0.0


def student_regression() -> pm.Model:
    """Build a regression of 100 simulated values on three covariates, with heavy tails of an unknown degree."""
    import pymc as pm

    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + rng.standard_t(3, size=100)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 5, shape=3)
        sigma = pm.HalfNormal("sigma", 2)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=x @ slope, sigma=sigma, observed=y)
    return model


# -- hierarchies -------------------------------------------------------------------------------------------------------

# Standard deviation of the log scale.
FUNNEL_SD = 3.0
# Number of coordinates that it scales.
FUNNEL_OTHERS = 9

# Treatment effects and their standard errors (Rubin, 1981).
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# Prior standard deviation of the mean, and scale of the half-Cauchy prior of the effects' standard deviation.
MU_SD = TAU_SCALE = 5.0


def funnel() -> pm.Model:
    """Build Neal's funnel, centred (Neal, 2003)."""
    import pymc as pm

    with pm.Model() as model:
        y = pm.Normal("y", 0.0, FUNNEL_SD)
        pm.Normal("x", 0.0, pm.math.exp(y / 2), shape=FUNNEL_OTHERS)
    return model


def draw_funnel(rng: np.random.Generator, n: int) -> np.ndarray:
    y = FUNNEL_SD * rng.normal(size=(n, 1))
    return np.concatenate([y, np.exp(y / 2) * rng.normal(size=(n, FUNNEL_OTHERS))], axis=1)


def eight_schools(centred: bool) -> pm.Model:
    """Build eight schools, with the effects (centred) or their standardised deviations as parameters."""
    import pymc as pm

    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, MU_SD)
        tau = pm.HalfCauchy("tau", TAU_SCALE)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=8)
        else:
            theta = mu + tau * pm.Normal("z", shape=8)
        pm.Normal("y", theta, ERROR, observed=EFFECT)
    return model


def _target(name: str, title: str, note: str, build: Callable[[], pm.Model], **exact: Any) -> Target:
    return Target(name, title, note, build, partial(stored_reference, name), **exact)


def _mixture(
    name: str, title: str, note: str, weight: tuple[float, ...], mean: tuple[float, ...], d: int
) -> Target:  # fmt: skip
    """Return a mixture of Gaussians, whose modes are told apart half way: wrong of 2 % of draws 4 sd apart."""
    borders = [(left + right) / 2 for left, right in pairwise(mean)]
    below = [
        0.0,
        *(sum(w * NormalDist(m).cdf(border) for w, m in zip(weight, mean, strict=True)) for border in borders),
    ]
    return _target(
        name, title, note, partial(gaussians, weight, mean, d), draw=partial(draw_gaussians, weight, mean, d),
        mode=partial(region, borders), mode_weights=tuple(np.diff([*below, 1.0])),
    )  # fmt: skip


TARGETS = (
    _mixture(
        "mixture_4sd",
        "two Gaussians 4 sd apart, d = 10",
        "Two unit Gaussians with a valley of 1.3 units of log density between them. A chain crosses every few dozen "
        "units of time, so that the weights of the modes converge last.",
        (0.5, 0.5),
        (-2.0, 2.0),
        10,
    ),
    _mixture(
        "mixture_7sd",
        "two Gaussians 7 sd apart, d = 10",
        "Two unit Gaussians with a valley of 5.4 units of log density between them. Crossings are rare events: a run "
        "of ordinary length sees few, and a chain that sees none looks converged.",
        (0.5, 0.5),
        (-3.5, 3.5),
        10,
    ),
    _mixture(
        "mixture_unequal",
        "two Gaussians 4 sd apart, weights .7 and .3, d = 20",
        "As mixture_4sd, in 20 dimensions and with unequal weights about an overall mean of 0, so that the second "
        "moment of the first coordinate depends on the weights: an error of .1 in a weight moves it by .13 of the "
        "standard deviation of its square.",
        (0.7, 0.3),
        (-1.2, 2.8),
        20,
    ),
    _mixture(
        "three_modes",
        "three Gaussians 3 sd apart, weights .5, .3 and .2, d = 10",
        "The three modes on which the paper's claim is computed, with nine Gaussian coordinates beside them: two "
        "valleys have to be crossed, one after the other, until the outer modes have their weights.",
        (0.5, 0.3, 0.2),
        (-3.0, 0.0, 3.0),
        10,
    ),
    _target(
        "galaxies",
        "galaxies, a mixture of three Gaussians",
        "Velocities of 82 galaxies as a mixture of three clusters with exchangeable priors (Roeder, 1990; "
        "Richardson and Green, 1997): the posterior has 3! = 6 equal copies of every mode. Chains that move locally "
        "stay in the copy where they start, and disagree. Within a copy there is a second grouping, without a far "
        "cluster, with a probability of about .08: ordinary initial points lead there, and neither a Langevin sampler "
        "nor NUTS finds the main grouping within usual budgets.",
        galaxies,
    ),
    _target(
        "double_well",
        "tilted double well, d = 5",
        "Two wells at -1 and 1 in the first coordinate with a barrier of 4 between them, the right one a little "
        "deeper; four coordinates follow the first. The wells have to be crossed often enough to get their weights "
        "right, and the quartic walls are steeper than any Gaussian's: long steps overshoot there.",
        double_well,
        draw=draw_wells,
        mode=partial(region, (0.0,)),
        mode_weights=(WEIGHT_OF_LEFT, 1.0 - WEIGHT_OF_LEFT),
    ),
    _target(
        "banana",
        "five bananas, d = 10",
        "Five pairs whose second coordinate follows the square of the first (Haario, Saksman and Tamminen, 1999). "
        "No linear preconditioner removes the curvature: the step that the thin direction allows is short against the "
        "length.",
        banana,
        draw=draw_banana,
    ),
    _target(
        "rosenbrock",
        "hybrid Rosenbrock, d = 36",
        "Eighteen pairs whose second coordinate follows the square of the first within .3: narrow curved ridges, along "
        "which a step is limited by their width and chains have to go far.",
        rosenbrock,
        draw=draw_rosenbrock,
    ),
    _target(
        "ring",
        "a ring, d = 2",
        "A ring of radius 1 and width .05 about 0: no direction is long everywhere, so that no scaling helps, and "
        "chains have to go round it on a step that its width allows.",
        ring,
        draw=draw_ring,
    ),
    _target(
        "lattice",
        "scalar field on a lattice, d = 64",
        "A scalar field with a quartic potential on a periodic lattice of 8 by 8 sites near its critical point "
        "(Albergo, Kanwar and Shanahan, 2019): neighbours agree, so that the whole field has to change its sign "
        "together; both signs have the same weight.",
        lattice,
        mode=magnetised,
        mode_weights=(0.5, 0.5),
    ),
    _target(
        "student_regression",
        "regression with heavy tails, d = 5",
        "A linear regression whose errors follow Student's t with an unknown scale and degree of freedom: far from an "
        "outlier the likelihood of a value is not log-concave, and the degree of freedom has a long tail.",
        student_regression,
    ),
    _target(
        "funnel",
        "Neal's funnel, d = 10",
        "The scale of nine coordinates is the exponential of the first, which has a standard deviation of 3: no "
        "step size suits both mouth and neck. A step that is stable in the neck never gets through the mouth, and a "
        "longer one never enters the neck, without a sign of failure. Only the first coordinate can be judged by its "
        "moments: the squares of the others have a standard deviation of 14,000.",
        funnel,
        draw=draw_funnel,
    ),
    _target(
        "eight_schools",
        "eight schools, non-centred",
        "Effects of coaching in eight schools (Rubin, 1981), by their standardised deviations from the mean. The law "
        "of log tau is skewed, with a long tail towards 0 along which the likelihood is flat; otherwise it is gentle.",
        partial(eight_schools, False),
    ),
    _target(
        "eight_schools_centred",
        "eight schools, centred",
        "The same posterior with the effects themselves as parameters: a funnel, because effects have to agree where "
        "tau is small. A sampler with a fixed step does not get to small tau, and reports a tau that is too large.",
        partial(eight_schools, True),
    ),
)
