"""A picture of digits by network calls, from the trained network; not a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw"]

ROWS = (
    *("DDPM", "DDIM", "DPM-Solver++ 2M", "SDE-DPM-Solver++"),
    *("paper, variant 2", "paper, variant 3", "planned, variant 3"),
)
CALLS = (20, 40, 80, 1000)
DIGITS = 7


def draw(problem: Any, samplers: Iterable[Any], sample: Callable[..., list[np.ndarray]], path: Path) -> None:
    """Save a picture with a row for each sampler and a column for each number of calls.

    Parameters
    ----------
    problem, samplers
        Whose network is asked, and by what.
    sample
        Draws samples: ``sample(problem, sampler, how_many, seeds)``.
    path
        Of the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.7), dpi=110, layout="constrained")
    axes = figure.subplots(len(ROWS), len(CALLS))
    for each in axes.flat:
        each.set(xticks=[], yticks=[], frame_on=False)
    for row, name in zip(axes, ROWS, strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for column, calls in zip(axes[0], CALLS, strict=True):
        column.set_title(f"{calls} calls", fontsize="medium")
    for sampler in samplers:
        if sampler.family in ROWS and sampler.calls in CALLS:
            (x,) = sample(problem, sampler, DIGITS, [7])
            images = np.pad(np.clip(x, -1.0, 1.0).reshape(DIGITS, 8, 8), ((0, 0), (0, 0), (0, 1)), constant_values=-1.0)
            strip = np.concatenate(list(images), axis=1)
            place = axes[ROWS.index(sampler.family), CALLS.index(sampler.calls)]
            place.imshow(strip, cmap=mpl.colormaps["gray_r"], vmin=-1.0, vmax=1.0, interpolation="nearest")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
