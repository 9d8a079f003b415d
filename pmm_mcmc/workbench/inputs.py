"""A PyMC model whose data are inputs of its compiled functions, and draws of its prior with simulated data.

This is the only module that relies on how PyMC keeps data and draws from a model.  Names that PyMC does not document or
may move: ``pymc.pytensorf.compile`` and ``reseed_rngs``, and shared values in ``pymc.observe``.
``tests/workbench/test_refit.py`` fails first if one of them moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.pytensorf import compile, reseed_rngs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pmm_mcmc.api import check_discrete, check_free, model_cache, python_function, python_mode


@dataclass(frozen=True)
class Inputs:
    """A model whose data can be set, without another compilation.

    Attributes
    ----------
    model
        The model or, if it holds observations as constants, a copy that holds them as shared values.
    observations
        These shared values, by the name of the observed variable.
    """

    model: pm.Model
    observations: dict[str, SharedVariable]

    @classmethod
    def of(cls, model: pm.Model, simulated: bool = False) -> Inputs:
        """Return the inputs of a model, made once; if its data are ``simulated``, ``pm.Data`` that it observes too.

        Raises
        ------
        ValueError
            If ``model`` is no PyMC model, or has no free variables, discrete ones, or no data.
        """
        if not isinstance(model, pm.Model):
            raise ValueError(
                f"model={type(model).__name__}(...): must be a PyMC model, which takes other data; of log densities, "
                "make one for each data set and start it from the first result: pmm.sample(model=..., start=dt)"
            )
        check_free(model)
        check_discrete(model, ".")
        if not model.observed_RVs and (simulated or not model.data_vars):
            raise ValueError("model: has no observed data; give a variable that is observed its observed=")
        held: dict[str, SharedVariable] = {}
        for rv in model.observed_RVs:
            value = model.rvs_to_values[rv]
            if simulated or not any(isinstance(node, SharedVariable) for node in ancestors([value])):
                array = value.data if isinstance(value, Constant) else python_function([], [value])()[0]
                held[rv.name] = pytensor.shared(np.array(array), shape=np.shape(array))
        made = model_cache(model, "inputs")
        key = (simulated, *map(id, (*model.basic_RVs, *model.potentials, *model.deterministics)))
        if key not in made:
            made[key] = cls(_observed(model, held) if held else model, held)
        for name, shared in held.items():  # the data may have changed since
            made[key].observations[name].set_value(shared.get_value())
        return made[key]

    @property
    def names(self) -> list[str]:
        """The names of all data."""
        return [*self.observations, *(data.name for data in self.model.data_vars)]

    def check(self, data: object, label: str) -> None:
        """Raise ``ValueError`` unless ``data`` are arrays by name that the model can take in place of its own."""
        if not isinstance(data, Mapping) or not data:
            what = repr(data) if isinstance(data, Mapping) else f"<{type(data).__name__}>"
            raise ValueError(f"{label}={what}: must be a dict of data by name, of {', '.join(self.names)}")
        for name, value in data.items():
            if name not in self.names:
                raise ValueError(f"{label}: {name!r} is no data of the model, which has {', '.join(self.names)}")
            fixed = name in self.observations
            holder = self.observations[name] if fixed else self.model[name]
            old = holder.get_value(borrow=True)
            array = np.asarray(value)
            if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, old.dtype, "same_kind"):
                raise ValueError(f"{label}[{name!r}] is of type {array.dtype}: must be numbers of type {old.dtype}")
            if array.shape != old.shape and (fixed or array.ndim != old.ndim):
                remedy = "; data of other lengths need pm.Data" if array.ndim == old.ndim else ""
                raise ValueError(f"{label}[{name!r}] has shape {array.shape}: must be {old.shape}{remedy}")
            if not np.isfinite(array).all():
                raise ValueError(f"{label}[{name!r}]: has values that are not finite; leave these rows out")

    def set(self, data: Mapping[str, Any]) -> None:
        """Put data in place of those that the model has."""
        changed = {name: value for name, value in data.items() if name not in self.observations}
        if changed:
            with self.model:
                pm.set_data(changed)
        for name in data:
            if name in self.observations:
                shared = self.observations[name]
                shared.set_value(np.asarray(data[name], dtype=shared.type.dtype))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Give the model its own data back at the end of the block."""
        original = {name: shared.get_value() for name, shared in self.observations.items()}
        original |= {data.name: data.get_value() for data in self.model.data_vars}
        try:
            yield
        finally:
            self.set(original)


def _observed(model: pm.Model, held: Mapping[str, SharedVariable]) -> pm.Model:
    """Return a copy of a model that observes shared values."""
    initial = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(initial))  # PyMC copies no model that has some
    try:
        copy = pm.observe(model, held)
    finally:
        model.rvs_to_initial_values.update(initial)
    # PyMC sorts the copy by its graph; results of the model itself have its own order.
    for variables, originals in ((copy.free_RVs, model.free_RVs), (copy.deterministics, model.deterministics)):
        order = [variable.name for variable in originals]
        variables.sort(key=lambda variable, order=order: order.index(variable.name))
    copy.rvs_to_initial_values.update({copy[rv.name]: value for rv, value in initial.items() if rv.name not in held})
    return copy


class Simulator:
    """Draws of the free variables and deterministics of a model from its prior, with data that are simulated from them.

    Raises
    ------
    ValueError
        If the prior is no distribution that can be drawn from.
    """

    def __init__(self, inputs: Inputs):
        model = inputs.model
        if model.potentials:
            names = ", ".join(potential.name for potential in model.potentials)
            raise ValueError(
                f"model: {names} is a pm.Potential, which cannot be drawn from; write it as a prior or a likelihood"
            )
        self._parameters = [rv.name for rv in (*model.free_RVs, *model.deterministics)]
        self._data = list(inputs.observations)
        outputs = [model[name] for name in (*self._parameters, *self._data)]
        self._function = compile([], outputs, mode=python_mode(), random_seed=0, on_unused_input="ignore")
        self._rngs = [shared for shared in self._function.get_shared() if isinstance(shared.type, RandomType)]
        try:
            self([0])
        except Exception as error:
            raise ValueError(
                f"model: cannot be drawn from its prior: {error}. Give each variable a proper prior that PyMC can draw "
                "from, a pm.CustomDist its random="
            ) from error

    def __call__(self, seed: list[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return parameters and data, by name, that depend on the seed alone."""
        reseed_rngs(self._rngs, seed)
        values = [np.array(value) for value in self._function()]
        cut = len(self._parameters)
        return dict(zip(self._parameters, values[:cut], strict=True)), dict(zip(self._data, values[cut:], strict=True))
