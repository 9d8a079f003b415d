"""Models of the kinds that people fit, as they write them, on data simulated with fixed seeds.

Hierarchical ones are centred; their twins are the same models non-centred by hand, from which a reference is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

__all__ = ["POSTERIORS", "Posterior"]


@dataclass(frozen=True)
class Posterior:
    """A model.

    Attributes
    ----------
    build : callable
        Returns a new model.
    note : str
        What it is.
    twin : callable or None
        Returns a model of the same parameters, by the same names, that NUTS samples more easily.
    draws : int
        Draws of each chain for the reference.
    """

    build: Callable[[], pm.Model]
    note: str
    twin: Callable[[], pm.Model] | None = None
    draws: int = 3000


def _effects(name: str, mean: Any, sd: Any, shape: Any, centred: bool) -> Any:
    if centred:
        return pm.Normal(name, mean, sd, shape=shape)
    return pm.Deterministic(name, mean + sd * pm.Normal(f"z_{name}", shape=shape))


def radon(centred: bool = True) -> pm.Model:
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
        a = _effects("intercept", gamma[0] + gamma[1] * uranium, sd_intercept, 40, centred)
        b = _effects("slope", mu_slope, sd_slope, 40, centred)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y)
    return model


def garch() -> pm.Model:
    rng = np.random.default_rng(2)
    y, volatility = np.zeros(400), 1.0
    for t in range(400):
        volatility = np.sqrt(0.2 + 0.25 * y[t - 1] ** 2 + 0.6 * volatility**2) if t else 1.0
        y[t] = volatility * rng.normal()
    with pm.Model() as model:
        omega = pm.HalfNormal("omega", 1)
        alpha = pm.Uniform("alpha", 0, 1)
        beta = pm.Uniform("beta", 0, 1 - alpha)
        pm.GARCH11("y", omega=omega, alpha_1=alpha, beta_1=beta, initial_vol=1.0, observed=y)
    return model


def autoregression() -> pm.Model:
    rng = np.random.default_rng(3)
    y = np.zeros(200)
    for t in range(3, 200):
        y[t] = 0.5 + 0.6 * y[t - 1] - 0.3 * y[t - 2] + 0.4 * y[t - 3] + rng.normal(0, 0.8)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 1, shape=4)
        sigma = pm.HalfNormal("sigma", 2)
        pm.AR("y", rho, sigma=sigma, constant=True, init_dist=pm.Normal.dist(0, 10, shape=3), observed=y)
    return model


def ordered_logistic() -> pm.Model:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(300, 3))
    latent = x @ [1.0, -0.5, 0.2] + rng.logistic(size=300)
    y = np.digitize(latent, [-2.0, -0.5, 0.6, 2.5])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=3)
        cut = pm.Normal(
            "cut", 0, 3, shape=4, transform=pm.distributions.transforms.ordered, initval=[-2.0, -1.0, 1.0, 2.0]
        )
        pm.OrderedLogistic("y", eta=x @ beta, cutpoints=cut, observed=y)
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


def mixture_of_regressions() -> pm.Model:
    rng = np.random.default_rng(9)
    x = rng.uniform(-2, 2, 200)
    first = rng.random(200) < 0.4
    y = np.where(first, 1.0 - 1.0 * x, -0.5 + 1.2 * x) + np.where(first, 0.4, 0.8) * rng.normal(size=200)
    with pm.Model() as model:
        weight = pm.Dirichlet("weight", np.ones(2))
        intercept = pm.Normal("intercept", 0, 2, shape=2)
        ordered = pm.distributions.transforms.ordered
        slope = pm.Normal("slope", 0, 2, shape=2, transform=ordered, initval=[-1.0, 1.0])
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        pm.NormalMixture("y", w=weight, mu=intercept + slope * x[:, None], sigma=sigma, observed=y)
    return model


def epidemic(centred: bool = True) -> pm.Model:
    towns, days, people = 4, 40, 5000.0
    rng = np.random.default_rng(10)
    rate, recovery = np.exp(rng.normal(np.log(0.45), 0.2, towns)), 0.2
    s, i, cases = np.full(towns, people - 10), np.full(towns, 10.0), []
    for _ in range(days):
        new = rate * s * i / people
        s, i = s - new, i + new - recovery * i
        cases.append(rng.negative_binomial(15.0, 15.0 / (15.0 + new)))

    def day(s, i, rate, recovery):
        new = rate * s * i / people
        return s - new, i + new - recovery * i, new

    with pm.Model() as model:
        mu = pm.Normal("mu", np.log(0.4), 0.5)
        spread = pm.HalfNormal("spread", 0.5)
        log_rate = _effects("log_rate", mu, spread, towns, centred)
        recovery = pm.LogNormal("recovery", np.log(0.2), 0.3)
        seed = pm.LogNormal("seed", np.log(10), 0.5, shape=towns)
        alpha = pm.Exponential("alpha", 0.1)
        (_, _, new), _ = pytensor.scan(
            day,
            outputs_info=[people - seed, seed, None],
            non_sequences=[pm.math.exp(log_rate), recovery],
            n_steps=days,
            strict=True,
        )
        pm.NegativeBinomial("cases", mu=pt.maximum(new, 1e-6), alpha=alpha, observed=np.array(cases))
    return model


def beta_binomial() -> pm.Model:
    rng = np.random.default_rng(11)
    n = rng.integers(8, 40, 40)
    y = rng.binomial(n, rng.beta(2.0, 10.0, 40))
    with pm.Model() as model:
        phi = pm.Beta("phi", 1, 1)
        kappa = pm.LogNormal("kappa", 3, 1)
        theta = pm.Beta("theta", phi * kappa, (1 - phi) * kappa, shape=40)
        pm.Binomial("y", n, theta, observed=y)
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


def local_level(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(13)
    y = np.cumsum(rng.normal(0, 0.3, 80)) + rng.normal(0, 0.6, 80)
    with pm.Model() as model:
        drift, sigma = pm.HalfNormal("drift", 1), pm.HalfNormal("sigma", 1)
        if centred:
            level = pm.GaussianRandomWalk("level", sigma=drift, init_dist=pm.Normal.dist(0, 2), steps=79)
        else:
            start, z = pm.Normal("start", 0, 2), pm.Normal("z", shape=79)
            level = pm.Deterministic("level", start + drift * pt.concatenate([[0.0], pt.cumsum(z)]))
        pm.Normal("y", level, sigma, observed=y)
    return model


def pharmacokinetics(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(14)
    hours, dose = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 24.0]), 320.0
    truth = np.log([1.5, 2.8, 32.0]) + rng.normal(0, [0.5, 0.25, 0.15], (12, 3))

    def concentration(log_absorption, log_clearance, log_volume, m):
        # Absorption is faster than elimination by its own parameter: else the two may change places.
        faster, k = m.exp(log_absorption)[:, None], m.exp(log_clearance - log_volume)[:, None]
        scale = dose * (k + faster) / (m.exp(log_volume)[:, None] * faster)
        return scale * m.exp(-k * hours) * (1 - m.exp(-faster * hours))

    y = concentration(*truth.T, np) * np.exp(rng.normal(0, 0.15, (12, 9)))
    with pm.Model() as model:
        mu = pm.Normal("mu", np.log([1.0, 3.0, 30.0]), 0.5, shape=3)
        omega = pm.HalfNormal("omega", 0.5, shape=3)
        sigma = pm.HalfNormal("sigma", 0.5)
        subject = _effects("subject", mu, omega, (12, 3), centred)
        predicted = concentration(subject[:, 0], subject[:, 1], subject[:, 2], pm.math)
        pm.LogNormal("y", pm.math.log(predicted), sigma, observed=y)
    return model


def softmax_regression() -> pm.Model:
    rng = np.random.default_rng(15)
    x = rng.normal(size=(200, 3))
    score = x @ rng.normal(size=(3, 3)) + [0.5, 0.0, -0.5]
    y = np.argmax(score + rng.gumbel(size=score.shape), axis=1)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2, shape=3)
        slope = pm.Normal("slope", 0, 2, shape=(3, 3))
        pm.Categorical("y", logit_p=intercept + x @ slope, observed=y)
    return model


POSTERIORS: dict[str, Posterior] = {
    "robust_regression": Posterior(robust_regression, "Student t regression, degrees of freedom unknown"),
    "zero_inflated": Posterior(zero_inflated, "zero-inflated negative binomial regression"),
    "ordered_logistic": Posterior(ordered_logistic, "ordered logistic regression, five answers"),
    "survival": Posterior(survival, "Weibull survival with censoring"),
    "softmax_regression": Posterior(softmax_regression, "three classes, one of them redundant"),
    "autoregression": Posterior(autoregression, "AR(3) with a constant"),
    "garch": Posterior(garch, "GARCH(1,1), 400 returns"),
    "mixture_of_regressions": Posterior(mixture_of_regressions, "two regression lines mixed"),
    "gaussian_process": Posterior(gaussian_process, "Gaussian process, length scale unknown, marginal"),
    "item_response": Posterior(item_response, "two-parameter item response, 80 persons, 12 items"),
    "beta_binomial": Posterior(beta_binomial, "40 rates under a common beta law"),
    "radon": Posterior(radon, "varying intercepts and slopes, 40 counties", lambda: radon(False)),
    "local_level": Posterior(local_level, "random walk with noise, 80 steps", lambda: local_level(False)),
    "pharmacokinetics": Posterior(
        pharmacokinetics, "one compartment, 12 subjects", lambda: pharmacokinetics(False), draws=2000
    ),
    "epidemic": Posterior(epidemic, "SIR by Euler steps, 4 towns", lambda: epidemic(False), draws=1000),
}
