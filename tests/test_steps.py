"""The contract with PyMC's sampling loop.  Everything is compared bit for bit; no tolerance and no chance."""

import io
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from numba import carray, cfunc
from pymc.progress_bar import MCMCProgressBarManager
from pymc.sampling.mcmc import get_default_tune_steps
from rich.console import Console

import pmm_mcmc as pmm
from pmm_mcmc.engines.numba_engine import SIGNATURE, NumbaEngine
from pmm_mcmc.steps import chain as chain_module
from pmm_mcmc.steps.chain import Chain
from pmm_mcmc.tuning.schedule import Warmup

pytestmark = pytest.mark.pymc

STEPS = {
    "PoissonOLMC": lambda **o: pmm.PoissonOLMC(**o),
    "PoissonULMC K=16": lambda **o: pmm.PoissonULMC(K=16, **o),
    "PoissonULMC option 1": lambda **o: pmm.PoissonULMC(option=1, **o),
    "PoissonULMC centred": lambda **o: pmm.PoissonULMC(grid="centred", **o),
    "PoissonULMC importance": lambda **o: pmm.PoissonULMC(midpoint="importance", **o),
    "PoissonULMC recycled": lambda **o: pmm.PoissonULMC(scheme="recycled", **o),
    "OLMC": lambda **o: pmm.OLMC(**o),
    "ULMC": lambda **o: pmm.ULMC(**o),
    "RLMC overdamped": lambda **o: pmm.RLMC(dynamics="overdamped", **o),
    "RLMC underdamped": lambda **o: pmm.RLMC(dynamics="underdamped", **o),
    "MALA": lambda **o: pmm.MALA(**o),
}
every_step = pytest.mark.parametrize("name", STEPS)
STATS = {
    "step_size": np.float64,
    "K": np.int64,
    "friction": np.float64,
    "steps_per_draw": np.int64,
    "n_grad": np.int64,
    "n_grad_total": np.int64,
    "unstable": np.int64,
    "model_failures": np.int64,
    "halving_cost": np.float64,
    "expected_bias": np.float64,
    "lp": np.float64,
    "acceptance_rate": np.float64,
    "gradient": np.float64,
    "unconstrained": np.float64,
}
N_TUNE, N_DRAWS = 60, 60


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        x = pm.Normal("x", [0.0, 3.0, -2.0], [1.0, 0.1, 5.0], shape=3)
        s = pm.HalfNormal("s")
        pm.Normal("y", x.sum(), s + 0.5, observed=[0.3, -0.6, 1.9])
        pm.Deterministic("total", x.sum())
    return model


def build(model, name, **options):
    with model:
        return STEPS[name](**options)


def begin(step, model, seed=3, tune=N_TUNE, draws=N_DRAWS):
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    return model.initial_point(0)


def advance(step, point, first, last, stop_at=N_TUNE):
    """Draws and statistics from ``first`` to ``last``, as PyMC's loop makes them, and the last point."""
    rows = []
    for i in range(first, last):
        if i == stop_at:
            step.stop_tuning()
        point, [stats] = step.step(point)
        stats = {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in stats.items()}
        rows.append((*(point[key].tobytes() for key in sorted(point)), *sorted(map(repr, stats.items()))))
    return rows, point


def same(first, second, group="posterior"):
    first, second = first[group].to_dataset(), second[group].to_dataset()
    return set(first) == set(second) and all(
        np.array_equal(first[name], second[name], equal_nan=name in ("friction", "halving_cost", "expected_bias"))
        for name in first
    )


def same_run(first, second):
    return same(first, second) and same(first, second, "sample_stats")


@every_step
def test_statistics(model, sample, name):
    with model:
        dt = sample(STEPS[name](), chains=2, draws=40, tune=50, discard_tuned_samples=False)
    expected = set(STATS)
    if name != "MALA":
        expected -= {"acceptance_rate"}
    if name in ("PoissonOLMC", "OLMC", "MALA"):
        expected -= {"friction"}
    for group, length in (("sample_stats", 40), ("warmup_sample_stats", 50)):
        stats = dt[group].to_dataset()
        assert set(stats) == expected
        for key in expected:
            vector = key in ("gradient", "unconstrained")
            assert stats[key].dtype == STATS[key] and stats[key].dims[:2] == ("chain", "draw"), key
            assert stats[key].shape == (2, length, 4)[: 2 + vector], key
    draws, stats = dt["posterior"], dt["sample_stats"]
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
        spent = [dt[group]["n_grad"].values[c] for group in ("warmup_sample_stats", "sample_stats")]
        totals = [dt[group]["n_grad_total"].values[c] for group in ("warmup_sample_stats", "sample_stats")]
        assert np.array_equal(np.cumsum(np.concatenate(spent)), np.concatenate(totals))
    if name == "MALA":
        assert 0.0 < stats["acceptance_rate"].mean() < 1.0


def test_gradients_are_kept_only_where_they_are_of_use(model, sample):
    with model:
        without = sample(pmm.ULMC(keep_gradients=False), draws=20, tune=30)
        two = sample([pmm.ULMC(vars=model["x"]), pmm.MALA(vars=model["s"])], draws=20, tune=30)
    for stats in (without["sample_stats"], two["sample_stats"]):
        assert not {"gradient", "unconstrained"} & set(stats.to_dataset())


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
    kernel = step._engine.kernel
    step._compiled = NumbaEngine(kernel, step._engine.d, counting, counting, lambda: calls, lambda: calls)
    with model:
        dt = sample(step, draws=80, tune=70, chains=2, discard_tuned_samples=False)
    stats, early = dt["sample_stats"], dt["warmup_sample_stats"]
    assert stats["n_grad"].sum() + early["n_grad"].sum() == calls[0]
    if step_size == 1.5 and name != "MALA":
        assert stats["unstable"].sum() + early["unstable"].sum() > 0, "rejected steps must be among those counted"


@every_step
def test_steps_per_draw_only_thins(model, sample, name):
    with model:
        options = {"step_size": 0.05, "scaling": np.ones(4)}
        every = sample(STEPS[name](steps_per_draw=1, **options), tune=0, draws=60)
        fifth = sample(STEPS[name](steps_per_draw=5, **options), tune=0, draws=12)
    for key in ("x", "s"):
        assert np.array_equal(every["posterior"][key].values[:, 4::5], fifth["posterior"][key].values)
    assert np.all(fifth["sample_stats"]["steps_per_draw"].values == 5)
    summed, thinned = (
        {key: run["sample_stats"][key].values.reshape(1, 12, -1).sum(axis=2) for key in ("n_grad", "unstable")}
        for run in (every, fifth)
    )
    assert np.array_equal(summed["unstable"], thinned["unstable"])
    # What looking into a failure takes depends on how many there are in a draw.
    well = summed["unstable"] == 0
    assert np.array_equal(summed["n_grad"][well], thinned["n_grad"][well]) and well.sum() >= 3
    assert np.all(thinned["n_grad"][~well] > summed["n_grad"][~well] - 2 * 16 * summed["unstable"][~well])


def test_automatic_steps_per_draw_follow_the_autocorrelation_and_report_the_cap(model, sample):
    with model:
        slow, slower, given = (
            sample(pmm.OLMC(scaling=[0.5, 0.1, 0.5, 0.5], **o), tune=1000, keep_warning_stat=True)["sample_stats"]
            for o in ({"step_size": 0.2}, {"step_size": 1e-4}, {"step_size": 1e-4, "steps_per_draw": 64})
        )
    chosen = np.unique(slow["steps_per_draw"])
    assert len(chosen) == 1 and 1 < chosen[0] < 64
    assert not [w for w in slow["warning"].values.ravel() if w is not None]
    assert np.all(slower["steps_per_draw"].values == 64)
    (message,) = [w.message for w in slower["warning"].values.ravel() if w is not None]
    assert "reached its cap of 64" in message
    assert not [w for w in given["warning"].values.ravel() if w is not None], "what is given is not complained of"


CUTS = (1, 10, 25, 26, 42, 59, 60, 61, 85, 119)


@every_step
def test_saved_state_continues_in_a_new_object(model, monkeypatch, name):
    monkeypatch.setattr(chain_module, "SECONDS_AHEAD", 10.0)
    straight = build(model, name)
    expected, _ = advance(straight, begin(straight, model), 0, N_TUNE + N_DRAWS)
    step = build(model, name)
    point, done, rows, looking_ahead, company = begin(step, model), 0, [], 0, []
    for cut in CUTS:
        more, point = advance(step, point, done, cut)
        rows, done = rows + more, cut
        chunk = step.chain._chunk
        looking_ahead += chunk is not None and step.chain.row < len(chunk.lp)
        company += [cut] if step.chain.walkers is not None else []
        state = pickle.loads(pickle.dumps(step.sampling_state))
        restored = build(model, name)
        restored.sampling_state = state
        copied = {key: value.copy() for key, value in point.items()}
        assert advance(restored, copied, cut, N_TUNE + N_DRAWS)[0] == expected[cut:], cut
    assert rows == expected[:done], "reading the state must not change the run"
    assert looking_ahead >= 3 and company == [cut for cut in CUTS if cut <= 42]


@pytest.mark.parametrize("name", ["PoissonULMC K=16", "PoissonULMC recycled", "MALA"])
def test_saved_state_continues_over_the_freeze(model, name):
    tune = 400
    straight = build(model, name)
    expected, _ = advance(straight, begin(straight, model, tune=tune, draws=20), 0, tune + 20, stop_at=tune)
    frozen_at = None
    for cut in (25, 130, 131, 200, 399, 400):
        step = build(model, name)
        _, point = advance(step, begin(step, model, tune=tune, draws=20), 0, cut, stop_at=tune)
        state = pickle.loads(pickle.dumps(step.sampling_state))
        frozen_at = frozen_at or (step.chain.warmup.frozen and cut)
        restored = build(model, name)
        restored.sampling_state = state
        assert (step.chain.walkers is None) == (frozen_at is not None)
        assert advance(restored, point, cut, tune + 20, stop_at=tune)[0] == expected[cut:], cut
    assert frozen_at is not None and frozen_at > 131


def test_a_failed_last_check_prolongs_the_warm_up_beyond_the_draws(model, monkeypatch):
    monkeypatch.setattr(Warmup, "_check", failing_twice_at_the_end)
    step = build(model, "PoissonULMC K=16")
    _, point = advance(step, begin(step, model), 0, N_TUNE, stop_at=None)
    spent, before = step.chain.transition, step.chain.tuned.step_size
    step.stop_tuning()
    assert step.chain.warmup is None and step.tune is False
    made = step.chain.transition
    assert made >= spent + 2 * 50 - N_TUNE and made > N_TUNE
    [stats] = step.step(point)[1]
    assert stats["step_size"] == pytest.approx(before * 0.49) and stats["n_grad"] > made - N_TUNE


def failing_twice_at_the_end(self, block):
    self.clean = self.done >= N_TUNE + 100
    if not self.clean:
        self._set_step(0.7 * self.tuned.step_size)


def test_a_state_of_other_settings_is_refused(model):
    step = build(model, "PoissonULMC K=16")
    advance(step, begin(step, model), 0, 3)
    with pytest.raises(ValueError, match="settings"):
        build(model, "ULMC").sampling_state = step.sampling_state
    with model, pytest.raises(ValueError, match="var_names"):
        pmm.PoissonULMC(vars=[model["x"]], K=16).sampling_state = step.sampling_state


@pytest.mark.parametrize("name", ["PoissonULMC recycled", "MALA"])
def test_pickling_before_and_in_the_middle_of_a_run(model, name):
    straight = build(model, name)
    expected, _ = advance(straight, begin(straight, model), 0, N_TUNE + N_DRAWS)
    fresh = cloudpickle.loads(cloudpickle.dumps(build(model, name)))
    assert fresh.vars[0] is not straight.vars[0]
    assert advance(fresh, begin(fresh, model), 0, N_TUNE + N_DRAWS)[0] == expected
    done, point = 0, begin(fresh, model)
    for cut in (20, 90):
        point = advance(fresh, point, done, cut)[1]
        fresh, point = cloudpickle.loads(cloudpickle.dumps((fresh, point)))
        done = cut
    assert advance(fresh, point, 90, N_TUNE + N_DRAWS)[0] == expected[90:]


@every_step
def test_draws_do_not_depend_on_how_far_the_chain_looks_ahead(model, sample, monkeypatch, name):
    monkeypatch.setattr(chain_module, "SECONDS_AHEAD", 10.0)
    runs, longest = [], []
    run = Chain._run
    monkeypatch.setattr(Chain, "_run", lambda self, *a: longest.append(a[3]) or run(self, *a))
    for most in (1, 7, 256):
        monkeypatch.setattr(chain_module, "MOST_DRAWS_AHEAD", most)
        longest.clear()
        with model:
            runs.append(sample(STEPS[name](), draws=400, tune=80, discard_tuned_samples=False))
        assert max(longest) == most
    for other in runs[1:]:
        assert same_run(runs[0], other)
        assert same(runs[0], other, "warmup_posterior") and same(runs[0], other, "warmup_sample_stats")


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
    starts, run = [], NumbaEngine.run

    def watched(self, setting, state, gradient, key, first, *rest):
        if first == 0:
            starts.append(setting.coordinates.place(state[: self.d]))
        return run(self, setting, state, gradient, key, first, *rest)

    monkeypatch.setattr(NumbaEngine, "run", watched)
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


def test_fixed_step_size_needs_no_warm_up(model, sample):
    with model:
        stats = sample(pmm.PoissonULMC(K=16, step_size=0.1), tune=0, draws=30)["sample_stats"]
    assert np.all(stats["step_size"].values == 0.1) and np.all(stats["steps_per_draw"].values == 1)


def test_default_length_of_the_warm_up(model, sample):
    class Quick(pmm.ULMC):
        default_tune_steps = 37

    with model:
        assert get_default_tune_steps(pmm.ULMC(), None) == 1000
        dt = sample(Quick(), tune=None, draws=5, discard_tuned_samples=False)
    assert dt["warmup_posterior"].sizes["draw"] == 37


@pytest.mark.parametrize("name", ["PoissonULMC K=16", "MALA"])
@pytest.mark.parametrize("stop", [1, 25, 33, 52])
def test_warm_up_can_be_stopped_early(model, name, stop):
    step = build(model, name)
    point = begin(step, model)
    _, point = advance(step, point, 0, stop, stop_at=None)
    step.stop_tuning()
    assert step.tune is False and step.chain.warmup is None
    frozen = step.chain.tuned
    for _ in range(100):
        point, [stats] = step.step(point)
        assert stats["step_size"] == frozen.step_size and stats["steps_per_draw"] == frozen.steps_per_draw
    assert np.array_equal(step.chain.tuned.coordinates.scale, frozen.coordinates.scale)
    repeated = build(model, name)
    later = advance(repeated, begin(repeated, model), 0, stop + 100, stop_at=stop)[1]
    assert all(np.array_equal(point[key], later[key]) for key in point)


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


@every_step
def test_a_foreign_move_between_steps_is_honoured(model, name):
    step = build(model, name, step_size=1e-9, scaling=np.ones(4))
    point = begin(step, model, tune=0)
    _, point = advance(step, point, 0, 7, stop_at=0)
    target = {"x": np.array([0.5, 2.5, 1.5]), "s_log__": np.array(-0.3)}
    moved, [stats] = step.step(dict(target))
    # One step of 1e-9 moves by about sqrt(2e-9) times a standard normal.
    assert all(np.abs(moved[key] - target[key]).max() < 6 * np.sqrt(2e-9) for key in target)
    np.testing.assert_allclose(stats["model_logp"], model.compile_logp()(moved), rtol=1e-12)
    left_alone = build(model, name, step_size=1e-9, scaling=np.ones(4))
    point = advance(left_alone, begin(left_alone, model, tune=0), 0, 7, stop_at=0)[1]
    assert stats["n_grad"] == left_alone.step(point)[1][0]["n_grad"] + 1, "the gradient at the new place counts"


def test_a_point_changed_in_place_is_honoured_or_refused(model):
    step = build(model, "ULMC", step_size=1e-9, scaling=np.ones(4))
    _, point = advance(step, begin(step, model, tune=0), 0, 7, stop_at=0)
    point["s_log__"] = np.array(-0.3)
    assert abs(step.step(point)[0]["s_log__"] + 0.3) < 1e-3
    _, point = advance(step, point, 8, 9, stop_at=0)
    try:
        point["x"][...] = [0.5, 2.5, 1.5]
    except ValueError:
        return
    assert np.abs(step.step(point)[0]["x"] - [0.5, 2.5, 1.5]).max() < 1e-3


def test_progress_bar_shows_step_size_K_gradients_and_failures(model, monkeypatch):
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
    assert {"1.500", "16", str(spent)} <= set(row), row
    assert failed > 0 and not any(failing[:N_TUNE]) and failing[-1]


def test_a_step_made_outside_a_model_is_pickled_too():
    step = pickle.loads(pickle.dumps(pmm.PoissonULMC(K=4)))
    assert step.arguments == pmm.PoissonULMC(K=4).arguments
