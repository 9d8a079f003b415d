"""Hierarchical models with an unknown scale: Neal's funnel, and eight schools in two parametrisations."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.target import Reference, Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]

# Standard deviation of the log scale, and how many coordinates it scales.
FUNNEL_SD, FUNNEL_OTHERS = 3.0, 9

# Treatment effects and their standard errors (Rubin, 1981).
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# Prior standard deviation of the mean, and scale of the half-Cauchy prior of the effects' standard deviation.
MU_SD = TAU_SCALE = 5.0


# -- Neal's funnel -----------------------------------------------------------------------------------------------------


def funnel() -> pm.Model:
    """Build Neal's funnel, centred (Neal, 2003)."""
    import pymc as pm

    with pm.Model() as model:
        y = pm.Normal("y", 0.0, FUNNEL_SD)
        pm.Normal("x", 0.0, pm.math.exp(y / 2), shape=FUNNEL_OTHERS)
    return model


def funnel_log_density(q: Any) -> Any:
    import jax.numpy as jnp

    y, x = q[0], q[1:]
    return -0.5 * (y / FUNNEL_SD) ** 2 - 0.5 * jnp.exp(-y) * (x**2).sum() - 0.5 * FUNNEL_OTHERS * y


def funnel_reference() -> Reference:
    return moments.from_moments(moments.funnel(FUNNEL_SD, FUNNEL_OTHERS), "Closed form, to rounding.")


def draw_funnel(n: int, rng: np.random.Generator) -> np.ndarray:
    y = FUNNEL_SD * rng.normal(size=(n, 1))
    return np.concatenate([y, np.exp(y / 2) * rng.normal(size=(n, FUNNEL_OTHERS))], axis=1)


# -- eight schools -----------------------------------------------------------------------------------------------------


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


def schools_log_density(q: Any, centred: bool) -> Any:
    import jax.numpy as jnp

    mu, log_tau, rest = q[0], q[1], q[2:]
    tau = jnp.exp(log_tau)
    z = (rest - mu) / tau if centred else rest
    theta = rest if centred else mu + tau * z
    # The last term of the prior is the log Jacobian of tau = exp(log_tau).
    prior = -0.5 * (mu / MU_SD) ** 2 - jnp.log1p((tau / TAU_SCALE) ** 2) + log_tau
    schools = -0.5 * (z**2).sum() - (8 * log_tau if centred else 0.0)
    return prior + schools - 0.5 * (((EFFECT - theta) / ERROR) ** 2).sum()


class Conditional(NamedTuple):
    """The Gaussian law given tau: mu, then each school's z ~ N(slope (effect - mu), own); arrays over log tau."""

    mu_mean: np.ndarray
    mu_variance: np.ndarray
    slope: np.ndarray
    own: np.ndarray

    @classmethod
    def given(cls, log_tau: np.ndarray) -> Conditional:
        tau = np.exp(log_tau)[:, None]
        spread = ERROR**2 + tau**2
        mu_variance = 1 / (1 / MU_SD**2 + (1 / spread).sum(axis=1))
        return cls(mu_variance * (EFFECT / spread).sum(axis=1), mu_variance, tau / spread, ERROR**2 / spread)


@cache
def log_tau_grid(points: int = 4001) -> moments.Grid:
    """Return the marginal law of log tau, with the Gaussians integrated out."""

    def log_density(log_tau: np.ndarray) -> np.ndarray:
        tau = np.exp(log_tau)
        spread = ERROR**2 + tau[:, None] ** 2
        given = Conditional.given(log_tau)
        return (
            log_tau
            - np.log1p((tau / TAU_SCALE) ** 2)
            - 0.5 * (np.log(spread) + EFFECT**2 / spread).sum(axis=1)
            + 0.5 * (np.log(given.mu_variance) + given.mu_mean**2 / given.mu_variance)
        )

    return moments.Grid.of(log_density, -40.0, 12.0, points)


def schools_reference(centred: bool, points: int = 4001) -> Reference:
    grid = log_tau_grid(points)
    given, tau = Conditional.given(grid.nodes), np.exp(grid.nodes)[:, None]
    centre, gain, own = given.slope * (EFFECT - given.mu_mean[:, None]), -given.slope, given.own
    if centred:
        centre, gain, own = given.mu_mean[:, None] + tau * centre, 1 + tau * gain, tau**2 * own
    schools = moments.gaussian_moments(centre, own + gain**2 * given.mu_variance[:, None])
    mu = moments.gaussian_moments(given.mu_mean, given.mu_variance)
    found = np.column_stack([mu @ grid.weight, grid.moments(), np.einsum("t,ktj->kj", grid.weight, schools)])
    return moments.from_moments(found, "Quadrature over log tau with all else integrated in closed form, 8 digits.")


def draw_schools(n: int, rng: np.random.Generator, centred: bool) -> np.ndarray:
    log_tau = log_tau_grid().draw(n, rng)
    given = Conditional.given(log_tau)
    mu = given.mu_mean + np.sqrt(given.mu_variance) * rng.normal(size=n)
    z = given.slope * (EFFECT - mu[:, None]) + np.sqrt(given.own) * rng.normal(size=(n, 8))
    return np.column_stack([mu, log_tau, mu[:, None] + np.exp(log_tau)[:, None] * z if centred else z])


def _schools(name: str, title: str, note: str, centred: bool, trustworthy: bool) -> Target:
    return Target(
        name=name,
        title=title,
        note=note,
        labels=labels_of(mu=(), log_tau=(), **{"theta" if centred else "z": (8,)}),
        build=partial(eight_schools, centred),
        find_reference=partial(schools_reference, centred),
        log_density_of=partial(schools_log_density, centred=centred),
        draw=partial(draw_schools, centred=centred),
        trustworthy=trustworthy,
    )


TARGETS = (
    Target(
        name="funnel",
        title="Neal's funnel, d = 10",
        note="The scale of nine coordinates is the exponential of the first, which has a standard deviation of 3: no "
        "step size suits both mouth and neck. A step that is stable in the neck never gets through the mouth, and a "
        "longer one never enters the neck, without a sign of failure. Only the first coordinate can be judged by its "
        "moments: the squares of the others have a standard deviation of 14,000.",
        labels=labels_of(y=(), x=(FUNNEL_OTHERS,)),
        build=funnel,
        find_reference=funnel_reference,
        log_density_of=funnel_log_density,
        draw=draw_funnel,
        trustworthy=False,
    ),
    _schools(
        "eight_schools",
        "eight schools, non-centred",
        "Effects of coaching in eight schools (Rubin, 1981), by their standardised deviations from the mean. The law "
        "of log tau is skewed, with a long tail towards 0 along which the likelihood is flat; otherwise it is gentle.",
        centred=False,
        trustworthy=True,
    ),
    _schools(
        "eight_schools_centred",
        "eight schools, centred",
        "The same posterior with the effects themselves as parameters: a funnel, because effects have to agree where "
        "tau is small. A sampler with a fixed step does not get to small tau, and reports a tau that is too large.",
        centred=True,
        trustworthy=False,
    ),
)
