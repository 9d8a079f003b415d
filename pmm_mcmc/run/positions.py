"""Unconstrained positions from values of parameters by name: of PyMC models, and of log densities that know names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor
import xarray as xr
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace

from pmm_mcmc.model.functions import building
from pmm_mcmc.run.plan import SamplingPlan

__all__ = ["Unconstraining", "unconstraining_of"]


class Unconstraining:
    """The map from values of the free variables of a plan, by their ``names``, to its positions."""

    def __init__(self, plan: SamplingPlan):
        self._density = plan.density
        self._layout = plan.layout
        self._d = plan.engine.d
        self._function: Any = None
        values = plan.layout.values(np.zeros((1, 1, self._d)))
        if plan.model is not None:
            self._function = unconstraining_of(plan.model)
            self.names = [rv.name for rv in plan.model.free_RVs]
        elif plan.density is not None and plan.density.start is not None:
            self.names = [name for name in values if self._is_free(name, values[name][0, 0])]
        else:
            self.names = list(values)

    def _is_free(self, name: str, value: np.ndarray) -> bool:
        """Return whether a variable of the result is one of the density, by whether chains may start at its value."""
        assert self._density is not None and self._density.start is not None
        try:
            self._density.start({name: value})
        except ValueError:
            return False
        return True

    def values_at(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values ``(n, *shape)`` by name at positions ``(n, d)``."""
        values = self._layout.values(x[None])
        return {name: values[name][0] for name in self.names}

    def of_posterior(self, posterior: xr.Dataset) -> np.ndarray:
        """Return the positions ``(n, d)`` of draws, chain by chain."""
        missing = [name for name in self.names if name not in posterior]
        if missing:
            raise ValueError(f"dt: has no {missing[0]!r}, a variable of the model; give the model of the result")
        arrays = {name: posterior[name].transpose("chain", "draw", ...).values for name in self.names}
        return self.of_values({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()})

    def of_values(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the positions ``(n, d)`` of values ``(n, *shape)`` by name, NaN where there is none."""
        arrays = [np.asarray(values[name]) for name in self.names]
        x = np.full((len(arrays[0]), self._d), np.nan)
        for i in range(len(x)):
            try:
                x[i] = self._position({name: array[i] for name, array in zip(self.names, arrays, strict=True)})
            except ValueError:  # outside of a support
                continue
        return x

    def _position(self, values: dict[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            if self._function is not None:
                return np.concatenate([np.ravel(array) for array in self._function(*values.values())])
            if self._density is not None and self._density.start is not None:
                return self._density.start(values)
            return np.concatenate([np.ravel(array) for array in values.values()])


def unconstraining_of(model: Any) -> Any:
    """Return a function from the values of a PyMC model's free variables to their unconstrained ones."""
    inputs = [rv.type(name=rv.name) for rv in model.free_RVs]
    transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
    outputs = [
        rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        for rv, transform in zip(model.free_RVs, transforms, strict=True)
    ]
    with building():
        outputs = clone_replace(outputs, dict(zip(model.free_RVs, inputs, strict=True)), rebuild_strict=False)
        mode = Mode(linker="py", optimizer=None)
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
