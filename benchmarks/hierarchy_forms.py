"""Hierarchical models as users write them, centred, and as they are told to write them: see ``hierarchies.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import exact_moments as exact
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from gallery_models import _effects
from make_references import one_sd_up
from tables import RESULTS
from targets import Reference, _autoregression, _simulated_autoregression, school_moments

from pmm_mcmc.workbench.targets.gallery import EFFECT, ERROR, FUNNEL_SD
from pmm_mcmc.workbench.targets.gallery import MU_SD as SCHOOL_MU_SD
from pmm_mcmc.workbench.targets.gallery import TAU_SCALE as SCHOOL_TAU_SCALE

PATH = RESULTS / "hierarchies.json"
FIELDS = tuple(Reference.__dataclass_fields__)


@dataclass(frozen=True)
class Hierarchy:
    """A model in two forms.

    Attributes
    ----------
    build : callable
        Returns a new model, ``centred`` or not.  Both name the centred form's parameters.
    note : str
        What it is.
    exact : callable or None
        Returns exact moments, where there are any.
    shown : int or None
        Coordinates whose moments say something: all, or so many of the first.
    """

    build: Callable[[bool], pm.Model]
    note: str
    exact: Callable[[], Reference] | None = None
    shown: int | None = None


def funnel(sinks: int, centred: bool) -> pm.Model:
    """Neal's funnel."""
    with pm.Model() as model:
        y = pm.Normal("y", 0.0, FUNNEL_SD)
        _effects("x", 0.0, pm.math.exp(y / 2), sinks, centred)
    return model


def eight_schools(centred: bool) -> pm.Model:
    """Effects of coaching in eight schools (Rubin, 1981)."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, SCHOOL_MU_SD)
        tau = pm.HalfCauchy("tau", SCHOOL_TAU_SCALE)
        theta = _effects("theta", mu, tau, 8, centred)
        pm.Normal("y", theta, ERROR, observed=EFFECT)
    return model


def nested(centred: bool) -> pm.Model:
    """Three levels: 6 groups of 5 of 3 observations."""
    rng = np.random.default_rng(3)
    top = rng.normal(0, 1.0, 6)
    y = (top[:, None] + rng.normal(0, 0.3, (6, 5)))[:, :, None] + rng.normal(0, 1.0, (6, 5, 3))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0)
        tau, omega, sigma = (pm.HalfNormal(name, 2.0) for name in ("tau", "omega", "sigma"))
        a = _effects("a", mu, tau, 6, centred)
        b = _effects("b", a[:, None], omega, (6, 5), centred)
        pm.Normal("y", b[:, :, None], sigma, observed=y)
    return model


def intercepts_and_slopes(centred: bool) -> pm.Model:
    """Varying intercepts and slopes over 85 groups of 1 to 12 observations."""
    rng = np.random.default_rng(85)
    group = np.repeat(np.arange(85), rng.integers(1, 13, 85))
    floor = rng.binomial(1, 0.3, group.size).astype(float)
    a, b = rng.normal(1.4, 0.3, 85), rng.normal(-0.7, 0.25, 85)
    y = a[group] + b[group] * floor + rng.normal(0, 0.75, group.size)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0.0, 5.0), pm.Normal("mu_b", 0.0, 5.0)
        sd_a, sd_b, sigma = (pm.HalfNormal(name, 1.0) for name in ("sd_a", "sd_b", "sigma"))
        a, b = _effects("a", mu_a, sd_a, 85, centred), _effects("b", mu_b, sd_b, 85, centred)
        pm.Normal("y", a[group] + b[group] * floor, sigma, observed=y)
    return model


def correlated(centred: bool) -> pm.Model:
    """Intercepts and slopes over 40 groups of 2 to 8 observations, with LKJ's prior of correlations (eta = 2).

    Of two it is that of ``2 r - 1`` with ``r ~ Beta(2, 2)``.
    """
    rng = np.random.default_rng(40)
    group = np.repeat(np.arange(40), rng.integers(2, 9, 40))
    x = rng.normal(size=group.size)
    truth = np.array([1.0, -0.5]) + rng.multivariate_normal([0, 0], [[0.16, 0.06], [0.06, 0.09]], 40)
    y = truth[group, 0] + truth[group, 1] * x + rng.normal(0, 0.8, group.size)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0, shape=2)
        sigma = pm.HalfNormal("sigma", 1.0)
        sd, rho = pm.HalfNormal("sd", 1.0, shape=2), 2.0 * pm.Beta("r", 2.0, 2.0) - 1.0
        chol = pt.stacklists([[sd[0], 0.0], [rho * sd[1], pt.sqrt(1.0 - rho**2) * sd[1]]])
        if centred:
            effect = pm.MvNormal("effect", mu, chol=chol, shape=(40, 2))
        else:
            effect = pm.Deterministic("effect", mu + pm.Normal("z", shape=(40, 2)) @ chol.T)
        pm.Normal("y", effect[group, 0] + effect[group, 1] * x, sigma, observed=y)
    return model


def horseshoe(centred: bool) -> pm.Model:
    """Logistic regression of 25 covariates under a horseshoe prior."""
    rng = np.random.default_rng(25)
    x = rng.normal(size=(200, 25))
    y = rng.binomial(1, 1 / (1 + np.exp(-x[:, :5] @ [1.5, -1.0, 0.8, 0.5, -0.5])))
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.3)
        local = pm.HalfCauchy("local", 1.0, shape=25)
        beta = _effects("beta", 0.0, tau * local, 25, centred)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, beta), observed=y)
    return model


def regularised_horseshoe(centred: bool) -> pm.Model:
    """Linear regression of 20 covariates under a regularised horseshoe prior (Piironen and Vehtari, 2017)."""
    rng = np.random.default_rng(20)
    x = rng.normal(size=(80, 20))
    y = x[:, :4] @ [1.5, -1.0, 0.6, 0.3] + rng.normal(size=80)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 2.0)
        tau = pm.HalfCauchy("tau", 4 / 16 / np.sqrt(80))
        local = pm.HalfCauchy("local", 1.0, shape=20)
        slab = pm.InverseGamma("slab", 2.0, 4.0)
        scale = tau * local * pm.math.sqrt(slab / (slab + (tau * local) ** 2))
        beta = _effects("beta", 0.0, scale, 20, centred)
        pm.Normal("y", pm.math.dot(x, beta), sigma, observed=y)
    return model


def item_response(centred: bool) -> pm.Model:
    """Answers of 60 persons to 15 items: abilities, and difficulties and discriminations with scales of their own."""
    rng = np.random.default_rng(15)
    ability, difficulty, log_slope = rng.normal(size=60), rng.normal(0.3, 0.8, 15), rng.normal(0, 0.25, 15)
    y = rng.binomial(1, 1 / (1 + np.exp(-np.exp(log_slope) * (ability[:, None] - difficulty))))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        sd_difficulty, sd_slope = pm.HalfNormal("sd_difficulty", 1.0), pm.HalfNormal("sd_slope", 0.5)
        ability = pm.Normal("ability", shape=60)
        difficulty = _effects("difficulty", mu, sd_difficulty, 15, centred)
        log_slope = _effects("log_slope", 0.0, sd_slope, 15, centred)
        pm.Bernoulli("y", logit_p=pm.math.exp(log_slope) * (ability[:, None] - difficulty), observed=y)
    return model


def volatility(centred: bool) -> pm.Model:
    """Returns of 120 days whose log variance is an autoregression: by itself, or by its innovations."""
    rng = np.random.default_rng(1998)
    h = _simulated_autoregression(120, 0.9, 0.3, -1.0, rng)
    returns = np.exp(h / 2) * rng.normal(size=120)
    with pm.Model() as model:
        mu, rho = pm.Normal("mu", 0.0, 2.0), pm.Beta("rho", 20.0, 3.0)
        s = pm.HalfNormal("s", 0.5)
        if centred:
            start = pm.Normal.dist(mu, s / pt.sqrt(1 - rho**2))
            h = pm.AR("h", [mu * (1 - rho), rho], sigma=s, constant=True, init_dist=start, shape=120)
        else:
            h = pm.Deterministic("h", _autoregression(pm.Normal("z", shape=120), rho, s, mu))
        pm.Normal("returns", 0.0, pm.math.exp(h / 2), observed=returns)
    return model


def gaussian_process(centred: bool) -> pm.Model:
    """Counts at 25 places whose log rate is a Gaussian process of unknown scale and length (Matern 3/2)."""
    rng = np.random.default_rng(32)
    place = np.linspace(0.0, 1.0, 25)
    apart = np.abs(place[:, None] - place)
    y = rng.poisson(np.exp(1.0 + 0.5 * np.sin(7.0 * place)))
    with pm.Model() as model:
        mean, eta = pm.Normal("mean", 0.0, 2.0), pm.HalfNormal("eta", 1.0)
        length = pm.LogNormal("length", np.log(0.3), 0.5)
        r = np.sqrt(3.0) * apart / length
        chol = eta * pt.linalg.cholesky((1.0 + r) * pm.math.exp(-r) + 1e-3 * np.eye(25))
        if centred:
            f = pm.MvNormal("f", np.zeros(25), chol=chol)
        else:
            f = pm.Deterministic("f", chol @ pm.Normal("z", shape=25))
        pm.Poisson("y", pm.math.exp(mean + f), observed=y)
    return model


def other_transform(kind: str, centred: bool) -> pm.Model:
    """Twenty groups with a scale that is not sampled by its logarithm."""
    rng = np.random.default_rng(21)
    error = rng.uniform(0.5, 1.5, 20)
    y = 1.0 + rng.normal(0, 0.4, 20) + error * rng.normal(size=20)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0)
        if kind == "interval":
            tau = pm.Uniform("tau", 0.0, 3.0)
        else:
            tau = pm.math.softplus(pm.Normal("raw", -1.0, 2.0))
        theta = _effects("theta", mu, tau, 20, centred)
        pm.Normal("y", theta, error, observed=y)
    return model


HIERARCHIES: dict[str, Hierarchy] = {
    "eight_schools_centred": Hierarchy(eight_schools, "eight schools", partial(school_moments, True)),
    "funnel10": Hierarchy(partial(funnel, 9), "Neal's funnel, 9 sinks", partial(exact.funnel, FUNNEL_SD, 9), 1),
    "funnel51": Hierarchy(partial(funnel, 50), "Neal's funnel, 50 sinks", partial(exact.funnel, FUNNEL_SD, 50), 1),
    "intercepts_and_slopes": Hierarchy(intercepts_and_slopes, "varying intercepts and slopes, 85 groups"),
    "nested": Hierarchy(nested, "three levels"),
    "horseshoe": Hierarchy(horseshoe, "logistic regression, horseshoe prior"),
    "regularised_horseshoe": Hierarchy(regularised_horseshoe, "linear regression, regularised horseshoe prior"),
    "interval_scale": Hierarchy(partial(other_transform, "interval"), "20 groups, scale uniform on an interval"),
    "softplus_scale": Hierarchy(partial(other_transform, "softplus"), "20 groups, scale by softplus"),
    "correlated": Hierarchy(correlated, "intercepts and slopes with a correlation, 40 groups"),
    "item_response": Hierarchy(item_response, "60 persons, 15 items, two scales"),
    "volatility": Hierarchy(volatility, "stochastic volatility, 120 days"),
    "gaussian_process": Hierarchy(gaussian_process, "Gaussian process, counts at 25 places"),
}


def reference(name: str, centred: pm.Model) -> Reference:
    """Return the moments of a hierarchy in the coordinates of its centred form."""
    if HIERARCHIES[name].exact is not None:
        return HIERARCHIES[name].exact()
    stored = json.loads(PATH.read_text()).get(name)
    if stored is None or not np.isclose(one_sd_up(centred, stored), stored["log_density_one_sd_up"], rtol=1e-6):
        raise ValueError(f"{name}: no moments are kept: python -m benchmarks scoreboard.references hierarchies/{name}")
    return Reference(**{field: np.array(stored[field]) for field in FIELDS})
