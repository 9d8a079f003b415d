"""Draw the figures that the pages open with: ``python examples/figures.py [name ...]``, from the root of a clone.

Each goes to ``docs/images``. Seeds are fixed; all of them take about three minutes. The figure of the front page is of
the rows in ``benchmarks/results/scoreboard.json``, and samples nothing.
"""

from __future__ import annotations

import io
import json
import sys
import textwrap
from pathlib import Path

import eight_schools
import matplotlib
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from PIL import Image
from scipy.interpolate import BSpline

import pmm_mcmc as pmm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
OURS, NUTS, EXACT = eight_schools.OURS, eight_schools.NUTS, eight_schools.EXACT
# Okabe and Ito's green and purple, for the chains of a trace.
OTHERS = "#009E73", "#CC79A7"
SEED = 1
SPEED = np.array([4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 25])
DISTANCE = np.array([6, 13, 16, 10, 26, 22, 20, 34, 46, 26, 36, 40, 56, 46, 48, 66, 54, 93, 85])


def front(narrow: bool = False) -> Figure:
    """Draw the gradients for 400 effective draws of the worst mean and square, on each posterior, by three samplers."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "scoreboard.json").read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if row["target"].startswith("posteriordb/") and "for_400_square" in row]
    costs = {(row["sampler"], row["target"]): row for row in rows}
    order = sorted({target for _, target in costs}, key=lambda target: costs["default", target]["for_400"])
    size, shape = ((4.2, 5.6), (2, 1)) if narrow else ((8.6, 3.2), (1, 2))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", sharex=True, sharey=True)
    for axis, cost, words in zip(axes, ("for_400", "for_400_square"), ("mean", "square"), strict=True):
        for name, label, colour in (
            ("NumPyro NUTS", "NUTS (NumPyro)", "0.65"),
            ("nutpie low rank", "nutpie", NUTS),
            ("default", "pmm.sample", OURS),
        ):
            points = [(i, costs[name, key][cost]) for i, key in enumerate(order) if (name, key) in costs]
            axis.plot(*zip(*points, strict=True), "o", ms=4, color=colour, label=label)
        axis.set(yscale="log", xticks=[], title=f"until the worst {words} has 400 draws")
        axis.grid(axis="y", color="0.9")
    axes[0].set_ylabel("gradients of a chain")
    axes[-1].set_xlabel(f"{len(order)} posteriors of posteriordb")
    axes[0].legend(frameon=False, loc="upper left", ncols=1 if narrow else 3, fontsize=8, columnspacing=1)
    return figure


def front_narrow() -> Figure:
    """Draw the same for a narrow screen."""
    return front(narrow=True)


def start() -> Figure:
    """Draw the model of the start page: data and fitted lines, and the slope with its verdict."""
    with pm.Model():
        intercept = pm.Normal("intercept", 0, 50)
        slope = pm.Normal("slope", 0, 10)
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("distance", intercept + slope * (SPEED - SPEED.mean()), sigma, observed=DISTANCE)
        dt = pmm.sample(random_seed=SEED, progressbar=False)
    posterior = dt["posterior"]
    slopes = posterior["slope"].values.ravel()
    line = posterior["intercept"].values.ravel()[:, None] + slopes[:, None] * (SPEED - SPEED.mean())
    figure, (fit, marginal) = plt.subplots(1, 2, figsize=(8.6, 3.0), layout="constrained", width_ratios=[3, 2])
    low, high = np.quantile(line, [0.025, 0.975], axis=0)
    fit.fill_between(SPEED, low, high, color=OURS, alpha=0.25, lw=0, label="line, 95 %")
    fit.plot(SPEED, line.mean(axis=0), color=OURS)
    fit.plot(SPEED, DISTANCE, "o", color="0.3", ms=4, label="data")
    fit.set(xlabel="speed", ylabel="braking distance", title="A model of your own")
    fit.legend(frameon=False, loc="upper left")
    marginal.hist(slopes, bins=40, density=True, color=OURS, alpha=0.5)
    mean, error = pmm.summary(dt, ["slope"], round_to="none").loc["slope", ["mean_cv", "mcse_cv"]].astype(float)
    marginal.spines["left"].set_visible(False)
    marginal.axvline(mean, color=EXACT, lw=1)
    marginal.set(xlabel="slope", yticks=[], title=f"mean {mean:.3f} ± {error:.3f}")
    figure.text(0.5, -0.03, pmm.verdict(dt).sentence, ha="center", va="top", style="italic")
    return figure


def funnel() -> Figure:
    """Draw eight schools as written: by NUTS, by ``pmm.sample``, and the latter's draws in the coordinates it used."""
    with eight_schools.build_model():
        nuts = pm.sample(nuts_sampler="pymc", chains=4, random_seed=SEED, progressbar=False)["posterior"]
        dt = pmm.sample(random_seed=SEED, progressbar=False)
    stats = dt["sample_stats"]
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.0), layout="constrained", sharey=True)
    for axis, effect, log_tau, colour, title, label in (
        (axes[0], nuts["theta"][..., 0], np.log(nuts["tau"]), NUTS, "As written, by NUTS", "effect of a school"),
        (axes[1], *(stats["unconstrained"][..., i] for i in (2, 1)), OURS, "By pmm.sample", "effect of a school"),
        (axes[2], *(stats["noncentred"][..., i] for i in (2, 1)), OURS, "The same draws, non-centred", "its z"),
    ):
        axis.scatter(effect.values.ravel()[::3], log_tau.values.ravel()[::3], s=3, alpha=0.4, color=colour, lw=0)
        axis.set(xlabel=label, title=title)
    for axis in axes[:2]:
        axis.set_xlim(-30, 50)
    axes[0].set(ylabel="log tau", ylim=(-7, 4.5))
    return figure


def trust() -> Figure:
    """Draw three runs with their verdicts: enough draws, too few, and a mode that no chain is in."""
    with pm.Model():
        pm.Gamma("x", 3, 1)
        trusted = pmm.sample(random_seed=SEED, progressbar=False)
        undecided = pmm.sample(15, random_seed=SEED, progressbar=False)
    with pm.Model():
        pm.NormalMixture("x", [0.7, 0.3], [0.0, 12.0], [1.0, 1.0])
        start_left = pmm.sample(initvals={"x": 0.0}, random_seed=SEED, progressbar=False)
    gamma, mixture = np.linspace(0, 12, 300), np.linspace(-5, 17, 300)
    bells = 0.7 * np.exp(-(mixture**2) / 2) + 0.3 * np.exp(-((mixture - 12) ** 2) / 2)
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.0), layout="constrained")
    for axis, dt, grid, density, bins in (
        (axes[0], trusted, gamma, gamma**2 * np.exp(-gamma) / 2, 40),
        (axes[1], undecided, gamma, gamma**2 * np.exp(-gamma) / 2, 20),
        (axes[2], start_left, mixture, bells / np.sqrt(2 * np.pi), 60),
    ):
        verdict = pmm.verdict(dt)
        x = dt["posterior"]["x"].values.ravel()
        axis.hist(x, bins, range=(grid[0], grid[-1]), density=True, color=OURS, alpha=0.5, label="draws")
        axis.plot(grid, density, color=EXACT, lw=1, label="posterior")
        axis.set(yticks=[], title=verdict.state, xlabel=textwrap.fill(verdict.sentence, 44))
        axis.xaxis.label.set(style="italic", size=8)
        axis.spines["left"].set_visible(False)
    axes[0].legend(frameon=False)
    return figure


def modes() -> Figure:
    """Draw two modes far apart: chains of NUTS, replicas of ``pmm.temper``, and the weights by both."""
    with pm.Model() as model:
        pm.NormalMixture("x", [0.3, 0.7], [-7.0, 7.0], [1.0, 1.0])
        nuts = pm.sample(nuts_sampler="pymc", chains=4, random_seed=SEED, progressbar=False)
    dt = pmm.temper(200, model=model, random_seed=SEED, progressbar=False)
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.0), layout="constrained", sharey=True, width_ratios=[3, 3, 2])
    for axis, result, title in ((axes[0], nuts, "Four chains of NUTS"), (axes[1], dt, "Four replicas of pmm.temper")):
        for chain, colour in zip(range(4), (OURS, NUTS, *OTHERS), strict=True):
            axis.plot(result["posterior"]["x"].values[chain][:100], lw=0.8, color=colour)
        axis.set(xlabel="draw", title=title)
    axes[0].set(ylabel="x")
    grid = np.linspace(-11, 11, 400)
    exact = 0.3 * np.exp(-((grid + 7) ** 2) / 2) + 0.7 * np.exp(-((grid - 7) ** 2) / 2)
    options = {"bins": 60, "range": (-11, 11), "density": True, "orientation": "horizontal", "histtype": "step"}
    for label, result, colour in (("NUTS", nuts, NUTS), ("pmm.temper", dt, OURS)):
        axes[2].hist(result["posterior"]["x"].values.ravel(), color=colour, label=label, **options)
    axes[2].plot(exact / np.sqrt(2 * np.pi), grid, color=EXACT, lw=1, label="exact")
    axes[2].set(xticks=[], xlabel="density", title="Weights of the modes")
    axes[2].legend(frameon=False, loc="center right")
    return figure


def splines(x: np.ndarray, knots: int) -> np.ndarray:
    """Return cubic B-splines ``(n, knots)`` over the unit interval."""
    step = 1.0 / (knots - 3)
    grid = step * np.arange(-3, knots + 1)
    return BSpline.design_matrix(np.clip(x, 0.0, 1.0 - 1e-9), grid, 3).toarray()


def blocks() -> Figure:
    """Draw chains of a spline's roughness, as written and with its coefficients integrated out."""
    rng = np.random.default_rng(22)
    x = np.sort(rng.uniform(0, 1, size=250))
    y = np.sin(9 * x**2) + np.exp(-2 + 2 * x) * rng.normal(size=250)
    with pm.Model() as model:
        steps = pm.Normal("steps", 0, pm.HalfNormal("rough"), shape=15)
        bends = pm.Normal("bends", 0, pm.HalfNormal("sd_bends"), shape=5)
        log_sd = pm.Normal("log_sd", 0, 1) + splines(x, 5) @ bends
        mean = pm.Normal("level", 0, 2) + splines(x, 15) @ pm.math.cumsum(steps)
        pm.Normal("y", mean, pm.math.exp(log_sd), observed=y)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 2.9), sharey=True, layout="constrained")
    choices = {
        "as written": {"level": "centred"},
        "coefficients integrated out": dict.fromkeys(("level", "steps"), "integrated"),
    }
    for axis, (title, choice) in zip(axes, choices.items(), strict=True):
        dt = pmm.sample(model=model, reparametrise=choice, random_seed=SEED, progressbar=False)
        gradients = dt["sample_stats"]["n_grad_total"].values[:, -1].mean()
        for chain, colour in zip(np.log(dt["posterior"]["rough"].values), (OURS, NUTS, *OTHERS), strict=True):
            axis.plot(chain, lw=0.6, color=colour)
        axis.set(xlabel="draw", title=f"{title}: {gradients:,.0f} gradients a chain")
    axes[0].set_ylabel("log of the roughness")
    return figure


def workbench() -> Figure:
    """Draw the comparison of its page."""
    samplers = {"pmm.sample": "default", "MALA": pmm.MALA(), "ULMC, long steps": pmm.ULMC(step_size=1.0, friction=1.0)}
    options = {"n_grad": 30_000, "seeds": 3, "random_seed": 1, "progressbar": False}
    return pmm.workbench.compare("mixture_4sd", samplers, **options).figure()


DRAWINGS = (front, front_narrow, start, funnel, trust, modes, blocks, workbench)
FIGURES = {drawing.__name__: drawing for drawing in DRAWINGS}


def main() -> None:
    """Draw those that are named, or all."""
    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False})
    for name in sys.argv[1:] or FIGURES:
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn, dpi=130, bbox_inches="tight", pad_inches=0.08)
        path = IMAGES / f"{name}.png"
        # A palette is enough for these, and a third of the size.
        Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
