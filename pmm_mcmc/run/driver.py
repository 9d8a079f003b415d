"""The loop of a run between its compiled chunks: warm-up, draws, statistics, checkpoints, interruptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import Chunk, Engine, at_draw
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import GHMC
from pmm_mcmc.run.chunks import Gathered, Groups, Plan, groups_of
from pmm_mcmc.run.until import Until
from pmm_mcmc.warmup.equilibration import Equilibration, adjusted_setting
from pmm_mcmc.warmup.pooled import Warming

if TYPE_CHECKING:
    from pmm_mcmc.run.console import Console
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request

__all__ = ["Driver", "FinishedChunk", "Recorder", "Run", "StopSampling"]

# Seconds between updates of the progress bar and checks for Ctrl-C.  Draws do not depend on it.
_SECONDS = 0.3


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


class Recorder(Protocol):
    """The destination of finished chunks, of ``rows`` draws each."""

    rows: int

    def put(self, groups: Groups, run: Run, complete: bool) -> None:
        """Record the draws of a chunk, and the run after them; ``complete`` is False for an interrupted chunk."""

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result."""


@dataclass
class Run:
    """The state of a run: all that it needs to continue bit for bit.

    Attributes
    ----------
    warming
        The warm-up with its chains, which are the chains of the run.
    tuning
        Whether the warm-up, or the equilibration after it, is still in progress.
    done
        Number of finished draws after it.
    n_grad : (chain,)
        Gradients spent in all.
    unstable : (chain,)
        Transitions rejected in the current phase.
    equilibration
        None before it, and in runs without one.
    """

    warming: Warming
    tuning: bool
    done: int
    n_grad: np.ndarray
    unstable: np.ndarray
    equilibration: Equilibration | None = None

    @classmethod
    def start(
        cls,
        plan: Plan,
        starts: np.ndarray,
        tune: int,
        rng: np.random.Generator,
    ) -> Run:
        """Start at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.pooled.Warming.start`."""
        warming = Warming.start(plan.engine, plan.arguments, starts, tune, rng, checked=not plan.equilibrates)
        if plan.equilibrates and warming.finished:
            kernel = plan.engine.kernel
            warming.ensemble.state = at_draw(warming.ensemble.state, kernel, GHMC)
            warming.tuned = adjusted_setting(warming.tuned, kernel, warming.tuned.step_size)
        nothing = np.zeros(len(starts), np.int64)
        return cls(warming, not warming.finished, 0, warming.n_grad.copy(), nothing)

    def prepare(self, plan: Plan) -> None:
        """Compile what the run goes on with."""
        if not plan.adjusted or self.tuning:
            self.warming.ensemble.prepare(plan.engine, self.tuned)
        if plan.adjusted:
            self.warming.ensemble.prepare(plan.adjusted_engine, self.tuned)

    @property
    def tuned(self) -> TunedParameters:
        """The current tuned parameters."""
        return self.warming.tuned if self.equilibration is None else self.equilibration.tuned

    def attributes(self, plan: Plan) -> dict[str, Any]:
        """Return the setting of the draws as attributes of the result; of adjusted ones ``equilibration`` has it."""
        return {name: np.asarray(getattr(self.tuned, name)).item() for name in plan.setting}


class Driver:
    """The loop of a run, chunk by chunk, to its end or until it is stopped.

    Parameters
    ----------
    plan
        The sampling plan.
    run
        The run, new or resumed.
    recorder
        The destination of chunks.
    request
        The checked arguments of the run.
    until
        The end of the run.
    console
        Shows several times a second where the run is and, after the warm-up, what the draws will cost.
    processes
        The processes that share the chains.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        run: Run,
        recorder: Recorder,
        request: Request,
        until: Until,
        console: Console,
        processes: Processes,
    ):
        self.plan = plan
        self.run = run
        self.recorder = recorder
        self.request = request
        self.until = until
        self.console = console
        self.processes = processes
        self._keep_warmup = not request.discard_tuned_samples
        self._batch = plan.batch(request.batch, request.chains)
        self._pace = 1
        self._stop = False

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run to the end; return whether it was reached.

        Parameters
        ----------
        stopped
            Called several times a second; True stops the run.
        """
        while self.run.tuning or not self.until(self.run.done):
            complete = self._warm() if self.run.tuning else self._draw(stopped)
            if self.processes.any(self._stop or stopped() or not complete):
                return not self.run.tuning and self.run.done >= self.until.bound
        return True

    @property
    def _engine(self) -> Engine:
        warming = self.plan.adjusted and self.run.tuning and self.run.equilibration is None
        return self.plan.adjusted_engine if self.plan.adjusted and not warming else self.plan.engine

    def _warm(self) -> bool:
        run = self.run
        warming = run.warming
        chains = self.processes.own
        warmup = warming.warmup
        equilibration = run.equilibration
        if equilibration is not None:
            rows = equilibration.rows
        else:
            assert warmup is not None
            rows = warmup.boundary - warmup.done
        n_grad = run.n_grad[chains].copy()
        rejected = run.unstable[chains].copy()
        chunk_of_all = Gathered(len(n_grad), rows)
        block_gradients = 0
        began = time.perf_counter()
        ended = 0.0

        def note(batch: slice, chunk: Chunk) -> None:
            nonlocal block_gradients, ended
            block_gradients += int(chunk.n_grad.sum())
            ended = time.perf_counter()
            rejected[batch] += chunk.unstable.sum(axis=1)
            if self._keep_warmup:
                chunk_of_all.put(batch, 0, groups_of(self.plan, chunk, setting, n_grad[batch], "warmup_"))

        setting = run.tuned
        if equilibration is None:
            warming.block(self._engine, self._batch(rows), note, self.processes)
        else:
            equilibration.block(warming, self._engine, self._batch(rows), note, self.processes)
        run.n_grad = warming.n_grad.copy()
        (run.unstable,) = self.processes.join(rejected)
        done = warming.ensemble.transition
        self.console.update(run, done, run.n_grad, run.unstable)
        if equilibration is None and warming.finished:
            # Its draws are no longer needed.
            run.unstable = np.zeros_like(run.unstable)
            warming.warmup = None
            run.tuning = self.plan.equilibrates
            if run.tuning:
                run.equilibration = Equilibration.begin(
                    warming, self.plan.engine.kernel, self.plan.arguments, self.request.tune
                )
        elif equilibration is not None and equilibration.finished:
            run.tuning = False
            run.unstable = np.zeros_like(run.unstable)
        self.recorder.put(chunk_of_all.groups, run, True)
        if not run.tuning:
            self.recorder.note(run.attributes(self.plan))
        if not run.tuning and rows and self.processes.primary:
            gradients = block_gradients / (rows * len(n_grad))
            seconds = (ended - began) / rows
            self.console.log(self.until.announced(run.n_grad, run.tuned.steps_per_draw, gradients, seconds))
        self._report(True, done, chunk_of_all.groups, "warmup_")
        return True

    def _draw(self, stopped: Callable[[], bool]) -> bool:
        """Compute and record one chunk; return False if it was stopped early, with the finished draws recorded."""
        run = self.run
        tuned = run.tuned
        thin = tuned.steps_per_draw
        ensemble = run.warming.ensemble
        chains = self.processes.own
        local_ensemble = run.warming.part(chains)
        n_grad = run.n_grad[chains]
        unstable = run.unstable[chains]
        rows = min(self.recorder.rows, self.until.next_end(run.done) - run.done)
        done = 0
        chunk_of_all = Gathered(len(n_grad), rows)
        while done < rows:
            n = min(self._pace, rows - done)
            began = time.perf_counter()
            for batch, chunk in local_ensemble.advance_in_batches(self._engine, tuned, n, self._batch(n), thin=thin):
                chunk_of_all.put(batch, done, groups_of(self.plan, chunk, tuned, n_grad[batch], ""))
                n_grad[batch] += chunk.n_grad.sum(axis=1)
                unstable[batch] += chunk.unstable.sum(axis=1)
            seconds = (time.perf_counter() - began) / n
            self._pace = int(np.clip(_SECONDS / max(seconds, 1e-9), 1, 2 * self._pace))
            done += n
            run.done += n
            self.console.update(run, run.done, run.n_grad, run.unstable)
            # Several processes stop only between chunks: within one they would not stop at the same draw.
            if done < rows and self.processes.count == 1 and stopped():
                break
        ensemble.transition = local_ensemble.transition
        ensemble.state, ensemble.gradient, run.n_grad, run.unstable = self.processes.join(
            local_ensemble.state, local_ensemble.gradient, n_grad, unstable
        )
        groups = chunk_of_all.upto(done)
        self.recorder.put(groups, run, done == rows)
        self._report(False, run.done, groups, "")
        return done == rows

    def _report(self, tuning: bool, done: int, groups: Groups, prefix: str) -> None:
        empty: dict[str, np.ndarray] = {}
        parts = (groups.get(prefix + name, empty) for name in ("posterior", "sample_stats"))
        try:
            if self.request.callback is not None:
                self.request.callback(FinishedChunk(tuning, done, *parts))
        except StopSampling:
            self._stop = True
