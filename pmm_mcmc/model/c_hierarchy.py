"""Non-centring of a log density that is a C function, such as a Stan model's: an operation in a graph of PyTensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pmm_mcmc.coordinates.structure import Signs
from pmm_mcmc.model.building import building
from pmm_mcmc.model.c_function import CFunction, native_of_graph
from pmm_mcmc.model.hierarchy import ChildVariable, Hierarchy
from pmm_mcmc.model.noncentred_density import composed
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.model.split_density import SplitDensity, concatenate

__all__ = ["noncentred_function"]


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
        builder.foreign(native_of_graph().address, table, len(x), builder.copy(x), gradient, value)
        return [value, gradient]


@building()
def noncentred_function(
    function: CFunction, shapes: Mapping[Any, tuple[int, ...]], children: Sequence[ChildVariable]
) -> PyTensorDensity:
    """Return the density of a C function of variables, of which the children are non-centred."""
    blocks = list(shapes)
    logp, gradient = _Density(function)(concatenate(blocks))
    density = SplitDensity(blocks, logp, SplitDensity(blocks, logp, []).cut(gradient))
    d = int(gradient.type.shape[0])
    hierarchy = Hierarchy(shapes, list(children), [], density.flat(), np.zeros(d))
    return composed(hierarchy, Signs.none(d), (), density)
