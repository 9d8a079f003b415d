"""Transitions per recorded draw, from the autocorrelation of the slowest coordinate."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.warmup.calibration import CALIBRATION

__all__ = ["steps_for_autocorrelation"]


def steps_for_autocorrelation(position: np.ndarray) -> int:
    """Smallest number of transitions between draws that brings every lag-one autocorrelation below one half.

    Parameters
    ----------
    position : (chain, n, d)
        Successive states of one or several chains.

    Returns
    -------
    int
        At least 1, at most 64 (``CALIBRATION.most_steps_per_draw``) and a quarter of ``n``.
    """
    n = position.shape[1]
    if n == 0:
        return 1
    centred = position - position.mean(axis=(0, 1))
    variance = (centred**2).mean(axis=(0, 1))
    moving = variance > 0.0
    centred, variance = centred[..., moving], variance[moving]
    largest = max(1, min(CALIBRATION.most_steps_per_draw, n // 4))
    for lag in range(1, largest):
        correlation = (centred[:, lag:] * centred[:, :-lag]).mean(axis=(0, 1)) / variance
        if correlation.max(initial=-1.0) < CALIBRATION.autocorrelation:
            # Of a walk that does not come back, the draws' own mean follows it: a fall so late tells nothing.
            return lag if lag <= max(1, n // 8) else largest
    return largest
