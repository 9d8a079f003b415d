"""A small run with phases, chunks and state, to be stored: deterministic, and wrong at once if resumed wrongly."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr
from xarray.testing import assert_identical

from pmm_mcmc.run.storage import NothingStored, Store, open_store
from pmm_mcmc.run.storage.store import NOTES

CHAINS, ROWS, CHAINS_PER_CHUNK = 3, 4, 2
PHASES = {"warmup_posterior": 6, "posterior": 14}
WHOLE = list(PHASES.values())
SCHOOLS = np.array(["A", "Bé"])
IDENTITY = {"method": "PoissonULMC", "seed": 1, "step_size": 0.1, "draws": [6, 14], "thin": None}


class Setting(NamedTuple):
    step: float
    scale: np.ndarray


@dataclass
class Walk:
    """State that every later draw depends on."""

    position: np.ndarray
    setting: Setting
    phase: int = 0
    total: float = 0.0
    steps: list[int] = field(default_factory=list)

    def advance(self, rows):
        """Return draws (chain, rows, 2) of a map that forgets nothing."""
        draws = np.empty((CHAINS, rows, 2))
        for i in range(rows):
            self.position = (3.9 * self.position * (1 - self.position) + self.setting.step * self.total) % 1.0
            self.total = float(self.position.sum()) % 1.0
            draws[:, i] = self.position
        self.steps.append(rows)
        return draws


TYPES = (Walk, Setting)


def arrays(draws):
    """Return the variables of a group from draws (chain, n, 2)."""
    return {
        "mu": draws[..., 0],
        "theta": draws.astype(np.float32),
        "many": np.floor(1e6 * draws[..., 1]).astype(np.int64),
        "odd": draws[..., 1] > 0.5,
        "none": np.zeros((*draws.shape[:2], 0)),
    }


def group(draws, **attributes):
    values = arrays(draws)
    extra = {"theta": ("school",), "none": ("nothing",)}
    return xr.Dataset(
        {name: (("chain", "draw", *extra.get(name, ())), v) for name, v in values.items()},
        coords={"chain": np.arange(CHAINS), "draw": np.arange(draws.shape[1]), "school": SCHOOLS},
        attrs={"inference_library": "pmm_mcmc", "list": [1, 2.5], "nan": float("nan"), **attributes},
    )


def moments(count, total):
    return xr.Dataset(
        {"count": ((), np.int64(count)), "sum": (("chain", "school"), np.asarray(total))},
        coords={"chain": np.arange(CHAINS), "school": SCHOOLS},
    )


def tree(warmup, posterior):
    """Return the whole result from the draws of the two phases, as it would be in memory."""
    result = {
        "/": xr.Dataset(attrs={"model": "schools"}),
        "warmup_posterior": group(warmup, phase="warm-up"),
        "posterior": group(posterior),
        "moments": moments(posterior.shape[1], posterior.sum(axis=1)),
        "observed_data": xr.Dataset(
            {
                "y": (("school",), np.array([1.5, np.nan])),
                "zero": ((), 0.0),
                "flag": (("school",), np.array([False, False])),
                "when": (("t",), np.array(["2026-01-01", "NaT"], dtype="datetime64[ns]")),
            },
            coords={"school": SCHOOLS},
        ),
    }
    return xr.DataTree.from_dict(result)


EMPTY = np.zeros((CHAINS, 0, 2))


def template():
    return tree(EMPTY, EMPTY)


def begin():
    start = np.linspace(0.1, 0.9, 2 * CHAINS).reshape(CHAINS, 2)
    return Walk(start, Setting(0.25, np.ones(2)))


def create(path, **options):
    return Store.create(path, template(), IDENTITY, ROWS, CHAINS_PER_CHUNK, **options)


def resume(path, **options):
    return Store.resume(path, IDENTITY, types=TYPES, **options)


def chunks(walk, rows):
    """Yield phase, draws and, for the posterior, count and sum, of all chunks after those committed."""
    for i, (phase, length) in enumerate(PHASES.items()):
        done = rows[phase]
        while done < length:
            walk.phase = i
            draws = walk.advance(min(ROWS, length - done))
            done += draws.shape[1]
            yield phase, draws, done


def go_on(store, chunks_at_most=None, hosts=None, between=lambda: None):
    """Append and commit what is missing; with several hosts, all write their chains and commit, the first last."""
    hosts = hosts or {store: [slice(0, 2), slice(2, 3)]}
    walk, total = store.checkpoint or (begin(), np.zeros((CHAINS, 2)))
    for number, (phase, draws, done) in enumerate(chunks(walk, store.rows)):
        if number == chunks_at_most:
            return
        values = arrays(draws)
        for host, slices in hosts.items():
            for s in slices:
                host.append(phase, {name: v[s] for name, v in values.items()}, chains=s)
            if phase == "posterior":
                for s in slices:
                    host.append("moments", {"sum": (total + draws.sum(axis=1))[s]}, chains=s)
                host.append("moments", {"count": np.int64(done)})
        total = total + draws.sum(axis=1) * (phase == "posterior")
        for host in reversed(hosts):
            host.commit((walk, total))
        between()


def run(path, between=lambda: None):
    """Run to the end, from wherever the store has got to."""
    try:
        store = resume(path)
    except NothingStored:
        store = create(path)
    with store:
        store.note({"/": {"seconds": float(os.getpid())}})
        go_on(store, between=between)


def reference(rows=PHASES):
    """Return the result in memory, whole or as it is after so many draws."""
    draws = {phase: [EMPTY] for phase in PHASES}
    for phase, values, done in chunks(begin(), dict.fromkeys(PHASES, 0)):
        if done <= rows[phase]:
            draws[phase].append(values)
    result = tree(*(np.concatenate(parts, axis=1) for parts in draws.values()))
    result["moments"]["sum"].values[:] = sum(part.sum(axis=1) for part in draws["posterior"])  # as a run adds them
    return result


def files(path):
    """Return all files of a folder with their bytes, and its folders; without what may differ between runs."""
    found = {}
    for folder, names, entries in os.walk(path):
        for name in names:
            found[os.path.relpath(os.path.join(folder, name), path) + "/"] = None
        for name in entries:
            key = os.path.relpath(os.path.join(folder, name), path)
            if key != NOTES:
                with open(os.path.join(folder, name), "rb") as file:
                    found[key] = file.read()
    return found


def read(path):
    """Return what is stored, and how many draws of each phase."""
    tree = open_store(path).load()
    return tree, [tree[phase].sizes["draw"] for phase in PHASES]


def check_upto(path, reference, rows):
    """Assert that so many draws of each phase are stored, and that they are the right ones."""
    tree, found = read(path)
    assert found == rows
    for phase, n in zip(PHASES, rows, strict=True):
        assert_identical(tree[phase].to_dataset(), reference[phase].to_dataset().isel(draw=slice(n)))


def finish(path):
    with resume(path) as store:
        go_on(store)
