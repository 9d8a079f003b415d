"""The sentence that every run ends with, by both doors: once, and nothing else beside it."""

import logging

import pymc as pm
import pytest
from models import noisy_walk
from pymc.sampling import mcmc
from pymc.stats import convergence

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.steps import last_words

pytestmark = pytest.mark.pymc


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


@pytest.fixture
def said(caplog):
    """What was logged of a run that is over, by PyMC's checks or by this package, with its level."""
    caplog.set_level(logging.INFO, logger="pymc")
    caplog.set_level(logging.INFO, logger="pmm_mcmc")

    def over(record):
        verdict = record.getMessage().startswith(("Trusted", "Undecided", "Not trusted", "No verdict"))
        return record.name == "pymc.stats.convergence" or (record.name == "pmm_mcmc" and verdict)

    return lambda: [(record.levelno, record.getMessage()) for record in caplog.records if over(record)]


OPTIONS = {"progressbar": False, "random_seed": 1}


@pytest.mark.parametrize("door", ["pymc", "ours"])
@pytest.mark.parametrize(("method", "level"), [(pmm.PoissonULMC, logging.INFO), (pmm.ULMC, logging.WARNING)])
def test_a_run_ends_with_one_sentence(model, said, door, method, level):
    with model:
        step = method(step_size=0.5, friction=1.0, scaling=[1.0, 1.0], steps_per_draw=6)
        if door == "pymc":
            dt = pm.sample(500, tune=50, chains=4, cores=1, step=step, **OPTIONS)
        else:
            dt = pmm.sample(step, 500, tune=50, chains=4, **OPTIONS)
    shown = " The estimates are in pmm.summary(dt)." if level == logging.INFO else ""
    assert said() == [(level, pmm.verdict(dt).sentence + shown)]
    assert said()[0][1].startswith("Trusted: " if level == logging.INFO else "Not trusted: ")
    pmm.summary(dt), bias_table(dt)
    assert len(said()) == 1, "nothing is said again"


@pytest.mark.parametrize("door", ["pymc", "ours"])
def test_without_checks_nothing_is_said(model, said, door):
    options = OPTIONS | {"tune": 50, "chains": 2, "compute_convergence_checks": False}
    with model:
        if door == "pymc":
            pm.sample(30, step=pmm.PoissonULMC(), cores=1, **options)
        else:
            pmm.sample(draws=30, **options)
    assert said() == []


def test_a_neck_beyond_the_draws_is_predicted():
    """A walk seen with noise, as in inference_gym: draws agree with each other, and have hardly entered the neck."""
    with noisy_walk(1):
        dt = pm.sample(300, chains=4, cores=1, step=pmm.PoissonULMC(), progressbar=False, random_seed=3)
    (reason,) = [reason for reason in pmm.verdict(dt).reasons if reason.code == "neck"]
    assert reason.parameter == "noise"


def test_other_samplers_are_checked_by_pymc(model, said):
    assert mcmc.run_convergence_checks.of_pymc is convergence.run_convergence_checks
    with model:
        pm.sample(30, tune=50, chains=2, cores=1, step=pm.Metropolis(), **OPTIONS)
    assert [message for _, message in said()] == ["The number of samples is too small to check convergence reliably."]


def test_pymc_looks_its_checks_up_where_they_are_replaced(model, monkeypatch):
    """If PyMC moves them, this is the test that says so."""
    calls = []
    monkeypatch.setattr(mcmc, "run_convergence_checks", lambda idata, model: calls.append((idata, model)) or [])
    with model:
        dt = pm.sample(20, tune=20, chains=1, cores=1, step=pmm.PoissonULMC(), **OPTIONS)
    ((idata, given),) = calls
    assert given is model and idata["posterior"].sizes == dt["posterior"].sizes


def test_a_run_says_what_it_cost(model, caplog):
    caplog.set_level(logging.INFO, logger="pmm_mcmc")
    with model:
        step = pmm.PoissonULMC(step_size=0.5, friction=1.0, scaling=[1.0, 1.0], steps_per_draw=6, scheme="recycled")
        dt = pm.sample(50, tune=50, chains=2, cores=1, step=step, **OPTIONS)
    total = dt["sample_stats"]["n_grad_total"].values[:, -1].mean()
    (said,) = [m for m in caplog.messages if m.startswith("Warm-up: ")]
    assert said == f"Warm-up: {total - 300:.0f} gradients a chain; 50 draws of 6 steps took 300"


def test_what_breaks_in_the_verdict_loses_no_draws(model, said, monkeypatch):
    def broken(idata):
        raise RuntimeError("broken")

    monkeypatch.setattr(last_words, "_last_words", broken)
    with model:
        dt = pm.sample(20, tune=20, chains=1, cores=1, step=pmm.PoissonULMC(), **OPTIONS)
    assert dt["posterior"].sizes["draw"] == 20
    assert [level for level, _ in said()] == [logging.ERROR, logging.INFO], "PyMC's own in its place"
    monkeypatch.setattr("pmm_mcmc.run.sample.last_words", broken)
    with model:
        dt = pmm.sample(draws=20, tune=20, chains=2, **OPTIONS)
    assert dt["posterior"].sizes["draw"] == 20 and said()[-1][0] == logging.ERROR


@pytest.mark.parametrize("keep", ["draws", "moments"])
def test_a_log_density_with_default_draws_ends_with_its_verdict(said, keep):
    """PyMC's checks need a model; there is none here."""
    import jax.numpy as jnp

    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 2)
    dt = pmm.sample(model=density, progressbar=False, random_seed=1, keep=keep)
    assert dt["posterior" if keep == "draws" else "posterior_mean"].sizes["chain"] == 4
    assert len(said()) == 1 and said()[0][1].startswith("Trusted: ")
