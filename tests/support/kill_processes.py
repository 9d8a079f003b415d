"""Runs of ``pmm.sample`` in processes that are killed.

Started as a script, which has no threads and so may fork once all is compiled: ``kill_processes.py FOLDER`` prints what
it found, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time

import numpy as np
import pymc as pm
import store_runs
from store_processes import child, compare, ended

import pmm_mcmc as pmm
from pmm_mcmc.run import beginning, recorders
from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.storage.folder import PARTIAL, Folder
from pmm_mcmc.run.storage.layout import ArrayLayout
from pmm_mcmc.run.storage.store import CREATING, SETTINGS, last_whole

ROWS, DRAWS = 8, 40
# Kills wanted in all, in each phase, and within the writing of a commit; and children at most.
WANTED = {"kills": 25, "creation": 1, "warm-up": 6, "sampling": 6, "torn": 6}
MOST = 200
OPTIONS = {
    "draws": DRAWS,
    "tune": 160,
    "chains": 6,
    "random_seed": 3,
    "discard_tuned_samples": False,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def problem():
    """Return what is sampled."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 5.0)
        z = pm.Normal("z", shape=3)
        pm.Normal("y", pm.Deterministic("theta", tau * z), 5.0, observed=np.array([2.0, -1.0, 6.0]))
    return model


class Runs:
    """Children that sample one problem, each telling its parent of every chunk."""

    def __init__(self):
        self.problem = problem()
        pmm.sample(step=pmm.PoissonULMC(K=16), model=self.problem, backend="numba", **OPTIONS)

    def start(self, path):
        """Begin or go on in a process of its own; return its id and the pipe that it tells."""
        ours, theirs = os.pipe()
        process = child(self._sample, path, theirs)
        os.close(theirs)
        return process, ours

    def _sample(self, path, pipe):
        def tell(drawn):
            os.write(pipe, b"w" if drawn.tuning else b"s")

        recorders._MOST_ROWS = ROWS
        options = {
            "model": self.problem,
            "backend": "numba",
            "store": path,
            "resume": True,
            "callback": tell,
            **OPTIONS,
        }
        tree = pmm.sample(step=pmm.PoissonULMC(K=16), **options)
        os.write(pipe, f"|{tree['posterior'].sizes['draw']}".encode())


def hear(pipe, count=10**9, seconds=120.0):
    """Return what a child said, up to so many chunks; less if it has ended."""
    said, end = b"", time.monotonic() + seconds
    while len(said) < count and select.select([pipe], [], [], max(end - time.monotonic(), 0.0))[0]:
        more = os.read(pipe, min(count - len(said), 4096))
        if not more:
            break
        said += more
    return said.decode()


def finish(process, pipe):
    """Wait for a child; return all that it said, and its status."""
    said = hear(pipe)
    os.close(pipe)
    return said, ended(process)


def where_it_stands(path):
    """Return what a killed run was at, and whether files of a commit that was not finished lie about."""
    folder = Folder(path)
    sizes = folder.sizes()
    if CREATING in sizes or SETTINGS not in sizes:
        return "creation", bool(sizes)
    layout = ArrayLayout(decode(folder.get(SETTINGS))["nodes"])
    record, _ = last_whole(folder, layout, beginning.TYPES, sizes)
    kept = layout.keys(record.rows)
    torn = any(key.endswith(PARTIAL) or (layout.has_draws(key) and key not in kept) for key in sizes)
    if record.state is None:
        return "creation", torn
    return "warm-up" if record.state[0].tuning else "sampling", torn


def whole(runs, folder):
    """Run without interruption, twice: the second time to see how long it takes to begin, and a chunk takes."""
    for name in ("first", "whole"):
        path, times = os.path.join(folder, name), [time.perf_counter()]
        process, pipe = runs.start(path)
        said = "."
        while said and said[-1] != "|":
            said = hear(pipe, 1)
            times.append(time.perf_counter())
        assert finish(process, pipe)[1] == 0
    failures = [f"twice: {key}" for key in compare(os.path.join(folder, "first"), store_runs.files(path))]
    chunks = np.diff(times)
    return store_runs.files(path), float(chunks[0]), float(np.median(chunks[1:-1])), failures


def kills(runs, folder, wanted, begin, chunk):
    """Kill -9 after a random number of chunks and a random time, and go on, again and again, until it is complete."""
    rng = random.Random(1)
    counts = dict.fromkeys(("kills", "complete", "creation", "warm-up", "sampling", "torn"), 0)
    failures = []
    for number in range(MOST):
        if not failures and all(counts[name] >= least for name, least in WANTED.items()):
            break
        path = os.path.join(folder, f"killed-{counts['complete']}")
        process, pipe = runs.start(path)
        waited = rng.randrange(4)
        hear(pipe, waited)
        time.sleep(rng.uniform(0.0, 1.5 * chunk if waited else begin))
        os.kill(process, signal.SIGKILL)
        said, status = finish(process, pipe)
        if status == -signal.SIGKILL and "|" not in said:
            phase, torn = where_it_stands(path)
            counts["kills"] += 1
            counts[phase] += 1
            counts["torn"] += torn
            continue
        if status == -signal.SIGKILL:  # after the end
            said, status = finish(*runs.start(path))
        failures += [f"child {number}: {said}, {status}"] * (status != 0)
        failures += [f"{path}: {key}" for key in compare(path, wanted)]
        counts["complete"] += 1
        if failures:
            break
    if not failures:
        failures += [f"{path}: {key}" for key in completed(runs, path, wanted)]
    return {**counts, "failures": failures}


def completed(runs, path, wanted):
    """Go on to the end; return what differs from the uninterrupted run."""
    said, status = finish(*runs.start(path))
    return [f"{said}, {status}"] * (status != 0) + compare(path, wanted)


def main(folder):
    runs = Runs()
    wanted, begin, chunk, failures = whole(runs, folder)
    print(json.dumps({"wanted": WANTED, "twice": failures, "kills": kills(runs, folder, wanted, begin, chunk)}))


if __name__ == "__main__":
    main(sys.argv[1])
