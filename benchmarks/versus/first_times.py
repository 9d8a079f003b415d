"""First times that the error of second moments is below a bar, in gradients: what the comparisons measure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.control_variates import Folds, corrected

__all__ = ["LIMIT", "STATISTICS", "Crossing", "Run", "corrected_crossing", "gradients_to", "lengthened"]

LIMIT = 0.01
STATISTICS = {"b2_max": np.max, "b2_avg": np.mean}
# How much longer each next run is, and the bytes of draws beyond which there is none.
GROWTH, MEMORY = 4, 2**29


@dataclass(frozen=True)
class Run:
    """Chains of one sampler and what they cost.

    ``draws`` (chain, draw, d) are unconstrained positions after warm-up, in the order of
    ``model.continuous_value_vars``; ``gradients_per_draw`` (chain, draw) were spent from one kept draw to the next,
    ``warmup_gradients`` (chain,) before the first; ``log_density_gradients`` are at the draws.
    """

    name: str
    draws: np.ndarray
    gradients_per_draw: np.ndarray
    warmup_gradients: np.ndarray
    log_density_gradients: np.ndarray | None = None
    note: str = ""


@dataclass(frozen=True)
class Crossing:
    """When an error fell below the limit, in gradients a chain after warm-up; ``inf`` where it never did.

    ``first`` and ``settled`` are the first time that the median over chains is below, and the time from which it stays
    there; ``spent`` the smallest total of a chain, and ``final`` the median error at its end.
    """

    first: float
    settled: float
    spent: float
    final: float


def _first(holds: np.ndarray, spent: np.ndarray) -> float:
    """Gradients spent when a condition holds for the first time, infinite if it never does."""
    return float(spent[np.argmax(holds)]) if holds.any() else math.inf


def gradients_to(draws: np.ndarray, gradients: np.ndarray, reference: Any, statistic: str) -> Crossing:
    r"""Gradients a chain, after warm-up, until the error of the second moments is below the limit.

    .. math:: b^2_i(t) = \frac{\bigl(\frac1t \sum_{s \le t} x_{s,i}^2 - E[x_i^2]\bigr)^2}{\mathrm{Var}[x_i^2]}

    with the maximum (``"b2_max"``) or the mean (``"b2_avg"``) over coordinates.  A chain's error is a step function of
    the gradients that it has spent, infinite before its first draw; the first time is that of the median over chains,
    on one gradient axis, up to where the first chain ends.
    """
    if not np.all(np.isfinite(draws)):
        raise ValueError("draws: some are not finite; no error can be computed from them")
    count, over = np.arange(1, draws.shape[1] + 1)[:, None], STATISTICS[statistic]
    off = ((np.cumsum(chain**2, axis=0) / count - reference.second) ** 2 for chain in draws)
    errors = np.stack([over(each / reference.variance_of_square, axis=1) for each in off])
    spent = np.cumsum(gradients, axis=1)
    end = spent[:, -1].min()
    axis = np.unique(spent)
    axis = axis[axis <= end]
    # Column 0 stands for the time before the first draw.
    padded = np.hstack([np.full((len(errors), 1), math.inf), errors])
    on_axis = [e[np.searchsorted(s, axis, side="right")] for e, s in zip(padded, spent, strict=True)]
    median = np.median(on_axis, axis=0)
    below = median < LIMIT
    stays = np.logical_and.accumulate(below[::-1])[::-1]
    return Crossing(_first(below, axis), _first(stays, axis), float(end), float(median[-1]))


def corrected_crossing(run: Run, known: Any, end: int = 2000) -> float:
    """Gradients until the median over chains of b2_max of Stein-corrected estimates is below, infinite if never.

    Each chain's coefficients are fitted on the other chains, over its first 5 draws and lengths growing by a quarter.
    """
    if run.log_density_gradients is None:
        return math.inf
    draws, d = run.draws.shape[1:]
    n = 5
    while n <= min(draws, end):
        x, g = run.draws[:, :n], run.log_density_gradients[:, :n]
        folds = Folds(x, g)
        first, variance = corrected(x, folds, np.arange(d))
        # E[x^2] = E[(x - m)^2] + 2 m E[x] - m^2
        value = variance.by_chain + first.value * (2.0 * first.by_chain - first.value)
        errors = ((value - known.second) ** 2 / known.variance_of_square).max(axis=1)
        if np.median(errors) < LIMIT:
            return float(np.median(run.gradients_per_draw[:, :n].sum(axis=1)))
        n = math.ceil(1.25 * n)
    return math.inf


def lengthened(sampler: Any, reference: Any, seconds: float) -> tuple[Run, dict[str, Crossing]]:
    """Run a sampler until its errors are settled in the first half, or as long as ``seconds`` of CPU time allow."""
    began, draws = time.process_time(), 0
    while True:
        more = (GROWTH - 1) * draws if draws else sampler.first
        draws += more
        before = time.process_time()
        sampler.lengthen(more)
        run = sampler.run()
        took = time.process_time() - before
        found = {name: gradients_to(run.draws, run.gradients_per_draw, reference, name) for name in STATISTICS}
        done = all(crossing.settled <= 0.5 * crossing.spent for crossing in found.values())
        spent = time.process_time() - began
        if done or spent + GROWTH * took > seconds or GROWTH * run.draws.nbytes > MEMORY:
            return run, found
