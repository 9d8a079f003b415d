"""Stein's identity of each coordinate: it fails where the steps are too long, and so shows their bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pmm_mcmc.warmup.standard_errors import (
    batch_means,
    between_pieces,
    degrees_of_freedom,
    largest_t,
    worth_independent,
)
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["Identity", "stein_identity", "too_wide"]

# Bytes of the coordinates whose products are in memory at a time.
_BYTES = 2**24


class Identity(NamedTuple):
    """Stein's identity of ``d`` coordinates, as their draws fulfil it."""

    excess: np.ndarray  # (d,): mean of the product, minus 1
    z: np.ndarray  # (d,): the excess in standard errors
    # Half the mean over coordinates of the squared excess; unbiased, as the mean of products of two chains' excesses.
    mean_square: float
    independent: float  # how many independent coordinates they are worth: see worth_independent


def stein_identity(
    position: np.ndarray,
    gradient: np.ndarray,
    pieces: int = THRESHOLDS.pieces,
    error: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Identity:
    r"""Return how well draws fulfil :math:`E[-(x_i - c_i)\,g_i] = 1` in each unconstrained coordinate.

    With ``g`` the gradient of the log density the identity holds under the posterior for any constant ``c``.  Draws of
    too long a step give more than 1.  Positions ``x`` and gradients are ``(chain, draw, d)``.  Standard errors are from
    ``pieces`` batches of all chains together or, if larger, those ``(d,)`` that ``error`` returns for the products
    ``(chain, draw, d)``.
    """
    chains, _, d = position.shape
    size = max(1, _BYTES // max(1, 8 * chains * position.shape[1]))
    blocks = []
    for i in range(0, max(d, 1), size):
        with np.errstate(over="ignore", invalid="ignore"):
            w = _products(position[..., i : i + size], gradient[..., i : i + size])
            least_error = np.zeros(w.shape[2]) if error is None else error(w)
            blocks.append((w.mean(axis=(0, 1)), batch_means(w, pieces), w.mean(axis=1), least_error))
    excess, batches, by_chain, least_error = (np.concatenate(block, axis=-1) for block in zip(*blocks, strict=True))
    if not np.isfinite(excess).all():  # the density overflows where chains are
        unknown = np.full(d, np.nan)
        return Identity(unknown, unknown, np.nan, float(d))
    z = excess / np.maximum(np.fmax(between_pieces(batches, chains), least_error), 1e-300)
    independent = worth_independent(batches)
    if chains == 1:
        return Identity(excess, z, np.nan, independent)
    cross = by_chain.sum(axis=0) ** 2 - (by_chain**2).sum(axis=0)
    return Identity(excess, z, float(0.5 * np.mean(cross) / (chains * (chains - 1))), independent)


def _products(position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the products minus 1: ``(chain, draw, d)``."""
    # Subtracting the gradient's mean changes nothing on average, and makes it less noisy far from the posterior's mean.
    return -(position - position.mean(axis=(0, 1))) * (gradient - gradient.mean(axis=(0, 1))) - 1.0


def too_wide(position: np.ndarray, gradient: np.ndarray, target_bias: float) -> bool:
    """Return whether draws ``(chain, draw, d)`` show, beyond chance, a bias well above ``target_bias``.

    This is a reason for a shorter step.  Draws that are too narrow are none, since too long a step widens them.
    """
    excess, z, mean_square, independent = stein_identity(position, gradient)
    sure = max(THRESHOLDS.identity_z, largest_t(len(z), degrees_of_freedom(*position.shape[:2])))
    one = bool(((excess > 2.0 * target_bias) & (z > sure)).any())
    limit = THRESHOLDS.identity_mean_square * (target_bias / 0.05) ** 2
    # The median of few coordinates is hardly surer than each: at a limit of 2, 3 of 24 warm-ups of a Gaussian shrank.
    throughout = mean_square > limit and float(np.median(z)) > max(2.0, sure / np.sqrt(max(1.0, independent)))
    return one or throughout
