"""Stores: equal to the result in memory, byte for byte after any kill, readable while they grow.

The runs are those of ``store_runs.py``; what needs processes of its own is in ``store_processes.py``.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import store_runs as runs
import xarray as xr
import zarr
from store_runs import finish, read
from xarray.testing import assert_identical

from pmm_mcmc.run.storage import StoreError, open_store

pytest_plugins = ["store_fixtures"]
TESTS = Path(__file__).parents[1] / "support"


def script(mode, folder):
    """Run a mode of ``store_processes.py``; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TESTS / "store_processes.py"), mode, str(folder)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout), done.stderr[-2000:]


# -- the result --------------------------------------------------------------------------------------------------------


def test_reopened_equals_the_result_in_memory(tmp_path, reference, whole):
    path = tmp_path / "run.zarr"
    runs.run(path)
    tree = xr.open_datatree(path, engine="zarr")
    assert_identical(tree.load(), reference)
    noted = reference.copy()
    noted.attrs["seconds"] = float(os.getpid())
    assert_identical(open_store(path).load(), noted)
    assert list(tree.children) == list(reference.children)
    assert list(tree["posterior"].data_vars) == list(reference["posterior"].data_vars)
    for name, variable in reference["posterior"].variables.items():
        assert tree["posterior"].variables[name].dtype == variable.dtype
    assert runs.files(path) == runs.files(whole)


def test_a_result_is_lazy(whole):
    assert not open_store(whole)["posterior"]["mu"].variable._in_memory


def test_every_commit_shows_all_that_was_appended(tmp_path):
    path, seen = tmp_path / "run.zarr", []
    store = runs.create(path)

    def look():
        assert_identical(xr.open_datatree(path, engine="zarr").load(), runs.reference(store.rows))
        seen.append([store.rows[phase] for phase in runs.PHASES])

    with store:
        runs.go_on(store, between=look)
    assert seen == [[4, 0], [6, 0], [6, 4], [6, 8], [6, 12], [6, 14]]


def test_nothing_is_seen_before_the_commit(copy):
    with runs.resume(copy) as store:
        store.append("posterior", runs.arrays(np.ones((runs.CHAINS, runs.ROWS, 2))))
        assert_identical(open_store(copy).load(), runs.reference({"warmup_posterior": 6, "posterior": 8}))


def test_metadata_are_what_zarr_would_write(whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "copy.zarr")
    shutil.rmtree(path / ".pmm")
    before = json.loads((path / "zarr.json").read_text())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(path)
    assert json.loads((path / "zarr.json").read_text()) == before


def test_a_group_or_an_array_can_be_opened_by_itself(whole, reference):
    group = xr.open_dataset(whole, engine="zarr", group="posterior")
    assert_identical(group.load(), reference["posterior"].to_dataset())
    assert np.array_equal(zarr.open(whole)["posterior/mu"][:], reference["posterior"]["mu"])
    assert np.array_equal(zarr.open_array(whole / "posterior" / "mu")[:], reference["posterior"]["mu"])


def test_files_are_of_whole_chunks(whole):
    found = sorted(key for key in runs.files(whole) if key.startswith("posterior/theta/") and "json" not in key)
    assert found == ["posterior/theta/"] + [f"posterior/theta/c.{i}.{j}.0" for i in range(2) for j in range(4)]


def test_draws_are_numbered_however_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr("pmm_mcmc.run.storage.layout._DRAWS", 5)
    runs.run(tmp_path / "a.zarr")
    assert np.array_equal(open_store(tmp_path / "a.zarr")["posterior"]["draw"], np.arange(14))
    with runs.create(tmp_path / "b.zarr") as store:
        runs.go_on(store, 5)
        for key in ("c.3", "c.4"):
            (tmp_path / "b.zarr/posterior/draw" / key).write_bytes(b"of no commit")
    finish(tmp_path / "b.zarr")
    assert runs.files(tmp_path / "a.zarr") == runs.files(tmp_path / "b.zarr")


def test_notes_are_attributes_and_no_part_of_the_bytes(copy, whole, reference):
    with runs.resume(copy) as store:
        store.note({"posterior": {"created_at": "2026-01-01"}, "/": {"seconds": 1, "begun": 2}})
        store.note({"/": {"seconds": np.float64(2.5)}, "no such group": {"a": 1}})
        runs.go_on(store)
    tree = open_store(copy)
    assert tree.attrs["begun"] == 2
    assert (tree.attrs["seconds"], tree["posterior"].attrs["created_at"]) == (2.5, "2026-01-01")
    assert tree["posterior"].attrs["inference_library"] == "pmm_mcmc"
    assert runs.files(copy) == runs.files(whole)
    (copy / ".pmm/notes.json").write_text("{")
    assert "seconds" not in open_store(copy).attrs


# -- kills and readers -------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_killed_at_one_step_after_another_and_resumed_the_files_are_the_same(tmp_path):
    found, errors = script("steps", tmp_path)
    assert not found["failures"], errors
    assert found["kills"] >= 40


def test_a_commit_flushes_draws_then_checkpoint_then_metadata(copy, monkeypatch):
    """What a loss of power leaves is decided by the order in which files are flushed and named."""
    done, paths = [], {}
    real_open, real_sync, real_replace = os.open, os.fsync, os.replace

    def opened(path, *options):
        file = real_open(path, *options)
        paths[file] = os.path.relpath(path, copy)
        return file

    def flushed(file):
        real_sync(file)
        done.append(("flush", paths[file]))

    def named(source, target):
        real_replace(source, target)
        done.append(("name", os.path.relpath(target, copy)))

    with runs.resume(copy) as store:
        for name, function in (("open", opened), ("fsync", flushed), ("replace", named)):
            monkeypatch.setattr(os, name, function)
        runs.go_on(store, 1)
        monkeypatch.undo()
    names = [key for what, key in done if what == "name"]
    draws = {key for key in names if not key.startswith(".pmm") and not key.endswith("zarr.json")}
    assert len(draws) == 11
    for key in [*draws, ".pmm/checkpoint.0", "zarr.json"]:
        named_at = done.index(("name", key))
        assert ("flush", f"{key}.partial") in done[:named_at]
        assert ("flush", os.path.dirname(key) or ".") in done[named_at:]
    checkpoint = done.index(("flush", ".pmm/checkpoint.0.partial"))
    for key in draws:
        assert ("flush", os.path.dirname(key)) in done[done.index(("name", key)) : checkpoint]
    safe = done.index(("flush", ".pmm"), checkpoint)
    assert min(done.index(("name", key)) for key in names if key.endswith("zarr.json")) > safe
    assert names[-1] == "zarr.json"


@pytest.mark.process
def test_readers_see_whole_commits_while_a_run_writes(tmp_path):
    found, errors = script("readers", tmp_path)
    assert found["status"] == [0, 0], errors
    assert not found["faults"]
    assert found["different"] == 7 and found["steadily"] >= 7


@pytest.mark.process
def test_a_killed_writer_frees_the_store(copy):
    source = f"import store_runs as runs\nstore = runs.resume({str(copy)!r})\nprint('open', flush=True)\ninput()"
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=f"{copy}: another run is writing to this store; wait for it, or use"):
            runs.resume(copy)
        assert read(copy)[1] == [6, 8]
        process.kill()
    runs.resume(copy).close()


def test_what_was_not_committed_is_removed(copy, half, whole):
    walk = runs.begin()
    with runs.resume(copy) as store:
        store.append("posterior", runs.arrays(walk.advance(runs.ROWS)))
        store.append("moments", {"sum": np.ones((runs.CHAINS, 2))})
    (copy / "posterior/mu/c.0.2.partial").write_bytes(b"half")
    (copy / ".pmm/checkpoint.0.partial").write_bytes(b"half")
    (copy / "README").write_text("the user's own")
    runs.resume(copy).close()
    left = runs.files(copy)
    assert left.pop("README") == b"the user's own"
    before = runs.files(half)
    assert left.keys() == before.keys()
    assert [key for key in left if left[key] != before[key]] == ["moments/sum/c.0.0", "moments/sum/c.1.0"]
    (copy / "README").unlink()
    finish(copy)
    assert runs.files(copy) == runs.files(whole)


def test_resuming_a_complete_run_changes_nothing(whole):
    before = runs.files(whole)
    finish(whole)
    assert runs.files(whole) == before


def test_one_may_commit_state_alone_and_any_state(tmp_path):
    with runs.create(tmp_path / "run.zarr") as store:
        assert store.checkpoint is None
        store.commit({"only": "state"})
        store.commit(None)
        store.commit([1])
    with runs.resume(tmp_path / "run.zarr") as store:
        assert store.checkpoint == [1]
        assert store.rows == {"warmup_posterior": 0, "posterior": 0}
