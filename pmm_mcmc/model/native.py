"""Compiled pytensor functions as C function pointers: the only module that uses internals of numba and pytensor.

pytensor's numba backend stores its compiled function as a dispatcher in ``function.vm.jit_fn``, which takes one tuple
of arrays, or the arrays one by one where pytensor cannot cache the function.  A call from another compiled function
would compile the model again as a part of that function, which takes longer than anything else here.  The existing
machine code is therefore called by its address (``overloads[...].library.get_pointer_to_function``).  It calls copies
of its own of all inner functions: numba would have it call those that the process has compiled or loaded for another
function, which may round otherwise, so that draws would depend on what was compiled before.  Shared data are
passed as a table of addresses and shapes, read before every run, so that ``pm.set_data`` takes effect.
``test_native.py`` fails first if one of these internals moves.
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import weakref
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import Linkage
from numba import carray, cfunc, types
from numba.core.cgutils import unpack_tuple, voidptr_t
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic, overload
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.math import Dot

from pmm_mcmc.coordinates.numba_op import version_of

_DOUBLES = types.CPointer(types.float64)
# (position, evaluation to fill, table of data addresses and shapes, number of coordinates) -> log density, NaN on
# failure.  An evaluation starts with the gradient.
SIGNATURE = types.float64(_DOUBLES, _DOUBLES, types.CPointer(types.int64), types.int64)


@intrinsic
def as_pointer(typingctx, address):
    """Return an address as a pointer, within compiled code."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], voidptr_t)

    return types.voidptr(address), codegen


@intrinsic
def call_native(typingctx, address, x, evaluation, table, d):
    """Call the function of :data:`SIGNATURE` at an address, its arrays by theirs, within compiled code."""

    def codegen(context, builder, signature, args):
        kinds = [context.get_value_type(kind) for kind in (*SIGNATURE.args, SIGNATURE.return_type)]
        callee = builder.inttoptr(args[0], ir.FunctionType(kinds[-1], kinds[:-1]).as_pointer())
        pointers = [builder.inttoptr(arg, kind) for arg, kind in zip(args[1:4], kinds, strict=False)]
        return builder.call(callee, [*pointers, args[4]])

    return SIGNATURE.return_type(*[types.int64] * 5), codegen


class _SeparateLibrary(JITCodeLibrary):
    """Machine code whose inner functions are visible to no other.

    They are private: LLVM's loader lists symbols of internal ones too, by which it would then take them, changed as
    they are by the optimiser, for those that other functions call.
    """

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.private
        super()._optimize_final_module()


class _SeparateCompiler(Compiler):
    """Numba's compiler, into a library of this kind."""

    def define_pipelines(self) -> Any:
        self.state.library = _SeparateLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def _call_by_address(dispatcher: Any, arrays: Sequence[types.Type]) -> Any:
    """Return an intrinsic ``call(arrays) -> (ok, result)`` that calls the dispatcher's machine code, with a tuple."""
    argument = types.BaseTuple.from_types(tuple(arrays))
    takes_one = bool(dispatcher.py_func.__code__.co_flags & inspect.CO_VARARGS)
    kinds = (argument,) if takes_one else tuple(arrays)
    dispatcher._compiler.pipeline_class = _SeparateCompiler
    dispatcher.compile(kinds)
    compiled = dispatcher.overloads[kinds]
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    result = compiled.fndesc.restype

    @intrinsic
    def call(typingctx, arguments):
        returned = types.Tuple((types.boolean, result))

        def codegen(context, builder, signature, args):
            convention = context.call_conv
            kind = convention.get_function_type(result, kinds)
            callee = builder.inttoptr(ir.Constant(ir.IntType(64), address), kind.as_pointer())
            values = args if takes_one else unpack_tuple(builder, args[0])
            status, value = convention.call_function(builder, callee, result, kinds, values)
            if not takes_one:  # Python code within it may have failed, which no one above looks for
                with builder.if_then(status.is_error, likely=False):
                    python = context.get_python_api(builder)
                    lock = python.gil_ensure()
                    python.err_clear()
                    python.gil_release(lock)
            return context.make_tuple(builder, returned, (status.is_ok, value))

        return returned(argument), codegen

    return call


_SOURCE = """
def native(x_pointer, gradient_pointer, table_pointer, d):
    x = carray(x_pointer, (d,)){cast}
    gradient = carray(gradient_pointer, ({width},))
    table = carray(table_pointer, ({size},))
{arrays}
    ok, result = call((x, {names}))
    if not ok:
        return nan
    vector = result[-1]
    for i in range({width}):  # a slice assignment would compile for seconds: its error message
        gradient[i] = vector[i]
    return {value}
"""


def native_function(function: Any, dtype: np.dtype, shared: Sequence[np.ndarray], has_value: bool, width: int) -> Any:
    """Wrap a compiled pytensor function of one flat vector in a C function of the engine's signature.

    Parameters
    ----------
    function
        ``pytensor.function([flat], [value, vector] or [vector], mode="NUMBA")``.
    dtype
        Dtype of its input; the engine's side is always float64.
    shared
        Values of its shared inputs, in order, of which only dtypes and numbers of dimensions matter.
    has_value
        Whether the value is an output; if not, the C function returns 0.
    width
        Length of the last output.
    """
    numba_type = numba.from_dtype(np.dtype(dtype))
    kinds = [types.Array(numba.from_dtype(a.dtype), a.ndim, "C") for a in shared]
    call = _call_by_address(function.vm.jit_fn, [types.Array(numba_type, 1, "C"), *kinds])
    namespace = {"carray": carray, "pointer": as_pointer, "call": call, "nan": np.nan, "dtype": np.dtype(dtype).type}
    lines = []
    position = 0
    for i, array in enumerate(shared):
        namespace[f"dtype{i}"] = array.dtype.type
        shape = "".join(f"table[{position + 1 + k}], " for k in range(array.ndim))
        lines.append(f"    s{i} = carray(pointer(table[{position}]), ({shape}), dtype{i})")
        position += 1 + array.ndim
    source = _SOURCE.format(
        cast="" if np.dtype(dtype) == np.float64 else ".astype(dtype)",
        size=max(position, 1),
        width=width,
        arrays="\n".join(lines),
        names="".join(f"s{i}, " for i in range(len(shared))),
        value="float(result[0].item())" if has_value else "0.0",
    )
    # Why exec: a cfunc cannot loop over arrays of different types, so the code for this number of shared arrays is
    # generated.  Without it, models with pm.Data or with variables of other steps could not be called.
    exec(source, namespace)
    return cfunc(SIGNATURE)(namespace["native"])


def address_table(shared: Sequence[np.ndarray]) -> np.ndarray:
    """Return addresses and shapes of C-contiguous arrays in the order in which :func:`native_function` reads them.

    The arrays live as long as the table.
    """
    entries = [entry for a in shared for entry in (a.ctypes.data, *a.shape)]
    table = np.array(entries or [0], dtype=np.int64)
    weakref.finalize(table, list, shared).atexit = False
    return table


def means_something(record: logging.LogRecord) -> bool:
    """Whether PyTensor's log of a rewrite's failure is not that of ``local_subtensor_merge_slice``.

    It merges ``x[a:b][i]`` with ``i`` in a byte, as PyTensor stores small integers: with NumPy 2 the difference of
    ``b`` and that byte is an error where ``b`` is above 127.  The graph stays as it is.
    """
    error = sys.exc_info()[1]  # which is handled while it is logged
    if not isinstance(error, OverflowError):
        return True
    return traceback.extract_tb(error.__traceback__)[-1].name != "merge_two_slices"


logging.getLogger("pytensor.graph.rewriting.basic").addFilter(means_something)

_VERSION = version_of(sys.modules[__name__])


class Product(Dot):
    """``x @ y`` of two matrices; ``row`` and ``column`` say that ``x`` has one row, ``y`` one column.

    PyTensor's own reads matrices of any strides in place.  Its code takes numba some ten seconds of a model's first
    compilation for each pair of layouts; ``np.dot`` takes a third of a second and copies a matrix that is not
    contiguous (``benchmarks/frozen/cold_start.txt``).
    """

    __props__ = ("row", "column")

    def __init__(self, row: bool, column: bool):
        self.row = row
        self.column = column


# Without annotations: numba compares the arguments of both.
def _contiguous(x):
    return np.ascontiguousarray(x)


@overload(_contiguous)
def _contiguous_of_layout(x):
    if x.layout == "A":
        return lambda x: np.ascontiguousarray(x)
    return lambda x: x


@register_funcify_default_op_cache_key(Product)
def _numba(op: Product, node: Any, **options: Any) -> tuple[Any, int]:
    if op.column:

        @numba_njit
        def product(x, y):
            return np.expand_dims(np.dot(_contiguous(x), _contiguous(y[:, 0])), 1)

    elif op.row:

        @numba_njit
        def product(x, y):
            return np.expand_dims(np.dot(_contiguous(x[0]), _contiguous(y)), 0)

    else:

        @numba_njit
        def product(x, y):
            return np.dot(_contiguous(x), _contiguous(y))

    return product, _VERSION


@node_rewriter([Dot])
def _light(fgraph: Any, node: Any) -> Any:
    x, y = (each.type for each in node.inputs)
    if type(node.op) is not Dot or x.dtype != y.dtype or x.dtype not in ("float32", "float64"):
        return None
    return [Product(x.shape[0] == 1, y.shape[1] == 1)(*node.inputs)]


def numba_mode() -> Mode:
    """Return PyTensor's numba mode with :class:`Product` in place of its own product."""
    # After all rewrites of PyTensor, which look for its own.
    return get_mode("NUMBA").register((in2out(_light, name="light_products"), 1000.0))
