"""The figure of a comparison: error and r_hat against gradients, weights of modes, a marginal beside the exact one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pmm_mcmc.workbench.measures import Arrays
from pmm_mcmc.workbench.reference import Truth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


THEMES = {"light": "default", "dark": "dark_background"}
# Okabe and Ito's colours, but for black, each with a style where they come round.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B0A800")
_STYLES = ("-", "--", ":")
_NAME = 20
# An r_hat may be less than 1, which has no logarithm.
_LEAST = 1e-4


def draw(
    runs: dict[str, list[Arrays]], truth: Truth | None, labels: list[str], weights: np.ndarray | None, theme: str
) -> Figure:
    """Draw all panels that the runs have numbers for."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    modes = any("mode_weights" in each for arrays in runs.values() for each in arrays)
    panels = [("error", truth is not None), ("r_hat", True), ("modes", modes), ("marginal", True)]
    shown = [name for name, wanted in panels if wanted]
    style: Any = {"font.size": 8.0, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
    with plt.ioff(), plt.style.context(THEMES[theme]), plt.rc_context(style):
        # Inches; 7 are the text width of most journals.
        figure = plt.figure(figsize=(7.0, 2.6 * -(-len(shown) // 2) + 0.6), layout="constrained")
        axes = dict(zip(shown, figure.subplots(-(-len(shown) // 2), 2, squeeze=False).ravel(), strict=False))
        for spare in figure.axes[len(shown) :]:
            spare.remove()
        names = dict(zip(runs, short_names(pd.DataFrame(index=list(runs))), strict=True))
        looks = {
            name: {"color": _COLOURS[i % len(_COLOURS)], "ls": _STYLES[i // len(_COLOURS) % len(_STYLES)]}
            for i, name in enumerate(runs)
        }
        for name, arrays in runs.items():
            if truth is not None:
                _curve(axes["error"], arrays, "curve_error", looks[name], names[name])
            _curve(axes["r_hat"], arrays, "curve_r_hat", looks[name], names[name], 1.0)
        if truth is not None:
            axes["error"].set_title("Largest error of a mean (posterior sd)")
        axes["r_hat"].set_title("r_hat - 1")
        axes["r_hat"].axhline(0.01, color="0.5", lw=0.8)
        for axis in (axes[name] for name in ("error", "r_hat") if name in axes):
            axis.set(xscale="log", yscale="log", xlabel="gradients; a band over the seeds")
            for either in (axis.xaxis, axis.yaxis):
                either.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                either.set_minor_formatter(NullFormatter())
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.yaxis.set_major_formatter("{x:g}")  # powers of ten would be mathematics, which is not read here
        if modes:
            _modes(axes["modes"], runs, weights, looks, names)
        _marginal(axes["marginal"], runs, truth, labels, looks)
        handles = axes["r_hat"].get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curve(axis: Axes, arrays: list[Arrays], key: str, look: dict[str, Any], name: str, minus: float = 0.0) -> None:
    """Draw the median over seeds, with a band from the least to the largest."""
    gradients = np.mean([each["curve_gradients"] for each in arrays], axis=0)
    values = np.maximum(np.array([each[key] for each in arrays]) - minus, _LEAST)
    axis.plot(gradients, np.median(values, axis=0), lw=1.5, label=name, **look)
    if not np.isnan(gradients).any():
        axis.fill_between(gradients, values.min(axis=0), values.max(axis=0), alpha=0.15, lw=0, **look)


def _modes(
    axis: Axes, runs: dict[str, list[Arrays]], weights: np.ndarray | None, looks: dict[str, Any], names: dict[str, str]
) -> None:
    """Draw the weights of the modes, of two that of the second, a point for each seed, beside the exact ones."""
    for i, (name, arrays) in enumerate(runs.items()):
        for each in arrays:
            if "mode_weights" in each:
                values = each["mode_weights"][len(each["mode_weights"]) == 2 :]
                axis.plot(values, np.full(len(values), i), "o", ms=4, alpha=0.7, color=looks[name]["color"])
    for weight in [] if weights is None else weights[len(weights) == 2 :]:
        axis.axvline(weight, color="0.5", lw=0.8)
    axis.set(xlim=(-0.02, 1.02), title="Weights of modes, a point for each seed")
    axis.set_yticks(range(len(runs)), list(names.values()))
    axis.invert_yaxis()


def _marginal(
    axis: Axes, runs: dict[str, list[Arrays]], truth: Truth | None, labels: list[str], looks: dict[str, Any]
) -> None:
    """Draw the marginals of the parameter that any sampler has the largest error of, or the largest spread of seeds."""
    means = {name: np.array([each["chain_mean"].mean(axis=0) for each in arrays]) for name, arrays in runs.items()}
    every = np.concatenate(list(means.values()))
    centre = every.mean(axis=0) if truth is None else truth.mean
    pooled = np.concatenate([each["draws"] for arrays in runs.values() for each in arrays])
    scale = np.maximum(pooled.std(axis=0) if truth is None else truth.sd, 1e-300)
    worst = int(np.argmax(np.max([np.abs(each.mean(axis=0) - centre) / scale for each in means.values()], axis=0)))
    exact = pooled[:, worst] if truth is None or truth.draws is None else truth.draws[:, worst]
    low, high = np.quantile(exact, [0.001, 0.999])
    bins = np.linspace(low, high, 41).tolist()
    if truth is not None and truth.draws is not None:
        axis.hist(exact, bins=bins, density=True, color="0.5", alpha=0.35)
    for name, arrays in runs.items():
        draws = np.concatenate([each["draws"][:, worst] for each in arrays])
        heights = np.histogram(draws, bins)[0] / len(draws) / (bins[1] - bins[0])
        axis.stairs(heights, bins, lw=1.2, **looks[name])
    axis.set(xlabel=labels[worst], yticks=[], title="Worst parameter; grey: the reference")
    axis.spines["left"].set_visible(False)


def short_names(table: pd.DataFrame) -> list[str]:
    """Return the names of the rows, of at most 20 characters."""
    names = [str(name) for name in table.index]
    return [name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}" for name in names]
