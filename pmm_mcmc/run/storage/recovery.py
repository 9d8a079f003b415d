"""Reading of stores: as results, during a run and afterwards, and as the state of a run that goes on.

A folder is empty, an unfinished creation, another run's store, or a store with a commit to resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.storage.folder import LOCK, PARTIAL, PRIVATE, Damaged, Folder, NothingStored, StoreError
from pmm_mcmc.run.storage.layout import METADATA, ArrayLayout, intact, is_chunk

__all__ = [
    "CREATING", "NOTES", "SETTINGS", "SLOTS", "SOURCE", "Record", "complete", "differences", "last_whole",
    "open_store", "refuse_existing", "refuse_twins", "stored_identity", "stored_layout", "stored_notes",
    "stored_run_state",
]  # fmt: skip

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


def refuse_twins(folder: Folder, layout: ArrayLayout) -> None:
    """Raise :class:`StoreError` if two names differ only in case, in a folder that ignores case."""
    names: dict[str, str] = {}
    for path in layout.nodes:
        twin = names.setdefault(path.casefold(), path)
        if twin != path and folder.exists(CREATING.upper()):
            raise StoreError(f"{folder.root}: {twin} and {path} would be the same file there; rename one")


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


def _close(a: Any, b: Any, tolerance: float) -> bool:
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


def stored_layout(folder: Folder, identity: Mapping[str, Any]) -> ArrayLayout:
    """Return the layout of the store in a folder; raise :class:`StoreError` if its run has another identity."""
    settings = _settings(folder)
    changes = differences(settings["identity"], identity)
    if changes:
        raise StoreError(
            f"{folder.root}: is the store of another run ({changes}); resume with what is stored, or use another path"
        )
    return ArrayLayout(settings["nodes"])


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
