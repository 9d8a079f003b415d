"""A change of variables as a PyTensor operation that numba has compiled before, with a gradient of its own.

Composed of PyTensor's operations, Cholesky factors and triangular solves take numba a minute for each model; a numba
function is compiled once and kept on disk.  The operations run with numba, JAX and without a compiler.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.gradient import DisconnectedType, grad_undefined
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.jax.ops import JAXOp
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.blockwise import Blockwise

# Of a C function of two lengths, the inputs in one row and the outputs in one row, each by its address.
NATIVE = types.void(*[types.CPointer(types.int64)] * 2, *[types.CPointer(types.float64)] * 2)


def version_of(loops):
    """Return a number of a module's text: PyTensor keeps compiled graphs on disk, and another text is another key."""
    return int.from_bytes(hashlib.sha256(Path(loops.__file__).read_bytes()).digest()[:8], "big")


class NumbaOp(JAXOp):
    """A PyTensor operation whose numba code is a function that was compiled before.

    Subclasses have ``kernel``, the numba function; ``perform_jax``, the same by JAX; ``gufunc_signature``, the shapes
    of its arguments and results; and ``version`` (:func:`version_of`).  PyTensor's linker looks for ``perform_jax`` in
    a JAXOp, so that JAX is imported where it is used only.
    """

    __props__: tuple[str, ...] = ()
    name = None

    def __init__(self):
        Op.__init__(self)

    def perform(self, node, inputs, output_storage):
        """Run the numba function."""
        # Writable copies in one order: numba compiles the kernel anew for any other kind of array.
        values = self.kernel(*(np.array(value, order="C") for value in inputs))
        for store, value in zip(output_storage, values, strict=True):
            store[0] = value

    def connection_pattern(self, node):
        """Return that every output depends on every input."""
        return [[True for _ in node.outputs] for _ in node.inputs]


class NumbaMap(NumbaOp):
    """``x`` and ``log |dx / dz|`` at ``z`` and parameters, all in the dtype of ``z``.

    Subclasses have in addition ``position``, the index of ``z`` among the inputs; ``differentiable``, the indices of
    inputs with derivatives; and ``adjoint_kernel``, the numba function of their adjoints.
    """

    def make_node(self, *values):
        """Return the node."""
        inputs = self.cast(values)
        return Apply(self, inputs, [inputs[self.position].type(), pt.scalar(dtype=inputs[self.position].dtype)])

    def cast(self, values):
        """Return variables in the dtype of ``z``."""
        inputs = [pt.as_tensor_variable(value) for value in values]
        return [value.astype(inputs[self.position].dtype) for value in inputs]

    def infer_shape(self, node, shapes):
        """Return the shapes of the outputs."""
        return [shapes[self.position], ()]

    def pullback(self, inputs, outputs, cotangents):
        """Return the adjoints of the inputs from those of the outputs."""
        bars = [
            pt.zeros_like(output) if isinstance(bar.type, DisconnectedType) else bar
            for output, bar in zip(outputs, cotangents, strict=True)
        ]
        adjoints = [grad_undefined(self, i, value, "a constant of the map") for i, value in enumerate(inputs)]
        gradients = MapGradient(self)(*inputs, *bars, return_list=True)
        for i, adjoint in zip(self.differentiable, gradients, strict=True):
            adjoints[i] = adjoint
        return adjoints


class MapGradient(NumbaOp):
    """The adjoints of the differentiable inputs of a map at its inputs and the outputs' adjoints."""

    __props__ = ("map",)

    def __init__(self, map):
        super().__init__()
        self.map = map
        self.kernel = map.adjoint_kernel
        self.version = map.version
        inputs, outputs = map.gufunc_signature.split("->")
        axes = inputs[1:-1].split("),(")
        self.gufunc_signature = f"{inputs},{outputs}->" + ",".join(f"({axes[i]})" for i in map.differentiable)

    def make_node(self, *values):
        """Return the node."""
        inputs = self.map.cast(values)
        return Apply(self, inputs, [inputs[i].type() for i in self.map.differentiable])

    def infer_shape(self, node, shapes):
        """Return the shapes of the outputs."""
        return [shapes[i] for i in self.map.differentiable]

    @property
    def on_tape(self):
        """The function that appends the adjoints to a tape, if the map has one."""
        return self.map.adjoints_on_tape

    def perform_jax(self, *inputs):
        """Return the adjoints by JAX's own differentiation."""
        import jax

        *values, x_bar, log_det_bar = inputs
        indices = self.map.differentiable

        def outputs(*some):
            changed = dict(zip(indices, some, strict=True))
            return self.map.perform_jax(*(changed.get(i, value) for i, value in enumerate(values)))

        _, adjoint = jax.vjp(outputs, *(values[i] for i in indices))
        dtype = values[self.map.position].dtype
        return adjoint(tuple(jax.numpy.asarray(bar, dtype) for bar in (x_bar, log_det_bar)))

    def pullback(self, inputs, outputs, cotangents):
        """Raise: no second derivatives."""
        raise NotImplementedError("the non-centring map has first derivatives only; samplers need no others")


@register_funcify_default_op_cache_key(NumbaOp)
def _numba(op, node, **options):
    """Return what PyTensor's numba linker calls, and the key of its cache."""
    return op.kernel, op.version


def applied(op, *values):
    """Return the outputs of an operation at PyTensor variables or arrays; leading axes are batches."""
    inputs = [pt.as_tensor_variable(value) for value in values]
    # The number of axes of each argument, in a signature such as "(p),(n),()->(n)".
    core = [axes.count(",") + bool(axes) for axes in op.gufunc_signature.split("->")[0][1:-1].split("),(")]
    batched = any(value.ndim > ndim for value, ndim in zip(inputs, core, strict=True))
    return tuple((Blockwise(op) if batched else op)(*inputs))
