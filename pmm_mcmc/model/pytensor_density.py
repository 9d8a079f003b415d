"""A log density and its gradient as PyTensor graphs of one vector, and compiled to C functions for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pymc.pytensorf import compile
from pytensor.compile.sharedvalue import SharedVariable

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.native import address_table, native_function
from pmm_mcmc.model.products import numba_mode

__all__ = ["Layout", "PyTensorDensity"]

# Name, shape, size and dtype of each variable within a flat vector.
Layout = tuple[tuple[str, tuple[int, ...], int, np.dtype], ...]


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
    _shared: dict[str, list[SharedVariable]] = field(default_factory=dict)
    _held: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    _native: dict[str, Any] = field(default_factory=dict)

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
        return "joint" in self._native

    def function(self, output: str) -> Any:
        """Return the C function ``"joint"`` or ``"gradient"``, compiled at the first call."""
        if output not in self._native:
            has_value = output == "joint"
            graphs = [self.logp, self.evaluation] if has_value else [self.gradient]
            compiled = compile([self.flat], graphs, mode=numba_mode(), trust_input=True, on_unused_input="ignore")
            self._shared[output] = compiled.get_shared()
            width = self.width if has_value else self.d
            self._native[output] = native_function(compiled, self.flat.dtype, self._values(output), has_value, width)
            # The machine code behind the pointer lives as long as this function.
            self._native[output].owner = compiled
        return self._native[output]

    def _values(self, output: str) -> list[np.ndarray]:
        """Return shared data as C-contiguous arrays; a copy is kept as long as the data are the same object."""
        values = [shared.get_value(borrow=True) for shared in self._shared[output]]
        held = self._held.get(output, [(None, None)] * len(values))
        arrays = [
            old if value is source else np.asarray(value, order="C")
            for value, (source, old) in zip(values, held, strict=True)
        ]
        self._held[output] = list(zip(values, arrays, strict=True))
        return arrays

    def table(self, output: str, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return addresses and shapes of the current shared data and parameters: arrays that live as long as it."""
        values = self._values(output)
        if self.density_parameters is not None and density_parameters is not None:
            numbers = np.ascontiguousarray(density_parameters, dtype=self.density_parameters.type.dtype)
            values = [
                numbers if shared is self.density_parameters else value
                for shared, value in zip(self._shared[output], values, strict=True)
            ]
        return address_table(values)
