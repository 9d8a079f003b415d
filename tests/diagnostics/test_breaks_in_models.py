"""Unadjusted runs of models whose density jumps or ends at a wall, by every way in.

Adjusted draws of the same are right, and judged so.
"""

import json

import arviz as az
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.reading import FINDINGS


def model_with(potential):
    with pm.Model() as model:
        x, s = pm.Normal("x", initval=0.5), pm.HalfNormal("s")
        pm.Normal("y", x, s, shape=2)
        pm.Potential("p", potential(x, s))
    return model


def sampled(door, seed, **short):
    short = {"progressbar": False, "random_seed": seed} | short
    return pmm.sample(backend=door, **({"adjusted": False} | short))


@pytest.mark.pymc
@pytest.mark.parametrize("door", ["numba", "jax"])
def test_a_jump_in_a_model(door):
    """The posterior is off by 0.4 standard deviations, and all six runs were trusted (issue 22)."""
    truth = stats.norm.pdf(0.3) * (np.exp(1.5) - 1.0) / (1.0 + stats.norm.sf(0.3) * (np.exp(1.5) - 1.0))
    with model_with(lambda x, s: pt.switch(x > 0.3, 1.5, 0.0)):
        for seed in range(3):
            dt = sampled(door, seed)
            seen = pmm.verdict(dt)
            assert seen.state == "not trusted" and seen.reasons[0].code == "jump"
            assert "jumps by 1.5 where x is near 0.3" in seen.sentence
            assert float(dt["posterior"]["x"].mean()) < truth - 0.2


@pytest.mark.pymc
@pytest.mark.statistical
@pytest.mark.parametrize("door", ["numba", "jax"])
@pytest.mark.parametrize("size", [1.5, -np.inf])
def test_adjusted_draws_are_right_and_trusted_where_the_density_jumps_or_ends(door, size):
    """The test is of the density itself; four errors of a mean of some 2,000 effective draws: 6e-5 each."""
    ratio = np.exp(size)
    beyond = stats.norm.sf(0.3)
    truth = stats.norm.pdf(0.3) * (ratio - 1.0) / (1.0 + beyond * (ratio - 1.0))
    second = (1.0 + (beyond + 0.3 * stats.norm.pdf(0.3)) * (ratio - 1.0)) / (1.0 + beyond * (ratio - 1.0))
    with model_with(lambda x, s: pt.switch(x > 0.3, size, 0.0)):
        dt = sampled(door, 1, adjusted=True, initvals={"x": 0.0})
    x = dt["posterior"]["x"].values
    error = np.sqrt(second - truth**2) / np.sqrt(float(az.ess(dt["posterior"]["x"].values, method="mean")))
    assert pmm.verdict(dt).trusted
    assert abs(x.mean() - truth) < 4.0 * error


def test_a_jump_in_a_function_of_jax():
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) + jnp.where(x[1] > -0.5, 1.0, 0.0), 3)
    seen = pmm.verdict(pmm.sample(model=density, adjusted=False, draws=500, progressbar=False, random_seed=1))
    assert "the log density jumps by 1 where x[1] is near -0.5." in seen.sentence


@pytest.mark.pymc
def test_a_jump_in_a_hierarchy_that_is_sampled_non_centred():
    with pm.Model():
        tau = pm.HalfNormal("tau")
        effects = pm.Normal("effects", 0, tau, shape=8)
        pm.Normal("y", effects, 1, observed=np.linspace(-1.0, 2.0, 8))
        pm.Potential("jump", pt.switch(effects[2] > 0.1, 1.0, 0.0))
        dt = sampled("numba", 1)
    assert "noncentred" in dt["sample_stats"]
    assert "the log density jumps by 1 where effects[2] is near 0.1" in pmm.verdict(dt).sentence


@pytest.mark.pymc
def test_a_jump_is_not_forgotten_when_a_run_goes_on(tmp_path):
    """A few more draws, or the end of an interrupted run, have too few segments of their own."""
    options = {"random_seed": 1, "progressbar": False, "adjusted": False}
    with model_with(lambda x, s: pt.switch(x > 0.3, 1.5, 0.0)):
        dt = pmm.extend(pmm.sample(300, **options), 10, progressbar=False)
        pmm.sample(300, store=tmp_path / "run", compute_convergence_checks=False, **options)
        resumed = pmm.sample(310, store=tmp_path / "run", resume=True, **options)
    for result in (dt, resumed):
        assert "the log density jumps by 1.5 where x is near" in pmm.verdict(result).sentence


@pytest.mark.pymc
def test_without_checks_nothing_is_looked_for():
    with model_with(lambda x, s: pt.switch(x > 0.3, 1.5, 0.0)):
        dt = sampled("numba", 1, draws=100, compute_convergence_checks=False)
    assert "breaks" not in dt["posterior"].attrs.get(FINDINGS, "")


@pytest.mark.pymc
def test_a_kink_in_a_model_is_trusted():
    with pm.Model():
        x = pm.Laplace("x", 0, 1, shape=2)
        pm.Potential("p", -pt.abs(x[0] - 0.5))
        dt = sampled("numba", 1)
    assert set(json.loads(dt["posterior"].attrs[FINDINGS])["breaks"]) == {"gradients"}
    assert pmm.verdict(dt).trusted


@pytest.mark.pymc
def test_a_wall_in_a_model_is_named():
    with model_with(lambda x, s: pt.switch(x < 0.0, -np.inf, 0.0)):
        seen = pmm.verdict(sampled("numba", 1))
    assert seen.state == "not trusted" and "the density ends at a wall where x is near" in seen.sentence
    assert "give x a prior that ends there" in seen.sentence.lower()
