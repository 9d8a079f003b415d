"""The instructions of a tape, and its workspace."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numba.extending import get_cython_function_address
from scipy.special import cython_special

from pmm_mcmc.tape import loop

# Rows of an operation beyond two axes become instructions of their own.
_MOST_INSTRUCTIONS = 64


# What an operation is applied to: a view of a buffer, or numbers.
type Value = np.ndarray | float


class Unsupported(Exception):
    """An operation that no tape runs."""


class Tape(NamedTuple):
    """Instructions ``(n, 16)`` with their workspace, where inputs and outputs begin in it, and what they refer to."""

    code: np.ndarray
    workspace: np.ndarray
    inputs: list[int]
    outputs: list[int]
    kept: list[Any]


@cache
def _function(name: str, n: int) -> int | None:
    """Return the address of a function of ``n`` doubles: of SciPy's special functions, or of the C library."""
    form = f'"double ({"double, " * n}int __pyx_skip_dispatch)"'
    for candidate in (name, f"__pyx_fuse_0{name}", f"__pyx_fuse_1{name}"):
        if form in str(cython_special.__pyx_capi__.get(candidate)):
            return get_cython_function_address("scipy.special.cython_special", candidate)
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function else None


def address_of(name: str) -> int:
    """Return the address of a function of BLAS or LAPACK."""
    return get_cython_function_address(f"scipy.linalg.cython_{'lapack' if name == 'dpotrf' else 'blas'}", name)


def _collapsed(axes: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """Merge neighbouring axes, sizes with strides, that every operand passes in one stride."""
    merged: list[tuple[int, list[int]]] = []
    for size, strides in axes:
        if merged and all(a == size * b for a, b in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * size, strides
        elif size != 1:
            merged.append((size, strides))
    return merged


def offsets_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first element of a view, and how far each is from it."""
    steps = [np.arange(size) * (stride // 8) for size, stride in zip(x.shape, x.strides, strict=True)]
    return x[(slice(0, 1),) * x.ndim].reshape(-1), sum(np.ix_(*steps), np.zeros(x.shape, np.int64))


class Builder:
    """The instructions of a graph whose inputs have known lengths.

    A value that depends on the inputs is a view of a buffer: an array whose contents are never read, so that slices,
    transposes and reshapes are NumPy's own and cost nothing when the tape runs.  Other values are arrays of numbers.
    """

    def __init__(self) -> None:
        self._rows: list[list[Any]] = []  # a place in the workspace is a tuple of buffer and offset
        self._buffers: dict[int, np.ndarray] = {}
        self._constants: dict[tuple, np.ndarray] = {}
        self._kept: list[Any] = []
        self._loops: list[tuple[int, int]] = []  # first and last rows

    def new(self, shape: Sequence[int]) -> np.ndarray:
        """Return a view of a new buffer."""
        size = math.prod(shape)
        buffer = np.empty(max(size, 1))
        self._buffers[id(buffer)] = buffer
        return buffer[:size].reshape(tuple(shape))

    def depends(self, value: object) -> TypeGuard[np.ndarray]:
        """Return whether a value depends on the inputs."""
        return id(getattr(value, "base", None)) in self._buffers

    def constant(self, value: Value) -> np.ndarray:
        """Return a view of a buffer that holds numbers."""
        numbers = np.array(value, dtype=float, order="C")
        key = numbers.shape, numbers.tobytes()
        if key not in self._constants:
            self._constants[key] = self.new(numbers.shape)
            self._constants[key][...] = numbers
        return self._constants[key]

    def _operand(self, value: Value, shape: tuple[int, ...]) -> tuple[tuple[int, int], list[int]]:
        """Return place and strides of a value that is broadcast to a shape."""
        view = value if self.depends(value) else self.constant(value)
        lead = len(shape) - view.ndim
        if lead < 0 or any(size not in (1, wanted) for size, wanted in zip(view.shape, shape[lead:], strict=True)):
            raise Unsupported(f"a value of shape {view.shape} where {shape} is due")
        steps = [0 if size == 1 else stride // 8 for size, stride in zip(view.shape, view.strides, strict=True)]
        return self._place(view), [0] * lead + steps

    @staticmethod
    def _place(view: np.ndarray) -> tuple[int, int]:
        base: Any = view.base
        base_address, address = (array.__array_interface__["data"][0] for array in (base, view))
        return id(base), (address - base_address) // 8

    def emit(self, code: int, out: np.ndarray, *values: Value, inner: int | None = None, address: int = 0) -> None:
        """Append an operation over the shape of its values, or of its result if ``inner`` is None.

        The last ``inner`` axes are those of one row, which is reduced or visited in order.
        """
        shape = out.shape if inner is None else np.broadcast_shapes(*(np.shape(value) for value in values))
        operands = [self._operand(value, shape) for value in (out, *values)]
        axes = [(size, [strides[i] for _, strides in operands]) for i, size in enumerate(shape)]
        if inner is None:
            rows = _collapsed(axes)
            columns = [rows.pop()] if rows else []
            if rows and rows[-1][0] > columns[0][0]:
                rows[-1], columns[0] = columns[0], rows[-1]
        else:
            rows = _collapsed(axes[: len(axes) - inner])
            columns = _collapsed(axes[len(axes) - inner :])
        m, by_row = rows.pop() if rows else (1, [0] * len(operands))
        n, by_column = columns[0] if columns else (1, [0] * len(operands))
        if len(columns) > 1 or math.prod(size for size, _ in rows) > _MOST_INSTRUCTIONS:
            return self._emit_in_order(code, out, values, shape, inner, address)
        if m == 0 or (n == 0 and inner is None):
            return
        for index in np.ndindex(*(size for size, _ in rows)):
            cells: list[Any] = [code, m, n]
            for i, ((buffer, offset), _) in enumerate(operands):
                offset += sum(step * strides[i] for step, (_, strides) in zip(index, rows, strict=True))
                cells += [(buffer, offset), by_row[i], by_column[i]]
            self._rows.append([*cells, *[0] * (loop.CELLS - 1 - len(cells)), address])

    def _emit_in_order(
        self, code: int, out: np.ndarray, values: Sequence[Value], shape: tuple[int, ...], inner: int | None,
        address: int,
    ) -> None:  # fmt: skip
        """Append an operation over more axes than two: of values that are gathered in order first."""
        result = out if out.flags.c_contiguous else self.new(out.shape)
        self.emit(code, result, *(self.in_order(value, shape) for value in values), inner=inner, address=address)
        if result is not out:
            origin, places = offsets_of(out)
            self.emit(loop.SCATTER_SET, origin, result.reshape(-1), places.reshape(-1), inner=1)

    def in_order(self, value: Value, shape: tuple[int, ...]) -> np.ndarray:
        """Return a value that is broadcast to a shape of any number of axes, in contiguous order."""
        view = value if self.depends(value) else self.constant(np.broadcast_to(value, shape))
        if view.shape == shape and view.flags.c_contiguous:
            return view
        origin, places = offsets_of(view)
        out = self.new(shape)
        self.emit(loop.GATHER, out.reshape(-1), origin, np.broadcast_to(places, shape).reshape(-1))
        return out

    def apply(self, code: int, *values: Value, address: int = 0) -> np.ndarray:
        """Return the result of an elementwise operation."""
        out = self.new(np.broadcast_shapes(*(np.shape(value) for value in values)))
        self.emit(code, out, *values, address=address)
        return out

    def call(self, name: str, *values: Value) -> np.ndarray:
        """Return the result of a C function of doubles, element by element."""
        address = _function(name, len(values)) if name and len(values) <= 3 else None
        if address is None:
            raise Unsupported(name)
        return self.apply(loop.CALL, *values, address=address)

    def copy(self, value: Value, shape: Sequence[int] | None = None) -> np.ndarray:
        """Return a contiguous copy of a value, broadcast to a shape."""
        out = self.new(np.shape(value) if shape is None else shape)
        self.emit(loop.COPY, out, value)
        return out

    def join(self, axis: int, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return a contiguous array of values side by side."""
        ends = np.cumsum([each.shape[axis] for each in values])
        shape = list(values[0].shape)
        shape[axis] = ends[-1]
        out = self.new(shape)
        for each, place in zip(values, np.split(out, ends[:-1], axis), strict=True):
            self.emit(loop.COPY, place, each)
        return out

    def in_a_row(self, *values: Value) -> np.ndarray:
        """Return the elements of values of any shapes as one vector."""
        return self.join(0, [self.in_order(value, np.shape(value)).reshape(-1) for value in values])

    def reduce(self, code: int, nothing: float, value: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """Return the result of a reduction over axes, of which that of no elements is ``nothing``."""
        axes = [axis % value.ndim for axis in axes]
        kept_axes = [axis for axis in range(value.ndim) if axis not in axes]
        moved = value.transpose(*kept_axes, *axes)
        moved_axes = range(len(kept_axes), value.ndim)
        if len(_collapsed([(moved.shape[i], [moved.strides[i]]) for i in moved_axes])) > 1:
            moved = self.copy(moved)
        if 0 in value.shape and not np.isfinite(nothing):
            raise Unsupported("the largest of nothing")
        shape = moved.shape[: len(kept_axes)]
        out = self.new(shape) if code == loop.SUM else self.copy(nothing, shape)
        total = out.reshape(shape + (1,) * len(axes))
        self.emit(code, total, *([moved] if code == loop.SUM else [total, moved]), inner=len(axes))
        return out

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the product of two matrices."""
        m, k = x.shape
        n = y.shape[1]
        if 0 in (m, n, k):
            return self.copy(0.0, (m, n))
        out = self.new((m, n))
        if n == 1 and m * k < 1000:
            self.emit(loop.DOT, out, x, y[:, 0], inner=1)
            return out
        x, x_flag, x_lead = self.matrix(x)
        y, y_flag, y_lead = self.matrix(y)
        if n == 1:
            sizes = (m, k) if x_flag == "T" else (k, m)
            y = y if y.strides[0] == 8 else self.copy(y)
            self.foreign("dgemv", "N" if x_flag == "T" else "T", *sizes, 1.0, x, x_lead, y, 1, 0.0, out, 1)
        else:
            self.foreign("dgemm", y_flag, x_flag, n, m, k, 1.0, y, y_lead, x, x_lead, 0.0, out, n)
        return out

    def matrix(self, x: np.ndarray) -> tuple[np.ndarray, str, int]:
        """Return a matrix as BLAS reads it, transposed: "T" if it is stored by columns, and its leading dimension."""
        x = x if self.depends(x) else self.constant(x)
        rows, columns = (stride // 8 for stride in x.strides)
        if (columns == 1 or x.shape[1] == 1) and rows >= x.shape[1]:
            return x, "N", rows
        if (rows == 1 or x.shape[0] == 1) and columns >= x.shape[0]:
            return x, "T", columns
        return self.copy(x), "N", x.shape[1]

    @contextmanager
    def repeated(self, active: np.ndarray) -> Iterator[None]:
        """Repeat the instructions of the block until no element of a contiguous array is true."""
        start = len(self._rows)
        yield
        cells: list[Any] = [loop.REPEAT, active.size, start, self._place(active)]
        self._rows.append([*cells, *[0] * (loop.CELLS - len(cells))])
        self._loops.append((start, len(self._rows) - 1))

    def kept(self, function: Any) -> int:
        """Return the address of a function of ctypes, which lives as long as the tape."""
        self._kept.append(function)
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

    def foreign(self, function: str | int, *arguments: Any) -> None:
        """Append a call of BLAS or LAPACK, or of an address, with pointers to letters, numbers and buffers."""
        cells: list[Any] = []
        for each in arguments:
            if isinstance(each, np.ndarray):
                cells.append(self._place(each))
            elif isinstance(each, float):
                cells.append(int(np.float64(each).view(np.int64)))
            else:
                cells.append(ord(each) if isinstance(each, str) else each)
        mask = sum(1 << i for i, each in enumerate(cells) if isinstance(each, tuple))
        address = address_of(function) if isinstance(function, str) else function
        self._rows.append([loop.FOREIGN, address, mask, *cells, *[0] * (loop.ARGUMENTS - len(cells))])

    def finish(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Tape:
        """Lay out the workspace: inputs and constants first, then buffers, each for as long as it is in use."""
        ends = {
            k: last for begin, last in self._loops for k in range(begin, last)
        }  # a turn may need what it began with
        needed = {
            cell[0]: ends.get(k, k) for k, row in enumerate(self._rows) for cell in row if isinstance(cell, tuple)
        }
        needed |= {id(out.base): len(self._rows) for out in outputs}
        last_uses = defaultdict(list)
        for key, k in needed.items():
            last_uses[k].append(key)
        constants = {id(view.base): view for view in self._constants.values() if id(view.base) in needed}
        free: dict[int, list[int]] = defaultdict(list)  # offsets by length
        fixed = dict.fromkeys([*(id(value.base) for value in inputs), *constants])
        *starts, size = np.cumsum([0, *(len(self._buffers[key]) for key in fixed)]).tolist()
        offsets: dict[int, int] = dict(zip(fixed, starts, strict=True))
        for k, row in enumerate(self._rows):
            keys = {cell[0]: len(self._buffers[cell[0]]) for cell in row if isinstance(cell, tuple)}
            for key, length in keys.items():
                if key not in offsets and free[length]:
                    offsets[key] = free[length].pop()
                elif key not in offsets:
                    offsets[key] = size
                    size += length
            for key in last_uses[k]:
                if key not in fixed:
                    free[len(self._buffers[key])].append(offsets[key])
        workspace = np.zeros(size)
        for key, view in constants.items():
            workspace[offsets[key] : offsets[key] + view.size] = view.ravel()
        cells = [[offsets[c[0]] + c[1] if isinstance(c, tuple) else c for c in row] for row in self._rows]
        code = np.array(cells, dtype=np.int64).reshape(-1, loop.CELLS).view(np.uint64)
        places = [offsets.get(buffer, 0) + offset for buffer, offset in map(self._place, outputs)]
        return Tape(code, workspace, [offsets[id(value.base)] for value in inputs], places, self._kept)
