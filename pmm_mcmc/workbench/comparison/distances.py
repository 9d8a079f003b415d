"""Distances between draws and a posterior, by draws of a reference or by gradients, each with its noise level.

A distance of finitely many draws is positive even if they are exact.  Each is therefore given with its *floor*: the
distance of independent, exact draws, as many as the run has effective ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

__all__ = ["Distance", "floored_wasserstein", "sliced_wasserstein", "spaced", "stein_discrepancy"]


class Distance(NamedTuple):
    """A distance, and that of exact draws, as many as the run has effective ones."""

    value: float
    floor: float


def spaced(draws: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` draws ``(n, d)`` of ``(chain, draw, d)``, evenly spaced over all of them."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat if len(flat) <= most else flat[np.linspace(0, len(flat) - 1, most).round().astype(int)]


def sliced_wasserstein(x: np.ndarray, y: np.ndarray, directions: np.ndarray) -> float:
    r"""Return the Wasserstein distance between projections of two sets of draws, averaged over directions.

    .. math:: \frac{1}{L} \sum_l W_1(\theta_l \cdot X, \theta_l \cdot Y)

    Parameters
    ----------
    x, y
        Draws ``(n, d)`` and ``(m, d)``.
    directions
        Unit vectors ``(L, d)``.

    References
    ----------
    .. [1] N. Bonneel et al., "Sliced and Radon Wasserstein barycenters of measures", Journal of Mathematical Imaging
       and Vision 51, 2015.
    """
    a, b = directions @ x.T, directions @ y.T
    return float(np.mean([wasserstein_distance(one, other) for one, other in zip(a, b, strict=True)]))


def floored_wasserstein(
    draws: np.ndarray, reference: np.ndarray, effective: float, rng: np.random.Generator
) -> Distance:
    """Return the sliced Wasserstein distance of a run to reference draws, with its floor.

    The reference is cut into halves.  The run is compared with one; the floor is the distance of draws from the other,
    as many as the run has effective ones.

    Parameters
    ----------
    draws : (chain, draw, d)
        Draws of the run, in posterior standard deviations.
    reference : (m, d)
        Independent draws, or those of chains one after the other; at most 4,000 of each half are used.
    effective
        Effective draws of the run.
    rng
        For directions, and for the draws of the floor.

    Returns
    -------
    Distance
        The floor is the 95 % quantile over 30 repeats.
    """
    middle, most = len(reference) // 2, 4000
    one, other = (spaced(half[None], most) for half in (reference[:middle], reference[middle:]))
    directions = rng.normal(size=(32, draws.shape[-1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    value = sliced_wasserstein(spaced(draws, most), one, directions)
    n = int(np.clip(effective, 2, len(other)))
    floor = [
        sliced_wasserstein(rng.choice(other, n, replace=n == len(other), axis=0), one, directions) for _ in range(30)
    ]
    return Distance(value, float(np.quantile(floor, 0.95)))


def stein_kernel(x: np.ndarray, score: np.ndarray) -> np.ndarray:
    r"""Return the Stein kernel of all pairs of draws: ``(n, n)``.

    With the score :math:`s = \nabla \log p`, :math:`r = x - y` and :math:`k = (1 + |r|^2)^{-1/2}`,

    .. math::

       k_0(x, y) = s(x) \cdot s(y)\, k + s(x) \cdot \nabla_y k + s(y) \cdot \nabla_x k + \nabla_x \cdot \nabla_y k,

    whose expectation over ``x`` from ``p`` is zero for every ``y``.
    """
    d = x.shape[1]
    square = cdist(x, x, "sqeuclidean")
    power = -0.5  # with one between -1 and 0 the discrepancy sees every way in which draws can go wrong
    q = 1.0 + square
    k, slope = q**power, 2.0 * power * q ** (power - 1.0)
    own = np.sum(score * x, axis=1)
    cross = score @ x.T  # s(x_i) . x_j
    along = (cross.T - own) - (own[:, None] - cross)  # (s(y) - s(x)) . r
    return (score @ score.T) * k + slope * (along - d) - 4.0 * power * (power - 1.0) * square * q ** (power - 2.0)


def stein_discrepancy(draws: np.ndarray, score: np.ndarray, effective: float) -> Distance:
    r"""Return the kernel Stein discrepancy of at most 1,000 draws, evenly spaced over the run, with its floor.

    .. math:: \mathrm{KSD}^2 = \frac{1}{n^2} \sum_{i, j} k_0(x_i, x_j)

    It needs gradients of the log density and no reference, and is blind to the weights of separate modes.

    Parameters
    ----------
    draws, score : (chain, draw, d)
        Positions in posterior standard deviations, and the gradient of the log density in those units.
    effective
        Effective draws of the run.

    Returns
    -------
    Distance
        The floor is the root mean square of KSD for independent, exact draws, as many as are used or effective,
        whichever is less.

    References
    ----------
    .. [1] J. Gorham, L. Mackey, "Measuring sample quality with kernels", ICML 2017.
    """
    x, s = spaced(draws, 1000), spaced(score, 1000)
    kernel = stein_kernel(x, s)
    n = min(len(x), max(effective, 1.0))
    return Distance(float(np.sqrt(max(kernel.mean(), 0.0))), float(np.sqrt(max(kernel.diagonal().mean(), 0.0) / n)))
