"""Products of matrices that numba compiles in tenths of a second.

PyTensor's product reads matrices of any strides in place.  Its code takes numba some ten seconds of a model's first
compilation for each pair of layouts; ``np.dot`` takes a third of a second and copies a matrix that is not contiguous
(``benchmarks/frozen/cold_start.txt``).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba.extending import overload
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.math import Dot

from pmm_mcmc.coordinates.numba_op import version_of
from pmm_mcmc.model.rewrite_failures import keep_out_of_log

__all__ = ["Product", "numba_mode"]

keep_out_of_log()

_VERSION = version_of(sys.modules[__name__])


class Product(Dot):
    """``x @ y`` of two matrices; ``row`` and ``column`` say that ``x`` has one row, ``y`` one column."""

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
