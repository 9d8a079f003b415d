"""Every documented way in, with the draws and chains of one who gives none, and all that is said at the end."""

import inspect
import logging

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm

pytestmark = [pytest.mark.pymc, pytest.mark.quick]


@pytest.fixture(scope="module")
def model():
    with pm.Model() as built:
        slope, sigma = pm.Normal("slope", 0.0, 2.0), pm.HalfNormal("sigma", 2.0)
        x = np.linspace(-1.0, 1.0, 9)
        pm.Normal("y", slope * x, sigma, observed=1.5 * x + 0.3 * np.cos(9 * x))
    return built


WAYS = {
    "tape": lambda model, path: pmm.sample(model=model, random_seed=1),
    "jax": lambda model, path: pmm.sample(model=model, backend="jax", random_seed=1),
    "log density": lambda model, path: pmm.sample(
        model=pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 2), random_seed=1
    ),
    "store": lambda model, path: pmm.sample(model=model, store=path, random_seed=1),
    "superchains": lambda model, path: pmm.sample(model=model, chains=64, random_seed=1),
    "unadjusted": lambda model, path: pmm.sample(model=model, adjusted=False, random_seed=1),
    "some variables": lambda model, path: pmm.sample(model=model, var_names=["slope"], random_seed=1),
    "the paper's method": lambda model, path: pm.sample(
        model=model, step=pmm.PoissonULMC(K=16, model=model), random_seed=1, cores=1, chains=4
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_defaults_comes_to_its_end(model, way, tmp_path, caplog, capsys):
    with caplog.at_level(logging.INFO):
        dt = WAYS[way](model, tmp_path / "run.zarr")
    assert dt["posterior"].sizes["draw"] == 1000
    assert dt["posterior"].sizes["chain"] == (64 if way == "superchains" else 4)
    said = [record.getMessage() for record in caplog.records if record.name == "pmm_mcmc"]
    if way != "the paper's method":
        adjusted = "Generalised HMC (GHMC) after a warm-up by PoissonULMC: "
        words = "PoissonULMC (recycled scheme): " if way == "unadjusted" else adjusted
        assert said[0].startswith(words)
        assert "for preparation" in " ".join(said)
        other = "Reading" if way in ("jax", "log density") else "Compiling"
        assert f"{other} the log density" not in capsys.readouterr().out
        attrs = dt["posterior"].attrs
        assert 0 < attrs["compile_time"] < attrs["sampling_time"]
    table = pmm.summary(dt)
    assert len(table) >= 1 and "mean_cv" in table
    assert isinstance(pmm.verdict(dt).trusted, bool)


def test_pymc_has_no_door_for_samplers_yet():
    known = {
        *("draws", "tune", "chains", "cores", "random_seed", "progressbar", "progressbar_theme", "quiet", "step"),
        *("var_names", "nuts_sampler", "initvals", "init", "jitter_max_retries", "n_init", "trace"),
        *("discard_tuned_samples", "compute_convergence_checks", "keep_warning_stat", "return_inferencedata"),
        *("idata_kwargs", "nuts_sampler_kwargs", "callback", "mp_ctx", "blas_cores", "model", "backend"),
        *("compile_kwargs", "kwargs"),
    }
    new = set(inspect.signature(pm.sample).parameters) - known
    assert not new, (
        f"pm.sample has {', '.join(sorted(new))}: if samplers can be handed in (sampler=), write pmm.Sampler, which "
        "runs pmm.sample there; say in run/request.py what any other argument is here; then add the names to this list"
    )
