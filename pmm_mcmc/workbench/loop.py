"""Many fits: on all processors, shown while they go on, and stored."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn
from threadpoolctl import threadpool_limits

from pmm_mcmc.api import (
    DRAWINGS,
    Folder,
    StopRequest,
    StoreError,
    clock,
    console,
    decode,
    differences,
    encode,
    stop_on_signals,
    write,
)

__all__ = ["Record", "records_of"]

Record = dict[str, Any]
# Records in a file of a store, and seconds between lines of progress where none can be drawn over.
_FILE = 10
_SECONDS = 5.0


def records_of(
    task: Callable[[int], Record], count: int, cores: int, identity: Record, store: Any, resume: bool, show: bool
) -> list[Record]:  # fmt: skip
    """Return the records of tasks 0 to ``count - 1``, or of the first of them if a signal ends the loop.

    Parameters
    ----------
    task
        A function of the number of a task, on which alone its record depends.
    cores
        Number of processes; Linux alone has more than one.
    identity
        Entries that a stored loop must have to be resumed.
    store, resume
        The folder of the records, and whether to go on with those in it.
    show
        Whether to show progress.
    """
    stopped = StopRequest()
    with _opened(store, resume, identity) as (folder, records), threadpool_limits(1):
        del records[count:]
        with _bar(count, len(records), show) as update, stop_on_signals(stopped):
            for record in _mapped(task, range(len(records), count), cores, stopped):
                records.append(record)
                update(records)
                if folder is not None and len(records) % _FILE == 0:
                    folder.put(_key(len(records)), encode(records[-_FILE:]))
                if stopped():
                    break
    stopped.raise_again()
    return records


def _key(end: int) -> str:
    return f"records-{end:08d}"


@contextmanager
def _opened(path: Any, resume: bool, identity: dict[str, Any]) -> Iterator[tuple[Folder | None, list[Record]]]:
    """Open a store; yield it with its records."""
    if path is None:
        yield None, []
        return
    folder = Folder(path)
    with folder.opened_for_writing():
        stored = folder.get("identity")
        if stored is not None and not resume:
            raise StoreError(f"store={os.fspath(path)!r}: has records; use resume=True, or another path")
        if stored is None:
            folder.put("identity", encode(identity))
        elif texts := differences(decode(stored), identity):
            raise StoreError(f"store={os.fspath(path)!r}: another run's ({texts}); give its arguments, or another path")
        records: list[Record] = []
        while (data := folder.get(_key(len(records) + _FILE))) is not None:
            records += decode(data)
        yield folder, records
        folder.release()


def _mapped(
    task: Callable[[int], Record], numbers: Sequence[int], cores: int, stopped: StopRequest
) -> Iterator[Record]:
    """Yield the records of tasks in their order."""
    if min(cores, len(numbers)) < 2 or not sys.platform.startswith("linux"):
        yield from map(task, numbers)
        return
    # Processes that are forked have what is compiled.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(cores, len(numbers)), context, _begin, (task,))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of this process do not hold what the others need
            futures = [pool.submit(_in_process, number) for number in numbers]
        while futures:
            yield futures.pop(0).result()
    except BrokenProcessPool as error:
        if not stopped():  # a signal to all processes ends the others at once
            raise RuntimeError(
                "a process ended while it sampled, perhaps for want of memory; give fewer cores="
            ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_TASK: list[Callable[[int], Record]] = []


def _begin(task: Callable[[int], Record]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _TASK[:] = [task]


def _in_process(number: int) -> Record:
    return _TASK[0](number)


@contextmanager
def _bar(count: int, stored: int, show: bool) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Show progress: a bar, or a line every few seconds; yield the function that updates it."""
    if not show:
        yield lambda records: None
        return
    screen = console()
    began = last = perf_counter()
    drawn = screen.is_interactive or screen.is_jupyter
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None)
    bar = Progress(*columns, console=screen, refresh_per_second=DRAWINGS, expand=True, disable=not drawn)
    shown = bar.add_task(f"0 of {count} fits", total=count, completed=stored)

    def update(records: Sequence[Record]) -> None:
        nonlocal last
        done = len(records)
        now = perf_counter()
        left = (count - done) * (now - began) / max(done - stored, 1)
        untrusted = sum(record["state"] != "trusted" for record in records)
        line = f"{done} of {count} fits, {untrusted} not trusted, {clock(now - began)}, {clock(left)} left"
        bar.update(shown, completed=done, description=line)
        if not drawn and (now - last > _SECONDS or done == count):
            write(screen, line, last=done == count)
            last = now

    with bar:
        yield update
