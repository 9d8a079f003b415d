"""Runs of samplers on models, each a row that is kept: the loop and the options of the commands that have rows.

The runs of a model share a process, which one that crashes or takes longer than ``--seconds`` ends; that is its row.
``--write`` keeps rows and page in ``results`` after every run, and begins where the rows in there end.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tables import Row, Rows, about, append, key, read, status, told

Measure = Callable[[str, str, int], Row]


@dataclass(frozen=True)
class Task:
    """A command: what it runs, and the page of its rows.

    ``measure`` returns the row of a model's key, a sampler and a seed, and of what ``setting`` makes of the arguments;
    it is a function of a module.  ``quick`` is what ``--quick`` runs where nothing is named, and ``judged`` whether a
    row that is wrong and trusted makes it fail.  Samplers in ``others`` are run where they are named.
    """

    words: str
    path: Path  # of the rows; the page beside it has the same name
    measure: Callable[..., Row]
    page: Callable[[Rows, str], str]
    models: Sequence[str] | Callable[[argparse.Namespace], Iterable[str]]
    samplers: Sequence[str]
    others: Sequence[str] = ()
    quick: Sequence[str] = ()
    quick_samplers: Sequence[str] = ()
    quick_jobs: int = 1
    seeds: Sequence[int] = (1, 2, 3)
    seconds: float = 300.0
    groups: Mapping[str, Iterable[str]] = field(default_factory=dict)  # keys by a name for --models
    setting: Callable[[argparse.Namespace], dict[str, Any]] = lambda asked: {}
    judged: Callable[[Row], bool] = lambda row: True
    arguments: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def chosen(patterns: Iterable[str], keys: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the keys that patterns choose: a family, a group, a key, or a pattern with stars.

    Raises
    ------
    ValueError
        If a pattern chooses nothing.
    """
    keys, found = list(keys), {}
    for pattern in patterns:
        of_group = set(groups.get(pattern, ()))
        these = [key for key in keys if fnmatch(key, pattern) or key.partition("/")[0] == pattern or key in of_group]
        if not these:
            names = ", ".join(dict.fromkeys([*(key.partition("/")[0] for key in keys), *groups]))
            raise ValueError(f"no model is called {pattern!r}: take some of {names}, or a key such as {keys[0]}")
        found |= dict.fromkeys(these)
    return list(found)


def failure(error: Exception) -> Row:
    """Return the row of a run that did not come to an end."""
    words = " ".join(str(error).split())[:120]
    return {"error": f"{type(error).__name__}: {words}" if words else type(error).__name__}


def _send(sender: Any, measure: Measure, target: str, runs: list[tuple[str, int]]) -> None:
    """Run one model in this process, and send each row."""
    warnings.filterwarnings("ignore")
    for sampler, seed in runs:
        try:
            row = measure(target, sampler, seed)
        except Exception as error:  # whatever happens is its row
            row = failure(error)
        sender.send(row)
    sender.close()


def rows_of(measure: Measure, target: str, runs: list[tuple[str, int]], seconds: float) -> Iterator[Row]:
    """Yield the row of each run of a model, a failure where one takes longer than so many seconds or crashes."""
    # A fork of a process that has imported everything and run nothing.
    left, context = list(runs), get_context("forkserver")
    context.set_forkserver_preload(["posteriors", getattr(measure, "func", measure).__module__])
    while left:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(sender, measure, target, left), daemon=True)
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
            yield {"target": target, "sampler": sampler, "seed": seed, **row}
        process.kill()
        process.join()


def _parser(task: Task) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=task.words, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*task.samplers, *task.others]
    for name, options in task.arguments.items():
        parser.add_argument(name, **options)
    words = ", ".join(["families", *task.groups])
    parser.add_argument("--models", nargs="*", default=[], metavar="NAME", help=f"{words}, keys or patterns with stars")
    parser.add_argument("--samplers", nargs="*", metavar="NAME", choices=every, help=f"of {', '.join(every)}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(task.seeds))
    parser.add_argument("--seconds", type=float, default=task.seconds, help="limit of a run, compilation included")
    parser.add_argument("--jobs", type=int, help="models that are run at a time")
    parser.add_argument("--quick", action="store_true", help="a few models, one seed: 1 if one fails, or lies")
    parser.add_argument("--again", action="store_true", help="run also what is kept")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in results/{task.path.name}")
    parser.add_argument("--list", action="store_true", help="name the models, and run nothing")
    parser.add_argument("--page", action="store_true", help="print the page of what is kept, and run nothing")
    return parser


def main(task: Task, arguments: list[str] | None = None) -> int:
    """Run what is asked for, print the page, and return the exit status."""
    parser = _parser(task)
    asked = parser.parse_args(arguments)
    old, facts = read(task.path)
    if asked.page:
        print(task.page(old, told(old, facts)), end="")
        return 0
    if asked.quick and asked.write:
        parser.error("--quick is for a look, and --write keeps whole runs: leave one of them out")
    try:
        keys = list(task.models(asked) if callable(task.models) else task.models)
        keys = chosen(asked.models or (asked.quick and task.quick) or ["*"], keys, task.groups)
    except ValueError as error:
        parser.error(str(error))
    if asked.list:
        print("\n".join(keys))
        return 0
    samplers = asked.samplers or (asked.quick and task.quick_samplers) or task.samplers
    seeds = asked.seeds[:1] if asked.quick else asked.seeds
    kept = {key(row) for row in old} if asked.write and not asked.again else set()
    jobs = asked.jobs or (task.quick_jobs if asked.quick else 1)
    measure, facts, made, lock = partial(task.measure, **task.setting(asked)), about(), [], threading.Lock()

    def bring_up(target: str) -> None:
        runs = [(name, seed) for name in samplers for seed in seeds if (target, name, seed) not in kept]
        for row in rows_of(measure, target, runs, asked.seconds):
            with lock:
                made.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if asked.write:
                    append(task.path, row, facts, task.page)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(bring_up, keys))
    rows = read(task.path)[0] if asked.write else made
    print(task.page(rows, told(rows, facts)), end="")
    return status([row for row in made if task.judged(row)]) if asked.quick else 0
