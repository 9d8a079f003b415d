"""Cross-fitting of the control variates of :mod:`pmm_mcmc.diagnostics.stein`: coefficients from other chains.

The draws are cut into *folds*; coefficients for a fold are fitted on the draws of all others.  Here is what all
functions of the parameters share, since it follows from positions ``x`` and gradients ``g``: for each fold a Gaussian
fitted to the other draws, with mean ``m``, and the virial terms :math:`(x_j - m_j) g_j + 1` of all its draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from pmm_mcmc.coordinates.scale import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import count_pieces

__all__ = ["Fold", "Folds", "count_virial_terms"]

_TINY = 1e-10  # relative, against division by zero
# Numbers of positions, or of gradients, that are copied together: eight megabytes.
_COPIED = 2**20


class Fold:
    """One fold: the draws ``rows[:fitted]`` to fit coefficients on, and ``rows[fitted:]``, to which they are applied.

    Positions and gradients ``(n, d)`` are of all draws, of which ``rows`` are numbers.  With ``keep_virial`` the virial
    terms stay in memory.  The Gaussian has a full covariance if the fold is ``dense``, in many coordinates a diagonal.
    """

    def __init__(
        self, position: np.ndarray, gradient: np.ndarray, rows: np.ndarray, fitted: int, *, keep_virial: bool = False
    ):
        self._x = position
        self._g = gradient
        self._keep_virial = keep_virial
        self._rows = rows
        self.fitted = fitted
        self._virial: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        train = rows[:fitted]
        d = position.shape[1]
        self.dense = d <= MOST_DENSE and fitted > 3 * d
        if self.dense:
            x = position[train]
            self._centre, root = affine_scale(x, gradient[train], dense=True)
            self._mean = x.mean(axis=0)
            self._covariance = root @ root.T
            gram = (x - self._mean).T @ (x - self._mean)
            # The slope on a coordinate that does not move is 0.
            gram[np.diag_indices(d)] = np.where(gram.diagonal() > 0.0, gram.diagonal() * (1.0 + _TINY), 1.0)
            self._factor = lu_factor(gram)
        else:
            self._centre, self._scale, self._mean = np.empty((3, d))
            for columns in self._column_blocks(np.arange(d + 1)):
                x = position[train, columns]
                self._centre[columns], self._scale[columns] = affine_scale(x, gradient[train, columns], dense=False)
                self._mean[columns] = x.mean(axis=0)

    def _column_blocks(self, starts: np.ndarray) -> Iterator[slice]:
        """Yield ranges of coordinates, few enough to be copied together, that begin and end at some of ``starts``."""
        count = max(1, _COPIED // len(self._rows))
        start = 0
        while start < len(starts) - 1:
            end = max(start + 1, int(np.searchsorted(starts, starts[start] + count, "right")) - 1)
            yield slice(int(starts[start]), int(starts[end]))
            start = end

    def directions(self, values: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
        """Return the direction along which each function, with values ``(fitted, p)``, varies.

        These are slopes ``(p, d)`` or, unless the fold is dense, the number of one coordinate each ``(p,)``.  It is
        known of a function that equals a ``coordinate``, and estimated where that is -1.
        """
        free = np.flatnonzero(coordinate < 0)
        train = self._rows[: self.fitted]
        f = values[:, free]
        f = f - f.mean(axis=0)
        if self.dense:
            # Least squares of f on x is exact for linear functions, however correlated the coordinates are.
            slope = np.zeros((len(coordinate), self._x.shape[1]))
            slope[coordinate >= 0, coordinate[coordinate >= 0]] = 1.0
            if len(free):
                slope[free] = lu_solve(self._factor, (self._x[train] - self._mean).T @ f).T
            return slope
        # Too many coordinates to know how they move together: follow the one that f varies with most.
        best = coordinate.copy()
        largest = np.full(len(free), -1.0)
        for columns in self._column_blocks(np.arange(self._x.shape[1] + 1)) if len(free) else ():
            x = self._x[train, columns] - self._mean[columns]
            with_each = np.abs(f.T @ (x / np.maximum(x.std(axis=0), 1e-300)))
            strongest = with_each.argmax(axis=1)
            strength = with_each[np.arange(len(free)), strongest]
            best[free] = np.where(strength > largest, columns.start + strongest, best[free])
            largest = np.maximum(largest, strength)
        return best

    def along(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions ``u`` along each direction and the terms ``S_1`` of all draws, ``(rows, p)`` each."""
        if self.dense:
            slopes = directions @ self._covariance
            s = np.sqrt(np.maximum((slopes * directions).sum(axis=1), 1e-300))
            return (self._x[self._rows] - self._centre) @ (directions.T / s), self._g[self._rows] @ (slopes.T / -s)
        elements = (self._rows[:, None], directions)
        scale = self._scale[directions]
        return (self._x[elements] - self._centre[directions]) / scale, -(self._g[elements] * scale)

    def virial(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the virial terms to fit on, as :func:`about_means` does, and those to which coefficients apply."""
        if self._virial is not None:
            return self._virial
        terms = self.virial_terms()
        result = (*about_means(terms[: self.fitted]), terms[self.fitted :])
        if self._keep_virial:
            self._virial = result
        return result

    def virial_terms(self) -> np.ndarray:
        """Return the virial terms of all coordinates or, if these are many, sums over neighbours: ``(rows, count)``."""
        d = self._x.shape[1]
        count = count_virial_terms(self.fitted, d)
        starts = np.arange(count + 1) * d // max(count, 1)
        result = np.empty((len(self._rows), count))
        for columns in self._column_blocks(starts) if count else ():
            terms = self._x[self._rows, columns] - self._mean[columns]
            terms *= self._g[self._rows, columns]
            terms += 1.0
            begin, end = np.searchsorted(starts, (columns.start, columns.stop))
            if count < d:
                terms = np.add.reduceat(terms, starts[begin:end] - columns.start, axis=1)
            result[:, begin:end] = terms
        return result


class Folds:
    """The folds of a result, from positions and gradients ``(chain, draw, d)``.

    Each chain is cut into pieces, whose means give standard errors.  A fold is a chain, or some if there are many; of a
    single chain it is a piece.

    Attributes
    ----------
    coordinates, chains, pieces_per_chain, skipped
        Numbers of coordinates, chains, pieces of each, and its first draws, which are in no piece.
    members
        For each fold: the Fold; the numbers of its draws among those in pieces, as in its ``rows``; and its pieces.
    """

    def __init__(self, position: np.ndarray, gradient: np.ndarray):
        chains, draws, d = position.shape
        self.coordinates = d
        self.chains = chains
        self.pieces_per_chain = count_pieces(chains, draws)
        self.skipped = draws % self.pieces_per_chain
        used = draws - self.skipped
        pieces = np.repeat(np.arange(chains * self.pieces_per_chain), used // self.pieces_per_chain)
        folds = pieces
        if chains > 1:
            folds = pieces // self.pieces_per_chain * min(chains, THRESHOLDS.folds) // chains
        self.members: list[tuple[Fold, np.ndarray, np.ndarray]] = []
        for number in np.unique(folds):
            held = np.flatnonzero(folds == number)
            train = np.flatnonzero(folds != number)
            train = train[:: -(-len(train) // THRESHOLDS.fitted_draws)]
            rows = np.concatenate([train, held])
            # Kept terms take no more memory than positions and gradients do.
            keep = bool((folds[-1] + 1) * len(train) * count_virial_terms(len(train), d) <= 2 * position.size)
            row_numbers = rows + (rows // used + 1) * self.skipped
            of_draws = position.reshape(-1, d), gradient.reshape(-1, d)
            fold = Fold(*of_draws, row_numbers, len(train), keep_virial=keep)
            self.members.append((fold, rows, np.unique(pieces[held])))

    def directions(self, values: np.ndarray, coordinate: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the directions of functions ``(chain, draw, p)`` in each fold, as ``Fold.directions`` does."""
        f, _ = self.about_first(values)
        coordinate = np.full(f.shape[1], -1) if coordinate is None else coordinate
        return [fold.directions(f[rows[: fold.fitted]], coordinate) for fold, rows, _ in self.members]

    def about_first(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return functions ``(chain, draw, p)`` of draws in pieces, minus their first values, as ``(n, p)``; and these.

        So a constant is exactly zero.  A function that is not finite somewhere is 0, and its first value NaN.
        """
        f = values[:, self.skipped :].reshape(-1, values.shape[2])
        finite = np.isfinite(f).all(axis=0)
        return np.where(finite, f - np.where(finite, f[0], 0.0), 0.0), np.where(finite, f[0], np.nan)


def about_means(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return virial terms ``(n, m)`` about their means, and the inverse of their normal matrix, with a ridge."""
    h = terms - terms.mean(axis=0)
    variance = np.maximum((h**2).mean(axis=0), 1e-300)
    return h, np.linalg.inv(h.T @ h + np.diag(THRESHOLDS.ridge * len(h) * variance))


def count_virial_terms(n: int, d: int) -> int:
    """Return the number of virial terms to fit on ``n`` draws; none for one coordinate, where it would be ``S_2``."""
    return min(d, THRESHOLDS.virial_terms, n // THRESHOLDS.draws_a_term) if d > 1 else 0
