"""Locations that what scales a sink does not move: the mean of an effect does not depend on the scale of its group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.pairs import RISE
from pmm_mcmc.noncentring.siblings import EXACT, HARMLESS, with_anchors

__all__ = ["steady"]


def steady(block: Sinks, fitted: tuple[np.ndarray, np.ndarray], held: tuple[np.ndarray, np.ndarray]) -> Sinks:
    r"""Take from the locations the effect of what scales the sink, where draws do not speak against it.

    Of :math:`x_i \sim N(\mu_i, e^{2 s})` the mean does not depend on :math:`s`.  Where the draws are it may seem to,
    a little: data hold the effect less, the smaller the scale.  Below them the effect would go on while :math:`e^s`
    falls, and lead ever more widths past the neck, which chains do not enter then, without a sign of bias.

    Parameters
    ----------
    block
        Fitted sinks.
    fitted, held
        Draws and gradients ``(d, n)`` to fit anew what is left, and to compare the losses.

    Returns
    -------
    Sinks
        Those whose loss it does not raise, as they are or with a ceiling, have none; the others are as they were.
    """
    rows = np.flatnonzero(_own(block).any(axis=1))
    for saturating in (False, True):
        if not rows.size:
            break
        wider = with_anchors(block, rows) if saturating else block
        trial = _without(wider.take(rows), saturating, fitted)
        good = trial.losses(*held) < np.maximum(HARMLESS * block.take(rows).losses(*held), EXACT)
        if good.any():
            block = (with_anchors(block, rows[good]) if saturating else block).put(rows[good], trial.take(good))
            own = _own(block)
            own[np.setdiff1d(np.arange(len(own)), rows[good])] = False
            block = replace(block, by_location=np.where(own, -1, block.by_location))
        rows = rows[~good]
        rows = rows[~block.saturating[rows]]
    return block.packed()


def _own(block: Sinks) -> np.ndarray:
    """Which sources of the locations ``(m, l)`` scale the same sink."""
    same = block.by_location[:, :, None] == block.by_scale[:, None]
    return (same & (block.by_location >= 0)[:, :, None]).any(axis=2)


def _without(block: Sinks, saturating: bool, columns: tuple[np.ndarray, np.ndarray]) -> Sinks:
    """Fit sinks without these effects, and with the slopes that they have."""
    k, width = block.by_scale.shape[1], block.by_location.shape[1]
    theta, fixed = block.theta.copy(), np.zeros(block.theta.shape, bool)
    fixed[:, 1 : 1 + k], fixed[:, 2 + k : 2 + k + width] = True, _own(block)
    theta[:, 2 + k : 2 + k + width][_own(block)] = 0.0
    trial = replace(block, theta=theta)
    if saturating:
        trial = trial.with_ceiling(np.where(trial.saturating, theta[:, -2], theta[:, 0] + RISE))
    return fit(trial, *columns, fixed=fixed)
