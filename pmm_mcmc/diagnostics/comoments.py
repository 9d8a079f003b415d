r"""Means and co-moments of samples, how they are combined, and the features that a run without draws keeps them of.

The features of every unconstrained coordinate are what the corrections of :mod:`pmm_mcmc.diagnostics.stein` need,

.. math:: u, \quad u^2, \quad S_1, \quad S_2, \quad S_3, \quad s_j g_j, \qquad u = (x_j - m_j) / s_j, \quad
   S_1 = -(S g)_j / s_j, \quad s_j^2 = S_{jj},

with ``m`` and :math:`S = W W^T` those of coordinates :math:`x = m + W y` that do not change.  They are kept for pieces
of consecutive chains, so that coefficients can be fitted on other chains than they are applied to.

Samples are combined by their means and sums of squared deviations [1]_, which is stable however far the values are
from zero; how the draws were cut into samples changes the result by rounding only.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
   recommendations", The American Statistician 37, 1983.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.stein import own_terms

__all__ = ["ALONE", "FEATURES", "PAIRS", "combined", "count_pieces", "features", "pieces_of"]

FEATURES = ("u", "u^2", "S1", "S2", "S3", "sg")
# Indices of the two features of each co-moment; and of a single quantity.
PAIRS = np.triu_indices(len(FEATURES))
ALONE = (np.zeros(1, int), np.zeros(1, int))


def combined(
    counts: np.ndarray, mean: np.ndarray, scatter: np.ndarray, pairs: tuple[np.ndarray, np.ndarray] = PAIRS
) -> tuple[np.ndarray, np.ndarray]:
    r"""Combine samples: return the mean :math:`\sum_i n_i m_i / n`, and the co-moments about it.

    .. math:: C = \sum_i C_i + n_i (m_i - m)(m_i - m)^T

    Parameters
    ----------
    counts : (m,) or (m, ...)
        Size of each sample, not all zero.
    mean : (k, m, ...)
        Means of ``k`` quantities in each sample.
    scatter : (q, m, ...)
        Sums of products of deviations from the sample's own means, for each of the pairs.
    pairs
        Two index arrays ``(q,)`` into the quantities.

    Returns
    -------
    mean : (k, ...)
    scatter : (q, ...)
    """
    counts = np.asarray(counts, dtype=float)
    counts = counts.reshape(counts.shape + (1,) * (mean.ndim - 1 - counts.ndim))
    # Minus the first, so that equal means stay exactly equal.
    from_first = mean - mean[:, :1]
    shift = (counts * from_first).sum(axis=1) / counts.sum(axis=0)
    deviation = from_first - shift[:, None]
    total = scatter.sum(axis=1)
    for q, (a, b) in enumerate(zip(*pairs, strict=True)):
        total[q] += (counts * deviation[a] * deviation[b]).sum(axis=0)
    return mean[:, 0] + shift, total


def features(x: np.ndarray, g: np.ndarray, coordinates: Coordinates, scale: np.ndarray) -> np.ndarray:
    """Return the features of draws ``(n, d)`` with gradients ``(n, d)``: ``(feature, n, d)``.

    ``scale`` are the standard deviations of the Gaussian whose preconditioner the coordinates are.
    """
    linear = Coordinates(np.zeros_like(scale), coordinates.scale)
    u = (x - coordinates.centre) / scale
    s1 = -linear.place(linear.pull_back(g)) / scale
    return np.stack([u, u * u, *own_terms(u, s1), scale * g])


def _size(chains: int) -> int:
    return -(-chains // CALIBRATION.moment_pieces)


def count_pieces(chains: int) -> int:
    """Return the number of pieces of consecutive chains that co-moments are kept of."""
    return -(-chains // _size(chains))


def pieces_of(chains: int) -> list[slice]:
    """Return the chains of each piece, equally many but in the last."""
    size = _size(chains)
    return [slice(i, min(i + size, chains)) for i in range(0, chains, size)]
