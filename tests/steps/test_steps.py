"""The contract with PyMC's sampling loop: statistics, seeds, warm-up, interrupts and the progress bar, bit for bit."""

import io
import json

import numpy as np
import pymc as pm
import pytest
from numba import carray, cfunc
from pymc.progress_bar import MCMCProgressBarManager
from pymc.sampling.mcmc import get_default_tune_steps
from rich.console import Console
from step_runs import ADJUSTED, N_DRAWS, N_TUNE, STEPS, begin, build, every_step, same, same_run, small_model

import pmm_mcmc as pmm
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.numba_shared import Functions
from pmm_mcmc.engines.taped_engine import TapedEngine
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.steps import pymc_step

pytestmark = [pytest.mark.pymc, pytest.mark.longest]

STATS = {
    "step_size": np.float64,
    "K": np.int64,
    "friction": np.float64,
    "steps_per_draw": np.int64,
    "n_grad": np.int64,
    "n_grad_total": np.int64,
    "unstable": np.int64,
    "refined": np.int64,
    "model_failures": np.int64,
    "n_grad_setting": np.int64,
    "lp": np.float64,
    "gradient": np.float64,
    "unconstrained": np.float64,
}
OF_ADJUSTED = {"acceptance_rate": np.float64, "diverging": np.bool_, "n_steps": np.int64, "energy": np.float64}
OF_UNADJUSTED = ("K", "n_grad", "unstable", "refined", "model_failures")


def statistics_of(name):
    """Return names and dtypes of the statistics of a step, and the name of that of its gradients."""
    if name in ADJUSTED:
        without = {*OF_UNADJUSTED, "friction" if name == "MALA" else ""}
        return {key: kind for key, kind in STATS.items() if key not in without} | OF_ADJUSTED, "n_steps"
    return {key: kind for key, kind in STATS.items() if key != "friction" or "OLMC" not in name}, "n_grad"


def failures_of(stats):
    """Return how many transitions of each draw failed, or that some did."""
    return stats["diverging"] if "diverging" in stats else stats["unstable"]


@pytest.fixture(scope="module")
def model():
    return small_model()


@every_step
def test_statistics(model, sample, name):
    with model:
        dt = sample(STEPS[name](), chains=2, draws=40, tune=50, discard_tuned_samples=False)
    expected, gradients = statistics_of(name)
    for group, length in (("sample_stats", 40), ("warmup_sample_stats", 50)):
        stats = dt[group].to_dataset()
        assert set(stats) == {*expected, "sampler"}
        for key in expected:
            vector = key in ("gradient", "unconstrained")
            assert stats[key].dtype == expected[key] and stats[key].dims[:2] == ("chain", "draw"), key
            assert stats[key].shape == (2, length, 4)[: 2 + vector], key
    draws, stats = dt["posterior"], dt["sample_stats"]
    texts = stats["sampler"].values.reshape(2, 40)
    assert json.loads(texts[0, 0])["sampler"] == name.split()[0] and not "".join(texts[:, 1:].ravel())
    exact = model.compile_fn([model.logp(), model.dlogp()])
    for c, i in np.ndindex(2, 40):
        x, s = draws["x"].values[c, i], draws["s"].values[c, i]
        unconstrained = stats["unconstrained"].values[c, i]
        assert np.array_equal(unconstrained[:3], x) and np.isclose(np.exp(unconstrained[3]), s, rtol=1e-15)
        logp, gradient = exact({"x": x, "s_log__": unconstrained[3]})
        np.testing.assert_allclose(stats["lp"].values[c, i], logp, rtol=1e-10)
        np.testing.assert_allclose(stats["gradient"].values[c, i], gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(draws["total"], draws["x"].sum("x_dim_0"), rtol=1e-12)
    for c in range(2):
        spent = [dt[group][gradients].values[c] for group in ("warmup_sample_stats", "sample_stats")]
        totals = [dt[group]["n_grad_total"].values[c] for group in ("warmup_sample_stats", "sample_stats")]
        assert np.array_equal(np.cumsum(np.concatenate(spent)), np.concatenate(totals))
    if name in ADJUSTED:
        assert 0.5 < stats["acceptance_rate"].mean() < 1.0
        # Of four whitened coordinates, whose kinetic energy is half a chi-squared number.
        kinetic = stats["energy"] + stats["lp"]
        assert kinetic.min() >= 0.0 and abs(kinetic.mean() - 2.0) < 1.0


def test_gradients_are_kept_only_where_they_are_of_use(model, sample):
    with model:
        without = sample(pmm.ULMC(keep_gradients=False), draws=20, tune=30, chains=2)
        two = sample([pmm.ULMC(vars=model["x"]), pmm.GHMC(vars=model["s"])], draws=20, tune=30, chains=2)
    for dt in (without, two):
        assert not {"gradient", "unconstrained"} & set(dt["sample_stats"].to_dataset())
        assert "unmeasured" in [reason.code for reason in pmm.verdict(dt).reasons]
        assert pmm.summary(dt)["bias"].isna().all()


@cfunc(SIGNATURE)
def counting(x_pointer, gradient_pointer, table_pointer, d):
    x, gradient, calls = carray(x_pointer, (d,)), carray(gradient_pointer, (d,)), carray(table_pointer, (1,))
    calls[0] += 1
    value = 0.0
    for j in range(d):
        value -= 0.5 * x[j] ** 2 + x[j] ** 4
        gradient[j] = -x[j] - 4.0 * x[j] ** 3
    return value


@every_step
@pytest.mark.parametrize("step_size", ["auto", 1.5])
def test_gradients_add_up_to_the_calls_made(model, sample, name, step_size):
    calls = np.zeros(1, np.int64)
    step = build(model, name, step_size=step_size, steps_per_draw=3)
    kernel = step.binding.engine.kernel
    step.binding.engine = NumbaEngine(
        kernel, step.binding.engine.d, Functions(*(counting, lambda noncentring: calls) * 2)
    )
    with model:
        dt = sample(step, draws=80, tune=70, chains=2, discard_tuned_samples=False)
    stats, early = dt["sample_stats"], dt["warmup_sample_stats"]
    gradients = statistics_of(name)[1]
    of_setting = stats["n_grad_setting"].values.max()
    assert stats[gradients].sum() + early[gradients].sum() + of_setting == calls[0]
    if step_size == 1.5 and name not in ADJUSTED:
        assert stats["refined"].sum() + early["refined"].sum() > 0, "steps in parts must be among those counted"


@every_step
def test_steps_per_draw_only_thins(model, sample, name):
    with model:
        options = {"step_size": 0.05, "scaling": np.ones(4)}
        every = sample(STEPS[name](steps_per_draw=1, **options), tune=0, draws=60)
        fifth = sample(STEPS[name](steps_per_draw=5, **options), tune=0, draws=12)
    for key in ("x", "s"):
        assert np.array_equal(every["posterior"][key].values[:, 4::5], fifth["posterior"][key].values)
    assert np.all(fifth["sample_stats"]["steps_per_draw"].values == 5)
    gradients = statistics_of(name)[1]
    (spent, failed), (thinned, failed_in_draw) = (
        [values.values.reshape(1, 12, -1).sum(axis=2) for values in (stats[gradients], failures_of(stats))]
        for stats in (every["sample_stats"], fifth["sample_stats"])
    )
    if name in ADJUSTED:
        assert np.array_equal(failed > 0, failed_in_draw > 0) and np.array_equal(spent, thinned)
        return
    assert np.array_equal(failed, failed_in_draw)
    # What looking into a failure takes depends on how many there are in a draw.
    well = failed == 0
    assert np.array_equal(spent[well], thinned[well]) and well.sum() >= 3
    assert np.all(thinned[~well] > spent[~well] - 2 * 16 * failed[~well])


@every_step
def test_seeds_and_reuse_of_a_step(model, sample, name):
    with model:
        step = STEPS[name]()
        first, again = sample(step, chains=2), sample(step, chains=2)
        other, new = sample(step, chains=2, seed=2), sample(STEPS[name](rng=99), chains=2)
        fewer = sample(step, chains=1)
    assert same_run(first, again) and same_run(first, new)
    assert not same(first, other)
    assert not np.array_equal(first["posterior"]["x"][0], first["posterior"]["x"][1])
    assert np.array_equal(first["posterior"]["x"][:1], fewer["posterior"]["x"])


def test_chains_start_overdispersed_unless_told_where(model, sample, monkeypatch):
    starts, advance = [], NumbaEngine.advance

    def watched(self, setting, ensemble, *rest, **options):
        if ensemble.transition == 0:
            starts.append(setting.coordinates.place(ensemble.state[0, : self.d]))
        return advance(self, setting, ensemble, *rest, **options)

    monkeypatch.setattr(NumbaEngine, "advance", watched)
    default = np.concatenate([np.ravel(model.initial_point(0)[name]) for name in ("x", "s_log__")])
    with model:
        step = pmm.ULMC(step_size=0.1)
        sample(step, draws=30, tune=0, chains=30)
        offsets = np.array(starts) - default
        assert offsets.shape == (30, 4) and len(np.unique(offsets)) == offsets.size
        assert np.all(np.abs(offsets) < 1.0) and np.all(np.ptp(offsets, axis=0) > 1.0)
        starts.clear()
        given = [{"x": np.array([0.1, 2.0, -7.0]), "s": 0.7}, {"x": np.array([-0.1, 3.3, 7.0])}]
        sample(step, draws=2, tune=0, chains=2, initvals=given)
    assert np.array_equal(starts[0], [0.1, 2.0, -7.0, np.log(0.7)])
    assert np.array_equal(starts[1], [-0.1, 3.3, 7.0, default[3]])


def watched_learning(monkeypatch):
    """Return a list that grows with each setting that is learnt."""
    learnt, learn = [], pymc_step.learn

    def watched(*arguments, **options):
        learnt.append(learn(*arguments, **options))
        return learnt[-1]

    monkeypatch.setattr(pymc_step, "learn", watched)
    return learnt


def test_one_setting_is_learnt_for_all_chains_and_runs_of_the_same_data(sample, monkeypatch):
    learnt = watched_learning(monkeypatch)
    with pm.Model():
        data = pm.Data("data", [1.0, 2.0])
        pm.Normal("y", pm.Normal("x"), 1.0, observed=data)
        step = pmm.PoissonULMC()
        first = sample(step, draws=200, chains=3)
        again = sample(step, draws=200, chains=3)
        assert len(learnt) == 1 and same_run(first, again)
        pm.set_data({"data": [5.0, 6.0]})
        sample(step)
        assert len(learnt) == 2, "the data are others"
        sample(pmm.PoissonULMC(step_size=0.1), tune=0)
        assert len(learnt) == 2, "without a warm-up there is nothing to learn"
    setting = learnt[0].tuned
    stats = first["sample_stats"]
    assert (stats["step_size"] == setting.step_size).all() and (stats["n_grad_setting"] == learnt[0].n_grad).all()


def test_chains_start_at_learnt_places_and_rest_once_they_have_forgotten_them(sample, monkeypatch):
    learnt = watched_learning(monkeypatch)
    with pm.Model():
        pm.Normal("x", 100.0, 0.1)
        dt = sample(pmm.PoissonULMC(), draws=50, tune=200, discard_tuned_samples=False)
        far = sample(pmm.PoissonULMC(), draws=50, tune=200, discard_tuned_samples=False, initvals={"x": 90.0})
    moving = 10 * learnt[0].tuned.steps_per_draw
    spent = dt["warmup_sample_stats"]["n_grad"].values[0]
    assert (spent[:moving] > 0).all() and not spent[moving:].any()
    x = dt["warmup_posterior"]["x"].values[0]
    assert np.abs(x[0] - 100.0) < 1.0 and np.ptp(x[moving:]) == 0.0 and np.ptp(x[:moving]) > 0.0
    assert (far["warmup_sample_stats"]["n_grad"] > 0).all(), "a start that somebody chose may be far from the posterior"


def test_default_length_of_the_warm_up(model, sample):
    class Quick(pmm.ULMC):
        default_tune_steps = 37

    with model:
        assert get_default_tune_steps(pmm.ULMC(), None) == 1000
        dt = sample(Quick(), tune=None, draws=5, discard_tuned_samples=False)
    assert dt["warmup_posterior"].sizes["draw"] == 37


def test_interrupt_keeps_the_draws(model, sample):
    def interrupt(trace, draw):
        if draw.draw_idx == 69:
            raise KeyboardInterrupt

    with model:
        step = pmm.ULMC()
        whole = sample(step, draws=100, tune=50)
        part = sample(step, draws=100, tune=50, callback=interrupt)
    assert part["posterior"].sizes["draw"] == 20
    assert np.array_equal(part["posterior"]["x"].values, whole["posterior"]["x"].values[:, :20])


def test_progress_bar_shows_step_size_K_gradients_and_failures(model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    step = build(model, "PoissonULMC K=16", step_size=1.5, scaling=np.full(4, 3.0))
    manager = MCMCProgressBarManager(step_method=step, chains=1, draws=N_DRAWS, tune=N_TUNE, progressbar=True)
    console = Console(file=io.StringIO(), width=200, record=True)
    manager._backend._progress.live.console = console
    point, spent, failed, failing = begin(step, model), 0, 0, []
    with manager:
        for i in range(N_TUNE + N_DRAWS):
            if i == N_TUNE:
                step.stop_tuning()
            point, stats = step.step(point)
            spent, failed = spent + stats[0]["n_grad"], failed + stats[0]["unstable"]
            manager.update(chain_idx=0, is_last=False, draw=i, tuning=i < N_TUNE, stats=stats)
            (task,) = manager._backend._progress.tasks
            assert task.fields["n_grad"] == spent
            failing.append(task.fields["failing"])
        console.print(manager._backend._progress.make_tasks_table(manager._backend._progress.tasks))
    shown = console.export_text()
    for header in ("Step size", "Gradients", "Unstable"):
        assert header in shown
    row = shown.splitlines()[-1].split() if shown.splitlines()[-1].strip() else shown.splitlines()[-2].split()
    assert {"1.5", "16", str(spent)} <= set(row), row
    assert failed > 0 and not any(failing[:N_TUNE]) and failing[-1]


def test_a_chain_is_compiled_from_its_start_if_it_will_be_anyhow(model, sample, monkeypatch):
    on_tape = []
    advance = TapedEngine.advance
    monkeypatch.setattr(TapedEngine, "advance", lambda *args, **options: on_tape.append(1) or advance(*args, **options))
    with model:
        step = pmm.GHMC()
        short = sample(step, draws=20, tune=20)
        assert len(on_tape) > 40
        step.binding.engine.switch = 39
        on_tape.clear()
        long = sample(step, draws=20, tune=20)
    assert not on_tape, "its setting is known, and the chain is longer than a tape is worth"
    np.testing.assert_allclose(long["posterior"]["x"], short["posterior"]["x"], rtol=1e-6)
