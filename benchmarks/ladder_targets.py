"""Targets of ``python -m benchmarks ladder`` whose evidence or weights are known by quadrature or otherwise.

Each function returns the model, its log evidence, its barrier (both NaN where not known), the known mean of a function
of the draws with that function, and options of ``pmm.sample``.
"""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import halfcauchy, multivariate_normal, norm

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
S = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def transfection():
    """Fluorescence after transfection of mRNA: the two rates of decay are exchangeable (Ballnus et al. 2017)."""

    def mean(t, scale, beta, delta, start, xp):
        since = xp.maximum(t - start, 0.0)
        apart = abs(delta - beta) + 1e-9
        return scale * since * xp.exp(-xp.minimum(beta, delta) * since) * -xp.expm1(-apart * since - 1e-12) / (
            apart * since + 1e-12
        )  # fmt: skip

    t = np.linspace(0.5, 26.0, 52)
    y = mean(t, 8.0, 0.12, 0.6, 2.0, np) + 0.8 * np.random.default_rng(1).standard_normal(len(t))
    with pm.Model() as model:
        log_scale, log_rate = pm.Uniform("log_scale", -2.0, 4.0), pm.Uniform("log_rate", -4.0, 1.5, shape=2)
        log_start, log_sigma = pm.Uniform("log_start", -2.0, 1.0), pm.Uniform("log_sigma", -2.0, 2.0)
        at = mean(t, 10.0**log_scale, 10.0 ** log_rate[0], 10.0 ** log_rate[1], 10.0**log_start, pt)
        pm.Normal("y", at, 10.0**log_sigma, observed=y)
    first = 0.5, lambda dt: dt["posterior"]["log_rate"].values[..., 0] > dt["posterior"]["log_rate"].values[..., 1]
    return model, np.nan, np.nan, first, {}


def phi4(sites, coupling=4.0, depth=1.5):
    """The phi^4 ring, whose mean has either sign with probability 1/2; its evidence is that of a transfer matrix."""
    grid = np.linspace(-3.5, 3.5, 1001)
    own = -depth * (grid**2 - 1.0) ** 2
    step = -0.5 * coupling * (grid[:, None] - grid) ** 2 + 0.5 * (own[:, None] + own)
    values = np.linalg.eigvalsh(np.exp(step) * (grid[1] - grid[0]))
    log_evidence = float(np.log(np.sum((values / values[-1]) ** sites)) + sites * np.log(values[-1]))
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=sites)
        prior = pm.logp(pm.Normal.dist(0.0, 1.0, shape=sites), x).sum()
        energy = 0.5 * coupling * ((x - pt.roll(x, 1)) ** 2).sum() + depth * ((x**2 - 1.0) ** 2).sum()
        pm.Potential("action", -energy - prior)
    return model, log_evidence, np.nan, (0.5, lambda dt: dt["posterior"]["x"].values.mean(axis=-1) > 0.0), {}


def spike(p, n=40, inclusion=0.3, narrow=0.05, wide=1.5):
    """Regression on collinear columns with a spike and a slab, by enumeration of all 2^p models: the first is in."""
    rng = np.random.default_rng(3)
    x = np.sqrt(0.8) * rng.standard_normal((n, 1)) + np.sqrt(0.2) * rng.standard_normal((n, p))
    y = x[:, 0] + 0.8 * x[:, min(3, p - 1)] + rng.standard_normal(n)
    terms, first = [], []
    for chosen in itertools.product((False, True), repeat=p):
        scale = np.where(chosen, wide, narrow)
        covariance = np.eye(n) + (x * scale**2) @ x.T
        log_prior = sum(np.log(inclusion if one else 1.0 - inclusion) for one in chosen)
        terms.append(log_prior + multivariate_normal(np.zeros(n), covariance).logpdf(y))
        first.append(chosen[0])
    log_evidence = float(logsumexp(terms))
    share = float(np.exp(logsumexp(np.array(terms)[first]) - log_evidence))

    def included(dt):
        b = dt["posterior"]["b"].values[..., 0]
        slab, spike = inclusion * norm(0.0, wide).pdf(b), (1.0 - inclusion) * norm(0.0, narrow).pdf(b)
        return slab / (slab + spike)

    with pm.Model() as model:
        parts = [pm.Normal.dist(0.0, scale, shape=p) for scale in (wide, narrow)]
        b = pm.Mixture("b", [inclusion, 1.0 - inclusion], parts, shape=p)
        pm.Normal("y", pt.dot(x, b), 1.0, observed=y)
    return model, log_evidence, np.nan, (share, included), {}


def regression(d, n=100):
    """Conjugate linear regression, whose evidence is a normal density."""
    rng = np.random.default_rng(d)
    x = rng.standard_normal((n, d))
    y = x @ rng.standard_normal(d) + rng.standard_normal(n)
    with pm.Model() as model:
        pm.Normal("y", pt.dot(x, pm.Normal("b", shape=d)), 1.0, observed=y)
    return model, float(multivariate_normal(np.zeros(n), np.eye(n) + x @ x.T).logpdf(y)), np.nan, None, {}


def schools():
    """Eight schools, non-centred: the mean is integrated out, the spread by quadrature."""

    def density(tau):
        covariance = 25.0 * np.ones((8, 8)) + np.diag(S**2 + tau**2)
        return float(np.exp(multivariate_normal(np.zeros(8), covariance).logpdf(Y)) * halfcauchy(scale=5.0).pdf(tau))

    evidence = quad(density, 0.0, 200.0, epsabs=0.0, epsrel=1e-9, limit=500)[0] + quad(density, 200.0, np.inf)[0]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        pm.Normal("y", mu + tau * pm.Normal("eta", shape=8), S, observed=Y)
    return model, float(np.log(evidence)), np.nan, None, {}


def funnel(d):
    """Neal's funnel without data, from a Gaussian: log evidence 0."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        pm.Normal("x", 0.0, pt.exp(0.5 * v), shape=d - 1)
    return model, 0.0, np.nan, None, {}


def normal():
    """Five independent normals with a normal prior of the same width."""
    y = np.arange(5.0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 0.0, 1.0, shape=5), 1.0, observed=y)
    return model, float(norm(0.0, np.sqrt(2.0)).logpdf(y).sum()), np.nan, None, {}


def logistic():
    """Logistic regression of 200 rows on eight effects, whose posterior is far from its prior."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 8))
    y = rng.random(200) < 1.0 / (1.0 + np.exp(-x @ rng.standard_normal(8)))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pt.dot(x, pm.Normal("b", shape=8)), observed=y.astype(int))
    return model, np.nan, np.nan, None, {}
