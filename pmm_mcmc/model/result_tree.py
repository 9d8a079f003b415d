"""Flat draws of ``pmm_mcmc.sample`` as a tree with the groups, names, dims and dtypes of ``pm.sample``'s result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc._version import __version__

# ArviZ would look the version up in the files of the installation, for each group anew.
_LIBRARY = {"inference_library": "pmm_mcmc", "inference_library_version": __version__}
# In PyMC's order.  These have the attributes of the run.
_RUN = ("warmup_posterior", "posterior", "warmup_sample_stats", "sample_stats")
_SAMPLE_DIMS = ["chain", "draw"]
# The log density of what was drawn of a Gaussian block, given the rest; and the averages of variables that depend on it
# over the draw and its mirror image about the mean, which are their means given the rest where they are affine in it.
BLOCK_LOGP = "block_logp"
BLOCK_MEAN = "block_mean"
# An attribute: the names of these variables, with their sizes.
INTEGRATED = "integrated"
# Statistics kept in the precision of the engine: they are most of the stored bytes.
_AS_GIVEN = ("gradient", "unconstrained", "noncentred")


def flat_names(parts: Sequence[tuple[str, tuple[int, ...]]]) -> list[str]:
    """Label each coordinate of a flat vector of variables, from their names and shapes."""
    return [
        f"{name}[{', '.join(map(str, index))}]" if index else name
        for name, shape in parts
        for index in np.ndindex(*shape)
    ]


def in_blocks(
    function: Callable[[np.ndarray], Iterable[Any]],
    position: np.ndarray,
    kinds: Mapping[str, Any],
    rows: int,
    pads: bool = True,
) -> dict[str, np.ndarray]:
    """Return the outputs ``(chain, n, *shape)`` of a function of ``rows`` positions at positions ``(chain, n, d)``.

    ``kinds`` have the shape and dtype of each output of one position.  The last block is padded, if the function needs
    it, so that the bits of a draw's values do not depend on the other draws.
    """
    chains, n, d = position.shape
    flat = np.ascontiguousarray(position).reshape(chains * n, d)
    outputs = {name: np.empty((len(flat), *kind.shape), kind.dtype) for name, kind in kinds.items()}
    for start in range(0, len(flat), rows) if outputs else ():
        block = flat[start : start + rows]
        used = slice(start, start + len(block))
        if pads and len(block) < rows:
            block = np.concatenate([block, np.repeat(block[-1:], rows - len(block), axis=0)])
        for output, values in zip(outputs.values(), function(block), strict=True):
            output[used] = values[: used.stop - start]
    return {name: values.reshape(chains, n, *values.shape[1:]) for name, values in outputs.items()}


@dataclass(frozen=True)
class ResultTree:
    """The map from flat positions to named variables, and from a run of them to a ``DataTree``.

    ``model_layout`` builds that of a PyMC model, :meth:`of_vector` one without a model.

    Attributes
    ----------
    names : list of str
        Label of each unconstrained coordinate, such as ``"theta[0]"`` or ``"tau_log__"``.
    values
        The function that returns free variables on their own scale, and deterministics, at unconstrained positions
        ``(chain, n, d)``, with the names, order and dtypes of ``pm.sample``'s posterior, ``(chain, n, *shape)``; ``n``
        may be 0.
    noise, draws
        Of a model with variables that were integrated out: how many standard normals draw them, 0 otherwise; and the
        function of positions and these numbers that returns the values, the averages of those that depend on what was
        drawn, over the draw and its mirror image, and the log density of what was drawn.
    """

    names: list[str]
    values: Callable[[np.ndarray], dict[str, np.ndarray]]
    _coords_and_dims: Callable[[], tuple[dict[str, Any], dict[str, Any]]]
    _data: Callable[[], dict[str, dict[str, Any]]]
    noise: int = 0
    draws: (
        Callable[[np.ndarray, np.ndarray], tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]] | None
    ) = None

    @classmethod
    def of_vector(cls, ndim: int) -> ResultTree:
        """Return the layout of a log density without a model: one variable ``x`` of shape ``(ndim,)``."""
        return cls(flat_names([("x", (ndim,))]), lambda position: {"x": position}, lambda: ({}, {}), dict)

    @property
    def dims(self) -> dict[str, list[str]]:
        """The dimensions of the variables that have named ones."""
        return {str(name): list(map(str, dims)) for name, dims in self._coords_and_dims()[1].items()}

    def tree(
        self,
        groups: Mapping[str, Mapping[str, np.ndarray]],
        attrs: Mapping[str, Any],
        others: Mapping[str, xr.Dataset] | None = None,
    ) -> xr.DataTree:
        """Return the result of a run, with the model's coordinates, observed and constant data.

        Parameters
        ----------
        groups
            Arrays ``(chain, draw, ...)`` by group and name; a dimension may have length 0.  Statistics become float64
            or int64, like PyMC's; gradients and unconstrained positions keep their dtype.
        attrs
            Attributes of the run, such as ``created_at``, ``sampling_time`` and ``tuning_steps``.  Attributes that
            differ between equal runs are not added: without ``created_at`` the result has none.
        others
            Groups that are added as they are.
        """
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
        return xr.DataTree.from_dict(made | dict(others or {}))


def _statistics(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return statistics in the dtypes that the step methods declare to PyMC, for any precision of the engine."""
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
) -> xr.Dataset:
    from arviz_base import dict_to_dataset

    # ArviZ would warn of runs with more chains than draws, and set created_at itself.
    dataset = dict_to_dataset(
        arrays,
        coords=coords,
        dims=dims,
        sample_dims=list(sample_dims),
        check_conventions=False,
    )
    made_by = dataset.attrs
    dims_of_draws = {"sample_dims": made_by.pop("sample_dims")}
    dataset.attrs = made_by | _LIBRARY | dims_of_draws | dict(attrs)
    if "created_at" not in attrs:
        del dataset.attrs["created_at"]
    return dataset
