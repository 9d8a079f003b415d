"""A funnel with and without non-centring: eight schools, written centred, by NUTS as written and by ``pmm.sample``.

``python examples/funnels.py`` writes ``docs/images/funnel.png`` in the folder that it is run from.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm

import pmm_mcmc as pmm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTPUT = Path("docs/images/funnel.png")
# Treatment effects and their standard errors (Rubin, 1981).
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SHOWN = 1500
# Okabe and Ito's blue and vermilion.
WITH, WITHOUT = "#0072B2", "#D55E00"


def build_model() -> pm.Model:
    """Return the centred model: the effects themselves are the parameters."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, ERROR, observed=EFFECT)
    return model


def main() -> None:
    """Sample by both, draw."""
    with build_model():
        nuts = pm.sample(nuts_sampler="pymc", chains=4, random_seed=1, progressbar=False)["posterior"]
        dt = pmm.sample(random_seed=1)
    print(pmm.verdict(dt).sentence, dt["posterior"].attrs["reparametrisation"], sep="\n")
    without = np.column_stack([nuts["mu"].values.ravel(), np.log(nuts["tau"].values.ravel())])
    without = np.column_stack([without, nuts["theta"].values.reshape(-1, 8)])
    x = dt["sample_stats"]["unconstrained"].values.reshape(-1, 10)
    z = dt["sample_stats"]["noncentred"].values.reshape(-1, 10)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 3, figsize=(9.0, 3.2), layout="constrained", sharey=True)
    for axis, values, colour, title, label in (
        (axes[0], without, WITHOUT, "As written, by NUTS", "theta[0]"),
        (axes[1], x, WITH, "Non-centred, by pmm.sample", "theta[0]"),
        (axes[2], z, WITH, "The same draws, non-centred", "z of theta[0]"),
    ):
        some = values[:: max(1, len(values) // SHOWN)]
        axis.scatter(some[:, 2], some[:, 1], s=3, alpha=0.4, color=colour, lw=0)
        axis.set(xlabel=label, title=title)
    for axis in axes[:2]:
        axis.set_xlim(-30, 50)
    axes[0].set(ylabel="log tau", ylim=(-7, 4.5))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUTPUT, dpi=90)


if __name__ == "__main__":
    main()
