"""Mixtures of Gaussians: their density is the formula, their draws are theirs, and a path goes from them to a model.

Random tests at fixed seeds: |z| < 4.5 (7e-6).
"""

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy.optimize import approx_fprime
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pmm_mcmc.model import tempered
from pmm_mcmc.model.tempered import GaussianMixture, mixture_density, path_numbers, tempered_model


def three(d, dense):
    rng = np.random.default_rng(d)
    root = rng.uniform(0.3, 2.0, (3, d))
    if dense:
        root = np.eye(d) * root[:, None, :] + 0.3 * np.tril(rng.standard_normal((3, d, d)), -1)
    return GaussianMixture(np.array([0.3, -1.0, 2.0]), 100.0 + 2.0 * rng.standard_normal((3, d)), root)


def covariance(root):
    return np.diag(root**2) if root.ndim == 1 else root @ root.T


@pytest.mark.parametrize(("d", "most"), [(4, 300), (4, 3)])
def test_density_and_gradient_are_those_of_the_formula(d, most, monkeypatch):
    monkeypatch.setattr(tempered, "MOST_DENSE", most)
    some = three(d, d <= most)
    parts = [multivariate_normal(m, covariance(r)) for m, r in zip(some.mean, some.root, strict=True)]
    weight = some.log_weight - logsumexp(some.log_weight)

    def known(x):
        return float(logsumexp([w + part.logpdf(x) for w, part in zip(weight, parts, strict=True)]))

    for x in (*some.mean, some.mean.mean(axis=0), some.mean[0] + 3.0):
        lp, gradient = mixture_density(np, x, some.numbers(), d)
        assert lp == pytest.approx(known(x), abs=1e-9)
        np.testing.assert_allclose(gradient, approx_fprime(x, known, 1e-5), rtol=1e-3, atol=1e-3)
    far, slope = mixture_density(np, some.mean[0] + 1e4, some.numbers(), d)
    assert far < -1e5 and np.isfinite(slope).all()


def test_draws_have_the_weights_and_moments_of_each_gaussian():
    some = GaussianMixture(np.log([0.2, 0.8]), np.array([[50.0, 0.0], [-50.0, 3.0]]), three(2, True).root[:2])
    x = some.draw(20000, np.random.default_rng(1))
    first = x[:, 0] > 0.0
    assert abs(first.mean() - 0.2) < 4.5 * np.sqrt(0.16 / 20000)
    for k, own in enumerate((x[first], x[~first])):
        z = np.linalg.solve(some.root[k], (own - some.mean[k]).T)
        assert np.abs(z.mean(axis=1)).max() < 4.5 / np.sqrt(len(own))
        np.testing.assert_allclose(z @ z.T / len(own), np.eye(2), atol=4.5 * np.sqrt(2.0 / len(own)))


@pytest.mark.parametrize("reference", ["prior", "gaussian"])
def test_a_path_goes_from_the_prior_or_from_a_mixture_to_the_posterior(reference):
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, 2.0, shape=2)
        pm.Normal("y", x.sum(), 0.5, observed=0.7)
    density, sampler = tempered_model(list(model.value_vars), model, model.initial_point(0), reference)
    assert (sampler is None) == (reference == "gaussian")
    beta, at = 0.3, np.array([0.4, -1.1])
    posterior = float(model.compile_logp()({"x": at}))
    log_prior = float(model.compile_logp(vars=model.free_RVs)({"x": at}))
    some = three(2, True)._replace(mean=np.zeros((3, 2)))
    of_mixture = float(mixture_density(np, at, some.numbers(), 2)[0])
    flat, outputs = density.graph
    graph = pytensor.function([flat], outputs, mode="FAST_COMPILE")
    for of, logq in ((some, of_mixture), (None, log_prior)):
        if of is None and reference == "gaussian":
            continue
        density.density_parameters.set_value(path_numbers(beta, of, 2))
        lp, evaluation = graph(at)
        assert evaluation[-2:] == pytest.approx([posterior - logq, logq])
        assert float(lp) == pytest.approx(logq + beta * (posterior - logq))
        g0, gl = evaluation[2:4], evaluation[4:6]
        assert g0 + gl == pytest.approx(model.compile_dlogp()({"x": at}))
        assert evaluation[:2] == pytest.approx(g0 + beta * gl)
