"""Full disks, unwritable paths, damaged files: a clear error, and nothing lost that was committed."""

import errno
import os
import shutil

import numpy as np
import pytest
import store_runs as runs
import xarray as xr
from store_runs import WHOLE, check_upto, finish, read
from xarray.testing import assert_identical

from pmm_mcmc.run.storage import NothingStored, StoreError, open_store

pytest_plugins = ["store_fixtures"]
# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch):
    """A disk that is full from some write on; ``inf`` for never."""
    state = {"left": float("inf"), "writes": 0}
    real = os.write

    def write(file, data):
        state["left"] -= 1
        state["writes"] += 1
        if state["left"] < 0:
            real(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    return state


def test_disk_full_at_any_write_while_running(full, half, tmp_path, reference, whole):
    start = shutil.copytree(half, tmp_path / "start")
    with runs.resume(start) as store:
        runs.go_on(store, 1)
    shutil.copytree(start, tmp_path / "count")
    full["writes"] = 0
    finish(tmp_path / "count")
    writes = full["writes"]
    assert writes > 30
    for k in range(writes):
        path = shutil.copytree(start, tmp_path / str(k))
        full["left"] = k
        store = None
        with pytest.raises(StoreError, match=f"{path}/.*: could not be written: No space left on device; make room"):
            store = runs.resume(path)
            runs.go_on(store)
            store.close()
        rows = read(path)[1]
        assert rows in ([6, 12], WHOLE)
        check_upto(path, reference, rows)
        full["left"] = float("inf")
        if store is not None:
            store.close()
        finish(path)
        assert runs.files(path) == runs.files(whole), k


def test_disk_full_at_any_write_of_a_creation(full, tmp_path):
    runs.create(tmp_path / "first.zarr").close()  # starts threads, with writes of their own
    full["writes"] = 0
    runs.create(tmp_path / "count.zarr").close()
    begun, writes = runs.files(tmp_path / "count.zarr"), full["writes"]
    for k in [*range(1, 5), *range(5, writes - 25, 9), *range(writes - 25, writes, 2)]:  # the first is of the lock
        path = tmp_path / str(k)
        full["left"] = k
        with pytest.raises(StoreError, match="could not be written: No space left on device; make room"):
            runs.create(path).close()
        full["left"] = float("inf")
        try:
            runs.resume(path).close()
        except NothingStored:
            with pytest.raises(NothingStored, match="nothing is stored there yet"):
                open_store(path)
            (path / "README").write_text("the user's own")
            runs.create(path).close()
            (path / "README").unlink()
        assert runs.files(path) == begun, k


def test_paths_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for action in (runs.create, runs.resume, open_store):
        with pytest.raises(StoreError, match=r"file: is a file, and a store is a folder; use another path"):
            action(tmp_path / "file")
    with pytest.raises(StoreError, match=r"file/run.zarr/.pmm/lock: could not be locked: .*a file is in the way"):
        runs.create(tmp_path / "file" / "run.zarr")
    for action in (runs.resume, open_store):
        with pytest.raises(NothingStored, match=r"missing.zarr: nothing is stored there yet"):
            action(tmp_path / "missing.zarr")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"could not be locked: Permission denied; use a path that may be written"):
        runs.create(tmp_path / "run.zarr")


def test_folders_that_cannot_be_flushed_are_no_matter(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(file):
        if os.path.isdir(f"/proc/self/fd/{file}") or not os.path.exists("/proc/self/fd"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    runs.create(tmp_path / "run.zarr").close()


# -- damage ------------------------------------------------------------------------------------------------------------


def newest(path):
    """Return the two checkpoints, the newest first: of four commits it is number 3."""
    return path / ".pmm/checkpoint.1", path / ".pmm/checkpoint.0"


DAMAGES = {
    "cut short": lambda data: data[:-7],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "another file": lambda data: b"{}" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(damage, copy, reference, whole):
    file, _ = newest(copy)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.warns(UserWarning, match=rf"{file}: .*going on from commit 2, which is whole"):
        store = runs.resume(copy)
    assert not file.exists()
    other = runs.resume(copy, primary=False)
    assert store.rows == other.rows == {"warmup_posterior": 6, "posterior": 4}
    other.close()
    check_upto(copy, reference, [6, 4])
    with store:
        runs.go_on(store)
    assert runs.files(copy) == runs.files(whole)


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
@pytest.mark.parametrize("key", ["posterior/mu/c.0.1", "posterior/odd/c.1.1"])
def test_damaged_draws_of_the_last_commit_are_made_again(damage, key, copy, reference, whole):
    file = copy / key
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(StoreError, match=rf"{key}: {'missing' if damage == 'missing' else 'damaged'}; the rest can be"):
        open_store(copy).load()
    assert open_store(copy)["posterior"]["theta"].load().shape == (3, 8, 2)
    with pytest.warns(UserWarning, match=rf"{file}: .*going on from commit 2"):
        store = runs.resume(copy)
    check = open_store(copy)["posterior"].to_dataset().load()
    assert_identical(check, reference["posterior"].to_dataset().isel(draw=slice(4)))
    with store:
        runs.go_on(store)
    assert runs.files(copy) == runs.files(whole)


def test_a_damaged_report_is_named_and_written_again(copy, whole):
    file = copy / "moments/sum/c.1.0"
    file.write_bytes(DAMAGES["one bit"](file.read_bytes()))
    with pytest.raises(StoreError, match=r"moments/sum/c.1.0: damaged; the rest can be read"):
        open_store(copy).load()
    finish(copy)
    assert runs.files(copy) == runs.files(whole)


@pytest.mark.parametrize("key", ["posterior/mu/c.0.0", "observed_data/y/c.0", "posterior/theta/c.1.0.0"])
def test_older_files_that_are_missing_are_named(key, copy):
    data = (copy / key).read_bytes()
    (copy / key).write_bytes(b"")
    with pytest.raises(StoreError, match=rf"no commit is whole \({copy / key}: missing or empty; .*begin again at an"):
        runs.resume(copy)
    assert open_store(copy)["posterior"]["odd"].load().shape == (3, 8)
    with pytest.raises(StoreError, match=rf"{key}: damaged"):
        open_store(copy).load()
    (copy / key).write_bytes(data)
    runs.resume(copy).close()


def test_an_older_file_that_was_cut_short_is_named_when_it_is_read(copy, whole):
    """To see it earlier, resuming would have to read everything."""
    file = copy / "posterior/mu/c.1.0"
    file.write_bytes(file.read_bytes()[:-5])
    finish(copy)
    tree = open_store(copy)
    assert np.array_equal(tree["posterior"]["mu"][:, 4:], open_store(whole)["posterior"]["mu"][:, 4:])
    with pytest.raises(StoreError, match=rf"{file}: damaged; the rest can be read; put the file back"):
        tree["posterior"]["mu"].load()
    with pytest.raises(ValueError, match="checksum"):
        xr.open_datatree(copy, engine="zarr").load()


def test_no_checkpoint_is_left(copy, reference):
    before = runs.files(copy)
    for file in newest(copy):
        file.write_bytes(b"x" * 200)
    with pytest.raises(StoreError, match=rf"{copy}: no commit is whole \(.*checkpoint.0: .*checkpoint.1: .*cannot be"):
        runs.resume(copy)
    for file in newest(copy):
        file.unlink()
    with pytest.raises(StoreError, match=r"no commit is whole \(its checkpoints are missing"):
        runs.resume(copy)
    check_upto(copy, reference, [6, 8])
    kept = runs.files(copy)
    assert {key: data for key, data in before.items() if "checkpoint" not in key} == kept


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_damaged_metadata_are_written_again(damage, copy, reference, whole):
    file = copy / "zarr.json"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](file.read_bytes()) if damage != "one bit" else b"[" + file.read_bytes())
    words = rf"{file}: the metadata are damaged .*; resuming the run writes them again"
    with pytest.raises(StoreError, match=words):
        open_store(copy)
    runs.resume(copy).close()
    check_upto(copy, reference, [6, 8])
    finish(copy)
    assert runs.files(copy) == runs.files(whole)


def test_damaged_settings(copy, reference):
    file = copy / ".pmm/settings"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(StoreError, match=rf"{file}: .*; the draws can be read, but the run must be begun again"):
        runs.resume(copy)
    check_upto(copy, reference, [6, 8])
    file.unlink()
    with pytest.raises(StoreError, match="is not a store of pmm_mcmc"):
        runs.resume(copy)
    with pytest.raises(StoreError, match="is not empty"):
        runs.create(copy)
    file.write_bytes(data)
    finish(copy)
