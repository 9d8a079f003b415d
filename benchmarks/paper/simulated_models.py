"""Small models whose parameters and data are drawn from themselves, for ``calibration_by_simulation.py``.

Each has its data in ``pm.Data("data")``, so that its log density is compiled once, one observed variable, ``y``, and
``log_likelihood``, the log likelihood of the data, beside the parameters.  Priors are such that simulated data
are of the sizes that people have: they are where the truth comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

__all__ = ["SIMULATED", "Simulated"]


class Simulated(NamedTuple):
    """A model and what it is."""

    build: Callable[[], pm.Model]
    note: str


def _observe(distribution: type, rows: int, *arguments: Any, dtype: type = float, **parameters: Any) -> None:
    """Observe ``rows`` values of a distribution, to be exchanged for others, and keep their log likelihood."""
    data = pm.Data("data", np.ones(rows, dtype=dtype))
    y = distribution("y", *arguments, **parameters, observed=data)
    pm.Deterministic("log_likelihood", pm.logp(y, data).sum())


def _covariates(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def linear() -> pm.Model:
    x = _covariates(30, 3, 1)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        _observe(pm.Normal, 30, intercept + x @ slope, sigma)
    return model


def counts() -> pm.Model:
    x = _covariates(50, 2, 2)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 1, 0.5), pm.Normal("slope", 0, 0.4, shape=2)
        alpha = pm.Gamma("alpha", 3, 1)
        _observe(pm.NegativeBinomial, 50, mu=pm.math.exp(intercept + x @ slope), alpha=alpha, dtype=np.int64)
    return model


def groups() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=8)
        _observe(pm.Normal, 8, theta, 1.0)
    return model


def logistic() -> pm.Model:
    x = _covariates(60, 3, 4)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 1.5), pm.Normal("slope", 0, 1.5, shape=3)
        _observe(pm.Bernoulli, 60, logit_p=intercept + x @ slope, dtype=np.int64)
    return model


def survival(end: float = 6.0) -> pm.Model:
    x = _covariates(40, 2, 5)
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 1, 0.5), pm.Normal("slope", 0, 0.5, shape=2)
        shape = pm.Gamma("shape", 4, 3)
        scale = pm.math.exp(intercept + x @ slope)
        lifetime = pm.Weibull.dist(alpha=shape, beta=scale)
        data = pm.Data("data", np.ones(40))
        pm.Censored("y", lifetime, lower=None, upper=end, observed=data)
        # PyMC's own log density of a censored variable cannot be a Deterministic: it holds copies of the parameters.
        terms = pm.math.where(data < end, pm.logp(lifetime, data), -((data / scale) ** shape))
        pm.Deterministic("log_likelihood", terms.sum())
    return model


def mixture() -> pm.Model:
    with pm.Model() as model:
        low, gap = pm.Normal("low", 0, 1), pm.Gamma("gap", 3, 1)
        weight = pm.Beta("weight", 3, 3)
        sigma = pm.Gamma("sigma", 8, 10)
        w, mu = pm.math.stack([weight, 1 - weight]), pm.math.stack([low, low + gap])
        _observe(pm.NormalMixture, 60, w=w, mu=mu, sigma=sigma)
    return model


SIMULATED: dict[str, Simulated] = {
    "linear": Simulated(linear, "linear regression, 30 rows, 3 slopes"),
    "counts": Simulated(counts, "negative binomial regression, 50 rows, 2 slopes"),
    "groups": Simulated(groups, "normal hierarchy, centred, 8 groups of one observation"),
    "logistic": Simulated(logistic, "logistic regression, 60 rows, 3 slopes"),
    "survival": Simulated(survival, "Weibull survival censored at 6, 40 rows, 2 slopes"),
    "mixture": Simulated(mixture, "two normal components, means ordered, 60 rows"),
}
