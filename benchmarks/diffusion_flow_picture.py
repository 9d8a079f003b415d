"""A picture of 25 Gaussians and of digits by samplers of a flow at few calls; not a measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from diffusion_flow_samplers import FAMILIES

__all__ = ["draw"]

ROWS = ("Euler, stochastic_sampling", "Euler-SDE", "CPS", "Heun", "DPM-Solver++ 2M", "Poisson midpoint")
CALLS = (20, 40)
DIGITS = 9


def draw(problem: Any, settings: dict, sample: Callable[..., np.ndarray], mixture: Any, path: Path) -> None:
    """Save a picture with a column for each sampler: points in the plane at 40 calls above, digits below.

    Parameters
    ----------
    problem, settings
        The network of the digits, and noise and shift of each sampler.
    sample
        Draws digits: ``sample(problem, sampler, how_many, seed)``.
    mixture
        The Gaussians in the plane.
    path
        Of the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots(3, len(ROWS), height_ratios=(2.2, 1, 1))
    x = jax.random.normal(jax.random.key(3), (3000, 2))
    for column, name in enumerate(ROWS):
        noise, shift = settings[name][40]
        axes[0, column].set_title(name + (f", noise {noise:.2g}" if noise else ""), fontsize="medium")
        points = np.asarray(FAMILIES[name](40, noise, shift)(jax.random.key(4), mixture.velocity(), x))
        axes[0, column].plot(*points.T, ".", markersize=1.2, color="#1f4e79", alpha=0.5)
        axes[0, column].set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), xticks=[], yticks=[], aspect="equal")
        for place, calls in zip(axes[1:, column], CALLS, strict=True):
            digits = sample(problem, FAMILIES[name](calls, *settings[name][calls]), DIGITS, 7)
            images = np.pad(np.clip(digits, -1, 1).reshape(DIGITS, 8, 8), ((0, 0), (0, 1), (0, 1)), constant_values=-1)
            strip = np.concatenate([np.concatenate(list(images[i : i + 3]), axis=1) for i in (0, 3, 6)])
            place.imshow(strip, cmap=mpl.colormaps["gray_r"], vmin=-1.0, vmax=1.0, interpolation="nearest")
            place.set(xticks=[], yticks=[], frame_on=False)
    for place, words in zip(axes[:, 0], ("40 calls", *(f"{calls} calls" for calls in CALLS)), strict=True):
        place.set_ylabel(words)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
