"""The loop of a run over its phases: each advances by a chunk, which is recorded and reported; signals end it."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from pmm_mcmc.engines.processes import Processes

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


def numbers_of(empty: Groups) -> int:
    """Return the number of recorded numbers of one draw of one chain, of 8 bytes each, from arrays without draws."""
    arrays = [array for group in empty.values() for array in group.values()]
    return -(-sum(math.prod(array.shape[2:]) * array.itemsize for array in arrays) // 8)


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


class StopRequest:
    """Whether a signal has asked the run to stop; ``number`` is that of the signal, or ``None``.

    While ``interrupts``, a signal raises ``KeyboardInterrupt`` too.
    """

    number: int | None = None
    interrupts = False

    def __call__(self) -> bool:
        """Return whether the run is to stop."""
        return self.number is not None

    def raise_again(self) -> None:
        """Let SIGTERM have its usual effect."""
        if self.number == signal.SIGTERM:
            sys.stdout.flush()
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; the second has its usual effect.

    Outside the main thread signals do not arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        request.number = number
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
        if request.interrupts:
            raise KeyboardInterrupt

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        handlers[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Interrupt:
    """Ctrl-C as ``KeyboardInterrupt``, which :meth:`check` raises again where compiled code has swallowed it.

    Outside the main thread signals do not arrive; another handler than Python's is left alone.
    """

    def __init__(self) -> None:
        self._asked = False
        self._handles = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._handles = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self._asked:
            raise KeyboardInterrupt

    def __exit__(self, *failure: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._handles = False
