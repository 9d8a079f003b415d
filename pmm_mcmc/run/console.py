"""The output of a run: heartbeat, bar, lines of the log and the verdict; and its times."""

from __future__ import annotations

import datetime
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import xarray as xr

from pmm_mcmc.diagnostics.verdict import last_message
from pmm_mcmc.engines.processes import is_primary_process
from pmm_mcmc.run.progress import Heartbeat, RunProgress
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.signals import Interrupt, StopRequest

__all__ = ["Console"]

_log = logging.getLogger("pmm_mcmc")


class Console:
    """Context manager of the output and the times of a run.

    Attributes
    ----------
    level
        Level of the lines about the run: those of one without progress are for debugging.
    compile_time, sampling_time
        Seconds of preparation, compilation included, and in all.
    """

    def __init__(self, request: Request):
        self._request = request
        self._show = bool(request.progressbar) and (request.backend in ("numba", "tape") or is_primary_process())
        self.level = logging.INFO if self._show else logging.DEBUG
        self._began = time.time()
        self._created = datetime.datetime.now(datetime.UTC).isoformat()
        self._heartbeat = Heartbeat(self._show)
        self._interrupt = Interrupt()
        self._announced = False
        self.compile_time = 0.0
        self.sampling_time = 0.0

    def __enter__(self) -> Self:
        self._interrupt.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: Any) -> None:
        compiling = not self.compile_time
        self._heartbeat.stop()
        self._interrupt.__exit__()
        if compiling and kind is KeyboardInterrupt:
            _log.warning("Stopped during compilation: there are no new draws")
            raise KeyboardInterrupt from None  # without the frames of compilers

    def log(self, line: str, *values: Any) -> None:
        """Log a line."""
        _log.log(self.level, line, *values)

    def announce(self, sampled: str) -> None:
        """Log what will be sampled, before its log density is compiled, or that numba compiles it where no tape can."""
        self.log("%s", sampled)
        begins = self._request.on_tape and not self._announced
        self._announced = True
        self._heartbeat.say("Reading the log density" if begins else "Compiling the log density")

    def prepares(self) -> None:
        """Show that the loops of the method are loaded or, once on a machine, compiled."""
        self._interrupt.check()
        self._heartbeat.say("Preparing the method (compiled once on a machine)")

    def checks(self) -> None:
        """Show that the draws are checked, if that takes more than a second."""
        self._heartbeat.say_later("Checking the draws")

    def prepared(self) -> None:
        """End the heartbeat, and the time of preparation."""
        self._interrupt.check()
        self._interrupt.__exit__()
        self._heartbeat.stop()
        self.compile_time = time.time() - self._began

    @contextmanager
    def compiling(self, stopped: StopRequest) -> Iterator[None]:
        """Compile the log density during a run, where Ctrl-C ends both."""
        self.log("Numba compiles the log density for the draws that are left")
        began = time.time()
        stopped.interrupts = True
        try:
            yield
        except BaseException:  # compilers turn Ctrl-C into errors of their own
            if not stopped():
                raise
        finally:
            stopped.interrupts = False
            self.compile_time += time.time() - began

    def bar(self, tune: int, draws: int, *, adjusted: bool, show: bool = True) -> RunProgress:
        """Return the bar, a context manager, which ``update`` writes to."""
        chains = self._request.chains
        bar = RunProgress(chains=chains, tune=tune, draws=draws, show=self._show and show, adjusted=adjusted)
        self.update = bar.update
        return bar

    def times(self) -> dict[str, Any]:
        """Return the attributes of a result that say when it was made, and in how many seconds up to now."""
        self.sampling_time = time.time() - self._began
        return {
            "created_at": self._created, "sampling_time": self.sampling_time, "compile_time": self.compile_time,
        }  # fmt: skip

    def interrupted(self, stopped: StopRequest, done: int, draws: int, unit: str) -> None:
        """Warn that a run has ended early."""
        lost = stopped.number == signal.SIGTERM and self._request.store is None
        remedy = "go on with pmm.extend(dt, model=model)"
        if self._request.store is not None:
            remedy = "go on with store= and resume=True"
        elif self._request.reference is not None:
            remedy = "only a ladder with store= can go on"
        outcome = "in memory only: store= would keep them" if lost else f"kept, and {remedy}"
        if done:
            place = f"after {done} of {draws} draws of each {unit}"
            _log.warning("Sampling was stopped %s; they are %s", place, outcome)
        else:
            _log.warning("Sampling was stopped before the first draw: %s", remedy)

    def verdict(self, result: xr.DataTree) -> None:
        """Log the verdict, if it is asked for."""
        if not self._request.compute_convergence_checks:
            return
        self.checks()
        try:
            message = last_message(result)
        except Exception:  # no error here may lose the draws
            _log.exception("No verdict on this run, for an error in it; the draws are kept")
        else:
            self._heartbeat.stop()
            _log.log(*message)
        finally:
            self._heartbeat.stop()
