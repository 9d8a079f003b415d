"""Mixtures of two Gaussians, and the galaxies mixture, whose labels switch."""

from __future__ import annotations

from functools import cache, partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import norm

from pmm_mcmc.workbench.targets import moments
from pmm_mcmc.workbench.targets.formulas import from_formula
from pmm_mcmc.workbench.targets.stored import DATA, stored_reference
from pmm_mcmc.workbench.targets.target import Modes, Reference, Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["TARGETS"]


class _Galaxies(NamedTuple):
    """Number of clusters, and the prior of each: of its weight, its mean and its variance, in units of 1000 km/s."""

    clusters: int = 3
    concentration: float = 2.0
    mean: float = 21.0
    sd: float = 8.0
    shape: float = 2.0
    scale: float = 2.0


GALAXIES = _Galaxies()


# -- two Gaussians -----------------------------------------------------------------------------------------------------


def two_gaussians(x: Any, xp: Any, weight: tuple[float, ...], mean: tuple[float, ...]) -> Any:
    """Return the log density of two unit Gaussians whose means lie on the first axis."""
    terms = [float(np.log(w)) - 0.5 * (x[0] - m) ** 2 for w, m in zip(weight, mean, strict=True)]
    return xp.logaddexp(*terms) - 0.5 * (x[1:] ** 2).sum()


def mixture_reference(weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> Reference:
    first = moments.gaussian_moments(np.array(mean), np.ones(len(mean))) @ np.array(weight)
    rest = moments.gaussian_moments(np.zeros(d - 1), np.ones(d - 1))
    return moments.from_moments(np.column_stack([first, rest]), "Closed form, to rounding.")


def mixture_modes(weight: tuple[float, ...], mean: tuple[float, ...]) -> Modes:
    """Return the two sides of the plane half way between the means."""
    halfway = sum(mean) / 2
    right = float(np.dot(weight, norm.sf(halfway, loc=mean)))
    return Modes(("left", "right"), np.array([1 - right, right]), lambda x: (np.asarray(x)[..., 0] > halfway) + 0)


def draw_mixture(
    n: int, rng: np.random.Generator, weight: tuple[float, ...], mean: tuple[float, ...], d: int
) -> np.ndarray:
    draws = rng.normal(size=(n, d))
    draws[:, 0] += rng.choice(mean, size=n, p=weight)
    return draws


def _mixture(name: str, title: str, note: str, weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> Target:
    return from_formula(
        partial(two_gaussians, weight=weight, mean=mean),
        "x",
        (d,),
        name=name,
        title=f"{title}, d = {d}",
        note=note,
        find_reference=partial(mixture_reference, weight, mean, d),
        find_modes=partial(mixture_modes, weight, mean),
        draw=partial(draw_mixture, weight=weight, mean=mean, d=d),
    )


# -- galaxies ----------------------------------------------------------------------------------------------------------


@cache
def velocities() -> np.ndarray:
    """Return the velocities of 82 galaxies in 1000 km/s (Roeder, 1990)."""
    return np.loadtxt(DATA / "galaxies.csv", skiprows=3) / 1000.0


def galaxies() -> pm.Model:
    """Build a mixture of three Gaussians with exchangeable priors (Richardson and Green, 1997)."""
    import pymc as pm

    with pm.Model() as model:
        weight = pm.Dirichlet("weight", np.full(GALAXIES.clusters, GALAXIES.concentration))
        mean = pm.Normal("mean", GALAXIES.mean, GALAXIES.sd, shape=GALAXIES.clusters)
        variance = pm.InverseGamma("variance", GALAXIES.shape, GALAXIES.scale, shape=GALAXIES.clusters)
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=pm.math.sqrt(variance), observed=velocities())
    return model


def galaxies_log_density(q: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.special import logsumexp

    # Logarithms of the weights less their mean, the last left out.
    ratio, mean, log_variance = (
        q[: GALAXIES.clusters - 1],
        q[GALAXIES.clusters - 1 : 2 * GALAXIES.clusters - 1],
        q[2 * GALAXIES.clusters - 1 :],
    )
    ratio = jnp.concatenate([ratio, -ratio.sum(keepdims=True)])
    log_weight = ratio - logsumexp(ratio)
    squares = (velocities()[:, None] - mean) ** 2
    terms = log_weight - 0.5 * log_variance - 0.5 * squares * jnp.exp(-log_variance)
    prior = (
        GALAXIES.concentration * log_weight.sum()
        - 0.5 * (((mean - GALAXIES.mean) / GALAXIES.sd) ** 2).sum()
        - (GALAXIES.shape * log_variance + GALAXIES.scale * jnp.exp(-log_variance)).sum()
    )
    return prior + logsumexp(terms, axis=1).sum()


def _order_of_means(x: np.ndarray) -> np.ndarray:
    order = np.argsort(np.asarray(x)[..., GALAXIES.clusters - 1 : 2 * GALAXIES.clusters - 1], axis=-1)
    # Permutations in lexicographic order, as itertools has them.
    known = np.array(list(permutations(range(GALAXIES.clusters))))
    return (order[..., None, :] == known).all(axis=-1).argmax(axis=-1)


def galaxies_modes() -> Modes:
    names = tuple(" < ".join(f"mean[{k}]" for k in order) for order in permutations(range(GALAXIES.clusters)))
    return Modes(names, np.full(len(names), 1 / len(names)), _order_of_means)


TARGETS = (
    _mixture(
        "mixture_overlapping",
        "two Gaussians 2.5 sd apart",
        "Two unit Gaussians so close that the valley between them is shallow. The density is not log-concave, but "
        "easy: a sampler that fails here has a bug.",
        (0.5, 0.5),
        (-1.25, 1.25),
        10,
    ),
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
        labels=(
            *(f"log ratio of weight[{k}]" for k in range(GALAXIES.clusters - 1)),
            *labels_of(mean=(GALAXIES.clusters,), log_variance=(GALAXIES.clusters,)),
        ),
        build=galaxies,
        find_reference=partial(stored_reference, "galaxies"),
        log_density_of=galaxies_log_density,
        find_modes=galaxies_modes,
    ),
)
