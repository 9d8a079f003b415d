"""What a run on a ladder of temperatures found: a section of the report on it, and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.report.figures import drawing_class, short, sketch
from pmm_mcmc.workbench.report.page import Cell, Column, Figure, Section, Table, Text, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["ladder_section", "plot_ladder"]

_ESTIMATES = {
    "log_evidence": ("Bennett", "The estimate to report: Bennett's ratio of neighbouring rungs."),
    "log_evidence_forward": ("forward", "Stepping stone from the reference to the posterior."),
    "log_evidence_backward": ("backward", "Stepping stone from the posterior; its errors have long tails."),
    "forward_minus_backward": ("forward - backward", "Nought but for errors."),
}
_HEIGHT = 5.2  # inches
# Modes of a table and of a figure, and coordinates of a centre, that are read at a glance.
_MOST_MODES, _MOST_COORDINATES = 24, 4


def ladder_section(dt: Any) -> Section:
    """Return the section on the ladder of a result; without blocks if it has none."""
    if "ladder" not in getattr(dt, "children", ()):
        return Section("Ladder", [])
    ladder = dt["ladder"].to_dataset()
    restarts, trips = int(ladder["restarts"]), int(ladder["round_trips"])
    words = (
        f"{ladder.sizes['rung']} rungs from the reference (temperature 0) to the posterior (1), barrier "
        f"{float(ladder['barrier'][-1]):.2f}. {restarts:,} restarts: chains that came from the reference, each from "
        f"an independent draw; {trips:,} went back."
    )
    caption = (
        "Above: the barrier from the reference up to each temperature, which pairs of neighbours should share evenly, "
        "and the rates at which neighbours swap. Below: the log evidence by three estimates, and weights of "
        "modes, with two standard errors to each side."
    )
    blocks: list[Any] = [
        Text(words),
        _evidence(ladder),
        _modes(ladder),
        Figure(caption, _drawn(ladder)),
        _rungs(ladder),
    ]
    return Section("Ladder", blocks)


def plot_ladder(dt: Any) -> Drawing:
    """Draw what a run on a ladder of temperatures found.

    Four panels: the barrier between the reference and each temperature; the rate at which neighbours swap; the log
    evidence forward, by Bennett's ratio and backward; weights of modes.  Bars are two standard errors to each side.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` with ``ladder=``.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If the result is not of a ladder.
    ImportError
        If matplotlib is not installed.
    """
    if "ladder" not in getattr(dt, "children", ()):
        raise ValueError(
            f"dt={type(dt).__name__}: has no group 'ladder'; give a result of pmm.sample(ladder='auto', chains=...)"
        )
    from matplotlib import pyplot as plt

    with plt.ioff():
        return _drawn(dt["ladder"].to_dataset(), plt.figure(figsize=(8.0, _HEIGHT), FigureClass=drawing_class()))


# -- tables ----------------------------------------------------------------------------------------------------------


def _evidence(ladder: Any) -> Table:
    rows = [
        [
            Cell(words),
            Cell(number(float(ladder[name]), ".3f")),
            Cell(number(float(ladder[f"{name}_se"]), ".2g")),
            Cell(meaning),
        ]
        for name, (words, meaning) in _ESTIMATES.items()
    ]
    columns = [
        Column("estimate", numeric=False), Column("value", "In nats."), Column("standard error"),
        Column("meaning", numeric=False),
    ]  # fmt: skip
    return Table("Log evidence", columns, rows)


def _modes(ladder: Any) -> Table:
    there = np.flatnonzero(np.isfinite(ladder["mode_weight"].values))
    shown = there[:_MOST_MODES]
    centre, names = ladder["mode_centre"].values, ladder["coordinate"].values
    apart = _telling(centre[there]) if len(there) else []
    columns = [
        Column("mode", numeric=False), Column("weight", "Share of the draws."), Column("standard error"),
        Column("restarts", "Chains that came from the reference and arrived in this mode."),
        *(Column(str(names[i]), "Mean of the mode's draws, unconstrained.") for i in apart),
    ]  # fmt: skip
    rows = [
        [
            Cell(str(k)),
            Cell(number(float(ladder["mode_weight"][k]), ".3f")),
            Cell(number(float(ladder["mode_weight_se"][k]), ".2g")),
            Cell(number(int(ladder["mode_restarts"][k]))),
            *(Cell(number(float(centre[k, i]))) for i in apart),
        ]
        for k in shown
    ]
    note = "" if len(shown) == len(there) else f"{len(shown)} of {len(there)} modes, those of the largest weights."
    if len(apart) < len(names):
        note = f"{note} {len(apart)} of {len(names):,} coordinates: those in which the modes differ most.".strip()
    return Table("Modes", columns, rows, note)


def _telling(centre: np.ndarray) -> list[int]:
    """Return the coordinates in which centres differ most, in their order."""
    size = np.abs(centre).max(axis=0)
    spread = centre.std(axis=0) / np.where(size > 0.0, size, 1.0)
    return sorted(np.argsort(-spread, kind="stable")[:_MOST_COORDINATES].tolist())


def _rungs(ladder: Any) -> Table:
    meanings = {
        "swap_rate": "Mean probability that this rung and the one before swap.",
        "step_size": "Length of a step of this rung, in its own whitened units.",
        "K": "Steps of a trajectory.",
        "trajectories": "Trajectories between two swaps.",
    }
    columns = [
        Column("rung", numeric=False), Column("temperature", "0 is the reference, 1 the posterior."),
        Column("barrier", "From the reference up to this rung."),
        *(Column(name.replace("_", " "), meaning) for name, meaning in meanings.items()),
    ]  # fmt: skip
    rows = []
    for k in range(ladder.sizes["rung"]):
        own = [number(float(ladder[name][k - 1])) if k else None for name in meanings]
        start = [number(float(ladder[name][k])) for name in ("temperature", "barrier")]
        rows.append([Cell(str(k)), *map(Cell, [*start, *own])])
    return Table("Rungs", columns, rows)


# -- the figure ------------------------------------------------------------------------------------------------------


def _drawn(ladder: Any, figure: Any = None) -> Any:
    return sketch(_HEIGHT, lambda into: _panels(ladder, into), figure)


def _panels(ladder: Any, figure: Any) -> None:
    (barrier, swaps), (evidence, modes) = figure.subplots(2, 2)
    temperature, total = ladder["temperature"].values, ladder["barrier"].values
    barrier.plot(temperature, total, "o-", ms=4, lw=1.4, clip_on=False)
    barrier.set_xscale("symlog", linthresh=max(float(temperature[1]), 1e-12))
    barrier.set(xlim=(0.0, 1.0), ylim=(0.0, None), xlabel="temperature", ylabel="barrier from the reference")
    ends = [0.0, *[t for t in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1) if t > temperature[1]], 1.0]
    barrier.set_xticks(ends, [f"{end:g}" for end in ends])
    barrier.xaxis.set_minor_locator(_none())

    pair = np.arange(1, len(temperature))
    swaps.bar(pair, ladder["swap_rate"].values, width=0.7)
    swaps.set(ylim=(0.0, 1.0), xlabel="pair of neighbours, from the reference", ylabel="swap rate")
    swaps.set_xticks(pair[:: -(-len(pair) // 10)])

    kinds = {name: words for name, (words, _) in _ESTIMATES.items() if name.startswith("log_evidence")}
    order = ["log_evidence_forward", "log_evidence", "log_evidence_backward"]
    _bars(evidence, [kinds[n] for n in order], *([float(ladder[n + end]) for n in order] for end in ("", "_se")))
    evidence.set_xlabel("log evidence")

    weight = ladder["mode_weight"].values
    there = np.flatnonzero(np.isfinite(weight))[:_MOST_MODES]
    _bars(modes, [f"mode {k}" for k in there], weight[there], ladder["mode_weight_se"].values[there])
    modes.set(xlabel="weight", xlim=(0.0, None))
    if not len(there):
        modes.set_axis_off()


def _bars(axes: Any, names: list[str], value: Any, error: Any) -> None:
    at = np.arange(len(names), dtype=float)
    axes.errorbar(value, at, xerr=2.0 * np.asarray(error), fmt="o", ms=4, lw=1.4)
    axes.set_yticks(at, [short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _none() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
