"""C functions as log densities: those that users pass by address, and those of Stan models.

The engine calls one compiled function of :data:`pmm_mcmc.api.SIGNATURE`, :func:`_native`, for all of them: it reads the
address of the function and that of its data from its table.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pmm_mcmc.api import SIGNATURE, ChildVariable, LogDensity, Structure, as_pointer, check_ndim, noncentred_op

__all__ = ["CFunction", "PointerDensity", "pointer_density"]

_NUMBERS = types.CPointer(types.double)
# The form of a user's function, for numba and in C.
_FORM = types.intc(types.size_t, _NUMBERS, _NUMBERS, _NUMBERS, types.voidptr)
_FORM_IN_C = "int f(size_t n, const double* x, double* gradient, double* value, void* data)"
_ACCEPTED = "an integer address, a ctypes function or a numba.cfunc"


def _caller(of_stan: bool) -> Any:
    """Return an intrinsic ``call(address, data, n, x, gradient) -> (code, value)``, the arrays by their addresses.

    The function has the form of a user's or, ``of_stan``, that of BridgeStan's ``bs_log_density_gradient``.
    """
    returned = types.Tuple((types.int32, types.float64))

    @intrinsic
    def call(typingctx, address, data, n, x, gradient):
        def codegen(context, builder, signature, args):
            address, data, n, x, gradient = args
            boolean = ir.IntType(1)
            double = ir.DoubleType()
            numbers = double.as_pointer()
            pointer = ir.IntType(8).as_pointer()
            value = cgutils.alloca_once_value(builder, ir.Constant(double, float("nan")))
            builder.store(ir.Constant(double, float("nan")), value)
            data = builder.inttoptr(data, pointer)
            x, gradient = (builder.inttoptr(address_of, numbers) for address_of in (x, gradient))
            if of_stan:  # (model, propto, jacobian, theta, value, gradient, message); C's bool is a byte of 0 or 1
                parameters = [pointer, boolean, boolean, numbers, numbers, numbers, pointer]
                true = ir.Constant(boolean, 1)
                arguments = [data, true, true, x, value, gradient, ir.Constant(pointer, None)]
                attributes = {1: ("zeroext",), 2: ("zeroext",)}
            else:
                parameters = [ir.IntType(types.size_t.bitwidth), numbers, numbers, numbers, pointer]
                arguments = [n, x, gradient, value, data]
                attributes = {}
            callee = builder.inttoptr(address, ir.FunctionType(ir.IntType(32), parameters).as_pointer())
            code = builder.call(callee, arguments, arg_attrs=attributes)
            return context.make_tuple(builder, returned, (code, builder.load(value)))

        return returned(*[types.int64] * 5), codegen

    return call


_call = _caller(of_stan=False)
_call_of_stan = _caller(of_stan=True)


@njit
def _evaluate(x, gradient, table):
    """Fill the gradient at ``x``, and return the code and the value of the function of :attr:`CFunction.table`."""
    address, data, of_stan = table
    if of_stan:
        return _call_of_stan(address, data, len(x), x.ctypes.data, gradient.ctypes.data)
    return _call(address, data, len(x), x.ctypes.data, gradient.ctypes.data)


@cache
def _native() -> Any:
    """Return the C function that the engine calls, which calls what its table says."""

    @cfunc(SIGNATURE)
    def native(x, gradient, table, d):
        code, value = _evaluate(carray(x, (d,)), carray(gradient, (d,)), carray(table, (3,)))
        return value if code == 0 else np.nan

    return native


@cache
def _native_of_graph() -> Any:
    """Return the C function that a tape calls: of a table's address, coordinates, position, gradient and value."""
    integer = types.CPointer(types.int64)

    @cfunc(types.void(integer, integer, _NUMBERS, _NUMBERS, _NUMBERS))
    def native_of_graph(table, n, x, gradient, value):
        shape = (n[0],)
        function = carray(as_pointer(table[0]), (3,), np.int64)
        code, result = _evaluate(carray(x, shape), carray(gradient, shape), function)
        value[0] = result if code == 0 else np.nan

    return native_of_graph


class CFunction:
    """A C function with its data; ``owner`` is what must live as long as it.

    Attributes
    ----------
    table : (3,) int64
        The addresses of the function and of its data, and whether it has the form of BridgeStan's.
    """

    def __init__(self, address: int, data: int, owner: Any, of_stan: bool = False):
        # As signed numbers, which is what an address above 2^63 becomes.
        self.table = np.array([address, data, of_stan], dtype=np.uint64).view(np.int64)
        self._owner = owner

    def explain(self, x: np.ndarray) -> str:
        """Say why there is no finite value at ``x``."""
        gradient = np.full(len(x), np.nan)
        code, value = _evaluate(np.array(x, dtype=float), gradient, self.table)
        if code:
            return f"the C function returned code {code}"
        bad = np.flatnonzero(~np.isfinite(gradient))
        parts = [f"the value is {value}"] if not np.isfinite(value) else []
        parts += [f"element {bad[0]} of the gradient is {gradient[bad[0]]}"] if bad.size else []
        return "; ".join(parts)


class _Density(Op):
    """The value of a C function at a position, NaN where it fails, and its gradient: for tapes."""

    def __init__(self, function: CFunction):
        self.function = function

    def make_node(self, x: Any) -> Apply:
        """Return the node."""
        return Apply(self, [x], [pt.dscalar(), x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        """Raise: tapes alone run it."""
        raise NotImplementedError

    def on_tape(self, builder: Any, x: Any) -> list[Any]:
        """Append a call of the function to a tape, and return value and gradient."""
        value = builder.new(())
        gradient = builder.new(x.shape)
        table = int(self.function.table.ctypes.data)
        builder.foreign(_native_of_graph().address, table, len(x), builder.copy(x), gradient, value)
        return [value, gradient]


class PointerDensity(LogDensity):
    """A C function as a log density, in the form that the numba engine takes.

    Attributes
    ----------
    shapes : dict
        Variables whose values are the vector, in their order, with their shapes.
    """

    runs_on = "numba"
    children: Mapping[str, ChildVariable]

    def __init__(self, function: CFunction, d: int, thread_safe: bool):
        super().__init__(d)
        self.thread_safe = thread_safe
        self.explain = function.explain
        self.structure = Structure.identity(d)
        self.width = d
        self.shapes: Mapping[Any, tuple[int, ...]] = {}
        self._called = function

    def _composed(self, fixed: Mapping[str, bool]) -> LogDensity:
        density = copy.copy(self)
        chosen = [(self.children[name], is_fixed) for name, is_fixed in fixed.items()]
        children = [v._replace(child=v.child._replace(fixed=is_fixed)) for v, is_fixed in chosen]
        density.composed = noncentred_op(_Density(self._called), self.shapes, children)
        return density

    def function(self, output: str) -> Any:
        """Return the C function of the engine's signature, for end points and midpoints alike."""
        return _native()

    def table(self, output: str, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return the addresses that it reads: of the user's function and its data."""
        return self._called.table


def pointer_density(address: Any, ndim: Any, data: Any, thread_safe: Any) -> PointerDensity:
    """Return the density of :meth:`pmm_mcmc.LogDensity.from_pointer`."""
    check_ndim(ndim, "the function")
    if not isinstance(thread_safe, bool | np.bool_):
        raise ValueError(f"thread_safe={thread_safe!r}: must be True or False")
    function = CFunction(_address_of(address), _data_at(data), (address, data))
    return PointerDensity(function, int(ndim), bool(thread_safe))


def _address_of(address: Any) -> int:
    """Return the address of a function."""
    if hasattr(address, "address") and hasattr(address, "_sig"):  # numba.cfunc
        if address._sig != _FORM:
            raise ValueError(
                f"address: the numba.cfunc has signature {address._sig}; must be {_FORM}, which is that of {_FORM_IN_C}"
            )
        return int(address.address)
    if isinstance(address, numba.core.registry.CPUDispatcher):
        raise ValueError(f"address={address!r}: a numba.njit function has no C address; use numba.cfunc({_FORM})")
    if isinstance(address, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        address = ctypes.cast(address, ctypes.c_void_p).value
    if isinstance(address, bool) or not isinstance(address, int | np.integer) or not 0 < int(address) < 2**64:
        raise ValueError(f"address={address!r}: must be the address of {_FORM_IN_C}: {_ACCEPTED}, and not 0")
    return int(address)


def _data_at(data: Any) -> int:
    """Return the address of the data."""
    if data is None:
        return 0
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous or data.dtype.hasobject:
            raise ValueError(
                f"data: an array of dtype {data.dtype} that is not C-contiguous, or of Python objects, cannot be read "
                "in C; use np.ascontiguousarray(data)"
            )
        return int(data.ctypes.data)
    if isinstance(data, ctypes.Structure | ctypes.Union | ctypes.Array):
        return ctypes.addressof(data)
    if isinstance(data, ctypes.c_void_p | ctypes._Pointer):
        return ctypes.cast(data, ctypes.c_void_p).value or 0
    if isinstance(data, int | np.integer) and not isinstance(data, bool) and 0 <= int(data) < 2**64:
        return int(data)
    raise ValueError(f"data={data!r}: must be None, an address, a NumPy array or a ctypes object")
