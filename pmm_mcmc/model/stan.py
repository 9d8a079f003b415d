"""Stan models through BridgeStan: the C function of their log density, and the draws on their own scale."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pmm_mcmc.model.c_function import CFunction, of_stan
from pmm_mcmc.model.result_tree import ResultTree

__all__ = ["stan_function", "stan_layout", "stan_start"]

_log = logging.getLogger("pmm_mcmc")

_NEEDED = (
    "stanlib", "model", "data", "seed", "param_unc_num", "param_constrain", "param_unconstrain", "param_names",
    "new_rng",
)  # fmt: skip


def stan_function(model: Any) -> tuple[CFunction, int, bool]:
    """Return the C function of a model, its number of coordinates, and whether threads may share it.

    Raises
    ------
    ValueError
        If the object has not the attributes of a ``bridgestan.StanModel``, or the model no parameters.
    """
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing or not hasattr(model.stanlib, "bs_log_density_gradient"):
        raise ValueError(
            f'model={model!r}: must be a bridgestan.StanModel, such as bridgestan.StanModel("model.stan", data)'
        )
    ndim = int(model.param_unc_num())
    if ndim < 1:
        raise ValueError(f"model={model!r}: the Stan model has no parameters, so there is nothing to sample")
    threads = bool(re.search(r"STAN_THREADS\s*=\s*(true|1)", model.model_info(), re.IGNORECASE))
    return of_stan(model.stanlib, int(model.model), model), ndim, threads


def stan_layout(model: Any) -> ResultTree:
    """Return the map from unconstrained draws to parameters, transformed parameters and generated quantities."""
    labels = model.param_names(include_tp=True, include_gq=True)
    places = _variables(labels)
    failures: list[str] = []

    def values(position: np.ndarray) -> dict[str, np.ndarray]:
        flat = np.ascontiguousarray(position, dtype=float).reshape(-1, position.shape[-1])
        everything = np.empty((len(flat), len(labels)))
        for i, x in enumerate(flat):
            # The draw is its own seed, so that its generated quantities do not depend on chunks or on a restart.
            rng = model.new_rng(zlib.crc32(x.tobytes()))
            try:
                everything[i] = model.param_constrain(x, include_tp=True, include_gq=True, rng=rng)
            except RuntimeError as error:  # as an error in generated quantities, which must not end the run
                everything[i] = np.nan
                if not failures:
                    failures.append(str(error))
                    _log.warning("Variables of a draw are NaN, since Stan could not compute them: %s", error)
        return {name: everything[:, at].reshape(*position.shape[:2], *shape) for name, (shape, at) in places.items()}

    names = [re.sub(r"\.(\d+(?:\.\d+)*)$", _in_brackets, name) for name in model.param_unc_names()]
    return ResultTree(names, {"posterior": values}, lambda: ({}, {}), dict)


def stan_start(model: Any) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Return the map from values of parameters by name to the unconstrained vector.

    Parameters that are not given are where a vector of zeros is.
    """
    places = _variables(model.param_names())

    def start(given: Mapping[str, Any]) -> np.ndarray:
        everything = np.array(model.param_constrain(np.zeros(int(model.param_unc_num()))), dtype=float)
        for name, value in given.items():
            if name not in places:
                raise ValueError(f"initvals: {name!r} is none of the parameters of the Stan model: {', '.join(places)}")
            shape, at = places[name]
            try:
                values = np.asarray(value, dtype=float)
            except (TypeError, ValueError):
                values = np.empty(0)
            if values.shape != shape:
                raise ValueError(f"initvals[{name!r}]={value!r}: must be numbers of shape {shape}")
            everything[at] = values.ravel()
        try:
            return np.array(model.param_unconstrain(everything), dtype=float)
        except RuntimeError as error:
            raise ValueError(f"initvals={dict(given)!r}: {error}") from error

    return start


def _in_brackets(found: re.Match[str]) -> str:
    return f"[{', '.join(str(int(i) - 1) for i in found[1].split('.'))}]"


def _variables(labels: list[str]) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """Return shape and columns, in C order, of each variable from labels such as ``b.2.3``.

    What does not fill a rectangle, such as a member of a tuple, is left as it is labelled.
    """
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for column, label in enumerate(labels):
        name, *index = label.split(".")
        if all(part.isdigit() for part in index):
            found.setdefault(name, {})[tuple(int(part) - 1 for part in index)] = column
        else:
            found[label] = {(): column}
    places: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}
    for name, columns in found.items():
        shape = tuple(int(n) + 1 for n in np.max(list(columns), axis=0)) if () not in columns else ()
        if set(columns) == set(np.ndindex(*shape)):
            places[name] = shape, np.array([columns[index] for index in np.ndindex(*shape)])
        else:
            places |= {labels[column]: ((), np.array([column])) for column in columns.values()}
    return places
