"""Runs of one model in a process of its own, which a run that crashes or takes too long ends."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

from versus.kept import missing
from versus.rows import failure

__all__ = ["brought_up", "rows_of"]

Run = tuple[str, int]
Measure = Callable[[str, str, int], dict[str, Any]]


def _send(sender: Any, measure: Measure, key: str, runs: list[Run]) -> None:
    """Run one model in this process, and send each row."""
    warnings.filterwarnings("ignore")
    for sampler, seed in runs:
        try:
            row = measure(key, sampler, seed)
        except Exception as error:  # whatever happens is its row
            row = failure(error)
        sender.send(row)
    sender.close()


def rows_of(measure: Measure, key: str, runs: list[Run], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the row of each run of a model, a failure where one takes longer than so many seconds or crashes.

    ``measure`` returns the row of a model's key, a sampler and a seed; it is a function of a module, or of part of it.
    """
    # A fork of a process that has imported everything and run nothing.
    left, context = list(runs), get_context("forkserver")
    context.set_forkserver_preload(["scoreboard.measure"])
    while left:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(sender, measure, key, left), daemon=True)
        process.start()
        sender.close()
        lost = False
        while left and not lost:
            try:
                lost = not receiver.poll(seconds)
                row = {"error": f"took longer than {seconds:.0f} s"} if lost else receiver.recv()
            except EOFError:
                row, lost = {"error": "the process ended without a result"}, True
            sampler, seed = left.pop(0)
            yield {"target": key, "sampler": sampler, "seed": seed, **row}
        process.kill()
        process.join()


def brought_up(
    measure: Measure,
    keys: list[str],
    samplers: list[str],
    seeds: list[int],
    *,
    seconds: float,
    jobs: int,
    old: list[dict[str, Any]],
    keep: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """Run what old rows lack, so many models at a time; print and keep each row, and return them."""
    made: list[dict[str, Any]] = []
    lock = threading.Lock()

    def bring_up(key: str) -> None:
        runs = [(sampler, seed) for sampler in samplers for seed in missing(old, key, sampler, seeds)]
        for row in rows_of(measure, key, runs, seconds):
            with lock:
                made.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if keep is not None:
                    keep(row)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(bring_up, keys))
    return made
