"""A model of each package that builds PyMC models: sampled by default, with that package's own steps afterwards.

Each is trusted, from one seed.  CausalPy 0.8 is missing: it does not import beside ArviZ 1.
"""

# ruff: noqa: D103
import bambi as bmb
import hssm
import numpy as np
import pandas as pd
import preliz as pz
import pymc as pm
import pymc_extras as pmx
import pytest
from pymc_marketing import clv

import pmm_mcmc as pmm


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def trusted(model):
    result = pmm.sample(model=model, random_seed=1, progressbar=False, compute_convergence_checks=False)
    verdict = pmm.verdict(result)
    assert verdict.state == "trusted", verdict.sentence
    return result


def test_bambi_predicts_from_a_hierarchy(rng):
    group = np.repeat(np.arange(12), 8)
    x = rng.normal(size=96)
    y = 1.0 + 0.5 * x + rng.normal(0.0, 0.7, 12)[group] + rng.normal(0.0, 0.5, 96)
    data = pd.DataFrame({"y": y, "x": x, "group": group.astype(str)})
    model = bmb.Model("y ~ x + (1|group)", data, noncentered=False)
    model.build()
    result = trusted(model.backend.model)
    model.predict(result, kind="response")
    assert np.corrcoef(result["posterior_predictive"]["y"].mean(("chain", "draw")), y)[0, 1] > 0.7


def test_a_discrete_variable_is_summed_out_and_recovered_by_pymc_extras(rng):
    component = rng.random(100) < 0.3
    y = rng.normal(np.where(component, -2.0, 2.0), 0.5)
    with pm.Model() as model:
        p = pm.Beta("p", 2.0, 2.0)
        mu = pm.Normal("mu", [2.0, -2.0], 0.5, shape=2)
        z = pm.Bernoulli("z", p, shape=100)
        pm.Normal("y", mu[z], 0.5, observed=y)
    marginal = pmx.marginalize(model, ["z"])
    result = trusted(marginal)
    with marginal:
        recovered = pmx.recover_marginals(result, random_seed=1)
    assert ((recovered["posterior"]["z"].mean(("chain", "draw")) > 0.5) == component).all()


def test_pymc_marketing_buys_till_customers_die(rng):
    """Whose log density is rounding far out, where other packages are not either."""
    frequency = rng.poisson(3.0, 100).astype(float)
    recency = np.where(frequency > 0, rng.uniform(10.0, 50.0, 100), 0.0)
    data = pd.DataFrame({"customer_id": np.arange(100), "frequency": frequency, "recency": recency, "T": 52.0})
    model = clv.BetaGeoModel()
    model.build_model(data=data)
    result = trusted(model.model)
    assert result["posterior"]["r"].mean() == pytest.approx(1.75, abs=0.03)  # 1.75 by NUTS


def test_hssm_diffuses():
    data = hssm.simulate_data(model="ddm", theta={"v": 0.5, "a": 1.5, "z": 0.5, "t": 0.3}, size=200, random_state=1)
    result = trusted(hssm.HSSM(data=data, model="ddm").pymc_model)
    assert result["posterior"]["v"].mean() == pytest.approx(0.5, abs=0.3)


def test_a_prior_by_preliz():
    gamma = pz.Gamma()
    pz.maxent(gamma, 1.0, 10.0, 0.9, plot=False)
    with pm.Model() as model:
        rate = gamma.to_pymc("rate")
        pm.Poisson("y", rate, observed=[3, 4, 5])
    mean = (gamma.alpha + 12.0) / (gamma.beta + 3.0)
    assert trusted(model)["posterior"]["rate"].mean() == pytest.approx(mean, abs=0.1)
