"""Shared fixtures: one thread, quiet runs, scripts in processes of their own, z-scores; the longest files first."""

import gc
import json
import os
import subprocess
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
# PyMC compiles a few small functions of its own in C; without this, pytensor warns that they have no fast BLAS.
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, ["blas__ldflags=", os.environ.get("PYTENSOR_FLAGS")]))
# Programs of JAX are compiled anew: tests of what is kept have folders of their own.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"

import numpy as np
import pytest

MARKERS = {
    "quick": "runs in `make test`: arithmetic, laws, judgements and refusals, and one run by every way in",
    "longest": "half a minute and more: with one file to a worker none of these may be left to the end",
    "pymc": "a PyMC model is compiled",
    "statistical": "z-scores at a fixed seed, with the false-alarm rate that the module declares",
    "process": "starts other processes",
}


def pytest_configure(config):
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # pytest-xdist's own order: by the number of tests


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


@pytest.fixture(scope="module", autouse=True)
def free_programs():
    """Free what JAX has compiled after each file: programs take mappings of memory, of which Linux gives 65,530."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def sample():
    """``pm.sample`` on one core, without progress bar, messages and convergence checks."""
    import pymc as pm

    def run(step, *, draws=100, tune=100, chains=1, seed=1, **options):
        options = {"quiet": True, "progressbar": False, "compute_convergence_checks": False, "cores": 1, **options}
        return pm.sample(draws, tune=tune, chains=chains, step=step, random_seed=seed, **options)

    return run


@pytest.fixture
def run_script(tmp_path):
    """Run a script file with warnings as errors; return what it printed last, from JSON, and its error stream."""

    def run(source, flags=""):
        path = tmp_path / "script.py"
        path.write_text(source)
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            env={**os.environ, "PYTENSOR_FLAGS": f"{os.environ['PYTENSOR_FLAGS']},{flags}".rstrip(",")},
            capture_output=True,
            text=True,
            timeout=540,
        )
        last = (done.stdout.strip().splitlines() or ["null"])[-1]
        return json.loads(last) if done.returncode == 0 else None, done.stderr

    return run


@pytest.fixture(scope="session")
def z_score():
    """How many standard errors, by 200 batch means, the mean of ``(chain, draw)`` lies from the truth."""

    def score(values, truth, allowance=0.0):
        values = np.asarray(values, dtype=float)
        chains, draws = values.shape
        batches = 200 // chains
        means = values[:, draws % batches :].reshape(chains * batches, -1).mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        return max(abs(means.mean() - truth) - allowance, 0.0) / error

    return score
