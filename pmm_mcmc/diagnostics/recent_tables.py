"""The tables of the last results that were looked at, so that a summary does not compute those of a verdict again."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import Any

import numpy as np

__all__ = ["tables_of"]

# Results whose tables are kept in memory.
_KEPT = 4
_GROUPS = ("posterior", "posterior_mean", "sample_stats", "sample_stats_total", "equilibration", "ladder")
# Bytes of draws that a checksum reads at once: a read costs as much as a tenth of a megabyte of checksum.
_READ = 2**24

_TABLES: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()


def tables_of(dt: Any) -> dict[str, Any]:
    """Return the tables of a result by name, in a dictionary that callers add to; results with equal data share one."""
    key = tuple((group, *_digest(dt[group].to_dataset())) for group in _GROUPS if group in dt.children)
    tables = _TABLES.setdefault(key, {})
    _TABLES.move_to_end(key)
    while len(_TABLES) > _KEPT:
        _TABLES.popitem(last=False)
    return tables


def _digest(dataset: Any) -> tuple[Any, ...]:
    """Return a checksum of each variable, with names, coordinates and attributes."""
    coords = tuple((name, tuple(map(str, np.ravel(values)))) for name, values in dataset.coords.items())
    sums = []
    for variable in dataset.data_vars.values():
        checksum = 0
        dim = variable.dims[0] if variable.ndim else None
        rows = max(1, _READ * variable.sizes.get(dim, 1) // max(1, variable.nbytes))
        for start in range(0, variable.sizes.get(dim, 1), rows):  # in parts, since they may be on disk and large
            values = variable.isel({dim: slice(start, start + rows)} if dim else {}).values
            numeric = values.dtype.kind in "biuf"
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8) if numeric else str(values).encode()
            checksum = zlib.crc32(data, checksum)
        sums.append((variable.name, variable.shape, str(variable.dtype), checksum))
    return tuple(sums), coords, tuple((name, str(value)) for name, value in dataset.attrs.items())
