"""A mixture of Gaussians for the velocities of 82 galaxies: ``pmm.sample`` beside PyMC's NUTS, and a picture.

The posterior is not log-concave: the two clusters in the middle overlap, and either may be the narrow one.
Run it with ``make demo``; it takes less than a minute and writes ``demo_output/galaxies.png``.
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

HERE = Path(__file__).parent
OUTPUT = Path("demo_output")
SEED = 20261121
CLUSTERS = ["near", "middle A", "middle B", "far"]
# Okabe and Ito's colours, which colour-blind readers can tell apart; NUTS is dashed and grey as well.
OURS, NUTS = "#0072B2", "#444444"


def load_velocities() -> np.ndarray:
    """Velocities in 1000 km/s."""
    return np.loadtxt(HERE / "galaxies.csv", skiprows=3) / 1000.0


def build_model(velocities: np.ndarray) -> pm.Model:
    """Build a mixture of four Gaussians whose priors say roughly where the clusters lie."""
    with pm.Model(coords={"cluster": CLUSTERS}) as model:
        score = pm.Normal("score", 0, 1, dims="cluster")
        weight = pm.Deterministic("weight", pm.math.softmax(score), dims="cluster")
        mean = pm.Normal("mean", np.array([10.0, 20.0, 23.0, 33.0]), 1.5, dims="cluster")
        sd = pm.LogNormal("sd", np.log(1.5), 0.5, dims="cluster")
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=sd, observed=velocities)
    return model


def draws_of(result, name: str) -> np.ndarray:
    """Return all draws of a variable: ``(draw, cluster)``."""
    return result["posterior"][name].values.reshape(-1, len(CLUSTERS))


def draw_picture(velocities: np.ndarray, ours, nuts) -> Path:
    """Draw the data and the fit, the two modes, and a marginal."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (fit, modes, marginal) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")

    grid, some = np.linspace(6, 38, 300), slice(None, None, 10)
    weight, mean, sd = (draws_of(ours, name)[some, None] for name in ("weight", "mean", "sd"))
    bells = weight * np.exp(-0.5 * ((grid[:, None] - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
    density = bells.sum(axis=-1)
    fit.hist(velocities, bins=40, density=True, color="0.8", label="82 galaxies")
    fit.fill_between(grid, *np.quantile(density, [0.055, 0.945], axis=0), color=OURS, alpha=0.3, lw=0)
    fit.plot(grid, density.mean(axis=0), color=OURS, label="density, mean and 89 % band")
    fit.set(xlabel="velocity (1000 km/s)", ylabel="density", title="The data and what was learnt")
    fit.set_ylim(0, 0.4)
    fit.legend(frameon=False, loc="upper right")

    pair = [CLUSTERS.index("middle A"), CLUSTERS.index("middle B")]
    modes.scatter(*draws_of(ours, "sd")[:, pair].T, s=4, alpha=0.3, lw=0, color=OURS, label="pmm.sample")
    counts, x, y = np.histogram2d(*draws_of(nuts, "sd")[:, pair].T, bins=25, range=[[0, 4], [0, 4]])
    centres = (x[:-1] + x[1:]) / 2, (y[:-1] + y[1:]) / 2
    modes.contour(*centres, counts.T, levels=counts.max() * np.array([0.05, 0.2, 0.5]), colors=NUTS, linewidths=1)
    modes.plot([], [], color=NUTS, lw=1, label="NUTS")
    modes.set(xlim=(0, 4), ylim=(0, 4), title="Either may be the narrow one")
    modes.set(xlabel="sd of middle A (1000 km/s)", ylabel="sd of middle B (1000 km/s)")
    modes.legend(frameon=False, markerscale=3)

    bins = np.linspace(17, 24, 50)
    for label, result, style in (("pmm.sample", ours, {"color": OURS}), ("NUTS", nuts, {"color": NUTS, "ls": "--"})):
        values = draws_of(result, "mean")[:, pair[0]]
        marginal.hist(values, bins=bins, density=True, histtype="step", lw=1.5, label=label, **style)
    marginal.set(xlabel="mean of middle A (1000 km/s)", ylabel="density", title="One marginal, two samplers")
    marginal.legend(frameon=False)
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "galaxies.png"
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Sample by both, draw, and say what came of it."""
    velocities, began = load_velocities(), time.perf_counter()
    model = build_model(velocities)
    print("82 galaxies, four clusters. First pmm.sample(); most of its time is compilation.", flush=True)
    with model:
        ours = pmm.sample(random_seed=SEED)
    after = time.perf_counter()
    print(f"\nNow NUTS of PyMC ({after - began:.0f} s so far).", flush=True)
    with model:
        nuts = pm.sample(nuts_sampler="pymc", chains=4, random_seed=SEED, progressbar=False)
    path = draw_picture(velocities, ours, nuts)

    means, sd = [draws_of(result, "mean").mean(axis=0) for result in (ours, nuts)], draws_of(nuts, "mean").std(axis=0)
    table = pmm.summary(ours, var_names=["mean", "sd"])[["mean_corrected", "mcse_corrected", "r_hat"]].astype(float)
    print("\n" + table.round({"mean_corrected": 2, "mcse_corrected": 3, "r_hat": 3}).to_string())
    print(f"\n{pmm.verdict(ours).sentence}")
    print(
        f"Means of the clusters differ from those of NUTS by at most {np.abs((means[0] - means[1]) / sd).max():.2f} sd."
    )
    print(f"Picture: {path}, after {time.perf_counter() - began:.0f} s")
    print("Next: docs/start.md, your own model in five minutes; pmm.workbench.compare weighs samplers on a model.")


if __name__ == "__main__":
    main()
