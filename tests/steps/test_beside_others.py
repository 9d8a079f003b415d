"""Results of other samplers, and of ours beside others: one table for all of them."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table

pytestmark = pytest.mark.pymc
Z = 6.5


@pytest.fixture(scope="module")
def model():
    """A label with a prior of a third, and a normal variable around it."""
    with pm.Model() as model:
        n = pm.Bernoulli("n", 1.0 / 3.0)
        pm.Normal("x", 2.0 * n, 1.0)
        pm.HalfNormal("s")
    return model


def run(model, sample, step_size="auto", **options):
    with model:
        ours = pmm.PoissonULMC([model["x"], model["s"]], step_size=step_size, **options)
        return sample([ours, pm.BinaryGibbsMetropolis([model["n"]])], draws=2000, tune=400, chains=4)


def test_gradients_beside_a_discrete_variable_are_those_given_it(model, sample):
    """At the draws of our step; the label may have changed since, before the draw was recorded."""
    dt = run(model, sample, 0.5, scaling=[1.0, 1.0], friction=1.0)
    stats_of, posterior = dt["sample_stats"], dt["posterior"]
    assert stats_of["gradient"].shape == stats_of["unconstrained"].shape == (4, 2000, 2)
    x, log_s = np.moveaxis(stats_of["unconstrained"].values, -1, 0)
    np.testing.assert_array_equal(x, posterior["x"].values)
    np.testing.assert_allclose(np.exp(log_s), posterior["s"].values)
    off = stats_of["gradient"].values[..., 0] + x
    assert np.all(np.isclose(off, 0.0) | np.isclose(off, 2.0)), "the normal density around one of two places"
    np.testing.assert_allclose(stats_of["gradient"].values[..., 1], 1.0 - np.exp(2.0 * log_s))


@pytest.mark.statistical
def test_the_bias_of_the_continuous_block_is_measured(model, sample):
    """Its terms have expectation zero given the label, whatever the label's law."""
    dt = run(model, sample)
    table = bias_table(dt)
    known = {"x": (2.0 / 3.0, np.sqrt(1.0 + 8.0 / 9.0)), "s": (stats.halfnorm.mean(), stats.halfnorm.std())}
    for name, (mean, _) in known.items():
        assert abs(table.loc[name, "mean_cv"] - mean) < Z * table.loc[name, "mcse_cv"], name
    assert np.isfinite(table.loc["s", "bias"]) and table.loc["s", "mcse_cv"] < 0.3 * table.loc["s", "mcse"]
    codes = {reason.code for reason in pmm.verdict(dt).reasons if reason.remedy != "draw more"}
    assert codes.isdisjoint({"identity", "bias", "divergences", "unmeasured"}), codes


@pytest.mark.statistical
def test_a_step_that_is_too_long_is_seen_beside_others(model, sample):
    with model:
        step = pmm.ULMC([model["x"], model["s"]], step_size=0.4, friction=1.0, scaling=[1.0, 1.0], steps_per_draw=4)
        dt = sample([step, pm.BinaryGibbsMetropolis([model["n"]])], draws=2000, tune=0, chains=4)
    assert pmm.verdict(dt).state == "not trusted"
    assert "identity" in [reason.code for reason in pmm.verdict(dt).reasons]


def test_nuts_and_ours_have_one_table(sample):
    with pm.Model():
        pm.Normal("x", shape=2)
        nuts = sample(pm.NUTS(), draws=400, tune=200, chains=4)
        ours = sample(pmm.PoissonULMC(), draws=400, tune=200, chains=4)
    tables = [pmm.summary(dt) for dt in (nuts, ours)]
    assert list(tables[0].columns) == [name for name in tables[1].columns if not name.startswith("bias")]
    assert list(tables[0].index) == list(tables[1].index) and tables[1]["bias"].notna().all()
    np.testing.assert_array_equal(tables[0]["mean_cv"], bias_table(nuts)["mean"])
    assert {reason.code for reason in pmm.verdict(nuts).reasons} <= {"r_hat", "mcse"}
    assert set(tables[0].columns) < set(pmm.summary(nuts, kind="all").columns)
    nuts["posterior"]["x"].values[0] += 1.0
    assert pmm.verdict(nuts).state == "not trusted"
    nuts["sample_stats"]["diverging"].values[0, :7] = True
    assert pmm.verdict(nuts).sentence.startswith("Not trusted: 7 of 1600 transitions diverged; r_hat of x[")
