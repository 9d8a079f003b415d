"""The predicted peak of a run against what its arrays really take, as NumPy tells tracemalloc."""

import tracemalloc

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders as module

RUN = {"backend": "numba", "random_seed": 1, "progressbar": False}


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("x", 0.0, np.linspace(1.0, 2.0, 40), shape=40)
    pmm.sample(chains=2, draws=8, tune=30, model=model, **RUN)  # compiles
    return model


@pytest.mark.parametrize(("keep", "chains", "draws"), [("draws", 200, 200), ("moments", 2000, 20)])
def test_the_peak_is_predicted_within_a_fifth(model, monkeypatch, keep, chains, draws):
    predicted, predict = [], module.peak_bytes
    monkeypatch.setattr(module, "peak_bytes", lambda *a, **k: predicted.append(predict(*a, **k)) or predicted[-1])
    tracemalloc.start()
    try:
        pmm.sample(chains=chains, draws=draws, model=model, keep=keep, **RUN)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predicted[0] == pytest.approx(measured, rel=0.2), f"{predicted[0] / 2**20:.0f}, {measured / 2**20:.0f} MiB"
    assert measured > 30 * 2**20


def test_a_large_run_says_what_it_needs(model, monkeypatch, caplog):
    monkeypatch.setattr(module, "_LARGE", 0)
    with caplog.at_level("DEBUG", "pmm_mcmc"):
        pmm.sample(chains=2, draws=8, tune=30, model=model, **RUN)
    assert any(record.getMessage().startswith("Memory: about ") for record in caplog.records)


def test_a_warm_up_alone_can_be_too_large(model, monkeypatch):
    monkeypatch.setattr("pmm_mcmc.run.memory.available_bytes", lambda: 2 * 10**6)
    with pytest.raises(ValueError, match=r"of memory; 2\.0 MB are available"):
        pmm.sample(chains=64, draws=1, model=model, **RUN)
