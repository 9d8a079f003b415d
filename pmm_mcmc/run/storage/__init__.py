"""Runs on a disk: appended chunk by chunk, readable while they grow, resumable after any kill.

A store is a zarr hierarchy by the conventions of xarray, and a folder ``.pmm`` beside its groups, which zarr ignores:
identity and layout of the run, two checkpoints, attributes that may differ between equal runs, and the lock.

**Why a kill at any moment loses no committed draws.**  A file exists whole or not at all, and a file with draws is
written once.  A commit has three steps, each flushed before the next: (1) the draws, in new files that no reader opens
yet; (2) the checkpoint with the number of its draws, over the older of two; (3) the root's consolidated metadata, the
only file from which readers take the number of draws.  After a kill before (2) is complete, the run resumes from the
previous checkpoint, whose draws are complete, and files of no commit are removed.  After a kill later, draws and
checkpoint are complete, and resuming publishes them.  Readers see the state before or after (3), and never more draws
than a run can resume from.  If the newer checkpoint or the draws of its commit are damaged, the older checkpoint is
used: the files that it needs have not been changed since.  Reports, arrays without draws that are replaced during a
run, may be one commit ahead of the draws.  Only times depend on when something was written: a resumed run leaves the
same bytes as one that was never interrupted.
"""

from __future__ import annotations

from pmm_mcmc.run.storage.folder import NothingStored, StoreError
from pmm_mcmc.run.storage.store import Store, open_store

__all__ = ["NothingStored", "Store", "StoreError", "open_store"]
