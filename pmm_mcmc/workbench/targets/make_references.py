r"""Write ``data/references.json``: moments of targets without exact ones, by annealed importance resampling.

``python -m pmm_mcmc.workbench.targets.make_references [name ...]`` takes a few minutes for all three. It needs JAX.

A population of draws from a wide Gaussian :math:`q` moves to the target :math:`p` through
:math:`q^{1-\beta} p^\beta` (Del Moral, Doucet and Jasra, 2006). In each stage :math:`\beta` grows until nine tenths of
the population's effective size are left, draws are resampled by their weights, and Hamiltonian Monte Carlo moves them.
All modes are populated while they are still connected, so that none is missed, as it may be by chains that start in one
of them. Populations are independent, and standard errors come from the spread of their means. The moments are averaged
over the symmetries of the posterior, which removes the noise in the weights of equal modes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pmm_mcmc.workbench.targets as gallery
from pmm_mcmc.workbench.targets.mixtures import GALAXIES
from pmm_mcmc.workbench.targets.regressions import NETWORK
from pmm_mcmc.workbench.targets.stored import DATA

__all__ = ["main"]


class Plan(NamedTuple):
    """The initial Gaussian of a target's populations, their number, size and moves, and its symmetries.

    ``symmetrise`` averages raw moments ``(3, d)`` of orders 1, 2 and 4 over the symmetries.
    """

    mean: np.ndarray
    sd: np.ndarray
    populations: int
    size: int
    moves: int
    last_moves: int
    symmetrise: Callable[[np.ndarray], np.ndarray]


def pooled(moments: np.ndarray, groups: list[np.ndarray], odd: np.ndarray) -> np.ndarray:
    """Return moments averaged over groups of coordinates with equal laws; means of the coordinates ``odd`` are 0."""
    found = moments.copy()
    for group in groups:
        found[:, group] = moments[:, group].mean(axis=1, keepdims=True)
    found[0, odd] = 0.0
    return found


def _galaxies() -> Plan:
    ratios, means, logs = np.split(
        np.arange(3 * GALAXIES.clusters - 1), [GALAXIES.clusters - 1, 2 * GALAXIES.clusters - 1]
    )
    centre, sd = np.zeros(3 * GALAXIES.clusters - 1), np.ones(3 * GALAXIES.clusters - 1)
    centre[means], sd[means], centre[logs], sd[logs] = GALAXIES.mean, GALAXIES.sd, 0.5, 1.5
    return Plan(centre, sd, 24, 1024, 2, 15, partial(pooled, groups=[ratios, means, logs], odd=ratios))


def _neural_network() -> Plan:
    weights, last = np.arange(4 * NETWORK.hidden), 4 * NETWORK.hidden
    # The units of each input, the thresholds and the outward weights.
    groups = [*np.split(weights, 4)]
    d = last + 1
    return Plan(np.zeros(d), np.full(d, NETWORK.sd), 12, 1024, 2, 15, partial(pooled, groups=groups, odd=weights))


def _phi4() -> Plan:
    d = gallery.get("phi4").ndim
    every = np.arange(d)
    return Plan(np.zeros(d), np.full(d, 0.6), 12, 1024, 2, 60, partial(pooled, groups=[every], odd=every))


PLANS: dict[str, Callable[[], Plan]] = {"phi4": _phi4, "galaxies": _galaxies, "neural_network": _neural_network}


def mover(log_density: Callable[[Any], Any], plan: Plan) -> Callable[..., Any]:
    """Compile a Hamiltonian transition of a population at inverse temperature ``beta``."""
    start, scale = jnp.asarray(plan.mean), jnp.asarray(plan.sd)

    def tempered(x: Any, beta: Any) -> tuple[Any, Any]:
        base = -0.5 * (((x - start) / scale) ** 2).sum()
        rise = log_density(x) - base
        return base + beta * rise, rise

    both = jax.vmap(jax.value_and_grad(tempered, has_aux=True), (0, None))

    @jax.jit
    def move(key: Any, x: Any, beta: Any, step: Any, mass_sd: Any) -> tuple[Any, Any, Any]:
        of_velocity, of_step, of_accept = jax.random.split(key, 3)
        v = jax.random.normal(of_velocity, x.shape)
        # A random step size for each draw avoids closed orbits.
        h = step * jax.random.uniform(of_step, (len(x), 1), minval=0.5, maxval=1.5)
        (lp, rise), gradient = both(x, beta)

        def leap(carry: tuple[Any, ...], _: Any) -> tuple[tuple[Any, ...], None]:
            q, p, force, *_ = carry
            p = p + 0.5 * h * mass_sd * force
            q = q + h * mass_sd * p
            (value, aux), force = both(q, beta)
            return (q, p + 0.5 * h * mass_sd * force, force, value, aux), None

        (q, p, _, value, aux), _ = jax.lax.scan(leap, (x, v, gradient, lp, rise), length=8)
        log_ratio = value - lp - 0.5 * ((p**2).sum(axis=1) - (v**2).sum(axis=1))
        ratio = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0.0))
        taken = jax.random.uniform(of_accept, ratio.shape) < ratio
        return jnp.where(taken[:, None], q, x), jnp.where(taken, aux, rise), ratio.mean()

    return move


def next_beta(rise: np.ndarray, beta: float, share: float = 0.9) -> float:
    """Largest inverse temperature that leaves this share of the effective size, by bisection."""

    def kept(new: float) -> float:
        weight = np.exp((new - beta) * (rise - rise.max()))
        return weight.sum() ** 2 / (weight**2).sum() / len(weight)

    if kept(1.0) >= share:
        return 1.0
    low, high = beta, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) >= share else (low, middle)
    return low


def resampled(rise: np.ndarray, change: float, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of systematic resampling."""
    weight = np.exp(change * (rise - rise.max()))
    points = (rng.random() + np.arange(len(rise))) / len(rise)
    return np.minimum(np.searchsorted(np.cumsum(weight) / weight.sum(), points), len(rise) - 1)


def anneal(move: Callable[..., Any], plan: Plan, seed: int) -> np.ndarray:
    """Anneal one population; return its raw moments 1, 2 and 4, averaged over the last moves."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    x = plan.mean + plan.sd * rng.normal(size=(plan.size, len(plan.mean)))
    beta, step, rise = 0.0, 0.2, None
    found: list[np.ndarray] = []
    while len(found) < plan.last_moves:
        if rise is not None and beta < 1.0:
            new = next_beta(rise, beta)
            x = x[resampled(rise, new - beta, rng)]
            beta = new
        mass_sd = x.std(axis=0)
        for _ in range(plan.moves):
            key, here = jax.random.split(key)
            x, rise, accepted = (np.asarray(a) for a in move(here, x, beta, step, mass_sd))
            step *= np.exp(0.5 * (float(accepted) - 0.8))  # towards an acceptance rate of 80 %
        if beta == 1.0:
            found.append(np.stack([(x**k).mean(axis=0) for k in (1, 2, 4)]))
    return np.mean(found, axis=0)


def make(name: str) -> dict[str, Any]:
    """Return the entry of one target in the file of references."""
    began, plan, target = time.perf_counter(), PLANS[name](), gallery.get(name)
    if target.log_density_of is None:
        raise ValueError(f"name={name!r}: populations are moved in JAX, and the target has no log density there")
    with jax.enable_x64(True):
        move = mover(target.log_density_of, plan)
        runs = np.stack([plan.symmetrise(anneal(move, plan, 20261121 + i)) for i in range(plan.populations)])
    first, second, fourth = runs.mean(axis=0)
    error = runs.std(axis=0, ddof=1) / np.sqrt(plan.populations)
    variance = fourth - second**2
    worst = {"mean": error[0] / np.sqrt(second - first**2), "square": error[1] / np.sqrt(variance)}
    print(
        f"{name}: {time.perf_counter() - began:.0f} s; errors of E[x] and E[x^2] up to "
        f"{worst['mean'].max():.4f} and {worst['square'].max():.4f} sd"
    )
    fields = {"mean": first, "second_moment": second, "square_variance": variance, "error": error[0]}
    return {
        "source": f"{plan.populations} annealed populations of {plan.size} draws, pooled over the symmetries of the "
        f"posterior; standard errors of E[x] and E[x^2] are at most {worst['mean'].max():.4f} and "
        f"{worst['square'].max():.4f} standard deviations of x and of x^2.",
        **{field: [float(f"{v:.8g}") for v in value] for field, value in fields.items()},
        "second_moment_error": [float(f"{v:.8g}") for v in error[1]],
    }


def main(names: list[str]) -> int:
    """Compute the named references, or all, and write them to the file, which keeps the others."""
    wrong = [name for name in names if name not in PLANS]
    if wrong:
        print(f"there is nothing to make for {', '.join(wrong)}; there are: {', '.join(PLANS)}", file=sys.stderr)
        return 2
    path = DATA / "references.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names or PLANS:
        stored[name] = make(name)
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
