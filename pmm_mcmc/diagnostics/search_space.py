"""The space in which other modes are searched: coordinates in which the draws have unit covariance, and their density.

Several positions may stand for the same parameters: by signs of scales, turns of angles, or labels that may be
exchanged.  Of these *copies* draws have one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.search_thresholds import SEARCH
from pmm_mcmc.warmup.ascent import Density

__all__ = ["Map", "SearchSpace", "along_coordinates", "turned", "unchanged"]

# A map of positions ``(n, d)``.
Map = Callable[[np.ndarray], np.ndarray]
# Numbers in the states of one evaluation, at most: 16 MiB.
_NUMBERS = 2**21
# Draws for each coordinate, at least, by which a full covariance is known.
_DRAWS_A_COORDINATE = 10


def unchanged(x: np.ndarray) -> np.ndarray:
    """Return positions as they are."""
    return x


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
        to_z: Map = unchanged,
        to_x: Map = unchanged,
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
        size = max(1, _NUMBERS // (4 * y.shape[1]))
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

    def own_copy(self, y: np.ndarray) -> np.ndarray:
        """Return of each whitened position ``(n, d)`` the copy that draws would have."""
        if self._copy is None or not len(y):
            return y
        with np.errstate(all="ignore"):  # far out there may be no finite one
            return self.coordinates.whiten(self._to_z(self._copy(self.place(y))))


def along_coordinates(coordinates: Coordinates, limit: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to ``limit`` places on both sides of 0 along coordinates, at distances that grow evenly.

    The coordinates are those that ``coordinates`` whiten, the places ``(sides, n, d)`` whitened.
    """
    steps = int(np.log(SEARCH.furthest / SEARCH.nearest) / np.log(SEARCH.spacing))
    sides = rng.permutation(2 * d)[: limit // steps]
    axes = np.zeros((len(sides), d))
    axes[np.arange(len(sides)), sides // 2] = 1 - 2 * (sides % 2)
    axes = coordinates._replace(centre=np.zeros(d)).whiten(axes)
    lengths = np.linalg.norm(axes, axis=1, keepdims=True)
    has_length = lengths[:, 0] > 0.0  # scales may be beyond what a double holds
    axes = axes[has_length] / lengths[has_length]
    distances = SEARCH.nearest * SEARCH.spacing ** (np.arange(steps) + rng.uniform(size=(len(axes), 1)))
    return np.asarray(distances[:, :, None] * axes[:, None, :])


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
