"""Posteriors of the kinds that people fit, for tests against references and benchmarks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from sklearn.datasets import load_breast_cancer

from pmm_mcmc.workbench.targets import gallery
from pmm_mcmc.workbench.targets.gallery import student_regression, velocities

eight_schools = partial(gallery.eight_schools, False)


def breast_cancer() -> pm.Model:
    data = load_breast_cancer()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=intercept + x @ slope, observed=data.target)
    return model


def _covariates(n: int, d: int, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng


def poisson_glm() -> pm.Model:
    x, rng = _covariates(150, 3, 1)
    y = rng.poisson(np.exp(0.7 + x @ np.array([0.5, -0.3, 0.2])))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(intercept + x @ slope), observed=y)
    return model


def negative_binomial_glm() -> pm.Model:
    x, rng = _covariates(200, 3, 2)
    rate = np.exp(1.0 + x @ np.array([0.6, -0.2, 0.0]))
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + rate))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1, shape=3)
        alpha = pm.Gamma("alpha", 2, 0.5)
        pm.NegativeBinomial("y", mu=pm.math.exp(intercept + x @ slope), alpha=alpha, observed=y)
    return model


def hierarchical_normal() -> pm.Model:
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(12), 15)
    y = 1.0 + rng.normal(size=12)[group] + 1.5 * rng.normal(size=group.size)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfNormal("tau", 2)
        effect = pm.Normal("effect", mu, tau, shape=12)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", effect[group], sigma, observed=y)
    return model


def lkj() -> pm.Model:
    rng = np.random.default_rng(4)
    true = np.array([[1.0, 0.6, -0.2], [0.6, 1.0, 0.1], [-0.2, 0.1, 1.0]]) * np.outer([1, 2, 0.5], [1, 2, 0.5])
    y = rng.multivariate_normal(np.zeros(3), true, size=80)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("cov", n=3, eta=2, sd_dist=pm.HalfNormal.dist(2, shape=3))
        mu = pm.Normal("mu", 0, 2, shape=3)
        pm.MvNormal("y", mu, chol=chol, observed=y)
    return model


def galaxies() -> pm.Model:
    with pm.Model(coords={"cluster": ["near", "middle A", "middle B", "far"]}) as model:
        weight = pm.Dirichlet("weight", np.full(4, 2.0), dims="cluster")
        mean = pm.Normal("mean", np.array([10.0, 20.0, 23.0, 33.0]), 1.5, dims="cluster")
        sd = pm.LogNormal("sd", np.log(1.5), 0.5, dims="cluster")
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=sd, observed=velocities())
    return model


MODELS = {
    "eight schools": eight_schools,
    "breast cancer": breast_cancer,
    "poisson glm": poisson_glm,
    "negative binomial glm": negative_binomial_glm,
    "hierarchical normal": hierarchical_normal,
    "lkj": lkj,
    "student regression": student_regression,
    "galaxies": galaxies,
}


def noisy_walk(seed: int) -> pm.Model:
    """Build a walk seen with noise, as in inference_gym: data bound the noise from above only, and it has a neck."""
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(0, 0.1, 30)) + rng.normal(0, 0.15, 30)
    seen = np.r_[0:10, 20:30]
    with pm.Model() as model:
        step, noise = pm.LogNormal("step", 0, 2), pm.LogNormal("noise", 0, 2)
        walk = pm.GaussianRandomWalk("walk", sigma=step, init_dist=pm.Normal.dist(0, step), steps=29)
        pm.Normal("y", walk[seen], noise, observed=y[seen])
    return model


def unequal(d: int) -> pm.Model:
    """Build normals of weight 1/2 each with sd 1 at 5 and sd 1/2 at -5, from the prior N(0, 25)."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 5.0, shape=d)
        prior = pm.logp(pm.Normal.dist(0.0, 5.0, shape=d), x).sum()
        centre = np.zeros(d)
        centre[0] = 5.0
        wide = np.log(0.5) - 0.5 * ((x - centre) ** 2).sum()
        narrow = np.log(0.5) - 2.0 * ((x + centre) ** 2).sum() + d * np.log(2.0)
        pm.Potential("modes", pt.logaddexp(wide, narrow) - prior)
    return model
