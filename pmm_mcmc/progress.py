"""What is seen while a run goes on: what is being done, and the bar of many chains, with the look of PyMC's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.table import Column

from pmm_mcmc.memory import scaled

__all__ = ["Heartbeat", "RunProgress"]

_ROWS = 8
_DRAWINGS = 2.0  # a second
# Seconds between lines where nothing can be drawn over, and of the draws at least a hundredth of the time so far.
# Compilation keeps other threads waiting, by 2.4 seconds at most in what was tried.
_BEAT, _SHARE = 1.0, 0.01
_WINDOW = 30.0  # seconds over which speeds are averaged
# Headings, those of a narrow terminal (none where there is no room), and how wide a column may get before it moves
# its neighbours.
_NARROW, _UNKNOWN = 110, "-:--:--"
_COLUMNS = {
    "chains": ("Chains", "Chains", 1),
    "draw": ("Draw", "Draw", 4),
    "step_size": ("Step size", "Step", 6),
    "K": ("K", None, 2),
    "n_grad": ("Gradients", "Grads", 5),
    "unstable": ("Unstable", "Unst.", 5),
    "speed": ("Grad/s (all)", None, 5),
    "elapsed": ("Elapsed", "Elapsed", 7),
    "left": ("Remaining", "Left", 7),
}


class _Mark(NamedTuple):
    """Where a run stands: seconds, phase, its draws; and for each row gradients and, in this phase, unstable steps."""

    time: float
    tuning: bool
    done: int
    step_size: float
    K: int
    n_grad: list[int]
    unstable: list[int]


class _Beats:
    """Calls a function every so many seconds, in a thread of its own, until it is stopped."""

    def __init__(self, beat: Callable[[], None], pause: Callable[[], float]):
        self._over, self._beat, self._pause = threading.Event(), beat, pause
        self._thread = threading.Thread(target=self._run, name="pmm_mcmc progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._pause()):
            self._beat()

    def stop(self) -> None:
        """Stop, and wait until it has."""
        self._over.set()
        self._thread.join()


class Heartbeat:
    """Says what is being done, and for how long, while something takes its time.

    A context manager.  In a terminal or a notebook it is one line, drawn over, which goes when it is left; in a file or
    a pipe a line at once and then at least every two seconds.

    Parameters
    ----------
    show
        Whether to write anything at all.

    Examples
    --------
    >>> with Heartbeat(show=False) as heartbeat:
    ...     heartbeat.say("compiling")
    """

    def __init__(self, show: bool = True):
        self._show, self._words = show, ""
        self._line: Progress | None = None
        self._task = TaskID(0)
        self._beats: _Beats | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self.stop()

    def say(self, words: str) -> None:
        """Say what is being done from now on."""
        if not self._show:
            return
        self._words, self._since = words, perf_counter()
        if self._line is not None:
            self._line.reset(self._task, description=words)
            return
        if self._beats is None:
            self._console = _console()
        if self._console.is_interactive or self._console.is_jupyter:
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._line = Progress(*columns, console=self._console, transient=True, refresh_per_second=_DRAWINGS)
            self._task = self._line.add_task(words, total=None)
            self._line.start()
            return
        _write(self._console, words)
        if self._beats is None:
            self._beats = _Beats(self._again, lambda: _BEAT)

    def stop(self) -> None:
        """Say no more."""
        if self._beats is not None:
            self._beats.stop()
        if self._line is not None:
            self._line.stop()
        self._beats = self._line = None

    def _again(self) -> None:
        _write(self._console, f"{self._words}, {_clock(perf_counter() - self._since)}")


class RunProgress:
    """A bar for each chain, or for each of up to eight groups of chains, updated between chunks.

    A context manager.  In a terminal or a notebook the rows are PyMC's, with step size, K, gradients, unstable
    transitions, and the gradients a second of all chains together; a row turns red when transitions were unstable
    after the warm-up.  Where nothing can be drawn over (a file, a pipe) a line is written at least every two seconds,
    while drawing at least every hundredth of the time that the run has taken, and one at the end.

    Parameters
    ----------
    chains
        Chains of the run.
    tune, draws
        Draws of each chain in the warm-up, and after it.
    show
        Whether to write anything at all.

    Examples
    --------
    >>> with RunProgress(chains=2, tune=10, draws=10, show=False) as bar:
    ...     bar.update(tuning=True, done=10, step_size=0.5, K=16, n_grad=[40, 40], unstable=[0, 0])
    """

    def __init__(self, *, chains: int, tune: int, draws: int, show: bool = True):
        self._chains, self._tune, self._draws, self._show = chains, tune, draws, show
        self._starts = np.arange(0, chains, -(-chains // _ROWS))
        self._warmed_up = tune
        self._first: _Mark | None = None
        self._latest: _Mark | None = None
        self._drawn: deque[_Mark] = deque()
        self._bar: Progress | None = None
        self._beats: _Beats | None = None
        self._tasks: list[TaskID] = []

    def __enter__(self) -> Self:
        if self._show:
            self._began = perf_counter()
            self._console = _console()
            if self._console.is_interactive or self._console.is_jupyter:
                self._start()
            else:
                self._beats = _Beats(self._again, self._pause)
        return self

    def __exit__(self, *failure: Any) -> None:
        if not self._show:
            return
        last = self._latest
        if self._beats is not None:
            self._beats.stop()
        if self._bar is not None:
            if last is not None and self._first is not None:
                self._draw(last, since=self._first)
            self._bar.refresh()
            self._bar.stop()
        elif last is not None:
            _write(self._console, self._line(last, last.time))

    def update(self, *, tuning: bool, done: int, step_size: float, K: int, n_grad: Any, unstable: Any) -> None:
        """Say how far the run has come; drawn at most twice a second, and at the end.

        Speeds are counted from the first update on: one before the first chunk, of zeros or of what a run goes on
        from, makes the first chunk count.  A warm-up that ends before ``tune`` draws shortens the bar.

        Parameters
        ----------
        tuning
            Whether this is the warm-up.
        done
            Draws of this phase that each chain has made.
        step_size, K
            What the chains use now.
        n_grad : (chains,)
            Gradients that each chain has spent in the whole run.
        unstable : (chains,)
            Unstable transitions of each chain in this phase.
        """
        if not self._show:
            return
        by_row = [np.add.reduceat(np.asarray(counts), self._starts).tolist() for counts in (n_grad, unstable)]
        previous, mark = self._latest, _Mark(perf_counter(), tuning, done, step_size, K, *by_row)
        if tuning:
            self._warmed_up = done
        self._latest, self._first = mark, self._first or mark
        if self._bar is None:
            return
        if previous is not None and previous.tuning and not tuning:
            self._drawn = deque([previous])  # another phase, another speed
        elif self._drawn and mark.time - self._drawn[-1].time < 1.0 / _DRAWINGS:
            return
        self._drawn.append(mark)
        while len(self._drawn) > 1 and mark.time - self._drawn[1].time > _WINDOW:
            self._drawn.popleft()
        self._draw(mark, since=self._drawn[0])

    def _position(self, mark: _Mark) -> int:
        """Return the draws of a chain so far, warm-up included."""
        return mark.done if mark.tuning else self._warmed_up + mark.done

    def _draw(self, mark: _Mark, since: _Mark) -> None:
        assert self._bar is not None
        warm_up = self._tune if mark.tuning else self._warmed_up
        position, total = self._position(mark), warm_up + self._draws
        seconds, steps = mark.time - since.time, position - self._position(since)
        left = _UNKNOWN
        if position >= total:
            left = _clock(0)
        elif steps > 0:
            left = _clock((total - position) * seconds / steps)
        for row, task in enumerate(self._tasks):
            self._bar.update(
                task,
                completed=position,
                total=total,
                marker_pos=warm_up,
                failing=mark.unstable[row] > 0 and not mark.tuning,
                draw=mark.done,
                step_size=f"{mark.step_size:.3g}",
                K=mark.K,
                n_grad=_count(mark.n_grad[row]),
                unstable=_count(mark.unstable[row]),
                speed=_speed(mark, since),
                left=left,
            )

    def _pause(self) -> float:
        last = self._latest
        drawing = last is not None and not last.tuning
        return max(_BEAT, _SHARE * (perf_counter() - self._began)) if drawing else _BEAT

    def _again(self) -> None:
        last = self._latest
        if last is not None:
            doing = ", first steps" if last is self._first else ""
            _write(self._console, self._line(last, perf_counter()) + doing)

    def _line(self, mark: _Mark, now: float) -> str:
        place = f"warm-up {mark.done} of {self._tune}" if mark.tuning else f"draw {mark.done} of {self._draws}"
        assert self._first is not None
        return (
            f"{self._chains} chain{'s' * (self._chains != 1)}, {place}: {_count(sum(mark.n_grad))} gradients "
            f"({_speed(mark, self._first)}/s), {_count(sum(mark.unstable))} unstable, {_clock(now - self._began)}"
        )

    def _start(self) -> None:
        # The parts of PyMC's bar that are used: loaded here, so that runs without one do not import PyMC.
        from pymc.progress_bar import CustomProgress
        from pymc.progress_bar.rich_progress import CustomBarColumn

        narrow, blue = self._console.width < _NARROW, Style.parse("rgb(31,119,180)")
        columns: list[ProgressColumn] = [
            CustomBarColumn(
                bar_width=None,
                table_column=Column("Progress", ratio=1),
                failing_color="tab:red",
                complete_style=blue,
                finished_style=blue,
            )
        ]
        for name, (wide, short, width) in _COLUMNS.items():
            heading = short if narrow else wide
            if heading is None:
                continue
            column = Column(heading, no_wrap=True, min_width=width)
            text = f"{{task.fields[{name}]}}"
            columns.append(
                TimeElapsedColumn(table_column=column) if name == "elapsed" else TextColumn(text, table_column=column)
            )
        self._bar = CustomProgress(
            *columns,
            console=self._console,
            refresh_per_second=_DRAWINGS,
            get_time=perf_counter,
            include_headers=True,
            expand=True,
        )
        for start, end in zip(self._starts, [*self._starts[1:], self._chains], strict=True):
            fields: dict[str, Any] = dict.fromkeys(_COLUMNS, "-")
            fields["chains"] = f"{start}" if end - start == 1 else f"{start}-{end - 1}"
            fields["left"] = _UNKNOWN
            total = self._tune + self._draws
            self._tasks.append(self._bar.add_task("", total=total, marker_pos=self._tune, failing=False, **fields))
        self._bar.start()


def _console() -> Console:
    from pymc.progress_bar import default_progress_theme

    return Console(theme=default_progress_theme)


def _write(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _speed(mark: _Mark, since: _Mark) -> str:
    seconds = mark.time - since.time
    return _count((sum(mark.n_grad) - sum(since.n_grad)) / seconds) if seconds > 0 else "-"


def _count(number: float) -> str:
    """Return a number in at most five characters or so: as it is up to 99999, then ``123k``, ``1.23M``."""
    return f"{number:.0f}" if number < 99_999.5 else "".join(scaled(number, figures=3))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
