"""Picture of what ``claims.py`` has kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

__all__ = ["draw"]

# Okabe and Ito's colours, and a marker for each.
STYLES = {
    "LMC": ("#000000", "o", "-"),
    "Option 2, K = 16": ("#E69F00", "s", "--"),
    "Option 2, K = 1/alpha": ("#0072B2", "^", "-"),
    "Option 2, K without bound": ("#009E73", "D", "-."),
    "recycled": ("#CC79A7", "v", ":"),
}


def _line(axes: Any, x: list, y: list, label: str, style: tuple[str, str, str]) -> None:
    colour, marker, dashes = style
    axes.plot(x, y, label=label, color=colour, marker=marker, linestyle=dashes, markersize=4.5, linewidth=1.4)


def _gradients(axes: Any, kept: dict, dynamics: str) -> None:
    found = {**kept["variants"]["found"][dynamics]["best"], **kept["fixed"]["found"][dynamics]}
    eps = kept["variants"]["eps"]
    for name, style in STYLES.items():
        if name in found:
            last = [found[name]["steps"][i] / found["diffusion"][i] for i in (-3, -1)]
            slope = math.log(last[1] / last[0]) / math.log(eps[-3] / eps[-1])
            _line(axes, eps, found[name]["gradients"], f"{name}: {slope:.2f}", style)
    axes.set(title=f"{dynamics}: gradients at the best step", xlabel="total variation distance eps", ylabel="gradients")
    axes.invert_xaxis()
    axes.legend(title="slope of steps without log, last three", fontsize="small", title_fontsize="small")


def draw(kept: dict[str, Any], path: Path) -> None:
    """Save a picture of four panels.

    Parameters
    ----------
    kept
        What ``results/claims.json`` holds.
    path
        Of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 8.0), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2)
    for place, dynamics in zip(axes[0], ("overdamped", "underdamped"), strict=True):
        _gradients(place, kept, dynamics)

    cells = kept["cells"]["found"]["overdamped"]
    for name, style in (
        ("Option 2, left", ("#0072B2", "^", "-")),
        ("Option 1, left", ("#D55E00", "s", "--")),
        ("Option 2, centred", ("#009E73", "D", "-.")),
    ):
        pairs = [(K, v) for K, v in zip(cells["K"], cells[name], strict=True) if v is not None]
        _line(axes[1, 0], *map(list, zip(*pairs, strict=True)), name, style)
    axes[1, 0].axhline(cells["without bound"], color="#000000", linewidth=0.8, linestyle=":", label="K without bound")
    title = f"overdamped: bias against K, alpha = {cells['alpha']:g}"
    axes[1, 0].set(title=title, xlabel="K", ylabel="total variation distance")
    axes[1, 0].legend(fontsize="small")

    theorem = kept["theorem"]["found"]
    alphas, rows = theorem["alpha"], theorem["rows"]
    for label, values, style in (
        ("Theorem 1's bound, C = 1", theorem["bound"], ("#D55E00", "s", "--")),
        ("true, of the paths", [r["path"] for r in rows], ("#0072B2", "^", "-")),
        ("true, of the laws at the end", [r["end"] for r in rows], ("#009E73", "D", "-.")),
    ):
        _line(axes[1, 1], alphas, values, label, style)
    axes[1, 1].set(title="Option 1 and LMC with steps alpha / K, K = 1 / alpha", xlabel="step size alpha",
                   ylabel="Kullback-Leibler divergence")  # fmt: skip
    axes[1, 1].legend(fontsize="small")
    for place in axes.flat:
        place.set(xscale="log", yscale="log")
        place.grid(alpha=0.25)
    axes[1, 1].set_xticks(alphas, [f"{a:g}" for a in alphas])
    axes[1, 1].minorticks_off()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
