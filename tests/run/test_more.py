"""``pmm.extend``: a result in memory goes on, to the bytes of one long run."""

import copy
import pickle

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from sampling_runs import BACKENDS, Stop, assert_same, run

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders

pytest_plugins = ["sampling_fixtures"]
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chains, adjusted", [(1, False), (8, False), (1, True), (6, True)])
def test_a_hundred_and_two_hundred_more_are_three_hundred(schools, backend, chains, adjusted):
    options = {"chains": chains, "adjusted": adjusted, "discard_tuned_samples": False}
    whole = run(schools, backend, draws=300, **options)
    first = run(schools, backend, draws=100, **options)
    before = first.copy(deep=True)
    more = pmm.extend(first, 200, model=schools, **QUIET)
    assert_same(more, whole)
    xr.testing.assert_identical(first, before)
    for group in ("posterior", "sample_stats"):
        times = more[group].attrs["sampling_time"], first[group].attrs["sampling_time"]
        assert times[0] > times[1] > first[group].attrs["compile_time"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_run_was_need_not_be_said_again(schools, backend):
    step = pmm.ULMC(friction=0.7, keep_gradients=False)
    options = {"tune": 160, "chains": 3, "random_seed": None, **QUIET}
    first = pmm.sample(step=step, draws=20, model=schools, backend=backend, var_names=["mu", "theta"], **options)
    more = pmm.extend(first, 30, model=schools, **QUIET)
    seed = int(more["posterior"].attrs["random_seed"])
    whole = pmm.sample(
        50, step=step, model=schools, backend=backend, var_names=["mu", "theta"], **options | {"random_seed": seed}
    )
    assert_same(more, whole)
    assert set(more["posterior"].data_vars) == {"mu", "theta"} and "gradient" not in more["sample_stats"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupted_run_goes_on(schools, backend, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    whole = run(schools, backend, discard_tuned_samples=False)
    for chunks in (1, 7):
        part = run(schools, backend, discard_tuned_samples=False, callback=Stop(chunks))
        drawn = part["posterior"].sizes["draw"]
        assert (drawn == 0) == (chunks == 1) and drawn < 30
        assert_same(pmm.extend(part, 30 - drawn, model=schools, **QUIET), whole)


def test_it_survives_copies_files_and_pickles(well, tmp_path):
    whole, first = run(well, draws=50), run(well, draws=20)
    first.to_zarr(tmp_path / "a.zarr", consolidated=False)
    for tree in (
        first.copy(deep=True),
        copy.deepcopy(first),
        pickle.loads(pickle.dumps(first)),
        xr.open_datatree(tmp_path / "a.zarr", engine="zarr", consolidated=False),
    ):
        assert_same(pmm.extend(tree, 30, model=well, **QUIET), whole)
    state = first["checkpoint"]["state"]
    d, chains = 3, 6
    assert state.nbytes < 20_000 + 8 * chains * 6 * d, "as large as the chains' states, whatever the draws"


def test_another_model_is_refused(schools):
    first = run(schools, "numba", draws=10)
    with pm.Model() as other:
        pm.Normal("x")
    with pytest.raises(ValueError, match=r"dt: is the result of another run \(.*density"):
        pmm.extend(first, model=other)
    with pytest.raises(TypeError, match=r"chains=7 is no argument of pmm\.extend"):
        pmm.extend(first, model=schools, chains=7)


def test_what_is_no_such_result_is_refused(well, tmp_path):
    first = run(well, draws=20)
    stored = run(well, draws=20, store=tmp_path / "a.zarr")
    renamed = first.copy()
    del renamed["sample_stats"]["gradient"]
    for tree, words in (
        (stored, r"pmm\.sample\(draws, store=\.\.\., resume=True\), whose draws include"),
        (str(tmp_path / "a.zarr"), "must be the whole result.*resume=True"),
        (
            az.from_dict({"posterior": {"x": np.zeros((2, 20))}}),
            "^dt=<DataTree>: must be the whole result of pmm.sample",
        ),
        (first["posterior"].dataset, "^dt=<DatasetView>: must be the whole result"),
        (first.isel(draw=slice(5), missing_dims="ignore"), "6 chains of 5 draws, and the run made 6 of 20"),
        (renamed, "sample_stats/gradient has been taken out"),
    ):
        with pytest.raises(ValueError, match=words):
            pmm.extend(tree, model=well)
