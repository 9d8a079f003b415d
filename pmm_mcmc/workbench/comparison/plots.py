"""Figures of a comparison at notebook width, in colours that colour-blind readers can distinguish.

ArviZ draws the ranks.  It has no equivalent of the others: ``plot_dist`` has no densities within limits (its kernel
estimate refuses draws beyond them, its histogram omits them from the total), ``plot_ess`` and ``plot_forest`` show
parameters of a run and not samplers and their cost, and ``plot_pair`` gives all draws of a run one colour.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.workbench.comparison.distances import spaced
from pmm_mcmc.workbench.comparison.measures import B2_LIMIT, MATTERS, error_curve
from pmm_mcmc.workbench.report import figures as of_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "blank", "effective_draws", "error_against_gradients", "error_against_step", "figures", "literal", "look_of",
    "marginals", "modes", "ranks",
]  # fmt: skip

# Okabe and Ito's colours, with a line style each, so that lines differ without colour too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
_GREY = "#888888"
_TWO_SIDED = 1.96  # standard errors of a 95 % band


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("figures need matplotlib, which is not installed: pip install matplotlib") from None
    return plt


def look_of(report: Any) -> dict[str, dict[str, Any]]:
    """Return colour and line style of each sampler, the same in every figure."""
    names = list(report.table.index)
    return {
        name: {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}
        for i, name in enumerate(names)
    }


def blank(width: float, height: float) -> Any:
    """Return a new figure, which becomes pyplot's current one, without opening a window."""
    plt = _pyplot()
    with plt.ioff():
        return plt.figure(figsize=(width, height), layout="constrained", FigureClass=of_runs.drawing_class())


def _axes(rows: int, columns: int, height: float, **options: Any) -> tuple[Any, np.ndarray]:
    figure = blank(of_runs.WIDTH, height)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def literal(figure: Any) -> Any:
    """Draw names literally: a dollar sign does not start a formula."""
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
    texts = [text for legend in legends if legend is not None for text in legend.get_texts()]
    for axis in figure.axes:
        texts += [axis.title, axis.xaxis.label, axis.yaxis.label]
    for text in texts:
        text.set_parse_math(False)
    return figure


def figures(report: Any) -> dict[str, tuple[Figure, str]]:
    """Draw all figures of a comparison."""
    if not report.traces:
        return {}
    stepped = report.steps is not None and report.steps["mean_error"].notna().any()
    found: dict[str, tuple[Any, bool, str]] = {
        "Error against gradients": (
            error_against_gradients,
            True,
            "Error of one chain's second moments (b2 of the worst parameter, median over chains) against the gradients "
            "that it has spent. Lines begin where the warm-up ends. Below the dotted line a chain counts as converged; "
            "a biased sampler levels off.",
        ),
        "Error against step size": (
            error_against_step,
            stepped,
            "Error of the worst parameter in runs of their own, with two standard errors to each side. A ring is no "
            "more than noise; a large mark is the step size that warm-up has found, or that was given. Above the "
            "dotted line errors matter.",
        ),
        "Effective draws": (
            effective_draws,
            True,
            "Effective draws of the worst parameter for 1,000 gradients, warm-up included. They say how much "
            "a run varies, not whether it is right.",
        ),
        "Marginals": (
            marginals,
            report.truth.draws is not None,
            "The parameters that are off most in any sampler. Above: marginal densities, the reference in grey. "
            "Below: distribution function minus that of the reference; within the grey band is noise (95 % at each "
            "point, for as many independent draws as the least effective run has).",
        ),
        "Ranks": (
            ranks,
            True,
            "Ranks of each sampler's worst parameter by R-hat: for each chain (at most 8), the share of its draws "
            "below a quantile of all these chains, minus what is expected. Lines near zero: the chains agree; p is "
            "the chance of lines that are further off if they do, and black is what is too far off.",
        ),
        "Modes": (
            modes,
            report.modes is not None,
            "Draws in the two coordinates that tell the modes apart best, coloured by mode; in each title the part of "
            "the draws in each mode.",
        ),
    }
    drawn = ((name, draw(report), caption) for name, (draw, known, caption) in found.items() if known)
    return {name: (of_runs.unlisted(figure), caption) for name, figure, caption in drawn if figure is not None}


def error_against_gradients(report: Any) -> Figure:
    """Draw the error of a chain's second moments against gradients spent."""
    figure, ((axis,),) = _axes(1, 1, 4.2)
    look = look_of(report)
    for trace in report.traces:
        spent, error = error_curve(trace, report.truth)
        which = np.unique(np.geomspace(1, len(spent), 400).astype(int)) - 1
        axis.plot(spent[which], error[which], lw=1.8, label=trace.name, **look[trace.name])
        axis.plot(spent[0], error[0], "o", ms=4, color=look[trace.name]["color"])
    axis.axhline(B2_LIMIT, color=_GREY, lw=1, ls=":")
    axis.annotate(
        "b2 = 0.01", (0, B2_LIMIT), xycoords=("axes fraction", "data"), color="#555555", fontsize=8,
        xytext=(4, 3), textcoords="offset points",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="gradients a chain, warm-up included", ylabel="error b2_max of a chain")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return literal(figure)


def error_against_step(report: Any) -> Figure:
    """Draw the errors of the worst parameter against the step size."""
    if report.steps is None:
        raise ValueError("no other step sizes were run: give step_multiples=[1/4, 1/2, 2] to compare")
    from matplotlib.ticker import LogLocator

    figure, (panels,) = _axes(1, 2, 4.0, sharex=True, sharey=True)
    look = look_of(report)
    for axis, name, what in zip(panels, ("mean_error", "sd_error"), ("mean", "standard deviation"), strict=True):
        for sampler, rows in report.steps[report.steps["mean_error"].notna()].groupby("sampler", sort=False):
            size, error, se = (rows[column].to_numpy(float) for column in ("step_size", name, f"{name}_se"))
            axis.errorbar(size, error, 2.0 * se, fmt="none", lw=1, capsize=2, color=look[sampler]["color"], zorder=1)
            axis.plot(size, error, lw=1.6, label=sampler, zorder=2, **look[sampler])
            beyond, own = error > rows[f"{name}_noise"].to_numpy(float), rows["multiple"].to_numpy() == 1.0
            axis.scatter(
                size, error, np.where(own, 60, 25), zorder=3, edgecolors=look[sampler]["color"],
                facecolors=np.where(beyond, look[sampler]["color"], "white"),
            )  # fmt: skip
        axis.axhline(MATTERS, color=_GREY, lw=1, ls=":")
        axis.set_title(what, fontsize=9)
        axis.set(xscale="log", xlabel="step size, in whitened units")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
        axis.xaxis.set_minor_formatter("")
    # Error bars may reach below zero, and would dominate a logarithmic axis.
    lowest = 0.5 * float(report.steps[["mean_error", "sd_error"]].min(axis=None))
    panels[0].set_yscale("log", nonpositive="clip")
    panels[0].set_ylim(bottom=max(lowest, 1e-6))
    panels[0].set_ylabel("error of the worst parameter,\nin posterior standard deviations")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return literal(figure)


def effective_draws(report: Any) -> Figure:
    """Draw effective draws for 1,000 gradients as bars."""
    names = [trace.name for trace in report.traces]
    figure, ((axis,),) = _axes(1, 1, 1.2 + 0.55 * len(names))
    kinds = {"bulk": "#0072B2", "tail": "#E69F00", "square": "#009E73"}
    place = np.arange(len(names))
    for i, (kind, colour) in enumerate(kinds.items()):
        values = report.table.loc[names, f"ess_{kind}_per_1000"].to_numpy(dtype=float)
        axis.barh(place + (i - 1) * 0.26, values, 0.24, color=colour, label={"square": "of x²"}.get(kind, kind))
        for y, value in zip(place, values, strict=True):
            told = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
            axis.annotate(
                told, (value, y + (i - 1) * 0.26), xytext=(3, 0), textcoords="offset points", va="center",
                fontsize=7,
            )  # fmt: skip
    axis.set(xlabel="effective draws for 1,000 gradients")
    axis.margins(x=0.08)
    axis.set_yticks(place, names, parse_math=False)
    axis.invert_yaxis()
    axis.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    return literal(figure)


def _worst(report: Any) -> list[int]:
    """Return the three coordinates whose mean or standard deviation is off most in any run."""
    truth, off = report.truth, np.zeros(len(report.labels))
    for trace in report.traces:
        mean, sd = trace.position.mean(axis=(0, 1)), trace.position.std(axis=(0, 1))
        off = np.maximum(off, np.maximum(np.abs(mean - truth.mean), np.abs(sd - truth.sd)) / truth.sd)
    return sorted(np.argsort(-off)[:3].tolist())


def marginals(report: Any) -> Figure:
    """Draw the marginals with the largest errors, and their distribution functions minus the reference's."""
    truth, which, look = report.truth, _worst(report), look_of(report)
    if truth.draws is None:
        raise ValueError("the reference has moments and no draws: give reference='nuts', or draws of your own")
    figure, axes = _axes(2, len(which), 5.0, sharex="col")
    least = min(float(report.table.loc[t.name, "ess_bulk_per_1000"]) * t.spent / 1000 for t in report.traces)
    for (above, below), i in zip(axes.T, which, strict=True):
        reference = np.sort(truth.draws[:, i])
        low, high = np.quantile(reference, [0.001, 0.999])
        edges = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), 41)
        above.hist(reference, edges, density=True, color="#CCCCCC", label="reference")
        part = np.searchsorted(reference, edges, side="right") / len(reference)
        band = _TWO_SIDED * np.sqrt(part * (1.0 - part) / max(least, 1.0))
        below.fill_between(edges, -band, band, color="#DDDDDD", lw=0, label="noise")
        for trace in report.traces:
            x = np.sort(trace.position[..., i].ravel())
            density, _ = np.histogram(x, edges)
            above.stairs(density / (len(x) * np.diff(edges)), edges, lw=1.3, label=trace.name, **look[trace.name])
            below.plot(edges, np.searchsorted(x, edges, side="right") / len(x) - part, lw=1.3, **look[trace.name])
        above.set(yticks=[])
        above.set_title(of_runs.short(report.labels[i]), fontsize=9)
        below.axhline(0.0, color=_GREY, lw=0.8)
        below.set_xlabel(of_runs.short(report.labels[i]), fontsize=9)
    axes[0, 0].set_ylabel("density")
    axes[1, 0].set_ylabel("distribution function\nminus the reference's")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return literal(figure)


def ranks(report: Any, most_chains: int = 8, most_draws: int = 300) -> Figure | None:
    """Draw ranks of each run's chains for its worst parameter; nothing where no run has moved."""
    import arviz as az

    n = min(most_draws, *(trace.position.shape[1] for trace in report.traces))
    panels, chains = {}, []
    for trace in report.traces:
        count, draws = trace.position.shape[:2]
        with np.errstate(all="ignore"):
            r_hat = [float(az.rhat(trace.position[..., i])) for i in range(len(report.labels))]
        # Constant draws have neither ranks nor R-hat.
        i = int(np.argmax(np.nan_to_num(r_hat, nan=-np.inf)))
        if np.isfinite(r_hat[i]):
            chains = np.unique(np.linspace(0, count - 1, min(count, most_chains)).round().astype(int)).tolist()
            at = np.linspace(0, draws - 1, n).round().astype(int)
            panels[f"{trace.name}\n{report.labels[i]}\nR-hat {r_hat[i]:.3f}"] = trace.position[chains][:, at, i]
    return of_runs.ranks(panels, chains) if panels else None


def modes(report: Any, points: int = 1500) -> Figure:
    """Draw the two coordinates that tell the modes apart best, for the reference and each run."""
    known, truth = report.modes, report.truth
    if known is None:
        raise ValueError("no modes are known: they come with a target of pmm_mcmc.workbench.targets")
    clouds = {} if truth.draws is None else {"reference": truth.draws[None]}
    clouds |= {trace.name: trace.position for trace in report.traces}
    first = next(iter(clouds.values()))
    pair = _apart(spaced(first, points), known)
    columns = min(3, len(clouds))
    rows = math.ceil(len(clouds) / columns)
    figure, axes = _axes(rows, columns, 2.6 * rows + 0.4, sharex=True, sharey=True)
    for axis in axes.flat[len(clouds) :]:
        axis.set_visible(False)
    for axis in axes.flat[max(len(clouds) - columns, 0) : len(clouds)]:
        axis.tick_params(labelbottom=True)
    for axis, (name, draws) in zip(axes.flat, clouds.items(), strict=False):
        x = spaced(draws, points)
        label = np.asarray(known.label(x))
        everything = np.asarray(known.label(draws))
        for j, mode in enumerate(known.names):
            inside = label == j
            axis.scatter(
                *(x[inside][:, i] for i in pair), s=4, alpha=0.4, lw=0, color=_COLOURS[j % len(_COLOURS)], label=mode
            )
        parts = " / ".join(f"{np.mean(everything == j):.2f}" for j in range(len(known.names)))
        axis.set_title(f"{name}\n{parts}", fontsize=8)
    figure.supxlabel(report.labels[pair[0]], fontsize=9)
    figure.supylabel(report.labels[pair[-1]] if len(pair) > 1 else "", fontsize=9)
    handles, names = axes[0, 0].get_legend_handles_labels()
    told = [f"{name} (true {weight:.2f})" for name, weight in zip(names, known.weights, strict=True)]
    columns = max(1, min(3, int(110 // max(map(len, told)))))  # 110 letters fit the width
    figure.legend(handles, told, fontsize=8, frameon=False, loc="outside upper center", ncols=columns, markerscale=3)
    return literal(figure)


def _apart(x: np.ndarray, known: Any) -> tuple[int, int]:
    """Return the two coordinates in which the modes' means differ most, relative to sd; one twice if d is 1."""
    label = np.asarray(known.label(x))
    means = np.array([x[label == j].mean(axis=0) for j in np.unique(label)])
    best = np.argsort(-means.std(axis=0) / x.std(axis=0))
    return int(best[0]), int(best[min(1, len(best) - 1)])
