"""A record of the modes that the search at the end of a warm-up (:mod:`pmm_mcmc.warmup.mode_search`) has found."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["OTHER_MODES", "OtherModes"]


class OtherModes(NamedTuple):
    """The modes beside those that the chains visit.

    Attributes
    ----------
    mass
        Share of the posterior in other modes, as estimated; 0 if there are none, NaN if there was no search.
    coordinate, position
        Number of the unconstrained coordinate in which the largest of them is furthest away, and its position there;
        -1 and NaN if there is none, or if the mass has no maximum of its own (:mod:`pmm_mcmc.warmup.hidden_mass`).
    """

    mass: float = math.nan
    coordinate: int = -1
    position: float = math.nan

    @property
    def hidden(self) -> bool:
        """Whether the mass has no maximum of its own."""
        return self.coordinate < 0

    @property
    def statistics(self) -> dict[str, float | int]:
        """Their values by name, as among the statistics of draws."""
        return dict(zip(OTHER_MODES, self, strict=True))


# The names of the fields among the statistics of draws.
OTHER_MODES = ("other_modes", "other_mode_coordinate", "other_mode_position")
