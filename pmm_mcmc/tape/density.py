"""The log density of a PyMC model that a tape runs, in the form that the engine takes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from pmm_mcmc.model.log_density import ModelDensity
from pmm_mcmc.model.products import numba_mode
from pmm_mcmc.tape.build import Builder, Tape
from pmm_mcmc.tape.loop import native
from pmm_mcmc.tape.table import trace

__all__ = ["TapedDensity"]

# What prepares a graph for numba's own code: without it, every node is one operation.
_NOT_REWRITTEN = ("fusion", "fuse_indexed_into_elemwise", "scalarize", "BlasOpt")


class TapedDensity:
    """A :class:`pmm_mcmc.model.log_density.ModelDensity` of all variables of a model, without a compiler.

    Data are constants of the tape, which is built anew where they have changed.  Values and gradients are those of
    numba to rounding.

    Raises
    ------
    Unsupported
        If the model has an operation that no tape runs.
    """

    def __init__(self, density: ModelDensity):
        flat, outputs = density.graph
        self.d = density.d
        self.structure = density.structure
        self.width = density.width
        self._inputs = [flat] if density.sites is None else [flat, density.sites]
        self._sites = np.empty(0) if density.sites is None else np.array(density.sites.get_value(), dtype=float)
        variables = dict.fromkeys(ancestors(outputs))
        self._shared = [v for v in variables if isinstance(v, SharedVariable) and v is not density.sites]
        self._graph = FunctionGraph([*self._inputs, *self._shared], list(outputs), clone=True)
        self._graph.attach_feature(Supervisor(self._graph.inputs))  # without which PyTensor complains
        numba_mode().excluding(*_NOT_REWRITTEN).optimizer.rewrite(self._graph)
        self._data: list[np.ndarray] = []
        self._tape = self._built()

    def _built(self) -> Tape:
        """Return the tape for the current data."""
        self._data = [np.array(shared.get_value(borrow=True)) for shared in self._shared]
        builder = Builder()
        inputs = [builder.new((size,)) for size in (self.d, len(self._sites))[: len(self._inputs)]]
        outputs = trace(builder, self._graph, [*inputs, *self._data])
        return builder.finish(inputs, [builder.copy(output) for output in outputs])

    def function(self, output: str) -> Any:
        """Return the C function of the engine's signature, which is that of any model."""
        return native()

    def table(self, output: str, sites: np.ndarray | None = None) -> np.ndarray:
        """Return the addresses of the tape and of a workspace, which only one thread may use at a time.

        ``output`` is ``"joint"``, or ``"gradient"`` for the gradient alone; ``sites`` are those of the non-centring.
        """
        current = [shared.get_value(borrow=True) for shared in self._shared]
        lengthened = sites is not None and len(sites) != len(self._sites)  # by the mixture of a ladder
        if lengthened or not all(map(np.array_equal, current, self._data)):
            self._sites = self._sites if sites is None else np.array(sites, dtype=float)
            self._tape = self._built()
        code, template, inputs, (value, evaluation) = self._tape
        workspace = template.copy()
        if len(self._sites):
            workspace[inputs[1] : inputs[1] + len(self._sites)] = self._sites if sites is None else sites
        width = self.width if output == "joint" else self.d
        places = code.ctypes.data, len(code), workspace.ctypes.data, len(workspace), value, evaluation, width
        table = np.array(places, dtype=np.int64)
        weakref.finalize(table, list, (code, workspace)).atexit = False
        return table
