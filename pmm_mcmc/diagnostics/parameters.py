"""The parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import xarray as xr
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller

__all__ = ["SLAB", "Parameters", "coordinate_of", "labels_of"]

# Bytes of parameters that are in memory together.
SLAB = 2**23
_SAMPLE = ("chain", "draw")


def labels_of(group: xr.Dataset) -> list[str]:
    """Return ArviZ's labels of the scalars of a group, in the order of its variables."""
    labeller = BaseLabeller()
    every = xarray_sel_iter(group, skip_dims=set(_SAMPLE))
    return [labeller.make_label_flat(name, selection, index) for name, selection, index in every]


class Parameters:
    """The scalar parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

    def __init__(self, posterior: xr.Dataset):
        self._posterior = posterior

    @cached_property
    def labels(self) -> list[str]:
        """Labels of all scalars, in the order of the variables."""
        return labels_of(self._posterior)

    def __len__(self) -> int:
        sizes = (dict(variable.sizes) for variable in self._posterior.data_vars.values())
        return sum(int(np.prod([size for dim, size in every.items() if dim not in _SAMPLE])) for every in sizes)

    def slabs(self, numbers: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of parameters with their draws ``(chain, draw, n)``: of all, or of those in ``numbers``."""
        blocks = []
        draws = []
        size = 0
        for indices, values in self._pieces(numbers):
            blocks.append(indices)
            draws.append(values)
            size += values.nbytes
            if size >= SLAB:
                yield np.concatenate(blocks), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)
                blocks = []
                draws = []
                size = 0
        if blocks:
            yield np.concatenate(blocks), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)

    def _pieces(self, numbers: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        wanted = np.ones(len(self), bool)
        if numbers is not None:
            wanted[:] = False
            wanted[numbers] = True
        offset = 0
        for variable in self._posterior.data_vars.values():
            dims = [dim for dim in variable.dims if dim not in _SAMPLE]
            variable = variable.transpose(*_SAMPLE, *dims)
            if not dims:
                dims = ["scalar"]
                variable = variable.expand_dims("scalar", axis=2)
            shape = variable.shape[2:]
            places = offset + np.arange(int(np.prod(shape))).reshape(shape)
            offset += places.size
            # Slices along the longest dimension, so that a variable on disk is not read as a whole.
            long = int(np.argmax(shape))
            step = max(1, SLAB * shape[long] // max(1, 8 * int(np.prod(variable.shape))))
            for begin in range(0, shape[long], step):
                block = slice(begin, begin + step)
                indices = places[(slice(None),) * long + (block,)].ravel()
                chosen = wanted[indices]
                if chosen.any():
                    values = variable.isel({dims[long]: block}).values
                    values = values.reshape(*values.shape[:2], -1)
                    if not chosen.all():
                        indices = indices[chosen]
                        values = values[..., chosen]
                    yield indices, values.astype(float, copy=False)

    def read(self, numbers: np.ndarray | None = None) -> np.ndarray:
        """Return draws ``(chain, draw, n)`` of the parameters ``numbers``, in this order; by default of all."""
        numbers = np.arange(len(self)) if numbers is None else np.asarray(numbers)
        sizes = self._posterior.sizes
        values = np.empty((sizes["chain"], sizes["draw"], len(numbers)))
        place = np.full(len(self), -1)
        place[numbers] = np.arange(len(numbers))
        for indices, block in self.slabs(numbers):
            values[..., place[indices]] = block
        return values


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
