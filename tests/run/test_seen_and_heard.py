"""What a script prints that sets up nothing: the verdict, and something every few seconds until there are draws."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.pymc, pytest.mark.process]

MODEL = """
import os, signal, sys
import pymc as pm, pmm_mcmc as pmm
with pm.Model() as model:
    x = pm.Normal("x", shape=2)
    pm.Normal("y", x.sum(), 0.7, observed=0.3)
"""


def start(source, **options):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", MODEL + source],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **options},
    )  # fmt: skip


def finished(source, **options):
    process = start(source, **options)
    out, err = process.communicate(timeout=540)
    return process.returncode, out, err


def test_a_script_hears_what_it_runs_and_the_verdict():
    status, out, err = finished("pmm.sample(model=model, random_seed=1, chains=4)")
    assert status == 0, err
    lines = err.splitlines()
    assert lines[0] == "Generalised HMC (GHMC) after a warm-up by PoissonULMC: [x]"
    assert sum("rust" in line or "ndecided" in line or "Bias below" in line for line in lines) == 1, err
    assert "backend" not in err and "jax" not in err.lower(), "only what a user wants to know"
    assert out.splitlines()[-1].startswith("4 chains, draw 1000 of 1000: ") and "ompiling the log density" not in out


def test_without_progress_only_the_verdict_is_said():
    status, out, err = finished("pmm.sample(model=model, random_seed=1, chains=4, progressbar=False)")
    assert status == 0 and out == "", err
    lines = err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("Trusted: ") and "pmm.summary(dt)" in lines[1], err


def test_who_sets_up_logging_decides():
    source = "import logging, sys\n{before}\nimport pmm_mcmc\nlog = logging.getLogger('pmm_mcmc')\n{check}"
    for before, check in (
        ("", "assert len(log.handlers) == 1 and log.level == logging.INFO"),
        ("logging.basicConfig(level='WARNING')", "assert not log.handlers and log.level == 0"),
    ):
        done = subprocess.run([sys.executable, "-c", source.format(before=before, check=check)], timeout=300)
        assert done.returncode == 0, before


def test_something_is_seen_every_few_seconds_with_nothing_compiled_before(tmp_path):
    """As on a fresh machine.  Two seconds on a quiet one; the limit here is for one on which other tests run."""
    process = start(
        "print('called', flush=True)\npmm.sample(model=model, random_seed=1, chains=2, draws=50)",
        NUMBA_CACHE_DIR=str(tmp_path), PYTENSOR_FLAGS=f"{os.environ['PYTENSOR_FLAGS']},base_compiledir={tmp_path}",
    )  # fmt: skip
    assert process.stdout.readline() == "called\n"
    times, lines = [time.monotonic()], []
    for line in process.stdout:
        times.append(time.monotonic())
        lines.append(line)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    assert len(lines) >= 4 and "draw 50 of 50" in lines[-1]
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert max(pauses) < 10.0, list(zip(pauses, lines, strict=False))
    assert sum(pauses) / len(pauses) < 5.0


SIGTERM = """
HANDLER
def tell(drawn):
    if not drawn.tuning and drawn.done >= 20:
        os.kill(os.getpid(), signal.SIGTERM)
from pmm_mcmc.run import recorders
recorders._MOST_ROWS = 10
dt = pmm.sample(model=model, random_seed=1, chains=2, draws=1000, store=STORE, callback=tell,
                progressbar=False)
print("went on", dt["posterior"].sizes["draw"])
"""


@pytest.mark.parametrize(
    ("handler", "status", "said"),
    [
        ("", -signal.SIGTERM, ""),
        ("signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))", 7, ""),
        ("signal.signal(signal.SIGTERM, lambda number, frame: None)", 0, "went on 20\n"),
    ],
)
def test_sigterm_stores_what_is_finished_and_then_acts_as_ever(tmp_path, handler, status, said):
    import pmm_mcmc as pmm

    path = str(tmp_path / "run.zarr")
    source = SIGTERM.replace("HANDLER", handler).replace("STORE", json.dumps(path))
    found, out, err = finished(source)
    assert (found, out) == (status, said), err
    assert "Sampling was stopped after 20 of 1000 draws of each chain" in err
    assert pmm.open(path)["posterior"].sizes["draw"] == 20


def test_sigterm_without_a_store_ends_the_process_too():
    source = SIGTERM.replace("HANDLER", "").replace("STORE", "None")
    found, out, err = finished(source)
    assert (found, out) == (-signal.SIGTERM, ""), err
    assert "stopped after 20 of 1000 draws of each chain; they are in memory only: store= would keep them" in err
