"""The parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import xarray as xr
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller

__all__ = ["SLAB", "Parameters", "labels_of"]

# Bytes of parameters that are in memory together.
SLAB = 2**23
_SAMPLE = ("chain", "draw")


def labels_of(group: xr.Dataset) -> list[str]:
    """Return ArviZ's labels of the scalars of a group, in the order of its variables."""
    labeller, every = BaseLabeller(), xarray_sel_iter(group, skip_dims=set(_SAMPLE))
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

    def slabs(self, which: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of parameters with their draws ``(chain, draw, n)``: of all, or of those in ``which``."""
        kept, draws, size = [], [], 0
        for at, values in self._pieces(which):
            kept.append(at)
            draws.append(values)
            size += values.nbytes
            if size >= SLAB:
                yield np.concatenate(kept), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)
                kept, draws, size = [], [], 0
        if kept:
            yield np.concatenate(kept), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)

    def _pieces(self, which: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        wanted = np.ones(len(self), bool)
        if which is not None:
            wanted[:] = False
            wanted[which] = True
        first = 0
        for variable in self._posterior.data_vars.values():
            dims = [dim for dim in variable.dims if dim not in _SAMPLE]
            variable = variable.transpose(*_SAMPLE, *dims)
            if not dims:
                dims, variable = ["scalar"], variable.expand_dims("scalar", axis=2)
            shape = variable.shape[2:]
            numbers = first + np.arange(int(np.prod(shape))).reshape(shape)
            first += numbers.size
            # Slices along the longest dimension, so that a variable on disk is not read as a whole.
            long = int(np.argmax(shape))
            step = max(1, SLAB * shape[long] // max(1, 8 * int(np.prod(variable.shape))))
            for begin in range(0, shape[long], step):
                part = slice(begin, begin + step)
                at = numbers[(slice(None),) * long + (part,)].ravel()
                if wanted[at].any():
                    values = variable.isel({dims[long]: part}).values
                    values = values.reshape(*values.shape[:2], -1)
                    if not wanted[at].all():
                        at, values = at[wanted[at]], values[..., wanted[at]]
                    yield at, values.astype(float, copy=False)

    def read(self, which: np.ndarray | None = None) -> np.ndarray:
        """Return draws ``(chain, draw, n)`` of the parameters numbered ``which``, in this order; by default of all."""
        which = np.arange(len(self)) if which is None else np.asarray(which)
        sizes = self._posterior.sizes
        values = np.empty((sizes["chain"], sizes["draw"], len(which)))
        place = np.full(len(self), -1)
        place[which] = np.arange(len(which))
        for at, part in self.slabs(which):
            values[..., place[at]] = part
        return values
