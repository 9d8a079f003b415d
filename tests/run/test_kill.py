"""Runs of ``pmm.sample`` that are killed: nothing finished is lost, and no byte changes.

At least 25 kills, in both phases and within the writing of files; the moments are of a fixed seed.  The runs are those
of ``kill_processes.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pymc, pytest.mark.process, pytest.mark.longest]

TESTS = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What ``kill_processes.py`` found."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TESTS / "kill_processes.py"), str(tmp_path_factory.mktemp("runs"))],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "said": done.stderr}


def test_two_runs_in_processes_of_their_own_are_equal(found):
    assert not found["twice"]


def test_killed_at_random_moments_and_resumed_it_is_the_same_run(found):
    kills = found["kills"]
    assert not kills["failures"], found["said"]
    assert all(kills[name] >= least for name, least in found["wanted"].items()), kills
