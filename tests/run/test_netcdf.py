"""A result that was saved to a NetCDF file is the result: the extra ``netcdf`` has what this needs."""

import pymc as pm
import pytest
import xarray as xr
from sampling_runs import QUIET, assert_same

import pmm_mcmc as pmm

pytestmark = pytest.mark.quick


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
