"""Stores: written during a run, and read as results or as the state of a run that goes on.

A folder is empty, an unfinished creation, another run's store, or a store with a commit to resume.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self

import numpy as np
import xarray as xr

from pmm_mcmc.run.storage.checkpoint import decode, encode
from pmm_mcmc.run.storage.folder import LOCK, PARTIAL, PRIVATE, Damaged, Folder, NothingStored, StoreError
from pmm_mcmc.run.storage.layout import METADATA, ArrayLayout, intact, is_chunk, is_ours, packed

# The entry of a result's encoding with the path of its store.
SOURCE = "source"


def open_store(path: str | os.PathLike[str]) -> xr.DataTree:
    """Open the result of a stored run: finished, interrupted or in progress.

    Values are read when they are used.  ``xarray.open_datatree(path, engine="zarr")`` returns the same without the
    attributes that may differ between two equal runs, and with less helpful errors for damaged files.

    Parameters
    ----------
    path
        The path of the store.

    Returns
    -------
    xarray.DataTree
        All draws that were committed when it was opened.

    Raises
    ------
    NothingStored
        If there is no store, or it is still being created.
    StoreError
        If its metadata are damaged.  Damaged values raise it when they are used.
    """
    folder = Folder(path)
    if not complete(folder):
        if folder.exists(METADATA) and not folder.exists(CREATING):
            raise StoreError(
                f"{folder.root}: was not written by pmm.sample(store=...); what dt.to_zarr saved is read by "
                "xarray.open_datatree"
            )
        raise NothingStored(f"{folder.root}: nothing is stored there yet; see that the path is right, or wait")
    try:
        json.loads(folder.get(METADATA) or b"")
        tree = xr.open_datatree(_checked(folder), engine="zarr", zarr_format=3)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(
            f"{folder.at(METADATA)}: the metadata are damaged ({error}); resuming the run writes them again"
        ) from error
    tree.encoding[SOURCE] = str(path)
    for group, attributes in stored_notes(folder).items():
        if group in tree.groups or f"/{group}" in tree.groups:
            tree[group].attrs.update(attributes)
    return tree


def _checked(folder: Folder) -> Any:
    """Return a zarr store that raises :class:`StoreError` if the file of a chunk is missing or damaged."""
    from zarr.storage import LocalStore, WrapperStore  # slow, and of no use to a run without a store

    class Checked(WrapperStore[Any]):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            return self._checked(key, await self._store.get(key, prototype, byte_range))

        def get_sync(self, key: str, **options: Any) -> Any:
            return self._checked(key, self._store.get_sync(key, **options))

        def _checked(self, key: str, data: Any) -> Any:
            if not is_chunk(key) or (data is not None and intact(data.to_bytes())):
                return data
            what = "missing" if data is None else "damaged"
            raise StoreError(
                f"{self._store}/{key}: {what}; the rest can be read; put the file back from a copy, or run again"
            )

    return Checked(LocalStore(folder.root, read_only=True))


SETTINGS = f"{PRIVATE}/settings"  # layout and identity, written once
CREATING = f"{PRIVATE}/creating"  # exists while a store is being created
NOTES = f"{PRIVATE}/notes.json"  # attributes that may differ between two equal runs, such as times
SLOTS = (f"{PRIVATE}/checkpoint.0", f"{PRIVATE}/checkpoint.1")  # used in turn
# Numbers of two identities are equal up to this, relative to themselves, and to a thousandth of it relative to the
# largest: machines round differently.
_TOLERANCE = 1e-9
_SINGLE_TOLERANCE = 1e-4
_ABSENT = object()


class Record(NamedTuple):
    """A commit: its number, the draws of each group with it and before it, and the checkpoint."""

    number: int
    rows: dict[str, int]
    previous: dict[str, int]
    state: Any = None


def _present(folder: Folder) -> set[str]:
    """Return the keys of the files in a folder, without those that are written before ``CREATING``."""
    names = (LOCK, CREATING)
    return {key for key in folder.sizes() if key == CREATING or key.removesuffix(PARTIAL) not in names}


def refuse_existing(folder: Folder) -> None:
    """Raise :class:`StoreError` unless a folder is missing, empty, or has an interrupted creation."""
    present = _present(folder)
    if present and CREATING not in present:
        what = "there is a store already; go on with it (resume=True)" if SETTINGS in present else "is not empty"
        raise StoreError(f"{folder.root}: {what}, or use another path; nothing is overwritten")


def complete(folder: Folder) -> bool:
    """Return whether there is a completely created store; another process may be creating it."""
    return folder.exists(SETTINGS) and not folder.exists(CREATING)  # in this order, since CREATING is written first


def differences(stored: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """Return the differences between the identities of two runs as text, empty if there are none."""
    tolerance = _TOLERANCE if stored.get("precision", "float64") == "float64" else _SINGLE_TOLERANCE
    texts = []
    for name in sorted(stored.keys() | identity.keys()):
        a = stored.get(name, _ABSENT)
        b = identity.get(name, _ABSENT)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            if not _close(a, b, tolerance):
                other = "other values at two fixed points, as of another model, other data or another format"
                texts.append(f"{name}: {other}")
        elif a != b and repr(a) != repr(b):  # NaN is not equal to itself
            old = "not stored" if a is _ABSENT else f"stored {a!r}"
            new = "not given" if b is _ABSENT else f"given {b!r}"
            texts.append(f"{name}: {old}, {new}")
    return "; ".join(texts)


def _close(a: object, b: object, tolerance: float) -> bool:
    """Return whether two entries are arrays that are equal up to rounding."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return False
    absolute = 1e-3 * tolerance * np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return np.allclose(b, a, tolerance, absolute, equal_nan=True)


def stored_notes(folder: Folder) -> dict[str, dict[str, Any]]:
    """Return the notes of a store, by group and name; an empty dict if they cannot be read."""
    try:
        return json.loads(folder.get(NOTES) or b"{}")
    except ValueError:
        return {}


def stored_identity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the identity of the run in a store; :class:`NothingStored` or :class:`StoreError` if there is none."""
    return _settings(Folder(path))["identity"]


def stored_run_state(path: str | os.PathLike[str], types: Iterable[type]) -> Any:
    """Return the newest whole checkpoint of a store without opening it to write; errors as of :func:`last_whole`."""
    folder = Folder(path)
    layout = ArrayLayout(_settings(folder)["nodes"])
    return last_whole(folder, layout, types, folder.sizes())[0].state


def _settings(folder: Folder) -> dict[str, Any]:
    if not complete(folder):
        present = _present(folder)
        if present and not present & {CREATING, SETTINGS}:
            raise StoreError(f"{folder.root}: is not a store of pmm_mcmc; use another path")
        raise NothingStored(f"{folder.root}: nothing is stored there yet; see that the path is right, or begin a run")
    try:
        return decode(folder.get(SETTINGS) or b"", (), folder.at(SETTINGS))
    except Damaged as error:
        raise StoreError(f"{error}; the draws can be read, but the run must be begun again at another path") from error


def last_whole(
    folder: Folder, layout: ArrayLayout, types: Iterable[type], sizes: Mapping[str, int]
) -> tuple[Record, dict[str, str]]:
    """Return the last whole commit, and the faults of later ones by the key of their file.

    ``types`` are those that checkpoints may contain; ``sizes`` are those of all files.  Raises :class:`StoreError` if
    no commit is whole.
    """
    types = (*types, Record)
    records = {}
    faults = {}
    for key in SLOTS:
        data = folder.get(key)
        try:
            if data is not None:
                records[key] = decode(data, types, folder.at(key))
        except Damaged as error:
            faults[key] = str(error)
    if not records and not faults:
        faults[""] = "its checkpoints are missing"
    for key, record in sorted(records.items(), key=lambda item: -item[1].number):
        fault = _fault(folder, layout, record, sizes)
        if not fault:
            return record, faults
        faults[key] = fault
    raise StoreError(
        f"{folder.root}: no commit is whole ({'; '.join(faults.values())}), so the run cannot be resumed; "
        "what is whole can be read; put the files back from a copy, or begin again at another path"
    )


def _fault(folder: Folder, layout: ArrayLayout, record: Record, sizes: Mapping[str, int]) -> str:
    """Return the fault of a commit's files, empty if none: all must exist, and its own must be intact."""
    absent = sorted(key for key in layout.keys(record.rows) if not sizes.get(key))
    damaged = sorted(
        key for key in layout.keys(record.rows, since=record.previous) if not intact(folder.get(key) or b"")
    )
    for what, keys in (("missing or empty", absent), ("damaged", damaged)):
        if keys:
            more = f" and {len(keys) - 1} more files" if len(keys) > 1 else ""
            return f"{folder.at(keys[0])}{more}: {what}"
    return ""


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
            names: dict[str, str] = {}
            for path in layout.nodes:
                twin = names.setdefault(path.casefold(), path)
                if twin != path and folder.exists(CREATING.upper()):
                    raise StoreError(f"{folder.root}: {twin} and {path} would be the same file there; rename one")
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
        settings = _settings(folder)
        changes = differences(settings["identity"], identity)
        if changes:
            raise StoreError(
                f"{folder.root}: is the store of another run ({changes}); resume with what is stored, or use another "
                "path"
            )
        layout = ArrayLayout(settings["nodes"])
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

    def commit(self, checkpoint: object) -> None:
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
