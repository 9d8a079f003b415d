"""The acceptance set: PyMC models with moments of their posteriors, exact where a closed form or a quadrature exists.

Everything lives on the flat unconstrained vector: the model's continuous value variables, raveled in their order.
The error of an estimate of the second moment of a coordinate is ``b2 = (estimate - E[x^2])^2 / Var[x^2]``; a sampler
has converged by the usual bar when the largest of them, or their mean, is below 0.01.

What b2 sees depends on the target:

- ``phi4`` is symmetric under a change of sign, so its means are 0 whatever the weights of the two signs: second moments
  are well defined and b2 does not see the weights. All sites have the same law; the reference is pooled over them.
- ``mixture20`` has unequal weights about an overall mean of 0, so that the second moment of its first coordinate does
  depend on the weights: an error of .1 in a weight is a b2 of .017.
- ``funnel10`` has E[x^2] = 90 with a standard deviation of 14,000 in the coordinates other than the first: b2 says
  nothing there, and only the first coordinate counts.
- ``galaxies`` has priors that tell the clusters apart, so that labels do not switch; the two in the middle do overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import exact_moments as exact
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from exact_moments import Reference
from models import breast_cancer, galaxies, negative_binomial_glm, poisson_glm

from pmm_mcmc.workbench import targets as gallery

PATH = Path(__file__).parent / "target_references.json"
LATENT_LENGTH, VOLATILITY_LENGTH = 120, 500


@dataclass(frozen=True)
class Target:
    """A model of the acceptance set.

    Attributes
    ----------
    name : str
        Its key in ``TARGETS``.
    build : callable
        Returns a new ``pm.Model``.
    note : str
        What it is.
    exact : callable or None
        Returns the exact moments, where there are any.
    twin : callable or None
        Returns a model of the same posterior, with other coordinates, that a reference run samples more easily.
    trustworthy : bool
        False where a Langevin sampler without a reparametrisation cannot be trusted: a verdict has to say so.
    """

    name: str
    build: Callable[[], pm.Model]
    note: str
    exact: Callable[[], Reference] | None = None
    twin: Callable[[], pm.Model] | None = None
    trustworthy: bool = True


def from_gallery(name: str, source: str, note: str, **rest: bool) -> Target:
    """Take a target of the workbench into the set."""
    return Target(name, gallery.get(source).build, note, partial(exact.of_gallery, source), **rest)


@cache
def reference(name: str) -> Reference:
    """Moments of a target: exact ones, or those of the long runs in ``target_references.json``.

    Parameters
    ----------
    name : str
        A key of ``TARGETS``.

    Returns
    -------
    Reference
        Moments with their standard errors.

    Raises
    ------
    ValueError
        If there is no such target, or no reference run of it.
    """
    if name not in TARGETS:
        raise ValueError(f"name: there is no target {name!r}; there are: {', '.join(TARGETS)}")
    moments = TARGETS[name].exact
    if moments is not None:
        return moments()
    stored = json.loads(PATH.read_text())
    if name not in stored:
        raise ValueError(f"name: no reference run of {name!r}: run python benchmarks/common/make_references.py {name}")
    return Reference(**{field: np.array(stored[name][field]) for field in Reference.__dataclass_fields__})


def _sds(d: int) -> np.ndarray:
    return np.geomspace(0.1, 10.0, d)


def gaussian(d: int) -> pm.Model:
    """Independent Gaussians, standard deviations of .1 to 10."""
    with pm.Model() as model:
        pm.Normal("x", 0.0, _sds(d), shape=d)
    return model


def _rotated_basis(d: int = 100, condition: float = 1000.0) -> tuple[np.ndarray, np.ndarray]:
    """Variances along the principal axes, and the axes as columns."""
    axes, triangle = np.linalg.qr(np.random.default_rng(1000).normal(size=(d, d)))
    # The signs of R's diagonal make the rotation uniform, and the same with every LAPACK.
    return np.geomspace(condition**-0.5, condition**0.5, d), axes * np.sign(np.diag(triangle))


def rotated() -> pm.Model:
    """Gaussian with a dense precision matrix."""
    variances, axes = _rotated_basis()
    precision = (axes / variances) @ axes.T
    with pm.Model() as model:
        x = pm.Flat("x", shape=len(variances))
        pm.Potential("log_density", -0.5 * x @ pt.as_tensor(precision) @ x)
    return model


def rotated_moments() -> Reference:
    variances, axes = _rotated_basis()
    return exact.gaussian(axes**2 @ variances)


def school_moments(centred: bool) -> Reference:
    return exact.of_gallery("eight_schools_centred" if centred else "eight_schools")


def linear_recurrence(inputs, coefficient, n):
    """Solve h[t] = coefficient h[t - 1] + inputs[t] from h[0] = inputs[0], for ``n`` times.

    That is (1 - coefficient S) h = inputs, S the shift by one, whose solution is the product of
    (1 + coefficient^(2^k) S^(2^k)) applied to the inputs: a few vector operations in place of a loop.
    """
    h, power, shift = inputs, coefficient, 1
    while shift < n:
        h = h + power * pt.concatenate([pt.zeros(shift), h[:-shift]])
        power, shift = power**2, 2 * shift
    return h


def _autoregression(innovations, rho, scale, mu):
    """Stationary first-order autoregression about ``mu`` from standard normal innovations."""
    first = pt.concatenate([innovations[:1] / pt.sqrt(1 - rho**2), innovations[1:]])
    return mu + scale * linear_recurrence(first, rho, innovations.type.shape[0])


def _simulated_autoregression(n: int, rho: float, scale: float, mu: float, rng: np.random.Generator) -> np.ndarray:
    h = np.empty(n)
    h[0] = rng.normal() / np.sqrt(1 - rho**2)
    for t in range(1, n):
        h[t] = rho * h[t - 1] + rng.normal()
    return mu + scale * h


def stochastic_volatility() -> pm.Model:
    """Returns whose log variance is an autoregression, parametrised by its innovations (Kim, Shephard, Chib, 1998)."""
    rng = np.random.default_rng(1998)
    log_variance = _simulated_autoregression(VOLATILITY_LENGTH, 0.9, 0.5, -1.0, rng)
    returns = np.exp(log_variance / 2) * rng.normal(size=VOLATILITY_LENGTH)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        rho = pm.Beta("rho", 20.0, 3.0)
        scale = pm.HalfNormal("scale", 0.5)
        z = pm.Normal("z", shape=VOLATILITY_LENGTH)
        h = _autoregression(z, rho, scale, mu)
        pm.Normal("returns", 0.0, pm.math.exp(h / 2), observed=returns)
    return model


def latent_ar(centred: bool = True) -> pm.Model:
    """Counts whose log rate is an autoregression, parametrised by the log rate itself or by its innovations."""
    rng = np.random.default_rng(120)
    counts = rng.poisson(np.exp(_simulated_autoregression(LATENT_LENGTH, 0.8, 0.4, 1.0, rng)))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        rho = pm.Beta("rho", 8.0, 2.0)
        s = pm.HalfNormal("s", 1.0)
        if centred:
            start = pm.Normal.dist(mu, s / pt.sqrt(1 - rho**2))
            x = pm.AR("x", [mu * (1 - rho), rho], sigma=s, constant=True, init_dist=start, shape=LATENT_LENGTH)
        else:
            z = pm.Normal("z", shape=LATENT_LENGTH)
            x = pm.Deterministic("x", _autoregression(z, rho, s, mu))
        pm.Poisson("counts", pm.math.exp(x), observed=counts)
    return model


FUNNEL = {"trustworthy": False}
TARGETS: dict[str, Target] = {
    target.name: target
    for target in [
        Target("gaussian100", partial(gaussian, 100), "independent", lambda: exact.gaussian(_sds(100) ** 2)),
        Target("gaussian1000", partial(gaussian, 1000), "independent", lambda: exact.gaussian(_sds(1000) ** 2)),
        Target("rotated100", rotated, "condition number 1000", rotated_moments),
        Target("breast_cancer", breast_cancer, "logistic regression, d = 31"),
        Target("poisson_glm", poisson_glm, "synthetic counts, d = 4"),
        Target("negative_binomial_glm", negative_binomial_glm, "synthetic counts, d = 5"),
        from_gallery("eight_schools", "eight_schools", "non-centred"),
        from_gallery("mixture20", "mixture_unequal", "modes 4 sd apart"),
        from_gallery("banana", "banana", "5 curved pairs"),
        from_gallery("rosenbrock36", "rosenbrock", "18 strongly curved pairs"),
        Target("phi4", gallery.get("lattice").build, "8x8 lattice field, not log-concave"),
        Target("galaxies", galaxies, "four clusters, two of which overlap, d = 11"),
        Target("stochastic_volatility", stochastic_volatility, "500 latents by their innovations"),
        Target("latent_ar", latent_ar, "120 latents, scale centred", twin=partial(latent_ar, centred=False)),
        from_gallery("funnel10", "funnel", "Neal's", **FUNNEL),
        from_gallery("eight_schools_centred", "eight_schools_centred", "centred", **FUNNEL),
    ]
}
