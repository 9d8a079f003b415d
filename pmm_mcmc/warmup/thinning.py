"""How many transitions a draw takes, from the autocorrelation of successive states."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["steps_for_autocorrelation"]

# Numbers of the positions whose autocorrelations are computed at a time: eight megabytes.
_TOGETHER = 2**20


def steps_for_autocorrelation(position: np.ndarray) -> int:
    """Return the fewest transitions for a draw with which coordinates and their squares correlate by less than half.

    A coordinate that overshoots is far from its last value, and its square near: after a long step with little friction
    the mean is known at once, and the standard deviation is not.  From successive states ``(chain, n, d)``: at least 1,
    at most 64 (``THRESHOLDS.most_steps_per_draw``) and a quarter of ``n``.
    """
    n = position.shape[1]
    if n == 0:
        return 1
    largest = max(1, min(THRESHOLDS.most_steps_per_draw, n // 4))
    # Some coordinates at a time: their squares and differences take several times the memory of the positions.
    width = max(1, _TOGETHER // (position.shape[0] * n))
    column_blocks = [position[..., i : i + width] for i in range(0, position.shape[2], width)]
    lag = 1
    agreed = 0
    turn = 0
    while agreed < len(column_blocks) and lag < largest:
        next_lag = _first_lag(column_blocks[turn % len(column_blocks)], lag, largest)
        agreed = agreed + 1 if next_lag == lag else 1
        turn += 1
        lag = next_lag
    # The mean of a chain that has not mixed moves with it, which alone makes the autocorrelation fall late.
    return lag if lag <= max(1, n // 8) else largest


def _first_lag(position: np.ndarray, lag: int, largest: int) -> int:
    """Return the first lag, from ``lag`` on, at which all coordinates and squares correlate little."""
    centred = position - position.mean(axis=(0, 1))
    square = centred**2
    centred = np.concatenate([centred, square - square.mean(axis=(0, 1))], axis=2)
    variance = (centred**2).mean(axis=(0, 1))
    moving = variance > 0.0
    centred = centred[..., moving]
    variance = variance[moving]
    for later in range(lag, largest):
        correlation = (centred[:, later:] * centred[:, :-later]).mean(axis=(0, 1)) / variance
        if correlation.max(initial=-1.0) < THRESHOLDS.autocorrelation:
            return later
    return largest
