"""The space in which other modes are searched: coordinates in which the draws have unit covariance, and their density.

Several positions may stand for the same parameters: by signs of scales, turns of angles, or labels that may be
exchanged.  Of these *copies* draws have one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_mass import Maximum, distinct
from pmm_mcmc.diagnostics.search_thresholds import SEARCH
from pmm_mcmc.warmup.ascent import Ascents, Density

__all__ = ["SearchSpace", "lowest_falls", "turned"]

# A map of positions ``(n, d)``.
Map = Callable[[np.ndarray], np.ndarray]
# Numbers in the places that are held at once, at most: 16 MiB.
_NUMBERS = 2**21
# Draws for each coordinate, at least, by which a full covariance is known.
_DRAWS_A_COORDINATE = 10


def turned(x: np.ndarray, centre: np.ndarray, periods: np.ndarray | None) -> np.ndarray:
    """Return positions ``(n, d)`` with their angles, which have ``periods``, within half a turn of ``centre``."""
    if periods is None:
        return x
    return np.asarray(x - periods * np.round((x - centre) / np.where(periods > 0.0, periods, np.inf)))


class SearchSpace:
    """Whitened coordinates of draws ``x`` ``(n, d)``, with the density of positions ``z``.

    ``to_z`` and ``to_x`` are the maps between the model's coordinates and those of the density, ``copy`` is that to the
    copy which draws have, None without any.  Every other draw makes the coordinates, and the others are ``held_back``.
    The number of evaluations is ``spent``.
    """

    def __init__(
        self,
        density: Density,
        x: np.ndarray,
        to_z: Map = np.asarray,
        to_x: Map = np.asarray,
        copy: Map | None = None,
        coordinates: Coordinates | None = None,
    ):
        self._density = density
        self._to_z = to_z
        self._to_x = to_x
        self._copy = copy
        z = to_z(x)
        self.coordinates = _whitening(z[::2] if len(z) > 1 else z, coordinates)
        self.draws = self.coordinates.whiten(z)
        self.held_back = self.draws[1::2] if len(z) > 1 else self.draws
        self.spent = 0

    @property
    def d(self) -> int:
        """Number of coordinates."""
        return self.draws.shape[1]

    @property
    def room(self) -> int:
        """Number of places that may be held at once."""
        return max(1, _NUMBERS // self.d)

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Return whitened positions of those of the model's whose are finite."""
        with np.errstate(all="ignore"):
            y = self.coordinates.whiten(self._to_z(x))
        return y[np.isfinite(y).all(axis=1)]

    def place(self, y: np.ndarray) -> np.ndarray:
        """Return the model's positions of whitened ones."""
        return self._to_x(self.coordinates.place(y))

    def density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and gradients at whitened positions, NaN where they are not finite."""
        lp = np.empty(len(y))
        gradient = np.empty(y.shape)
        size = max(1, self.room // 4)
        for i in range(0, len(y), size):
            rows = slice(i, i + size)
            with np.errstate(all="ignore"):
                lp[rows], slope = self._density(self.coordinates.place(y[rows]))
                gradient[rows] = self.coordinates.pull_back(slope)
        self.spent += len(y)
        return np.where(np.isfinite(gradient).all(axis=1) & np.isfinite(lp), lp, np.nan), gradient

    def lp(self, y: np.ndarray) -> np.ndarray:
        """Return log densities, minus infinity at copies, and where they are not finite."""
        lp = np.nan_to_num(self.density(y)[0], nan=-np.inf)
        if self._copy is None:
            return lp
        with np.errstate(invalid="ignore"):
            return np.where((np.abs(self.own_copy(y) - y) < 0.1).all(axis=1), lp, -np.inf)

    def along_coordinates(self, limit: int, rng: np.random.Generator) -> np.ndarray:
        """Return up to ``limit`` whitened places ``(sides, n, d)`` on both sides of 0 along the density's coordinates.

        Their distances grow evenly.
        """
        d = self.d
        steps = int(np.log(SEARCH.furthest / SEARCH.nearest) / np.log(SEARCH.spacing))
        sides = rng.permutation(2 * d)[: min(limit, max(self.room, steps)) // steps]
        axes = np.zeros((len(sides), d))
        axes[np.arange(len(sides)), sides // 2] = 1 - 2 * (sides % 2)
        axes = self.coordinates._replace(centre=np.zeros(d)).whiten(axes)
        lengths = np.linalg.norm(axes, axis=1, keepdims=True)
        has_length = lengths[:, 0] > 0.0  # scales may be beyond what a double holds
        axes = axes[has_length] / lengths[has_length]
        distances = SEARCH.nearest * SEARCH.spacing ** (np.arange(steps) + rng.uniform(size=(len(axes), 1)))
        return np.asarray(distances[:, :, None] * axes[:, None, :])

    def maxima(self, start: np.ndarray, limit: int) -> list[Maximum]:
        """Return the maxima that ascents from whitened starts ``(n, d)`` reach, with at most ``limit`` gradients."""
        with np.errstate(over="ignore", invalid="ignore"):  # a density without a bound
            ends = Ascents.of(self.density, start, np.zeros(self.d), limit)
        y, lp, gradient = (array[ends.arrived] for array in (ends.position, ends.lp, ends.gradient))
        copies = self.own_copy(y)
        if copies is not y:  # a sign, a turn or labels do not make another mode
            y = copies
            lp, gradient = self.density(y)
        maxima = map(Maximum, y, lp.tolist(), gradient, ends.scale[ends.arrived].tolist())
        return distinct([maximum for maximum in maxima if np.isfinite(maximum.lp)], [])

    def own_copy(self, y: np.ndarray) -> np.ndarray:
        """Return of each whitened position ``(n, d)`` the copy that draws would have."""
        if self._copy is None or not len(y):
            return y
        with np.errstate(all="ignore"):  # far out there may be no finite one
            return self.coordinates.whiten(self._to_z(self._copy(self.place(y))))


def lowest_falls(offset: np.ndarray, fall: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, of up to ``count`` groups of places by distance, the number of the best one, and by how much it is.

    The best is that with the least ``fall`` of the log density for its squared ``offset`` ``(n, d)``.  By how much is
    its share of the median fall in its group.
    """
    square = (offset**2).sum(axis=1)
    slope = fall / np.maximum(square, 1e-300)
    groups = np.array_split(np.argsort(square), max(1, min(count, len(square))))
    best = np.array([group[np.argmin(slope[group])] for group in groups if len(group)], int)
    typical = np.array([np.median(slope[group]) for group in groups if len(group)])
    with np.errstate(invalid="ignore"):
        return best, np.nan_to_num(slope[best] / typical, nan=1.0)


def _whitening(z: np.ndarray, coordinates: Coordinates | None) -> Coordinates:
    """Return coordinates in which draws ``z`` ``(n, d)`` have about unit covariance, or those given if too few."""
    n, d = z.shape
    centre = z.mean(axis=0)
    if d <= SEARCH.exact_hessian and n >= _DRAWS_A_COORDINATE * d:
        try:
            root = np.linalg.cholesky(np.cov(z.T).reshape(d, d))
        except np.linalg.LinAlgError:
            root = np.zeros((d, d))
        if (np.diag(root) > 0.0).all() and np.isfinite(root).all():
            return Coordinates(centre, root if d > 1 else root[0])
    if coordinates is not None:
        return coordinates._replace(centre=centre, density_parameters=None)
    return Coordinates(centre, np.maximum(z.std(axis=0), 1e-300))
