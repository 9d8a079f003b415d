"""A run of many chains between the compiled chunks: warm-up, draws, statistics, checkpoints, interruptions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from pmm_mcmc.engines.contract import Chunk, Engine
from pmm_mcmc.methods import Settings
from pmm_mcmc.steps.report import Observed, UnstableReport
from pmm_mcmc.tuning.setting import Tuned
from pmm_mcmc.warming import Warming

__all__ = ["Drawn", "Host", "Run", "Sink", "StopSampling", "stop_on_signals"]

# Seconds between looks at the progress bar, the callback's wishes and Ctrl-C: draws do not depend on it.
_SECONDS = 0.3
_REPORT = "report"

Groups = dict[str, dict[str, np.ndarray]]


class StopSampling(Exception):
    """Raise it in a callback of ``pmm.sample`` to end the run and keep everything that is finished."""


class Drawn(NamedTuple):
    """What a callback gets after each chunk.

    Attributes
    ----------
    tuning
        Whether the draws are of the warm-up.
    done
        Draws of this phase that are finished, these included.
    posterior, sample_stats
        Arrays ``(chain, draw, ...)`` by name, of this chunk.  Of the warm-up only where it is kept.
    """

    tuning: bool
    done: int
    posterior: dict[str, np.ndarray]
    sample_stats: dict[str, np.ndarray]


class Sink(Protocol):
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
    report
        What went wrong after warm-up.
    """

    warming: Warming
    tuning: bool
    done: int
    n_grad: np.ndarray
    unstable: np.ndarray
    report: UnstableReport = field(default_factory=UnstableReport)

    @classmethod
    def start(cls, engine: Engine, settings: Settings, starts: np.ndarray, tune: int, rng: np.random.Generator) -> Run:
        """Begin at positions ``(chain, d)``: see :meth:`pmm_mcmc.warming.Warming.start`."""
        warming = Warming.start(engine, settings, starts, tune, rng)
        nothing = np.zeros(len(starts), np.int64)
        return cls(warming, not warming.finished, 0, warming.n_grad.copy(), nothing)

    @property
    def tuned(self) -> Tuned:
        """The setting in force."""
        return self.warming.tuned


class Host:
    """Drives a run: chunk by chunk, to the last draw or until it is told to stop.

    Parameters
    ----------
    engine
        Of the method.
    run
        The run, new or resumed.
    values
        Positions ``(chain, n, d)``, and whether they are of the warm-up, to named arrays ``(chain, n, ...)`` of every
        group that is wanted.
    statistics
        Names of the statistics that are wanted.
    sink
        Where chunks go.
    draws, rows
        Draws in all, and of a chunk.
    batch
        Chains that advance at a time.
    keep_warmup
        Whether the draws of the warm-up are wanted.
    callback
        Called with every chunk.
    update
        Called several times a second with the run, the draws of its phase that are done, gradients and rejections.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        *,
        values: Callable[[np.ndarray, bool], Groups],
        statistics: tuple[str, ...],
        sink: Sink,
        draws: int,
        rows: int,
        batch: int,
        keep_warmup: bool,
        callback: Callable[[Drawn], None] | None,
        update: Callable[[Run, int, np.ndarray, np.ndarray], None],
    ):
        self.engine, self.run, self.sink = engine, run, sink
        self.values, self.statistics, self.keep_warmup = values, statistics, keep_warmup
        self.draws, self.rows, self.batch = draws, rows, batch
        self.callback, self.update = callback, update
        self._pace = 1

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run to the end; return whether it was reached.

        Parameters
        ----------
        stopped
            Asked several times a second whether to stop.
        """
        try:
            while self.run.tuning:
                self._warm()
                if stopped():
                    return False
            while self.run.done < self.draws:
                if not self._draw(stopped):
                    return False
        except StopSampling:
            return False
        return True

    def _warm(self) -> None:
        run, warming = self.run, self.run.warming
        warmup = warming.warmup
        assert warmup is not None
        parts: list[tuple[slice, Groups]] = []
        before, rejected, rows = run.n_grad, run.unstable.copy(), warmup.boundary - warmup.done

        def look(which: slice, first: int, chunk: Chunk) -> None:
            rejected[which] += chunk.unstable.sum(axis=1)
            if self.keep_warmup:
                parts.append((which, self._groups(chunk, setting, 1, before[which], "warmup_")))

        setting = warming.tuned
        warming.block(self.engine, self.batch, look)
        run.n_grad, run.unstable = warming.n_grad.copy(), rejected
        self.update(run, warmup.done, run.n_grad, run.unstable)
        if warming.finished:
            # Its draws are of no more use.
            run.tuning, run.unstable, warming.warmup = False, np.zeros_like(run.unstable), None
        groups = _joined(parts, len(before), rows)
        self.sink.put(groups, run, True)
        self._report(True, warmup.done, groups, "warmup_")

    def _draw(self, stopped: Callable[[], bool]) -> bool:
        """Make one chunk; return False where it was stopped within it, after putting away what is finished."""
        run, tuned = self.run, self.run.tuned
        rows, done, pieces = min(self.rows, self.draws - run.done), 0, []
        while done < rows:
            n = min(self._pace, rows - done)
            began = time.perf_counter()
            parts = []
            for which, chunk in run.warming.ensemble.advance_in_batches(
                self.engine, tuned, n, self.batch, thin=tuned.steps_per_draw
            ):
                found = self._groups(chunk, tuned, tuned.steps_per_draw, run.n_grad[which], "")
                found[_REPORT] = Observed.of(chunk)._asdict()
                parts.append((which, found))
                run.n_grad[which] += chunk.n_grad.sum(axis=1)
                run.unstable[which] += chunk.unstable.sum(axis=1)
            pieces.append(_joined(parts, len(run.n_grad), n))
            seconds = (time.perf_counter() - began) / n
            self._pace = int(np.clip(_SECONDS / max(seconds, 1e-9), 1, 2 * self._pace))
            done += n
            run.done += n
            self.update(run, run.done, run.n_grad, run.unstable)
            if done < rows and stopped():
                break
        groups = _along_draws(pieces)
        # Once a chunk and in the order of the chains: rounding must not depend on pieces or batches.
        run.report.observe(Observed(**groups.pop(_REPORT)), slice(None), tuned.steps_per_draw)
        self.sink.put(groups, run, done == rows)
        self._report(False, run.done, groups, "")
        return done == rows and not stopped()

    def _report(self, tuning: bool, done: int, groups: Groups, prefix: str) -> None:
        if self.callback is not None:
            empty: dict[str, np.ndarray] = {}
            parts = (groups.get(prefix + name, empty) for name in ("posterior", "sample_stats"))
            self.callback(Drawn(tuning, done, *parts))

    def _groups(self, chunk: Chunk, tuned: Tuned, thin: int, spent: np.ndarray, prefix: str) -> Groups:
        found = {prefix + name: values for name, values in self.values(chunk.position, bool(prefix)).items()}
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
            "model_failures": lambda: chunk.model_failures,
            "lp": lambda: chunk.lp,
            "acceptance_rate": lambda: chunk.accept,
            "gradient": lambda: chunk.gradient,
            "unconstrained": lambda: chunk.position,
        }
        found[prefix + "sample_stats"] = {name: everything[name]() for name in self.statistics}
        return found


def _joined(parts: list[tuple[slice, Groups]], chains: int, rows: int) -> Groups:
    """Put batches of chains together."""
    if len(parts) == 1:
        return parts[0][1]
    out: Groups = {}
    for which, groups in parts:
        for group, arrays in groups.items():
            for name, values in arrays.items():
                whole = out.setdefault(group, {}).setdefault(
                    name, np.empty((chains, rows, *values.shape[2:]), values.dtype)
                )
                whole[which] = values
    return out


def _along_draws(pieces: list[Groups]) -> Groups:
    if len(pieces) == 1:
        return pieces[0]
    return {
        group: {name: np.concatenate([piece[group][name] for piece in pieces], axis=1) for name in arrays}
        for group, arrays in pieces[0].items()
    }


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop that can be asked for; the second acts as ever.

    Outside the main thread, where signals do not arrive, it is never wished.
    """
    wished = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wished.is_set
        return
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        wished.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[number] = signal.signal(number, note)
    try:
        yield wished.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
