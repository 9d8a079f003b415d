"""A chain goes on bit for bit: from its saved state, pickled, stopped early, and where another step has moved it."""

import pickle

import cloudpickle
import numpy as np
import pytest
from step_runs import ADJUSTED, N_DRAWS, N_TUNE, advance, begin, build, every_step, small_model

import pmm_mcmc as pmm

pytestmark = [pytest.mark.pymc, pytest.mark.longest]


@pytest.fixture(scope="module")
def model():
    return small_model()


CUTS = (1, 10, 25, 26, 42, 59, 60, 61, 85, 119)


@every_step
def test_saved_state_continues_in_a_new_object(model, name):
    straight = build(model, name)
    expected, _ = advance(straight, begin(straight, model), 0, N_TUNE + N_DRAWS)
    step = build(model, name)
    point, done, rows = begin(step, model), 0, []
    for cut in CUTS:
        more, point = advance(step, point, done, cut)
        rows, done = rows + more, cut
        state = pickle.loads(pickle.dumps(step.sampling_state))
        restored = build(model, name)
        restored.sampling_state = state
        copied = {key: value.copy() for key, value in point.items()}
        assert advance(restored, copied, cut, N_TUNE + N_DRAWS)[0] == expected[cut:], cut
    assert rows == expected[:done], "reading the state must not change the run"


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


@pytest.mark.parametrize("name", ["PoissonULMC K=16", "GHMC"])
@pytest.mark.parametrize("stop", [1, 25, 33, 52])
def test_warm_up_can_be_stopped_early(model, name, stop):
    step = build(model, name)
    point = begin(step, model)
    _, point = advance(step, point, 0, stop, stop_at=None)
    step.stop_tuning()
    assert step.tune is False and not step.chain.tuning
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
    gradients = "n_steps" if name in ADJUSTED else "n_grad"
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
