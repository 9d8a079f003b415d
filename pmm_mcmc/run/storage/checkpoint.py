"""Checkpoints as bytes: exact, equal for equal objects, for a small closed set of types, without pickle.

A checkpoint is a header (magic, format, SHA-256 of the rest), a line of JSON, and arrays one after another as NumPy's
``.npy``.  JSON has ``null``, bools, numbers, text and lists as they are, and else an object with one entry:
``{"tuple": [...]}``, ``{"dict": {...}}``, ``{"array": number}``, ``{"scalar": number}``, or a type with its fields,
``{"record": [name, {...}]}``.  Only the dataclasses and named tuples that the caller passes are created, so that a
foreign file cannot execute code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from pmm_mcmc.run.storage.folder import Damaged, StoreError

FORMAT = 6  # version of the checkpoints
_MAGIC = b"PMMSTATE"
_HEADER = struct.Struct("<8sI32s")


def encode(obj: object) -> bytes:
    """Return an object as bytes that :func:`decode` turns back into an equal one.

    It may be ``None``, a bool, int, float, str, list, tuple, dict with str keys, NumPy scalar or array of bools,
    integers or floats, dataclass or named tuple, and any nesting of these, but no subclass of them.
    """
    arrays: list[np.ndarray] = []
    contents = io.BytesIO()
    contents.write(json.dumps(_plain(obj, arrays)).encode() + b"\n")
    for array in arrays:
        np.lib.format.write_array(contents, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
    data = contents.getbuffer()
    return _HEADER.pack(_MAGIC, FORMAT, hashlib.sha256(data).digest()) + data


def decode(data: bytes, types: Iterable[type] = (), name: str = "checkpoint") -> Any:
    """Return the object that :func:`encode` turned into these bytes, with writable arrays.

    ``types`` are the dataclasses and named tuples that it may contain, identified by their names.  Raises
    :class:`Damaged` for other bytes than were written, :class:`StoreError` for another format, or a type that is not
    among them or has other fields.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise Damaged(f"{name}: not a checkpoint of pmm_mcmc")
    _, version, digest = _HEADER.unpack_from(data)
    if version != FORMAT:
        raise StoreError(f"{name}: format {version}, not {FORMAT}; go on with the version of pmm_mcmc that wrote it")
    contents = io.BytesIO(memoryview(data)[_HEADER.size :])
    if hashlib.sha256(contents.getbuffer()).digest() != digest:
        raise Damaged(f"{name}: its bytes are not those that were written")
    try:
        tree = json.loads(contents.readline())
        arrays = []
        while contents.tell() < len(data) - _HEADER.size:
            arrays.append(np.lib.format.read_array(contents, allow_pickle=False))
        return _object(tree, arrays, {cls.__name__: cls for cls in types})
    except StoreError as error:
        raise StoreError(f"{name}: {error}") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Damaged(f"{name}: its contents cannot be read ({error})") from error


def _plain(obj: Any, arrays: list[np.ndarray]) -> Any:
    """Return an object as JSON has it; its arrays are added to ``arrays``."""
    kind = type(obj)
    if obj is None or kind in (bool, int, float, str):
        return obj
    if kind in (list, tuple):
        items = [_plain(item, arrays) for item in obj]
        return items if kind is list else {"tuple": items}
    if kind is dict and all(type(key) is str for key in obj):
        return {"dict": {key: _plain(item, arrays) for key, item in obj.items()}}
    if (kind is np.ndarray or isinstance(obj, np.generic)) and obj.dtype.kind in "biuf" and obj.dtype.itemsize <= 8:
        arrays.append(obj)
        return {"array" if kind is np.ndarray else "scalar": len(arrays) - 1}
    names = _fields(kind)
    if not names:
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be stored")
    for name in getattr(obj, "__dict__", {}):  # cached properties are computed again
        if name not in names and not isinstance(getattr(kind, name, None), functools.cached_property):
            raise TypeError(f"{name} is no field of {kind.__name__} and would be lost; make it one")
    return {"record": [kind.__name__, {n: _plain(getattr(obj, n), arrays) for n in names}]}


def _fields(kind: type) -> list[str]:
    """Return the field names of a dataclass or a named tuple; none of another type."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ()))


def _object(tree: Any, arrays: list[np.ndarray], types: dict[str, type]) -> Any:
    """Return the object that JSON describes."""
    if isinstance(tree, list):
        return [_object(item, arrays, types) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, value),) = tree.items()
    if tag == "tuple":
        return tuple(_object(value, arrays, types))
    if tag == "dict":
        return {key: _object(item, arrays, types) for key, item in value.items()}
    if tag in ("array", "scalar"):
        return arrays[value] if tag == "array" else arrays[value][()]
    if tag != "record":
        raise ValueError(f"unknown tag {tag!r}")
    name, fields = value
    if name not in types or set(fields) != set(_fields(types[name])):
        raise StoreError(
            f"holds a {name} of {', '.join(fields)}, which this version of pmm_mcmc does not have here; go on with the "
            "one that wrote it"
        )
    kind = types[name]
    values = {field: _object(fields[field], arrays, types) for field in _fields(kind)}
    if not dataclasses.is_dataclass(kind):
        return kind._make(values.values())  # type: ignore[attr-defined]
    record = object.__new__(kind)  # without __init__, which could change the fields
    for field, item in values.items():
        object.__setattr__(record, field, item)
    return record
