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
from pmm_mcmc.run.storage.folder import LOCK, PARTIAL, Folder, StoreError
from pmm_mcmc.run.storage.layout import METADATA, ArrayLayout, is_ours, packed
from pmm_mcmc.run.storage.recovery import (
    CREATING,
    NOTES,
    SETTINGS,
    SLOTS,
    Record,
    last_whole,
    refuse_existing,
    refuse_twins,
    stored_layout,
    stored_notes,
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
        self._rows = dict.fromkeys(layout.groups_with_draws, 0) | record.rows
        self._pool = ThreadPoolExecutor(_WRITERS, "pmm-store")
        self._open = True
        self._forget()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        template: xr.DataTree,
        identity: Mapping[str, Any],
        rows_per_chunk: int = 64,
        chains_per_chunk: int = 256,
    ) -> Self:
        """Create a store at a path that does not exist or is an empty folder.

        ``template`` is the result with no draws: every variable with a dimension ``draw`` has the dimensions (chain,
        draw, ...) and no rows; others are stored as they are.  Entries of ``identity`` (str, int, float, list, array or
        None) must be equal to resume the run.  One file has at most ``rows_per_chunk`` draws of ``chains_per_chunk``
        chains.  A path that is in use or cannot be written to, and a template that cannot be stored, raise
        :class:`StoreError`.
        """
        folder = Folder(path)
        refuse_existing(folder)
        layout, files = ArrayLayout.plan(template, rows_per_chunk, chains_per_chunk)
        settings = encode({"identity": dict(identity), "nodes": layout.nodes})
        with folder.opened_for_writing():
            refuse_existing(folder)
            for key in folder.sizes():
                if key not in (LOCK, CREATING) and is_ours(key):
                    folder.delete(key)  # from an interrupted creation
            folder.put(CREATING, b"")
            refuse_twins(folder, layout)
            beginning = Record(-1, {}, {})
            store = cls(folder, layout, beginning, primary=True)
            store._run(folder.put, (files | layout.array_files(store._rows)).items())
            folder.put(SLOTS[1], encode(beginning))
            folder.put(SETTINGS, settings)
            store._publish(store._rows)
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
        """Open a store at its last whole commit; later files are removed.

        ``types`` are the dataclasses and named tuples that its checkpoint may contain.  The ``primary`` process
        publishes; others only write files of their chains, in a store that it has created or opened.  Raises
        :class:`NothingStored` if there is no store or its creation was interrupted, :class:`StoreError` if it belongs
        to another run, another process writes to it, or no commit is whole.
        """
        folder = Folder(path)
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
            store._publish(store._rows)
            committed = layout.keys(store._rows)
            for key in sizes:
                if key.endswith(PARTIAL) or key in faults or (layout.has_draws(key) and key not in committed):
                    folder.delete(key)
        return store

    @property
    def rows(self) -> dict[str, int]:
        """Number of committed draws of each group that has any."""
        return dict(self._rows)

    def append(self, group: str, arrays: Mapping[Any, Any], chains: slice = slice(None)) -> None:
        """Write values of a group by variable.

        Draws (chain, n, ...) follow the committed ones, and become visible with the next commit.  Values of a variable
        without draws replace the previous ones at once, for reports that are updated during a run.  ``chains`` are from
        one multiple of ``chains_per_chunk`` to another.
        """
        row = self._rows.get(group, 0)
        tasks: list[tuple[str, np.ndarray, list[int]]] = []
        for name, array in arrays.items():
            path = f"{group}/{name}"
            values = np.asarray(array)
            number = self._layout.chains(path)
            if self._layout.grows(path):
                self._new_rows[group] = values.shape[1]
            if self._primary or number:  # of others all processes have the same values
                tasks += self._layout.chunks(path, values, chains.indices(number)[0], row)
        self._run(self._put_packed, tasks)
        self._new_keys.update(key for key, _, _ in tasks)

    def commit(self, checkpoint: Any) -> None:
        """Make all appended draws visible, together with a checkpoint; either everything or nothing is committed.

        The checkpoint is any object that :func:`~pmm_mcmc.run.storage.checkpoint.encode` accepts.
        """
        rows = {group: n + self._new_rows.get(group, 0) for group, n in self._rows.items()}
        if self._primary:
            self._folder.check()
            for group, n in rows.items():
                self._run(self._put_packed, self._layout.coordinate(group, self._rows.get(group, 0), n))
            keys = self._layout.keys(rows, since=self._rows) - self._new_keys
            absent = [key for key in sorted(keys) if not self._folder.exists(key)]
            if absent:
                raise StoreError(
                    f"{self._folder.root}: commit: {absent[0]} and {len(absent) - 1} other files are missing; "
                    "append the values of all chains first"
                )
            record = Record(self._number + 1, rows, self._rows, checkpoint)
            self._folder.put(SLOTS[record.number % 2], encode(record))
            self._publish(rows)
        self._number += 1
        self._rows = rows
        self._forget()

    def note(self, attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Store attributes by group that are known at the end of a run, or may differ between two equal ones.

        They are added to earlier ones; the tree that :func:`open_store` returns has them.
        """
        if self._primary:
            notes = stored_notes(self._folder)
            for group, values in attributes.items():
                notes.setdefault(group, {}).update(values)
            self._folder.put(NOTES, json.dumps(notes, default=lambda value: value.tolist()).encode())

    def close(self) -> None:
        """Stop writing.  Values that are not committed are removed when the run is resumed."""
        if not self._open:
            return
        self._open = False
        try:
            if self._primary:
                self._folder.check()
                self._run(self._folder.put, self._layout.array_files(self._rows).items())
        finally:
            self._pool.shutdown()
            self._folder.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        with contextlib.suppress(StoreError) if kind else contextlib.nullcontext():
            self.close()

    def _forget(self) -> None:
        """Begin the next commit."""
        self._new_rows: dict[str, int] = {}
        self._new_keys: set[str] = set()

    def _run(self, function: Callable[..., None], tasks: Iterable[tuple[Any, ...]]) -> None:
        """Call a function with each of some arguments, on threads; raise the first error."""
        pending = [self._pool.submit(function, *task) for task in tasks]
        try:
            for future in pending:
                future.result()
        finally:
            for future in pending:
                future.cancel()
            wait(pending)

    def _put_packed(self, key: str, values: np.ndarray, shape: list[int]) -> None:
        self._folder.put(key, packed(values, shape))

    def _publish(self, rows: Mapping[str, int]) -> None:
        """Let readers see so many draws."""
        for key, data in self._layout.published(rows).items():
            self._folder.put(key, data, durable=key == METADATA)
