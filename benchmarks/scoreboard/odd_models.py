"""Odd models of the kinds that textbooks warn of, on data simulated with fixed seeds; references are long NUTS.

Those with a form non-centred by hand take it from ``build(False)``, from which the reference is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from gallery_models import _effects
from held_out_models import _grid
from pymc.distributions import transforms


class Sampled(NamedTuple):
    """A model, and the variables that are judged; ``twin`` says whether it has a form non-centred by hand."""

    build: Callable[..., pm.Model]
    names: tuple[str, ...]
    twin: bool = False


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def crossed(centred: bool = True) -> pm.Model:
    """Two crossed effects of which half the cells are empty."""
    rng = np.random.default_rng(301)
    row, column = (part.ravel() for part in np.indices((12, 9)))
    kept = rng.random(108) < 0.5
    row, column = row[kept], column[kept]
    y = 1 + rng.normal(0, 0.8, 12)[row] + rng.normal(0, 0.3, 9)[column] + rng.normal(0, 0.5, row.size)
    with pm.Model() as model:
        mu, sd_r, sd_c = pm.Normal("mu", 0, 3), pm.HalfNormal("sd_r", 1), pm.HalfNormal("sd_c", 1)
        r, c = _effects("r", 0, sd_r, 12, centred), _effects("c", 0, sd_c, 9, centred)
        pm.Normal("y", mu + r[row] + c[column], pm.HalfNormal("sigma", 1), observed=y)
    return model


def separation() -> pm.Model:
    """A logistic regression whose outcome one covariate separates."""
    rng = np.random.default_rng(303)
    x = np.sort(rng.normal(size=(30, 1)), axis=0)
    x = np.hstack([x, rng.normal(size=(30, 2))])
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 5, shape=3)
        pm.Bernoulli("y", logit_p=a + pt.as_tensor(x) @ b, observed=(np.arange(30) >= 16).astype(int))
    return model


def zero_inflated() -> pm.Model:
    rng = np.random.default_rng(304)
    x = rng.normal(size=120)
    y = rng.poisson(np.exp(0.8 + 0.5 * x)) * (rng.random(120) < _logistic(0.5 - x))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2, shape=2), pm.Normal("b", 0, 2, shape=2)
        psi, mu = pm.math.sigmoid(a[0] + a[1] * x), pm.math.exp(b[0] + b[1] * x)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=mu, observed=y)
    return model


def hurdle() -> pm.Model:
    rng = np.random.default_rng(305)
    x = rng.normal(size=100)
    y = rng.gamma(2.0, np.exp(0.3 + 0.4 * x) / 2.0) * (rng.random(100) < 0.65)
    with pm.Model() as model:
        psi, b, shape = pm.Beta("psi", 1, 1), pm.Normal("b", 0, 2, shape=2), pm.Gamma("shape", 2, 0.5)
        pm.HurdleGamma("y", psi=psi, alpha=shape, beta=shape / pm.math.exp(b[0] + b[1] * x), observed=y)
    return model


def censored() -> pm.Model:
    """Survival times by Weibull, two thirds of them censored."""
    rng = np.random.default_rng(306)
    x, end = rng.normal(size=90), rng.uniform(0.2, 3.0, 90)
    time = np.exp(1 + 0.5 * x) * rng.weibull(1.4, 90)
    with pm.Model() as model:
        alpha, b = pm.HalfNormal("alpha", 2), pm.Normal("b", 0, 2, shape=2)
        survival = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(b[0] + b[1] * x))
        pm.Censored("time", survival, lower=None, upper=end, observed=np.minimum(time, end))
    return model


def dirichlet_multinomial() -> pm.Model:
    rng = np.random.default_rng(307)
    counts = np.array([rng.multinomial(30, rng.dirichlet([4.0, 2.0, 1.0, 0.3])) for _ in range(15)])
    with pm.Model() as model:
        share, size = pm.Dirichlet("share", np.ones(4)), pm.LogNormal("size", 1, 1)
        pm.DirichletMultinomial("counts", n=30, a=size * share, observed=counts)
    return model


def correlations() -> pm.Model:
    """Correlations and standard deviations of four outcomes by LKJ."""
    rng = np.random.default_rng(308)
    L = np.tril(rng.normal(size=(4, 4))) + 1.5 * np.eye(4)
    y = rng.normal(size=(40, 4)) @ L.T
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=4)
        chol, corr, _ = pm.LKJCholeskyCov("lkj", n=4, eta=2, sd_dist=pm.HalfNormal.dist(3), compute_corr=True)
        pm.Deterministic("off", pt.stack([corr[i, j] for i in range(4) for j in range(i)]))
        pm.MvNormal("y", mu, chol=chol, observed=y)
    return model


def disease_map(centred: bool = True) -> pm.Model:
    """BYM: spatial and independent effects of the cells of a map, each with its own standard deviation."""
    rng, (row, column, W) = np.random.default_rng(309), _grid(5)
    expected = rng.uniform(2, 15, 25)
    cases = rng.poisson(expected * np.exp(0.4 * np.sin(row / 2) + 0.3 * np.cos(column) + rng.normal(0, 0.2, 25)))
    with pm.Model() as model:
        b0 = pm.Normal("b0", 0, 1)
        sd_u, sd_v = pm.HalfNormal("sd_u", 1), pm.HalfNormal("sd_v", 1)
        u, v = sd_u * pm.ICAR("u", W=W), _effects("v", 0, sd_v, 25, centred)
        pm.Poisson("cases", expected * pm.math.exp(b0 + u + v), observed=cases)
    return model


def local_level(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(310)
    y = np.cumsum(rng.normal(0, 0.2, 60)) + rng.normal(0, 0.6, 60)
    with pm.Model() as model:
        s_level, s_noise = pm.HalfNormal("s_level", 1), pm.HalfNormal("s_noise", 1)
        if centred:
            level = pm.GaussianRandomWalk("level", sigma=s_level, init_dist=pm.Normal.dist(0, 2), steps=59)
        else:
            first = 2 * pm.Normal("first", shape=1)
            walk = pt.cumsum(s_level * pm.Normal("z", shape=59))
            level = pm.Deterministic("level", pt.concatenate([first, first + walk]))
        pm.Normal("y", level, s_noise, observed=y)
    return model


def latent_gp() -> pm.Model:
    rng, x = np.random.default_rng(311), np.linspace(0, 6, 25)[:, None]
    y = rng.binomial(4, _logistic(1.5 * np.sin(x[:, 0])))
    with pm.Model() as model:
        length, sd = pm.InverseGamma("length", 5, 5), pm.HalfNormal("sd", 2)
        f = pm.gp.Latent(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=length)).prior("f", X=x)
        pm.Binomial("y", 4, logit_p=f, observed=y)
    return model


def marginal_gp() -> pm.Model:
    rng, x = np.random.default_rng(312), np.linspace(0, 10, 40)[:, None]
    y = np.sin(x[:, 0]) + rng.normal(0, 0.3, 40)
    with pm.Model() as model:
        length, sd = pm.InverseGamma("length", 3, 3), pm.HalfNormal("sd", 2)
        gp = pm.gp.Marginal(cov_func=sd**2 * pm.gp.cov.Matern52(1, ls=length))
        gp.marginal_likelihood("y", X=x, y=y, sigma=pm.HalfNormal("sigma", 1))
    return model


def ordered_mixture() -> pm.Model:
    rng = np.random.default_rng(313)
    y = np.concatenate([rng.normal(-2, 0.8, 40), rng.normal(0.3, 0.6, 50), rng.normal(2.5, 1.0, 30)])
    with pm.Model() as model:
        w = pm.Dirichlet("w", 2 * np.ones(3))
        mu = pm.Normal("mu", 0, 3, shape=3, transform=transforms.ordered, initval=np.array([-2.0, 0.0, 2.0]))
        sigma = pm.Gamma("sigma", 4, 4, shape=3)
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


def two_parameter_logistic() -> pm.Model:
    rng = np.random.default_rng(314)
    ability, slope, difficulty = rng.normal(size=40), rng.gamma(4, 0.3, 8), rng.normal(0, 1, 8)
    y = rng.binomial(1, _logistic(slope * (ability[:, None] - difficulty)))
    with pm.Model() as model:
        theta, a, b = pm.Normal("theta", shape=40), pm.HalfNormal("a", 1.5, shape=8), pm.Normal("b", 0, 2, shape=8)
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)
    return model


def pharmacokinetics(centred: bool = True) -> pm.Model:
    """Oral dose in one compartment: absorption, elimination and volume of eight subjects."""
    rng, t = np.random.default_rng(315), np.array([0.25, 0.5, 1, 2, 4, 6, 9, 12, 24.0])

    def curve(ka, ke, v, xp):
        return 100 / v * ka / (ka - ke) * (xp.exp(-ke * t) - xp.exp(-ka * t))

    k = np.exp(np.log([1.5, 0.15, 20.0]) + rng.normal(0, 0.2, (8, 1, 3)))
    y = curve(k[..., 0], k[..., 1], k[..., 2], np) * np.exp(rng.normal(0, 0.15, (8, 9)))
    with pm.Model() as model:
        mean = pm.Normal("mean", np.log([1.5, 0.15, 20.0]), 0.5)
        sd, sigma = pm.HalfNormal("sd", 0.3, shape=3), pm.HalfNormal("sigma", 0.5)
        own = pm.math.exp(_effects("own", mean, sd, (8, 3), centred))
        c = curve(own[:, :1], own[:, 1:2], own[:, 2:], pt)
        pm.LogNormal("y", pt.log(c), sigma, observed=y)
    return model


def boundary_variance(centred: bool = True) -> pm.Model:
    """Groups that differ by less than chance makes them: the posterior of their variance is largest at zero."""
    rng, group = np.random.default_rng(316), np.repeat(np.arange(10), 5)
    y = rng.normal(size=50)
    y -= 0.7 * np.array([y[group == g].mean() for g in range(10)])[group]
    with pm.Model() as model:
        mu, tau, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 2)
        theta = _effects("theta", mu, tau, 10, centred)
        pm.Normal("y", theta[group], sigma, observed=y)
    return model


SAMPLED = {
    "crossed_empty": Sampled(crossed, ("mu", "sd_r", "sd_c", "r", "c", "sigma"), True),
    "separation": Sampled(separation, ("a", "b")),
    "zero_inflated": Sampled(zero_inflated, ("a", "b")),
    "hurdle": Sampled(hurdle, ("psi", "b", "shape")),
    "weibull_censored": Sampled(censored, ("alpha", "b")),
    "dirichlet_multinomial": Sampled(dirichlet_multinomial, ("share", "size")),
    "lkj": Sampled(correlations, ("mu", "lkj_stds", "off")),
    "bym": Sampled(disease_map, ("b0", "sd_u", "sd_v", "u", "v"), True),
    "local_level": Sampled(local_level, ("s_level", "s_noise", "level"), True),
    "latent_gp": Sampled(latent_gp, ("length", "sd", "f")),
    "marginal_gp": Sampled(marginal_gp, ("length", "sd", "sigma")),
    "ordered_mixture": Sampled(ordered_mixture, ("w", "mu", "sigma")),
    "two_pl": Sampled(two_parameter_logistic, ("theta", "a", "b")),
    "pharmacokinetics": Sampled(pharmacokinetics, ("mean", "sd", "sigma", "own"), True),
    "boundary_variance": Sampled(boundary_variance, ("mu", "tau", "sigma", "theta"), True),
}
