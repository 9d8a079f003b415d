"""Recorders of the draws of a run: in memory, as moments, or in a store."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import xarray as xr

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.chunks import Gathered, Groups
from pmm_mcmc.run.driver import Run
from pmm_mcmc.run.finished_run import CHECKPOINT, TYPES, FinishedRun
from pmm_mcmc.run.moments import Moments
from pmm_mcmc.run.storage import NothingStored, Store, open_store
from pmm_mcmc.run.storage.checkpoint import encode
from pmm_mcmc.run.storage.recovery import differences, stored_identity
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, report_of

__all__ = ["MemoryRecorder", "MomentsRecorder", "StoreRecorder", "device_of"]

# The attributes that add up where a run goes on in memory.
_TIMES = ("sampling_time", "compile_time")


class _Recorder:
    """Recorder without a store: the run, and the attributes of its result."""

    seed: int | None = None

    def __init__(self, layout: ResultTree, attrs: dict[str, Any]):
        self.run: Run | None = None
        self._layout = layout
        self._attrs = dict(attrs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def begin(self, run: Run) -> None:
        """Keep a reference to the run, which changes in place."""
        self.run = run

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes that differ between equal runs."""
        self._attrs |= attrs

    def _with_equilibration(self, tree: xr.DataTree) -> xr.DataTree:
        """Return the result with how equilibration ended, if there was one."""
        if self.run is not None and self.run.equilibration is not None:
            tree[EQUILIBRATION] = xr.DataTree(report_of(self.run.equilibration, len(self.run.n_grad)))
        return tree


class MemoryRecorder(_Recorder):
    """Recorder that keeps the draws in memory, with a checkpoint to continue from.

    Chunks go to their place in arrays of all draws; where their number is not known, they are concatenated.

    Parameters
    ----------
    layout, attrs, empty
        Layout and attributes of the result, and its arrays without draws.
    identity, arguments
        Identity of the run, and the arguments of its step.
    finished
        The run to continue, if there is one.
    draws
        Draws of each chain after the warm-up, with those of that run; None if it is not known.
    """

    def __init__(
        self,
        layout: ResultTree,
        attrs: dict[str, Any],
        empty: Groups,
        identity: dict[str, Any],
        arguments: MethodArguments,
        finished: FinishedRun | None = None,
        draws: int | None = None,
    ):
        super().__init__(layout, attrs)
        self._empty = empty
        self._identity, self._arguments = identity, arguments
        self._chunks: dict[str, dict[str, list[np.ndarray]]] = {}
        self._arrays = None if draws is None else Gathered(identity["chains"], draws)
        self._times: dict[str, float] = {}
        if finished is not None:
            changes = differences(finished.identity, identity)
            if changes:
                raise ValueError(
                    f"more: is the result of another run ({changes}); give the arguments of that run, or start a new "
                    "one"
                )
            self.run = finished.run
            self._add(finished.groups(empty), finished.run.done)
            attributes = finished.result["posterior"].attrs
            self._times = {name: float(attributes.get(name, 0.0)) for name in _TIMES}

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Record a chunk."""
        self._add(groups, run.done)

    def _add(self, groups: Groups, done: int) -> None:
        for group, arrays in groups.items():
            if self._arrays is not None and not group.startswith("warmup_"):
                drawn = next(iter(arrays.values())).shape[1]
                self._arrays.put(slice(None), done - drawn, {group: arrays})
                continue
            chunks = self._chunks.setdefault(group, {})
            for name, values in arrays.items():
                chunks.setdefault(name, []).append(values)

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes that differ between equal runs; times add up."""
        super().note(attrs | {name: attrs[name] + seconds for name, seconds in self._times.items()})

    def so_far(self) -> xr.DataTree:
        """Return the result of all chunks so far, to be judged."""
        groups = dict(self._empty)
        for group, variables in self._chunks.items():
            for name, chunks in variables.items():  # one variable at a time, so that only one is in memory twice
                if len(chunks) > 1:
                    variables[name] = [np.concatenate(chunks, axis=1)]
            groups[group] = {name: chunks[0] for name, chunks in variables.items()}
        if self._arrays is not None and self.run is not None:
            groups |= self._arrays.upto(self.run.done)
        return self._layout.tree(groups, self._attrs)

    def result(self) -> xr.DataTree:
        """Return the result of all chunks, with how to go on from there."""
        tree = self._with_equilibration(self.so_far())
        state = np.frombuffer(encode((self._identity, self._arguments, self.run)), np.uint8)
        tree[CHECKPOINT] = xr.DataTree(xr.Dataset({"state": ("byte", state)}))
        return tree


class MomentsRecorder(_Recorder):
    """Recorder that keeps no draws, only the moments of :class:`pmm_mcmc.run.moments.Moments`."""

    def __init__(self, layout: ResultTree, attrs: dict[str, Any], empty: Groups):
        super().__init__(layout, attrs)
        self._moments = Moments(empty["posterior"])

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Add a chunk."""
        if "posterior" in groups:
            self._moments.add(groups)

    def so_far(self) -> xr.DataTree:
        """Return the moments of all chunks so far."""
        return self._with_equilibration(self._moments.tree(self._layout, self._attrs))

    result = so_far


class StoreRecorder:
    """Recorder that writes whole chunks of equal length to a store, each with a checkpoint.

    Attributes
    ----------
    run
        The stored run to continue, if there is one.
    rows
        Number of draws of a chunk.
    seed
        Seed of the stored run.
    """

    def __init__(self, path: str | os.PathLike[str], store: Store, rows: int, seed: int, processes: Processes):
        self._path, self._store, self._processes = path, store, processes
        self.rows = rows
        self.seed = seed
        self.run: Run | None = None
        # Draws of warm-up, whose blocks have any length, that do not fill a chunk yet, for the chains of this process.
        self._waiting: Groups = {}
        if store.checkpoint is not None:
            self.run, waiting = store.checkpoint
            for group, arrays in waiting.items():
                self._waiting[group] = {name: values[processes.own] for name, values in arrays.items()}

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        template: xr.DataTree,
        identity: dict[str, Any],
        rows: int,
        chains_per_chunk: int,
        resume: bool,
        free: tuple[str, ...],
        processes: Processes,
    ) -> StoreRecorder:
        """Create a store, or resume the existing one.

        Parameters
        ----------
        path, template, identity, rows, chains_per_chunk
            As for :meth:`pmm_mcmc.run.storage.Store.create`.
        resume
            Whether to continue an existing store; without one, the run starts.
        free
            Entries of the identity that were not given, for which those of the stored run are used.
        processes
            The processes that write it.
        """
        if not processes.primary:
            processes.wait()  # until the first process has opened it
        stored = _stored(path) if resume else None
        if stored is not None:
            identity = identity | {name: stored[name] for name in (*free, "rows") if name in stored}
            store = Store.resume(path, identity, types=TYPES, primary=processes.primary)
        else:
            identity = identity | {"rows": rows}
            store = Store.create(path, template, identity, rows, chains_per_chunk, primary=processes.primary)
        if processes.primary:
            processes.wait()
        return cls(path, store, identity["rows"], identity["seed"], processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    def begin(self, run: Run) -> None:
        """Store the start of the chains."""
        self._commit(run)

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Record a chunk; an interrupted one is not stored, and is drawn again when the run resumes."""
        if not whole:
            return
        for group, arrays in groups.items():
            if group.startswith("warmup_"):
                arrays = self._aligned(group, arrays, run.tuning)
            if next(iter(arrays.values())).shape[1]:
                self._store.append(group, arrays, self._processes.own)
        if run.equilibration is not None and not run.tuning and run.done == 0:
            self._store.append(EQUILIBRATION, report_of(run.equilibration, len(run.n_grad)))
        self._commit(run)

    def _commit(self, run: Run) -> None:
        joined = {
            group: dict(zip(arrays, self._processes.join(*arrays.values()), strict=True))
            for group, arrays in self._waiting.items()
        }
        # A collective call: all processes have appended their chains before the commit makes them visible, and
        # processes that round differently must stop.
        self._processes.agree("the setting that they have found", encode(run.tuned, "setting"))
        self._store.commit((run, joined))

    def _aligned(self, group: str, arrays: dict[str, np.ndarray], more: bool) -> dict[str, np.ndarray]:
        """Return the draws of warm-up that fill whole chunks, all of them at the end, and keep the others."""
        waiting = self._waiting.pop(group, {})
        joined = {name: np.concatenate([waiting[name], a], axis=1) if waiting else a for name, a in arrays.items()}
        length = next(iter(joined.values())).shape[1]
        cut = length - length % self.rows if more else length
        if cut < length:
            self._waiting[group] = {name: values[:, cut:].copy() for name, values in joined.items()}
        return {name: values[:, :cut] for name, values in joined.items()}

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes that differ between equal runs."""
        self._store.note({group: attrs for group in self._store.rows if "log_likelihood" not in group})

    def so_far(self) -> xr.DataTree:
        """Return the stored run as it is now, to be judged."""
        return open_store(self._path)

    def result(self) -> xr.DataTree:
        """Return the stored run, which is read when it is used."""
        self._processes.wait()  # until the first process has closed it
        return open_store(self._path)


def device_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of device on which a stored run started; "auto" if there is no run."""
    return (_stored(path) or {}).get("device", "auto")


def _stored(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    try:
        return stored_identity(path)
    except NothingStored:
        return None
