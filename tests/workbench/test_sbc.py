"""Calibration by simulation: exact ranks, planted faults, stores, cores.

False alarms: fixed seeds.  A sound study has an alarm once in twenty; those here were seen to have none.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from arviz_plots import plot_ecdf_pit
from scipy.stats import kstest, norm

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.workbench.refit import Fit
from pmm_mcmc.workbench.sbc import pit

QUIET = {"random_seed": 1, "cores": 1, "progressbar": False}


def gaussian(prior_sd=1.0):
    """Three observations of a mean with a normal prior."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, prior_sd)
        pm.Normal("y", mu, 1, observed=np.zeros(3))
    return model


def faulty(fault):
    """A mean and a scale of two pairs of observations, with a fault."""
    with pm.Model() as model:
        if fault == "prior":  # it is drawn with a standard deviation of 1
            mu = pm.CustomDist(
                "mu", logp=lambda v: -0.5 * (v / 0.5) ** 2, random=lambda rng=None, size=None: rng.normal(size=size)
            )
        else:
            mu = pm.Normal("mu", 0, 1)
        if fault == "jacobian":
            sd = pm.CustomDist(
                "sd",
                logp=lambda v: -(v**2) / 2 - pt.log(v),  # the logarithm of the scale lacks its Jacobian
                random=lambda rng=None, size=None: np.abs(rng.normal(size=size)),
                transform=pm.distributions.transforms.log,
                initval=1.0,
            )
        else:
            sd = pm.HalfNormal("sd", 1)
        two = pm.Normal("two", 0, 1, shape=2)
        location = mu + (two[::-1] if fault == "index" else two)
        pm.CustomDist(
            "y", location, sd,
            logp=lambda y, m, s: pm.logp(pm.Normal.dist(m, s), y),
            random=lambda m, s, rng=None, size=None: rng.normal(m[..., ::-1] if fault == "index" else m, s, size=size),
            observed=np.zeros((2, 2)),
        )  # fmt: skip
    return model


def test_replicates_of_a_gaussian_have_its_posterior_and_uniform_ranks():
    dt = pmm.sbc(gaussian(), 60, **QUIET)
    assert (dt["fits"]["state"] == "trusted").all()
    np.testing.assert_allclose(dt["sd"]["mu"], 0.5, rtol=0.2)
    # The probability that each posterior, N(mean, 1/4), has below the truth.
    exact = norm.cdf((dt["truth"]["mu"] - dt["mean"]["mu"]) / 0.5)
    assert np.abs(dt["prior_sbc"]["mu"].values[0] - exact).max() < 0.15
    assert kstest(exact, "uniform").pvalue > 1e-3
    assert dt.attrs["calibrated"]
    assert "Calibrated: ranks of 1 parameters" in dt.attrs["sentence"]


def test_a_rank_counts_draws_that_are_nearly_independent():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 50, 1)).repeat(5, axis=1)  # each draw five times
    fit = Fit({"x": values}, convergence(values), 0, None, "")
    thin = int(np.ceil(1000 / fit.convergence.ess_bulk[0]))
    assert thin >= 4
    (v,) = pit(fit, np.array([0.3]), np.random.default_rng(2))
    count = (values.reshape(-1)[thin - 1 :: thin] < 0.3).sum()
    assert v == (count + np.random.default_rng(2).uniform()) / (1000 // thin + 1)


def test_ties_share_their_ranks():
    values = np.zeros((4, 25, 1))
    fit = Fit({"x": values}, convergence(values), 0, None, "")
    v = [pit(fit, np.zeros(1), np.random.default_rng(i))[0] for i in range(200)]
    assert kstest(v, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("fault", ["none", "prior", "jacobian", "index"])
def test_a_planted_fault_is_found(fault):
    dt = pmm.sbc(faulty(fault), 150, **QUIET)
    assert bool(dt.attrs["calibrated"]) is (fault == "none"), dt.attrs["sentence"]


def test_a_biased_step_is_found():
    dt = pmm.sbc(gaussian(), 200, step=pmm.OLMC(step_size=1.0), **QUIET)
    assert not dt.attrs["calibrated"]
    assert "too wide" in dt.attrs["sentence"]


def test_a_study_is_the_same_on_several_cores_and_after_a_break(tmp_path):
    model = gaussian()
    at_once = pmm.sbc(model, 25, **QUIET)
    assert pmm.sbc(model, 25, **QUIET | {"cores": 2}).identical(at_once)
    pmm.sbc(model, 12, store=tmp_path / "store", **QUIET)
    before = {file.name: file.read_bytes() for file in (tmp_path / "store").glob("records-*")}
    assert list(before) == ["records-00000010"]
    resumed = pmm.sbc(model, 25, store=tmp_path / "store", resume=True, **QUIET)
    assert resumed.identical(at_once)
    assert (tmp_path / "store" / "records-00000010").read_bytes() == before["records-00000010"]


def test_a_store_is_of_one_study(tmp_path):
    pmm.sbc(gaussian(), 10, store=tmp_path, **QUIET)
    with pytest.raises(pmm.StoreError, match="has records; use resume=True"):
        pmm.sbc(gaussian(), 10, store=tmp_path, **QUIET)
    with pytest.raises(pmm.StoreError, match="seed: stored 1, given 2"):
        pmm.sbc(gaussian(), 10, store=tmp_path, resume=True, **QUIET | {"random_seed": 2})
    with pytest.raises(pmm.StoreError, match="other values at two fixed points"):
        pmm.sbc(gaussian(prior_sd=2.0), 10, store=tmp_path, resume=True, **QUIET)


def test_what_cannot_be_simulated_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("pmm_mcmc.run.plan.SamplingPlan.of", lambda *_: pytest.fail("compiled"))
    with pm.Model() as model:
        x = pm.Normal("x")
    with pytest.raises(ValueError, match="has no observed data"):
        pmm.sbc(model, 10)
    with model:
        pm.Normal("y", x, observed=1.0)
        pm.Potential("extra", -x)
    with pytest.raises(ValueError, match=r"extra is a pm\.Potential"):
        pmm.sbc(model, 10)
    with pm.Model() as flat:
        pm.Normal("y", pm.Flat("x"), observed=1.0)
    with pytest.raises(ValueError, match="cannot be drawn from its prior"):
        pmm.sbc(flat, 10)
    with pm.Model() as discrete:
        pm.Normal("y", pm.Poisson("n", 3.0), observed=1.0)
    with pytest.raises(ValueError, match="n: discrete variables have no gradient"):
        pmm.sbc(discrete, 10)
    with pytest.raises(ValueError, match="replicates=0"):
        pmm.sbc(flat, 0)


def test_the_figure_of_arviz_takes_the_ranks():
    plot = plot_ecdf_pit(pmm.sbc(gaussian(), 30, **QUIET), backend="none")
    assert "ecdf_lines" in plot.viz.children
