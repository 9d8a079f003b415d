"""``pmm.verdict(dt, probe=...)``: what step halving adds to it, and what it takes away.

Draws are permuted grids of quantiles, probes are tables made by hand; one is real.
"""

import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from results import gaussian, grid
from test_verdict import SHORTER, noisy

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import bias_table
from pmm_mcmc.workbench.probe import BiasProbe

LABELS = ["a", "b[0]", "b[1]"]


def probe(bias=0.0, bias_se=0.01, bias_of_sd=0.0, bias_of_sd_se=0.01, order_holds=True, labels=LABELS):
    columns = {"bias": bias, "bias_se": bias_se, "bias_of_sd": bias_of_sd, "bias_of_sd_se": bias_of_sd_se}
    table = pd.DataFrame({name: np.broadcast_to(value, len(labels)) for name, value in columns.items()}, index=labels)
    return BiasProbe(table, "by hand", order_holds)


def test_nothing_seen_changes_nothing():
    dt = gaussian(grid(3))
    assert pmm.verdict(dt, probe=probe()) == pmm.verdict(dt)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bias_that_only_the_probe_sees(sign):
    dt = gaussian(grid(3))
    found = pmm.verdict(dt, probe=probe(bias=sign * np.array([0.0, 0.12, 0.02])))
    (reason,) = found.reasons
    assert reason.words == "by step halving the mean of b[0] is off by 12.0 % of a posterior sd, limit 7.5 %"
    assert (reason.code, reason.parameter, reason.remedy) == ("bias_of_mean", "b[0]", SHORTER)
    found = pmm.verdict(dt, probe=probe(bias_of_sd=sign * np.array([0.0, 0.02, 0.09])))
    (reason,) = found.reasons
    assert reason.words == "by step halving the sd of b[1] is off by 9.0 % of a posterior sd, limit 7.5 %"


def test_a_bias_within_its_error_is_no_reason():
    dt = gaussian(grid(3))
    assert pmm.verdict(dt, probe=probe(bias=0.12, bias_se=0.06)).trusted
    assert pmm.verdict(dt, probe=probe(bias=0.07)).trusted


def test_a_bias_of_whole_steps_is_none_of_a_run_that_takes_many_in_parts():
    for in_parts, trusted in ((24, False), (25, True)):  # of 2400 transitions
        refined = np.zeros((4, 600), dtype=int)
        refined[1, :in_parts] = 1
        dt = gaussian(grid(3), refined=refined, steps_per_draw=np.ones((4, 600), dtype=int))
        assert pmm.verdict(dt, probe=probe(bias=0.12)).trusted == trusted


def refused_for_its_step(dt):
    (reason,) = pmm.verdict(dt).reasons
    return reason.code.startswith("step_")


def test_a_long_step_is_trusted_where_the_probe_rules_out_that_it_does_harm():
    dt = noisy(0.5)
    assert refused_for_its_step(dt)
    assert pmm.verdict(dt, probe=probe(bias=0.03)).trusted
    # Not where its own error leaves room, in a mean or in a standard deviation, nor where its order fails.
    for doubtful in (
        probe(bias=0.03, bias_se=0.04),
        probe(bias_of_sd=-0.03, bias_of_sd_se=0.04),
        probe(bias=0.03, order_holds=False),
        probe(bias=np.nan),
    ):
        (reason,) = pmm.verdict(dt, probe=doubtful).reasons
        assert reason.code == "step_long"


def test_a_step_that_is_not_stable_somewhere_is_refused_whatever_the_probe_says():
    dt = noisy(math.inf)
    assert refused_for_its_step(dt)
    (reason,) = pmm.verdict(dt, probe=probe()).reasons
    assert reason.code == "step_unstable"


def test_without_warm_up_the_step_is_not_checked_and_the_verdict_says_so():
    dt = noisy(np.nan)
    assert pmm.verdict(dt).sentence.endswith(
        " No warm-up has seen whether the step is too long: pmm.workbench.bias_probe can."
    )
    assert "warm-up" not in pmm.verdict(dt, probe=probe()).sentence
    assert "warm-up" not in pmm.verdict(noisy(0.05)).sentence
    assert "warm-up" not in pmm.verdict(gaussian(grid(3))).sentence, "of another sampler nothing is known"


def test_bad_probes():
    dt = gaussian(grid(3))
    for wrong in (1.0, "probe", bias_table(dt)):
        with pytest.raises(TypeError, match=r"must be what pmm_mcmc.workbench.bias_probe\(dt, step\) returns"):
            pmm.verdict(dt, probe=wrong)
    with pytest.raises(
        ValueError, match=r"probe: is one of 2 parameters .* the result has 3 .*: give the probe of this"
    ):
        pmm.verdict(dt, probe=probe(labels=LABELS[:2]))


@pytest.mark.pymc
def test_a_real_probe_of_a_step_that_is_too_long():
    """Plain Langevin Monte Carlo with a step at which the variance is off by a quarter."""
    with pm.Model():
        pm.Normal("x", shape=2)
        step = pmm.ULMC(step_size=0.4, friction=1.0, scaling=[1.0, 1.0], reparametrise=False)
        dt = pmm.sample(step, draws=500, chains=4, random_seed=1, progressbar=False)
        found = pmm.verdict(dt, probe=pmm.workbench.bias_probe(dt, step, random_seed=1))
    assert any(str(reason).startswith("by step halving the sd of x[") for reason in found.reasons), found
