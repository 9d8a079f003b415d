"""What the building of graphs puts off is as before afterwards, whichever of several threads ends first."""

import gc
import threading

import pytensor
import pytensor.tensor as pt
import pytest

from pmm_mcmc.model.functions import building


def state():
    return pytensor.config.traceback__limit, gc.isenabled()


@pytest.fixture(params=[True, False], ids=["collected", "not collected"])
def before(request):
    (gc.enable if request.param else gc.disable)()
    yield state()
    gc.enable()


def test_graphs_are_built_without_traces_and_all_is_as_before(before):
    with pytest.raises(ValueError, match="wrong"), building():
        with building():
            assert pt.exp(pt.scalar()).tag.trace == []
        assert state() == (0, False)
        raise ValueError("wrong")
    assert state() == before
    assert pt.exp(pt.scalar()).tag.trace


def test_blocks_of_threads_overlap(before):
    entered, ended = threading.Event(), threading.Event()

    def other():
        with building():
            entered.set()
            ended.wait(10)

    thread = threading.Thread(target=other)
    with building():
        thread.start()
        assert entered.wait(10)
    assert state() == (0, False)
    ended.set()
    thread.join()
    assert state() == before
