"""The figures of a report on one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.workbench.report.page import plain

__all__ = ["drawing_class", "forest", "ranks", "short", "sketch", "traces", "unlisted"]

# Okabe and Ito's colours, which colour-blind readers can distinguish, without yellow, which is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
WIDTH = 8.0  # inches
_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9}


def short(name: str, longest: int = 30) -> str:
    """Return a name that fits a figure: the middle of a long one is left out."""
    name = " ".join(plain(name).split())
    if len(name) <= longest:
        return name
    tail = longest // 3
    return f"{name[: longest - tail - 1]}\N{HORIZONTAL ELLIPSIS}{name[-tail:]}"


def forest(rows: Sequence[str], series: Mapping[str, tuple[np.ndarray, np.ndarray]], limit: float, label: str) -> Any:
    """Draw biases in posterior standard deviations as points with two standard errors to each side.

    Parameters
    ----------
    rows
        Names of the rows, from the top.
    series
        Bias and standard error for each row, by the name of the series; NaN where not known.
    limit
        Half the width of the band of acceptable biases.
    label
        Label of the axis.
    """
    with _style():
        figure = _figure(0.9 + 0.3 * len(rows))
        axes = figure.add_subplot()
        axes.axvspan(-limit, limit, color="0.92", lw=0, zorder=0)
        axes.axvline(0.0, color="0.35", lw=0.8, zorder=1)
        at = np.arange(len(rows), dtype=float)
        for i, (name, (size, error)) in enumerate(series.items()):
            offset = 0.18 * (i - 0.5 * (len(series) - 1))
            known = np.isfinite(size) & np.isfinite(error)
            axes.errorbar(
                size[known], (at + offset)[known], xerr=2.0 * error[known], fmt="os^D"[i % 4], ms=4, lw=1.4,
                color=_COLOURS[i], label=name,
            )  # fmt: skip
        axes.set_yticks(at, [short(row) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        reach = max(abs(edge) for edge in axes.get_xlim())
        axes.set_xlim(-max(reach, 1.5 * limit), max(reach, 1.5 * limit))
        axes.set_xlabel(label)
        figure.legend(loc="outside upper right", ncols=len(series), frameon=False)
    return _literal(figure)


def sketch(height: float, draw: Callable[[Any], None], figure: Any = None) -> Any:
    """Return a figure, new if none is given, into which a function has drawn in the style of reports."""
    with _style():
        figure = _figure(height) if figure is None else figure
        figure.set_layout_engine("constrained")
        draw(figure)
    return _literal(figure)


def traces(draws: Mapping[str, np.ndarray], chains: Sequence[int]) -> Any:
    """Draw traces ``(chain, draw)`` of some parameters, one row each, thinned for a page."""
    with _style():
        figure = _figure(0.5 + 1.15 * len(draws))
        grid = figure.subplots(len(draws), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, values) in zip(grid, draws.items(), strict=True):
            step = -(-values.shape[1] // 250)  # at most 250 draws of a chain are shown
            at = np.arange(0, values.shape[1], step)
            for i, row in enumerate(values[:, ::step]):
                axes.plot(at, row, lw=0.6, alpha=0.8, color=_COLOURS[i % len(_COLOURS)])
            axes.set_title(short(name, 60), loc="left", pad=3)
            axes.margins(x=0.0)
        grid[-1].set_xlabel("draw")
        handles = [figure.axes[0].lines[i] for i in range(len(chains))]
        figure.legend(
            handles, [f"chain {chain}" for chain in chains], loc="outside upper right", ncols=len(chains),
            frameon=False, fontsize=8, handlelength=1.2, columnspacing=1.2,
        )  # fmt: skip
    return _literal(figure)


def ranks(draws: Mapping[str, np.ndarray], chains: Sequence[int]) -> Any:
    """Draw with ArviZ the differences between the ranks of each chain's draws and uniform ranks."""
    import arviz as az
    from matplotlib import pyplot as plt

    names = [f"p{i}" for i in range(len(draws))]
    every = {name: (("chain", "draw"), values) for name, values in zip(names, draws.values(), strict=True)}
    data = xr.Dataset(every, coords={"chain": list(chains), "draw": np.arange(next(iter(draws.values())).shape[1])})
    columns = min(3, len(names))
    height = 0.4 + 1.9 * -(-len(names) // columns)
    interactive = plt.isinteractive()
    plt.ioff()
    try:
        with _style():
            plots = az.plot_rank(
                xr.DataTree.from_dict({"posterior": data}),
                backend="matplotlib",
                col_wrap=columns,
                figure_kwargs={
                    "figsize": (WIDTH, height),
                    "sharex": True,
                    "sharey": True,
                    "FigureClass": drawing_class(),
                },
                visuals={
                    "title": False,
                    "xlabel": False,
                    "remove_axis": False,
                    "ecdf_lines": {"width": 1.0},
                },
            )
            figure = plots.viz["figure"].item()
            figure.set_layout_engine("constrained")
            figure.supxlabel("share of the draws of all these chains", fontsize=9)
            for name, label in zip(names, draws, strict=True):
                axes = plots.viz["plot"][name].item()
                axes.set_title("\n".join(short(line, 30) for line in label.split("\n")), loc="left", fontsize=9)
                axes.tick_params(labelbottom=True)
                for points in axes.collections:
                    points.set_sizes([5.0])
                for text in axes.texts:  # "p=0.86(α=0.01)"
                    text.set_text(text.get_text().partition("(")[0].replace("=", " = "))
    finally:
        plt.interactive(interactive)
    return _literal(figure)


@cache
def drawing_class() -> Any:
    """Return a class of pyplot figures that a notebook shows once.

    A notebook shows pyplot's figures at the end of a cell, and the value of its last line: a figure that is both would
    be shown twice.
    """
    from matplotlib.figure import Figure

    class Drawing(Figure):
        def _ipython_display_(self) -> None:
            from matplotlib import pyplot as plt

            if "inline" in plt.get_backend().lower():
                plt.close(self)  # which the end of the cell would do, after showing it or not
            raise NotImplementedError("shown like any other figure")

    return Drawing


def unlisted(figure: Any) -> Any:
    """Close a figure in pyplot, so that a notebook does not show it by itself, and return it."""
    from matplotlib import pyplot as plt

    plt.close(figure)
    return figure


def _style() -> Any:
    import matplotlib as mpl
    from cycler import cycler

    settings: Any = _STYLE | {"axes.prop_cycle": cycler(color=_COLOURS)}
    return mpl.rc_context(settings)


def _figure(height: float) -> Any:
    # Not by pyplot, which would show the figure in a notebook.
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _literal(figure: Any) -> Any:
    """Draw text literally: dollar signs in names do not start mathematics."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure
