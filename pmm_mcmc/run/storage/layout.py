"""The files of a store as zarr arrays, which grow draw by draw: which there are, what is in them, and their metadata.

The format is zarr 3 by the conventions of xarray.  xarray writes the result without draws, to memory, which gives the
metadata, and the files of all arrays without a dimension ``draw``.  Arrays that have one, which *grow*, are filled
chunk by chunk, each chunk a file that is written once: little-endian values, zstd, CRC-32C, as the metadata specify.
These are encoded here, since zarr takes a millisecond for each array.

Readers depend on the consolidated metadata alone, which contain the number of draws.  In all functions ``rows`` is the
number of committed draws of each group.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.run.storage.folder import PARTIAL, PRIVATE, StoreError

METADATA = "zarr.json"
_CHUNK = re.compile(r"/(c|(c\.)?\d+(\.\d+)*)$")
_LEVEL = 1  # of zstd, the fastest
_DRAWS = 8192  # numbers of draws in one file of the coordinate


def is_chunk(key: str) -> bool:
    """Return whether a key is that of a chunk, such as ``posterior/mu/c.0.3``."""
    return _CHUNK.search(key) is not None


def is_ours(key: str) -> bool:
    """Return whether a key is one that this package or zarr writes."""
    return key.startswith(f"{PRIVATE}/") or key.endswith(PARTIAL) or _name(key) == METADATA or is_chunk(key)


def intact(data: bytes) -> bool:
    """Return whether the file of a chunk ends with the checksum of its contents."""
    return len(data) > 4 and struct.unpack("<I", data[-4:])[0] == _checksum(data[:-4])


class ArrayLayout:
    """The groups and arrays of a store.

    Attributes
    ----------
    nodes
        zarr's metadata of each, without draws, by path.
    groups_with_draws
        Paths of the groups that have arrays which grow.
    """

    def __init__(self, nodes: Mapping[str, Any]):
        self.nodes = dict(nodes)
        growing = (path for path, meta in self.nodes.items() if _grows(meta) and not _is_coordinate(path, meta))
        self.groups_with_draws = list(dict.fromkeys(map(_group, growing)))

    @classmethod
    def plan(cls, template: xr.DataTree, rows: int, chains: int) -> tuple[ArrayLayout, dict[str, bytes]]:
        """Return the layout of a result without draws, and the files of all arrays that do not grow.

        A chunk has so many ``rows`` and ``chains`` at most.  What cannot be stored raises :class:`StoreError`.
        """
        groups = {node.path: node.to_dataset(inherit=False).drop_encoding() for node in template.subtree}
        from zarr.storage import MemoryStore

        encoding = {
            path: {name: _encoding(str(name), variable, rows, chains) for name, variable in group.variables.items()}
            for path, group in groups.items()
        }
        memory: dict[str, Any] = {}
        try:
            xr.DataTree.from_dict(groups).to_zarr(
                MemoryStore(memory), zarr_format=3, consolidated=False, encoding=encoding
            )
        except Exception as error:
            raise StoreError(f"the result cannot be written as zarr: {error}; rename or convert that part") from error
        files = {key: value.to_bytes() for key, value in sorted(memory.items())}
        paths = [*groups, *(f"{path}/{name}" for path, group in groups.items() for name in group.variables)]
        names = [path.lstrip("/") for path in paths]  # in the order in which readers have them
        nodes = {name: json.loads(files.pop(f"{name}/{METADATA}".lstrip("/"))) for name in names}
        for path, meta in nodes.items():
            meta.pop("consolidated_metadata", None)
            if _is_coordinate(path, meta) and _grows(meta):
                meta["chunk_grid"]["configuration"]["chunk_shape"] = [_DRAWS]
        return cls(nodes), files

    def array(self, path: str, rows: Mapping[str, int]) -> dict[str, Any]:
        """Return the metadata of an array with so many draws."""
        meta = self.nodes[path]
        if not _grows(meta):
            return meta
        shape = list(meta["shape"])
        shape[_dims(meta).index("draw")] = rows.get(_group(path), 0)
        return {**meta, "shape": shape}

    def arrays(self) -> list[str]:
        """Return the paths of all arrays."""
        return [path for path, meta in self.nodes.items() if meta["node_type"] == "array"]

    def grows(self, path: str) -> bool:
        """Return whether an array has a dimension ``draw``."""
        return _grows(self.nodes[path])

    def chains(self, path: str) -> int:
        """Return the number of chains of an array, 0 if it has no dimension ``chain``."""
        meta = self.nodes[path]
        return dict(zip(_dims(meta), meta["shape"], strict=True)).get("chain", 0)

    def published(self, rows: Mapping[str, int]) -> dict[str, bytes]:
        """Return the files that readers open first: of each group, the root last, the metadata of all that is in it."""
        groups = [path for path, meta in self.nodes.items() if meta["node_type"] == "group"]
        metas = {path: self.array(path, rows) for path in self.arrays()}
        metas |= {path: {**self.nodes[path], **_consolidated({})} for path in groups}
        files = {}
        for path in sorted(groups, reverse=True):
            prefix = f"{path}/" if path else ""
            members = {p.removeprefix(prefix): m for p, m in metas.items() if p != path and p.startswith(prefix)}
            files[prefix + METADATA] = _json({**self.nodes[path], **_consolidated(members)})
        return files

    def array_files(self, rows: Mapping[str, int]) -> dict[str, bytes]:
        """Return the metadata file of each array, for readers that open a single array."""
        return {f"{path}/{METADATA}": _json(self.array(path, rows)) for path in self.arrays()}

    def keys(self, rows: Mapping[str, int], since: Mapping[str, int] | None = None) -> set[str]:
        """Return the keys of all files with values, or only of those with draws that a commit of ``since`` has not."""
        keys: set[str] = set()
        for path in self.arrays():
            meta = self.array(path, rows)
            starts = [0] * len(meta["shape"])
            if since is not None:
                if not _grows(meta):
                    continue
                axis = _dims(meta).index("draw")
                starts[axis] = -(-since.get(_group(path), 0) // _chunk_shape(meta)[axis])
            ends = [-(-n // c) for n, c in zip(meta["shape"], _chunk_shape(meta), strict=True)]
            keys.update(_key(path, index) for index in itertools.product(*map(range, starts, ends)))
        return keys

    def has_draws(self, key: str) -> bool:
        """Return whether a file is a chunk of an array that grows."""
        meta = self.nodes.get(_group(key))
        return meta is not None and _grows(meta) and _name(key) != METADATA

    def chunks(
        self, path: str, values: np.ndarray, chain: int, row: int
    ) -> Iterator[tuple[str, np.ndarray, list[int]]]:
        """Yield key, values and shape of each chunk of ``values``, whose first are of a ``chain`` and draw ``row``."""
        meta = self.nodes[path]
        values = values.astype(meta["data_type"], copy=False)
        shape = _chunk_shape(meta)
        origin = [{"chain": chain, "draw": row}.get(name, 0) for name in _dims(meta)]
        counts = [-(-n // c) for n, c in zip(values.shape, shape, strict=True)]
        for index in itertools.product(*map(range, counts)):
            block = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, shape, strict=True))]
            yield _key(path, [o // c + i for o, c, i in zip(origin, shape, index, strict=True)]), block, shape

    def coordinate(self, group: str, start: int, stop: int) -> Iterator[tuple[str, np.ndarray, list[int]]]:
        """Yield key, values and shape of the chunks of a group's coordinate ``draw`` that more draws of it need."""
        path = f"{group}/draw".removeprefix("/")
        meta = self.nodes.get(path)
        if meta is not None and _is_coordinate(path, meta):
            for i in range(-(-start // _DRAWS), -(-stop // _DRAWS)):
                numbers = np.arange(i * _DRAWS, (i + 1) * _DRAWS).astype(meta["data_type"])
                yield _key(path, [i]), numbers, [_DRAWS]


def _encoding(name: str, variable: xr.Variable, rows: int, chains: int) -> dict[str, Any]:
    """Return how a variable is stored: chunks of so many draws and chains, all else of it in one."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    encoding: dict[str, Any] = {
        "compressors": (ZstdCodec(level=_LEVEL, checksum=False), Crc32cCodec()),
        "chunk_key_encoding": {"name": "default", "separator": "."},
        "write_empty_chunks": True,
    }
    sizes = dict(zip(variable.dims, variable.shape, strict=True))
    if "draw" in sizes or (variable.dims[:1] == ("chain",) and name != "chain"):
        encoding["chunks"] = tuple(
            rows if d == "draw" else max(1, min(n, chains if d == "chain" else n)) for d, n in sizes.items()
        )
    return encoding


def packed(block: np.ndarray, shape: list[int]) -> bytes:
    """Return the contents of the file of one chunk, padded where the array ends within it."""
    padded = np.full(shape, np.nan if block.dtype.kind == "f" else 0, block.dtype.newbyteorder("<"))
    padded[tuple(map(slice, block.shape))] = block
    from numcodecs import zstd  # type: ignore[import-untyped]

    data = bytes(zstd.compress(padded, _LEVEL))
    return data + struct.pack("<I", _checksum(data))


def _checksum(data: bytes) -> int:
    from google_crc32c import value

    return int(value(data))


def _dims(meta: Mapping[str, Any]) -> list[str]:
    return meta.get("dimension_names") or []  # None for a scalar


def _grows(meta: Mapping[str, Any]) -> bool:
    return "draw" in _dims(meta)


def _is_coordinate(path: str, meta: Mapping[str, Any]) -> bool:
    return _name(path) == "draw" and _dims(meta) == ["draw"]


def _group(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _chunk_shape(meta: Mapping[str, Any]) -> list[int]:
    return meta["chunk_grid"]["configuration"]["chunk_shape"]


def _key(path: str, index: Iterable[int]) -> str:
    return ".".join([f"{path}/c", *map(str, index)])


def _consolidated(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}}


def _json(obj: object) -> bytes:
    return json.dumps(obj).encode()
