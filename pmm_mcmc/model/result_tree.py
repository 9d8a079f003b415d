"""Flat draws of whole-chain runs as the result that ``pm.sample`` returns: the same groups, names, dims and dtypes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.model import pymc_outputs

__all__ = ["ResultTree", "flat_names"]

# ArviZ writes the name of a module into what it makes, and looks its version up by that.
_LIBRARY = sys.modules["pmm_mcmc"]
_INCLUDE = ("posterior", "log_likelihood")
# As PyMC orders them.  The first four are of the run, and carry what is said of it.
_RUN = ("warmup_posterior", "posterior", "warmup_sample_stats", "sample_stats")
_DERIVED = ("log_likelihood",)
_SAMPLE_DIMS = ["chain", "draw"]
# Kept in the precision of the engine: most of what is stored.
_AS_GIVEN = ("gradient", "unconstrained", "noncentred")


def flat_names(parts: Sequence[tuple[str, tuple[int, ...]]]) -> list[str]:
    """Label each coordinate of a flat vector of variables, from their names and shapes."""
    return [
        f"{name}[{', '.join(map(str, index))}]" if index else name
        for name, shape in parts
        for index in np.ndindex(*shape)
    ]


@dataclass(frozen=True)
class ResultTree:
    """What flat positions mean: variables by name, and the tree that a run of them becomes.

    Build it with :meth:`of_model` or :meth:`of_vector`.

    Attributes
    ----------
    names : list of str
        Label of each unconstrained coordinate, such as ``"theta[0]"`` or ``"tau_log__"``.
    """

    names: list[str]
    _compute: Mapping[str, Callable[[np.ndarray], dict[str, np.ndarray]]]
    _coords_and_dims: Callable[[], tuple[dict[str, Any], dict[str, Any]]]
    _data: Callable[[], dict[str, dict[str, Any]]]

    @classmethod
    def of_model(
        cls,
        model: Any,
        vars: Sequence[Any],
        point: dict[str, Any],
        backend: str = "numba",
        include: Sequence[str] = ("posterior",),
    ) -> ResultTree:
        """Lay out the variables of a PyMC model.

        What is computed of the draws is compiled here, and kept with the model.  Data are read when they are used, so
        that ``pm.set_data`` is seen; a layout must be made anew where they change a shape.

        Parameters
        ----------
        model
            Without free discrete variables.
        vars
            All value variables of the model, in flat order.
        point
            An initial point, by name.
        backend
            ``"jax"``, or ``"numba"`` for a machine without JAX.
        include
            What is to be computed of the draws: ``"posterior"``, ``"log_likelihood"``.

        Returns
        -------
        ResultTree

        Raises
        ------
        ValueError
            If ``vars`` is not all of the model's, an argument is not one of its choices, or the model names something
            that is random beside its variables.
        """
        if backend not in ("jax", "numba"):
            raise ValueError(f"backend={backend!r}: must be 'jax' or 'numba'")
        unknown = [what for what in include if what not in _INCLUDE]
        if unknown:
            raise ValueError(f"include={list(include)!r}: must be among {', '.join(map(repr, _INCLUDE))}")
        if set(vars) != set(model.value_vars):
            given, needed = (", ".join(var.name for var in these) for these in (vars, model.value_vars))
            raise ValueError(f"vars ({given}) must be all value variables of the model ({needed}), each once")
        return cls(
            flat_names([(var.name, np.shape(point[var.name])) for var in vars]),
            {what: pymc_outputs.many_draws(model, vars, point, what, backend) for what in include},
            lambda: pymc_outputs.coords_and_dims(model),
            lambda: pymc_outputs.model_data(model),
        )

    @classmethod
    def of_vector(cls, ndim: int) -> ResultTree:
        """Lay out a log density without a model: one variable ``x`` of shape ``(ndim,)``."""
        compute = {"posterior": lambda position: {"x": position}}
        return cls(flat_names([("x", (ndim,))]), compute, lambda: ({}, {}), dict)

    def values(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Compute free variables on their own scale, and deterministics.

        Parameters
        ----------
        position : (chain, n, d)
            Unconstrained draws; any number of them, none included.

        Returns
        -------
        dict of (chain, n, *shape)
            Names, order and dtypes of ``pm.sample``'s posterior.
        """
        return self._computed("posterior", position)

    def log_likelihood(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the log likelihood of the observed variables, element by element.

        Parameters
        ----------
        position : (chain, n, d)
            Unconstrained draws.

        Returns
        -------
        dict of (chain, n, *shape)
            As ``pm.compute_log_likelihood`` gives.

        Raises
        ------
        ValueError
            If the layout was not made for it, or there is no model that says what is observed.
        """
        return self._computed("log_likelihood", position)

    def _computed(self, what: str, position: np.ndarray) -> dict[str, np.ndarray]:
        if what not in self._compute:
            raise ValueError(f"{what}: make the layout of a PyMC model, with include=({what!r},)")
        position = np.asarray(position)
        if position.ndim != 3 or position.shape[2] != len(self.names):
            raise ValueError(f"position has shape {position.shape}: must be (chain, n, {len(self.names)})")
        return self._compute[what](position)

    def tree(self, groups: Mapping[str, Mapping[str, np.ndarray]], attrs: Mapping[str, Any]) -> xr.DataTree:
        """Make the result of a run.

        Parameters
        ----------
        groups
            Arrays ``(chain, draw, ...)`` by group and name; a dimension may have length 0.  Statistics become float64
            or int64, as PyMC's are; gradients and unconstrained positions stay as they are.
        attrs
            What is said of the run: ``created_at``, ``sampling_time``, ``tuning_steps`` and more.  Nothing that
            differs between equal runs is made up here, so that without ``created_at`` the result has none.

        Returns
        -------
        xarray.DataTree
            With the model's coordinates, observed and constant data.

        Raises
        ------
        ValueError
            If there is no such group.
        """
        unknown = [group for group in groups if group not in (*_RUN, *_DERIVED)]
        if unknown:
            raise ValueError(f"groups: {unknown[0]!r} is none of {', '.join((*_RUN, *_DERIVED))}")
        coords, dims = self._coords_and_dims()
        created = {name: value for name, value in attrs.items() if name == "created_at"}
        made = {}
        for group in _RUN:
            if group in groups:
                statistics = group.endswith("sample_stats")
                arrays = _statistics(groups[group]) if statistics else groups[group]
                made[group] = _dataset(arrays, coords, {} if statistics else dims, attrs)
        for group, arrays in self._data().items():
            made[group] = _dataset(arrays, coords, dims, created, sample_dims=[])
        for group in _DERIVED:
            if group in groups:
                made[group] = _dataset(groups[group], coords, dims, created, skip_event_dims=True)
        return xr.DataTree.from_dict(made)


def _statistics(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return statistics in the dtypes that the step methods declare to PyMC, whatever the precision of the engine."""
    out = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        wide = np.int64 if np.issubdtype(array.dtype, np.integer) else np.float64
        out[name] = array if name in _AS_GIVEN or array.dtype == bool else array.astype(wide, copy=False)
    return out


def _dataset(
    arrays: Mapping[str, Any],
    coords: dict[str, Any],
    dims: dict[Any, Any],
    attrs: Mapping[str, Any],
    sample_dims: Sequence[str] = tuple(_SAMPLE_DIMS),
    skip_event_dims: bool = False,
) -> xr.Dataset:
    from arviz_base import dict_to_dataset

    # ArviZ would warn of every run with more chains than draws, and say when it was itself called.
    dataset = dict_to_dataset(
        arrays,
        attrs=attrs,
        inference_library=_LIBRARY,
        coords=coords,
        dims=dims,
        sample_dims=list(sample_dims),
        skip_event_dims=skip_event_dims,
        check_conventions=False,
    )
    if "created_at" not in attrs:
        del dataset.attrs["created_at"]
    return dataset
