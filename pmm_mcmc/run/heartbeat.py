"""The progress line during compilation: the current task and its elapsed time."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["BEAT", "DRAWINGS", "NARROW", "Beats", "Heartbeat", "clock", "console", "write"]

# Columns of a terminal below which progress has shorter headings.
NARROW = 110
DRAWINGS = 2.0  # a second
# Seconds between the first lines in a file or pipe.  Compilation delays other threads: by 2.4 s at most in trials.
BEAT = 1.0
# Seconds between later lines of a task that goes on: the pauses double up to this.
_LONGEST = 5.0
# Letters of the longest line, so that a shorter one covers it.
_WIDTH = 100


class Beats:
    """A thread that calls ``beat`` after every pause of ``pause()`` seconds until it is stopped."""

    def __init__(self, beat: Callable[[], None], pause: Callable[[], float]):
        self._over = threading.Event()
        self._beat = beat
        self._pause = pause
        self._thread = threading.Thread(target=self._run, name="pmm_mcmc progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._pause()):
            self._beat()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._over.set()
        self._thread.join()


class Heartbeat:
    """The current task and its elapsed time on the screen, if they are to be shown, until it is stopped.

    In a terminal or a notebook it is one line, redrawn in place and removed at the end; in a file or a pipe, a line at
    once, after 1, 2, 4 and 8 seconds, and then every 5; in a notebook without ipywidgets, these lines over one another.
    """

    def __init__(self, show: bool = True):
        self._show = show
        self._description = ""
        self._line: Progress | None = None
        self._task = TaskID(0)
        self._beats: Beats | None = None
        self._later: threading.Timer | None = None

    def say(self, description: str) -> None:
        """Show a new task from now on."""
        if not self._show:
            return
        self._description = description
        self._since = perf_counter()
        if self._line is not None:
            self._line.reset(self._task, description=description)
            return
        if self._beats is None:
            self._console = console()
        if self._console.is_interactive or self._console.is_jupyter:
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._line = Progress(*columns, console=self._console, transient=True, refresh_per_second=DRAWINGS)
            self._task = self._line.add_task(description, total=None)
            self._line.start()
            return
        write(self._console, description)
        if self._beats is None:
            self._beats = Beats(self._again, self._pause)

    def say_later(self, description: str) -> None:
        """Show a new task once it has taken a second."""
        self._later = threading.Timer(BEAT, self.say, (description,))
        self._later.daemon = True
        self._later.start()

    def stop(self) -> None:
        """Stop showing tasks."""
        if self._later is not None:
            self._later.cancel()
            self._later.join()
        self._later = None
        if self._beats is not None:
            self._beats.stop()
        if self._line is not None:
            self._line.stop()
        self._beats = None
        self._line = None

    def _pause(self) -> float:
        """Return the pause to the next line: as long as the task has taken so far, within bounds."""
        return min(max(BEAT, perf_counter() - self._since), _LONGEST)

    def _again(self) -> None:
        elapsed = perf_counter() - self._since
        if elapsed >= BEAT:
            write(self._console, f"{self._description}, {clock(elapsed)}")


class OneLine(Console):
    """A notebook that cannot redraw: rich asks for ipywidgets there.  Lines are written over one another."""


def console() -> Console:
    """Return a console with the theme of PyMC's progress bar."""
    from pymc.progress_bar import default_progress_theme

    drawing = Console(theme=default_progress_theme)
    if drawing.is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        return OneLine(force_jupyter=False, force_terminal=False)
    return drawing


def write(to: Console, line: str, last: bool = False) -> None:
    """Write a line without markup, above a live progress bar; none comes after the ``last`` one."""
    end = "\n"
    if isinstance(to, OneLine):
        line = line.ljust(_WIDTH)
        end = "\n" if last else "\r"
    to.print(line, end=end, highlight=False, markup=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds."""
    return str(timedelta(seconds=int(seconds)))
