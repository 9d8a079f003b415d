"""References from long runs, stored in ``data/references.json``."""

from __future__ import annotations

import json
from pathlib import Path

from pmm_mcmc.workbench.targets.target import Reference

__all__ = ["DATA", "stored_reference"]

DATA = Path(__file__).parent / "data"


def stored_reference(name: str) -> Reference:
    """Return the moments that ``python -m pmm_mcmc.workbench.targets.make_references`` has written."""
    entry = json.loads((DATA / "references.json").read_text(encoding="utf-8"))[name]
    fields = ("mean", "second_moment", "square_variance", "error", "second_moment_error")
    return Reference(**{field: entry[field] for field in fields}, exact=False, source=entry["source"])
