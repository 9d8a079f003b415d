"""Draws in folds: what the corrections of :mod:`pmm_mcmc.diagnostics.stein` need of them whatever the function is.

Coefficients are fitted on all folds but one and applied to that one.  What they are fitted with, a Gaussian and the
virial terms, depends on positions and gradients alone: it is made once for all parameters of a result.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from pmm_mcmc.coordinates.scale import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.warmup.standard_errors import count_pieces

__all__ = ["Fold", "Folds", "count_virial_terms"]

_TINY = 1e-10  # relative, against division by zero
# Numbers of positions, or of gradients, that are copied together: eight megabytes.
_COPIED = 2**20


class Fold:
    """One fold: ``rows[:fitted]`` are the draws that coefficients are fitted on, the others are of the fold itself.

    Parameters
    ----------
    position, gradient : (n, d)
        Those of all draws.
    train, held : (rows,) int
        Draws to fit on and of the fold.
    keep
        Whether the virial terms stay in memory once they are made.
    """

    def __init__(
        self, position: np.ndarray, gradient: np.ndarray, train: np.ndarray, held: np.ndarray, *, keep: bool = False
    ):
        self._x = position
        self._g = gradient
        self._keep = keep
        self._rows = np.concatenate([train, held])
        self.fitted = len(train)
        self._virial: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        d = position.shape[1]
        self.dense = d <= MOST_DENSE and len(train) > 3 * d
        if self.dense:
            x = position[train]
            g = gradient[train]
            self._centre, root = affine_scale(x, g, dense=True)
            self._mean = x.mean(axis=0)
            self._covariance = root @ root.T
            gram = (x - self._mean).T @ (x - self._mean)
            # The slope on a coordinate that does not move is 0.
            gram[np.diag_indices(d)] = np.where(gram.diagonal() > 0.0, gram.diagonal() * (1.0 + _TINY), 1.0)
            self._factor = lu_factor(gram)
        else:
            self._centre, self._scale, self._mean = np.empty((3, d))
            for columns in self._columns(np.arange(d + 1)):
                x = position[train, columns]
                g = gradient[train, columns]
                self._centre[columns], self._scale[columns] = affine_scale(x, g, dense=False)
                self._mean[columns] = x.mean(axis=0)

    def _columns(self, starts: np.ndarray) -> Iterator[slice]:
        """Yield ranges of coordinates that are copied together and begin at some of ``starts``, whose last is ``d``."""
        count = max(1, _COPIED // len(self._rows))
        start = 0
        while start < len(starts) - 1:
            end = max(start + 1, int(np.searchsorted(starts, starts[start] + count, "right")) - 1)
            yield slice(int(starts[start]), int(starts[end]))
            start = end

    def directions(self, follow: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
        """Return how functions ``(rows, p)`` vary: slopes ``(p, d)`` or, of very many coordinates, one each ``(p,)``.

        Those of functions that equal a coordinate, ``coordinate >= 0``, need not be estimated.
        """
        free = np.flatnonzero(coordinate < 0)
        train = self._rows[: self.fitted]
        f = follow[: self.fitted, free]
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
        for columns in self._columns(np.arange(self._x.shape[1] + 1)) if len(free) else ():
            x = self._x[train, columns] - self._mean[columns]
            with_each = np.abs(f.T @ (x / np.maximum(x.std(axis=0), 1e-300)))
            strongest = with_each.argmax(axis=1)
            strength = with_each[np.arange(len(free)), strongest]
            best[free] = np.where(strength > largest, columns.start + strongest, best[free])
            largest = np.maximum(largest, strength)
        return best

    def along(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``u`` and ``S_1`` of functions with these directions, ``(rows, p)`` each."""
        if self.dense:
            slopes = directions @ self._covariance
            s = np.sqrt(np.maximum((slopes * directions).sum(axis=1), 1e-300))
            return (self._x[self._rows] - self._centre) @ (directions.T / s), self._g[self._rows] @ (slopes.T / -s)
        elements = (self._rows[:, None], directions)
        scale = self._scale[directions]
        return (self._x[elements] - self._centre[directions]) / scale, -(self._g[elements] * scale)

    def virial(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return virial terms about their means ``(fitted, m)``, their normal matrix's inverse, those of the fold."""
        if self._virial is not None:
            return self._virial
        terms = self.virial_terms()
        result = (*about_means(terms[: self.fitted]), terms[self.fitted :])
        if self._keep:
            self._virial = result
        return result

    def virial_terms(self) -> np.ndarray:
        """Return ``(x - m) g + 1`` of all coordinates, or sums over neighbours if there are many: ``(rows, m)``.

        ``m`` is the mean of the draws that are fitted.
        """
        d = self._x.shape[1]
        m = count_virial_terms(self.fitted, d)
        starts = np.arange(m + 1) * d // max(m, 1)
        result = np.empty((len(self._rows), m))
        for columns in self._columns(starts) if m else ():
            terms = self._x[self._rows, columns] - self._mean[columns]
            terms *= self._g[self._rows, columns]
            terms += 1.0
            begin, end = np.searchsorted(starts, (columns.start, columns.stop))
            if m < d:
                terms = np.add.reduceat(terms, starts[begin:end] - columns.start, axis=1)
            result[:, begin:end] = terms
        return result


class Folds:
    """The folds of a result, from positions and gradients ``(chain, draw, d)``.

    Chains are left out in turn, in groups if there are many; of a single one, pieces.

    Attributes
    ----------
    coordinates, chains, cut, skipped
        Coordinates, chains, the pieces that each is cut into, and the first draws of each that are in none.
    rows
        Draws of each fold: those to fit on, then its own, counted without those skipped.
    pieces
        Pieces that each fold consists of.
    """

    def __init__(self, position: np.ndarray, gradient: np.ndarray):
        chains, draws, d = position.shape
        self.coordinates = d
        self.chains = chains
        self.cut = count_pieces(chains, draws)
        self.skipped = draws % self.cut
        used = draws - self.skipped
        x = position.reshape(-1, d)
        g = gradient.reshape(-1, d)
        every = np.arange(chains * draws).reshape(chains, draws)[:, self.skipped :].ravel()
        pieces = np.repeat(np.arange(chains * self.cut), used // self.cut)
        folds = pieces // self.cut * min(chains, CALIBRATION.folds) // chains if chains > 1 else pieces
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []
        self.pieces: list[np.ndarray] = []
        self._folds: list[Fold] = []
        for fold in np.unique(folds):
            held = np.flatnonzero(folds == fold)
            train = np.flatnonzero(folds != fold)
            train = train[:: -(-len(train) // CALIBRATION.fitted_draws)]
            # Kept terms take no more memory than positions and gradients do.
            keep = (folds[-1] + 1) * len(train) * count_virial_terms(len(train), d) <= 2 * x.size
            self.rows.append((train, held))
            self.pieces.append(np.unique(pieces[held]))
            self._folds.append(Fold(x, g, every[train], every[held], keep=bool(keep)))

    def __iter__(self) -> Iterator[tuple[Fold, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield each fold with the draws to fit on, its own, and its pieces."""
        for fold, (train, held), pieces in zip(self._folds, self.rows, self.pieces, strict=True):
            yield fold, train, held, pieces

    def flat(self, values: np.ndarray) -> np.ndarray:
        """Return draws ``(chain, draw, p)`` of functions without those skipped: ``(n, p)``."""
        return values[:, self.skipped :].reshape(-1, values.shape[2])

    def directions(self, follow: np.ndarray, coordinate: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the directions of functions ``(chain, draw, p)`` in each fold, as ``Fold.directions`` does."""
        f = self.flat(follow)
        finite = np.isfinite(f).all(axis=0)
        f = np.where(finite, f - np.where(finite, f[0], 0.0), 0.0)
        coordinate = np.full(f.shape[1], -1) if coordinate is None else coordinate
        return [fold.directions(f[np.concatenate([train, held])], coordinate) for fold, train, held, _ in self]


def about_means(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return shared terms ``(n, m)`` about their means, and the inverse of their normal matrix, with a ridge."""
    h = terms - terms.mean(axis=0)
    variance = np.maximum((h**2).mean(axis=0), 1e-300)
    return h, np.linalg.inv(h.T @ h + np.diag(CALIBRATION.ridge * len(h) * variance))


def count_virial_terms(n: int, d: int) -> int:
    """Return the number of virial terms for ``n`` draws; with one coordinate it would be the own-direction ``S_2``."""
    return min(d, CALIBRATION.virial_terms, n // CALIBRATION.draws_a_term) if d > 1 else 0
