"""Standard errors of means of autocorrelated draws, from batch means and from the spread between chains."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import pdtrc, pdtrik, stdtrit

from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = [
    "batch_means", "between_pieces", "count_pieces", "degrees_of_freedom", "largest_t", "poisson_limit",
    "standard_error", "worth_independent",
]  # fmt: skip


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
