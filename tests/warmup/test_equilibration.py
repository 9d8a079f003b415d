"""Equilibration: what adapts the step, what ends it, and that draws after it have no bias and are the same bit for bit.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6).
"""

import numpy as np
import pymc as pm
import pytest
from numba import cfunc
from reference import engine
from sampling_runs import BACKENDS, run
from scipy.special import polygamma

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import HARMONIC, METHODS, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.equilibration import Equilibration, adjusted_setting, least_acceptance, report_of
from pmm_mcmc.warmup.step_size import adjusted_friction, step_for_acceptance
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import Warming

pytest_plugins = ["sampling_fixtures"]

RECYCLED = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled")
LONGEST = METHODS["GHMC"].largest_step


def unit(d):
    return Coordinates(np.zeros(d), np.ones(d))


def equilibration(step=0.5, *, length=1000, rows=24, d=2, steps_per_draw=None):
    """Return an equilibration that has just begun."""
    return Equilibration(TunedParameters(step, 1, 0.5, unit(d), 1), length, steps_per_draw, np.zeros(d), rows)


# -- the setting -------------------------------------------------------------------------------------------------------


def test_the_setting_is_that_of_warm_up_with_the_step_and_friction_of_adjusted_draws():
    recycled, overdamped = Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0), Kernel(Scheme.CELLS, OVERDAMPED, 2, 0.0)
    tuned = TunedParameters(0.3, 16, 0.8, unit(2), 8)
    found = adjusted_setting(tuned, recycled)
    assert found.step_size == THRESHOLDS.adjusted_step * 0.3
    assert found.friction == pytest.approx(adjusted_friction(found.step_size) * 0.8)
    assert (found.K, found.steps_per_draw) == (1, 1)
    assert found.coordinates is tuned.coordinates
    # A step of the position alone has the noise 2 h, one of the velocity h^2.
    assert adjusted_setting(tuned, overdamped).step_size == pytest.approx(THRESHOLDS.adjusted_step * 0.6**0.5)
    assert adjusted_setting(tuned._replace(step_size=9.0), recycled).step_size == LONGEST


def test_the_chain_that_accepts_least_is_one_of_few_and_a_quantile_of_many():
    rates = np.random.default_rng(1).permutation(np.arange(1, 1001) / 1000.0)
    for chains in (1, 2, 4, 20):
        assert least_acceptance(rates[:chains]) == rates[:chains].min()
    assert least_acceptance(rates) == 0.05
    assert least_acceptance(np.sort(rates)[:21]) == 0.002
    still = np.append(np.ones(19), 0.0)
    assert least_acceptance(still) == 0.0, "a chain that stands still counts"
    assert least_acceptance(np.append(np.ones(999), 0.0)) == 1.0, "one of a thousand does not"


# -- the step ----------------------------------------------------------------------------------------------------------


def adapted(state, *rates):
    """Return whether the step was adapted to the acceptance rates of chains in a block, and by what factor."""
    before = state.tuned.step_size
    state.acceptance = np.array(rates)
    changed = state._step_changed()
    return changed, state.tuned.step_size / before


def test_a_chain_that_stands_still_shortens_the_step():
    state = equilibration()
    changed, factor = adapted(state, 0.99, 0.98, 0.0, 0.95)
    assert changed and factor == THRESHOLDS.most_shortening and state.rounds == 1
    # And reopens the adaptation of a step that was fixed.
    state.fixed, state.blocks, state.latest = 40, [np.zeros((4, 8, 2))], np.zeros((4, 2, 2))
    changed, factor = adapted(state, 0.99, 0.98, 0.0, 0.95)
    assert changed and factor == THRESHOLDS.most_shortening
    assert state.fixed is None and state.blocks == [] and len(state.latest) == 0, "equilibration begins anew"


def test_a_step_that_is_accepted_as_wanted_is_fixed():
    wanted = THRESHOLDS.adjusted_acceptance
    for rate in (wanted, wanted - 0.03, wanted + 0.02):
        assert adapted(equilibration(), rate, 0.99) == (False, 1.0)
    state = equilibration()
    changed, factor = adapted(state, 0.6, 0.99)
    assert changed and factor == pytest.approx(step_for_acceptance(0.5, 0.6) / 0.5)
    # The friction goes with the step.
    assert state.tuned.friction / adjusted_friction(state.tuned.step_size) == pytest.approx(
        0.5 / adjusted_friction(0.5)
    )


def test_a_step_at_which_all_is_accepted_grows_whatever_its_digits():
    for step in np.random.default_rng(5).uniform(0.1, 1.1, 200):
        changed, factor = adapted(equilibration(step), 1.0, 1.0)
        assert changed and factor == pytest.approx(THRESHOLDS.most_lengthening), step


def test_a_step_grows_up_to_the_longest_and_not_once_it_is_fixed():
    state, steps = equilibration(0.5), []
    while adapted(state, 1.0, 1.0)[0]:
        steps.append(state.tuned.step_size)
    assert steps[-1] == LONGEST and np.all(np.diff(steps) > 0.0) and state.rounds < THRESHOLDS.most_rounds
    state = equilibration(0.5)
    state.fixed = 40
    assert adapted(state, 1.0, 1.0) == (False, 1.0)


def test_rounds_of_adaptation_end():
    state = equilibration()
    while adapted(state, 0.0)[0]:
        pass
    assert state.rounds == THRESHOLDS.most_rounds
    assert state.tuned.step_size == 0.5 * THRESHOLDS.most_shortening**state.rounds


# -- the end -----------------------------------------------------------------------------------------------------------


def judged(*, drift=0.0, correlation=0.0, late=None, rows=24, blocks=2, chains=50, length=1000):
    """Return an equilibration after blocks of independent draws, but for what is asked for."""
    rng = np.random.default_rng(5)
    state = equilibration(rows=rows, length=length)
    for block in range(blocks):
        rows = state.rows
        seen = rng.standard_normal((chains, rows, 2))
        if correlation:
            seen = np.sqrt(correlation) * rng.standard_normal((chains, 1, 2)) + np.sqrt(1.0 - correlation) * seen
        usable = np.ones((chains, rows), bool)
        if late is not None:
            usable[late] = False
        state.done += rows
        means = rng.standard_normal((chains, 2, 2)) / np.sqrt(rows) + drift * block
        state._check(means, seen, usable)
    return state


def test_it_lasts_until_every_condition_holds():
    assert judged().ended
    assert not judged(blocks=1).ended, "one block shows no change"
    assert not judged(drift=0.5).ended, "a mean still changes"
    assert not judged(correlation=0.8).ended, "autocorrelations are not seen to fall"
    assert not judged(late=37).ended, "a chain has not arrived"
    assert not judged(rows=2).ended, "two short blocks are fewer than six lags"


@pytest.mark.parametrize("correlation", [0.6, 0.9])
def test_a_start_is_forgotten_after_six_lags(correlation):
    """Chains of a known autocorrelation: of all blocks it is below one half at the lag, and seen from eight lags on."""
    rng, chains = np.random.default_rng(6), 400
    state, x = equilibration(rows=8, length=10_000), rng.standard_normal((400, 2))
    while not state.ended:
        seen = np.empty((chains, state.rows, 2))
        for i in range(state.rows):
            x = correlation * x + np.sqrt(1.0 - correlation**2) * rng.standard_normal((chains, 2))
            seen[:, i] = x
        means = np.stack([seen.mean(axis=1), (seen**2).mean(axis=1)], axis=1)
        state.done += state.rows
        state._check(means, seen, np.ones(seen.shape[:2], bool))
    # Autocorrelation below one half, of what is slower of means and variances.
    exact = int(np.ceil(np.log(0.5) / np.log(correlation)))
    assert abs(state.lag - exact) <= 1
    assert state.done >= max(THRESHOLDS.forgetting_lags, 8) * state.lag
    assert state.done < 40 * state.lag


def test_one_chain_alone_is_judged_by_its_autocorrelation():
    """Between blocks of one chain there is no test: it ends by lags alone, whatever its means."""
    assert judged(chains=1, rows=200, drift=5.0).ended
    assert not judged(chains=2, rows=200, drift=50.0).ended
    assert not judged(chains=1, rows=200, late=0).ended


def test_draws_are_a_lag_apart_unless_the_user_fixed_their_number_or_it_did_not_end():
    for ended, asked, expected in ((True, None, 5), (False, None, 1), (True, 3, 3), (False, 3, 3)):
        state = equilibration(steps_per_draw=asked)
        state.lag, state.ended, state.blocks = 5, ended, [np.zeros((4, 8, 2))]
        state._finish()
        assert state.tuned.steps_per_draw == expected and state.blocks == []


# -- chains ------------------------------------------------------------------------------------------------------------


@cfunc(SIGNATURE)
def quartic(x, gradient, table, n):
    lp = 0.0
    for i in range(n):
        lp -= 0.5 * x[i] ** 2 + 0.25 * x[i] ** 4
        gradient[i] = -x[i] - x[i] ** 3
    return lp


@cfunc(SIGNATURE)
def ridge(x, gradient, table, n):
    # As narrow as exp(-x[0]): where it is steep, a long step is always rejected.
    precision = np.exp(2.0 * x[0])
    lp = -0.5 * x[0] ** 2
    gradient[0] = -x[0]
    for i in range(1, n):
        lp += x[0] - 0.5 * precision * x[i] ** 2
        gradient[0] += 1.0 - precision * x[i] ** 2
        gradient[i] = -precision * x[i]
    return lp


def warmed(target=quartic, chains=4, d=3, seed=1, length=1000):
    """Return an engine, and chains at the end of a warm-up without checks."""
    rng, source = np.random.default_rng(seed), engine(RECYCLED.kernel, d, target)
    warming = Warming.start(source, RECYCLED, rng.uniform(-1.0, 1.0, (chains, d)), length, rng, checked=False)
    while not warming.finished:
        warming.block(source)
    return source, warming


def to_the_end(state, warming, run, after=lambda state, warming: (state, warming)):
    """Follow an equilibration to its end; return it with its chains, and the steps and lengths of its blocks."""
    seen = []
    while not state.finished:
        seen.append((state.tuned.step_size, state.rows))
        state.block(warming, run, None, lambda which, chunk: None, Processes(slice(0, len(warming.n_grad))))
        state, warming = after(state, warming)
    return state, warming, seen


@pytest.mark.parametrize("chains", [1, 4, 300])
def test_it_begins_where_warm_up_ended_at_no_cost_and_ends_in_the_target(chains):
    source, warming = warmed(chains=chains)
    spent, where = warming.n_grad.copy(), warming.ensemble.state[:, 9:12].copy()
    state = Equilibration.begin(warming, source.kernel, RECYCLED, 1000)
    np.testing.assert_array_equal(warming.n_grad, spent)
    np.testing.assert_array_equal(warming.ensemble.state[:, :3], where)
    np.testing.assert_array_equal(warming.ensemble.state[:, -1], 1.0)
    first = {1: 16, 4: 16, 300: 2}[chains]
    assert state.rows == first
    state, warming, seen = to_the_end(state, warming, source.adjusted())
    assert state.ended and state.done == sum(rows for _, rows in seen) < 1000
    np.testing.assert_array_equal(warming.n_grad, spent + state.done)
    assert state.n_grad == state.done and state.acceptance.shape == (chains,)
    assert state.fixed is not None and state.tuned.steps_per_draw == state.lag >= 1
    assert np.all(np.abs(warming.ensemble.state[:, -1]) < 1.0)
    assert least_acceptance(state.acceptance) > 0.7
    if chains == 300:
        x = warming.tuned.coordinates.place(warming.ensemble.state[:, :3]).ravel()
        grid = np.linspace(-4.0, 4.0, 4001)
        density = np.exp(-0.5 * grid**2 - 0.25 * grid**4)
        variance = (density @ grid**2) / density.sum()
        assert abs((x**2).mean() - variance) < 4.5 * (x**2).std() / np.sqrt(x.size)
        assert abs(x.mean()) < 4.5 * x.std() / np.sqrt(x.size)


def test_a_step_that_is_far_too_long_is_shortened_and_one_that_is_short_grows():
    for start in (LONGEST, 0.1):
        source, warming = warmed(chains=8)
        warming.tuned = warming.tuned._replace(step_size=start)
        state = Equilibration.begin(warming, source.kernel, RECYCLED, 2000)
        state, warming, seen = to_the_end(state, warming, source.adjusted())
        assert state.ended and 0.3 < state.tuned.step_size < 1.4
        assert 0.55 < least_acceptance(state.acceptance) and 0.8 < state.acceptance.mean() < 0.99
        # After the step is fixed, blocks are of one step.
        steps = [step for step, _ in seen]
        assert len(set(steps[steps.index(state.tuned.step_size) :])) == 1


def test_chains_in_a_narrow_place_shorten_the_step():
    source, warming = warmed(ridge, chains=8, d=4)
    warming.tuned = warming.tuned._replace(step_size=1.0)
    state = Equilibration.begin(warming, source.kernel, RECYCLED, 4000)
    state, warming, seen = to_the_end(state, warming, source.adjusted())
    assert state.tuned.step_size < 0.5 * seen[0][0] and state.acceptance.min() > 0.5, state


def test_it_ends_at_its_length_and_says_whether_the_start_was_forgotten():
    source, warming = warmed()
    state = Equilibration.begin(warming, source.kernel, RECYCLED, 20)
    state, warming, seen = to_the_end(state, warming, source.adjusted())
    assert state.finished and not state.ended and state.done == 20 == sum(rows for _, rows in seen)
    report = report_of(state, 4)
    assert report["ended"] == 0 and report["transitions"] == 20 and report["gradients"] == 20.0
    assert report["acceptance"].shape == (4,) and np.all(report["steps_per_draw"] == 1)
    assert np.all(report["step_size"] == state.tuned.step_size)
    nothing = report_of(None, 4)
    assert {name: (v.dims, v.dtype) for name, v in nothing.items()} == {
        name: (v.dims, v.dtype) for name, v in report.items()
    }
    assert np.isnan(nothing["acceptance"]).all() and nothing["ended"] == 0


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skewed():
    with pm.Model() as model:
        pm.Gamma("g", 3.0, 1.0)
        pm.Normal("x", 0.0, 1.0, shape=3)
    return model


def z_scores(tree):
    """Distances of moments over chains from those of ``skewed``, in standard errors."""
    g, x = (tree["posterior"][name].values[:, -1] for name in ("g", "x"))
    found = [
        (g, 3.0), ((g - 3.0) ** 2, 3.0), (np.log(g), polygamma(0, 3)), ((np.log(g) - polygamma(0, 3)) ** 2,
        polygamma(1, 3)), *((x[:, j] ** k, k - 1.0) for j in range(3) for k in (1, 2)),
    ]  # fmt: skip
    return np.array([(v.mean() - expected) / (v.std(ddof=1) / np.sqrt(len(v))) for v, expected in found])


@pytest.mark.statistical
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_draws_have_no_bias_however_long_the_step_was(skewed, backend):
    options = {"step": pmm.OLMC(step_size=0.6), "backend": backend, "chains": 3000, "draws": 1, "tune": 250}
    biased, adjusted = (run(skewed, **options, adjusted=adjusted) for adjusted in (False, True))
    assert np.abs(z_scores(biased)).max() > 8.0
    assert np.abs(z_scores(adjusted)).max() < 4.5
    report = adjusted["equilibration"]
    assert report["ended"] == 1 and 0.7 < report["acceptance"].mean() < 0.99
    assert "equilibration" not in biased.children
