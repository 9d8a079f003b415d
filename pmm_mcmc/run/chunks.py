"""The named arrays of a chunk of draws."""

from __future__ import annotations

import numpy as np

__all__ = ["Gathered", "Groups"]

Groups = dict[str, dict[str, np.ndarray]]


class Gathered:
    """Arrays of ``rows`` draws of all ``chains``, filled with draws of some chains at a time, or of all one by one.

    What is not filled takes no memory.
    """

    def __init__(self, chains: int, rows: int):
        self._shape = chains, rows
        self.groups: Groups = {}
        self.done = 0

    def append(self, groups: Groups) -> None:
        """Append draws of all chains."""
        self.put(slice(None), self.done, groups)
        self.done += max((values.shape[1] for arrays in groups.values() for values in arrays.values()), default=0)

    def put(self, chains: slice, start: int, groups: Groups) -> None:
        """Insert arrays ``(chain, n, ...)`` of some chains, from draw ``start`` on."""
        for group, arrays in groups.items():
            destination = self.groups.setdefault(group, {})
            for name, values in arrays.items():
                if values.shape[:2] == self._shape:
                    destination[name] = values
                    continue
                if name not in destination:
                    destination[name] = np.empty((*self._shape, *values.shape[2:]), values.dtype)
                destination[name][chains, start : start + values.shape[1]] = values

    def upto(self, rows: int) -> Groups:
        """Return the first ``rows`` draws of all chains."""
        if rows == self._shape[1]:
            return self.groups
        return {
            group: {name: values[:, :rows] for name, values in arrays.items()} for group, arrays in self.groups.items()
        }
