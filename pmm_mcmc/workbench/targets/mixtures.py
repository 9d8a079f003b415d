"""Posteriors of several modes: two Gaussians, and the galaxies mixture, whose labels switch."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.target import Reference, Target

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS", "velocities"]

CLUSTERS = 3


def two_gaussians(weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> pm.Model:
    """Build two unit Gaussians whose means lie on the first axis."""
    import pymc as pm

    with pm.Model() as model:
        x = pm.Flat("x", shape=d)
        terms = [float(np.log(w)) - 0.5 * (x[0] - m) ** 2 for w, m in zip(weight, mean, strict=True)]
        pm.Potential("log_density", pm.math.logaddexp(*terms) - 0.5 * (x[1:] ** 2).sum())
    return model


def mixture_reference(weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> Reference:
    axis = moments.gaussian_moments(np.array(mean), np.ones(len(mean))) @ np.array(weight)
    others = moments.gaussian_moments(np.zeros(d - 1), np.ones(d - 1))
    return moments.from_moments(np.column_stack([axis, others]), "Closed form, to rounding.")


def _mixture(name: str, title: str, note: str, weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> Target:
    build = partial(two_gaussians, weight, mean, d)
    find = partial(mixture_reference, weight, mean, d)
    return Target(name, f"{title}, d = {d}", note, build, find)


@cache
def velocities() -> np.ndarray:
    """Return the velocities of 82 galaxies in 1000 km/s (Roeder, 1990)."""
    return np.loadtxt(moments.DATA / "galaxies.csv", skiprows=3) / 1000.0


def galaxies() -> pm.Model:
    """Build a mixture of three Gaussians with exchangeable priors (Richardson and Green, 1997)."""
    import pymc as pm

    with pm.Model() as model:
        weight = pm.Dirichlet("weight", np.full(CLUSTERS, 2.0))
        mean = pm.Normal("mean", 21.0, 8.0, shape=CLUSTERS)
        variance = pm.InverseGamma("variance", 2.0, 2.0, shape=CLUSTERS)
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=pm.math.sqrt(variance), observed=velocities())
    return model


TARGETS = (
    _mixture(
        "mixture_4sd",
        "two Gaussians 4 sd apart",
        "Two unit Gaussians with a valley of 1.3 units of log density between them. A chain crosses every few dozen "
        "units of time, so that the weights of the modes converge last.",
        (0.5, 0.5),
        (-2.0, 2.0),
        10,
    ),
    _mixture(
        "mixture_7sd",
        "two Gaussians 7 sd apart",
        "Two unit Gaussians with a valley of 5.4 units of log density between them. Crossings are rare events: a run "
        "of ordinary length sees few, and a chain that sees none looks converged.",
        (0.5, 0.5),
        (-3.5, 3.5),
        10,
    ),
    _mixture(
        "mixture_unequal",
        "two Gaussians 4 sd apart, weights .7 and .3",
        "As mixture_4sd, in 20 dimensions and with unequal weights about an overall mean of 0, so that the second "
        "moment of the first coordinate depends on the weights: an error of .1 in a weight moves it by .13 of the "
        "standard deviation of its square.",
        (0.7, 0.3),
        (-1.2, 2.8),
        20,
    ),
    Target(
        name="galaxies",
        title="galaxies, a mixture of three Gaussians",
        note="Velocities of 82 galaxies as a mixture of three clusters with exchangeable priors (Roeder, 1990; "
        "Richardson and Green, 1997): the posterior has 3! = 6 equal copies of every mode. Chains that move locally "
        "stay in the copy where they start, and disagree. Within a copy there is a second grouping, without a far "
        "cluster, with a probability of about .08: ordinary initial points lead there, and neither a Langevin sampler "
        "nor NUTS finds the main grouping within usual budgets.",
        build=galaxies,
        find_reference=partial(moments.stored, "galaxies"),
    ),
)
