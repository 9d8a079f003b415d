"""Three samplers, one budget of gradients: a Gaussian mixture of the velocities of 82 galaxies.

The posterior is not log-concave: the two components in the middle overlap, and either may be the narrow one.
Run it with ``make demo``; it writes ``demo_output/galaxies.png``.
"""

from __future__ import annotations

import time
from pathlib import Path

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
from scipy.stats import norm

import pmm_mcmc as pmm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
OUTPUT = Path("demo_output")
CHAINS, DRAWS, SEED = 8, 1000, 20261121
# Transitions for each draw, so that a draw costs 16 gradients with every sampler, warm-up included.
SAMPLERS = {
    "PoissonULMC(K=16)": (lambda: pmm.PoissonULMC(K=16, steps_per_draw=8), 1000),
    "ULMC": (lambda: pmm.ULMC(steps_per_draw=16), 2000),
    "MALA": (lambda: pmm.MALA(steps_per_draw=16), 2000),
}
# Okabe and Ito's colours, which colour-blind readers can tell apart; each sampler has a line style as well.
STYLES = {
    "PoissonULMC(K=16)": {"color": "#0072B2", "linestyle": "-"},
    "ULMC": {"color": "#D55E00", "linestyle": "--"},
    "MALA": {"color": "#009E73", "linestyle": ":"},
}


def load_velocities() -> np.ndarray:
    """Velocities in 1000 km/s."""
    return np.loadtxt(HERE / "galaxies.csv", skiprows=3) / 1000.0


def build_model(velocities: np.ndarray) -> pm.Model:
    """Build a mixture of four Gaussians whose priors say roughly where the clusters lie."""
    with pm.Model(coords={"cluster": ["near", "middle A", "middle B", "far"]}) as model:
        weight = pm.Dirichlet("weight", np.full(4, 2.0), dims="cluster")
        mean = pm.Normal("mean", np.array([10.0, 20.0, 23.0, 33.0]), 1.5, dims="cluster")
        sd = pm.LogNormal("sd", np.log(1.5), 0.5, dims="cluster")
        pm.NormalMixture("velocity", w=weight, mu=mean, sigma=sd, observed=velocities)
    return model


def flat_draws(tree) -> tuple[np.ndarray, list[str]]:
    """Return all parameters as one array (chain, draw, parameter), with their names."""
    posterior = tree["posterior"].dataset
    stacked, names = [], []
    for variable in ("mean", "weight", "sd"):
        stacked.append(posterior[variable].values)
        names += [f"{variable}[{c}]" for c in posterior["cluster"].values]
    return np.concatenate(stacked, axis=-1), names


def running_error(draws: np.ndarray, truth: np.ndarray, sd: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Root mean square, over chains and parameters, of a chain's running mean minus the truth, in posterior sd."""
    means = np.cumsum(draws, axis=1)[:, at - 1] / at[None, :, None]
    return np.sqrt((((means - truth) / sd) ** 2).mean(axis=(0, 2)))


def draw_picture(velocities: np.ndarray, results: dict, reference: np.ndarray, names: list[str]) -> Path:
    """Draw data and fit, the two modes, a marginal, and the error against the gradients spent."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, ((fit, modes), (marginal, error)) = plt.subplots(2, 2, figsize=(9.5, 7.2), layout="constrained")

    draws = flat_draws(results["PoissonULMC(K=16)"])[0].reshape(-1, len(names))
    grid = np.linspace(6, 38, 400)
    some = draws[:: len(draws) // 400]
    components = norm.pdf(grid[None, :, None], some[:, None, 0:4], some[:, None, 8:12]) * some[:, None, 4:8]
    density = components.sum(axis=-1)
    fit.hist(velocities, bins=40, density=True, color="0.8", label="82 galaxies")
    fit.fill_between(grid, *np.quantile(density, [0.055, 0.945], axis=0), color="#0072B2", alpha=0.3, lw=0)
    fit.plot(grid, density.mean(axis=0), color="#0072B2", label="density, mean and 89 % band")
    fit.set(xlabel="velocity (1000 km/s)", ylabel="density", title="The data and what was learnt")
    fit.set_ylim(0, 0.36)
    fit.legend(frameon=False, loc="upper right")

    j = names.index("sd[middle A]"), names.index("sd[middle B]")
    flat_reference = reference.reshape(-1, len(names))
    modes.scatter(draws[:, j[0]], draws[:, j[1]], s=3, alpha=0.25, color="#0072B2", lw=0, label="PoissonULMC(K=16)")
    counts, x, y = np.histogram2d(flat_reference[:, j[0]], flat_reference[:, j[1]], bins=40, range=[[0, 4], [0, 4]])
    levels = np.max(counts) * np.array([0.03, 0.1, 0.3, 0.7])
    centres = (x[:-1] + x[1:]) / 2, (y[:-1] + y[1:]) / 2
    modes.contour(*centres, counts.T, levels=levels, colors="black", linewidths=0.9)
    modes.plot([], [], color="black", lw=0.9, label="reference")
    modes.set(
        xlim=(0, 4), ylim=(0, 4), xlabel="sd[middle A]", ylabel="sd[middle B]", title="Either may be the narrow one"
    )
    modes.legend(frameon=False, markerscale=4)

    k = names.index("mean[middle A]")
    bins = np.linspace(17, 24, 60)
    marginal.hist(flat_reference[:, k], bins=bins, density=True, color="0.85", label="reference")
    for name, tree in results.items():
        values = flat_draws(tree)[0][..., k].ravel()
        marginal.hist(values, bins=bins, density=True, histtype="step", lw=1.4, label=name, **STYLES[name])
    marginal.set(xlabel="mean[middle A] (1000 km/s)", ylabel="density", title="One marginal, three samplers")
    marginal.legend(frameon=False)

    truth, sd = flat_reference.mean(axis=0), flat_reference.std(axis=0)
    for name, tree in results.items():
        at = np.unique(np.geomspace(10, DRAWS, 40).astype(int))
        spent = tree["sample_stats"]["n_grad"].values.mean(axis=0).cumsum()
        error.loglog(
            spent[at - 1], running_error(flat_draws(tree)[0], truth, sd, at), lw=1.8, label=name, **STYLES[name]
        )
    error.set(
        xlabel="gradients a chain, after warm-up",
        ylabel="rms error of a chain's means (posterior sd)",
        title="Error against gradients spent",
    )
    error.legend(frameon=False)
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "galaxies.png"
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Sample, summarise, draw."""
    velocities = load_velocities()
    model = build_model(velocities)
    results = {}
    for name, (build, tune) in SAMPLERS.items():
        print(f"\n{name}", flush=True)
        began = time.perf_counter()
        with model:
            results[name] = pm.sample(
                step=build(), draws=DRAWS, tune=tune, chains=CHAINS, random_seed=SEED, discard_tuned_samples=False
            )
        stats, warmup = results[name]["sample_stats"], results[name]["warmup_sample_stats"]
        print(az.summary(results[name], var_names=["mean", "sd"], round_to=2).to_string())
        print(
            f"gradients a chain: {warmup['n_grad'].values.sum() / CHAINS:.0f} in warm-up, "
            f"{stats['n_grad'].values.sum() / CHAINS:.0f} after it; step size {stats['step_size'].values.mean():.3f}; "
            f"unstable transitions: {stats['unstable'].values.sum()}; "
            f"{time.perf_counter() - began:.0f} s with compilation"
        )
        print(pmm.verdict(results[name]).sentence)
    print("\nReference: MALA, which has no bias, for ten times as many gradients")
    with model:
        step = pmm.MALA(steps_per_draw=40)
        reference = pm.sample(step=step, draws=4 * DRAWS, tune=2000, chains=CHAINS, random_seed=SEED + 1)
    path = draw_picture(velocities, results, *flat_draws(reference))
    print(f"\nPicture: {path}")


if __name__ == "__main__":
    main()
