"""Runs on disk or in object stores: appended chunk by chunk, readable while they grow, resumable after any kill.

A store is a zarr hierarchy by the conventions of xarray, and a folder ``.pmm`` beside its groups with what zarr does
not look at: identity and layout of the run, two checkpoints, attributes that may differ between equal runs, and the
lock.

**Why a kill at any moment loses nothing that was committed.**  A file is there whole or not at all, and a file with
draws is written once.  A commit writes, each step flushed before the next: (1) the draws, in files of their own that
no reader looks for yet; (2) the checkpoint with the number of draws it belongs to, over the older of two; (3) the
root's consolidated metadata, the one file by which readers know how many draws there are.  Killed before (2) is
complete, the run goes on from the checkpoint before it, whose draws are all there, and what belongs to no commit is
removed.  Killed after (2), draws and checkpoint are there, and resuming publishes them.  Readers see the state before
(3) or after it, and never more than can be resumed from.  If the newer checkpoint, or draws of its own commit, turn
out damaged, the older one still stands, and the files that it needs were not touched since; only results that are
replaced as a whole are those of a later time until they are next replaced.  Nothing but times depends on when
something was written, so that a resumed run leaves the bytes of one that was never interrupted.
"""

from __future__ import annotations

from pmm_mcmc.run.storage.errors import NothingStored, StoreError
from pmm_mcmc.run.storage.notes import add_notes
from pmm_mcmc.run.storage.reading import open_store
from pmm_mcmc.run.storage.store import Store

__all__ = ["NothingStored", "Store", "StoreError", "add_notes", "open_store"]
