"""Where the draws of a run go: to memory, or to a store."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import xarray as xr

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.host import Groups, Run
from pmm_mcmc.methods import Settings
from pmm_mcmc.moments import Moments
from pmm_mcmc.results import Layout
from pmm_mcmc.steps.report import UnstableReport
from pmm_mcmc.storage import NothingStored, Store, open_store
from pmm_mcmc.storage.recovery import stored_identity
from pmm_mcmc.tuning.curvature import LocalCurvature
from pmm_mcmc.tuning.friction import FrictionTrial
from pmm_mcmc.tuning.schedule import Warmup
from pmm_mcmc.tuning.setting import Block, Tuned
from pmm_mcmc.warming import Warming

__all__ = ["MemorySink", "MomentsSink", "StoreSink"]

# What a checkpoint is made of.
_TYPES = (
    Block, Coordinates, Ensemble, FrictionTrial, LocalCurvature, Run, Settings, Tuned, UnstableReport, Warming, Warmup,
)  # fmt: skip


class MemorySink:
    """Keeps the chunks, and puts them together at the end."""

    run: Run | None = None
    seed: int | None = None

    def __init__(self, layout: Layout, attrs: dict[str, Any], empty: Groups):
        self._layout, self._attrs, self._empty = layout, dict(attrs), empty
        self._parts: dict[str, dict[str, list[np.ndarray]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def begin(self, run: Run) -> None:
        """Nothing to do before the first chunk."""

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Take a chunk."""
        for group, arrays in groups.items():
            parts = self._parts.setdefault(group, {})
            for name, values in arrays.items():
                parts.setdefault(name, []).append(values)

    def note(self, attrs: dict[str, Any]) -> None:
        """Take attributes that differ between equal runs."""
        self._attrs |= attrs

    def result(self) -> xr.DataTree:
        """Return the tree of all that was put; it can be had once."""
        groups = dict(self._empty)
        for group, parts in self._parts.items():
            # One variable at a time, so that only one is there twice.
            groups[group] = {name: np.concatenate(parts.pop(name), axis=1) for name in list(parts)}
        return self._layout.tree(groups, self._attrs)


class MomentsSink:
    """Keeps no draws: their means and variances, and what corrected estimates need."""

    run: Run | None = None
    seed: int | None = None

    def __init__(self, layout: Layout, attrs: dict[str, Any], empty: Groups):
        self._layout, self._attrs, self._empty = layout, dict(attrs), empty
        self._moments: Moments | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def begin(self, run: Run) -> None:
        """Nothing to do before the first chunk."""

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Add a chunk."""
        if "posterior" not in groups:
            return
        if self._moments is None:
            self._moments = self._start(run.tuned.coordinates)
        self._moments.add(groups)

    def note(self, attrs: dict[str, Any]) -> None:
        """Take attributes that differ between equal runs."""
        self._attrs |= attrs

    def result(self) -> xr.DataTree:
        """Return the tree of the moments."""
        moments = self._start(None) if self._moments is None else self._moments
        return moments.tree(self._layout, self._attrs)

    def _start(self, coordinates: Coordinates | None) -> Moments:
        stats = self._empty["sample_stats"]
        chains = len(stats["lp"])
        d = len(self._layout.names)
        known = coordinates if "gradient" in stats else None
        return Moments.start(self._empty["posterior"], d, chains, known)


class StoreSink:
    """Writes whole chunks of equal length to a store, each with the state to go on from.

    Attributes
    ----------
    run
        The run to go on with, if there is one.
    rows
        Draws of a chunk.
    seed
        Of the run that is stored.
    """

    def __init__(self, path: str | os.PathLike[str], store: Store, rows: int, seed: int):
        self._path, self._store, self.rows, self.seed = path, store, rows, seed
        self.run: Run | None = None
        # Draws of the warm-up, whose blocks are of any length, that do not fill a chunk yet.
        self._waiting: Groups = {}
        if store.checkpoint is not None:
            self.run, self._waiting = store.checkpoint

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
    ) -> StoreSink:
        """Create a store, or resume the one that is there.

        Parameters
        ----------
        path, template, identity, rows, chains_per_chunk
            As for :meth:`pmm_mcmc.storage.Store.create`.
        resume
            Whether to go on with what is there; where there is nothing, it begins.
        free
            Entries of the identity that were not asked for: those of the stored run are taken.
        """
        if resume:
            try:
                stored = stored_identity(path)
            except NothingStored:
                pass
            else:
                identity = identity | {name: stored[name] for name in (*free, "rows") if name in stored}
                return cls(path, Store.resume(path, identity, types=_TYPES), identity["rows"], identity["seed"])
        identity = identity | {"rows": rows}
        return cls(path, Store.create(path, template, identity, rows, chains_per_chunk), rows, identity["seed"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    def begin(self, run: Run) -> None:
        """Store where the chains begin."""
        self._store.commit((run, self._waiting))

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Take a chunk; one that was cut short by an interruption is left to be drawn again."""
        if not whole:
            return
        for group, arrays in groups.items():
            if group.startswith("warmup_"):
                arrays = self._aligned(group, arrays, run.tuning)
            if next(iter(arrays.values())).shape[1]:
                self._store.append(group, arrays)
        self._store.commit((run, self._waiting))

    def _aligned(self, group: str, arrays: dict[str, np.ndarray], more: bool) -> dict[str, np.ndarray]:
        """Return what fills whole chunks of the warm-up's draws, and keep the rest; all of it at the end."""
        before = self._waiting.pop(group, {})
        joined = {name: np.concatenate([before[name], a], axis=1) if before else a for name, a in arrays.items()}
        there = next(iter(joined.values())).shape[1]
        cut = there - there % self.rows if more else there
        if cut < there:
            self._waiting[group] = {name: values[:, cut:].copy() for name, values in joined.items()}
        return {name: values[:, :cut] for name, values in joined.items()}

    def note(self, attrs: dict[str, Any]) -> None:
        """Take attributes that differ between equal runs."""
        self._store.note({group: attrs for group in self._store.rows})

    def result(self) -> xr.DataTree:
        """Return the stored run, read when used."""
        return open_store(self._path)
