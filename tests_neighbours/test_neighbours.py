"""A model of each package that builds PyMC models: sampled by default, with that package's own steps afterwards.

Each is trusted, from one seed.  CausalPy 0.8 is missing: it does not import beside ArviZ 1.
"""

# ruff: noqa: D103
import re
from pathlib import Path

import hssm
import numpy as np
import pandas as pd
import preliz as pz
import pymc as pm
import pymc_extras as pmx
import pytest
from pymc_marketing import clv

import pmm_mcmc as pmm

PAGES = Path(__file__).parent.parent / "docs"
# Of each year from 1851 on (Jarrett 1979).
DISASTERS = [
    int(digit)
    for digit in (
        "454014340633402633545314415534252234213221111300101100310322"
        "011101010002100011023311211112420014000100000100101"
    )
]


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def trusted(model):
    result = pmm.sample(model=model, random_seed=1, progressbar=False, compute_convergence_checks=False)
    verdict = pmm.verdict(result)
    assert verdict.state == "trusted", verdict.sentence
    return result


def blocks(page):
    return re.findall(r"^```py\n(.*?)^```", (PAGES / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_page_on_bambi_runs_as_printed(capsys):
    values = {}
    exec(blocks("coming_from.md")[0], values)
    assert "\ntrusted\n" in capsys.readouterr().out
    assert "y" in values["dt"]["posterior_predictive"]


def test_the_coal_mines_run_as_the_start_page_sums_them_out():
    years = np.arange(1851, 1962)
    with pm.Model() as model:
        switchpoint = pm.DiscreteUniform("switchpoint", lower=1851, upper=1961)
        early, late = pm.Exponential("early", 1.0), pm.Exponential("late", 1.0)
        pm.Poisson("disasters", pm.math.switch(switchpoint >= years, early, late), observed=DISASTERS)
    values = {"pmm": pmm, "model": model}
    exec(blocks("start.md")[0], values)
    assert pmm.verdict(values["dt"]).state == "trusted"
    assert values["dt"]["posterior"]["early"].mean() == pytest.approx(3.07, abs=0.05)


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
        recovered = pmx.marginal.recover(result, random_seed=1)
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
