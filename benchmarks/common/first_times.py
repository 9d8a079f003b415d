"""First times that the error of second moments is below a bar, in gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LIMIT = 0.01
STATISTICS = {"b2_max": np.max, "b2_avg": np.mean}


def gradients_to(draws: np.ndarray, gradients: np.ndarray, reference: Any, statistic: str) -> float:
    r"""Gradients a chain, after warm-up, until the error of the second moments is below the limit; ``inf`` if never.

    .. math:: b^2_i(t) = \frac{\bigl(\frac1t \sum_{s \le t} x_{s,i}^2 - E[x_i^2]\bigr)^2}{\mathrm{Var}[x_i^2]}

    with the maximum (``"b2_max"``) or the mean (``"b2_avg"``) over coordinates.  A chain's error is a step function of
    the gradients that it has spent, infinite before its first draw; the first time is that of the median over chains,
    on one gradient axis, up to where the first chain ends.
    """
    if not np.all(np.isfinite(draws)):
        raise ValueError("draws: some are not finite; no error can be computed from them")
    count = np.arange(1, draws.shape[1] + 1)[:, None]
    off = ((np.cumsum(chain**2, axis=0) / count - reference.second) ** 2 for chain in draws)
    errors = np.stack([STATISTICS[statistic](each / reference.variance_of_square, axis=1) for each in off])
    spent = np.cumsum(gradients, axis=1)
    axis = np.unique(spent)
    axis = axis[axis <= spent[:, -1].min()]
    # Column 0 stands for the time before the first draw.
    padded = np.hstack([np.full((len(errors), 1), math.inf), errors])
    on_axis = [e[np.searchsorted(s, axis, side="right")] for e, s in zip(padded, spent, strict=True)]
    below = np.median(on_axis, axis=0) < LIMIT
    return float(axis[np.argmax(below)]) if below.any() else math.inf
