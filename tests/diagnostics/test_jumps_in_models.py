"""Runs of models whose density jumps, by every way in: adjusted draws are right, and judged so.

The bias of unadjusted ones is not measurable.
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


def jump_of(dt):
    return json.loads(dt["posterior"].attrs[FINDINGS])["jump"]


@pytest.mark.pymc
@pytest.mark.statistical
@pytest.mark.parametrize("door", ["numba", "jax"])
def test_adjusted_draws_are_right_and_trusted_where_the_density_jumps(door):
    """The test is of the density itself; four errors of a mean of some 2,000 effective draws: 6e-5 each.

    The mean by control variates would be 0, and its error too.
    """
    size = 1.5
    ratio = np.exp(size)
    beyond = stats.norm.sf(0.3)
    truth = stats.norm.pdf(0.3) * (ratio - 1.0) / (1.0 + beyond * (ratio - 1.0))
    second = (1.0 + (beyond + 0.3 * stats.norm.pdf(0.3)) * (ratio - 1.0)) / (1.0 + beyond * (ratio - 1.0))
    with model_with(lambda x, s: pt.switch(x > 0.3, size, 0.0)):
        dt = sampled(door, 1, adjusted=True, initvals={"x": 0.0})
    x = dt["posterior"]["x"].values
    error = np.sqrt(second - truth**2) / np.sqrt(float(az.ess(dt["posterior"]["x"].values, method="mean")))
    assert pmm.verdict(dt).trusted
    assert pmm.summary(dt, round_to="none").loc["x", "mean_cv"] == pytest.approx(x.mean(), abs=1e-9)
    assert abs(x.mean() - truth) < 4.0 * error


@pytest.mark.pymc
def test_the_bias_of_unadjusted_draws_is_not_measurable():
    """The posterior is off by 0.4 standard deviations, and all six runs were trusted (issue 22)."""
    with model_with(lambda x, s: pt.switch(x > 0.3, 1.5, 0.0)):
        seen = pmm.verdict(sampled("numba", 0))
    assert seen.state == "undecided" and "the bias could not be measured" in seen.sentence


def test_a_jump_in_a_function_of_jax():
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) + jnp.where(x[1] > -0.5, 1.0, 0.0), 3)
    dt = pmm.sample(model=density, adjusted=False, draws=500, progressbar=False, random_seed=1)
    assert jump_of(dt) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.pymc
def test_a_jump_in_a_hierarchy_that_is_sampled_non_centred():
    with pm.Model():
        tau = pm.HalfNormal("tau")
        effects = pm.Normal("effects", 0, tau, shape=8)
        pm.Normal("y", effects, 1, observed=np.linspace(-1.0, 2.0, 8))
        pm.Potential("jump", pt.switch(effects[2] > 0.1, 1.0, 0.0))
        dt = sampled("numba", 1)
    assert "noncentred" in dt["sample_stats"] and jump_of(dt) == pytest.approx(1.0, abs=1e-2)
