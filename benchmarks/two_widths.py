"""Densities of two widths about nearly one centre: is a run that met one of them trusted.

``python -m benchmarks two_widths``.  Each density is a mixture of two Gaussians in 2 to 8 coordinates, one 5 to 30
times as wide as the other, of random weights, scales and centres; of *slabs* the narrow one has a scale near 1, of
*spikes* the wide one.  Moments are exact.  The threshold of a slab's mass was set on ``--set 77``.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import jax.numpy as jnp
import numpy as np

import pmm_mcmc as pmm

WRONG, RIGHT = 0.15, 0.1


def density(rng: np.random.Generator, spike: bool) -> tuple[pmm.LogDensity, np.ndarray, np.ndarray, str]:
    """Return a density, its means and standard deviations, and words on it."""
    d, share = int(rng.integers(2, 9)), rng.uniform(0.25, 0.75)
    ratio = np.exp(rng.uniform(np.log(5), np.log(30)))
    narrow, wide = np.exp(rng.normal(0, 0.3, d)), ratio * np.exp(rng.normal(0, 0.3, d))
    centre = rng.normal(0, 0.3, d) * narrow
    if spike:
        narrow, wide = narrow / ratio, wide / ratio

    def log_density(x):
        one = -0.5 * jnp.sum((x / narrow) ** 2) - np.log(narrow).sum()
        other = -0.5 * jnp.sum(((x - centre) / wide) ** 2) - np.log(wide).sum()
        return jnp.logaddexp(np.log(1 - share) + one, np.log(share) + other)

    mean = share * centre
    sd = np.sqrt((1 - share) * narrow**2 + share * (wide**2 + centre**2) - mean**2)
    words = f"{'spike' if spike else 'slab'}, d = {d}, ratio {ratio:.1f}, wide {share:.2f}"
    return pmm.LogDensity.from_jax(log_density, d), mean, sd, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=int, default=78, help="seed of the densities")
    parser.add_argument("--many", type=int, default=20, help="densities, every second one a spike")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    rng = np.random.default_rng(asked.set)
    counts = {kind: dict.fromkeys(("runs", "wrong and trusted", "right", "right and refused"), 0) for kind in (0, 1)}
    for k in range(asked.many):
        target, mean, sd, words = density(rng, spike=bool(k % 2))
        for seed in asked.seeds:
            tree = pmm.sample(model=target, random_seed=seed, progressbar=False)
            x, state = tree["posterior"]["x"].values, pmm.verdict(tree).state
            off = max(np.abs(x.std(axis=(0, 1)) / sd - 1).max(), np.abs((x.mean(axis=(0, 1)) - mean) / sd).max())
            count = counts[k % 2]
            count["runs"] += 1
            count["wrong and trusted"] += off > WRONG and state == "trusted"
            count["right"] += off < RIGHT
            count["right and refused"] += off < RIGHT and state != "trusted"
            print(f"{words}, seed {seed}: off by {off:.2f}, {state}", flush=True)
    for kind, name in ((0, "slabs"), (1, "spikes")):
        print(f"{name}: {', '.join(f'{what} {count}' for what, count in counts[kind].items())}")


if __name__ == "__main__":
    main()
