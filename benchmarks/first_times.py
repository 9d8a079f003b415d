"""First times that the error of second moments is below a bar, in gradients: what the comparisons measure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LIMIT", "STATISTICS", "Crossing", "Run", "curves", "gradients_to", "lengthened"]

LIMIT = 0.01
STATISTICS = {"b2_max": np.max, "b2_avg": np.mean}
# How much longer each next run is, and the bytes of draws beyond which there is none.
GROWTH, MEMORY = 4, 2**29


@dataclass(frozen=True)
class Run:
    """Chains of one sampler and what they cost.

    Attributes
    ----------
    name : str
        The sampler.
    draws : array, shape (chain, draw, d)
        Unconstrained positions after warm-up, raveled in the order of ``model.continuous_value_vars``.
    gradients_per_draw : array, shape (chain, draw)
        Gradients spent from one kept draw to the next.
    warmup_gradients : array, shape (chain,)
        Gradients spent before the first of them.
    log_density_gradients : array, shape (chain, draw, d), optional
        Gradient of the log density at the draws.
    note : str
        What a reader of the table should know.
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

    Attributes
    ----------
    first, settled : float
        First time that the median over chains is below the limit, and the time from which it stays there.
    low, high : float
        10 % and 90 % quantile over chains of the chain's own first time.
    spent : float
        Length of the common gradient axis: the smallest total over chains.
    final : float
        Median over chains of the error at its end.
    """

    first: float
    settled: float
    low: float
    high: float
    spent: float
    final: float

    def __str__(self) -> str:
        return f"{self.first:.0f}" if math.isfinite(self.first) else f">{self.spent:.0f}"


def curves(draws: np.ndarray, reference: Any, statistic: str) -> np.ndarray:
    r"""Error of each chain's running estimate of the second moments, after each draw, shape (chain, draw).

    .. math:: b^2_i(t) = \frac{\bigl(\frac1t \sum_{s \le t} x_{s,i}^2 - E[x_i^2]\bigr)^2}{\mathrm{Var}[x_i^2]}

    with the maximum (``"b2_max"``) or the mean (``"b2_avg"``) over coordinates i.

    Raises
    ------
    ValueError
        If the statistic is another one, or the shapes do not agree.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic={statistic!r} is unknown: take one of {', '.join(STATISTICS)}")
    if draws.ndim != 3 or draws.shape[2:] != np.shape(reference.second):
        raise ValueError(
            f"draws of shape {draws.shape} do not fit a reference of shape {np.shape(reference.second)}: "
            "pass (chain, draw, d)"
        )
    count = np.arange(1, draws.shape[1] + 1)[:, None]
    return np.stack(
        [
            STATISTICS[statistic](
                (np.cumsum(chain**2, axis=0) / count - reference.second) ** 2 / reference.variance_of_square, axis=1
            )
            for chain in draws
        ]
    )


def _first(holds: np.ndarray, spent: np.ndarray) -> float:
    """Gradients spent when a condition holds for the first time, infinite if it never does."""
    return float(spent[np.argmax(holds)]) if holds.any() else math.inf


def gradients_to(
    draws: np.ndarray, gradients: np.ndarray, reference: Any, statistic: str, limit: float = LIMIT
) -> Crossing:
    """Gradients a chain, after warm-up, until the error of the second moments is below a limit.

    Every chain's error is a step function of the gradients that the chain has spent; before its first draw it is
    infinite. The curve of the table is the median over chains of these functions on one gradient axis, up to where
    the first chain ends, and the figure is the first time that it is below ``limit``. A curve may rise again
    (`Crossing.settled`), and a chain's own time may be far from the median's (`Crossing.low`, `Crossing.high`).

    Parameters
    ----------
    draws : array, shape (chain, draw, d)
        Unconstrained positions, see `Run`.
    gradients : array, shape (chain, draw)
        Gradients spent for each draw.
    reference
        ``second``, the expectation of x^2, and ``variance_of_square``, its variance, of shape (d,).
    statistic : {"b2_max", "b2_avg"}
        Maximum or mean over coordinates.
    limit
        The bar.

    Returns
    -------
    Crossing

    Raises
    ------
    ValueError
        If the statistic is another one, the shapes do not agree, or a draw is not finite.
    """
    if np.shape(gradients) != draws.shape[:2]:
        raise ValueError(f"gradients of shape {np.shape(gradients)} do not fit draws of shape {draws.shape}")
    if not np.all(np.isfinite(draws)):
        raise ValueError("draws: some are not finite; no error can be computed from them")
    errors = curves(draws, reference, statistic)
    spent = np.cumsum(gradients, axis=1)
    own = [_first(e < limit, s) for e, s in zip(errors, spent, strict=True)]
    low, high = np.quantile(own, [0.1, 0.9], method="inverted_cdf")
    end = spent[:, -1].min()
    axis = np.unique(spent)
    axis = axis[axis <= end]
    # Column 0 stands for the time before the first draw.
    padded = np.hstack([np.full((len(errors), 1), math.inf), errors])
    on_axis = [e[np.searchsorted(s, axis, side="right")] for e, s in zip(padded, spent, strict=True)]
    median = np.median(on_axis, axis=0)
    below = median < limit
    stays = np.logical_and.accumulate(below[::-1])[::-1]
    return Crossing(_first(below, axis), _first(stays, axis), float(low), float(high), float(end), float(median[-1]))


def lengthened(sampler: Any, reference: Any, seconds: float) -> tuple[Run, dict[str, Crossing]]:
    """Run a sampler until its errors are settled in the first half, or as long as the CPU time allows.

    Parameters
    ----------
    sampler
        With ``first``, the draws to begin with, ``lengthen(draws)`` and ``run()``.
    reference
        As for `gradients_to`.
    seconds
        Of CPU, beyond which no longer run is begun.

    Returns
    -------
    Run, dict
        The whole run, and its crossings by statistic.
    """
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
