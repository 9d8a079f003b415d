"""The loop of a run over its phases: each advances by a chunk, which is recorded and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.chunks import Groups
from pmm_mcmc.run.signals import StopRequest

__all__ = ["Driver", "FinishedChunk", "StopSampling"]


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
    recorder: Any

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
