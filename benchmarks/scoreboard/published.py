"""Targets that other samplers publish figures on, by their definitions.

Brownian motion, logistic regression, sparse and not, item response and banana are those of inference_gym, as the
benchmarks of sampler-benchmarks take them.  Its stochastic volatility has 2,427 returns of the S&P 500 that have no
licence; here the same model has the 2,516 of inference_gym, so that figures compare only roughly.  Its Rosenbrock and
its ill-conditioned Gaussian are ``acceptance/rosenbrock36`` and ``acceptance/rotated100``, of other matrices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from exact_moments import Reference, bent_pairs
from scoreboard.posteriordb import data


def brownian_motion() -> pm.Model:
    observed = data("brownian_motion").observed.astype(float)
    seen = np.isfinite(observed)
    with pm.Model() as model:
        innovation, noise = (pm.LogNormal(f"{name}_noise_scale", 0, 2) for name in ("innovation", "observation"))
        locs = pm.GaussianRandomWalk("locs", sigma=innovation, init_dist=pm.Normal.dist(0, innovation), steps=29)
        pm.Normal("observed", locs[np.flatnonzero(seen)], noise, observed=observed[seen])
    return model


def _german_credit() -> tuple[np.ndarray, np.ndarray]:
    """Return 24 standardised features with an intercept, and which credits went bad."""
    d = data("german_credit")
    scaled = (d.features - d.features.mean(axis=0)) / d.features.std(axis=0)
    return np.column_stack([scaled, np.ones(len(d.bad))]), d.bad


def german25() -> pm.Model:
    x, bad = _german_credit()
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=25)
        pm.Bernoulli("bad", logit_p=x @ weights, observed=bad)
    return model


def german_sparse() -> pm.Model:
    x, bad = _german_credit()
    with pm.Model() as model:
        overall = pm.Gamma("global_scale", 0.5, 0.5)
        local = pm.Gamma("local_scales", 0.5, 0.5, shape=25)
        weights = pm.Normal("unscaled_weights", shape=25)
        # inference_gym has the labels the other way round from TensorFlow Datasets: 1 is a bad risk.
        pm.Bernoulli("bad", logit_p=pt.as_tensor(x) @ (weights * local * overall), observed=bad)
    return model


def item_response() -> pm.Model:
    answers = np.array([list(row) for row in data("item_response").answers])
    student, question = np.nonzero(answers != ".")
    with pm.Model() as model:
        mean = pm.Normal("mean_student_ability", 0.75, 1)
        ability = pm.Normal("centered_student_ability", shape=answers.shape[0])
        difficulty = pm.Normal("question_difficulty", shape=answers.shape[1])
        logit = mean + ability[student] - difficulty[question]
        pm.Bernoulli("correct", logit_p=logit, observed=(answers[student, question] == "1").astype(int))
    return model


def stochastic_volatility() -> pm.Model:
    returns = 100 * np.diff(np.log(data("sp500").closing_prices))
    with pm.Model() as model:
        sigma, nu = pm.Exponential("sigma", 50), pm.Exponential("nu", 0.1)
        first = pm.Normal.dist(0, sigma)
        s = pm.GaussianRandomWalk("s", sigma=sigma, init_dist=first, steps=len(returns) - 1)
        pm.StudentT("returns", nu=nu, mu=0, sigma=pt.exp(s), observed=returns)
    return model


def banana() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 10)
        pm.Normal("b", 0.03 * (a**2 - 100), 1)
    return model


def banana_moments() -> Reference:
    return bent_pairs(1, 0.0, 10.0, lambda a: 0.03 * (a**2 - 100), 1.0)


PUBLISHED: dict[str, Callable[[], pm.Model]] = {
    "brownian_motion": brownian_motion,
    "german25": german25,
    "german_sparse": german_sparse,
    "item_response": item_response,
    "stochastic_volatility": stochastic_volatility,
    "banana2": banana,
}
