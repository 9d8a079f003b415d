"""Runs in processes that are killed, or read while they write.  Started as a script: a process that has no threads.

``store_processes.py steps|readers FOLDER`` prints what it found, as JSON; ``all-steps`` leaves none out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import traceback
import warnings

import store_runs as runs

import pmm_mcmc.run.storage as storage

KILLED = 137


def child(action, *args):
    """Run an action in a process of its own; return its id."""
    process = os.fork()
    if process:
        return process
    try:
        action(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def die_at(path, step):
    """Run, and be killed at a step: every second one within the writing of a file, or before it gets its name."""
    left = [step]
    real_write, real_replace, real_remove = os.write, os.replace, os.remove

    def last():
        left[0] -= 1
        return left[0] < 0

    def write(file, data):
        if last():
            real_write(file, data[: len(data) // 2])
            os._exit(KILLED)
        return real_write(file, data)

    def replace(source, target):
        if last():
            os._exit(KILLED)
        real_replace(source, target)

    def remove(path):
        if last():
            os._exit(KILLED)
        real_remove(path)

    os.write, os.replace, os.remove = write, replace, remove
    os.fsync = lambda file: None  # of no use against kills, and slow
    runs.run(path)


def compare(path, wanted):
    """Return what differs from the files of the uninterrupted run."""
    got = runs.files(path)
    return sorted(key for key in got.keys() | wanted.keys() if got.get(key, 0) != wanted.get(key, 0))


def steps(folder, stride=9):
    """Kill at the first steps and every so many after, until there are no more; resume each once."""
    whole = os.path.join(folder, "whole")
    assert ended(child(die_at, whole, 10**9)) == 0
    wanted, failures, count = runs.files(whole), [], 0
    for step in itertools.chain(range(stride), itertools.count(stride, stride)):
        path = os.path.join(folder, str(step))
        status = ended(child(die_at, path, step))
        if status == 0 or len(failures) > 20:
            return {"kills": count, "failures": failures}
        count += status == KILLED
        again = ended(child(die_at, path, 10**9))
        failures += [f"step {step}: {status}, then {again}"] if again or status != KILLED else []
        failures += [f"step {step}: {key}" for key in compare(path, wanted)]


def write_watched(path, opened):
    """Write while another process reads, each chunk once the store was opened twice since the last."""

    def wait():
        for _ in range(2):  # the second time, nothing was written meanwhile
            end = time.monotonic() + 20
            while not os.path.exists(opened) and time.monotonic() < end:
                time.sleep(0.001)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(opened)

    with runs.create(path) as store:
        wait()
        runs.go_on(store, between=wait)


def root(path):
    """Return the bytes of what is published."""
    try:
        with open(os.path.join(path, "zarr.json"), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def look(path, opened, results):
    """Open the store over and over; note how many draws were seen, and whatever was not as it should be."""
    import xarray as xr

    warnings.simplefilter("error")
    whole, seen, faults, steadily = runs.reference(), [], [], 0
    end = time.monotonic() + 60
    while seen[-4:] != [[6, 14]] * 4 and time.monotonic() < end:
        before = root(path)
        try:
            tree = xr.open_datatree(path, engine="zarr").load() if len(seen) % 2 else storage.open_store(path).load()
        except storage.NothingStored:
            continue
        steady = before == root(path)
        with open(opened, "w"):
            pass
        rows = [tree[phase].sizes["draw"] for phase in runs.PHASES]
        for phase, n in zip(runs.PHASES, rows, strict=True):
            if not tree[phase].to_dataset().identical(whole[phase].to_dataset().isel(draw=slice(n))):
                faults.append(f"{rows}: {phase}")
        if any(n % runs.ROWS and n != runs.PHASES[p] for p, n in zip(runs.PHASES, rows, strict=True)):
            faults.append(f"{rows}: no whole chunks")
        if seen and rows < seen[-1]:
            faults.append(f"{seen[-1]}, then {rows}")
        count = int(tree["moments"]["count"])
        if steady and not rows[1] <= count <= rows[1] + runs.ROWS:
            faults.append(f"{rows}: moments of {count}")
        seen.append(rows)
        steadily += steady
    with open(results, "w") as file:
        different = len({tuple(rows) for rows in seen})
        json.dump({"opened": len(seen), "different": different, "steadily": steadily, "faults": faults}, file)


def readers(folder):
    """Read in a tight loop while another process writes."""
    path, opened, results = (os.path.join(folder, name) for name in ("run.zarr", "opened", "results"))
    reader = child(look, path, opened, results)
    writer = child(write_watched, path, opened)
    status = [ended(writer), ended(reader)]
    with open(results) as file:
        return {"status": status, **json.load(file)}


if __name__ == "__main__":
    modes = {"steps": steps, "all-steps": lambda f: steps(f, 1), "readers": readers}
    print(json.dumps(modes[sys.argv[1]](sys.argv[2])))
