"""A log density and its gradient as PyTensor graphs of one vector, and compiled to C functions for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace, graph_replace

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.native import address_table, native_function, numba_mode

# Name, shape, size and dtype of each variable within a flat vector.
Layout = tuple[tuple[str, tuple[int, ...], int, np.dtype], ...]


class SplitDensity(NamedTuple):
    """A log density and its gradient as graphs of the position's blocks, one for each variable.

    Gradients by slices of one long vector would be added up in as many copies of that vector.

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


@dataclass(eq=False)
class PyTensorDensity:
    """The log density of a model as a function of some of its variables, raveled to one vector of length ``d``.

    Data enter as shared inputs that :meth:`table` reads before each run.

    Attributes
    ----------
    layout
        Name, shape, size and dtype of each variable within the vector.
    flat, logp, gradient, evaluation
        Graphs: the vector, its log density, the gradient, and the evaluation of :mod:`pmm_mcmc.engines.contract`.
    width
        Length of the evaluation.
    structure
        The non-centring that they apply.
    density_parameters
        Shared variable of the numbers that differ between chains: of the non-centring, or of a path.
    others
        Shared variables of the model's other value variables, by name.
    jax, tape
        The same density for JAX, and on a tape, once a run has asked for it.
    """

    layout: Layout
    flat: Any
    logp: Any
    gradient: Any
    evaluation: Any
    width: int
    structure: Structure
    density_parameters: SharedVariable | None = None
    others: Mapping[str, SharedVariable] = field(default_factory=dict)
    jax: Any = None
    tape: Any = None
    _functions: dict[str, _Function] = field(default_factory=dict)

    @property
    def d(self) -> int:
        """Number of unconstrained coordinates."""
        return self.structure.d

    @property
    def graph(self) -> tuple[Any, list[Any]]:
        """The vector, with log density and evaluation as graphs of it."""
        return self.flat, [self.logp, self.evaluation]

    @property
    def compiled(self) -> bool:
        """Whether the C function ``"joint"`` is there already."""
        return "joint" in self._functions

    def function(self, output: str) -> Any:
        """Return the C function ``"joint"`` or ``"gradient"``, compiled at the first call."""
        if output not in self._functions:
            has_value = output == "joint"
            graphs = [self.logp, self.evaluation] if has_value else [self.gradient]
            compiled = compile([self.flat], graphs, mode=numba_mode(), trust_input=True, on_unused_input="ignore")
            width = self.width if has_value else self.d
            self._functions[output] = _Function(compiled, self.flat.dtype, has_value, width)
        return self._functions[output].native

    def table(self, output: str, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return addresses and shapes of the current shared data and parameters: arrays that live as long as it."""
        arrays = self._functions[output].arrays()
        if self.density_parameters is not None and density_parameters is not None:
            numbers = np.ascontiguousarray(density_parameters, dtype=self.density_parameters.type.dtype)
            arrays = [
                numbers if shared is self.density_parameters else array
                for shared, array in zip(self._functions[output].shared, arrays, strict=True)
            ]
        return address_table(arrays)


class _Function:
    """A compiled PyTensor function as a C function, ``native``, with the shared data that it reads."""

    def __init__(self, compiled: Any, dtype: Any, has_value: bool, width: int):
        self.shared: list[SharedVariable] = compiled.get_shared()
        self._values: list[Any] = [None] * len(self.shared)
        self._arrays: list[Any] = [None] * len(self.shared)
        self.native = native_function(compiled, dtype, self.arrays(), has_value, width)
        # The machine code behind the pointer lives as long as this function.
        self.native.owner = compiled

    def arrays(self) -> list[np.ndarray]:
        """Return shared data as C-contiguous arrays; a copy is kept as long as the data are the same object."""
        for i, shared in enumerate(self.shared):
            value = shared.get_value(borrow=True)
            if value is not self._values[i]:
                self._arrays[i] = np.asarray(value, order="C")
                self._values[i] = value
        return list(self._arrays)
