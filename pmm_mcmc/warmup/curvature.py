"""The largest curvatures of the posterior in whitened coordinates, from gradients at draws.

A curvature, an eigenvalue of the negative Hessian matrix, shows in ``|dg| / |dy|``: changes of the gradient over
changes of the position.  Between successive draws it averages over directions; :class:`LocalCurvature` finds the
steepest ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.warmup.thresholds import THRESHOLDS


def curvature_bound(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool, refines: bool
) -> float:
    """Return the largest curvature that successive whitened positions and gradients ``(chain, n, d)`` show.

    It is the larger of :func:`rare_curvature` and the 97 % quantile of ``|dg| / |dy|`` along the direction in which the
    gradient varies most.  The second sees a few stiff directions, on a Gaussian their exact curvature, which the first
    misses, since it averages over directions.

    Draws past the transient are ``usable`` ``(chain, n)``.  With ``remainder`` the curvature is that of the gradient
    without its linear part ``-y``, which the harmonic flow integrates.
    """
    rare = rare_curvature(position, gradient, usable, remainder, refines)
    dy, dg = _changes(position, gradient, usable, remainder)
    if not len(dy):
        return rare
    direction = _main_direction((gradient + position if remainder else gradient)[usable])
    shifts = np.abs(dy @ direction)
    change = np.abs(dg @ direction)
    clear = shifts >= np.quantile(shifts, 0.8)  # pairs that moved mostly along this direction
    stiffest = np.quantile(change[clear] / shifts[clear], 0.97) if shifts[clear].min() > 0.0 else 0.0
    return float(max(rare, stiffest))


def rare_curvature(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool, refines: bool
) -> float:
    """Return the 99 % quantile of ``|dg| / |dy|`` over successive draws, for a method that ``refines`` steep steps.

    It is the 99.9 % quantile for one that does not, and must be stable nearly everywhere.  Arguments are those of
    :func:`curvature_bound`.
    """
    ratios = []
    for i in range(len(usable)):  # chain by chain, since these are copies of a window
        dy, dg = _changes(position[i, None], gradient[i, None], usable[i, None], remainder)
        ratios.append(np.sqrt((dg**2).sum(axis=1)) / np.sqrt((dy**2).sum(axis=1)))
    ratio = np.concatenate(ratios)
    if not len(ratio):
        return 1.0
    return float(max(np.quantile(ratio, THRESHOLDS.places if refines else THRESHOLDS.nearly_all_places), 1e-3))


def _changes(
    position: np.ndarray, gradient: np.ndarray, usable: np.ndarray, remainder: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of successive rows that moved, of position and of gradient."""
    force = gradient + position if remainder else gradient
    pairs = usable[:, 1:] & usable[:, :-1]
    dy = np.diff(position, axis=1)[pairs]
    dg = np.diff(force, axis=1)[pairs]
    moved = (dy**2).sum(axis=1) > 0.0
    return dy[moved], dg[moved]


def _main_direction(rows: np.ndarray) -> np.ndarray:
    """Return the first principal direction of rows, whose lengths are cut at twice the median (power iteration)."""
    rows = rows - np.median(rows, axis=0)
    norms = np.sqrt((rows**2).sum(axis=1))
    median = np.median(norms)
    rows = rows * np.minimum(1.0, 2.0 * median / np.maximum(norms, 1e-300))[:, None]
    direction = rows[np.argmax(np.minimum(norms, 2.0 * median))]
    for _ in range(30):
        size = np.sqrt((direction**2).sum())
        if not size > 0.0:
            return np.zeros(rows.shape[1])
        direction = rows.T @ (rows @ (direction / size))
    return direction / max(np.sqrt((direction**2).sum()), 1e-300)


@dataclass
class LocalCurvature:
    r"""An estimate of the largest curvature at draws: of :math:`|\partial g\, v| / |v|` over directions ``v``.

    Power iteration finds these directions, which in many dimensions are few: each iteration costs one gradient, at a
    point close to the draw.  It starts from the last direction, also in the next block.

    Attributes
    ----------
    evaluations : int
        Gradients spent so far.
    """

    evaluations: int = 0
    _direction: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __call__(
        self,
        position: np.ndarray,
        gradient: np.ndarray,
        gradient_at: Callable[[np.ndarray], np.ndarray],
        remainder: bool,
    ) -> float:
        """Return the median of the largest curvatures at eight of the whitened draws ``(n, d)``, evenly spaced.

        ``gradient`` ``(n, d)`` are the gradients there; ``gradient_at`` returns that at another place; ``remainder`` is
        as of :func:`curvature_bound`.
        """
        n, d = position.shape
        rows = np.unique(np.linspace(0, n - 1, THRESHOLDS.curvature_points).astype(int))
        if len(self._direction) != d:
            # The first direction is a difference of gradients, which are largest along steep directions.
            self._direction = gradient[rows[-1]] - gradient[rows[0]]
        sizes = []
        for row in rows:
            direction = self._direction
            size = 0.0
            for _ in range(THRESHOLDS.curvature_iterations):
                length = float(np.sqrt((direction**2).sum()))
                if not (np.isfinite(length) and length > 0.0):
                    direction = np.ones(d)
                    size = 0.0
                    break
                direction = direction / length
                self.evaluations += 1
                gradient_nearby = gradient_at(position[row] + THRESHOLDS.curvature_width * direction)
                change = (gradient_nearby - gradient[row]) / THRESHOLDS.curvature_width
                direction = change + direction if remainder else change
                size = float(np.sqrt((direction**2).sum()))
            if np.isfinite(size):
                sizes.append(size)
                self._direction = direction if size > 0.0 else self._direction
        return float(np.median(sizes)) if sizes else 0.0
