r"""The map that samples a Cholesky factor of a covariance (``LKJCholeskyCov``) by sds and correlations.

PyMC's coordinates ``x`` of a packed factor are its elements below the diagonal and the logarithms of those on it: row
``i`` is the standard deviation times a unit vector, so that near 0 all of a row shrinks together, which is a funnel.
Here row ``i`` has instead the logarithm ``u`` of its standard deviation, in the diagonal's place, and of each element
before the diagonal the ``y`` with :math:`\sinh y_j = L_{ij} / L_{ii}` (of two elements the inverse hyperbolic tangent
of the correlation):

.. math:: x_{ii} = u_i - \tfrac12 \log\Bigl(1 + \sum_j \sinh^2 y_{ij}\Bigr), \quad x_{ij} = e^{x_{ii}} \sinh y_{ij},
   \quad \log\Bigl|\frac{\partial x}{\partial (u, y)}\Bigr| = \sum_i (i - 1)\, x_{ii} + \sum_{ij} \log\cosh y_{ij} .
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Factor"]


class Factor(NamedTuple):
    """A packed Cholesky factor of ``n`` rows whose first coordinate is ``begin``."""

    begin: int
    n: int

    @property
    def at(self) -> slice:
        """Its coordinates."""
        return slice(self.begin, self.begin + self.n * (self.n + 1) // 2)

    @property
    def scales(self) -> np.ndarray:
        """Coordinates of the logarithms of its standard deviations."""
        return self.begin + np.cumsum(np.arange(1, self.n + 1)) - 1

    def split(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return indices of the diagonal and of the elements below it among the coordinates, and rows of the latter."""
        row, column = np.tril_indices(self.n)
        return np.flatnonzero(row == column), np.flatnonzero(row != column), row[row != column]

    def to_x(self, xp: Any, coordinates: Any) -> tuple[Any, Any]:
        """Return the model's coordinates of one factor, and the log determinant of the map.

        ``coordinates`` ``(n (n + 1) / 2,)`` are those of this module, and ``xp`` is the namespace of NumPy, JAX or
        PyTensor.
        """
        diagonal, below, row = self.split()
        ratio = xp.sinh(coordinates[below])
        log_diagonal = coordinates[diagonal] - 0.5 * xp.log1p(_by_row(ratio**2, row, self.n))
        x = xp.concatenate([log_diagonal, xp.exp(log_diagonal[row]) * ratio])
        log_det = (np.arange(self.n) * log_diagonal).sum() + xp.log(xp.cosh(coordinates[below])).sum()
        return x[np.argsort(np.concatenate([diagonal, below]))], log_det

    def from_x(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the coordinates of this module at the model's, a row a draw, and log determinants of :meth:`to_x`."""
        diagonal, below, row = self.split()
        out = x.copy()
        log_diagonal = x[:, diagonal]
        ratio = x[:, below] * np.exp(-log_diagonal[:, row])
        out[:, below] = np.arcsinh(ratio)
        out[:, diagonal] += 0.5 * np.log1p(_by_row(ratio.T**2, row, self.n).T)
        return out, (np.arange(self.n) * log_diagonal).sum(axis=1) + 0.5 * np.log1p(ratio**2).sum(axis=1)


def _by_row(values: Any, row: np.ndarray, n: int) -> Any:
    """Return sums over the elements of each row, of values whose first axis is that of elements."""
    return (values[:, None] * (row[:, None] == np.arange(n)).reshape(len(row), n, *[1] * (values.ndim - 1))).sum(axis=0)
