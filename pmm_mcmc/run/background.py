"""A run in a thread of its own, for ``pmm.sample(..., blocking=False)``."""

from __future__ import annotations

import dataclasses
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import xarray as xr

from pmm_mcmc.model.checks import model_of
from pmm_mcmc.run.driver import FinishedChunk
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.signals import StopRequest

__all__ = ["Background"]

_log = logging.getLogger("pmm_mcmc")


class Background:
    """A run that goes on while other code does.  It ends with the process.

    Parameters
    ----------
    run
        Makes the draws of a request, until the stop request says so.
    request
        The checked arguments.

    Attributes
    ----------
    progress
        Where the run is, in words.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x")
    ...     run = pmm.sample(200, random_seed=1, progressbar=False, blocking=False)
    >>> run.wait()["posterior"].sizes["draw"]
    200
    >>> run
    <pmm.sample in the background: finished, 200 draws of each chain>
    """

    def __init__(self, run: Callable[[Request, StopRequest], xr.DataTree], request: Request):
        self._chunks: list[dict[str, np.ndarray]] = []
        self.progress = "compiling"
        self._result: Future[xr.DataTree] = Future()
        self._stopped = StopRequest()
        self._callback = request.callback
        model = request.model
        if model is None:  # the context of a with statement is that of its thread
            model = model_of(None if request.step is None or request.step.free else request.step.model)
        watched = dataclasses.replace(request, model=model, callback=self._see)
        threading.Thread(target=self._run, args=(run, watched), name="pmm.sample", daemon=True).start()

    def __repr__(self) -> str:
        return f"<pmm.sample in the background: {self.progress}>"

    @property
    def finished(self) -> bool:
        """Whether the run has ended: with all its draws, stopped, or by an error."""
        return self._result.done()

    @property
    def posterior(self) -> xr.Dataset:
        """The draws so far, without those of the warm-up; before the end dims have no names of the model."""
        if self.finished and self._result.exception() is None:
            return self._result.result()["posterior"].to_dataset()
        chunks = list(self._chunks)
        arrays = {name: np.concatenate([chunk[name] for chunk in chunks], axis=1) for name in (chunks or [{}])[0]}
        dims = {name: [f"{name}_dim_{i}" for i in range(array.ndim - 2)] for name, array in arrays.items()}
        return xr.Dataset({name: (["chain", "draw", *dims[name]], array) for name, array in arrays.items()})

    def wait(self, timeout: float | None = None) -> xr.DataTree:
        """Return the result once the run has ended.

        Parameters
        ----------
        timeout
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            If it goes on still; it is not stopped.
        Exception
            The error that ended the run.
        """
        try:
            return self._result.result(timeout)
        except TimeoutError:
            if self.finished:
                raise  # the run's own
            raise TimeoutError(
                f"timeout={timeout}: the run goes on ({self.progress}); wait again, or stop it by stop()"
            ) from None

    def stop(self) -> xr.DataTree:
        """End the run and return the result with the draws so far."""
        self._stopped.number = int(signal.SIGINT)
        return self.wait()

    def _run(self, run: Callable[[Request, StopRequest], xr.DataTree], request: Request) -> None:
        try:
            result = run(request, self._stopped)
            self.progress = f"finished, {result['posterior'].sizes['draw']} draws of each chain"
            self._result.set_result(result)
            self._chunks = []
        except BaseException as error:
            self.progress = f"failed, {type(error).__name__}"
            _log.error("The run in the background failed: %s; its wait() raises the error", error)
            self._result.set_exception(error)

    def _see(self, chunk: FinishedChunk) -> None:
        if chunk.tuning:
            self.progress = f"warm-up, {chunk.done} transitions"
        else:
            self.progress = f"{chunk.done} draws of each chain"
            self._chunks.append(chunk.posterior)
        if self._callback is not None:
            self._callback(chunk)
