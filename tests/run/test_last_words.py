"""The sentence that every run of ``pmm.sample`` ends with, once; ``pm.sample`` ends as PyMC has it."""

import logging

import pymc as pm
import pytest
from pymc.sampling import mcmc
from pymc.stats import convergence
from threadpoolctl import threadpool_info, threadpool_limits

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.diagnostics.verdict import COLUMNS
from pmm_mcmc.run.console import interrupted
from pmm_mcmc.run.driver import StopRequest

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


@pytest.mark.parametrize(("method", "level"), [(pmm.PoissonULMC, logging.INFO), (pmm.ULMC, logging.WARNING)])
def test_a_run_ends_with_one_sentence(model, said, method, level):
    with model:
        step = method(step_size=0.5, friction=1.0, scaling=[1.0, 1.0], steps_per_draw=6)
        dt = pmm.sample(step=step, draws=500, tune=50, chains=4, **OPTIONS)
    shown = f"\nThe estimates are in pmm.summary(dt), where {COLUMNS}." if level == logging.INFO else ""
    assert said() == [(level, pmm.verdict(dt).sentence + shown)]
    assert said()[0][1].startswith("Trusted: " if level == logging.INFO else "Not trusted: ")
    pmm.summary(dt), bias_table(dt)
    assert len(said()) == 1, "nothing is said again"


def test_a_run_that_was_stopped_in_warm_up_has_no_draws_and_says_so(model, caplog):
    def stop(_):
        raise pmm.StopSampling

    with model:
        dt = pmm.sample(draws=30, callback=stop, **OPTIONS)
    assert dt["posterior"].sizes["draw"] == 0
    line = "Sampling was stopped before the first draw: go on with pmm.extend(dt, model=model)"
    assert line in caplog.messages
    for read in (pmm.verdict, pmm.summary):
        with pytest.raises(ValueError, match=r"^dt: has no draws, .* stopped in warm-up; go on with pmm.extend"):
            read(dt)
    assert pmm.extend(dt, 30, model=model, progressbar=False)["posterior"].sizes["draw"] == 30


def test_a_ladder_in_memory_cannot_go_on(caplog):
    interrupted(StopRequest(), False, "only a ladder with store= can go on", 5, "after 5 draws")
    (line,) = caplog.messages
    assert line.endswith("after 5 draws; they are kept, and only a ladder with store= can go on")


@pytest.mark.parametrize("chains", [1, 4])
def test_chains_that_run_side_by_side_have_a_thread_of_blas_each(model, chains):
    def threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    seen = []
    with threadpool_limits(2, user_api="blas"), model:
        pmm.sample(draws=30, tune=50, chains=chains, callback=lambda _: seen.append(threads()), **OPTIONS)
        assert threads() == {2}
    assert seen[0] == {1 if chains > 1 else 2}


def test_without_checks_nothing_is_said(model, said):
    with model:
        pmm.sample(draws=30, tune=50, chains=2, compute_convergence_checks=False, **OPTIONS)
    assert said() == []


@pytest.mark.parametrize(("method", "state"), [(pmm.PoissonULMC, "trusted"), (pmm.ULMC, "not trusted")])
def test_pymc_is_as_it_was_and_the_statistics_are_judged_when_asked(model, said, method, state):
    assert mcmc.run_convergence_checks is convergence.run_convergence_checks
    with model:
        step = method(step_size=0.5, friction=1.0, scaling=[1.0, 1.0], steps_per_draw=6)
        dt = pm.sample(500, tune=50, chains=4, cores=1, step=step, **OPTIONS)
    line = f"{method.__name__}: pmm.verdict(dt, model=model) says what the draws are worth"
    assert said() == [(logging.INFO, line)], "PyMC's checks have nothing to say, and the step names its judge"
    assert pmm.verdict(dt).state == state
    assert ("bias" in pmm.summary(dt)) and "adjusted" not in dt["posterior"].attrs


def test_what_breaks_in_the_verdict_loses_no_draws(model, said, monkeypatch):
    def broken(idata):
        raise RuntimeError("broken")

    monkeypatch.setattr("pmm_mcmc.run.console.last_message", broken)
    with model:
        dt = pmm.sample(draws=20, tune=20, chains=2, **OPTIONS)
    assert dt["posterior"].sizes["draw"] == 20 and said()[-1][0] == logging.ERROR


def test_a_log_density_with_default_draws_ends_with_its_verdict(said):
    """PyMC's checks need a model; there is none here."""
    import jax.numpy as jnp

    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 2)
    dt = pmm.sample(model=density, progressbar=False, random_seed=1)
    assert dt["posterior"].sizes["chain"] == 4
    assert len(said()) == 1 and said()[0][1].startswith("Trusted: ")
