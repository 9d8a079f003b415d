"""Eight schools, written as one would first: ``pmm.sample`` beside PyMC's NUTS and the exact posterior, and a picture.

The effects shrink towards their mean by as much as the data ask for, which leaves a funnel where they hardly differ.
Run it with ``make demo``; it takes less than a minute and writes ``demo_output/eight_schools.png``.
"""

from __future__ import annotations

import time
from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm

import pmm_mcmc as pmm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTPUT = Path("demo_output")
SEED = 1
# Treatment effects and their standard errors (Rubin, 1981).
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# Okabe and Ito's colours, which colour-blind readers can tell apart.
OURS, NUTS, EXACT = "#0072B2", "#D55E00", "black"


def build_model() -> pm.Model:
    """Return the centred model: the effects themselves are the parameters."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, ERROR, observed=EFFECT)
    return model


def exact_log_tau(grid: np.ndarray) -> np.ndarray:
    """Return the exact posterior density of ``log tau`` on a grid of it: given ``tau`` all else is Gaussian."""
    tau, mu = np.exp(grid)[:, None, None], np.linspace(-40.0, 40.0, 2001)[None, :, None]
    variance = ERROR**2 + tau**2
    terms = -0.5 * (np.log(variance) + (EFFECT - mu) ** 2 / variance).sum(axis=-1) - 0.5 * (mu[..., 0] / 5.0) ** 2
    density = np.exp(terms).sum(axis=1) * np.exp(grid) / (1.0 + (np.exp(grid) / 5.0) ** 2)
    return density / (density.sum() * (grid[1] - grid[0]))


def draw_picture(ours, nuts) -> Path:
    """Draw the effects, the funnel, and the marginal of ``tau``."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (effects, funnel, marginal) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")

    schools, theta = np.arange(8), ours["posterior"]["theta"].values.reshape(-1, 8)
    effects.errorbar(EFFECT, schools + 0.12, xerr=2 * ERROR, fmt="o", color="0.6", ms=4, label="data, two errors")
    low, high = np.quantile(theta, [0.025, 0.975], axis=0)
    mean = theta.mean(axis=0)
    spread = [mean - low, high - mean]
    effects.errorbar(mean, schools - 0.12, xerr=spread, fmt="o", color=OURS, ms=4, label="pmm.sample, 95 %")
    effects.set(xlabel="effect of coaching (points)", ylabel="school", title="Effects shrink to their mean")
    effects.set_ylim(-0.6, 9.2)
    effects.legend(frameon=False, loc="upper right", ncols=2, fontsize=8)

    grid = np.linspace(-6.0, 4.5, 400)
    for label, result, colour in (("NUTS", nuts, NUTS), ("pmm.sample", ours, OURS)):
        log_tau = np.log(result["posterior"]["tau"].values.ravel())
        first = result["posterior"]["theta"].values.reshape(-1, 8)[:, 0]
        funnel.scatter(first[::2], log_tau[::2], s=4, alpha=0.35, lw=0, color=colour, label=label)
        marginal.hist(log_tau, bins=60, range=(-6, 4.5), density=True, histtype="step", color=colour, label=label)
    funnel.set(xlabel="effect of the first school", ylabel="log tau", title="The funnel", xlim=(-25, 45), ylim=(-6, 4))
    funnel.legend(frameon=False, markerscale=3, loc="lower right")
    marginal.plot(grid, exact_log_tau(grid), color=EXACT, lw=1, label="exact")
    marginal.set(xlabel="log tau", ylabel="density", title="How far schools differ")
    marginal.legend(frameon=False, loc="upper left")
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "eight_schools.png"
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Sample by both, draw, and say what came of it."""
    began = time.perf_counter()
    print("Eight schools, as written. First pmm.sample(); most of its time is compilation.", flush=True)
    with build_model():
        ours = pmm.sample(random_seed=SEED)
    print(f"\nNow NUTS of PyMC ({time.perf_counter() - began:.0f} s so far).", flush=True)
    with build_model():
        nuts = pm.sample(nuts_sampler="pymc", chains=4, random_seed=SEED, progressbar=False)
    path = draw_picture(ours, nuts)

    grid = np.linspace(-15.0, 6.0, 2000)
    truth = float((exact_log_tau(grid) * grid).sum() * (grid[1] - grid[0]))
    print("\n" + pmm.summary(ours, ["mu", "tau"]).to_string())
    print(f"\n{pmm.verdict(ours).sentence}")
    for label, result in (("pmm.sample", ours), ("NUTS", nuts)):
        mean = float(np.log(result["posterior"]["tau"]).mean())
        print(f"Mean of log tau by {label}: {mean:.2f}, exact {truth:.2f}.")
    print(f"Picture: {path}, after {time.perf_counter() - began:.0f} s")
    print("Next: docs/start.md, your own model in five minutes; pmm.workbench.compare weighs samplers on a model.")


if __name__ == "__main__":
    main()
