"""Targets of short runs that tests share, each compiled once in a process."""

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@pytest.fixture(scope="session")
def schools():
    with pm.Model(coords={"school": list("abcdefgh")}) as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 5.0)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, SIGMA, observed=Y, dims="school")
    return model


@pytest.fixture(scope="session")
def well():
    return pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)
