"""The loop of a run over its phases: each advances by a chunk, which is recorded and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.signals import StopRequest

__all__ = ["Driver", "FinishedChunk", "Gathered", "Groups", "Recorder", "StopSampling"]

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


class StopSampling(Exception):
    """Raised by a callback of ``pmm.sample`` to end the run and keep all finished draws."""


class FinishedChunk(NamedTuple):
    """Draws of a chunk, the argument of a callback after it.

    Attributes
    ----------
    tuning
        Whether these are draws of the warm-up.
    done
        Number of finished draws of this phase, including these.
    groups
        Arrays ``(chain, draw, ...)`` of this chunk by group and name.  There are none in a warm-up that is not kept;
        with several processes they contain the chains of this one.
    complete
        Whether all draws of the chunk were made.
    """

    tuning: bool
    done: int
    groups: Groups
    complete: bool = True

    @property
    def posterior(self) -> dict[str, np.ndarray]:
        """The variables by name."""
        return self.groups.get("warmup_posterior" if self.tuning else "posterior", {})

    @property
    def sample_stats(self) -> dict[str, np.ndarray]:
        """The statistics by name."""
        return self.groups.get("warmup_sample_stats" if self.tuning else "sample_stats", {})


class Recorder(Protocol):
    """The destination of chunks, of ``rows`` draws each."""

    rows: int

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk."""

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result."""


class Driver:
    """The loop of a run over its phases, chunk by chunk, to its end or until it is stopped.

    Attributes
    ----------
    run
        The state of the run: all that it needs to continue bit for bit.
    recorder
        The destination of chunks, of ``rows`` draws each.
    processes
        Those that share the chains.
    """

    run: Any
    recorder: Recorder

    def __init__(self, processes: Processes, callback: Callable[[FinishedChunk], None] | None):
        self.processes = processes
        self._callback = callback

    def advance(self, stopped: StopRequest) -> FinishedChunk | None:
        """Advance the present phase by a chunk; return it, None where there is nothing to record."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""
        raise NotImplementedError

    def over(self) -> bool:
        """Return whether the draws are enough: all are made, or fewer will do."""
        return self.ended

    def go(self, stopped: StopRequest) -> bool:
        """Run to the end, or until ``stopped()``, asked several times a second; return whether the end was reached."""
        while not self.over():
            chunk = self.advance(stopped)
            stop = False
            if chunk is not None:
                self.recorder.put(chunk.groups, chunk.complete)
                stop = not chunk.complete
                try:
                    if self._callback is not None:
                        self._callback(chunk)
                except StopSampling:
                    stop = True
            del chunk  # before the next one takes as much memory
            if self.processes.any(stop or stopped()):
                return self.ended
        return True
