"""The map between the model's coordinates and whitened ones, for the search for modes; and copies of a position."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Engine

__all__ = ["WhitenedMap"]


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
