"""What a result's tables cost before they are computed."""

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.table import remembered


def result(chains, changed=0.0):
    values = np.arange(chains * 2 * 3, dtype=float).reshape(chains, 2, 3)
    values[-1, -1, -1] += changed
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), values)}, {"chain": np.arange(chains)})
    return xr.DataTree.from_dict({"posterior": posterior})


def test_thousands_of_chains_are_read_together(monkeypatch):
    reads, isel = [], xr.DataArray.isel
    monkeypatch.setattr(xr.DataArray, "isel", lambda self, *a, **k: reads.append(k) or isel(self, *a, **k))
    remembered(result(5000))
    assert len(reads) == 1


def test_results_too_large_for_one_read_are_told_apart_by_their_last_number(monkeypatch):
    monkeypatch.setattr("pmm_mcmc.diagnostics.table._READ", 100)
    first = remembered(result(7))
    assert remembered(result(7)) is first
    assert remembered(result(7, changed=1.0)) is not first
