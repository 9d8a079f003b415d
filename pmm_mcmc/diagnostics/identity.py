r"""Stein's identity of the draws of a result, and where it fails beyond chance.

Under the posterior :math:`E[(x_i - c_i)\,\partial_i F] = 1` for each coordinate, where ``F`` is minus the log density.
The *excess* of the average over the draws is that average minus 1: positive for draws that are too wide, as by too
long a step.

Its standard error is that of 64 batches or, if larger, from autocorrelations: errors of 16 batches are low by half once
in 250 runs.
"""

from __future__ import annotations

import numpy as np
from scipy.special import fdtri

from pmm_mcmc.coordinates.affine import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.convergence import mcse_of_means
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.stein_identity import Identity, largest_t, stein_identity
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP


def identity_of(position: np.ndarray, gradient: np.ndarray) -> Identity:
    """Return Stein's identity of each coordinate of draws ``(chain, draw, d)``."""
    return stein_identity(position, gradient, THRESHOLDS.identity_pieces, mcse_of_means)


def whitened_identity(position: np.ndarray, gradient: np.ndarray) -> Identity | None:
    """Return Stein's identity of whitened coordinates; None for one coordinate, very many, few draws or constants.

    Of collinear coordinates the products vary by far more than 1, so that a failure hides in their noise; of whitened
    ones they do not.  The whitening is symmetric: whitened coordinate ``i`` is the one most like coordinate ``i``.
    """
    chains, draws, d = position.shape
    n = chains * draws
    if not (1 < d <= MOST_DENSE and n > 3 * d and np.isfinite(position).all() and np.isfinite(gradient).all()):
        return None
    if not (np.ptp(position, axis=(0, 1)) > 0.0).all():
        return None
    x = position.reshape(n, d)
    every = -(-n // THRESHOLDS.fitted_draws)
    centre, root = affine_scale(x[::every], gradient.reshape(n, d)[::every], dense=True)
    y = (x - centre) @ np.linalg.inv(root).T
    if not np.isfinite(y).all():
        return None
    return identity_of(y.reshape(position.shape), gradient @ root)


def fails(identity: Identity, degrees: int, times: float = 1.0) -> np.ndarray:
    """Return in which coordinates the identity fails: the excess is large, and ``times`` the limit of chance or more.

    ``degrees`` are the degrees of freedom of its standard errors.
    """
    chance = times * max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    return (np.abs(identity.excess) > THRESHOLDS.identity_excess) & (np.abs(identity.z) > chance)


def fails_on_average(identity: Identity, degrees: int) -> bool:
    """Return whether the identity fails on average over all coordinates."""
    # By chance the mean square of the z-scores is about 1; collinear coordinates have the same z-score.
    chance = fdtri(identity.independent, degrees, 1.0 - WARMUP.chance)
    with np.errstate(over="ignore"):  # a coordinate that does not move
        beyond_chance = float(np.mean(identity.z**2)) > max(WARMUP.identity_z, chance)
    return bool(identity.mean_square > THRESHOLDS.identity_mean_square and beyond_chance)


def fails_as_at_an_edge(identity: Identity, degrees: int, moving: np.ndarray, widest: np.ndarray) -> bool:
    """Return whether the identity fails as where the density ends or jumps, in a coordinate that is ``moving``.

    There it fails of the posterior itself, in either direction and by far.  ``widest`` ``(d,)`` is the excess that the
    step explains.
    """
    excess = identity.excess
    chance = max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(excess / identity.z)
        unexplained = excess > np.maximum(widest + chance * error, THRESHOLDS.widest)
    edges = fails(identity, degrees, THRESHOLDS.edge_z) & ((excess < 0.0) | unexplained)
    return bool((edges & moving).any())
