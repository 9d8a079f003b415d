"""Runs with an exact leg: no bias is left, the same draws however they are computed, and what is too short says so.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6).
"""

import numpy as np
import pymc as pm
import pytest
from pmm_mcmc.run.exact_leg import Leg, for_trajectories, next_step
from sampling_runs import BACKENDS, Stop, assert_same, run
from scipy.special import polygamma
from store_runs import files

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.run import memory

pytest_plugins = ["sampling_fixtures"]


@pytest.fixture(scope="module")
def skewed():
    with pm.Model() as model:
        pm.Gamma("g", 3.0, 1.0)
        pm.Normal("x", 0.0, 1.0, shape=3)
    return model


def unit(d):
    return Coordinates(np.zeros(d), np.ones(d))


def z_scores(tree):
    """Distances of moments over chains from those of ``skewed``, in standard errors."""
    g, x = (tree["posterior"][name].values[:, -1] for name in ("g", "x"))
    found = [
        (g, 3.0), ((g - 3.0) ** 2, 3.0), (np.log(g), polygamma(0, 3)), ((np.log(g) - polygamma(0, 3)) ** 2,
        polygamma(1, 3)), *((x[:, j] ** k, k - 1.0) for j in range(3) for k in (1, 2)),
    ]  # fmt: skip
    return np.array([(v.mean() - expected) / (v.std(ddof=1) / np.sqrt(len(v))) for v, expected in found])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_draws_have_no_bias_however_long_the_step_was(skewed, backend):
    options = {"step": pmm.OLMC(step_size=0.6), "backend": backend, "chains": 3000, "draws": 1, "tune": 250}
    biased, exact = (run(skewed, **options, exact=exact) for exact in (False, True))
    assert np.abs(z_scores(biased)).max() > 8.0
    assert np.abs(z_scores(exact)).max() < 4.5
    leg = exact["exact_leg"]
    # The leg has seen the bias that it removed: the first variances were too large by a third and more.
    of_x = leg.sel(coordinate=["x[0]", "x[1]", "x[2]"])
    assert np.all(of_x["moved_of_sd"] < -6.0 * of_x["moved_of_sd_se"])
    assert leg["ended"] == 1 and 0.5 < leg["acceptance"] < 0.97


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leg_is_stored_stopped_and_resumed_to_the_same_bytes(schools, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MOST_ROWS", 10)
    options = {"exact": True, "discard_tuned_samples": False, "chains": 6, "draws": 20}
    whole = run(schools, backend, store=tmp_path / "whole", **options)
    run(schools, backend, store=tmp_path / "parts", callback=Stop(1), **options)
    for _ in range(40):
        tree = run(schools, backend, store=tmp_path / "parts", resume=True, callback=Stop(3), **options)
        if tree["posterior"].sizes["draw"] == 20:
            break
    run(schools, backend, store=tmp_path / "parts", resume=True, **options)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    in_memory = run(schools, backend, **options)
    assert_same(whole, in_memory)
    assert "refined" not in whole["sample_stats"] and "acceptance_rate" in whole["sample_stats"]
    warmed, leg = whole["warmup_sample_stats"], whole["exact_leg"]
    assert warmed.sizes["draw"] > leg["transitions"] > 20
    # Draws are of the frozen step, and go on from the last of the leg.
    assert set(np.unique(whole["sample_stats"]["step_size"])) == {float(leg["step_size"])}
    assert warmed["step_size"][0, -1] == leg["step_size"]
    assert list(leg["coordinate"].values[:2]) == ["mu", "tau_log__"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_of_a_leg_do_not_depend_on_layouts(schools, backend):
    options = {"exact": True, "chains": 6, "draws": 12}
    plain = run(schools, backend, **options)
    assert_same(run(schools, backend, chain_batch_size=2, **options), plain)
    if backend == "numba":
        assert_same(run(schools, backend, cores=2, **options), plain)
    more = pmm.sample(more=run(schools, backend, **options | {"draws": 5}), draws=7, model=schools, progressbar=False)
    assert_same(more, plain)


def test_the_verdict_needs_no_bias_measured(skewed):
    result = run(skewed, step=pmm.PoissonULMC(keep_gradients=False), exact=True, chains=8, draws=600, tune=400)
    judged = pmm.verdict(result)
    assert judged.trusted, judged.sentence
    assert "bias" not in judged.sentence


def test_it_is_refused_where_there_can_be_none(skewed):
    for options, words in (
        ({"exact": 1}, "exact=1"),
        ({"exact": True, "chains": 3}, "chains=4"),
        ({"exact": True, "keep": "moments"}, "keep='moments'"),
        ({"exact": True, "tune": 0}, "tune=0"),
        ({"exact": True, "step": pmm.MALA()}, "MALA is exact already"),
        ({"exact": True, "backend": "jax", "precision": "mixed"}, "precision='mixed'"),
    ):
        with pytest.raises(ValueError, match=words):
            run(skewed, **options)


def judged_leg(*, drift=0.0, correlation=0.0, late=None, rows=24):
    """Return a leg after two blocks, of independent draws but for what is asked for."""
    rng, chains = np.random.default_rng(5), 50
    leg = Leg(TunedParameters(0.5, 4, 0.3, unit(2), 1), 1000, None, np.zeros((chains, 2)), rows, rounds=8)
    for block in range(2):
        seen = rng.standard_normal((chains, rows, 4))
        if correlation:
            seen = np.sqrt(correlation) * rng.standard_normal((chains, 1, 4)) + np.sqrt(1.0 - correlation) * seen
        usable = np.ones((chains, rows), bool)
        if late is not None:
            usable[late] = False
        leg.rows, leg.done = rows, leg.done + rows
        leg._judge(rng.standard_normal((chains, 2, 2)) / np.sqrt(rows) + drift * block, 0.7, seen, usable)
    return leg


def test_an_approach_lasts_until_every_condition_holds():
    assert judged_leg().ended and judged_leg().finished
    assert not judged_leg(drift=0.5).ended, "a mean still changes"
    assert not judged_leg(correlation=0.8).ended, "autocorrelations are not known to fall"
    assert not judged_leg(late=37).ended, "a chain has not arrived"
    assert not judged_leg(rows=2).ended, "two short blocks are fewer than six lags"


def test_draws_are_as_far_apart_as_those_of_other_methods():
    rng, chains, rows = np.random.default_rng(7), 50, 24
    leg = Leg(TunedParameters(0.5, 4, 0.3, unit(2), 1), 40, None, np.zeros((chains, 2)), rows, rounds=8)
    x = rng.standard_normal((chains, rows, 2))
    squares = rng.standard_normal((chains, 1, 2)) + 0.3 * rng.standard_normal((chains, rows, 2))
    leg.done = rows
    leg._judge(np.zeros((chains, 2, 2)), 0.7, np.concatenate([x, squares], axis=-1), np.ones((chains, rows), bool))
    assert leg.finished and not leg.ended and leg.lag > 3, "the approach looks at squares"
    assert leg.tuned.steps_per_draw == 1, "the distance of draws is that of positions"


def test_a_single_step_that_turns_a_direction_about_is_halved():
    rng, chains, rows = np.random.default_rng(2), 64, 8
    leg = Leg(TunedParameters(1.5, 1, 0.3, unit(2), 1), 1000, None, np.zeros((chains, 2)), rows, rounds=8)
    signs = (-1.0) ** np.arange(rows)[:, None]
    x = signs * rng.standard_normal((chains, 1, 2))  # there and back: the squares never change
    leg.done = rows
    leg._judge(np.zeros((chains, 2, 2)), 0.9, np.concatenate([x, x**2], axis=-1), np.ones((chains, rows), bool))
    assert (leg.tuned.K, leg.tuned.step_size) == (2, 1.0)
    assert leg.frozen == leg.done == rows and len(leg.latest) == 0 and not leg.finished


def test_trajectories_last_as_long_as_the_friction_says():
    for friction, step in ((1.0, 0.3), (0.25, 0.3), (1.0, 5.0), (1.0, 1e-6), (2.0, 0.01)):
        tuned = for_trajectories(TunedParameters(step, 16, friction, unit(2), 8, 1.3, 0.1))
        assert tuned.friction == pytest.approx(0.3 * friction) and 1 <= tuned.K <= 32
        assert tuned.K * tuned.step_size == pytest.approx(2.0 / friction, rel=0.25)
        assert (tuned.steps_per_draw, tuned.expected_bias) == (1, 0.0)
        longer, shorter = next_step(tuned, 1.0, 1), next_step(tuned, 0.0, 1)
        assert shorter.step_size < tuned.step_size <= longer.step_size
        assert longer.step_size <= 1.5 / friction + 1e-12
