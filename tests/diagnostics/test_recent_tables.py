"""What a result's tables cost before they are computed, and parameters that have no table."""

import numpy as np
import pymc as pm
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.recent_tables import tables_of


def result(chains, changed=0.0):
    values = np.arange(chains * 2 * 3, dtype=float).reshape(chains, 2, 3)
    values[-1, -1, -1] += changed
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), values)}, {"chain": np.arange(chains)})
    return xr.DataTree.from_dict({"posterior": posterior})


def test_thousands_of_chains_are_read_together(monkeypatch):
    reads, isel = [], xr.DataArray.isel
    monkeypatch.setattr(xr.DataArray, "isel", lambda self, *a, **k: reads.append(k) or isel(self, *a, **k))
    tables_of(result(5000))
    assert len(reads) == 1


def test_results_too_large_for_one_read_are_told_apart_by_their_last_number(monkeypatch):
    monkeypatch.setattr("pmm_mcmc.diagnostics.recent_tables._READ", 100)
    first = tables_of(result(7))
    assert tables_of(result(7)) is first
    assert tables_of(result(7, changed=1.0)) is not first


def test_deterministics_that_are_infinite_are_not_in_the_way():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("logs", pm.math.concatenate([np.full(5, -np.inf), x * np.arange(1500.0)]))
    dt = pmm.sample(model=model, draws=400, random_seed=1, progressbar=False)
    words = pmm.verdict(dt).sentence
    assert words.startswith("Trusted: the ") and " of 1506 means that were judged are within " in words
