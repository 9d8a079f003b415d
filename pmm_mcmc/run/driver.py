"""A run of many chains between the compiled chunks: warm-up, draws, statistics, checkpoints, interruptions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.engines.contract import Chunk, Engine
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.engines.settings import MethodArguments, TunedParameters
from pmm_mcmc.warmup.pooled import Warming

__all__ = ["Driver", "FinishedChunk", "Plan", "Recorder", "Run", "StopSampling", "Wish", "stop_on_signals"]

# Seconds between looks at the progress bar, the callback's wishes and Ctrl-C: draws do not depend on it.
_SECONDS = 0.3
_NEWEST = 1000  # positions

Groups = dict[str, dict[str, np.ndarray]]


class StopSampling(Exception):
    """Raise it in a callback of ``pmm.sample`` to end the run and keep everything that is finished."""


class FinishedChunk(NamedTuple):
    """What a callback gets after each chunk.

    Attributes
    ----------
    tuning
        Whether the draws are of the warm-up.
    done
        Draws of this phase that are finished, these included.
    posterior, sample_stats
        Arrays ``(chain, draw, ...)`` by name, of this chunk.  Of the warm-up only where it is kept; of the chains of
        this process, where there are several.
    """

    tuning: bool
    done: int
    posterior: dict[str, np.ndarray]
    sample_stats: dict[str, np.ndarray]


class Plan(Protocol):
    """What a driver needs of a :class:`pmm_mcmc.run.plan.SamplingPlan`."""

    engine: Engine
    statistics: tuple[str, ...]

    def values(self, position: np.ndarray, tuning: bool = False) -> Groups:
        """Name the values of draws ``(chain, n, d)`` as arrays ``(chain, n, ...)`` of every group that is wanted."""


class Recorder(Protocol):
    """Where finished chunks go."""

    def put(self, groups: Groups, run: Run, whole: bool) -> None:
        """Take the draws of a chunk, whole or cut short by an interruption, and the run as it stands after them."""


@dataclass
class Run:
    """A run as it stands: all that is needed to go on, bit for bit.

    Attributes
    ----------
    warming
        The warm-up; after it, its chains go on.
    tuning
        Whether it is under way.
    done
        Draws after warm-up that are finished.
    n_grad : (chain,)
        Gradients spent in all.
    unstable : (chain,)
        Transitions rejected in the present phase.
    """

    warming: Warming
    tuning: bool
    done: int
    n_grad: np.ndarray
    unstable: np.ndarray

    @classmethod
    def start(
        cls,
        engine: Engine,
        settings: MethodArguments,
        starts: np.ndarray,
        tune: int,
        rng: np.random.Generator,
    ) -> Run:
        """Begin at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.pooled.Warming.start`."""
        warming = Warming.start(engine, settings, starts, tune, rng)
        nothing = np.zeros(len(starts), np.int64)
        return cls(warming, not warming.finished, 0, warming.n_grad.copy(), nothing)

    @property
    def tuned(self) -> TunedParameters:
        """The setting in force."""
        return self.warming.tuned


class Driver:
    """Drives a run: chunk by chunk, to the last draw or until it is told to stop.

    Parameters
    ----------
    plan
        What is sampled: see :class:`Plan`.
    run
        The run, new or resumed.
    recorder
        Where chunks go.
    draws, rows
        Draws in all, and of a chunk.
    batch
        Chains that advance at a time, by the number of draws that are made of each.
    keep_warmup
        Whether the draws of the warm-up are wanted.
    callback
        Called with every chunk.
    update
        Called several times a second with the run, the draws of its phase that are done, gradients and rejections.
    processes
        The processes that share the chains.
    """

    def __init__(
        self,
        plan: Plan,
        run: Run,
        recorder: Recorder,
        *,
        draws: int,
        rows: int,
        batch: Callable[[int], int],
        keep_warmup: bool,
        callback: Callable[[FinishedChunk], None] | None,
        update: Callable[[Run, int, np.ndarray, np.ndarray], None],
        processes: Processes,
    ):
        self.plan, self.run, self.recorder, self.keep_warmup = plan, run, recorder, keep_warmup
        self.draws, self.rows, self.batch = draws, rows, batch
        self.callback, self.update, self.processes = callback, update, processes
        self._pace, self._stop = 1, False
        # The model's positions at the newest draws, for what is said of the run at its end.
        self.newest = np.empty((0, plan.engine.d))

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run to the end; return whether it was reached.

        Parameters
        ----------
        stopped
            Asked several times a second whether to stop.
        """
        while self.run.tuning or self.run.done < self.draws:
            whole = self._warm() if self.run.tuning else self._draw(stopped)
            if self.processes.any(self._stop or stopped() or not whole):
                return not self.run.tuning and self.run.done >= self.draws
        return True

    def _warm(self) -> bool:
        run, warming, own = self.run, self.run.warming, self.processes.own
        warmup = warming.warmup
        assert warmup is not None
        n_grad, rejected, rows = run.n_grad[own].copy(), run.unstable[own].copy(), warmup.boundary - warmup.done
        chunk_of_all = _Gathered(len(n_grad), rows)

        def look(which: slice, chunk: Chunk) -> None:
            rejected[which] += chunk.unstable.sum(axis=1)
            if self.keep_warmup:
                chunk_of_all.put(which, 0, self._groups(chunk, setting, 1, n_grad[which], "warmup_"))

        setting = warming.tuned
        warming.block(self.plan.engine, self.batch(rows), look, self.processes)
        run.n_grad, (run.unstable,) = warming.n_grad.copy(), self.processes.join(rejected)
        self.update(run, warmup.done, run.n_grad, run.unstable)
        if warming.finished:
            # Its draws are of no more use.
            run.tuning, run.unstable, warming.warmup = False, np.zeros_like(run.unstable), None
        self.recorder.put(chunk_of_all.groups, run, True)
        self._report(True, warmup.done, chunk_of_all.groups, "warmup_")
        return True

    def _draw(self, stopped: Callable[[], bool]) -> bool:
        """Make one chunk; return False where it was stopped within it, after putting away what is finished."""
        run, tuned, thin = self.run, self.run.tuned, self.run.tuned.steps_per_draw
        ensemble, own = run.warming.ensemble, self.processes.own
        mine, n_grad, unstable = run.warming.part(own), run.n_grad[own], run.unstable[own]
        rows, done = min(self.rows, self.draws - run.done), 0
        found = _Gathered(len(n_grad), rows)
        while done < rows:
            n = min(self._pace, rows - done)
            began = time.perf_counter()
            for which, chunk in mine.advance_in_batches(self.plan.engine, tuned, n, self.batch(n), thin=thin):
                found.put(which, done, self._groups(chunk, tuned, thin, n_grad[which], ""))
                self.newest = np.concatenate([chunk.model_position[:, -1], self.newest])[:_NEWEST]
                n_grad[which] += chunk.n_grad.sum(axis=1)
                unstable[which] += chunk.unstable.sum(axis=1)
            seconds = (time.perf_counter() - began) / n
            self._pace = int(np.clip(_SECONDS / max(seconds, 1e-9), 1, 2 * self._pace))
            done += n
            run.done += n
            self.update(run, run.done, run.n_grad, run.unstable)
            # Several processes would not stop at the same draw.
            if done < rows and self.processes.count == 1 and stopped():
                break
        ensemble.transition = mine.transition
        ensemble.state, ensemble.gradient, run.n_grad, run.unstable = self.processes.join(
            mine.state, mine.gradient, n_grad, unstable
        )
        groups = found.upto(done)
        self.recorder.put(groups, run, done == rows)
        self._report(False, run.done, groups, "")
        return done == rows

    def _report(self, tuning: bool, done: int, groups: Groups, prefix: str) -> None:
        empty: dict[str, np.ndarray] = {}
        parts = (groups.get(prefix + name, empty) for name in ("posterior", "sample_stats"))
        try:
            if self.callback is not None:
                self.callback(FinishedChunk(tuning, done, *parts))
        except StopSampling:
            self._stop = True

    def _groups(self, chunk: Chunk, tuned: TunedParameters, thin: int, spent: np.ndarray, prefix: str) -> Groups:
        d, structure = self.plan.engine.d, self.plan.engine.structure
        x, q, slope = chunk.model_position, chunk.position, chunk.gradient
        if structure is not None:
            q, slope = structure.judged(chunk.position, chunk.gradient[..., :d], tuned.coordinates.sites)
        found = {prefix + name: values for name, values in self.plan.values(x, bool(prefix)).items()}
        shape = chunk.lp.shape
        everything: dict[str, Callable[[], Any]] = {
            "step_size": lambda: np.full(shape, tuned.step_size),
            "K": lambda: np.full(shape, tuned.K),
            "friction": lambda: np.full(shape, tuned.friction),
            "steps_per_draw": lambda: np.full(shape, thin),
            "halving_cost": lambda: np.full(shape, tuned.halving_cost),
            "expected_bias": lambda: np.full(shape, tuned.expected_bias),
            "n_grad": lambda: chunk.n_grad,
            "n_grad_total": lambda: spent[:, None] + np.cumsum(chunk.n_grad, axis=1),
            "unstable": lambda: chunk.unstable,
            "refined": lambda: chunk.refined,
            "model_failures": lambda: chunk.model_failures,
            "lp": lambda: chunk.lp,
            "acceptance_rate": lambda: chunk.accept,
            "gradient": lambda: slope,
            "unconstrained": lambda: x,
            "noncentred": lambda: q,
        }
        found[prefix + "sample_stats"] = {name: everything[name]() for name in self.plan.statistics}
        return found


class _Gathered:
    """The arrays of a chunk, from batches of chains and pieces of draws; each is there but once."""

    def __init__(self, chains: int, rows: int):
        self._shape = chains, rows
        self.groups: Groups = {}

    def put(self, which: slice, first: int, groups: Groups) -> None:
        """Take arrays ``(chain, n, ...)`` of some chains, from a draw on."""
        for group, arrays in groups.items():
            there = self.groups.setdefault(group, {})
            for name, values in arrays.items():
                if values.shape[:2] == self._shape:
                    there[name] = values
                    continue
                if name not in there:
                    there[name] = np.empty((*self._shape, *values.shape[2:]), values.dtype)
                there[name][which, first : first + values.shape[1]] = values

    def upto(self, rows: int) -> Groups:
        """Return what is there of the first draws."""
        if rows == self._shape[1]:
            return self.groups
        return {
            group: {name: values[:, :rows] for name, values in arrays.items()} for group, arrays in self.groups.items()
        }


class Wish:
    """Whether a signal wished to stop, and which: ``number`` is ``None`` where none did."""

    number: int | None = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.number is not None


@contextmanager
def stop_on_signals() -> Iterator[Wish]:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop that can be asked for; the second acts as ever.

    Outside the main thread, where signals do not arrive, it is never wished.
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        wish.number = number
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[number] = signal.signal(number, note)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
