"""Stores that tests share, and copies that each may spoil."""

import shutil

import pytest
import store_runs as runs


@pytest.fixture(scope="session")
def reference():
    """The whole result, in memory."""
    return runs.reference()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A store that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run.zarr"
    runs.run(path)
    return path


@pytest.fixture(scope="session")
def half(tmp_path_factory):
    """A store of which four commits are done: the warm-up and 8 draws."""
    path = tmp_path_factory.mktemp("half") / "run.zarr"
    with runs.create(path) as store:
        runs.go_on(store, 4)
    return path


@pytest.fixture
def copy(half, tmp_path):
    """A copy of its own of the store that is half done."""
    return shutil.copytree(half, tmp_path / "copy.zarr")
