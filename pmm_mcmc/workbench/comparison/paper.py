"""A figure of a comparison for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.comparison.measures import B2_LIMIT, MATTERS, error_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure"]

_STYLE: Any = {
    "font.size": 8.0, "axes.labelsize": 8.0, "axes.titlesize": 8.0, "xtick.labelsize": 7.0, "ytick.labelsize": 7.0,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False,
}  # fmt: skip
_GREY = "#777777"
# Okabe and Ito's colours, with a line style each, so that lines differ without colour too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))


def figure(report: Any) -> Figure:
    """Draw the error of a chain against gradients, the final errors of all chains, and effective draws."""
    if not report.traces:
        raise ValueError("no sampler ran, so that there is nothing to draw: see report.failures for the reasons")
    from matplotlib import pyplot as plt

    with plt.ioff(), plt.rc_context(_STYLE):
        # Inches; 7 are the text width of most journals.
        drawn = plt.figure(figsize=(7.0, 2.1 + 0.2 * len(report.traces)), layout="constrained")
        curves, errors, draws = drawn.subplots(1, 3, width_ratios=[1.15, 1.0, 0.7])
        _curves(curves, report)
        _errors(errors, report)
        _draws(draws, report)
        for axis, letter in zip((curves, errors, draws), "abc", strict=True):
            axis.set_title(letter, loc="left", fontweight="bold")
    return drawn


def look_of(report: Any) -> dict[str, dict[str, Any]]:
    """Return colour and line style of each sampler."""
    names = list(report.table.index)
    return {
        name: {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}
        for i, name in enumerate(names)
    }


def _curves(axis: Any, report: Any) -> None:
    look = look_of(report)
    for trace in report.traces:
        spent, error = error_curve(trace, report.truth)
        which = np.unique(np.geomspace(1, len(spent), 300).astype(int)) - 1
        axis.plot(spent[which], error[which], lw=1.2, **look[trace.name])
    axis.axhline(B2_LIMIT, color=_GREY, lw=0.7, ls=":")
    axis.set(
        xscale="log", yscale="log", xlabel="gradients of a chain, warm-up included",
        ylabel="squared error of E[x\N{SUPERSCRIPT TWO}] / Var[x\N{SUPERSCRIPT TWO}]",
    )  # fmt: skip


def _errors(axis: Any, report: Any) -> None:
    """Draw the largest error of a mean and of a standard deviation, with filled markers beyond noise."""
    look = look_of(report)
    reach = 2.0 * MATTERS
    for i, trace in enumerate(report.traces):
        line, colour = report.table.loc[trace.name], look[trace.name]["color"]
        for what, offset, marker in (("mean", -0.15, "o"), ("sd", 0.15, "s")):
            size, se = float(line[f"{what}_error"]), float(line[f"{what}_error_se"])
            beyond = size > line[f"{what}_error_noise"]
            axis.errorbar(
                size, i + offset, xerr=2.0 * se, fmt=marker, ms=4, lw=1.0, color=colour,
                markerfacecolor=colour if beyond else "white",
            )  # fmt: skip
            reach = max(reach, size + 2.0 * se)
    axis.axvline(MATTERS, color=_GREY, lw=0.7, ls=":")
    names = [trace.name[:30] for trace in report.traces]
    axis.set_yticks(range(len(names)), names)
    axis.set(xlim=(0.0, 1.05 * reach), ylim=(len(names) - 0.5, -0.5), xlabel="largest error (posterior sd)")
    for what, marker in (("mean", "o"), ("sd", "s")):
        axis.plot([], [], marker, ms=4, color="black", markerfacecolor="white", label=what)
    axis.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, borderpad=0.0)


def _draws(axis: Any, report: Any) -> None:
    look = look_of(report)
    for i, trace in enumerate(report.traces):
        value = float(report.table.loc[trace.name, "ess_bulk_per_1000"])
        axis.barh(i, value, 0.6, color=look[trace.name]["color"])
        told = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
        axis.annotate(told, (value, i), xytext=(2, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set(ylim=(len(report.traces) - 0.5, -0.5), yticks=[], xlabel="effective draws\nfor 1,000 gradients")
    axis.margins(x=0.25)
