"""What a run shows: its progress in a terminal, a notebook or a file, with PyMC's theme; and what it logs."""

from __future__ import annotations

import datetime
import importlib.util
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np
import xarray as xr
from pymc.progress_bar import CustomProgress, default_progress_theme
from pymc.progress_bar.rich_progress import CustomBarColumn
from rich.console import Console as Terminal
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.table import Column

from pmm_mcmc.diagnostics.verdict import last_message
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.run.driver import Interrupt, StopRequest

DRAWINGS = 2.0  # a second
# Seconds between the first lines in a file or pipe.  Compilation delays other threads: by 2.4 s at most in trials.
_BEAT = 1.0
# Seconds between later lines of a task that goes on: the pauses double up to this.
_LONGEST = 5.0
# Between lines about a run: a share of the time so far, at most so many seconds.
_SHARE = 0.2
_RARELY = 60.0
_NARROW = 110  # columns of a terminal below which some have no room
_WIDTH = 100  # letters of the longest line, so that a shorter one covers it
_ROWS = 8  # bars at most, one for each group of chains
_UNKNOWN = "-:--:--"
# Headings, and how wide a column may get before it moves its neighbours; those that a narrow terminal has not.
_COLUMNS = {
    "chains": ("Chains", 1),
    "draw": ("Draw", 4),
    "step_size": ("Step", 6),
    "K": ("K", 2),
    "n_grad": ("Grads", 5),
    "failed": ("Unstable", 5),
    "speed": ("Grad/s", 5),
    "elapsed": ("Elapsed", 7),
    "left": ("Left", 7),
}
_WIDE = ("K", "speed")
_ADJUSTED = {name: column for name, column in _COLUMNS.items() if name != "K"} | {"failed": ("Diverging", 5)}


class _Shown:
    """What is shown of something that goes on: a bar where it can be redrawn; else lines of a thread, after pauses."""

    _console: Terminal
    _open_bar: Callable[[], Progress]
    _pause: Callable[[], float]
    _again: Callable[[], None]
    _bar: Progress | None = None
    _thread: threading.Thread | None = None

    def _start(self) -> None:
        if self._console.is_interactive or self._console.is_jupyter:
            self._bar = self._open_bar()
            self._bar.start()
            return
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pmm_mcmc progress", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(self._pause()):
            self._again()

    def _stop(self) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()


class Heartbeat(_Shown):
    """The current task and its elapsed time on the screen, if they are to be shown, until it is stopped.

    In a terminal or a notebook it is one line, redrawn in place and removed at the end; in a file or a pipe, a line
    after 1, 2, 4 and 8 seconds, and then every 5; in a notebook without ipywidgets, these lines over one another.
    """

    def __init__(self, show: bool):
        self._show = show
        self._description = ""
        self._task = TaskID(0)

    def say(self, description: str) -> None:
        """Show a new task from now on."""
        if not self._show:
            return
        self._description = description
        self._since = perf_counter()
        if self._bar is not None:
            self._bar.reset(self._task, description=description)
            return
        if self._thread is None:
            self._console = console()
            self._start()

    def stop(self) -> None:
        """Stop showing tasks."""
        self._stop()
        self._thread = self._bar = None

    def _open_bar(self) -> Progress:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        bar = Progress(*columns, console=self._console, transient=True, refresh_per_second=DRAWINGS)
        self._task = bar.add_task(self._description, total=None)
        return bar

    def _pause(self) -> float:
        """Return the pause to the next line: as long as the task has taken so far, within bounds."""
        return min(max(_BEAT, perf_counter() - self._since), _LONGEST)

    def _again(self) -> None:
        elapsed = perf_counter() - self._since
        if elapsed >= _BEAT:
            write(self._console, f"{self._description}, {clock(elapsed)}")


class _Mark(NamedTuple):
    """Progress at one time: phase and draws of a run; for each row gradients, and the phase's failed transitions."""

    time: float
    tuning: bool
    done: int
    step_size: float
    K: int
    n_grad: list[int]
    failed: list[int]


class RunProgress(_Shown):
    """Context manager with a bar for each chain, or for each of up to eight groups of chains, updated between chunks.

    In a terminal or a notebook the rows are PyMC's, with step size, K of unadjusted draws, gradients, transitions that
    failed, and the gradients per second of all chains; a row turns red if transitions failed after the warm-up.  In a
    file or a pipe a line is written every second at first and every minute in the end, and one when the run is over.
    ``tune`` and ``draws`` are those of each chain in the warm-up and after it, at most; transitions that fail are
    "diverging" if ``adjusted``, otherwise "unstable".
    """

    def __init__(self, *, chains: int, tune: int, draws: int, show: bool, adjusted: bool):
        self._chains = chains
        self._tune = tune
        self.draws = draws  # fewer if the run ends earlier
        self._show = show
        self._starts = np.arange(0, chains, -(-chains // _ROWS))
        self._columns = _ADJUSTED if adjusted else _COLUMNS
        self._warmed_up = tune
        self._marks: list[_Mark] = []  # the first, that at which the phase began, and the latest
        self._drawn = -math.inf  # when
        self._tasks: list[TaskID] = []

    def __enter__(self) -> Self:
        if self._show:
            self._began = perf_counter()
            self._console = console()
            self._start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None and self._marks:
            self._draw(since=self._marks[0])
            self._bar.refresh()
        self._stop()
        if self._bar is None and self._marks:
            write(self._console, self._line(self._marks[-1].time), last=True)

    def update(self, tuning: bool, tuned: TunedParameters, done: int, n_grad: np.ndarray, failed: np.ndarray) -> None:
        """Show the progress of the run, at most twice a second and at the end.

        Speeds are those of the phase, and count from the first update, which must come before the first chunk, with
        zeros or with the counts of a resumed run.  A warm-up that ends before ``tune`` draws shortens the bar.
        ``tuned`` is the setting, ``n_grad`` are the gradients of each chain in the whole run, ``failed`` its
        transitions in this phase that failed, ``done`` its draws in this phase.
        """
        if not self._show:
            return
        by_row = [np.add.reduceat(np.asarray(counts), self._starts).tolist() for counts in (n_grad, failed)]
        mark = _Mark(perf_counter(), tuning, done, tuned.step_size, tuned.K, *by_row)
        if tuning:
            self._warmed_up = done
        beginning, began, latest = self._marks or [mark] * 3
        if latest.tuning and not tuning:
            began = latest
        self._marks = [beginning, began, mark]
        if self._bar is not None and (began is latest or mark.time - self._drawn >= 1.0 / DRAWINGS):
            self._drawn = mark.time
            self._draw(since=began)

    def _position(self, mark: _Mark) -> int:
        """Return the draws of a chain so far, warm-up included."""
        return mark.done if mark.tuning else self._warmed_up + mark.done

    def _left(self, mark: _Mark) -> str:
        """Return the time that the other draws will take at the speed of the last ones; a warm-up ends early."""
        since = self._marks[1]
        steps = self._position(mark) - self._position(since)
        if not mark.tuning and mark.done >= self.draws:
            return clock(0)
        if mark.tuning or steps <= 0:
            return _UNKNOWN
        return clock((self.draws - mark.done) * (mark.time - since.time) / steps)

    def _draw(self, since: _Mark) -> None:
        assert self._bar is not None
        mark = self._marks[-1]
        warm_up = self._tune if mark.tuning else self._warmed_up
        for row, task in enumerate(self._tasks):
            self._bar.update(
                task,
                completed=self._position(mark),
                total=warm_up + self.draws,
                marker_pos=warm_up,
                failing=mark.failed[row] > 0 and not mark.tuning,
                draw=mark.done,
                step_size=f"{mark.step_size:.3g}",
                K=mark.K,
                n_grad=count(mark.n_grad[row]),
                failed=count(mark.failed[row]),
                speed=_speed(mark, since),
                left=self._left(mark),
            )

    def _pause(self) -> float:
        return min(max(_BEAT, _SHARE * (perf_counter() - self._began)), _RARELY)

    def _again(self) -> None:
        if self._marks:
            doing = ", first steps" if self._marks[-1] is self._marks[0] else ""
            write(self._console, self._line(perf_counter()) + doing)

    def _line(self, now: float) -> str:
        mark = self._marks[-1]
        place = f"warm-up {mark.done} of at most {self._tune}" if mark.tuning else f"draw {mark.done} of {self.draws}"
        chains = f"{self._chains} chain{'s' * (self._chains != 1)}"
        failed = f"{count(sum(mark.failed))} {self._columns['failed'][0].lower()}"
        gradients = f"{count(sum(mark.n_grad))} gradients ({_speed(mark, self._marks[0])}/s)"
        left = self._left(mark)
        left = f", {left} left" if left not in (_UNKNOWN, clock(0)) else ""
        return f"{chains}, {place}: {gradients}, {failed}, {clock(now - self._began)}{left}"

    def _open_bar(self) -> Progress:
        """Return PyMC's bar with a row for each group of chains."""
        blue = Style.parse("rgb(31,119,180)")
        heading = Column("Progress", ratio=1)
        styles = {"failing_color": "tab:red", "complete_style": blue, "finished_style": blue}
        columns: list[ProgressColumn] = [CustomBarColumn(bar_width=None, table_column=heading, **styles)]
        for name, (text, width) in self._columns.items():
            if name in _WIDE and self._console.width < _NARROW:
                continue
            heading = Column(text, no_wrap=True, min_width=width)
            if name == "elapsed":
                columns.append(TimeElapsedColumn(table_column=heading))
            else:
                columns.append(TextColumn(f"{{task.fields[{name}]}}", table_column=heading))
        options = {"refresh_per_second": DRAWINGS, "get_time": perf_counter, "include_headers": True, "expand": True}
        bar = CustomProgress(*columns, console=self._console, **options)
        for start, end in zip(self._starts, [*self._starts[1:], self._chains], strict=True):
            fields: dict[str, Any] = dict.fromkeys(self._columns, "-")
            fields["chains"] = f"{start}" if end - start == 1 else f"{start}-{end - 1}"
            fields["left"] = _UNKNOWN
            total = self._tune + self.draws
            self._tasks.append(bar.add_task("", total=total, marker_pos=self._tune, failing=False, **fields))
        return bar


def _speed(mark: _Mark, since: _Mark) -> str:
    seconds = mark.time - since.time
    return count((sum(mark.n_grad) - sum(since.n_grad)) / seconds) if seconds > 0 else "-"


def count(number: float) -> str:
    """Return a number in about five characters: unchanged up to 99999, then as ``123k``, ``1.23M``."""
    if number < 99_999.5:
        return f"{number:.0f}"
    digits, exponent = f"{number:.2e}".split("e")
    thousands, tens = divmod(int(exponent), 3)
    return f"{float(digits) * 10**tens:.{2 - tens}f}{' kMGTP'[thousands]}"


class _OneLine(Terminal):
    """A notebook that cannot redraw: rich asks for ipywidgets there.  Lines are written over one another."""


def console() -> Terminal:
    """Return a console with the theme of PyMC's progress bar."""
    drawing = Terminal(theme=default_progress_theme)
    if drawing.is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        return _OneLine(force_jupyter=False, force_terminal=False)
    return drawing


def write(to: Terminal, line: str, last: bool = False) -> None:
    """Write a line without markup, above a live progress bar; none comes after the ``last`` one."""
    end = "\n"
    if isinstance(to, _OneLine):
        line = line.ljust(_WIDTH)
        end = "\n" if last else "\r"
    to.print(line, end=end, highlight=False, markup=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds."""
    return str(timedelta(seconds=int(seconds)))


_log = logging.getLogger("pmm_mcmc")


class Console:
    """Context manager of the output and the times of a run, which ``begins`` with reading the log density, or so.

    Attributes
    ----------
    show
        Whether progress is shown.
    update
        What shows the state of a run: the method of its bar.
    level
        Level of the lines about the run: those of one without progress are for debugging.
    compile_time, sampling_time
        Seconds of preparation, compilation included, and in all.
    """

    def __init__(self, show: bool, begins: str):
        self.show = show
        self.level = logging.INFO if show else logging.DEBUG
        self._task = begins
        self._began = time.time()
        self._created = datetime.datetime.now(datetime.UTC).isoformat()
        self._heartbeat = Heartbeat(show)
        self._interrupt = Interrupt()
        self.compile_time = 0.0
        self.sampling_time = 0.0
        self.update: Callable[..., None] = lambda *state: None

    def __enter__(self) -> Self:
        self._interrupt.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        compiling = not self.compile_time
        self._heartbeat.stop()
        self._interrupt.__exit__()
        if compiling and kind is KeyboardInterrupt:
            _log.warning("Stopped during compilation: there are no new draws")
            raise KeyboardInterrupt from None  # without the frames of compilers

    def log(self, line: str, *values: object) -> None:
        """Log a line."""
        _log.log(self.level, line, *values)

    def announce(self, sampled: str) -> None:
        """Log what will be sampled, before its log density is compiled, or that numba compiles it where no tape can."""
        self.log("%s", sampled)
        self._heartbeat.say(self._task)
        self._task = "Compiling the log density"

    def prepares(self) -> None:
        """Show that the loops of the method are loaded or, once on a machine, compiled."""
        self._interrupt.check()
        self._heartbeat.say("Preparing the method (compiled once on a machine)")

    def checks(self) -> None:
        """Show that the draws are checked."""
        self._heartbeat.say("Checking the draws")

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

    def times(self) -> dict[str, Any]:
        """Return the attributes of a result that say when it was made, and in how many seconds up to now."""
        self.sampling_time = time.time() - self._began
        return {
            "created_at": self._created, "sampling_time": self.sampling_time, "compile_time": self.compile_time,
        }  # fmt: skip

    def verdict(self, result: xr.DataTree) -> None:
        """Log the verdict."""
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


def interrupted(stopped: StopRequest, stored: bool, in_memory: str, done: int, place: str) -> None:
    """Warn that a run has ended early, after the ``done`` draws of a place; it goes on ``in_memory`` or in a store."""
    remedy = in_memory
    if stored:
        remedy = "go on with store= and resume=True"
    if not done:
        _log.warning("Sampling was stopped before the first draw: %s", remedy)
    elif stopped.number == signal.SIGTERM and not stored:
        _log.warning("Sampling was stopped %s; they are in memory only: store= would keep them", place)
    else:
        _log.warning("Sampling was stopped %s; they are kept, and %s", place, remedy)
