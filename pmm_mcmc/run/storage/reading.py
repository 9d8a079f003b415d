"""Reading of stores as results, during a run and afterwards."""

from __future__ import annotations

import json
import os
from typing import Any

import xarray as xr

from pmm_mcmc.run.storage.errors import NothingStored, StoreError
from pmm_mcmc.run.storage.folder import Folder
from pmm_mcmc.run.storage.layout import METADATA, intact, is_chunk
from pmm_mcmc.run.storage.recovery import CREATING, complete, stored_notes

__all__ = ["SOURCE", "open_store"]

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
