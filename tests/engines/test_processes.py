"""Several processes that share the chains of one run: the bytes of one process, whatever is killed, stopped or fails.

What needs ``jax.distributed`` runs in processes on the loopback, of ``hosts_processes.py``; the rest in threads.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import store_runs

import pmm_mcmc as pmm
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.engines.processes import Processes, ProcessesError
from pmm_mcmc.run import recorders
from pmm_mcmc.run.storage.store import stored_identity
from pmm_mcmc.warmup import warm_up

pytestmark = pytest.mark.longest

TESTS = Path(__file__).parents[1] / "support"


class Meeting:
    """Lets threads exchange bytes as processes do."""

    def __init__(self, count):
        self._barrier, self._given = threading.Barrier(count, timeout=60), [b""] * count

    def exchange(self, index):
        def give(data):
            self._given[index] = data
            self._barrier.wait()
            found = list(self._given)
            self._barrier.wait()
            return found

        return give


def in_threads(count, action):
    """Call ``action(index, exchange)`` in so many threads; return what each returned or raised."""
    meeting, found = Meeting(count), [None] * count

    def one(index):
        try:
            found[index] = action(index, meeting.exchange(index))
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# -- what a process is to the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("chains", "group", "count"), [(18, 4, 2), (1000, 250, 4), (5, 1, 5), (7, 3, 2), (64, 64, 1)])
def test_every_chain_is_one_process_s_in_whole_groups(chains, group, count):
    own = [Processes.of(chains, group, index, count, list).chains for index in range(count)]
    assert [i for part in own for i in range(chains)[part]] == list(range(chains))
    assert all(part.start % group == 0 and part.stop > part.start for part in own)
    groups = [-(-(part.stop - part.start) // group) for part in own]
    assert max(groups) - min(groups) <= 1


def test_more_processes_than_groups_are_refused():
    with pytest.raises(ValueError, match=r"chains=10: 3 processes have only 2 group\(s\) of 5.*more chains or fewer"):
        Processes.of(10, 5, 0, 3, list)


def test_arrays_of_unequal_lengths_are_joined_in_order():
    whole = np.arange(21.0).reshape(7, 3), np.arange(7) > 3, np.arange(14, dtype=np.int64).reshape(7, 2, 1)

    def share(index, exchange):
        one = Processes.of(7, 2, index, 3, exchange)
        joined = one.join(*(array[one.chains] for array in whole))
        joined[0][:] += 1.0  # to be written to
        return joined

    for joined in in_threads(3, share):
        for got, wanted in zip(joined, (whole[0] + 1.0, *whole[1:]), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


def test_a_process_without_rows_has_a_part_in_it_too():
    def share(index, exchange):
        return Processes.of(2, 1, index, 2, exchange).join(np.ones((3 * index, 2)))[0]

    assert [joined.shape for joined in in_threads(2, share)] == [(3, 2), (3, 2)]


@pytest.mark.parametrize("where", ["join", "any", "wait"])
def test_an_error_in_one_ends_all_wherever_they_meet_next(where):
    def act(index, exchange):
        one = Processes.of(3, 1, index, 3, exchange)
        with one.failing_together():
            assert one.any(index == 1)
            if index == 2:
                raise OSError("mine")
            {"join": lambda: one.join(np.ones(1)), "any": lambda: one.any(True), "wait": one.wait}[where]()
            raise AssertionError("it went on")

    first, second, third = in_threads(3, act)
    assert isinstance(third, OSError)
    for error in (first, second):
        assert isinstance(error, ProcessesError) and "process 2 of this run has failed" in str(error)


def test_those_that_find_different_settings_do_not_go_on():
    def act(index, exchange):
        one = Processes.of(2, 1, index, 2, exchange)
        one.agree("one thing", b"equal")
        one.agree("another", np.array([1.0, 1.0 + 1e-15 * index]).tobytes())

    for error in in_threads(2, act):
        assert isinstance(error, ProcessesError) and "differ in another" in str(error)


def test_others_that_cannot_be_reached_are_an_error():
    def broken(data):
        raise ValueError("reset by peer")

    one = Processes.of(2, 1, 0, 2, broken)
    with (
        pytest.raises(ProcessesError, match=r"cannot be reached \(reset by peer\).*resume=True"),
        one.failing_together(),
    ):
        one.wait()


# -- runs in threads --------------------------------------------------------------------------------------------------


# One for all runs, which share what is compiled.
DENSITY = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)


def make_small(patch):
    """Groups of 15 chains, chunks of 8 draws; and chains that do not tune are taken for stuck after every block."""
    patch.setattr(jax_engine, "_GROUP_CPU", 16)
    patch.setattr(recorders, "_MOST_ROWS", 8)
    # They take the places of the first ones, which belong to another process.
    patch.setattr(
        warm_up, "replacements", lambda usable, unstable: np.arange(len(usable)) % warm_up.THRESHOLDS.training_chains
    )


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch)
    return monkeypatch


def run(path, **options):
    options = {"draws": 24, "tune": 120, "chains": 90, "random_seed": 3, "discard_tuned_samples": False} | options
    return pmm.sample(
        step=pmm.PoissonULMC(K=16),
        model=DENSITY,
        store=path,
        progressbar=False,
        compute_convergence_checks=False,
        **options,
    )


def run_in_threads(small, count, path, **options):
    here = threading.local()
    small.setattr(
        Processes,
        "of_jax",
        classmethod(lambda cls, chains, group: cls.of(chains, group, here.index, count, here.exchange)),
    )

    def one(index, exchange):
        here.index, here.exchange = index, exchange
        own = options.get("each", lambda index: {})(index)
        return run(path, **{name: value for name, value in options.items() if name != "each"}, **own)

    return in_threads(count, one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The store of one process."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        path = tmp_path_factory.mktemp("whole") / "run"
        run(path)
    return store_runs.files(path)


@pytest.mark.parametrize("count", [2, 3])
def test_several_equal_one(small, tmp_path, whole, count):
    trees = run_in_threads(small, count, tmp_path / "run")
    assert store_runs.files(tmp_path / "run") == whole
    one = pmm.open(tmp_path / "run")
    for tree in trees:
        assert tree["posterior"].identical(one["posterior"]), tree


def test_a_run_goes_on_with_another_number_of_processes(small, tmp_path, whole):
    class Stop:
        """In one process alone, after so many chunks."""

        def __init__(self, left):
            self.left = left

        def __call__(self, drawn):
            self.left -= 1
            if self.left == 0:
                raise pmm.StopSampling

    for count, chunks in ((2, 2), (3, 3)):
        trees = run_in_threads(
            small,
            count,
            tmp_path / "run",
            resume=True,
            each=lambda i, n=chunks: {"callback": Stop(n)} if i == 1 else {},
        )
        assert not any(isinstance(tree, Exception) for tree in trees), trees
    small.undo()
    make_small(small)
    assert pmm.open(tmp_path / "run")["posterior"].sizes["draw"] < 24
    run(tmp_path / "run", resume=True)
    assert store_runs.files(tmp_path / "run") == whole


def test_a_fresh_seed_is_the_same_in_all(small, tmp_path):
    trees = run_in_threads(small, 2, tmp_path / "run", random_seed=None, draws=8)
    seed = stored_identity(tmp_path / "run")["seed"]
    small.undo()
    make_small(small)
    alone = run(tmp_path / "alone", random_seed=seed, draws=8)
    assert trees[1]["posterior"]["x"].identical(alone["posterior"]["x"])


def test_refusals_reach_all(small, tmp_path):
    found = run_in_threads(small, 2, None, discard_tuned_samples=True)
    assert all(isinstance(error, ValueError) and "give store=" in str(error) for error in found), found
    found = run_in_threads(small, 2, tmp_path / "run", each=lambda i: {"draws": 8 * (1 + i)})
    assert all(isinstance(error, ProcessesError) and "differ in draws or resume" in str(error) for error in found), (
        found
    )
    run_in_threads(small, 2, tmp_path / "run", draws=8)
    first, second = run_in_threads(small, 2, tmp_path / "run", draws=8)
    assert isinstance(first, pmm.StoreError) and "there is a store already" in str(first)
    assert isinstance(second, ProcessesError) and "process 0" in str(second)


def test_callbacks_see_the_chains_of_their_process(small, tmp_path):
    seen = {0: [], 1: []}
    run_in_threads(small, 2, tmp_path / "run", draws=8, each=lambda i: {"callback": seen[i].append})
    x = pmm.open(tmp_path / "run")["posterior"]["x"].values
    drawn = [calls[-1].posterior["x"] for calls in seen.values()]
    np.testing.assert_array_equal(np.concatenate(drawn), x)
    assert len(drawn[0]) and len(drawn[1])


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What ``hosts_processes.py`` found."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "runs").mkdir()
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TESTS / "hosts_processes.py"), str(folder / "runs")],
        env={**os.environ, **compiled},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "errors": done.stderr}


@pytest.mark.process
def test_two_processes_under_jax_distributed_equal_one(found):
    assert found["two"] == {"said": [found["result"]] * 2, "status": [0, 0], "differences": []}, found["errors"][-3000:]


@pytest.mark.process
def test_one_is_killed_and_both_go_on(found):
    kill = found["kill"]
    assert (kill["killed"], kill["other"], kill["phase"]) == (-9, 1, "sampling")
    assert "ProcessesError: the other processes of this run cannot be reached" in found["errors"]
    assert found["resumed"] == found["two"]


def test_alone_nothing_is_exchanged():
    def never(data):
        raise AssertionError("exchanged")

    one = Processes(slice(0, 5), exchange=never)
    array = np.ones(5)
    assert one.join(array)[0] is array and one.any(True) and not one.any(False) and one.primary
    one.wait()
    one.agree("everything", b"anything")
    assert Processes.of_jax(5, 1) == Processes(slice(0, 5))
