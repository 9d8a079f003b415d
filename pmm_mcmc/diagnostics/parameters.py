"""The parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from arviz_base import from_dict, xarray_sel_iter
from arviz_base.labels import BaseLabeller

if TYPE_CHECKING:
    from pymc.backends.base import MultiTrace
    from pymc.backends.zarr import ZarrTrace

# What pm.sample and pmm.sample return.
type Result = xr.DataTree | MultiTrace | ZarrTrace

# Bytes of parameters that are in memory together.
SLAB = 2**23
# Relative differences up to which values are one constant: a diagonal of correlations is 1 to rounding.
ROUNDING = 32.0 * float(np.finfo(float).eps)
_SAMPLE = ("chain", "draw")


def checked(dt: Result) -> Any:
    """Return ``dt`` if it is a result of sampling, and raise an error with the remedy if not."""
    if type(dt).__name__ == "MultiTrace" and hasattr(dt, "get_sampler_stats"):
        values = {name: dt.get_values(name, combine=False, squeeze=False) for name in dt.varnames}
        stats = {name: dt.get_sampler_stats(name, combine=False, squeeze=False) for name in dt.stat_names}
        names = {
            "model_logp": "lp", "mean_tree_accept": "acceptance_rate", "depth": "tree_depth", "tree_size": "n_steps",
        }  # fmt: skip
        arrays = {
            "posterior": {name: np.array(of_chains) for name, of_chains in values.items()},
            "sample_stats": {
                names.get(name, name): np.array(of_chains)
                for name, of_chains in stats.items()
                if name not in ("tune", "in_warmup", "warning")
            },
        }
        dt = from_dict(arrays)
    if not hasattr(dt, "children"):
        kind = "None" if dt is None else type(dt).__name__
        raise TypeError(
            f"dt={kind}: must be a result of sampling, a DataTree; pass what pmm.sample, pm.sample or pmm.open "
            "returned, the whole result, not a group of it (az.from_dict({'posterior': ...}) makes one of draws, "
            "az.convert_to_datatree(dt) of an InferenceData)"
        )
    if "posterior" not in dt.children:
        groups = f"the groups {', '.join(dt.children)}" if dt.children else "no groups"
        raise ValueError(f"dt: has {groups}, and not 'posterior': pass the whole result of pmm.sample or pm.sample")
    for name, variable in dt["posterior"].data_vars.items():
        if not set(_SAMPLE) <= set(variable.dims):
            raise ValueError(
                f"dt: {name!r} in its posterior has dimensions {variable.dims}: must have 'chain' and 'draw', "
                "as az.from_dict names them"
            )
    if not all(dt["posterior"].sizes.get(dim, 1) for dim in _SAMPLE):
        raise ValueError("dt: has no draws, as of a run that was stopped in warm-up; go on with pmm.extend(dt)")
    return dt


class Parameters:
    """The scalar parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

    def __init__(self, posterior: xr.Dataset):
        self._posterior = posterior

    @cached_property
    def labels(self) -> list[str]:
        """Labels of all scalars, in the order of the variables."""
        scalars = xarray_sel_iter(self._posterior, skip_dims=set(_SAMPLE))
        return [BaseLabeller().make_label_flat(name, selection, index) for name, selection, index in scalars]

    def __len__(self) -> int:
        return len(self.labels)

    def draws_of(self, label: str) -> np.ndarray:
        """Return the draws ``(chain, draw)`` of a parameter."""
        ((_, values),) = self.slabs(np.array([self.labels.index(label)]))
        return values[..., 0]

    def slabs(self, numbers: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of parameters with their draws ``(chain, draw, n)``: of all, or of those in ``numbers``."""
        wanted = np.ones(len(self), bool) if numbers is None else np.isin(np.arange(len(self)), numbers)
        blocks: list[tuple[np.ndarray, np.ndarray]] = []
        for block in self._pieces(wanted):
            blocks.append(block)
            if sum(draws.nbytes for _, draws in blocks) >= SLAB:
                yield _joined(blocks)
                blocks = []
        if blocks:
            yield _joined(blocks)

    def _pieces(self, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers and draws of the ``wanted`` parameters, each from a slice of one variable."""
        offset = 0
        for variable in self._posterior.data_vars.values():
            variable = variable.transpose(*_SAMPLE, ...)
            if variable.ndim == 2:
                variable = variable.expand_dims("scalar", axis=2)
            step = max(
                1, SLAB * variable.shape[2] // max(1, 8 * variable.size)
            )  # what is on disk is not read as a whole
            for begin in range(0, variable.shape[2], step):
                piece = variable[:, :, begin : begin + step]
                indices = offset + np.arange(int(np.prod(piece.shape[2:])))
                offset += len(indices)
                chosen = wanted[indices]
                if chosen.any():
                    values = piece.values.reshape(*piece.shape[:2], -1)
                    values = values if chosen.all() else values[..., chosen]
                    yield indices[chosen], values.astype(float, copy=False)


def _joined(blocks: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([indices for indices, _ in blocks]), np.concatenate([draws for _, draws in blocks], axis=-1)


def evenly_spaced(chains: int, draws: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of chains, and of their draws, that make about ``number`` draws from all of a run."""
    of_each = -(-number // chains)
    rows = (np.arange(of_each) + 0.5) * draws / of_each
    return np.arange(0, chains, -(-chains // number)), np.unique(rows.astype(int))


def coordinate_of(values: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    """Return the number of the coordinate that each parameter ``(chain, draw, n)`` equals in all draws, or -1."""
    coordinate = np.full(values.shape[-1], -1)
    if positions is None:
        return coordinate
    start = positions[0, 0]
    order = np.argsort(start, kind="stable")
    low = np.searchsorted(start, values[0, 0], "left", sorter=order)
    high = np.searchsorted(start, values[0, 0], "right", sorter=order)
    for i in range(len(coordinate)):
        for j in order[low[i] : high[i]]:
            if np.array_equal(values[..., i], positions[..., j]):
                coordinate[i] = j
    return coordinate
