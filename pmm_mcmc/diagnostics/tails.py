"""The index of the tails of parameters: whether draws can say what their standard deviation and their mean are."""

from __future__ import annotations

import numpy as np

__all__ = ["tail_index"]

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
