"""A chain goes on bit for bit: from its saved state, pickled, stopped early, and where another step has moved it."""

import pickle

import cloudpickle
import numpy as np
import pytest
from step_runs import N_DRAWS, N_TUNE, STEPS, advance, begin, build, every_step, same, same_run, small_model

import pmm_mcmc as pmm
from pmm_mcmc.steps import chain as chain_module
from pmm_mcmc.steps.chain import Chain
from pmm_mcmc.warmup.schedule import Warmup

pytestmark = pytest.mark.pymc


@pytest.fixture(scope="module")
def model():
    return small_model()


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
        company += [cut] if len(step.chain.n_grad) > 1 else []
        state = pickle.loads(pickle.dumps(step.sampling_state))
        restored = build(model, name)
        restored.sampling_state = state
        copied = {key: value.copy() for key, value in point.items()}
        assert advance(restored, copied, cut, N_TUNE + N_DRAWS)[0] == expected[cut:], cut
    assert rows == expected[:done], "reading the state must not change the run"
    assert looking_ahead >= 3 and company == [cut for cut in CUTS if cut <= 42]


@pytest.mark.parametrize("name", ["PoissonULMC K=16", "PoissonULMC recycled", "GHMC"])
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
        assert (len(step.chain.n_grad) == 1) == (frozen_at is not None)
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
    self.passed = self.done >= N_TUNE + 100
    if not self.passed:
        self._set_step(0.7 * self.tuned.step_size)


def test_a_state_of_other_settings_is_refused(model):
    step = build(model, "PoissonULMC K=16")
    advance(step, begin(step, model), 0, 3)
    with pytest.raises(ValueError, match="settings"):
        build(model, "ULMC").sampling_state = step.sampling_state
    with model, pytest.raises(ValueError, match="var_names"):
        pmm.PoissonULMC(vars=[model["x"]], K=16).sampling_state = step.sampling_state


@pytest.mark.parametrize("name", ["PoissonULMC recycled", "GHMC"])
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
    run = Chain._advance
    monkeypatch.setattr(Chain, "_advance", lambda self, *a: longest.append(a[3]) or run(self, *a))
    for most in (1, 7, 256):
        monkeypatch.setattr(chain_module, "MOST_DRAWS_AHEAD", most)
        longest.clear()
        with model:
            runs.append(sample(STEPS[name](), draws=400, tune=80, discard_tuned_samples=False))
        assert max(longest) == most
    for other in runs[1:]:
        assert same_run(runs[0], other)
        assert same(runs[0], other, "warmup_posterior") and same(runs[0], other, "warmup_sample_stats")


@pytest.mark.parametrize("name", ["PoissonULMC K=16", "GHMC"])
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
    gradients = "n_steps" if name == "GHMC" else "n_grad"
    assert stats[gradients] == left_alone.step(point)[1][0][gradients] + 1, "the gradient at the new place counts"


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
