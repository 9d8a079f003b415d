"""The progress bar, as text: what a terminal, a narrow one and a file get to see."""

import contextlib
import io
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from pmm_mcmc.run import console as progress
from pmm_mcmc.run.console import Heartbeat, RunProgress

pytestmark = pytest.mark.quick

RED, BLUE = "38;2;214;39;40", "38;2;31;119;180"
HEADINGS = ["Progress", "Chains", "Draw", "Step", "K", "Grads", "Unstable", "Grad/s", "Elapsed", "Left"]


class Screen:
    """A terminal that is looked at, and the clock on its wall."""

    def __init__(self, monkeypatch, width=140, **options):
        self.file, self.seconds = io.StringIO(), 0.0
        self.options = {"width": width, "force_terminal": True, "color_system": None, **options}
        monkeypatch.setattr(progress, "console", lambda: Console(file=self.file, **self.options))
        monkeypatch.setattr(progress, "perf_counter", lambda: self.seconds)

    @property
    def raw(self):
        """What was drawn last, colours and all."""
        return self.file.getvalue().rpartition("Progress")[2]

    def last(self):
        """Headings and rows as drawn last: words that lie apart, the bar's pieces left out."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.file.getvalue())
        lines = ("Progress" + text.rpartition("Progress")[2]).splitlines()
        rows = [[cell for cell in re.split(r" {2,}", line.strip()) if cell] for line in lines if line.strip()]
        return rows[0], [row[1:] for row in rows[2:]]


@pytest.fixture
def screen(monkeypatch):
    return lambda *args, **options: Screen(monkeypatch, *args, **options)


def bar_of(*, show=True, adjusted=False, **options):
    return RunProgress(show=show, adjusted=adjusted, **options)


def update(bar, chains, done, n_grad=0, unstable=0, tuning=True):
    counts = [np.broadcast_to(np.asarray(values), chains) for values in (n_grad, unstable)]
    bar.update(tuning, SimpleNamespace(step_size=0.01234, K=16), done, *counts)


@pytest.mark.parametrize(
    ("chains", "labels"),
    [
        (1, ["0"]),
        (8, list("01234567")),
        (9, ["0-1", "2-3", "4-5", "6-7", "8"]),
        (100, ["0-12", "13-25", "26-38", "39-51", "52-64", "65-77", "78-90", "91-99"]),
        (512, ["0-63", "64-127", "128-191", "192-255", "256-319", "320-383", "384-447", "448-511"]),
    ],
)
def test_rows_and_what_they_hold(screen, chains, labels):
    seen = screen()
    n_grad, unstable = np.arange(chains) + 10, np.arange(chains) % 2
    with bar_of(chains=chains, tune=100, draws=100) as bar:
        update(bar, chains, 40, n_grad, unstable)
    headings, rows = seen.last()
    assert headings == HEADINGS
    assert [row[0] for row in rows] == labels
    for row in rows:
        first, last = (int(row[0].split("-")[i]) for i in (0, -1))
        members = slice(first, last + 1)
        sums = [str(n_grad[members].sum()), str(unstable[members].sum())]
        assert row[1:] == ["40", "0.0123", "16", *sums, "-", "0:00:00", "-:--:--"]


@pytest.mark.parametrize("chains", [4, 512])
@pytest.mark.parametrize("width", [80, 109, 110, 200])
def test_everything_fits(screen, chains, width):
    seen = screen(width)
    with bar_of(chains=chains, tune=0, draws=2000) as bar:
        update(bar, chains, 0, tuning=False)
        seen.seconds = 3725
        update(bar, chains, 900, 123456789, 12, tuning=False)
    found, rows = seen.last()
    headings = [name for name in HEADINGS if width >= 110 or name not in ("K", "Grad/s")]
    assert found == headings and "…" not in seen.file.getvalue(), "the bar's heading too: eight characters or more"
    assert rows[-1][1:3] == ["900", "0.0123"] and rows[-1][-2:] == ["1:02:05", "1:15:52"], "1100 to go"


def test_adjusted_draws_diverge_and_have_no_midpoints(screen):
    seen = screen()
    with bar_of(chains=4, tune=10, draws=10, adjusted=True) as bar:
        update(bar, 4, 5, 100, [0, 0, 1, 0], tuning=False)
    found, rows = seen.last()
    assert found == [{"Unstable": "Diverging"}.get(name, name) for name in HEADINGS if name != "K"]
    assert rows[2][1:5] == (["5", "0.0123", "100", "1"])
    seen = screen(force_terminal=False)
    with bar_of(chains=2, tune=10, draws=10, adjusted=True) as bar:
        update(bar, 2, 10, 10, tuning=False)
    assert seen.file.getvalue() == "2 chains, draw 10 of 10: 20 gradients (-/s), 0 diverging, 0:00:00\n"


def test_speeds_and_time_left(screen):
    seen = screen()
    with bar_of(chains=10, tune=100, draws=300) as bar:
        update(bar, 10, 20, 7000)  # goes on from here: what was spent before is not this run's speed
        seen.seconds = 10.0
        update(bar, 10, 30, 8000)
        bar._bar.refresh()
        _, rows = seen.last()
        assert {tuple(row[-3:]) for row in rows} == {("1000", "0:00:10", "-:--:--")}, "a warm-up ends early"
        # Sampling is not averaged with the warm-up.
        seen.seconds = 20.0
        update(bar, 10, 100, 9000)
        seen.seconds = 22.0
        update(bar, 10, 20, 13000, tuning=False)
        bar._bar.refresh()
        _, rows = seen.last()
        assert {tuple(row[-3:]) for row in rows} == {("20000", "0:00:22", "0:00:28")}
        seen.seconds = 1000.0
        update(bar, 10, 300, 107_000, tuning=False)
    _, rows = seen.last()
    assert {tuple(row[-3:]) for row in rows} == {("1000", "0:16:40", "0:00:00")}, "at the end, of the whole run"


def test_a_warm_up_that_ends_early_moves_on_to_sampling(screen):
    seen = screen()

    with bar_of(chains=1, tune=1000, draws=1000) as bar:
        update(bar, 1, 200)
        bar._bar.refresh()
        task = bar._bar.tasks[0]
        assert (task.completed, task.total, task.fields["draw"]) == (200, 2000, 200)
        seen.seconds = 1.0
        update(bar, 1, 0, tuning=False)
        assert (task.completed, task.total, task.fields["draw"]) == (200, 1200, 0)
        update(bar, 1, 1000, tuning=False)
    assert (task.completed, task.total, task.fields["draw"]) == (1200, 1200, 1000) and task.finished
    done = re.search("━*\u2009━*", seen.raw).group()
    assert done.index("\u2009") == int(len(done) / 6), "the gap is where the warm-up ended"


@pytest.mark.parametrize(("tuning", "red"), [(True, []), (False, ["2"])])
def test_red_when_unstable_after_the_warm_up(screen, tuning, red):
    seen = screen(color_system="truecolor")
    with bar_of(chains=4, tune=10, draws=10) as bar:
        update(bar, 4, 5, 100, [0, 0, 1, 0], tuning=tuning)
    rows = [line for line in seen.raw.splitlines() if "━" in line]
    assert [str(chain) for chain, line in enumerate(rows) if RED in line] == red
    assert all((BLUE in line) != (RED in line) for line in rows)


def test_draws_seldom_and_always_what_came_last(screen, monkeypatch):
    seen = screen()
    with bar_of(chains=2, tune=5000, draws=5000) as bar:
        drawn = []
        update_task = bar._bar.update
        monkeypatch.setattr(bar._bar, "update", lambda *args, **fields: (drawn.append(1), update_task(*args, **fields)))
        n_grad = np.zeros(2, int)
        for i in range(4000):
            seen.seconds = 0.01 * i
            n_grad += 3
            update(bar, 2, i + 1, n_grad)
        assert 2 * 40 < len(drawn) <= 2 * 10 * 40, "two rows, forty seconds: at most ten times each"
        n_grad += 1000  # counted on in place after it was shown
    assert [row[1:5] for row in seen.last()[1]] == [["4000", "0.0123", "16", "12000"]] * 2


def test_large_numbers(screen):
    seen = screen()
    with bar_of(chains=65536, tune=10, draws=10) as bar:
        update(bar, 65536, 10, 1250)
    assert seen.last()[1][-1][:5] == ["57344-65535", "10", "0.0123", "16", "10.2M"]
    numbers = (0, 99_999, 99_999.6, 123_456, 999_600, 12_345_678, 2.5e12)
    assert [progress.count(n) for n in numbers] == ["0", "99999", "100k", "123k", "1.00M", "12.3M", "2.50T"]


def test_a_file_gets_a_line_at_the_end_of_a_short_run(screen):
    seen = screen(width=40, force_terminal=False)
    with bar_of(chains=512, tune=1000, draws=800) as bar:
        update(bar, 512, 0)
        seen.seconds = 65.0
        update(bar, 512, 200, 10)
        seen.seconds = 100.0
        update(bar, 512, 800, 1000, np.arange(512) == 3, tuning=False)
        assert seen.file.getvalue() == ""
    assert seen.file.getvalue() == "512 chains, draw 800 of 800: 512k gradients (5120/s), 1 unstable, 0:01:40\n"


def test_an_interrupted_run_says_where_it_stopped(screen):
    seen = screen(force_terminal=False)
    with pytest.raises(KeyboardInterrupt), bar_of(chains=1, tune=100, draws=100) as bar:
        update(bar, 1, 30, 60)
        raise KeyboardInterrupt
    assert seen.file.getvalue() == "1 chain, warm-up 30 of at most 100: 60 gradients (-/s), 0 unstable, 0:00:00\n"

    seen = screen()
    with pytest.raises(KeyboardInterrupt), bar_of(chains=1, tune=100, draws=100) as bar:
        update(bar, 1, 100, 60)
        update(bar, 1, 30, 90, tuning=False)
        raise KeyboardInterrupt
    assert seen.last()[1][0][1] == "30" and "0:00:00\n" not in seen.raw
    assert not bar._bar.live.is_started and seen.file.getvalue().endswith("\x1b[?25h"), "the cursor is back"


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_to_say(screen, terminal):
    seen = screen(force_terminal=terminal)
    with bar_of(chains=4, tune=10, draws=10, show=False) as bar:
        update(bar, 4, 10, 5)
    assert seen.file.getvalue() == ""
    seen = screen(force_terminal=False)
    with bar_of(chains=4, tune=10, draws=10):
        pass
    assert seen.file.getvalue() == ""


def test_where_it_is_written(capsys):
    """To standard output, as PyMC's bar is: here no terminal."""
    with bar_of(chains=4, tune=10, draws=10) as bar:
        update(bar, 4, 10, 5)
    out, err = capsys.readouterr()
    assert out.startswith("4 chains, warm-up 10 of at most 10: 20 gradients") and out.count("\n") == 1 and err == ""


@contextlib.contextmanager
def heartbeat_shown(show=True):
    shown = Heartbeat(show)
    try:
        yield shown
    finally:
        shown.stop()


def beats():
    return [thread for thread in threading.enumerate() if thread.name == "pmm_mcmc progress"]


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.002)


def test_a_file_gets_a_line_every_so_often(screen, monkeypatch):
    monkeypatch.setattr(progress, "_BEAT", 0.01)
    seen = screen(force_terminal=False)
    with bar_of(chains=2, tune=100, draws=100) as bar:
        update(bar, 2, 0)
        seen.seconds = 7.0
        wait_for(lambda: "0:00:07" in seen.file.getvalue())
        first = seen.file.getvalue().splitlines()[-1]
        assert first.startswith("2 chains, warm-up 0 of at most 100: ") and first.endswith("0:00:07, first steps")
        update(bar, 2, 60, tuning=True)
        seen.seconds = 9.0
        wait_for(lambda: "warm-up 60 of at most 100" in seen.file.getvalue())
    assert not beats()


def test_lines_of_long_runs_come_less_often(screen):
    seen = screen(force_terminal=False)
    with bar_of(chains=2, tune=100, draws=100) as bar:
        for tuning, seconds, pause in (
            (True, 0.0, 1.0),
            (True, 36_000.0, 60.0),
            (False, 50.0, 10.0),
            (False, 36e3, 60),
        ):
            seen.seconds = seconds
            update(bar, 2, 10, tuning=tuning)
            assert bar._pause() == pytest.approx(pause)


@pytest.mark.parametrize("failure", [None, KeyboardInterrupt, ValueError])
def test_a_heartbeat_in_a_file_speaks_of_what_takes_long_and_stops(screen, monkeypatch, failure):
    monkeypatch.setattr(progress, "_BEAT", 0.01)
    seen = screen(force_terminal=False)
    with contextlib.suppress(KeyboardInterrupt, ValueError), heartbeat_shown() as said:
        assert not beats()
        said.say("[x], compiling")
        time.sleep(0.05)  # some beats
        assert seen.file.getvalue() == "", "what takes no second is not said"
        seen.seconds = 3.0
        wait_for(lambda: "[x], compiling, 0:00:03\n" in seen.file.getvalue())
        said.say("starting")
        seen.seconds = 5.0
        wait_for(lambda: "starting, 0:00:02\n" in seen.file.getvalue())
        assert len(beats()) == 1
        if failure is not None:
            raise failure
    assert not beats()


def test_lines_of_a_heartbeat_in_a_file_become_rarer(screen):
    """A line a second filled 130 of the 227 lines of a log."""
    seen = screen(force_terminal=False)
    times = []
    with heartbeat_shown() as said:
        said.say("compiling")
        while seen.seconds < 30.0:
            seen.seconds += said._pause()
            times.append(seen.seconds)
    assert times == [1.0, 2.0, 4.0, 8.0, 13.0, 18.0, 23.0, 28.0, 33.0]


def test_a_heartbeat_in_a_terminal_is_one_line_that_goes(screen):
    seen = screen(80)
    with heartbeat_shown() as heartbeat:
        heartbeat.say("[x], compiling")
        heartbeat.say("starting")
        heartbeat.stop()
        heartbeat.stop()
        text = seen.file.getvalue()
        assert "[x], compiling" in text and "starting" in text and "0:00:00" in text
        assert text.endswith("\x1b[2K"), "the line is cleared"
    assert seen.file.getvalue() == text and not beats()


def test_a_heartbeat_that_is_not_shown_says_nothing(screen):
    seen = screen(force_terminal=False)
    with heartbeat_shown(show=False) as heartbeat:
        heartbeat.say("compiling")
        assert not beats()
    assert seen.file.getvalue() == ""


@pytest.mark.process
def test_it_looks_like_the_bar_of_pymc(screen, monkeypatch):
    """The parts of PyMC's bar that are used are where they were, and its own bar still looks like this one."""
    from pymc.progress_bar import CustomProgress, MCMCProgressBarManager, default_progress_theme
    from pymc.progress_bar.rich_progress import CustomBarColumn

    from pmm_mcmc.steps.methods import PoissonULMC

    monkeypatch.setenv("COLUMNS", "140")
    theirs = MCMCProgressBarManager(step_method=PoissonULMC, chains=2, draws=10, tune=10)._backend._progress
    screen()
    with bar_of(chains=2, tune=10, draws=10) as bar:
        ours = bar._bar
    assert type(ours) is type(theirs) is CustomProgress
    headings = [[column.get_table_column().header for column in these.columns] for these in (ours, theirs)]
    names = {"Step": "Step size", "Grads": "Gradients", "Left": "Remaining"}
    assert [names.get(head, head) for head in headings[0] if head not in ("Chains", "Grad/s")] == [
        head for head in headings[1] if head != "Speed"
    ]
    assert type(ours.columns[0]) is type(theirs.columns[0]) is CustomBarColumn
    for style in ("complete_style", "finished_style", "failing_rgb", "bar_width"):
        assert getattr(ours.columns[0], style) == getattr(theirs.columns[0], style)
    assert {"failing", "marker_pos", "draw", "step_size", "K", "n_grad", "failed"} <= set(ours.tasks[0].fields)
    assert "bar.complete" in default_progress_theme.styles


def test_a_file_is_told_the_time_left_by_the_pace_of_draws(screen):
    seen = screen(force_terminal=False)
    with bar_of(chains=2, tune=10, draws=100) as bar:
        update(bar, 2, 0)
        seen.seconds = 50.0
        update(bar, 2, 10)
        seen.seconds = 54.0
        update(bar, 2, 20, n_grad=540, tuning=False)
    assert seen.file.getvalue().endswith(", 0 unstable, 0:00:54, 0:00:16 left\n")


def test_a_notebook_without_ipywidgets_has_one_plain_line_and_no_warning(monkeypatch, capsys):
    """Rich cannot redraw there, and warned at each of its 22 tries."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(progress, "_BEAT", 0.01)
    with heartbeat_shown() as compiling:
        compiling.say("Compiling the log density of a model")
        time.sleep(0.05)  # some beats
        compiling.stop()
        with bar_of(chains=2, tune=10, draws=10) as bar:
            update(bar, 2, 0)
            update(bar, 2, 10, tuning=False)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    shown = [line.rstrip() for line in printed.rstrip("\n").split("\r")]
    assert shown[0] == "Compiling the log density of a model, 0:00:00"
    assert shown[-1].startswith("2 chains, draw 10 of 10")
    assert len({len(line) for line in printed.rstrip("\n").split("\r")}) == 1  # each covers the one before
