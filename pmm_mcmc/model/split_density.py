"""A log density as a function of one vector for each variable.

Gradients by slices of one long vector would be added up in as many copies of that vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace, graph_replace

from pmm_mcmc.model.pytensor_density import Layout

__all__ = ["SplitDensity", "concatenate"]


class SplitDensity(NamedTuple):
    """A log density and its gradient as graphs of the position's blocks, one for each variable.

    Attributes
    ----------
    blocks : list
        A vector for each variable, of known length and one dtype.
    logp, gradients
        The log density, and its gradient by each block.
    """

    blocks: list[Any]
    logp: Any
    gradients: list[Any]

    @classmethod
    def of(cls, vars: Sequence[Any], layout: Layout, logp: Any, others: Mapping[Any, Any]) -> SplitDensity:
        """Take the gradient of a log density of value variables; ``others`` are replaced as they say."""
        dtype = np.result_type(*(var_dtype for *_, var_dtype in layout))
        blocks = [pt.vector(name, dtype=dtype, shape=(size,)) for name, _, size, _ in layout]
        values = {
            var: var.type.filter_variable(vector.reshape(shape).astype(var_dtype))
            for var, vector, (_, shape, _, var_dtype) in zip(vars, blocks, layout, strict=True)
        }
        (logp,) = clone_replace([logp], {**values, **others}, rebuild_strict=False)
        return cls(blocks, logp, pytensor.grad(logp, blocks, disconnected_inputs="ignore"))

    def flat(self) -> Any:
        """Return a vector that holds all blocks."""
        size = sum(vector.type.shape[0] for vector in self.blocks)
        return pt.vector("joined_inputs", dtype=self.blocks[0].dtype, shape=(size,))

    def cut(self, flat: Any) -> list[Any]:
        """Return the blocks of a vector that holds all."""
        ends = np.cumsum([0, *(vector.type.shape[0] for vector in self.blocks)]).tolist()
        return [flat[begin:end] for begin, end in pairwise(ends)]

    def at(self, blocks: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return the log density and its gradients at other graphs of the blocks."""
        logp, *gradients = graph_replace(
            [self.logp, *self.gradients], dict(zip(self.blocks, blocks, strict=True)), strict=False
        )
        return logp, gradients

    def at_flat(self, flat: Any) -> tuple[Any, Any]:
        """Return the log density and its gradient, a vector, at a vector that holds all blocks."""
        logp, gradients = self.at(self.cut(flat))
        return logp, concatenate(gradients)


def concatenate(blocks: Sequence[Any]) -> Any:
    """Return one vector of the blocks."""
    return pt.concatenate([vector.ravel() for vector in blocks]).astype(blocks[0].dtype)
