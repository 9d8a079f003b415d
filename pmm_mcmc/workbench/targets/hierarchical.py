"""Hierarchical models with an unknown scale: Neal's funnel, and eight schools in two parametrisations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.target import Reference, Target

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]

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


def funnel_reference() -> Reference:
    return moments.from_moments(moments.funnel(FUNNEL_SD, FUNNEL_OTHERS), "Closed form, to rounding.")


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


class Conditional(NamedTuple):
    """The Gaussian law given tau: mu, then each school's z ~ N(slope (effect - mu), variance); arrays over log tau."""

    mu_mean: np.ndarray
    mu_variance: np.ndarray
    slope: np.ndarray
    variance: np.ndarray

    @classmethod
    def of_log_tau(cls, log_tau: np.ndarray) -> Conditional:
        tau = np.exp(log_tau)[:, None]
        spread = ERROR**2 + tau**2
        mu_variance = 1 / (1 / MU_SD**2 + (1 / spread).sum(axis=1))
        return cls(mu_variance * (EFFECT / spread).sum(axis=1), mu_variance, tau / spread, ERROR**2 / spread)


def log_tau_grid() -> moments.Grid:
    """Return the marginal law of log tau, with the Gaussians integrated out."""

    def log_density(log_tau: np.ndarray) -> np.ndarray:
        tau = np.exp(log_tau)
        spread = ERROR**2 + tau[:, None] ** 2
        law = Conditional.of_log_tau(log_tau)
        return (
            log_tau
            - np.log1p((tau / TAU_SCALE) ** 2)
            - 0.5 * (np.log(spread) + EFFECT**2 / spread).sum(axis=1)
            + 0.5 * (np.log(law.mu_variance) + law.mu_mean**2 / law.mu_variance)
        )

    return moments.Grid.of(log_density, -40.0, 12.0, 4001)


def schools_reference(centred: bool) -> Reference:
    grid = log_tau_grid()
    law = Conditional.of_log_tau(grid.nodes)
    tau = np.exp(grid.nodes)[:, None]
    centre = law.slope * (EFFECT - law.mu_mean[:, None])
    gain = -law.slope
    variance = law.variance
    if centred:
        centre = law.mu_mean[:, None] + tau * centre
        gain = 1 + tau * gain
        variance = tau**2 * variance
    schools = moments.gaussian_moments(centre, variance + gain**2 * law.mu_variance[:, None])
    mu = moments.gaussian_moments(law.mu_mean, law.mu_variance)
    columns = np.column_stack([mu @ grid.weight, grid.moments(), np.einsum("t,ktj->kj", grid.weight, schools)])
    return moments.from_moments(columns, "Quadrature over log tau with all else integrated in closed form, 8 digits.")


def _schools(name: str, title: str, note: str, centred: bool) -> Target:
    return Target(
        name=name,
        title=title,
        note=note,
        build=partial(eight_schools, centred),
        find_reference=partial(schools_reference, centred),
    )


TARGETS = (
    Target(
        name="funnel",
        title="Neal's funnel, d = 10",
        note="The scale of nine coordinates is the exponential of the first, which has a standard deviation of 3: no "
        "step size suits both mouth and neck. A step that is stable in the neck never gets through the mouth, and a "
        "longer one never enters the neck, without a sign of failure. Only the first coordinate can be judged by its "
        "moments: the squares of the others have a standard deviation of 14,000.",
        build=funnel,
        find_reference=funnel_reference,
    ),
    _schools(
        "eight_schools",
        "eight schools, non-centred",
        "Effects of coaching in eight schools (Rubin, 1981), by their standardised deviations from the mean. The law "
        "of log tau is skewed, with a long tail towards 0 along which the likelihood is flat; otherwise it is gentle.",
        centred=False,
    ),
    _schools(
        "eight_schools_centred",
        "eight schools, centred",
        "The same posterior with the effects themselves as parameters: a funnel, because effects have to agree where "
        "tau is small. A sampler with a fixed step does not get to small tau, and reports a tau that is too large.",
        centred=True,
    ),
)
