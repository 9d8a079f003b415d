"""Checkpoints as bytes: exact for every type, the same each time, and refused if they are not what was written."""

import dataclasses
import functools
import hashlib
import math
import struct
from collections import OrderedDict, namedtuple
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

from pmm_mcmc.run.storage import StoreError, checkpoint
from pmm_mcmc.run.storage.checkpoint import decode, encode

pytestmark = pytest.mark.quick


class Pair(NamedTuple):
    first: Any
    second: Any = 0


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None

    def __post_init__(self):
        self.x = [self.x]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    only: Any = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Remembering:
    x: int

    @functools.cached_property
    def square(self):
        return self.x**2


TYPES = (Pair, Plain, Frozen, Remembering)
DTYPES = ["?", "i1", "<i2", ">i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", ">f4", "<f8", ">f8"]


def same(a, b):
    """Return whether two objects are equal to the last bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


# -- round trips -------------------------------------------------------------------------------------------------------


OBJECTS = [
    None, True, False, 0, 1, -(2**80), 1.0, -0.0, 1 / 3, 5e-324, math.inf, -math.inf, math.nan, "", "é\n\U0001f600",
    [], (), {}, [1, (2, [3.0, ()])], {"key é": {"": None}}, Pair([1], (Pair(1, 2),)),
    *(np.arange(6).astype(name).reshape(2, 3) for name in DTYPES), *(np.dtype(name).type(1) for name in DTYPES),
    np.array([math.nan, -0.0, math.inf]), np.array(1.5), np.zeros((0, 3)),
]  # fmt: skip


def test_anything_comes_back_exactly_and_as_the_same_bytes():
    for obj in [*OBJECTS, OBJECTS, {"every": tuple(OBJECTS)}]:
        data = encode(obj)
        back = decode(data, TYPES)
        assert same(obj, back), obj
        assert encode(back) == data == encode(obj), obj


def test_arrays_are_writable_and_contiguous():
    values = np.arange(24.0).reshape(2, 3, 4)
    for view in (values.T, values[:, ::2], values[::-1, :, 1], values[:0], values[0, 0, 0:1].reshape(())):
        back = decode(encode(view))
        assert same(np.ascontiguousarray(view).reshape(view.shape), back)
        assert back.flags.writeable and back.flags.c_contiguous


def test_records_keep_the_fields_that_they_have():
    plain, frozen = Plain(3), Frozen()
    object.__setattr__(frozen, "only", np.arange(3))
    remembering = Remembering(3)
    assert remembering.square == 9
    for obj in (plain, frozen, remembering, Pair(plain, (Pair(1, 2),))):
        assert same(obj, decode(encode(obj), TYPES))
    assert decode(encode(plain), TYPES).x == [3]  # not [[3]]: fields are not initialised again


# -- what cannot be stored ---------------------------------------------------------------------------------------------


class Colour(IntEnum):
    RED = 1


def test_what_cannot_be_stored_is_named():
    for obj, words in (
        ({1, 2}, "builtins.set cannot be stored"),
        ({"a": [0, Pair(object())]}, "builtins.object cannot be stored"),
        ([Plain(1, {1: 2})], "builtins.dict cannot be stored"),
        (Colour.RED, "Colour cannot be stored"),
        (OrderedDict(a=1), "OrderedDict cannot be stored"),
        (np.random.default_rng(1), "Generator cannot be stored"),
        (np.array([1j]), "ndarray cannot be stored"),
        (np.array(["a"]), "ndarray cannot be stored"),
        (np.array([None]), "ndarray cannot be stored"),
        (np.datetime64("2026-01-01"), "datetime64 cannot be stored"),
        (np.ma.masked_array([1.0], [True]), "MaskedArray cannot be stored"),
        (Plain, "type cannot be stored"),
    ):
        with pytest.raises(TypeError, match=words):
            encode(obj)


def test_state_beside_the_fields_is_refused():
    plain = Plain(1)
    plain.extra = 2
    with pytest.raises(TypeError, match=r"extra is no field of Plain and would be lost"):
        encode(plain)


# -- what is not what was written --------------------------------------------------------------------------------------


def test_every_damage_is_seen():
    data = encode([1, "two", np.arange(3), Pair(1.0, None)])
    for end in range(len(data)):
        with pytest.raises(StoreError):
            decode(data[:end], TYPES)
    for i in range(len(data)):
        for bit in (1, 128):
            with pytest.raises(StoreError):
                decode(data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :], TYPES)
    with pytest.raises(StoreError):
        decode(data + b"\0", TYPES)
    with pytest.raises(StoreError, match="not a checkpoint"):
        decode(b"x" * 100)


def test_contents_that_are_no_object_are_refused():
    """A right checksum of wrong contents: another program's, or a mistake in this one."""
    for contents in (
        b"", b"?", b"1\n2", b"[" * 10**5, b'{"bag": 1}', b'{"array": 0}', b'{"dict": 1}', b"{}",
    ):  # fmt: skip
        header = struct.pack("<8sI32s", b"PMMSTATE", checkpoint.FORMAT, hashlib.sha256(contents).digest())
        with pytest.raises(StoreError, match="checkpoint: its contents cannot be read"):
            decode(header + contents)


def test_another_format_is_not_taken_for_damage():
    data = bytearray(encode(1))
    data[8] = 1
    with pytest.raises(StoreError, match=f"format 1, not {checkpoint.FORMAT}; go on") as caught:
        decode(bytes(data))
    assert type(caught.value) is StoreError


def test_types_must_be_given_and_have_the_same_fields():
    data = encode({"walk": [Plain(1), Pair(1)]})
    words = r"checkpoint: holds a Plain of x, y, which this version of pmm_mcmc does not have here"
    fields = (["x"], ["x", "y", "z"], ["x", "z"])
    kinds = [make("Plain", names) for names in fields for make in (dataclasses.make_dataclass, namedtuple)]
    for types in ([Pair], [], [type("Plain", (), {}), Pair], *([kind, Pair] for kind in kinds)):
        with pytest.raises(StoreError, match=words):
            decode(data, types)
