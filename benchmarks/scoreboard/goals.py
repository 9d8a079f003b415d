"""Gradients until second moments are known, with the goals that were set for them: the last table of the scoreboard.

Runs are ``pmm.sample(PoissonULMC(steps_per_draw=1))``, so that every transition is a draw, lengthened until the error
b2 of the worst coordinate is below .01 (:func:`versus.first_times.gradients_to`), warm-up and scouts included.
"""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
from scoreboard.truth import Truth
from tables import RESULTS, read
from versus.first_times import gradients_to

import pmm_mcmc as pmm

__all__ = ["EVERY_STEP", "GOALS", "first_times", "goals_table", "known_squares", "needed"]

EVERY_STEP = "every step"
# Of one chain; None: at most what the best peer needs that tunes itself.
GOALS = {
    "published/german25": 1000,
    "acceptance/mixture20": 1200,
    "acceptance/eight_schools": 1500,
    "acceptance/rotated100": 600,
    "acceptance/gaussian100": 500,
    "acceptance/phi4": 45_000,
    "published/german_sparse": 20_000,
    "acceptance/rosenbrock36": None,
    "acceptance/banana": None,
}
CHAINS = 4
# Draws of a chain: so many at least, from which independent ones are taken too, and at most.
FIRST, LONGEST = 2000, 128_000
SHUFFLES = 25


def known_squares(truth: Truth) -> Any:
    """Return the mean and the variance of squares, as b2 needs them; None where nobody kept them."""
    if truth.second is None or truth.variance_of_square is None:
        return None
    return SimpleNamespace(second=truth.second, variance_of_square=truth.variance_of_square)


def first_times(model: pm.Model, truth: Truth, seed: int) -> dict[str, Any]:
    """Return the row of a run that is lengthened until :func:`needed` finds what one chain needs."""
    began, known, tree = time.process_time(), known_squares(truth), None
    while True:
        with model:
            if tree is None:
                step = pmm.PoissonULMC(steps_per_draw=1)
                tree = pmm.sample(step, FIRST, chains=CHAINS, random_seed=seed, progressbar=False)
            else:
                tree = pmm.sample(3 * tree["posterior"].sizes["draw"], more=tree, progressbar=False)
        stats, draws = tree["sample_stats"].dataset, truth.draws(model, tree)
        each = stats["n_grad"].values
        if math.isfinite(gradients_to(draws, each, known, "b2_max").first) or draws.shape[1] >= LONGEST:
            break
    before = float(np.median(stats["n_grad_total"].values[:, -1] - each.sum(axis=1)))
    found = needed(draws, each, known, seed)
    total = {name: value + before * (name != "independent") for name, value in found.items()}
    return {
        "d": draws.shape[2],
        **{name: value if math.isfinite(value) else None for name, value in total.items()},
        "warm_up": before,
        "gradients": float(before + each.sum(axis=1).max()),
        "cpu": time.process_time() - began,
    }


def needed(draws: np.ndarray, each: np.ndarray, known: Any, seed: int) -> dict[str, float]:
    """Return gradients of a chain after warm-up until b2 of the worst coordinate is below .01, infinite if it never is.

    ``b2_max`` is the median over chains of each by itself, ``together`` of the average over all, and ``independent``
    the number of independent draws that one chain would need: draws of the run in random order.
    """
    # The square of this is the mean of the squares.
    average = np.sqrt((draws**2).mean(axis=0))[None]
    rng, flat, orders = np.random.default_rng(seed), draws.reshape(-1, draws.shape[2]), []
    for _ in range(SHUFFLES):
        shuffled = rng.permutation(flat)[: 4 * FIRST].reshape(CHAINS, -1, flat.shape[1])
        orders.append(gradients_to(shuffled, np.ones(shuffled.shape[:2]), known, "b2_max").first)
    return {
        "b2_max": gradients_to(draws, each, known, "b2_max").first,
        "together": gradients_to(average, each.mean(axis=0)[None], known, "b2_max").first,
        "independent": float(np.median(orders)),
    }


HEADER = """\
Gradients until b2 < .01, of every transition a draw (--samplers "every step"), warm-up and scouts included

one chain    of the worst coordinate, median over four chains; of seeds the median and the range
goal         what was asked of it; *: what the best peer needs that tunes itself, by the same measure; + is met
together     of the average over all four chains, gradients of each
independent  draws of one chain that would do if they were independent, which cost no warm-up
peer         the best of NUTS (PyMC, nutpie, NumPyro), MCLMC and WALNUTS, warm-up included (versus, or the rows below)

{:22s}{:>22s} {:>9s} {:>8s} {:>9s} {:>12s}  {}
"""
TUNE_THEMSELVES = ("PyMC NUTS", "nutpie NUTS", "NumPyro NUTS", "MCLMC", "MCLMC, short tuning", "WALNUTS")


def goals_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of these gradients, beside what other samplers need."""
    mine = [row for row in rows if row["sampler"] == EVERY_STEP and "error" not in row]
    if not mine:
        return []
    heads = ("", "one chain", "goal", "warm-up", "together", "independent", "peer")
    lines = [HEADER.format(*heads).rstrip("\n")]
    for target, goal in GOALS.items():
        these = [row for row in mine if row["target"] == target]
        if not these:
            continue
        best, peer = min(_of_peers(target, rows), default=(math.inf, "none is known"))
        limit, star = (best, "*") if goal is None else (goal, " ")
        alone = sorted(_number(row["b2_max"]) for row in these)
        middle = alone[(len(alone) - 1) // 2]
        shown = f"{middle:.0f} [{alone[0]:.0f}, {alone[-1]:.0f}]"
        of_seeds = [_median([row[name] for row in these]) for name in ("warm_up", "together", "independent")]
        theirs = f"{best:.0f} {peer}" if math.isfinite(best) else peer
        asked = f"{limit:.0f}{star}{'+' if middle <= limit else ' '}" if math.isfinite(limit) else "-"
        lines.append(
            f"  {target.partition('/')[2]:20s}{shown:>22s} {asked:>9s} "
            f"{of_seeds[0]:8.0f} {of_seeds[1]:9.0f} {of_seeds[2]:12.0f}  {theirs}"
        )
    return [*lines, ""]


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _median(values: list[float | None]) -> float:
    return float(np.median([_number(value) for value in values]))


def _of_peers(target: str, rows: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """Return what each other sampler needs, with its name."""
    found: dict[str, list[float]] = {}
    name = target.partition("/")[2]
    for row in read(RESULTS / "versus.json")[0]:
        if row["target"] == name and row["sampler"] in TUNE_THEMSELVES and "error" not in row:
            found.setdefault(row["sampler"], []).append(row["warm_up"] + _number(row["b2_max"]["first"]))
    for row in rows:
        if row["target"] == target and row["sampler"] in TUNE_THEMSELVES and row.get("b2_max") is not None:
            found.setdefault(row["sampler"], []).append(row["b2_max"])
    return [(sorted(of)[(len(of) - 1) // 2], sampler) for sampler, of in found.items()]
