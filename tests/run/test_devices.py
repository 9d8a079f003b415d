"""The backend and the device of a run, with a made-up accelerator; and where chains start."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run.beginning import starts
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request

CPU = jax.local_devices(backend="cpu")


@pytest.mark.pymc
def test_a_model_goes_to_the_processor_and_a_jax_function_to_the_accelerator(monkeypatch):
    gpu = SimpleNamespace(platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: CPU if backend == "cpu" else [gpu])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3)
    with pm.Model() as model:
        pm.Normal("x", shape=2)

    assert [Request(model=of).backend for of in (model, density)] == ["auto", "jax"]
    for step, name in ((None, "auto"), (pmm.PoissonULMC(), "numba")):
        plan = SamplingPlan.of(Request(model=model, chains=8, step=step))
        assert (plan.identity["backend"], plan.identity["device"]) == (name, "cpu")
    plan = SamplingPlan.of(Request(model=model, chains=8, backend="jax", device="cpu"))
    assert (plan.identity["backend"], plan.identity["device"]) == ("jax", "cpu")
    with pytest.raises(ValueError, match="backend='numba': this LogDensity is a JAX function"):
        Request(model=density, backend="numba")


# -- starts without initvals -------------------------------------------------------------------------------------------


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
