"""Runs of ``pmm.sample`` that are killed, stopped, or written to by two: nothing finished is lost, and no byte changes.

At least 25 kills, in both phases and within the writing of files; the moments are of a fixed seed.  The runs are those
of ``kill_processes.py``.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pymc, pytest.mark.process]

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


def test_signals_keep_what_is_finished_and_resuming_completes_it(found):
    for stop in found["stops"]:
        # By SIGTERM the process ends, once what is finished is stored; after Ctrl-C it goes on.
        ends = stop["signal"] == "SIGTERM"
        assert stop["status"] == (-signal.SIGTERM if ends else 0), found["said"]
        assert not stop["torn"] and stop["phase"] == ("sampling" if "s" in stop["seen"] else "warm-up")
        drawn = found["rows"] * stop["seen"].count("s")
        assert drawn < found["draws"] and stop["result"] == ("" if ends else str(drawn))
        assert not stop["differences"]
    assert found["said"].count("Sampling was stopped after") == len(found["stops"])
    assert {stop["phase"] for stop in found["stops"]} == {"warm-up", "sampling"}


def test_ctrl_c_twice_ends_at_once_and_resuming_completes_it(found):
    assert found["impatient"] == {"said": "ww!|KeyboardInterrupt: ", "status": 0, "differences": []}


def test_a_second_writer_is_refused_at_once(found):
    (resuming, _), (beginning, _) = found["writers"]["others"]
    assert resuming.startswith("|StoreError") and "another run is writing to this store" in resuming
    assert beginning.startswith("|StoreError") and "there is a store already" in beginning
    assert found["writers"]["still"], "the first had ended before the others were refused"
    assert found["writers"]["first"][1] == 0 and not found["writers"]["differences"]
