"""Whitened coordinates of the search for modes: the map from the model's, copies of a position, places on the axes."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Engine
from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["WhitenedMap", "along_coordinates"]


class WhitenedMap:
    """The map of a setting.

    Several positions may stand for the same parameters: by signs of scales, or turns of angles.  Of these *copies*
    draws have one, with angles within half a turn of a centre.
    """

    def __init__(self, engine: Engine, coordinates: Coordinates):
        self._structure = engine.structure
        self._periods = engine.periods
        self._coordinates = coordinates
        self._centre = np.zeros(engine.d)

    @property
    def has_copies(self) -> bool:
        """Whether a position may have copies."""
        return self._periods is not None or self._structure.signed.size > 0

    def whiten(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whitened positions of the model's ``x``, and the log determinants of the non-centring there."""
        z, log_det = self._structure.to_z(x, self._coordinates.density_parameters)
        return self._coordinates.whiten(z), log_det

    def place(self, y: np.ndarray) -> np.ndarray:
        """Return the model's positions of whitened ones."""
        return self._structure.to_x(self._coordinates.place(y), self._coordinates.density_parameters)

    def around(self, centre: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Make a position the centre of angles, and return others with their angles turned to within half a turn."""
        self._centre = centre
        return self._turned(x)

    def _turned(self, x: np.ndarray) -> np.ndarray:
        if self._periods is None:
            return x
        turns = np.round((x - self._centre) / np.where(self._periods > 0.0, self._periods, np.inf))
        return x - self._periods * turns

    def nearest_copy(self, y: np.ndarray) -> np.ndarray:
        """Return of each whitened position ``(n, d)`` the copy that draws would have."""
        with np.errstate(all="ignore"):  # far out there may be no finite one
            return self.whiten(self._turned(self.place(y)))[0]

    def is_copy(self, y: np.ndarray) -> np.ndarray:
        """Return whether each whitened position ``(n, d)`` is another copy than the one that draws would have."""
        if not self.has_copies:
            return np.zeros(len(y), bool)
        return np.asarray(~(np.abs(self.nearest_copy(y) - y) < 0.1).all(axis=1))


def along_coordinates(coordinates: Coordinates, limit: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to ``limit`` places on both sides of 0 along coordinates, at distances that grow evenly.

    The coordinates are the model's, the places ``(n, d)`` whitened.
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
    return np.asarray(distances[:, :, None] * axes[:, None, :]).reshape(-1, d)
