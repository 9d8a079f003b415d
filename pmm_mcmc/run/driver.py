"""The loop of a run over its phases: each advances by a chunk, which is recorded and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import xarray as xr

from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.chunks import Groups

__all__ = ["Advance", "Driver", "FinishedChunk", "Phases", "Recorder", "State", "StopSampling", "Stopped"]

Stopped = Callable[[], bool]


class StopSampling(Exception):
    """Raised by a callback of ``pmm.sample`` to end the run and keep all finished draws."""


class FinishedChunk(NamedTuple):
    """The argument of a callback, after each chunk.

    Attributes
    ----------
    tuning
        Whether these are draws of the warm-up.
    done
        Number of finished draws of this phase, including these.
    posterior, sample_stats
        Arrays ``(chain, draw, ...)`` of this chunk, by name.  They are empty in a warm-up that is not kept; with
        several processes they contain the chains of this one.
    """

    tuning: bool
    done: int
    posterior: dict[str, np.ndarray]
    sample_stats: dict[str, np.ndarray]


class Advance(NamedTuple):
    """A chunk of a phase: its draws by group, whether all of them were made, and what a callback gets to see."""

    groups: Groups
    complete: bool
    finished: FinishedChunk

    @classmethod
    def of(cls, groups: Groups, tuning: bool, done: int, complete: bool = True) -> Advance:
        """Return a chunk after which ``done`` draws of its phase are finished."""
        prefix = "warmup_" * tuning
        empty: dict[str, np.ndarray] = {}
        shown = (groups.get(prefix + name, empty) for name in ("posterior", "sample_stats"))
        return cls(groups, complete, FinishedChunk(tuning, done, *shown))


class State(Protocol):
    """The state of a run: all that it needs to continue bit for bit."""

    @property
    def tuning(self) -> bool:
        """Whether the draws are still to come."""

    @property
    def done(self) -> int:
        """Number of finished draws."""

    @property
    def tuned(self) -> TunedParameters:
        """The current tuned parameters."""

    def reports(self, new: bool = False) -> dict[str, xr.Dataset]:
        """Return the groups of the result beside its draws, those alone that the last chunk changed if ``new``."""


class Recorder(Protocol):
    """The destination of finished chunks, of ``rows`` draws each."""

    rows: int

    def put(self, groups: Groups, run: State, complete: bool) -> None:
        """Record the draws of a chunk, and the run after them; ``complete`` is False for an interrupted chunk."""

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result."""


class Phases(Protocol):
    """The phases of a run."""

    @property
    def run(self) -> State:
        """Its state, which a recorder keeps with the draws."""

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""

    @property
    def recorder(self) -> Recorder:
        """The destination of its draws."""

    def current(self) -> Callable[[Stopped], Advance | None] | None:
        """Return the function that advances the present phase by a chunk; None after the last.

        The function returns None where there is nothing to record.
        """


class Driver:
    """The loop of a run, chunk by chunk, to its end or until it is stopped.

    Parameters
    ----------
    phases
        The phases, of a run that is new or resumed.
    callback
        Called with each chunk; None for none.
    processes
        The processes that share the chains.
    """

    def __init__(self, phases: Phases, callback: Callable[[FinishedChunk], None] | None, processes: Processes):
        self.phases = phases
        self.callback = callback
        self.processes = processes

    def go(self, stopped: Stopped) -> bool:
        """Run to the end; return whether it was reached.

        Parameters
        ----------
        stopped
            Called several times a second; True stops the run.
        """
        while (advance := self.phases.current()) is not None:
            chunk = advance(stopped)
            stop = False
            if chunk is not None:
                self.phases.recorder.put(chunk.groups, self.phases.run, chunk.complete)
                stop = self._stops(chunk.finished) or not chunk.complete
            if self.processes.any(stop or stopped()):
                return self.phases.ended
        return True

    def _stops(self, finished: FinishedChunk) -> bool:
        """Call the callback; return whether it ends the run."""
        try:
            if self.callback is not None:
                self.callback(finished)
        except StopSampling:
            return True
        return False
