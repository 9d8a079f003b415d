"""Which draws of a warm-up are past the way down from the start, and which chains are stuck on it."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.warmup.calibration import CALIBRATION

__all__ = ["replacements", "settled"]


def settled(potential: np.ndarray, d: int) -> np.ndarray:
    """Which of the draws are out of the start-up transient, as a mask of the shape ``(chain, n)`` of the potentials.

    Draws whose potential exceeds the lowest of the chains' medians over the newest quarter by more than
    ``d/2 + 6 sqrt(d/2) + 5`` (six standard deviations and more of a Gaussian's) carry gradients that would spoil the
    scale.  A potential that is not finite counts as too high.
    """
    n = potential.shape[1]
    newest = potential[:, -max(1, n // 4) :]
    lowest = np.median(np.where(np.isfinite(newest), newest, np.inf), axis=1).min()
    keep = potential <= lowest + d / 2 + 6 * np.sqrt(d / 2) + 5
    return keep if keep.sum() >= 2 else np.ones(potential.shape, dtype=bool)


def replacements(usable: np.ndarray, unstable: np.ndarray) -> np.ndarray:
    """For each chain the number of the chain to go on from: its own, or a healthy one's where it is stuck.

    Parameters
    ----------
    usable, unstable : (chain, n)
        Over the newest block: draws past the transient, and rejected transitions.

    Returns
    -------
    (chain,) int
        A chain is stuck where no draw of the block's last quarter is past the transient, or where more than 30 % of
        its transitions were rejected.
    """
    chains, n = usable.shape
    newest = usable[:, -max(1, n // 4) :]
    healthy = newest.any(axis=1) & ((unstable > 0).mean(axis=1) <= CALIBRATION.stuck)
    source = np.arange(chains)
    if healthy.any():
        among = np.flatnonzero(healthy)
        stuck = np.flatnonzero(~healthy)
        source[stuck] = among[np.arange(len(stuck)) % len(among)]
    return source
