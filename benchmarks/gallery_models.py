"""Models of PyMC's example gallery, chapter by chapter, as one would type them: ``gallery`` of the scoreboard.

Data are simulated with fixed seeds, but for those that are public and short: eight schools, rugby.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

# The Six Nations of 2014: home, away, and their scores.  0 Wales, 1 France, 2 Ireland, 3 Scotland, 4 Italy, 5 England.
HOME = np.array([0, 1, 2, 2, 3, 1, 0, 4, 5, 2, 3, 5, 4, 0, 1])
AWAY = np.array([4, 5, 3, 0, 5, 4, 1, 3, 2, 4, 1, 0, 5, 3, 2])
HOME_SCORE = np.array([23, 26, 28, 26, 0, 30, 27, 20, 13, 46, 17, 29, 11, 51, 20])
AWAY_SCORE = np.array([15, 24, 6, 3, 20, 10, 6, 21, 10, 7, 19, 18, 52, 3, 22])


class Chapter(NamedTuple):
    """A model: how it is built, and whether ``build(False)`` is one that is non-centred by hand."""

    build: Callable[..., pm.Model]
    twin: bool = False


def _effects(name: str, mean: Any, sd: Any, shape: Any, centred: bool) -> Any:
    if centred:
        return pm.Normal(name, mean, sd, shape=shape)
    return pm.Deterministic(name, mean + sd * pm.Normal(f"z_{name}", shape=shape))


def linear_regression() -> pm.Model:
    rng, x = np.random.default_rng(1), np.linspace(0, 1, 200)
    y = 1 + 2 * x + rng.normal(0, 0.5, 200)
    with pm.Model() as model:
        sigma = pm.HalfCauchy("sigma", 10)
        intercept, slope = pm.Normal("intercept", 0, 20), pm.Normal("slope", 0, 20)
        pm.Normal("y", intercept + slope * x, sigma, observed=y)
    return model


def robust_regression() -> pm.Model:
    rng, x = np.random.default_rng(2), np.append(np.linspace(0, 1, 100), [0.1, 0.15, 0.2])
    y = np.append(1 + 2 * x[:100] + rng.normal(0, 0.5, 100), [8.0, 6.0, 9.0])
    with pm.Model() as model:
        sigma, nu = pm.HalfCauchy("sigma", 10), pm.Gamma("nu", 2, 0.1)
        intercept, slope = pm.Normal("intercept", 0, 20), pm.Normal("slope", 0, 20)
        pm.StudentT("y", nu=nu, mu=intercept + slope * x, sigma=sigma, observed=y)
    return model


def binomial_regression() -> pm.Model:
    rng, x = np.random.default_rng(3), np.linspace(-10, 10, 100)
    y = rng.binomial(20, 1 / (1 + np.exp(0.7 - 0.4 * x)))
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", 0, 1), pm.Normal("beta1", 0, 1)
        p = pm.Deterministic("p", pm.math.invlogit(beta0 + beta1 * x))
        pm.Binomial("y", n=20, p=p, observed=y)
    return model


def negative_binomial_regression() -> pm.Model:
    rng = np.random.default_rng(4)
    alcohol, no_medicine = rng.binomial(1, 0.5, (2, 1000))
    mu = np.exp(0.0 + 0.7 * alcohol + 1.8 * no_medicine + 0.4 * alcohol * no_medicine)
    sneezes = rng.poisson(rng.gamma(10, mu / 10))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=4)
        alpha = pm.Exponential("alpha", 0.5)
        eta = b[0] + b[1] * alcohol + b[2] * no_medicine + b[3] * alcohol * no_medicine
        pm.NegativeBinomial("sneezes", mu=pm.math.exp(eta), alpha=alpha, observed=sneezes)
    return model


def eight_schools(centred: bool = True) -> pm.Model:
    effect, error = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = _effects("theta", mu, tau, 8, centred)
        pm.Normal("effect", theta, error, observed=effect)
    return model


def radon(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(5)
    county = np.repeat(np.arange(85), rng.integers(1, 21, 85))
    floor = rng.binomial(1, 0.17, county.size)
    y = rng.normal(1.5, 0.3, 85)[county] + rng.normal(-0.7, 0.3, 85)[county] * floor + rng.normal(0, 0.75, county.size)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0, 10), pm.Normal("mu_b", 0, 10)
        sigma_a, sigma_b = pm.Exponential("sigma_a", 0.5), pm.Exponential("sigma_b", 0.5)
        a, b = _effects("a", mu_a, sigma_a, 85, centred), _effects("b", mu_b, sigma_b, 85, centred)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("log_radon", a[county] + b[county] * floor, sigma, observed=y)
    return model


def rugby(centred: bool = True) -> pm.Model:
    with pm.Model() as model:
        home, intercept = pm.Normal("home", 0, 1), pm.Normal("intercept", 3, 1)
        sd_att, sd_def = pm.HalfStudentT("sd_att", nu=3, sigma=2.5), pm.HalfStudentT("sd_def", nu=3, sigma=2.5)
        atts, defs = _effects("atts_star", 0, sd_att, 6, centred), _effects("defs_star", 0, sd_def, 6, centred)
        atts = pm.Deterministic("atts", atts - atts.mean())
        defs = pm.Deterministic("defs", defs - defs.mean())
        home_theta = pm.math.exp(intercept + home + atts[HOME] + defs[AWAY])
        away_theta = pm.math.exp(intercept + atts[AWAY] + defs[HOME])
        pm.Poisson("home_points", home_theta, observed=HOME_SCORE)
        pm.Poisson("away_points", away_theta, observed=AWAY_SCORE)
    return model


def stochastic_volatility() -> pm.Model:
    rng = np.random.default_rng(6)
    returns = np.exp(np.cumsum(rng.normal(0, 0.1, 200)) - 4.5) * rng.standard_t(10, 200)
    with pm.Model() as model:
        step_size = pm.Exponential("step_size", 10)
        start = pm.Normal.dist(-4, 2)
        volatility = pm.GaussianRandomWalk("volatility", sigma=step_size, init_dist=start, steps=199)
        nu = pm.Exponential("nu", 0.1)
        pm.StudentT("returns", nu=nu, lam=pm.math.exp(-2 * volatility), observed=returns)
    return model


def gaussian_process() -> pm.Model:
    rng, x = np.random.default_rng(7), np.linspace(0, 10, 50)[:, None]
    y = 3 * np.sin(x[:, 0]) * np.exp(-0.1 * x[:, 0]) + rng.normal(0, 1, 50)
    with pm.Model() as model:
        length, eta = pm.Gamma("length", 2, 1), pm.HalfNormal("eta", 5)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.Matern52(1, length))
        sigma = pm.HalfNormal("sigma", 5)
        gp.marginal_likelihood("y", X=x, y=y, sigma=sigma)
    return model


def mixture() -> pm.Model:
    rng = np.random.default_rng(8)
    y = rng.normal(np.array([-5.0, 0.0, 5.0]), [0.5, 2.0, 0.75], (500, 3))[np.arange(500), rng.integers(0, 3, 500)]
    with pm.Model() as model:
        ordered = pm.distributions.transforms.ordered
        mu = pm.Normal("mu", 0, 10, shape=3, transform=ordered, initval=[-4.0, 0.0, 4.0])
        sigma = pm.HalfNormal("sigma", 1, shape=3)
        w = pm.Dirichlet("w", np.ones(3))
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


def ordinal_regression() -> pm.Model:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(300, 2))
    y = np.digitize(x @ [0.9, -0.6] + rng.logistic(size=300), [-2.0, -0.5, 1.0, 2.5])
    with pm.Model() as model:
        ordered = pm.distributions.transforms.ordered
        beta = pm.Normal("beta", 0, 1, shape=2)
        cut = pm.Normal("cut", 0, 2, shape=4, transform=ordered, initval=[-2.0, -1.0, 1.0, 2.0])
        pm.OrderedLogistic("y", eta=x @ beta, cutpoints=cut, observed=y)
    return model


def survival() -> pm.Model:
    rng, spread = np.random.default_rng(10), np.repeat([0.0, 1.0], 40)
    time, end = np.exp(5 - 0.8 * spread) * rng.weibull(1.2, 80), rng.uniform(50, 250, 80)
    with pm.Model() as model:
        alpha = pm.Exponential("alpha", 0.5)
        beta = pm.Normal("beta", 0, 5, shape=2)
        time_to_event = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(beta[0] + beta[1] * spread))
        pm.Censored("time", time_to_event, lower=None, upper=end, observed=np.minimum(time, end))
    return model


def item_response(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(11)
    person, item = np.divmod(np.arange(60 * 15), 15)
    y = rng.binomial(1, 1 / (1 + np.exp(rng.normal(0, 1, 15)[item] - rng.normal(0, 0.8, 60)[person])))
    with pm.Model() as model:
        sd_ability, sd_difficulty = pm.HalfNormal("sd_ability", 2), pm.HalfNormal("sd_difficulty", 2)
        mu = pm.Normal("mu", 0, 2)
        ability = _effects("ability", 0, sd_ability, 60, centred)
        difficulty = _effects("difficulty", mu, sd_difficulty, 15, centred)
        pm.Bernoulli("y", logit_p=ability[person] - difficulty[item], observed=y)
    return model


def anova() -> pm.Model:
    rng = np.random.default_rng(12)
    soil, seed = rng.integers(0, 5, 120), rng.integers(0, 4, 120)
    y = 10 + rng.normal(0, 1, 5)[soil] + rng.normal(0, 0.5, 4)[seed] + rng.normal(0, 1, 120)
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 10, 5), pm.HalfNormal("sd", 2, shape=2)
        of_soil = pm.ZeroSumNormal("of_soil", sigma=sd[0], shape=5)
        of_seed = pm.ZeroSumNormal("of_seed", sigma=sd[1], shape=4)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", mu + of_soil[soil] + of_seed[seed], sigma, observed=y)
    return model


def correlated_effects() -> pm.Model:
    rng, cafe, afternoon = np.random.default_rng(13), np.repeat(np.arange(20), 10), np.tile([0, 1], 100)
    ab = rng.multivariate_normal([3.5, -1.0], [[1.0, -0.35], [-0.35, 0.25]], 20)
    wait = ab[cafe, 0] + ab[cafe, 1] * afternoon + rng.normal(0, 0.5, 200)
    with pm.Model() as model:
        mean = pm.Normal("mean", [5.0, -1.0], [2.0, 0.5])
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        z = pm.Normal("z", 0, 1, shape=(20, 2))
        effect = pm.Deterministic("effect", mean + z @ chol.T)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("wait", effect[cafe, 0] + effect[cafe, 1] * afternoon, sigma, observed=wait)
    return model


CHAPTERS = {
    "linear_regression": Chapter(linear_regression),
    "robust_regression": Chapter(robust_regression),
    "binomial_regression": Chapter(binomial_regression),
    "negative_binomial_regression": Chapter(negative_binomial_regression),
    "eight_schools": Chapter(eight_schools, True),
    "radon": Chapter(radon, True),
    "rugby": Chapter(rugby, True),
    "stochastic_volatility": Chapter(stochastic_volatility),
    "gaussian_process": Chapter(gaussian_process),
    "mixture": Chapter(mixture),
    "ordinal_regression": Chapter(ordinal_regression),
    "survival": Chapter(survival),
    "item_response": Chapter(item_response, True),
    "anova": Chapter(anova),
    "correlated_effects": Chapter(correlated_effects),
}
