"""Checkpoints as bytes: exact, equal for equal objects, for a small closed set of types, without pickle.

A record is a header (magic, format version, length and SHA-256 of the rest) and one encoded object.  An object is a
tag of one byte and its contents; lengths and counts are unsigned 64-bit, everything little-endian.  Decoding creates
only the types below and the dataclasses and named tuples that the caller passes, so that a foreign file cannot execute
code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pmm_mcmc.run.storage.errors import Damaged, StoreError

__all__ = ["FORMAT", "decode", "encode"]

FORMAT = 1  # version of the checkpoints
_MAGIC = b"PMMSTATE"
_HEADER = struct.Struct("<8sIQ32s")
_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_NONE, _FALSE, _TRUE, _INT, _REAL, _TEXT, _LIST, _TUPLE, _DICT, _ARRAY, _SCALAR, _RECORD = (
    bytes([letter]) for letter in b"NFTifsltdagR"
)
_LARGEST_ITEM = 8  # bytes: the layout of longer floats differs between machines


def encode(obj: Any, name: str = "checkpoint") -> bytes:
    """Return an object as bytes that :func:`decode` turns back into an equal one.

    Parameters
    ----------
    obj
        ``None``, bool, int, float, str, list, tuple, dict with str keys, NumPy scalar or array of bools, integers or
        floats, dataclass or named tuple, and any nesting of these.  Subclasses are not accepted in their place.
    name
        Its name in error messages.

    Returns
    -------
    bytes
        Header and contents, the same for the same object.

    Raises
    ------
    StoreError
        If a part of it has another type, which the message names.
    """
    parts: list[bytes] = []
    try:
        _encode(obj, parts.append, name)
    except RecursionError:
        raise StoreError(f"{name}: nested too deeply to be stored, or it contains itself") from None
    digest, length = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        length += len(part)
    return b"".join([_HEADER.pack(_MAGIC, FORMAT, length, digest.digest()), *parts])


def decode(data: bytes, types: Iterable[type] = (), name: str = "checkpoint") -> Any:
    """Return the object that :func:`encode` turned into these bytes.

    Parameters
    ----------
    data
        A whole record.
    types
        The dataclasses and named tuples that it may contain, identified by their names.
    name
        Its name in error messages.

    Returns
    -------
    object
        An equal object, with writable arrays.

    Raises
    ------
    StoreError
        If the record is damaged or of another format, or contains a type that is not given or has other fields.
    """
    payload = _payload(data, name)
    known: dict[str, type] = {}
    for cls in types:
        if known.setdefault(cls.__name__, cls) is not cls:
            raise StoreError(f"types: two are called {cls.__name__}; rename one")
    reader = _Reader(payload, known)
    try:
        obj = reader.object(name)
    except (struct.error, IndexError, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{name}: its contents cannot be read ({error})") from error
    if reader.position != len(payload):
        raise Damaged(f"{name}: more bytes than the object has")
    return obj


def _payload(data: bytes, name: str) -> memoryview:
    if len(data) < _HEADER.size:
        raise Damaged(f"{name}: cut short ({len(data)} bytes)")
    magic, version, length, digest = _HEADER.unpack_from(data)
    payload = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC:
        raise Damaged(f"{name}: not a checkpoint of pmm_mcmc")
    if version != FORMAT:
        raise StoreError(f"{name}: format {version}, not {FORMAT}; go on with the version of pmm_mcmc that wrote it")
    if len(payload) != length or hashlib.sha256(payload).digest() != digest:
        raise Damaged(f"{name}: its bytes are not those that were written")
    return payload


def _counted(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _encode(obj: Any, write: Callable[[bytes], None], where: str) -> None:
    kind = type(obj)
    if obj is None:
        write(_NONE)
    elif kind is bool:
        write(_TRUE if obj else _FALSE)
    elif kind is int:
        write(_INT + _counted(obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)))
    elif kind is float:
        write(_REAL + _FLOAT.pack(obj))
    elif kind is str:
        write(_TEXT + _counted(obj.encode("utf-8", "surrogatepass")))
    elif kind in (list, tuple):
        write((_LIST if kind is list else _TUPLE) + _LENGTH.pack(len(obj)))
        for i, item in enumerate(obj):
            _encode(item, write, f"{where}[{i}]")
    elif kind is dict:
        write(_DICT + _LENGTH.pack(len(obj)))
        for key, item in obj.items():
            if type(key) is not str:
                raise StoreError(f"{where}: keys must be str, and {key!r} is of type {type(key).__name__}")
            write(_counted(key.encode("utf-8", "surrogatepass")))
            _encode(item, write, f"{where}[{key!r}]")
    elif kind is np.ndarray or isinstance(obj, np.generic):
        _encode_array(obj, write, where)
    else:
        names = _names(kind)
        if names is None:
            raise StoreError(
                f"{where}: {kind.__module__}.{kind.__qualname__} cannot be stored; "
                "use None, bool, int, float, str, list, tuple, dict, NumPy arrays, dataclasses or named tuples"
            )
        _check_complete(obj, names, where)
        write(_RECORD + _counted(kind.__name__.encode()) + _LENGTH.pack(len(names)))
        for name in names:
            write(_counted(name.encode()))
            _encode(getattr(obj, name), write, f"{where}.{name}")


def _encode_array(obj: Any, write: Callable[[bytes], None], where: str) -> None:
    dtype = obj.dtype
    if dtype.kind not in "biuf" or dtype.itemsize > _LARGEST_ITEM:
        raise StoreError(f"{where}: arrays of {dtype} cannot be stored; use bools, integers or floats of up to 64 bits")
    array = isinstance(obj, np.ndarray)
    write((_ARRAY if array else _SCALAR) + _counted(dtype.str.encode()))
    if array:
        write(_LENGTH.pack(obj.ndim) + b"".join(_LENGTH.pack(n) for n in obj.shape))
    write(obj.tobytes())  # in C order


def _names(kind: type) -> list[str] | None:
    """Return the field names of a dataclass or a named tuple; ``None`` for other types."""
    if dataclasses.is_dataclass(kind):
        return [f.name for f in dataclasses.fields(kind)]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)
    return None


def _check_complete(obj: Any, names: list[str], where: str) -> None:
    """Refuse an object with attributes beside its fields, which would be lost; cached properties may be."""
    kind = type(obj)
    for name in getattr(obj, "__dict__", {}):
        if name not in names and not isinstance(getattr(kind, name, None), functools.cached_property):
            raise StoreError(f"{where}: {name} is no field of {kind.__name__} and would be lost; make it one")


class _Reader:
    """Reader of the objects in the contents of a record."""

    def __init__(self, data: memoryview, types: dict[str, type]):
        self.data, self.types, self.position = data, types, 0

    def take(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self.data):
            raise IndexError("more was announced than there is")
        part = self.data[self.position : end]
        self.position = end
        return part

    def count(self) -> int:
        return int(_LENGTH.unpack(self.take(_LENGTH.size))[0])

    def text(self) -> str:
        return bytes(self.take(self.count())).decode("utf-8", "surrogatepass")

    def object(self, where: str) -> Any:
        tag = bytes(self.take(1))
        if tag in (_NONE, _FALSE, _TRUE):
            return {_NONE: None, _FALSE: False, _TRUE: True}[tag]
        if tag == _INT:
            return int.from_bytes(self.take(self.count()), "little", signed=True)
        if tag == _REAL:
            return _FLOAT.unpack(self.take(_FLOAT.size))[0]
        if tag == _TEXT:
            return self.text()
        if tag in (_LIST, _TUPLE):
            items = [self.object(f"{where}[{i}]") for i in range(self.count())]
            return items if tag == _LIST else tuple(items)
        if tag == _DICT:
            return {(key := self.text()): self.object(f"{where}[{key!r}]") for _ in range(self.count())}
        if tag in (_ARRAY, _SCALAR):
            return self.array(tag == _ARRAY)
        if tag == _RECORD:
            return self.record(where)
        raise ValueError(f"unknown tag {tag!r}")

    def array(self, array: bool) -> Any:
        dtype = np.dtype(self.text())
        shape = tuple(self.count() for _ in range(self.count())) if array else ()
        values = np.frombuffer(self.take(math.prod(shape) * dtype.itemsize), dtype=dtype).reshape(shape).copy()
        return values if array else values[()]

    def record(self, where: str) -> Any:
        name = self.text()
        values = {}
        for _ in range(self.count()):
            field = self.text()
            values[field] = self.object(f"{where}.{field}")
        if name not in self.types:
            given = ", ".join(sorted(self.types)) or "none"
            raise StoreError(f"{where}: holds a {name}, which is not among the types given ({given})")
        kind = self.types[name]
        names = _names(kind)
        if names is None:
            raise StoreError(f"{where}: {name} is neither a dataclass nor a named tuple")
        missing, unknown = [n for n in names if n not in values], [n for n in values if n not in names]
        if missing or unknown:
            parts = [
                f"{text} {', '.join(which)}" for text, which in (("lacks", missing), ("has unknown", unknown)) if which
            ]
            raise StoreError(
                f"{where}: the stored {name} {' and '.join(parts)}; "
                "it was written by another version of pmm_mcmc: go on with that one"
            )
        if not dataclasses.is_dataclass(kind):
            return kind._make(values[field] for field in names)  # type: ignore[attr-defined]
        obj = object.__new__(kind)
        for field in names:  # without __init__, which could change the fields
            object.__setattr__(obj, field, values[field])
        return obj
