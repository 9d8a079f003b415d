"""Recorders of the draws of a run: in memory or in a store.

A run calls ``begin`` or finds a ``run`` to continue, then ``put`` with each chunk; ``result`` is what the user gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import xarray as xr
from rich.filesize import decimal

from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.driver import Gathered, Groups
from pmm_mcmc.run.former_run import CHECKPOINT, TYPES, FinishedRun, Run
from pmm_mcmc.run.memory import peak_bytes, refuse_too_large, rows_of_chunk
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import stored_run
from pmm_mcmc.run.stopping import first_look, limit_after
from pmm_mcmc.run.storage import Store, open_store
from pmm_mcmc.run.storage.checkpoint import encode
from pmm_mcmc.run.storage.recovery import differences
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, report_of

__all__ = ["MemoryRecorder", "StoreRecorder", "recorder_of"]

# The attributes that add up where a run goes on in memory.
_TIMES = ("sampling_time", "compile_time")
# Bytes of a predicted peak above which it is logged.
_LARGE = 2**30
# Where a result has the unconstrained positions.
_STATISTICS = "sample_stats"
_UNCONSTRAINED = "unconstrained"


class MemoryRecorder:
    """Recorder that keeps the draws in memory; without a ladder the result has a checkpoint, to continue from.

    Arrays are as long as ``draws``, the most draws of a chain with those of a finished run that goes on, and
    ``warmup_draws``, the most that are kept of its warm-up: what is not filled takes no memory.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        attrs: dict[str, Any],
        empty: Groups,
        rows: int,
        identity: dict[str, Any],
        draws: int,
        warmup_draws: int = 0,
    ):
        self.run: Any = None
        self.rows = rows
        self.seed = attrs["random_seed"]
        self._plan = plan
        self._attrs = dict(attrs)
        self._empty = empty
        self._identity = identity
        self._draws = Gathered(identity["chains"], draws)
        self._warmup = Gathered(identity["chains"], warmup_draws)
        self._times: dict[str, float] = {}  # of the finished run that goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def begin(self, run: Any) -> None:
        """Record a run from its start on."""
        self.run = run

    def go_on(self, finished: FinishedRun) -> None:
        """Begin where a finished run ended."""
        changes = differences(finished.identity, self._identity)
        if changes:
            raise ValueError(
                f"dt: is the result of another run ({changes}); give the model of that run, or start a new one"
            )
        self.run = finished.run
        self.put(finished.groups(self._empty))
        attributes = finished.result["posterior"].attrs
        self._times = {name: float(attributes.get(name, 0.0)) for name in _TIMES}

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk."""
        self._warmup.append({group: arrays for group, arrays in groups.items() if group.startswith("warmup_")})
        self._draws.append({group: arrays for group, arrays in groups.items() if not group.startswith("warmup_")})

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result; times add up."""
        self._attrs |= attrs | {name: attrs[name] + seconds for name, seconds in self._times.items() if name in attrs}

    def unconstrained(self) -> xr.DataArray | None:
        """Return the unconstrained positions ``(chain, draw, d)`` so far, if they are kept."""
        statistics = self._draws.groups.get(_STATISTICS, {})
        if _UNCONSTRAINED not in statistics:
            return None
        return xr.DataArray(statistics[_UNCONSTRAINED][:, : self._draws.done], dims=("chain", "draw", "coordinate"))

    def so_far(self, others: Mapping[str, xr.Dataset] | None = None) -> xr.DataTree:
        """Return the result of all chunks so far, for a verdict, with ``others`` of its groups."""
        groups = self._empty | self._warmup.upto(self._warmup.done) | self._draws.upto(self._draws.done)
        return self._plan.layout.tree(groups, self._attrs, others)

    def result(self) -> xr.DataTree:
        """Return the result of all chunks, with a checkpoint to continue from."""
        others = self.run.reports()
        if isinstance(self.run, Run):
            state = np.frombuffer(encode((self._identity, self._plan.arguments, self.run)), np.uint8)
            others[CHECKPOINT] = xr.Dataset({"state": ("byte", state)})
        return self.so_far(others)


class StoreRecorder:
    """Recorder that writes whole chunks of equal length to a store, each with a checkpoint.

    ``run`` and ``seed`` are those of the stored run to continue, if there is one.
    """

    def __init__(self, path: str | os.PathLike[str], store: Store, rows: int, seed: int, processes: Processes):
        self._path = path
        self._store = store
        self._processes = processes
        self.rows = rows
        self.seed = seed
        self.run: Any = None
        # Draws of the warm-up, whose blocks have any length, that do not fill a chunk yet: of this process' chains.
        self._waiting: Groups = {}
        if store.checkpoint is not None:
            self.run, waiting = store.checkpoint
            for group, arrays in waiting.items():
                self._waiting[group] = {name: values[processes.chains] for name, values in arrays.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    def begin(self, run: Any) -> None:
        """Store the start of the chains."""
        self.run = run
        self._commit()

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk; an interrupted one is not stored, and is drawn again when the run resumes."""
        if not complete:
            return
        for group, arrays in groups.items():
            if group.startswith("warmup_"):
                arrays = self._whole_chunks(group, arrays)
            if next(iter(arrays.values())).shape[1]:
                self._store.append(group, arrays, self._processes.chains)
        for group, report in self.run.reports(new=True).items():
            self._store.append(group, report)
        self._commit()

    def _commit(self) -> None:
        joined = {
            group: dict(zip(arrays, self._processes.join(*arrays.values()), strict=True))
            for group, arrays in self._waiting.items()
        }
        # A collective call: all processes have appended their chains before the commit makes them visible, and
        # processes that round differently must stop.
        self._processes.agree("the setting that they have found", encode(self.run.tuned))
        self._store.commit((self.run, joined))

    def _whole_chunks(self, group: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the draws, with those that waited, that fill whole chunks; the others wait, unless warm-up is over."""
        if group in self._waiting:
            waiting = self._waiting.pop(group)
            arrays = {name: np.concatenate([waiting[name], values], axis=1) for name, values in arrays.items()}
        length = next(iter(arrays.values())).shape[1]
        cut = length - length % self.rows if self.run.tuning else length
        if cut < length:
            self._waiting[group] = {name: values[:, cut:].copy() for name, values in arrays.items()}
        return {name: values[:, :cut] for name, values in arrays.items()}

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result."""
        self._store.note(dict.fromkeys(self._store.rows, attrs))

    def unconstrained(self) -> xr.DataArray | None:
        """Return the unconstrained positions ``(chain, draw, d)`` so far, if they are kept."""
        tree = self.so_far()
        statistics = tree[_STATISTICS].to_dataset() if _STATISTICS in tree else {}
        return statistics[_UNCONSTRAINED] if _UNCONSTRAINED in statistics else None

    def so_far(self) -> xr.DataTree:
        """Return the stored run as it is now, for a verdict."""
        return open_store(self._path)

    def result(self) -> xr.DataTree:
        """Return the stored run, which is read when it is used."""
        self._processes.wait()  # until the first process has closed it
        return open_store(self._path)


def recorder_of(plan: SamplingPlan, seed: int, log: Callable[..., None]) -> MemoryRecorder | StoreRecorder:
    """Return the recorder of a run, new or resumed; ``log`` what memory it takes.

    Raises
    ------
    ValueError
        If the run would not fit the memory, or another one is to be continued.
    """
    request = plan.request
    chains = request.chains
    tune = request.tune
    identity = plan.identity | {
        "chains": chains, "tune": tune, "seed": seed, "superchains": request.superchains,
        "discard_tuned_samples": request.discard_tuned_samples,
    }  # fmt: skip
    attrs = {"tuning_steps": tune, "random_seed": seed, **plan.attributes}
    if request.superchains is not None:
        attrs["superchains"] = request.superchains
    empty = plan.empty(chains)
    warmup_draws = 0
    if not request.discard_tuned_samples:
        empty |= {f"warmup_{group}": arrays for group, arrays in empty.items()}
        warmup_draws = plan.longest_warmup * (1 + (request.start is not None))
    draws = request.draws
    longest = draws
    if request.auto:
        longest = first_look(chains)
        draws = limit_after(0 if request.finished_run is None else request.finished_run.run.done, longest)
    rows = rows_of_chunk(longest, chains, plan.numbers_per_draw)
    if request.store is not None:
        return _of_store(plan, empty, attrs, identity | {"rows": rows})
    needed = peak_bytes(plan, draws, rows, warmup_draws)
    if needed > _LARGE:
        log("Memory: about %s at the peak", decimal(needed))
    refuse_too_large(plan, draws + warmup_draws, chains, needed)
    recorder = MemoryRecorder(plan, attrs, empty, rows, identity, draws, warmup_draws)
    if request.finished_run is not None:
        recorder.go_on(request.finished_run)
    return recorder


def _of_store(plan: SamplingPlan, empty: Groups, attrs: dict[str, Any], identity: dict[str, Any]) -> StoreRecorder:
    """Return the recorder of a run in a store, new or resumed."""
    request = plan.request
    processes = plan.processes
    store = request.store
    assert store is not None
    primary = processes.primary
    if not primary:
        processes.wait()  # until the first process has opened it
    stored = stored_run(store) if request.resume else {}
    if stored:
        identity["rows"] = stored.get("rows", identity["rows"])
        if request.random_seed is None:
            identity["seed"] = stored.get("seed", identity["seed"])
    if stored or not primary:
        opened = Store.resume(store, identity, types=TYPES, primary=primary)
    else:
        template = plan.layout.tree(empty, attrs)
        if plan.equilibrates and request.tune:
            template[EQUILIBRATION] = xr.DataTree(report_of(None, request.chains))
        files = min(request.chains, plan.file_chains)
        opened = Store.create(store, template, identity, identity["rows"], files)
    if primary:
        processes.wait()
    return StoreRecorder(store, opened, identity["rows"], identity["seed"], processes)
