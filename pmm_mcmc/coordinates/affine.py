r"""The whitened coordinates in which every sampler works: the preconditioner, or inverse mass matrix ``W W'``.

Scale and centre are fitted to pairs of position and gradient.  For a diagonal map ``x = m + s y`` the divergence from
the Gaussian N(m, s^2) to the posterior that uses gradients only (Fisher divergence) is smallest at

.. math:: s_i^2 = \sqrt{Var x_i / Var g_i}, \qquad m_i = \bar x_i + s_i^2 \bar g_i,

with ``g`` the gradient of the log density.  On an uncorrelated Gaussian this is exact from two distinct points,
wherever they lie.  With few strongly correlated directions, or many correlations in few coordinates, the scale is
low-rank or dense (:func:`best_coordinates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Coordinates(NamedTuple):
    r"""The map from whitened coordinates ``y`` to those in which chains move, ``z = centre + W y``.

    ``z`` are the model's unconstrained coordinates ``x`` or, non-centred, ``x`` is a function of ``z``.

    Attributes
    ----------
    centre : (d,)
        Where ``y = 0`` lies.
    scale : (d,), (d, d) or (k + 2, d) with k + 2 < d
        ``W``: its diagonal, the full matrix, or a diagonal times few stretches,
        :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)` with ``U`` of ``k`` orthonormal columns:
        then ``s`` in row 0, ``l`` in row 1 (filled up with ones), and the rows of :math:`U^T`.
    density_parameters : (k,), optional
        What the density of ``z`` takes beside the position: the parameters of a non-centring
        (:mod:`pmm_mcmc.coordinates.structure`), or temperature and reference of a tempered density.
    """

    centre: np.ndarray
    scale: np.ndarray
    density_parameters: np.ndarray | None = None

    @classmethod
    def low_rank(cls, centre: np.ndarray, s: np.ndarray, stretch: np.ndarray, directions: np.ndarray) -> Coordinates:
        r"""Return the coordinates of :math:`W = \mathrm{diag}(s)\,(I + U\,\mathrm{diag}(l - 1)\,U^T)`.

        ``stretch`` ``(k,)`` is ``l``, all positive; ``directions`` ``(d, k)`` are ``U``, orthonormal columns.  Without
        any the scale is the diagonal ``s``; ``k + 2 >= d``, with which the full matrix is smaller, is an error.
        """
        d, k = directions.shape
        if k == 0:
            return cls(centre, s)
        if k + 2 >= d:
            raise ValueError(f"directions has {k} columns: with d={d} at most {d - 3}; give the whole matrix instead")
        row = np.ones(d)
        row[:k] = stretch
        return cls(centre, np.concatenate([s[None], row[None], directions.T]))

    def place(self, y: np.ndarray) -> np.ndarray:
        """Map whitened positions ``(..., d)`` to ``z``."""
        if self._is_dense:
            return self.centre + y @ self.scale.T
        return self.centre + self._diagonal * self._stretched(y, 1.0)

    def whiten(self, z: np.ndarray) -> np.ndarray:
        """Map positions ``z`` ``(..., d)`` to whitened ones."""
        offset = z - self.centre
        if self._is_dense:
            return np.linalg.solve(self.scale, offset.reshape(-1, offset.shape[-1]).T).T.reshape(offset.shape)
        return self._stretched(offset / self._diagonal, -1.0)

    def pull_back(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients ``(..., d)`` with respect to ``z`` to gradients with respect to ``y``."""
        return gradient @ self.scale if self._is_dense else self._stretched(gradient * self._diagonal, 1.0)

    def stretched(self, factor: np.ndarray) -> Coordinates:
        """Return coordinates whose whitened ones are wider by factors ``(d,)``; of low rank those of the diagonal."""
        scale = self.scale * factor
        if scale.ndim == 2 and not self._is_dense:
            scale[1:] = self.scale[1:]
        return self._replace(scale=scale)

    @property
    def _is_dense(self) -> bool:
        return self.scale.ndim == 2 and self.scale.shape[0] == self.scale.shape[1]

    @property
    def _diagonal(self) -> np.ndarray:
        return self.scale if self.scale.ndim == 1 else self.scale[0]

    def _stretched(self, y: np.ndarray, power: float) -> np.ndarray:
        """Apply ``(I + U diag(l - 1) U^T)^power``, symmetric: ``l`` becomes ``l^power``."""
        if self.scale.ndim == 1:
            return y
        directions = self.scale[2:]
        return y + (y @ directions.T * (self.scale[1, : len(directions)] ** power - 1.0)) @ directions


_Fit = Callable[[np.ndarray, np.ndarray], Coordinates | None]

# Dense scales are tried up to this many coordinates, with so much damping (the r of affine_scale).
MOST_DENSE = 300
_DAMPINGS = (1e-3, 1.0, 10.0, 100.0, 1000.0)
# Low-rank scales are tried from so many coordinates on, with at most so many directions.
_FEWEST_LOW_RANK = 30
_RANKS = (20, 100)
MOST_DIRECTIONS = _RANKS[-1]
# A direction is stretched if its variance is off by this factor: a smaller error costs a step little.
_CUTOFF = 1.5
# Pairs that give the directions, turns of diagonal and directions, and the change at which the turns end.
_ROWS = 300
_ROUNDS = 8
_ROUND_ENOUGH = 0.01
# The misfit of one direction whose variance is off by a factor of 1.25: less is not worth more numbers.
_LEAST_GAIN = 0.05
# Share of the misfit's largest terms that is left out: with heavy tails a few draws would decide.
_TRIMMED = 0.01


def diagonal_scale(position: np.ndarray, gradient: np.ndarray, previous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale of shape ``(d,)`` from ``(n, d)`` positions and gradients.

    A coordinate in which position or gradient does not vary, or whose estimate is not a finite number, keeps its
    previous scale and is centred at its mean.
    """
    with np.errstate(all="ignore"):
        ratio = position.var(axis=0) / gradient.var(axis=0)
        scale = ratio**0.25
    # The variance of equal numbers need not be zero in rounded arithmetic.
    varies = (np.ptp(position, axis=0) > 0.0) & (np.ptp(gradient, axis=0) > 0.0)
    usable = varies & np.isfinite(scale) & (scale > 0.0)
    scale = np.where(usable, scale, previous)
    shift = np.where(usable, scale**2 * gradient.mean(axis=0), 0.0)
    # The gradient's mean is no guide off the posterior: the centre stays within the range of the positions.
    centre = np.clip(position.mean(axis=0) + shift, position.min(axis=0), position.max(axis=0))
    return centre, scale


def best_coordinates(position: np.ndarray, gradient: np.ndarray) -> Coordinates:
    r"""Return diagonal, low-rank or dense coordinates, whichever whitens the newest of the draws ``(n, d)`` best.

    Candidates are fitted on the older 60 % and compared on the newer 40 % by the Fisher divergence from the unit
    Gaussian, :math:`J = mean |W^{-1} (x - m) + W^T g|^2`.  The more familiar
    :math:`mean |W^{-1} (x - m)|^2 + mean |W^T g|^2` has the same best ``W``: it is ``J + 2 d`` on average.  A form with
    more numbers in it must win by 2 % of that, or by a fifth of ``J``.  The mean leaves the largest 1 % out.  The
    winner is fitted anew on all draws.  Rows are in order of time.
    """
    n, d = position.shape
    split = int(0.6 * n)
    choice: _Fit = _diagonal
    if 1 < split < n - 1:
        old = (position[:split], gradient[:split])
        new = (position[split:], gradient[split:])
        best = misfit(_diagonal(*old), *new)
        for family in _families(split, d):
            misfits = [misfit(fit(*old), *new) for fit in family]
            least = int(np.argmin(misfits))
            if misfits[least] < best - max(_LEAST_GAIN, min(0.02 * (best + 2 * d), 0.2 * best)):
                choice = family[least]
                best = misfits[least]
    return choice(position, gradient) or _diagonal(position, gradient)


def refitted(coordinates: Coordinates, position: np.ndarray, gradient: np.ndarray) -> Coordinates:
    """Return coordinates refitted to a few draws ``(n, d)``, unless the present ones whiten half of them as well.

    The fit is one in present coordinates, to which its damping holds.  Those of low rank stay.
    """
    d = position.shape[1]
    if coordinates.scale.ndim == 2 and len(coordinates.scale) != d:
        return coordinates
    y = coordinates.whiten(position)
    g = coordinates.pull_back(gradient)
    present = Coordinates(np.zeros(d), np.ones(d))
    fits: list[_Fit] = [_diagonal, *(_families(len(y), d)[-1] if 1 < d <= MOST_DENSE else ())]
    misfits = [misfit(fit(y[::2], g[::2]), y[1::2], g[1::2]) for fit in fits]
    least = int(np.argmin(misfits))
    fit = fits[least](y, g)
    if fit is None or misfits[least] > misfit(present, y[1::2], g[1::2]) - _LEAST_GAIN:
        return coordinates
    present_scale = np.diag(coordinates.scale) if fit.scale.ndim > coordinates.scale.ndim else coordinates.scale
    scale = present_scale @ fit.scale if fit.scale.ndim == 2 else present_scale * fit.scale
    return coordinates._replace(centre=coordinates.place(fit.centre), scale=scale)


def _families(n: int, d: int) -> list[list[_Fit]]:
    """Return the forms to try on ``n`` pairs by families, from few numbers to many; a family's have equally many."""
    ranks = [_RANKS[0], *(more for fewer, more in pairwise(_RANKS) if _most_directions(n, d) > fewer)]
    families: list[list[_Fit]] = [[partial(_low_rank, rank=rank)] for rank in ranks if d >= _FEWEST_LOW_RANK]
    dense: list[_Fit] = [partial(_dense, damping=damping) for damping in _DAMPINGS]
    return [*families, dense] if 1 < d <= MOST_DENSE else families


def _most_directions(n: int, d: int) -> int:
    """Return the largest number of directions for ``n`` pairs; the full matrix is larger than so many."""
    return min(n, d) // 3


def _diagonal(position: np.ndarray, gradient: np.ndarray) -> Coordinates:
    return Coordinates(*diagonal_scale(position, gradient, np.ones(position.shape[1])))


def _low_rank(position: np.ndarray, gradient: np.ndarray, rank: int) -> Coordinates | None:
    r"""Return low-rank coordinates of at most so many directions, or None where they are not finite.

    With the diagonal ``s`` fixed, the directions are those of the largest :math:`|x + g|^2` in units of ``s``: on a
    Gaussian they are eigenvectors, ordered by the misfit :math:`\lambda + 1/\lambda - 2` that they cause, and if there
    are no more than ``rank`` of them no other direction has any.  With the stretches fixed, ``s`` is the diagonal scale
    of their residuals.  The two take turns, as in factor analysis.
    """
    n, d = position.shape
    rank = max(1, min(rank, _most_directions(n, d)))
    mean = position.mean(axis=0)
    mean_gradient = gradient.mean(axis=0)
    # The mean of equal numbers need not be equal to them in rounded arithmetic.
    x = np.where(np.ptp(position, axis=0) > 0.0, position - mean, 0.0)
    g = np.where(np.ptp(gradient, axis=0) > 0.0, gradient - mean_gradient, 0.0)
    subset = np.linspace(0, n - 1, min(n, _ROWS)).astype(int)
    try:
        with np.errstate(all="ignore"):
            _, s = diagonal_scale(x, g, np.ones(d))
            for _ in range(_ROUNDS):
                coordinates = _stretch(x[subset], g[subset], s, x[subset], g[subset], rank)
                _, left = diagonal_scale(coordinates.whiten(x[subset]), coordinates.pull_back(g[subset]), np.ones(d))
                s = s * left
                if np.max(np.abs(np.log(left))) < _ROUND_ENOUGH:
                    break
            coordinates = _stretch(x, g, s, x[subset], g[subset], rank)
            coordinates = coordinates._replace(centre=mean + coordinates.place(coordinates.pull_back(mean_gradient)))
    except np.linalg.LinAlgError:
        return None
    return coordinates if all(np.all(np.isfinite(values)) for values in coordinates[:2]) else None


def _stretch(
    x: np.ndarray, g: np.ndarray, s: np.ndarray, few_x: np.ndarray, few_g: np.ndarray, rank: int
) -> Coordinates:
    """Return low-rank coordinates with diagonal ``s`` for centred pairs; a few of them give the directions."""
    residuals = few_x / s + few_g * s
    values, vectors = np.linalg.eigh(residuals @ residuals.T)
    values = values[: -rank - 1 : -1]
    vectors = vectors[:, : -rank - 1 : -1]
    basis, _ = np.linalg.qr(residuals.T @ vectors[:, values > 1e-12 * values[0]])
    x = (x / s) @ basis
    g = (g * s) @ basis
    ridge = _DAMPINGS[0] / len(x) * np.eye(basis.shape[1])
    values, vectors = np.linalg.eigh(_geometric_mean(_covariance(x) + ridge, _covariance(g) + ridge))
    stretched = np.abs(np.log(values)) > np.log(_CUTOFF)
    return Coordinates.low_rank(np.zeros_like(s), s, np.sqrt(values[stretched]), basis @ vectors[:, stretched])


def _dense(position: np.ndarray, gradient: np.ndarray, damping: float) -> Coordinates | None:
    """Return dense coordinates, or None where draws of the transient leave them without a finite inverse."""
    try:
        with np.errstate(all="ignore"):
            coordinates = Coordinates(*affine_scale(position, gradient, dense=True, damping=damping))
            usable = np.all(np.isfinite(coordinates.scale)) and np.linalg.cond(coordinates.scale) < 1e12
    except np.linalg.LinAlgError:
        return None
    return coordinates if usable else None


def misfit(coordinates: Coordinates | None, position: np.ndarray, gradient: np.ndarray) -> float:
    """Return ``J``, its largest terms left out, or infinity where any is not finite."""
    if coordinates is None:
        return np.inf
    with np.errstate(all="ignore"):
        terms = ((coordinates.whiten(position) + coordinates.pull_back(gradient)) ** 2).sum(axis=1)
    count = len(terms) - math.ceil(_TRIMMED * len(terms))
    return float(np.sort(terms)[:count].mean()) if np.all(np.isfinite(terms)) else np.inf


def affine_scale(
    position: np.ndarray, gradient: np.ndarray, *, dense: bool, damping: float = 1e-3
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return centre and root ``W`` of the Gaussian nearest to positions and gradients ``(n, d)`` in Fisher divergence.

    In units of the diagonal scale ``s``, with :math:`A = Cov\,x + I r/n` and :math:`B = Cov\,g + I r/n`,

    .. math:: \Sigma = A^{1/2} (A^{1/2} B A^{1/2})^{-1/2} A^{1/2}, \qquad W = s\,\Sigma^{1/2}, \qquad
       m = \bar x + W W^T \bar g,

    the geometric mean of ``A`` and the inverse of ``B``: without damping exact on any Gaussian from ``d + 1`` pairs,
    wherever they lie.

    ``damping`` is ``r``: how many draws the unit matrix counts for.  Where not ``dense`` the root is the diagonal scale
    ``(d,)``.
    """
    n, d = position.shape
    _, s = diagonal_scale(position, gradient, np.ones(d))
    mean = position.mean(axis=0)
    mean_gradient = gradient.mean(axis=0)
    if not dense:
        return mean + s**2 * mean_gradient, s
    ridge = damping / n * np.eye(d)
    sigma = _geometric_mean(_covariance(position / s) + ridge, _covariance(gradient * s) + ridge)
    root = s[:, None] * _symmetric_power(sigma, 0.5)
    return mean + root @ (root.T @ mean_gradient), root


def _covariance(rows: np.ndarray) -> np.ndarray:
    return np.cov(rows, rowvar=False).reshape(rows.shape[1], rows.shape[1])


def _geometric_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the geometric mean of ``a`` and the inverse of ``b``, both positive definite."""
    root = _symmetric_power(a, 0.5)
    return root @ _symmetric_power(root @ b @ root, -0.5) @ root


def _symmetric_power(matrix: np.ndarray, power: float) -> np.ndarray:
    """Return a power of a matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    floor = 1e-15 * max(float(values.max(initial=0.0)), 1e-285)
    return (vectors * np.maximum(values, floor) ** power) @ vectors.T
