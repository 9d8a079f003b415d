"""What each operation of PyTensor becomes on a tape.

Some are left to their own Python code: users' operations, and splines and solvers.  A tape calls them as C functions
that take the interpreter lock, some ten microseconds each; numba would run them likewise, after a compilation.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.scalar.basic import Composite, ScalarOp
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type import TensorType

from pmm_mcmc.tape import loop
from pmm_mcmc.tape.build import Builder, Unsupported, offsets_of

_log = logging.getLogger("pmm_mcmc")
# Arguments and results of a function of NumPy, at most: terms of a sum may be more.
_MOST_OF_NUMPY = 31
_CALLBACK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * loop.ARGUMENTS)


def perform(node: Apply, values: Sequence[Any]) -> list[Any]:
    """Return what a node makes of numbers, by PyTensor's own code."""
    if len(values) > _MOST_OF_NUMPY and isinstance(node.op, Elemwise) and node.op.scalar_op.nfunc_spec:
        return [reduce(getattr(np, node.op.scalar_op.nfunc_spec[0]), values)]
    if hasattr(node.op, "prepare_node"):
        node.op.prepare_node(node, None, None, "py")
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    inputs = [each.type.filter(value, allow_downcast=True) for each, value in zip(node.inputs, values, strict=True)]
    node.op.perform(node, inputs, storage)
    return [each for (each,) in storage]


def performed(builder: Builder, node: Apply, values: Sequence[Any]) -> list[np.ndarray]:
    """Append a call of a node's own code, and return the values of its outputs; they are NaN where it fails.

    Raises
    ------
    Unsupported
        If the operation is random, has a graph of its own, which would be compiled, or not of arrays of real numbers.
    """
    name = type(node.op).__name__
    of_numbers = all(
        isinstance(variable.type, TensorType) and np.dtype(variable.type.dtype).kind in "fiub"
        for variable in (*node.inputs, *node.outputs)
    )
    if isinstance(node.op, HasInnerGraph | RandomVariable) or not of_numbers:
        raise Unsupported(name)
    views = [builder.copy(value) if builder.depends(value) else None for value in values]
    outs = [builder.new(shape) for shape in _shapes(builder, node, values)]
    arguments = [view for view in (*views, *outs) if view is not None]
    if len(arguments) > loop.ARGUMENTS:
        raise Unsupported(f"{name} of more than {loop.ARGUMENTS} arrays")
    shapes = [view.shape for view in arguments]
    failures: list[Exception] = []

    def call(*places: int) -> None:
        arrays = [_array(place, shape) for place, shape in zip(places, shapes, strict=False)]
        results = arrays[len(arrays) - len(outs) :]
        numbers = iter(arrays)
        try:
            inputs = [
                value if view is None else next(numbers).astype(variable.dtype)
                for variable, view, value in zip(node.inputs, views, values, strict=True)
            ]
            for result, value in zip(results, perform(node, inputs), strict=True):
                result[...] = value
        except Exception as failure:
            if not failures:
                what = f"{type(failure).__name__}: {failure}".partition("\n")[0]
                _log.warning("%s failed, and the density counts as not finite there (%s)", name, what)
            failures.append(failure)
            for result in results:
                result[...] = np.nan

    builder.foreign(builder.kept(_CALLBACK(call)), *arguments)
    return outs


def _array(place: int, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_double * size).from_address(place)).reshape(shape)


def _shapes(builder: Builder, node: Apply, values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a node's outputs, which a trial shows where its types do not say them."""
    shapes = [out.type.shape for out in node.outputs]
    if any(None in shape for shape in shapes):
        numbers = [np.full(value.shape, 0.5) if builder.depends(value) else value for value in values]
        shapes = [np.shape(each) for each in perform(node, numbers)]
    return shapes


# Scalar functions of one instruction; booleans are 0 and 1.
_CODES = {
    "Add": loop.ADD, "Mul": loop.MUL, "Sub": loop.SUB, "TrueDiv": loop.DIV, "Switch": loop.SWITCH, "LT": loop.LT,
    "LE": loop.LE, "EQ": loop.EQ, "NEQ": loop.NEQ, "AND": loop.MINIMUM, "OR": loop.MAXIMUM, "XOR": loop.NEQ,
    "Maximum": loop.MAXIMUM, "Minimum": loop.MINIMUM, "Sqrt": loop.SQRT, "Abs": loop.ABS, "Sign": loop.SIGN,
    "Sigmoid": loop.SIGMOID, "Softplus": loop.SOFTPLUS,
}  # fmt: skip
# Functions of the C library by PyTensor's name; those of SciPy are named by PyTensor itself.
_FUNCTIONS = {
    "Exp": "exp", "Log": "log", "Pow": "pow", "Log1p": "log1p", "Expm1": "expm1", "Log2": "log2", "Log10": "log10",
    "Exp2": "exp2", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh",
    "ArcSin": "asin", "ArcCos": "acos", "ArcTan": "atan", "ArcSinh": "asinh", "ArcCosh": "acosh",
    "ArcTanh": "atanh", "ArcTan2": "atan2", "Floor": "floor", "Ceil": "ceil", "Trunc": "trunc",
}  # fmt: skip
# Reductions with what they make of no elements.
_REDUCTIONS = {
    "Add": (loop.SUM, 0.0), "Mul": (loop.MUL, 1.0), "Maximum": (loop.MAXIMUM, -np.inf), "AND": (loop.SUM, 0.0),
    "Minimum": (loop.MINIMUM, np.inf), "OR": (loop.MAXIMUM, 0.0),
}  # fmt: skip
# Operations of a scan, of all its steps together, at most: more take longer to write down than to compile.
_MOST_UNROLLED = 20_000
_TENSORS: dict[str, Callable[..., Any]] = {}


def trace(builder: Builder, graph: FunctionGraph, values: Sequence[Any]) -> list[Any]:
    """Append the instructions of a graph whose inputs have these values, and return the values of its outputs.

    Raises
    ------
    Unsupported
        If an operation, or the way it is used, is not in the table.
    """
    traced: dict[Any, Any] = dict(zip(graph.inputs, values, strict=True))

    def value(variable: Variable) -> Any:
        if variable not in traced and isinstance(variable, Constant):
            traced[variable] = _numbers_of(variable.data)
        return traced[variable]

    for node in graph.toposort():
        results = _results(builder, node, [value(variable) for variable in node.inputs])
        traced.update(zip(node.outputs, results, strict=True))
    return [value(variable) for variable in graph.outputs]


def _results(builder: Builder, node: Apply, values: list[Any]) -> list[Any]:
    """Return the values of the outputs of a node."""
    op = node.op
    name = type(op).__name__
    dtypes = [getattr(out.type, "dtype", "") for out in node.outputs]
    if isinstance(op, ScalarOp):
        return _scalars(builder, op, dtypes, values)
    if isinstance(op, OpFromGraph):
        return trace(builder, op.fgraph, values)
    if not any(map(builder.depends, values)):
        return [_numbers_of(each) for each in perform(node, values)]
    if name == "Elemwise":
        shape = np.broadcast_shapes(*(np.shape(each) for each in values))
        try:
            results = _scalars(builder, op.scalar_op, dtypes, values)
        except Unsupported:
            if not getattr(op.scalar_op, "nfunc_spec", None):  # Python would call it element by element
                raise
            return performed(builder, node, values)
        return [each if np.shape(each) == shape else builder.copy(each, shape) for each in results]
    if hasattr(op, "on_tape"):  # a map of coordinates
        return op.on_tape(builder, *values)
    if name in _TENSORS:
        try:
            result = _TENSORS[name](builder, op, *values)
            return result if isinstance(result, list) else [result]
        except Unsupported:
            if "Subtensor" not in name:  # only an index may depend on the position
                raise
    return performed(builder, node, values)


def _numbers_of(data: Any) -> Any:
    """Return data as an array, unless they are a slice, or None, as the argument of an operation."""
    return data if data is None or isinstance(data, slice) else np.asarray(data)


def _scalars(builder: Builder, op: Any, dtypes: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Append a scalar function of arrays."""
    if isinstance(op, Composite):
        return trace(builder, op.fgraph, values)
    if isinstance(op, ScalarLoop):
        return _scalar_loop(builder, op, values)
    name = type(op).__name__
    dtype = np.dtype(dtypes[0])
    narrow = dtype.kind in "iu" and dtype.itemsize < 8 and name not in ("Switch", "Sign", "Cast", "Identity", "Second")
    bitwise = name in ("AND", "OR", "XOR", "Invert") and dtype.kind != "b"
    if (narrow and dtype.itemsize > 2) or bitwise or dtype.kind not in "fiub":
        raise Unsupported(f"{name} of {dtype}")
    if name in _SCALARS:
        result = _SCALARS[name](builder, dtype, *values)
    elif name in ("Add", "Mul"):
        result = reduce(lambda x, y: builder.apply(_CODES[name], x, y), values)
    elif name in _CODES:
        result = builder.apply(_CODES[name], *values)
    else:
        _, of_scipy, function = (getattr(op, "nfunc_spec", None) or ("",))[0].rpartition("scipy.special.")
        if not (name in _FUNCTIONS or of_scipy) or not (dtype == np.float64 or (narrow and name == "Pow")):
            raise Unsupported(f"{name} of {dtype}")
        result = builder.call(_FUNCTIONS.get(name, function), *values)
    if narrow:
        # Whole numbers of 8 or 16 bits: what is beyond the largest goes on at the smallest.
        count = 2.0 ** (8 * dtype.itemsize)
        shifted = builder.apply(loop.SUB, result, float(np.iinfo(dtype).min))
        turns = builder.call("floor", builder.apply(loop.MUL, shifted, 1.0 / count))
        return [builder.apply(loop.SUB, result, builder.apply(loop.MUL, turns, count))]
    return [builder.apply(loop.ROUND32, result) if dtype == np.float32 else result]


def _scalar_loop(builder: Builder, op: Any, values: Sequence[Any]) -> list[Any]:
    """Append a loop of scalar functions, as series and continued fractions are: elements that have ended wait."""
    turns, *starts = values
    shape = np.broadcast_shapes(*map(np.shape, values))
    n = len(op.fgraph.outputs) - op.is_while
    states = [builder.copy(start, shape) for start in starts[:n]]
    left = builder.copy(turns, shape)
    active = builder.apply(loop.LT, 0.0, left)
    ended = builder.copy(0.0, shape)
    with builder.repeated(active):
        # Copies, since a state may be another's value of the turn before.
        results = [builder.copy(each, shape) for each in trace(builder, op.fgraph, [*states, *starts[n:]])]
        for state, result in zip(states, results, strict=False):
            builder.emit(loop.SWITCH, state, active, result, state)
        builder.emit(loop.SUB, left, left, 1.0)
        if op.is_while:
            builder.emit(loop.SWITCH, ended, active, results[-1], ended)
            builder.emit(loop.SWITCH, left, ended, 0.0, left)
        builder.emit(loop.LT, active, 0.0, left)
    return [*states, ended] if op.is_while else states


def _scan(builder: Builder, op: Any, steps: np.ndarray, *values: np.ndarray) -> list[Any]:
    """Append the steps of a scan one after the other; its buffers are rings that hold the last of the states."""
    info = op.info
    count = int(_numbers(builder, steps))
    if info.as_while or count * len(op.fgraph.apply_nodes) > _MOST_UNROLLED:
        raise Unsupported("a scan that is long, or ends by a condition")
    taps = [*info.normalized_mit_mot_in_slices, *info.mit_sot_in_slices, *info.sit_sot_in_slices]
    outs = [*info.normalized_mit_mot_out_slices, *[(0,)] * (info.n_mit_sot + info.n_sit_sot)]
    starts = [0 if k < info.n_mit_mot else -min(slices) for k, slices in enumerate(taps)]
    ends = np.cumsum([info.n_seqs, len(taps), info.n_untraced_sit_sot, info.n_nit_sot])
    parts = [list(values[begin:end]) for begin, end in pairwise([0, *ends, len(values)])]
    sequences, states, carried, sizes, others = parts
    rings: list[Any] = [builder.copy(state) for state in states]
    rings += [None] * len(sizes)
    for i in range(count):
        inputs = [
            ring[(i + start + tap) % len(ring), ...]
            for ring, start, slices in zip(rings, starts, taps, strict=False)
            for tap in slices
        ]
        results = trace(builder, op.fgraph, [*(each[i, ...] for each in sequences), *inputs, *carried, *others])
        results = [builder.copy(each) for each in results]  # a state may be another's of the step before
        for ring, start, slices in zip(rings, starts, outs, strict=False):
            for tap in slices:
                builder.emit(loop.COPY, ring[(i + start + tap) % len(ring), ...], results.pop(0))
        for k, size in enumerate(sizes, len(states)):
            result = results.pop(0)
            if rings[k] is None:
                rings[k] = builder.copy(0.0, (int(_numbers(builder, size)), *result.shape))
            builder.emit(loop.COPY, rings[k][i % len(rings[k]), ...], result)
        carried = results
    counts = [count + start for start in [*starts, *[0] * len(sizes)]]
    return [*(_from_oldest(builder, ring, count) for ring, count in zip(rings, counts, strict=True)), *carried]


def _from_oldest(builder: Builder, ring: np.ndarray, written: int) -> np.ndarray:
    """Return the elements of a ring in the order in which they were written."""
    oldest = written % len(ring) if written > len(ring) else 0
    return builder.join(0, [ring[oldest:], ring[:oldest]]) if oldest else ring


def _cast(builder: Builder, dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    if dtype.kind == "b":
        return builder.apply(loop.NEQ, x, 0.0)
    return builder.call("trunc", x) if dtype.kind in "iu" else x


def _clip(builder: Builder, dtype: np.dtype, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    capped = builder.apply(loop.SWITCH, builder.apply(loop.LT, high, x), high, x)
    return builder.apply(loop.SWITCH, builder.apply(loop.LT, x, low), low, capped)


def _log1mexp(builder: Builder, dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    far = builder.call("log1p", builder.apply(loop.MUL, builder.call("exp", x), -1.0))
    near = builder.call("log", builder.apply(loop.MUL, builder.call("expm1", x), -1.0))
    return builder.apply(loop.SWITCH, builder.apply(loop.LT, x, -np.log(2.0)), far, near)


# Scalar functions of several instructions, or of none.
_SCALARS: dict[str, Callable[..., Any]] = {
    "Identity": lambda builder, dtype, x: x,
    "Second": lambda builder, dtype, like, x: x,
    "Cast": _cast,
    "Clip": _clip,
    "Log1mexp": _log1mexp,
    "GT": lambda builder, dtype, x, y: builder.apply(loop.LT, y, x),
    "GE": lambda builder, dtype, x, y: builder.apply(loop.LE, y, x),
    "Invert": lambda builder, dtype, x: builder.apply(loop.EQ, x, 0.0),
    "IsNan": lambda builder, dtype, x: builder.apply(loop.NEQ, x, x),
    "IsInf": lambda builder, dtype, x: builder.apply(loop.EQ, builder.apply(loop.ABS, x), np.inf),
    "Neg": lambda builder, dtype, x: builder.apply(loop.MUL, x, -1.0),
    "Sqr": lambda builder, dtype, x: builder.apply(loop.MUL, x, x),
    "Reciprocal": lambda builder, dtype, x: builder.apply(loop.DIV, 1.0, x),
}


def _numbers(builder: Builder, value: np.ndarray) -> np.ndarray:
    """Return a value that must not depend on the position: an index or a shape."""
    if builder.depends(value):
        raise Unsupported("an index or a shape that depends on the position")
    return value


def _indices(builder: Builder, op: Any, values: Sequence[Any]) -> tuple:
    """Return the index of a subtensor, as NumPy takes it."""
    numbers = [_numbers(builder, each) for each in values]
    return indices_from_subtensor([each.item() if np.ndim(each) == 0 else each for each in numbers], op.idx_list)


def _subtensor(builder: Builder, op: Any, x: np.ndarray, *values: np.ndarray) -> np.ndarray:
    index = _indices(builder, op, values)
    if not any(isinstance(each, np.ndarray) for each in index):
        return x[(*index, ...)]
    origin, offsets = offsets_of(x)
    places = offsets[index]
    out = builder.new(places.shape)
    if places.size:
        builder.emit(loop.GATHER, out.reshape(-1), origin, places.reshape(-1))
    return out


def _inc_subtensor(builder: Builder, op: Any, x: np.ndarray, y: np.ndarray, *values: np.ndarray) -> np.ndarray:
    out = builder.copy(x)
    index = _indices(builder, op, values)
    if not any(isinstance(each, np.ndarray) for each in index):
        target = out[(*index, ...)]
        operands = (loop.COPY, target, y) if op.set_instead_of_inc else (loop.ADD, target, target, y)
        builder.emit(*operands)
        return out
    if getattr(op, "ignore_duplicates", False):
        raise Unsupported("an increment that ignores duplicates")
    origin, offsets = offsets_of(out)
    places = offsets[index]
    if places.size:
        row = builder.copy(y, places.shape).reshape(-1)
        code = loop.SCATTER_SET if op.set_instead_of_inc else loop.SCATTER_ADD
        builder.emit(code, origin, row, places.reshape(-1), inner=1)
    return out


def _dimshuffle(builder: Builder, op: Any, x: np.ndarray) -> np.ndarray:
    kept_axes = [axis for axis in op.new_order if axis != "x"]
    dropped = [axis for axis in range(x.ndim) if axis not in kept_axes]
    x = x.transpose(*kept_axes, *dropped)[(..., *[0] * len(dropped))]  # type: ignore[arg-type]
    return np.expand_dims(x, tuple(i for i, axis in enumerate(op.new_order) if axis == "x"))


def _reduction(builder: Builder, op: Any, x: np.ndarray) -> np.ndarray:
    name = type(op.scalar_op).__name__
    if name not in _REDUCTIONS:
        raise Unsupported(f"{op}")
    total = builder.reduce(*_REDUCTIONS[name], x, range(x.ndim) if op.axis is None else op.axis)
    return builder.apply(loop.EQ, total, x.size / max(total.size, 1)) if name == "AND" else total


def _cumulative(builder: Builder, op: Any, x: np.ndarray) -> np.ndarray:
    if op.axis is None:
        x = builder.copy(x).reshape(-1)
    out = builder.new(x.shape)
    code = loop.CUMSUM if op.mode == "add" else loop.CUMPROD
    builder.emit(code, np.moveaxis(out, op.axis or 0, -1), np.moveaxis(x, op.axis or 0, -1), inner=1)
    return out


def _check(builder: Builder, op: Any, x: np.ndarray, *conditions: np.ndarray) -> np.ndarray:
    for each in conditions:
        flat = builder.copy(each, np.shape(each)).reshape(-1)
        builder.emit(loop.CHECK, flat, flat)
    return x


def _softmax(builder: Builder, op: Any, x: np.ndarray) -> np.ndarray:
    axes = range(x.ndim) if op.axis is None else np.atleast_1d(op.axis).tolist()
    shape = [1 if axis in axes or axis - x.ndim in axes else size for axis, size in enumerate(x.shape)]
    shifted = builder.apply(loop.SUB, x, builder.reduce(*_REDUCTIONS["Maximum"], x, axes).reshape(shape))
    powers = builder.call("exp", shifted)
    total = builder.reduce(*_REDUCTIONS["Add"], powers, axes).reshape(shape)
    if type(op).__name__ == "Softmax":
        return builder.apply(loop.DIV, powers, total)
    return builder.apply(loop.SUB, shifted, builder.call("log", total))


def _cholesky(builder: Builder, op: Any, a: np.ndarray) -> np.ndarray:
    n = len(a)
    mask = np.tri(n) if op.lower else np.tri(n).T
    out = builder.apply(loop.SWITCH, mask, a, 0.0)
    info = builder.copy(np.zeros(1))
    builder.foreign("dpotrf", "U" if op.lower else "L", n, out, max(n, 1), info)
    builder.emit(loop.SWITCH, out, info, np.nan, out)
    return out


def _solve_triangular(builder: Builder, op: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = builder.copy(b)
    n = len(a)
    if out.size:
        columns = out.size // n
        a, flag, lead = builder.matrix(a)
        side = "U" if op.lower == (flag == "N") else "L"
        diagonal = "U" if op.unit_diagonal else "N"
        builder.foreign("dtrsm", "R", side, flag, diagonal, columns, n, 1.0, a, lead, out, columns)
    return out


_TENSORS |= dict.fromkeys(("TensorFromScalar", "ScalarFromTensor", "SpecifyShape", "DeepCopyOp"), lambda _, o, x, *y: x)
_TENSORS |= dict.fromkeys(("CAReduce", "Sum", "Prod", "Max", "Min", "All", "Any"), _reduction)
_TENSORS |= dict.fromkeys(("Subtensor", "AdvancedSubtensor"), _subtensor)
_TENSORS |= dict.fromkeys(("IncSubtensor", "AdvancedIncSubtensor"), _inc_subtensor)
_TENSORS |= dict.fromkeys(("CheckParameterValue", "CheckAndRaise", "Assert"), _check)
_TENSORS |= dict.fromkeys(("Dot", "Product"), lambda builder, op, x, y: builder.product(x, y))
_TENSORS |= dict.fromkeys(("Softmax", "LogSoftmax"), _softmax)
_TENSORS |= {
    "Alloc": lambda builder, op, x, *shape: builder.copy(x, [int(_numbers(builder, size)) for size in shape]),
    "Cholesky": _cholesky,
    "CumOp": _cumulative,
    "DimShuffle": _dimshuffle,
    "ExtractDiag": lambda builder, op, x: x.diagonal(op.offset, op.axis1, op.axis2),
    "Join": lambda builder, op, *values: builder.join(op.axis, values),
    "MakeVector": lambda builder, op, *values: builder.join(0, [np.reshape(each, 1) for each in values]),
    "Scan": _scan,
    "Reshape": lambda builder, op, x, shape: (x if x.flags.c_contiguous else builder.copy(x)).reshape(
        tuple(_numbers(builder, shape))
    ),
    "Shape": lambda builder, op, x: np.asarray(x.shape),
    "Shape_i": lambda builder, op, x: np.asarray(x.shape[op.i]),
    "SolveTriangular": _solve_triangular,
    "Split": lambda builder, op, x, sizes: np.split(x, np.cumsum(_numbers(builder, sizes))[:-1], op.axis),
}
