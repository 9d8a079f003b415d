r"""Diagonal scale and centre of the whitened coordinates, from pairs of position and gradient.

For a diagonal map ``x = m + s y`` the divergence from the Gaussian N(m, s^2) to the posterior that uses gradients
only (Fisher divergence) is smallest at

.. math:: s_i^2 = \sqrt{Var x_i / Var g_i}, \qquad m_i = \bar x_i + s_i^2 \bar g_i,

with ``g`` the gradient of the log density.  On an uncorrelated Gaussian this is exact from two distinct points,
wherever they lie.
"""

from __future__ import annotations

import numpy as np

__all__ = ["diagonal_scale", "settled"]


def diagonal_scale(position: np.ndarray, gradient: np.ndarray, previous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale of shape ``(d,)`` from ``(n, d)`` positions and gradients.

    A coordinate in which position or gradient does not vary, or whose estimate is not a finite number, keeps its
    previous scale and is centred at its mean.
    """
    with np.errstate(all="ignore"):
        ratio = position.var(axis=0) / gradient.var(axis=0)
        scale = ratio**0.25
    usable = np.isfinite(scale) & (scale > 0.0)
    scale = np.where(usable, scale, previous)
    shift = np.where(usable, scale**2 * gradient.mean(axis=0), 0.0)
    # Off the posterior the gradient's mean says little: keep the centre within what has been seen.
    centre = np.clip(position.mean(axis=0) + shift, position.min(axis=0), position.max(axis=0))
    return centre, scale


def settled(potential: np.ndarray, d: int) -> np.ndarray:
    """Which of the draws, in order of time, are out of the start-up transient, as a mask of shape ``(n,)``.

    Draws whose potential exceeds the median of the newest quarter by more than ``d/2 + 6 sqrt(d/2) + 5`` (six
    standard deviations and more of a Gaussian's) carry gradients that would spoil the scale.
    """
    newest = potential[-max(1, len(potential) // 4) :]
    keep = potential <= np.median(newest) + d / 2 + 6 * np.sqrt(d / 2) + 5
    return keep if keep.sum() >= 2 else np.ones(len(potential), dtype=bool)
