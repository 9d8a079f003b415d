"""What draws know: standard errors, Stein's identity of each coordinate, and how many transitions apart they are.

Standard errors of means of autocorrelated draws are those of batch means, or of the spread between chains.  Stein's
identity fails where the steps are too long, and so shows their bias.  How many transitions a draw takes follows from
the autocorrelation of successive states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import pdtrc, pdtrik, stdtrit

from pmm_mcmc.warmup.thresholds import THRESHOLDS


def count_pieces(chains: int, draws: int, pieces: int = THRESHOLDS.pieces) -> int:
    """Return the number of batches that each chain is cut into, for ``pieces`` of all chains."""
    return max(1, min(-(-pieces // chains), draws // 10))


def degrees_of_freedom(chains: int, draws: int, pieces: int = THRESHOLDS.pieces) -> int:
    """Return the degrees of freedom of the standard errors of :func:`standard_error`."""
    return max(1, chains * count_pieces(chains, draws, pieces) - 1)


def batch_means(values: np.ndarray, pieces: int = THRESHOLDS.pieces) -> np.ndarray:
    """Return the means ``(pieces, p)`` of the batches of ``(chain, draw, p)`` values."""
    chains, draws, p = values.shape
    cut = count_pieces(chains, draws, pieces)
    used = draws - draws % cut
    return values[:, draws - used :].reshape(chains * cut, used // cut, p).mean(axis=1)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Return standard errors ``(p,)`` of the means of ``(chain, draw, p)`` values."""
    return between_pieces(batch_means(values), len(values))


def between_pieces(values: np.ndarray, chains: int) -> np.ndarray:
    """Return the standard errors ``(p,)`` of means from batch means ``(pieces, p)``: the larger of two.

    They are that from the variance between batches, and that from the variance between chains.
    """
    n = len(values)
    se = values.std(axis=0, ddof=1) / np.sqrt(n)
    if chains > 1:
        by_chain = values.reshape(chains, n // chains, -1).mean(axis=1)
        se = np.maximum(se, by_chain.std(axis=0, ddof=1) / np.sqrt(chains))
    return se


def largest_t(among: int, degrees: int, chance: float = THRESHOLDS.chance) -> float:
    """Return the value that the largest of ``among`` ratios to a standard error exceeds by ``chance``, a share of runs.

    That is 1 % by default.
    """
    return float(stdtrit(degrees, 1.0 - 0.5 * chance / max(among, 1)))


def poisson_limit(mean: float) -> int:
    """Return the number that a Poisson count exceeds with a probability of at most one in twenty."""
    below = max(math.ceil(pdtrik(0.95, mean)) - 1, 0) if mean > 0.0 else 0
    return below + int(pdtrc(below, mean) > 0.05)


def worth_independent(pieces: np.ndarray) -> float:
    r"""Return how many independent ones ``p`` correlated means are worth, from their batch means ``(pieces, p)``.

    The mean square of ``p`` z-scores with correlations :math:`\rho_{ij}` varies as that of
    :math:`p^2 / \sum_{ij} \rho_{ij}^2` independent ones (Satterthwaite 1946), from 1 to ``p``.  The squares of
    estimated correlations are too large by what chance adds, which is taken off.
    """
    n, p = pieces.shape
    if n < 4 or p < 2:
        return float(max(p, 1))
    scores = pieces - pieces.mean(axis=0)
    spread = scores.std(axis=0)
    scores /= np.where(spread > 0.0, spread, 1.0)
    gram = scores @ scores.T if n < p else scores.T @ scores  # the sum of squares is the same, the smaller is cheap
    squares = ((gram / n) ** 2).sum() - np.sum(spread > 0.0)
    squares = (squares * (n - 1) - p * (p - 1)) / (n - 2)
    return float(p**2 / (p + min(max(squares, 0.0), p * (p - 1.0))))


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
