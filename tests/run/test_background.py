"""Runs in a thread: the draws of a run that blocks, where it is, what it has drawn, its end and its errors."""

import threading

import numpy as np
import pymc as pm
import pytest
from sampling_runs import assert_same, run

import pmm_mcmc as pmm

pytest_plugins = ["sampling_fixtures"]


def test_draws_are_those_of_a_run_that_blocks(well):
    background = run(well, draws=60, blocking=False)
    result = background.wait()
    assert_same(result, run(well, draws=60))
    assert background.finished and background.progress == "finished, 60 draws of each chain"
    assert background.posterior["x"].sizes == result["posterior"]["x"].sizes


def test_it_is_looked_at_and_stopped_while_it_draws(well):
    drawn, go_on = threading.Event(), threading.Event()

    def seen(chunk):
        if not chunk.tuning and chunk.done == 100:
            drawn.set()
            go_on.wait(60.0)

    background = run(well, draws=400, blocking=False, callback=seen)
    assert drawn.wait(60.0)
    assert not background.finished and "100 draws of each chain" in repr(background)
    so_far = background.posterior["x"].values
    with pytest.raises(TimeoutError, match=r"timeout=0.01: the run goes on \(100 draws of each chain\)"):
        background.wait(0.01)
    threading.Timer(0.2, go_on.set).start()
    result = background.stop()
    kept = result["posterior"]["x"].values
    assert 100 <= kept.shape[1] < 400
    np.testing.assert_array_equal(kept[:, :100], so_far)


def test_the_model_is_that_of_the_context_or_of_the_step():
    with pytest.raises(TypeError, match=r"^model=None.*inside the model"):
        pmm.sample(blocking=False)
    with pm.Model():
        pm.Normal("x")
        inside = run(None, step=None, blocking=False)
        step = pmm.PoissonULMC()
    for background in (inside, run(None, step=step, blocking=False)):
        assert background.wait()["posterior"]["x"].shape == (6, 30)


def test_wrong_arguments_are_refused_at_once_and_an_error_later_is_raised_by_wait(well, caplog):
    with pytest.raises(ValueError, match="chains=0"):
        run(well, chains=0, blocking=False)
    with pytest.raises(ValueError, match="blocking='no': must be True or False"):
        run(well, blocking="no")

    def fails(chunk):
        raise RuntimeError("of the callback")

    background = run(well, blocking=False, callback=fails)
    with pytest.raises(RuntimeError, match="of the callback"):
        background.wait()
    assert background.progress == "failed, RuntimeError"
    assert "of the callback; its wait() raises the error" in caplog.text
