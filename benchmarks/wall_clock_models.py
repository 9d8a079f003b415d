"""Models as people write them, on data simulated with fixed seeds: what ``wall_clock`` times."""

from __future__ import annotations

import numpy as np
import pymc as pm

__all__ = ["gaussian_process", "item_response", "radon", "robust_regression", "survival", "zero_inflated"]


def radon() -> pm.Model:
    rng = np.random.default_rng(1)
    county = np.repeat(np.arange(40), rng.integers(1, 16, 40))
    uranium = rng.normal(0, 0.4, 40)
    floor = rng.binomial(1, 0.25, county.size).astype(float)
    intercept, slope = 1.4 + 0.7 * uranium + rng.normal(0, 0.2, 40), rng.normal(-0.7, 0.3, 40)
    y = intercept[county] + slope[county] * floor + rng.normal(0, 0.75, county.size)
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0, 2, shape=2)
        mu_slope = pm.Normal("mu_slope", 0, 2)
        sd_intercept, sd_slope = pm.Exponential("sd_intercept", 1), pm.Exponential("sd_slope", 1)
        a = pm.Normal("intercept", gamma[0] + gamma[1] * uranium, sd_intercept, shape=40)
        b = pm.Normal("slope", mu_slope, sd_slope, shape=40)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y)
    return model


def survival() -> pm.Model:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(150, 3))
    time = np.exp(1.0 + x @ [0.5, -0.3, 0.0]) * rng.weibull(1.6, 150)
    end = rng.uniform(1, 6, 150)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1, shape=3)
        shape = pm.Gamma("shape", 2, 1)
        lifetime = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(intercept + x @ slope))
        pm.Censored("y", lifetime, lower=None, upper=end, observed=np.minimum(time, end))
    return model


def gaussian_process() -> pm.Model:
    rng = np.random.default_rng(6)
    place = np.sort(rng.uniform(0, 10, 40))
    y = np.sin(place) + 0.3 * np.cos(3 * place) + rng.normal(0, 0.3, 40)
    with pm.Model() as model:
        length = pm.InverseGamma("length", 3, 3)
        eta, sigma = pm.HalfNormal("eta", 2), pm.HalfNormal("sigma", 1)
        process = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=length))
        process.marginal_likelihood("y", X=place[:, None], y=y, sigma=sigma)
    return model


def item_response() -> pm.Model:
    rng = np.random.default_rng(7)
    ability, difficulty, discrimination = rng.normal(size=80), rng.normal(0, 1, 12), np.exp(rng.normal(0, 0.4, 12))
    y = rng.binomial(1, 1 / (1 + np.exp(-discrimination * (ability[:, None] - difficulty))))
    with pm.Model() as model:
        ability = pm.Normal("ability", shape=80)
        difficulty = pm.Normal("difficulty", 0, 2, shape=12)
        discrimination = pm.LogNormal("discrimination", 0, 0.5, shape=12)
        pm.Bernoulli("y", logit_p=discrimination * (ability[:, None] - difficulty), observed=y)
    return model


def zero_inflated() -> pm.Model:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(250, 2))
    rate = np.exp(0.8 + x @ [0.5, -0.4])
    y = rng.binomial(1, 0.6, 250) * rng.negative_binomial(2.0, 2.0 / (2.0 + rate))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1, shape=2)
        psi = pm.Beta("psi", 1, 1)
        alpha = pm.Gamma("alpha", 2, 0.5)
        mu = pm.math.exp(intercept + x @ slope)
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=y)
    return model


def robust_regression() -> pm.Model:
    rng = np.random.default_rng(12)
    x = rng.normal(size=(120, 4))
    y = 1.0 + x @ [1.0, -0.5, 0.3, 0.0] + 0.5 * rng.standard_t(2.5, 120)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 5)
        slope = pm.Normal("slope", 0, 2, shape=4)
        sigma = pm.HalfNormal("sigma", 2)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=intercept + x @ slope, sigma=sigma, observed=y)
    return model
