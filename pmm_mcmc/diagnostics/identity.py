"""The Stein identity of draws, and where it fails beyond chance.

Under the posterior ``E[(x_i - c_i) dF/dx_i] = 1``, where ``F`` is minus the log density: the excess over 1 is judged in
standard errors.  Draws that are too wide, as by too long a step, make it positive.

Standard errors are of 64 batches or, if larger, from autocorrelations: of 16 batches they are low by half once in 250
runs.  Regressions on nearly the same data (posteriordb's ``nes``) share their random numbers and so one such event: at
one seed seven of eight were refused with z of 4.2 to 4.9, which are 2.3 to 2.7 by 64 batches; at 30 others none.
"""

from __future__ import annotations

import numpy as np
from scipy.special import fdtri

from pmm_mcmc.coordinates.scale import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import largest_t
from pmm_mcmc.warmup.stein_identity import Identity, stein_identity
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP

__all__ = ["fails", "fails_on_average", "holds", "identity_of", "whitened_identity"]

# Bytes of positions that are whitened together.
_BYTES = 2**23


def identity_of(position: np.ndarray, gradient: np.ndarray) -> Identity:
    """Return the Stein identity of each coordinate of draws ``(chain, draw, d)``."""
    return stein_identity(position, gradient, THRESHOLDS.identity_pieces, lambda w: convergence(w).mcse)


def whitened_identity(position: np.ndarray, gradient: np.ndarray) -> Identity | None:
    """Return the Stein identity of whitened coordinates; None where these cannot be had.

    Collinear coordinates have products that vary by far more than 1; whitened ones do not, and none hides in their
    noise.  The whitening is symmetric, so that each remains the one most like the coordinate of its number.
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
    y = np.empty((n, d))
    rows = max(1, _BYTES // 8 // d)
    for i in range(0, n, rows):
        y[i : i + rows] = np.linalg.solve(root, (x[i : i + rows] - centre).T).T
    if not np.isfinite(y).all():
        return None
    return identity_of(y.reshape(position.shape), gradient @ root)


def fails(identity: Identity, degrees: int, times: float = 1.0) -> np.ndarray:
    """Return which coordinates fail the identity, by ``times`` the limit of chance or more.

    ``degrees`` are the degrees of freedom of the standard errors in ``z``.
    """
    sure = times * max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    return (np.abs(identity.excess) > THRESHOLDS.identity_excess) & (np.abs(identity.z) > sure)


def fails_on_average(identity: Identity, degrees: int) -> bool:
    """Return whether the identity fails on average over all coordinates."""
    # By chance the mean square of the z-scores is about 1; collinear coordinates have the same z-score.
    chance = fdtri(identity.independent, degrees, 1.0 - WARMUP.chance)
    with np.errstate(over="ignore"):  # a coordinate that does not move
        large = float(np.mean(identity.z**2)) > max(WARMUP.identity_z, chance)
    return bool(identity.mean_square > THRESHOLDS.identity_mean_square and large)


def holds(identity: Identity, degrees: int, moving: np.ndarray | bool = True) -> bool:
    """Return whether the identity can correct draws: it holds, or fails as it does for too long a step.

    At an edge or a jump of the density the identity fails for the posterior itself, in either direction and by far, and
    nothing can be corrected by it.  Coordinates that do not move are left out.
    """
    excess = identity.excess
    edges = fails(identity, degrees, THRESHOLDS.edge_z) & ((excess < 0.0) | (excess > THRESHOLDS.widest))
    return not bool((edges & moving).any())
