"""Operations of PyTensor that a tape leaves to their own Python code: users' operations, and splines and solvers.

A tape calls them as C functions that take the interpreter lock, some ten microseconds each; numba would run them
likewise, after a compilation.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from pytensor.graph.op import HasInnerGraph
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from pmm_mcmc.tape import loop
from pmm_mcmc.tape.build import Builder, Unsupported

__all__ = ["perform", "performed"]

_log = logging.getLogger("pmm_mcmc")
# Arguments and results of a function of NumPy, at most: terms of a sum may be more.
_MOST_OF_NUMPY = 31
_CALLBACK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * loop.ARGUMENTS)


def perform(node: Any, values: Sequence[Any]) -> list[Any]:
    """Return what a node makes of numbers, by PyTensor's own code."""
    if len(values) > _MOST_OF_NUMPY and isinstance(node.op, Elemwise) and node.op.scalar_op.nfunc_spec:
        return [reduce(getattr(np, node.op.scalar_op.nfunc_spec[0]), values)]
    if hasattr(node.op, "prepare_node"):
        node.op.prepare_node(node, None, None, "py")
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    inputs = [each.type.filter(value, allow_downcast=True) for each, value in zip(node.inputs, values, strict=True)]
    node.op.perform(node, inputs, storage)
    return [each for (each,) in storage]


def performed(builder: Builder, node: Any, values: Sequence[Any]) -> list[np.ndarray]:
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


def _shapes(builder: Builder, node: Any, values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a node's outputs, which a trial shows where its types do not say them."""
    shapes = [out.type.shape for out in node.outputs]
    if any(None in shape for shape in shapes):
        numbers = [np.full(value.shape, 0.5) if builder.depends(value) else value for value in values]
        shapes = [np.shape(each) for each in perform(node, numbers)]
    return shapes
