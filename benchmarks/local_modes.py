"""Posteriors with modes of next to no mass: do chains that start in one end in the heaviest.

``python -m benchmarks local_modes``.  Each posterior is of a linear regression on a basis that depends on one
parameter: the frequency of a wave, the time of a smooth step, or the frequency of a damped wave.  Its likelihood has
many modes along that parameter, of very unequal mass.  Given it the coefficients are Gaussian, so that its moments are
exact sums over a grid.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import jax.numpy as jnp
import numpy as np

import pmm_mcmc as pmm

WRONG = 0.15
T = np.linspace(0.0, 1.0, 60)
WIDTH = 3.0  # sd of the coefficients
FAMILIES = {
    "wave": (lambda xp, a: xp.stack([xp.cos(20.0 * a * T), xp.sin(20.0 * a * T)]), 2.0),
    "step": (lambda xp, a: xp.stack([xp.ones_like(a * T), 1.0 / (1.0 + xp.exp(-(T - 0.5 - 0.2 * a) / 0.01))]), 1.0),
    "damped": (lambda xp, a: xp.stack([xp.exp(-2.0 * T) * xp.sin(25.0 * a * T), xp.exp(-2.0 * T + 0.0 * a)]), 2.0),
}


def posterior(rng: np.random.Generator, family: str) -> tuple[pmm.LogDensity, np.ndarray, np.ndarray]:
    """Return a posterior of the parameter and two coefficients, and mean and sd of the first."""
    basis, sd = FAMILIES[family]
    noise = rng.uniform(0.2, 1.0)
    y = rng.normal(0.0, 1.5, 2) @ basis(np, rng.normal(0.0, sd)) + noise * rng.normal(size=len(T))

    def log_density(x):
        residual = (y - x[1:] @ basis(jnp, x[0])) / noise
        return -0.5 * (x[0] ** 2 / sd**2 + jnp.sum(x[1:] ** 2) / WIDTH**2 + jnp.sum(residual**2))

    grid = np.linspace(-5.0 * sd, 5.0 * sd, 40_001)[:, None]
    b = basis(np, grid) / noise  # (coefficient, grid, time)
    precision = np.einsum("igt,jgt->gij", b, b) + np.eye(2) / WIDTH**2
    projection = np.einsum("igt,t->gi", b, y / noise)[..., None]
    log_mass = -0.5 * (grid[:, 0] / sd) ** 2 - 0.5 * np.linalg.slogdet(precision)[1]
    log_mass += 0.5 * (projection * np.linalg.solve(precision, projection)).sum(axis=(1, 2))
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    mean = float(mass @ grid[:, 0])
    return pmm.LogDensity.from_jax(log_density, 3), mean, float(np.sqrt(mass @ (grid[:, 0] - mean) ** 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=int, default=1, help="seed of the posteriors")
    parser.add_argument("--many", type=int, default=10, help="posteriors of each family")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    rng = np.random.default_rng(asked.set)
    for family in FAMILIES:
        names = (f"{truth} and {words}" for truth in ("right", "wrong") for words in ("trusted", "refused"))
        counts = dict.fromkeys(names, 0)
        for k in range(asked.many):
            target, mean, sd = posterior(rng, family)
            tree = pmm.sample(model=target, random_seed=k, progressbar=False)
            x = tree["posterior"]["x"].values[..., 0]
            off = max(abs(x.mean() - mean) / sd, abs(x.std() / sd - 1.0))
            trusted = pmm.verdict(tree).state == "trusted"
            counts[f"{'wrong' if off > WRONG else 'right'} and {'trusted' if trusted else 'refused'}"] += 1
        print(family, counts, flush=True)


if __name__ == "__main__":
    main()
