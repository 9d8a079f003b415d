"""The index of the tails of parameters: whether draws can say what their standard deviation and their mean are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pmm_mcmc.diagnostics.statement import Reason, reason_of_largest

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["heavy_tails", "tail_index", "unknown_sds"]

# Index above which a standard deviation is hardly known.  Of 300 sets of 4,000 draws of Student's t of 2.1 and 2.5
# degrees and of exp(1.5 z) and exp(2 z) it is off by more than 20 %, and not said to be, in 2, 1, 9 and 2 %, for 44, 3,
# 17 and 13 % from .5 on, where there is no variance.  It is said of 8 % of t of 4 degrees, and of no gamma.
_HEAVY = 0.35
# Index above which there is no mean, of the whole tail and of the quarter of it that is furthest out: of wide draws
# among narrow ones, as of a component that is empty at times, half as many are called so as by the whole tail alone.
_NO_MEAN = 1.0
# Draws of a tail, at least.
_FEWEST = 20


def tail_index(values: np.ndarray, share: float = 1.0) -> np.ndarray:
    r"""Return Pareto's :math:`k` of the heavier tail of each parameter, of draws ``(chain, draw, n)``.

    It is that of a generalised Pareto distribution, fitted by Zhang and Stephens (2009) to the :math:`3\sqrt{S}` draws
    furthest out, or to a ``share`` of these; NaN of too few draws.
    """
    flat = values.reshape(-1, values.shape[2])
    count = int(share * min(0.2 * len(flat), 3.0 * np.sqrt(len(flat))))
    if count < _FEWEST:
        return np.full(flat.shape[1], np.nan)
    with np.errstate(all="ignore"):
        low = np.sort(np.partition(flat, count, axis=0)[: count + 1], axis=0)
        high = np.sort(np.partition(-flat, count, axis=0)[: count + 1], axis=0)
        tails = [tail[-1] - tail[-2::-1] for tail in (low, high)]
        return np.array([max(_pareto_k(tail[:, i]) for tail in tails) for i in range(flat.shape[1])])


def _pareto_k(excess: np.ndarray) -> float:
    """Return the shape of excesses ``(m,)`` in ascending order; -inf where a quarter of them are 0."""
    m = len(excess)
    quarter = excess[int(m / 4.0 + 0.5) - 1]
    if not (quarter > 0.0 and np.isfinite(excess[-1])):
        return -np.inf
    grid = np.arange(1, 31 + int(np.sqrt(m))) - 0.5
    b = (1.0 - np.sqrt(len(grid) / grid)) / (3.0 * quarter) + 1.0 / excess[-1]
    k = np.log1p(-b[:, None] * excess).mean(axis=1)
    height = m * (np.log(-b / k) - k - 1.0)
    weights = np.exp(height - height.max())
    mean_b = float(b @ weights / weights.sum())
    # With a weak prior about one half, as of Pareto smoothed importance sampling.
    return float((m * np.log1p(-mean_b * excess).mean() + 5.0) / (m + 10.0))


def heavy_tails(run: Run) -> Reason | None:
    """Return a reason if a parameter may have no mean."""
    tails = run.table["tail"].copy()
    for label in tails.index[tails > _NO_MEAN]:
        tails[label] = np.fmin(tails[label], tail_index(run.parameters.draws_of(label)[..., None], 0.25)[0])
    text = "{label} may have no mean: the Pareto k of its tail is {value}, limit {limit}"
    remedy = "look at its median and quantiles, or give it a prior with lighter tails"
    return reason_of_largest("tails", text, remedy, tails, _NO_MEAN, digits=2)


def unknown_sds(run: Run) -> list[str]:
    """Return the parameters whose standard deviation draws can hardly tell, the heaviest tail first."""
    tails = run.table["tail"]
    return list(tails[tails > _HEAVY].sort_values(ascending=False, kind="stable").index)
