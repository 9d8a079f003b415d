"""The log density of a PyMC model that a tape runs, in the form that the engine takes."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from pmm_mcmc.model.functions import building
from pmm_mcmc.model.native import numba_mode
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.tape.build import Builder, Tape
from pmm_mcmc.tape.loop import native
from pmm_mcmc.tape.table import trace

# What prepares a graph for numba's own code: without it, every node is one operation.
_NOT_REWRITTEN = ("fusion", "fuse_indexed_into_elemwise", "scalarize", "BlasOpt", "inplace")
# Nodes from which on a graph is not brought into PyTensor's canonical form once more, after its gradient was taken: 40
# steps of an epidemic (2,012 nodes) took 62 s, and 5,774 instructions in place of 2,732.  Of 50 models of galleries the
# largest has 700.
_LARGE = 1000
_NOT_IN_LARGE = ("canonicalize", "local_greedy_distributor")


class TapedDensity:
    """A :class:`pmm_mcmc.model.pytensor_density.PyTensorDensity` of a model, without a compiler.

    Data are constants of the tape, which is built anew where they have changed; variables that others move are inputs,
    read whenever a table is made.  Values and gradients are those of
    numba to rounding: ``checked`` is the last tape that was compared with PyTensor.

    Raises
    ------
    Unsupported
        If the model has an operation that no tape runs.
    """

    checked: Tape | None = None

    @building()
    def __init__(self, density: PyTensorDensity):
        flat, outputs = density.graph
        self.d = density.d
        self.structure = density.structure
        self.width = density.width
        parameters = density.density_parameters
        self._has_parameters = parameters is not None
        self._parameters = np.array([] if parameters is None else parameters.get_value(), dtype=float)
        self._others = list(density.others.values())
        moving = [*self._others] if parameters is None else [parameters, *self._others]
        variables = dict.fromkeys(ancestors(outputs))
        self._shared = [v for v in variables if isinstance(v, SharedVariable) and v not in moving]
        self._graph = FunctionGraph([flat, *moving, *self._shared], list(outputs), clone=True)
        large = len(self._graph.apply_nodes) > _LARGE
        numba_mode().excluding(*_NOT_REWRITTEN, *(_NOT_IN_LARGE if large else ())).optimizer.rewrite(self._graph)
        self._idle: list[tuple[np.ndarray, np.ndarray]] = []  # a workspace that nobody uses, with what it is a copy of
        self._tape = self._built()

    def _built(self) -> Tape:
        """Return the tape for the current data."""
        self._values = [shared.get_value(borrow=True) for shared in self._shared]
        self._data = [np.array(value) for value in self._values]
        builder = Builder()
        inputs = [builder.new(np.shape(value)) for value in (np.empty(self.d), *self._moving(self._parameters))]
        outputs = trace(builder, self._graph, [*inputs, *self._data])
        return builder.finish(inputs, [builder.copy(output) for output in outputs])

    def _moving(self, parameters: np.ndarray) -> list[np.ndarray]:
        """Return the values of the inputs beside the position: the density's parameters, and what others move."""
        others = [np.asarray(other.get_value(borrow=True)) for other in self._others]
        return [parameters, *others] if self._has_parameters else others

    def current(self, parameters: np.ndarray | None = None) -> Tape:
        """Return the tape for the data as they are now, and as many parameters of the density."""
        parameters = self._parameters if parameters is None else parameters
        values = [shared.get_value(borrow=True) for shared in self._shared]
        same = all(map(operator.is_, values, self._values)) or all(map(np.array_equal, values, self._data))
        self._values = values
        # The mixture that a ladder begins from has its own number of parameters.
        if len(parameters) != len(self._parameters) or not same:
            self._parameters = np.array(parameters, dtype=float)
            self._tape = self._built()
        return self._tape

    def by_pytensor(self, z: np.ndarray) -> list[Any]:
        """Return value and evaluation at a position by PyTensor's own operations, one after the other."""
        return trace(Builder(), self._graph, [z, *self._moving(self._parameters), *self._data])

    def function(self, output: str) -> Any:
        """Return the C function of the engine's signature, which is that of any model."""
        return native()

    def table(self, output: str, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return the addresses of the tape and of a workspace, which only one thread may use at a time.

        ``output`` is ``"joint"``, or ``"gradient"`` for the gradient alone.
        """
        parameters = self._parameters if density_parameters is None else density_parameters
        code, template, inputs, (value, evaluation), functions = self.current(parameters)
        try:
            copied, workspace = self._idle.pop()
        except IndexError:
            copied = workspace = np.empty(0)
        if copied is not template:
            workspace = template.copy()
        for start, values in zip(inputs[1:], self._moving(parameters), strict=True):
            workspace[start : start + values.size] = values.ravel()
        width = self.width if output == "joint" else self.d
        places = code.ctypes.data, len(code), workspace.ctypes.data, len(workspace), value, evaluation, width
        table = np.array(places, dtype=np.int64)
        weakref.finalize(table, self._give_back, template, workspace, (code, functions)).atexit = False
        return table

    def _give_back(self, template: np.ndarray, workspace: np.ndarray, used: tuple[Any, ...]) -> None:
        """Keep a workspace for the next table: to copy one a draw takes longer than many a gradient."""
        self._idle[:] = [(template, workspace)]
