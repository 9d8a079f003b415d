"""The curvature of the posterior in its steepest directions, by power iteration on differences of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["LocalCurvature"]


@dataclass
class LocalCurvature:
    r"""An estimate of the largest curvature at draws: of :math:`|\partial g\, v| / |v|` over directions ``v``.

    Differences between successive draws average over directions, and in many dimensions miss the few steep ones.  Power
    iteration finds these: each iteration costs one gradient, at a point close to the draw.  It starts from the
    last direction, also in the next block.

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

        ``gradient`` ``(n, d)`` are the gradients there; ``gradient_at`` returns that at another place.  If the harmonic
        flow integrates the linear part ``-y`` of the gradient, the curvature is that of the ``remainder``.
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
