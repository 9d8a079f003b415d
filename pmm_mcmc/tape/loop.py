"""The loop that runs tapes: one function that numba compiles once a machine, for all models.

A tape is an array of instructions ``(n, 16)`` over one workspace of doubles.  An instruction is a code, the numbers of
rows and of columns that it visits, then for its result and up to three operands an offset into the workspace with
strides by row and by column, and last the address of a function.  That of REPEAT has the number of elements that it
looks at, and the instruction that it goes back to.  Booleans are 0 and 1, indices are doubles too.
Unsigned integers wrap around, so that strides may be negative and no index is tested for its sign.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from pmm_mcmc.model.native import SIGNATURE, as_pointer

CELLS = 16
ARGUMENTS = 13  # of a function of BLAS or LAPACK, at most
(
    COPY, ADD, SUB, MUL, DIV, SQRT, ABS, SIGN, ROUND32, MAXIMUM, MINIMUM, SWITCH, LT, LE, EQ, NEQ, SIGMOID, SOFTPLUS,
    CALL, GATHER, SCATTER_ADD, SCATTER_SET, SUM, DOT, CUMSUM, CUMPROD, CHECK, FOREIGN, REPEAT,
) = range(29)  # fmt: skip
_inner = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic
def _call(typingctx, address, x, y, z):
    """Call a function of one to three doubles, which does not see the rest; SciPy's see an integer after them."""

    def codegen(context, builder, signature, args):
        double = ir.DoubleType()
        integer = ir.IntType(32)
        callee = builder.inttoptr(args[0], ir.FunctionType(double, [double] * 3 + [integer]).as_pointer())
        return builder.call(callee, [*args[1:], ir.Constant(integer, 0)])

    return types.float64(types.uint64, types.float64, types.float64, types.float64), codegen


@intrinsic
def _foreign(typingctx, instruction, workspace):
    """Call a function of pointers: to cells of the instruction, or where its mask says so to the workspace."""

    def codegen(context, builder, signature, args):
        integer = ir.IntType(64)
        byte = ir.IntType(8).as_pointer()

        def place(i):
            return builder.add(args[0], ir.Constant(integer, 8 * i))

        def cell(i):
            return builder.load(builder.inttoptr(place(i), integer.as_pointer()))

        pointers = []
        for i in range(ARGUMENTS):
            in_workspace = builder.add(args[1], builder.shl(cell(3 + i), ir.Constant(integer, 3)))
            bit = builder.and_(cell(2), ir.Constant(integer, 1 << i))
            is_offset = builder.icmp_unsigned("!=", bit, ir.Constant(integer, 0))
            pointers.append(builder.inttoptr(builder.select(is_offset, in_workspace, place(3 + i)), byte))
        kind = ir.FunctionType(ir.VoidType(), [byte] * ARGUMENTS)
        builder.call(builder.inttoptr(cell(1), kind.as_pointer()), pointers)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@njit(fastmath={"reassoc", "nsz"}, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _sum(w, a, an, n):
    total = 0.0
    for j in range(n):
        total += w[a + j * an]
    return total


@njit(fastmath={"reassoc", "nsz", "contract"}, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _dot(w, a, an, b, bn, n):
    total = 0.0
    for j in range(n):
        total += w[a + j * an] * w[b + j * bn]
    return total


@_inner
def _softplus(x):
    if x < 18.0:
        return math.log1p(math.exp(x))
    if x < 33.3:
        return x + math.exp(-x)
    return x


@_inner
def _arithmetic(code, w, n, o, on, a, an, b, bn, c, cn):
    """Fill a row by an operation that the processor has."""
    if code == COPY:
        for j in range(n):
            w[o + j * on] = w[a + j * an]
    elif code == ADD:
        for j in range(n):
            w[o + j * on] = w[a + j * an] + w[b + j * bn]
    elif code == SUB:
        for j in range(n):
            w[o + j * on] = w[a + j * an] - w[b + j * bn]
    elif code == MUL:
        for j in range(n):
            w[o + j * on] = w[a + j * an] * w[b + j * bn]
    elif code == DIV:
        for j in range(n):
            w[o + j * on] = w[a + j * an] / w[b + j * bn]
    elif code == SQRT:
        for j in range(n):
            w[o + j * on] = math.sqrt(w[a + j * an])
    elif code == ABS:
        for j in range(n):
            w[o + j * on] = abs(w[a + j * an])
    elif code == SIGN:
        for j in range(n):
            w[o + j * on] = np.sign(w[a + j * an])
    elif code == ROUND32:
        for j in range(n):
            w[o + j * on] = np.float64(np.float32(w[a + j * an]))
    elif code == MAXIMUM:
        for j in range(n):
            w[o + j * on] = np.maximum(w[a + j * an], w[b + j * bn])
    elif code == MINIMUM:
        for j in range(n):
            w[o + j * on] = np.minimum(w[a + j * an], w[b + j * bn])


@_inner
def _logic(code, w, n, o, on, a, an, b, bn, c, cn):
    """Fill a row by a comparison, or by a choice."""
    if code == SWITCH:
        for j in range(n):
            w[o + j * on] = w[b + j * bn] if w[a + j * an] != 0.0 else w[c + j * cn]
    elif code == LT:
        for j in range(n):
            w[o + j * on] = 1.0 if w[a + j * an] < w[b + j * bn] else 0.0
    elif code == LE:
        for j in range(n):
            w[o + j * on] = 1.0 if w[a + j * an] <= w[b + j * bn] else 0.0
    elif code == EQ:
        for j in range(n):
            w[o + j * on] = 1.0 if w[a + j * an] == w[b + j * bn] else 0.0
    elif code == NEQ:
        for j in range(n):
            w[o + j * on] = 1.0 if w[a + j * an] != w[b + j * bn] else 0.0


@_inner
def _functions(code, w, n, o, on, a, an, b, bn, c, cn, extra):
    """Fill a row by a function."""
    if code == SIGMOID:
        for j in range(n):
            w[o + j * on] = 1.0 / (1.0 + math.exp(-w[a + j * an]))
    elif code == SOFTPLUS:
        for j in range(n):
            w[o + j * on] = _softplus(w[a + j * an])
    elif code == CALL:
        for j in range(n):
            w[o + j * on] = _call(extra, w[a + j * an], w[b + j * bn], w[c + j * cn])


@_inner
def _moved(code, w, n, o, on, a, an, b, bn):
    """Read or write a row at offsets."""
    if code == GATHER:
        for j in range(n):
            w[o + j * on] = w[a + np.uint64(np.int64(w[b + j * bn]))]
    elif code == SCATTER_ADD:
        for j in range(n):
            w[o + np.uint64(np.int64(w[b + j * bn]))] += w[a + j * an]
    elif code == SCATTER_SET:
        for j in range(n):
            w[o + np.uint64(np.int64(w[b + j * bn]))] = w[a + j * an]


@_inner
def _reduced(code, w, n, o, on, a, an, b, bn):
    """Reduce or accumulate a row."""
    if code == SUM:
        w[o] = _sum(w, a, an, n)
    elif code == DOT:
        w[o] = _dot(w, a, an, b, bn, n)
    elif code == CUMSUM:
        total = 0.0
        for j in range(n):
            total += w[a + j * an]
            w[o + j * on] = total
    elif code == CUMPROD:
        total = 1.0
        for j in range(n):
            total *= w[a + j * an]
            w[o + j * on] = total


@_inner
def _any(w, a, n):
    for j in range(n):
        if w[a + j] != 0.0:
            return True
    return False


@njit(cache=True, error_model="numpy")
def run_tape(tape, w):
    """Run a tape of unsigned integers ``(n, 16)`` over its workspace; return whether every check held."""
    k: Any = 0
    while k < len(tape):
        code = np.int64(tape[k, 0])
        if code == FOREIGN:
            _foreign(tape[k:].ctypes.data, w.ctypes.data)
            k += 1
            continue
        if code == REPEAT:
            k = np.int64(tape[k, 2]) if _any(w, tape[k, 3], tape[k, 1]) else k + 1
            continue
        n = tape[k, 2]
        o = tape[k, 3]
        a = tape[k, 6]
        b = tape[k, 9]
        c = tape[k, 12]
        on = tape[k, 5]
        an = tape[k, 8]
        bn = tape[k, 11]
        cn = tape[k, 14]
        for _ in range(tape[k, 1]):
            if code <= MINIMUM:
                _arithmetic(code, w, n, o, on, a, an, b, bn, c, cn)
            elif code <= NEQ:
                _logic(code, w, n, o, on, a, an, b, bn, c, cn)
            elif code <= CALL:
                _functions(code, w, n, o, on, a, an, b, bn, c, cn, tape[k, 15])
            elif code <= SCATTER_SET:
                _moved(code, w, n, o, on, a, an, b, bn)
            elif code < CHECK:
                _reduced(code, w, n, o, on, a, an, b, bn)
            else:
                for j in range(n):
                    if w[a + j * an] == 0.0:
                        return False
            o += tape[k, 4]
            a += tape[k, 7]
            b += tape[k, 10]
            c += tape[k, 13]
        k += 1
    return True


@cache
def native() -> Any:
    """Return the C function of the engine's signature, compiled at the first call.

    Its table has address and length of the tape and of the workspace, offsets of value and evaluation, and the number
    of elements of the latter to return.  The position is the start of the workspace.
    """

    @cfunc(SIGNATURE, cache=True)
    def native(x_pointer, evaluation_pointer, table_pointer, d):
        table = carray(table_pointer, (7,))
        tape = carray(as_pointer(table[0]), (table[1], CELLS), np.uint64)
        w = carray(as_pointer(table[2]), (table[3],), np.float64)
        x = carray(x_pointer, (d,))
        evaluation = carray(evaluation_pointer, (table[6],))
        for i in range(d):
            w[i] = x[i]
        if not run_tape(tape, w):
            return np.nan
        for i in range(table[6]):
            evaluation[i] = w[table[5] + i]
        return w[table[4]]

    return native
