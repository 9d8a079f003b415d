"""A store open for writing."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

import numpy as np
import xarray as xr

from pmm_mcmc.run.storage.checkpoint import encode
from pmm_mcmc.run.storage.errors import StoreError
from pmm_mcmc.run.storage.folder import LOCKS, PARTIAL, Folder, folder_at
from pmm_mcmc.run.storage.layout import METADATA, ArrayLayout, Extent, is_ours, packed
from pmm_mcmc.run.storage.notes import NOTES, stored_notes
from pmm_mcmc.run.storage.recovery import (
    CREATING,
    SETTINGS,
    SLOTS,
    Record,
    last_whole,
    refuse_existing,
    refuse_twins,
    stored_layout,
)

__all__ = ["Store"]

_WRITERS = 8  # flushing several files at once takes little longer than flushing one


class Store:
    """A store open for writing, from :meth:`create` or :meth:`resume`; a context manager.

    Attributes
    ----------
    checkpoint
        The checkpoint of the last commit before the store was opened; ``None`` if there was none.
    """

    def __init__(self, folder: Folder, layout: ArrayLayout, record: Record, primary: bool):
        self.checkpoint = record.state
        self._folder = folder
        self._layout = layout
        self._primary = primary
        self._number = record.number
        self._extent = Extent({group: 0 for group in layout.draws} | record.extent.rows, record.extent.copies)
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(_WRITERS, "pmm-store")
        self._forget()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        template: xr.DataTree,
        identity: Mapping[str, Any],
        rows_per_chunk: int = 64,
        chains_per_chunk: int = 256,
        *,
        primary: bool = True,
    ) -> Self:
        """Create a store at a path that does not exist or is an empty folder.

        Parameters
        ----------
        path
            A path, or a URL that fsspec knows.
        template
            The result with no draws: every variable with a dimension ``draw`` has the dimensions (chain, draw, ...)
            and no rows.  Other variables are stored as they are.
        identity
            Entries that must be equal to resume the run: str, int, float, list or None by name.
        rows_per_chunk, chains_per_chunk
            Draws and chains in one file.
        primary
            Whether this process publishes.  Other processes only write files of their chains, and open the store
            after the primary has created it.

        Returns
        -------
        Store
            A store with no draws.

        Raises
        ------
        StoreError
            If the path exists and is not empty, cannot be written to, or the template cannot be stored.
        """
        folder = folder_at(path)
        if not primary:
            return cls.resume(path, identity, primary=False)
        refuse_existing(folder)
        layout, files = ArrayLayout.plan(template, rows_per_chunk, chains_per_chunk)
        settings = encode({"identity": dict(identity), "nodes": layout.nodes}, "identity")
        with folder.opened_for_writing():
            refuse_existing(folder)
            for key in folder.sizes():
                if key not in LOCKS and key != CREATING and is_ours(key):
                    folder.delete(key)  # from an interrupted creation
            folder.put(CREATING, b"")
            refuse_twins(folder, layout)
            start = Record.first()
            store = cls(folder, layout, start, primary)
            store._put(files | layout.own_metadata(start.extent))
            store._put({SETTINGS: settings})
            store._publish(start.extent)
            folder.delete(CREATING)
        return store

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any],
        *,
        types: Iterable[type] = (),
        primary: bool = True,
    ) -> Self:
        """Open a store at its last commit; later files are removed.

        Parameters
        ----------
        path
            Path or URL of the store.
        identity
            The same as when it was created.
        types
            The dataclasses and named tuples that its checkpoint may contain.
        primary
            As in :meth:`create`; the other processes resume after the primary has.

        Returns
        -------
        Store
            The store with the draws and the checkpoint of the last whole commit.

        Raises
        ------
        NothingStored
            If there is no store, or its creation was interrupted.
        StoreError
            If the store belongs to another run, another process writes to it, or no commit is whole.
        """
        folder = folder_at(path)
        layout = stored_layout(folder, identity)
        if not primary:
            return cls(folder, layout, last_whole(folder, layout, types, folder.sizes())[0], primary)
        with folder.opened_for_writing():
            sizes = folder.sizes()
            record, faults = last_whole(folder, layout, types, sizes)
            if faults:
                warnings.warn(
                    f"{'; '.join(faults.values())}; going on from commit {record.number}, which is whole",
                    stacklevel=2,
                )
            store = cls(folder, layout, record, primary)
            store._publish(store._extent)
            committed = layout.keys(store._extent)
            for key in sizes:
                if key.endswith(PARTIAL) or key in faults or layout.excess(key, committed):
                    folder.delete(key)
        return store

    @property
    def rows(self) -> dict[str, int]:
        """Number of committed draws of each group that has any."""
        return dict(self._extent.rows)

    def append(self, group: str, arrays: Mapping[Any, Any], chains: slice = slice(None)) -> None:
        """Write values, which become visible with the next commit.

        Parameters
        ----------
        group
            Path of the group.
        arrays
            Values by variable: draws (chain, n, ...) that follow the committed ones.  Values of a variable without
            draws replace the previous ones, for results that are updated during a run; a reader that takes longer than
            the time between two commits may see some of them replaced already.
        chains
            Their chains: all, or from one multiple of ``chains_per_chunk`` to another.

        Raises
        ------
        StoreError
            If values do not fit the template, or cannot be written.
        """
        self._require_open()
        row = self._extent.rows.get(group, 0)
        rows = {self._rows[group]} if group in self._rows else set()
        spans: dict[str, tuple[int, int]] = {}
        tasks: list[tuple[str, np.ndarray, list[int]]] = []
        for name, array in arrays.items():
            path = f"{group}/{name}"
            values = np.asarray(array)
            if path not in self._layout.arrays():
                raise StoreError(f"{path}: is not in the template of {self._folder.root}")
            grows = name in self._layout.draws.get(group, ())
            start, stop, _ = chains.indices(self._layout.chains(path))
            self._layout.check(path, values, slice(start, stop), row if grows else 0)
            if any(start < b and a < stop for a, b in self._spans.get(path, ())):
                raise StoreError(f"{path}: chains {start} to {stop} were appended already; commit first")
            spans[path] = (start, stop)
            if grows:
                rows.add(values.shape[1])
            if not self._primary and not self._layout.chains(path):
                continue  # all processes give the same values
            tasks += self._layout.chunks(path, 1 - self._extent.copies.get(path, 0), values, start, row)
        if len(rows) > 1:
            counts = " and ".join(map(str, sorted(rows)))
            raise StoreError(f"{group}: {counts} rows in one commit; append as many of each variable")
        self._run(self._put_packed, tasks)
        self._keys.update(key for key, _, _ in tasks)
        for path, span in spans.items():
            self._spans.setdefault(path, []).append(span)
        if rows:
            self._rows[group] = rows.pop()

    def commit(self, checkpoint: Any) -> None:
        """Make all appended values visible, together with a checkpoint; either everything or nothing is committed.

        Parameters
        ----------
        checkpoint
            Any object that :func:`~pmm_mcmc.run.storage.checkpoint.encode` accepts.

        Raises
        ------
        StoreError
            If something is missing or cannot be written.  The commit can be tried again.
        """
        self._require_open()
        extent = self._extent_with_appended()
        if self._primary:
            self._folder.check()
            for group, rows in extent.rows.items():
                self._run(self._put_packed, self._layout.coordinate(group, self._extent.rows.get(group, 0), rows))
            absent = [
                key
                for key in sorted(self._layout.keys(extent, since=self._extent) - self._keys)
                if not self._folder.exists(key)
            ]
            if absent:
                raise StoreError(
                    f"{self._folder.root}: commit: {absent[0]} and {len(absent) - 1} other files are missing; "
                    "append the values of all chains first"
                )
            record = Record(self._number + 1, extent, self._extent, checkpoint)
            self._folder.put(SLOTS[record.number % 2], encode(record))
            self._publish(extent)
        self._number += 1
        self._extent = extent
        self._forget()

    def note(self, attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Store attributes that may differ between two equal runs, such as times.

        Parameters
        ----------
        attributes
            Attributes by group (``"/"`` for the root) and name, added to earlier ones.  The tree that
            :func:`open_store` returns has them.
        """
        self._require_open()
        if self._primary:
            notes = stored_notes(self._folder)
            for group, values in attributes.items():
                if not isinstance(values, Mapping):
                    raise StoreError(f"note: {group}={values!r}: give attributes by group, '/' for the root")
                notes.setdefault(group, {}).update(values)
            self._folder.put(NOTES, json.dumps(notes, default=lambda value: value.tolist()).encode())

    def close(self) -> None:
        """Stop writing.  Values that are not committed are removed when the run is resumed."""
        if self._pool is None:
            return
        try:
            if self._primary:
                self._folder.check()
                self._put(self._layout.own_metadata(self._extent, changed=True))
        finally:
            self._pool.shutdown()
            self._pool = None
            self._folder.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        with contextlib.suppress(StoreError) if kind else contextlib.nullcontext():
            self.close()

    def _require_open(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise StoreError(f"{self._folder.root}: this store was closed; resume it to write more")
        return self._pool

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._keys: set[str] = set()

    def _extent_with_appended(self) -> Extent:
        """Return the extent of the store with the appended values; all variables of a group must have the same."""
        for group in self._rows:
            spans = {name: sorted(self._spans.get(f"{group}/{name}", [])) for name in self._layout.draws[group]}
            reference, *others = spans
            for name in others:
                if spans[name] != spans[reference]:
                    raise StoreError(
                        f"{group}: chains {spans[reference]} of {reference} were appended, but {spans[name]} of "
                        f"{name}; append the same of all variables before a commit"
                    )
        rows = {group: n + self._rows.get(group, 0) for group, n in self._extent.rows.items()}
        replaced = [path for path in self._spans if not self._layout.grows(path)]
        copies = self._extent.copies | {path: 1 - self._extent.copies.get(path, 0) for path in replaced}
        return Extent(rows, copies)

    def _run(self, function: Callable[..., None], tasks: Iterable[tuple[Any, ...]]) -> None:
        pending = [self._require_open().submit(function, *task) for task in tasks]
        try:
            for future in pending:
                future.result()
        finally:
            for future in pending:
                future.cancel()
            wait(pending)

    def _put_packed(self, key: str, values: np.ndarray, shape: list[int]) -> None:
        self._folder.put(key, packed(values, shape))

    def _put(self, files: Mapping[str, bytes]) -> None:
        self._run(self._folder.put, files.items())

    def _publish(self, extent: Extent) -> None:
        """Publish this extent to readers."""
        for key, data in self._layout.published(extent).items():
            self._folder.put(key, data, durable=key == METADATA)
