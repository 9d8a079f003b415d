"""Chains without initvals start within 1 of a PyMC model's own point, and within 2 of the origin without a model."""

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run.beginning import starts
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request


def density():
    return pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3)


def model():
    with pm.Model() as model:
        pm.Normal("x", 5.0, 1.0, shape=3)
    return model


@pytest.mark.parametrize(("subject", "centre", "width"), [(density, 0.0, 2.0), (model, 5.0, 1.0)])
def test_starts_fill_their_box(subject, centre, width):
    plan = SamplingPlan.of(Request(model=subject(), chains=499))
    positions = starts(plan.engine, plan.model, plan.density, None, 499, None, np.random.default_rng(1)) - centre
    assert positions.shape == (499, 3)
    assert np.all(np.abs(positions) < width)
    np.testing.assert_allclose(positions.std(axis=0), width / np.sqrt(3.0), rtol=0.1)  # 5 standard errors
