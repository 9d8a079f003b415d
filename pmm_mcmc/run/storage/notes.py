"""Attributes that may differ between two equal runs, such as times, in a file of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xarray as xr

from pmm_mcmc.run.storage.folder import PRIVATE, Folder

__all__ = ["NOTES", "add_notes", "stored_notes"]

NOTES = f"{PRIVATE}/notes.json"


def stored_notes(folder: Folder) -> dict[str, dict[str, Any]]:
    """Return the notes of a store, by group and name; an empty dict if they cannot be read."""
    try:
        return json.loads(folder.get(NOTES) or b"{}")
    except ValueError:
        return {}


def add_notes(tree: xr.DataTree, notes: Mapping[str, Mapping[str, Any]]) -> xr.DataTree:
    """Return the tree with notes added to its attributes, by group (``"/"`` for the root) and name."""
    for group, values in notes.items():
        if group in tree.groups or f"/{group}" in tree.groups:
            tree[group].attrs.update(values)
    return tree
