"""``pmm.sample`` that stores, is stopped or fails: nothing finished is lost, and resumed it is the same run."""

import signal

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from sampling_runs import BACKENDS, QUIET, assert_same, run
from store_runs import files

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders
from pmm_mcmc.run.storage.store import stored_identity

pytestmark = pytest.mark.longest

pytest_plugins = ["sampling_fixtures"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_stored_and_in_memory_results_are_equal(schools, backend, tmp_path):
    options = {"discard_tuned_samples": False}
    memory, stored = run(schools, backend, **options), run(schools, backend, store=tmp_path / "a.zarr", **options)
    times = ("created_at", "sampling_time", "compile_time")
    del memory["checkpoint"]  # a store has its own
    for tree in (memory, stored):
        for group in tree.subtree:
            group.attrs = {name: value for name, value in group.attrs.items() if name not in times}
    xr.testing.assert_identical(stored.load(), memory)
    again = pmm.open(tmp_path / "a.zarr")
    assert set(times) <= set(again["posterior"].attrs)
    assert_same(again, memory)


def test_log_likelihood_and_loo_are_those_of_pymc_and_arviz(schools, tmp_path):
    memory = run(schools, "numba", draws=100)
    run(schools, "numba", draws=100, store=tmp_path / "a.zarr")
    elpd = []
    for tree in (memory, pmm.open(tmp_path / "a.zarr")):
        pm.compute_log_likelihood(tree, model=schools, progressbar=False)
        terms = tree["log_likelihood"]["y"]
        assert terms.dims == ("chain", "draw", "school") and list(terms["school"]) == list(tree["posterior"]["school"])
        elpd.append(az.loo(tree).elpd)
    assert np.isfinite(elpd[0]) and elpd[0] == elpd[1]


def test_a_stored_run_can_be_prolonged(well, tmp_path):
    run(well, draws=20, store=tmp_path / "a", random_seed=None)
    longer = run(well, draws=60, store=tmp_path / "a", resume=True, random_seed=None)
    seed = int(stored_identity(tmp_path / "a")["seed"])
    assert_same(longer, run(well, draws=60, random_seed=seed))
    with pytest.raises(ValueError, match="has 60 draws of each chain already"):
        run(well, draws=20, store=tmp_path / "a", resume=True, random_seed=None)


def test_another_run_s_store_is_refused_by_name(schools, tmp_path):
    run(schools, "numba", store=tmp_path / "a", draws=10)
    before = files(tmp_path / "a")
    with pytest.raises(pmm.StoreError, match="seed: stored 3, given 4"):
        run(schools, "numba", store=tmp_path / "a", draws=10, resume=True, random_seed=4)
    with pytest.raises(pmm.StoreError, match="resume=True"):
        run(schools, "numba", store=tmp_path / "a", draws=10)
    assert files(tmp_path / "a") == before


# -- stopping --------------------------------------------------------------------------------------------------------


def test_callback_sees_every_chunk_and_may_stop(schools, caplog, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    seen = []

    def watch(drawn):
        seen.append(drawn)
        if not drawn.tuning and drawn.done == 20:
            raise pmm.StopSampling

    tree = run(schools, "numba", callback=watch)
    assert tree["posterior"].sizes["draw"] == 20
    assert "stopped after 20 of 30 draws" in caplog.text
    drawn = [d for d in seen if not d.tuning]
    np.testing.assert_array_equal(
        np.concatenate([d.posterior["theta"] for d in drawn], axis=1), tree["posterior"]["theta"]
    )
    assert drawn[0].sample_stats["lp"].shape == (6, 10)
    assert seen[0].tuning and not seen[0].posterior


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_keep_what_is_finished(schools, number, monkeypatch):
    """A handler of the user's own hears of SIGTERM afterwards; Ctrl-C has been heard."""
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    heard = []

    def interrupt(drawn):
        if not drawn.tuning and drawn.done == 10:
            signal.raise_signal(number)

    def own(number, frame):
        heard.append(number)

    before = signal.signal(number, own)
    try:
        tree = run(schools, "numba", callback=interrupt)
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)
    assert tree["posterior"].sizes["draw"] == 10
    assert heard == [number] * (number == signal.SIGTERM)


def test_ctrl_c_twice_ends_at_once_and_resuming_completes_it(well, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)

    def interrupt(drawn):
        if not drawn.tuning and drawn.done == 10:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(well, store=tmp_path / "a", callback=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert_same(run(well, store=tmp_path / "a", resume=True), run(well))


def test_other_errors_of_a_callback_are_passed_on_and_the_store_stays_whole(well, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)

    def fail(drawn):
        if drawn.done == 10 and not drawn.tuning:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(well, store=tmp_path / "a", callback=fail)
    assert_same(run(well, store=tmp_path / "a", resume=True), run(well))


# -- NetCDF files ------------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("stored", [False, True])
def test_a_result_that_was_read_back_is_judged_and_goes_on(tmp_path, stored):
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        mean = pm.Normal("mean")
        effect = pm.Normal("effect", mean, 1.0, dims="group")
        pm.Normal("y", effect, 1.0, observed=[1.0, 2.0], dims="group")
    store = tmp_path / "run.zarr" if stored else None
    dt = pmm.sample(40, tune=100, model=model, random_seed=1, store=store, **QUIET)
    dt.to_netcdf(tmp_path / "run.nc")
    saved = xr.open_datatree(tmp_path / "run.nc")
    assert pmm.verdict(saved) == pmm.verdict(dt)
    assert pmm.summary(saved).equals(pmm.summary(dt))
    assert_same(saved, dt)
    if not stored:
        assert_same(pmm.extend(saved, 10, model=model, **QUIET), pmm.extend(dt, 10, model=model, **QUIET))
