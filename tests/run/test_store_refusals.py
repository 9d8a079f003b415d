"""Stores that are not written to: other writers', other runs', or with what does not fit."""

import numpy as np
import pytest
import store_runs as runs
import xarray as xr
from store_runs import WHOLE, check_upto, finish, read

import pmm_mcmc as pmm
from pmm_mcmc.run.storage import NothingStored, Store, StoreError, open_store
from pmm_mcmc.run.storage import folder as folders
from pmm_mcmc.run.storage.store import stored_identity

pytestmark = pytest.mark.quick

pytest_plugins = ["store_fixtures"]

# -- who may write -----------------------------------------------------------------------------------------------------


def test_two_writers_in_one_process(copy):
    with runs.resume(copy), pytest.raises(StoreError, match="another run is writing"):
        runs.resume(copy)
    runs.resume(copy).close()


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "run.zarr"
    runs.run(path)
    with pytest.raises(StoreError, match=r"run.zarr: there is a store already; go on with it \(resume=True\), or use"):
        runs.create(path)
    assert read(path)[1] == WHOLE
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="other: is not empty, or use another path; nothing is overwritten"):
        runs.create(other)
    with pytest.raises(StoreError, match="other: is not a store of pmm_mcmc; use another path"):
        runs.resume(other)
    assert [entry.name for entry in other.iterdir()] == ["thesis.tex"]


def test_a_url_is_refused_early():
    with pytest.raises(StoreError, match=r"s3://here/run.zarr: is a URL, .*; sample to a disk, and copy the folder"):
        pmm.sample(store="s3://here/run.zarr")  # before it misses a model
    with pytest.raises(StoreError, match="is a URL"):
        pmm.open("s3://here/run.zarr")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_moved_away_is_not_written_to(copy, replaced):
    store = runs.resume(copy)
    copy.rename(copy.with_name("moved.zarr"))
    if replaced:
        runs.create(copy).close()
    with pytest.raises(StoreError, match="removed or moved away"):
        runs.go_on(store, 1)
    with pytest.raises(StoreError, match="removed or moved away"):
        store.close()
    finish(copy.with_name("moved.zarr"))


def test_several_hosts_write_what_one_would(tmp_path, whole):
    path = tmp_path / "run.zarr"
    first = runs.create(path)
    second = runs.resume(path, primary=False)
    runs.go_on(first, 3, hosts={first: [slice(0, 2)], second: [slice(2, 3)]})
    second.append("posterior", {"mu": np.ones((1, 4))}, chains=slice(2, 3))  # and both are killed
    before = runs.files(path)
    second.append("moments", {"count": np.int64(5)})  # of all chains, so the first's to write
    assert runs.files(path) == before
    for store in (second, first):
        store.close()
    assert {key for key, data in runs.files(path).items() if before[key] != data} == {
        f"{group}/{name}/zarr.json"
        for group in ("warmup_posterior", "posterior")
        for name in ("mu", "theta", "many", "odd", "none", "draw")
    }
    first, second = runs.resume(path), runs.resume(path, primary=False)
    assert second.rows == first.rows == {"warmup_posterior": 6, "posterior": 4}
    assert second.checkpoint[0].steps == first.checkpoint[0].steps
    second.note({"/": {"a": 1}})
    runs.go_on(first, hosts={first: [slice(0, 2)], second: [slice(2, 3)]})
    second.close()
    first.close()
    assert runs.files(path) == runs.files(whole)


def test_a_host_that_has_not_written_is_missed(tmp_path, reference):
    path = tmp_path / "run.zarr"
    with runs.create(path) as store:
        draws = runs.begin().advance(runs.ROWS)
        store.append("posterior", {k: v[:2] for k, v in runs.arrays(draws).items()}, chains=slice(0, 2))
        with pytest.raises(StoreError, match=r"commit: posterior/many/c.1.0 and 3 other files are missing; append the"):
            store.commit(None)
        check_upto(path, reference, [0, 0])
        store.append("posterior", {k: v[2:] for k, v in runs.arrays(draws).items()}, chains=slice(2, 3))
        store.commit(None)
        assert read(path)[1] == [0, 4]
    with pytest.raises(NothingStored, match="nothing is stored there yet"):
        runs.resume(tmp_path / "other.zarr", primary=False)


# -- the wrong run -----------------------------------------------------------------------------------------------------


def test_another_identity_is_refused_with_each_difference(copy):
    given = {**runs.IDENTITY, "seed": 2, "draws": [6, 15], "thin": 1, "new": "x"}
    del given["method"]
    with pytest.raises(StoreError) as caught:
        Store.resume(copy, given, types=runs.TYPES)
    assert str(caught.value) == (
        f"{copy}: is the store of another run (draws: stored [6, 14], given [6, 15]; "
        "method: stored 'PoissonULMC', not given; new: not stored, given 'x'; seed: stored 1, given 2; "
        "thin: stored None, given 1); resume with what is stored, or use another path"
    )
    runs.resume(copy).close()  # the lock was not kept
    assert stored_identity(copy) == runs.IDENTITY
    with pytest.raises(NothingStored, match="nothing is stored there yet"):
        stored_identity(copy / "missing")
    xr.DataTree.from_dict({"posterior": xr.Dataset()}).to_zarr(copy / "saved", consolidated=False)
    with pytest.raises(StoreError, match=r"what dt.to_zarr saved is read by xarray.open_datatree"):
        open_store(copy / "saved")
    with pytest.raises(StoreError, match="seed: stored 1, given 2"):
        Store.resume(copy, given, primary=False)


def test_identities_may_hold_what_is_not_equal_to_itself(tmp_path):
    path = tmp_path / "run.zarr"
    Store.create(path, runs.template(), {"a": float("nan"), "b": [float("nan")], "c": 1}).close()
    Store.resume(path, {"a": float("nan"), "b": [float("nan")], "c": 1.0}).close()
    with pytest.raises(StoreError, match="a: stored nan, given 0"):
        Store.resume(path, {"a": 0, "b": [float("nan")], "c": 1})
    with pytest.raises(TypeError, match=r"builtins.object cannot be stored"):
        Store.create(tmp_path / "other.zarr", runs.template(), {"model": object()})
    assert not (tmp_path / "other.zarr").exists()


# -- what cannot be stored ---------------------------------------------------------------------------------------------


def test_a_commit_without_all_variables_is_refused(copy):
    good = runs.arrays(np.ones((runs.CHAINS, runs.ROWS, 2)))
    with runs.resume(copy) as store:
        store.append("posterior", {"mu": good["mu"]})
        with pytest.raises(StoreError, match=r"commit: posterior/many/c.0.2 and 5 other files are missing; append the"):
            store.commit(store.checkpoint)
        store.append("posterior", good)
        with pytest.raises(TypeError, match="set cannot be stored"):
            store.commit({1, 2})
        store.commit(None)
        assert np.array_equal(open_store(copy)["posterior"]["mu"][:, 8:], good["mu"])


def test_a_template_that_cannot_be_stored_is_refused(tmp_path):
    path = tmp_path / "run.zarr"
    tree = xr.DataTree.from_dict({"posterior": runs.group(runs.EMPTY).assign_attrs(f=object())})
    with pytest.raises(StoreError, match=r"the result cannot be written as zarr: .*; rename or convert that part"):
        Store.create(path, tree, {})
    assert not path.exists()


def test_names_that_a_folder_takes_for_the_same_are_refused(tmp_path, monkeypatch):
    tree = xr.DataTree.from_dict({"a": xr.Dataset({"x": 1, "X": 2})})
    Store.create(tmp_path / "run.zarr", tree, {}).close()
    exists = folders.Folder.exists
    monkeypatch.setattr(folders.Folder, "exists", lambda folder, key: exists(folder, key.lower()))
    with pytest.raises(StoreError, match=r"a/[xX] and a/[xX] would be the same file"):
        Store.create(tmp_path / "other.zarr", tree, {})
