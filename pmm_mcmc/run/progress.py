"""The progress bar of a run of many chains, with PyMC's theme."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np
from rich.progress import Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.table import Column

from pmm_mcmc.run.heartbeat import BEAT, DRAWINGS, NARROW, Beats, clock, console, write
from pmm_mcmc.run.memory import scaled

__all__ = ["RunProgress", "count"]

_ROWS = 8  # bars at most, one for each group of chains
# Between lines about draws where nothing can be drawn over: at least a hundredth of the time so far.
_SHARE = 0.01
_WINDOW = 30.0  # seconds over which speeds are averaged
# Headings, those of a narrow terminal (none where there is no room), and how wide a column may get before it moves
# its neighbours.
_UNKNOWN = "-:--:--"
_COLUMNS: dict[str, tuple[str | None, str | None, int]] = {
    "chains": ("Chains", "Chains", 1),
    "draw": ("Draw", "Draw", 4),
    "step_size": ("Step size", "Step", 6),
    "K": ("K", None, 2),
    "n_grad": ("Gradients", "Grads", 5),
    "failed": ("Unstable", "Unst.", 5),
    "speed": ("Grad/s (all)", None, 5),
    "elapsed": ("Elapsed", "Elapsed", 7),
    "left": ("Remaining", "Left", 7),
}
_ADJUSTED = _COLUMNS | {"K": (None, None, 0), "failed": ("Diverging", "Div.", 5)}


class _Mark(NamedTuple):
    """Progress at one time: phase and draws of a run; for each row gradients, and the phase's failed transitions."""

    time: float
    tuning: bool
    done: int
    step_size: float
    K: int
    n_grad: list[int]
    failed: list[int]


class RunProgress:
    """Context manager with a bar for each chain, or for each of up to eight groups of chains, updated between chunks.

    In a terminal or a notebook the rows are PyMC's, with step size, K of unadjusted draws, gradients, transitions that
    failed, and the gradients per second of all chains; a row turns red if transitions failed after the warm-up.  In a
    file or a pipe a line is written at least every two seconds (while drawing, at least every hundredth of the elapsed
    time), and one at the end.  ``tune`` and ``draws`` are those of each chain in the warm-up and after it, at most;
    transitions that fail are "diverging" if ``adjusted``, otherwise "unstable".
    """

    def __init__(self, *, chains: int, tune: int, draws: int, show: bool = True, adjusted: bool = False):
        self._chains = chains
        self._tune = tune
        self._draws = draws
        self._show = show
        self._columns = _ADJUSTED if adjusted else _COLUMNS
        self._word = "diverging" if adjusted else "unstable"
        self._starts = np.arange(0, chains, -(-chains // _ROWS))
        self._warmed_up = tune
        self._first: _Mark | None = None
        self._latest: _Mark | None = None
        self._before_draws: _Mark | None = None
        self._drawn: deque[_Mark] = deque()
        self._bar: Progress | None = None
        self._beats: Beats | None = None
        self._tasks: list[TaskID] = []

    def __enter__(self) -> Self:
        if self._show:
            self._began = perf_counter()
            self._console = console()
            if self._console.is_interactive or self._console.is_jupyter:
                self._start()
            else:
                self._beats = Beats(self._again, self._pause)
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
            write(self._console, self._line(last, last.time), last=True)

    def update(self, *, tuning: bool, done: int, step_size: float, K: int, n_grad: Any, failed: Any) -> None:
        """Show the progress of the run, at most twice a second and at the end.

        Speeds count from the first update, which must come before the first chunk, with zeros or with the counts of a
        resumed run.  A warm-up that ends before ``tune`` draws shortens the bar.  ``n_grad`` are the gradients of each
        chain in the whole run, ``failed`` its transitions in this phase that failed, ``done`` its draws in this phase.
        """
        if not self._show:
            return
        by_row = [np.add.reduceat(np.asarray(counts), self._starts).tolist() for counts in (n_grad, failed)]
        previous = self._latest
        mark = _Mark(perf_counter(), tuning, done, step_size, K, *by_row)
        if tuning:
            self._warmed_up = done
        elif self._before_draws is None:
            self._before_draws = mark if previous is None or not previous.tuning else previous._replace(done=0)
        self._latest = mark
        self._first = self._first or mark
        if self._bar is None:
            return
        if previous is not None and previous.tuning and not tuning:
            self._drawn = deque([previous])  # the speed of the warm-up does not count for the draws
        elif self._drawn and mark.time - self._drawn[-1].time < 1.0 / DRAWINGS:
            return
        self._drawn.append(mark)
        while len(self._drawn) > 1 and mark.time - self._drawn[1].time > _WINDOW:
            self._drawn.popleft()
        self._draw(mark, since=self._drawn[0])

    def end_at(self, draws: int) -> None:
        """Let the run end after so many draws: fewer than it might have taken."""
        self._draws = draws

    def _position(self, mark: _Mark) -> int:
        """Return the draws of a chain so far, warm-up included."""
        return mark.done if mark.tuning else self._warmed_up + mark.done

    def _draw(self, mark: _Mark, since: _Mark) -> None:
        assert self._bar is not None
        warm_up = self._tune if mark.tuning else self._warmed_up
        position = self._position(mark)
        total = warm_up + self._draws
        seconds = mark.time - since.time
        steps = position - self._position(since)
        left = _UNKNOWN
        if position >= total:
            left = clock(0)
        elif steps > 0 and not mark.tuning:  # a warm-up ends early, and has another pace
            left = clock((total - position) * seconds / steps)
        for row, task in enumerate(self._tasks):
            self._bar.update(
                task,
                completed=position,
                total=total,
                marker_pos=warm_up,
                failing=mark.failed[row] > 0 and not mark.tuning,
                draw=mark.done,
                step_size=f"{mark.step_size:.3g}",
                K=mark.K,
                n_grad=count(mark.n_grad[row]),
                failed=count(mark.failed[row]),
                speed=_speed(mark, since),
                left=left,
            )

    def _pause(self) -> float:
        last = self._latest
        drawing = last is not None and not last.tuning
        return max(BEAT, _SHARE * (perf_counter() - self._began)) if drawing else BEAT

    def _again(self) -> None:
        last = self._latest
        if last is not None:
            doing = ", first steps" if last is self._first else ""
            write(self._console, self._line(last, perf_counter()) + doing)

    def _line(self, mark: _Mark, now: float) -> str:
        place = f"warm-up {mark.done} of at most {self._tune}" if mark.tuning else f"draw {mark.done} of {self._draws}"
        assert self._first is not None
        return (
            f"{self._chains} chain{'s' * (self._chains != 1)}, {place}: {count(sum(mark.n_grad))} gradients "
            f"({_speed(mark, self._first)}/s), {count(sum(mark.failed))} {self._word}, {clock(now - self._began)}"
            f"{self._left(mark)}"
        )

    def _left(self, mark: _Mark) -> str:
        """Return the time that the other draws will take at the speed of those so far, if there are any."""
        since = self._before_draws
        if since is None or not since.done < mark.done < self._draws:
            return ""
        seconds = (mark.time - since.time) / (mark.done - since.done)
        return f", {clock((self._draws - mark.done) * seconds)} left"

    def _start(self) -> None:
        # Imported here so that runs without a bar do not import PyMC.
        from pymc.progress_bar import CustomProgress
        from pymc.progress_bar.rich_progress import CustomBarColumn

        narrow = self._console.width < NARROW
        blue = Style.parse("rgb(31,119,180)")
        columns: list[ProgressColumn] = [
            CustomBarColumn(
                bar_width=None,
                table_column=Column("Progress", ratio=1),
                failing_color="tab:red",
                complete_style=blue,
                finished_style=blue,
            )
        ]
        for name, (wide, short, width) in self._columns.items():
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
            refresh_per_second=DRAWINGS,
            get_time=perf_counter,
            include_headers=True,
            expand=True,
        )
        for start, end in zip(self._starts, [*self._starts[1:], self._chains], strict=True):
            fields: dict[str, Any] = dict.fromkeys(self._columns, "-")
            fields["chains"] = f"{start}" if end - start == 1 else f"{start}-{end - 1}"
            fields["left"] = _UNKNOWN
            total = self._tune + self._draws
            self._tasks.append(self._bar.add_task("", total=total, marker_pos=self._tune, failing=False, **fields))
        self._bar.start()


def _speed(mark: _Mark, since: _Mark) -> str:
    seconds = mark.time - since.time
    return count((sum(mark.n_grad) - sum(since.n_grad)) / seconds) if seconds > 0 else "-"


def count(number: float) -> str:
    """Return a number in about five characters: unchanged up to 99999, then as ``123k``, ``1.23M``."""
    return f"{number:.0f}" if number < 99_999.5 else "".join(scaled(number, figures=3))
