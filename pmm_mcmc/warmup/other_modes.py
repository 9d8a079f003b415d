"""A record of the modes that scouts, climbs from far out (:mod:`pmm_mcmc.warmup.scouts`), find beside the chains'."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["OTHER_MODES", "OtherModes"]


class OtherModes(NamedTuple):
    """The modes that scouts find apart from those of the chains.

    Attributes
    ----------
    mass
        Share of the posterior in other modes, as estimated; 0 if there are none, NaN if nobody looked.
    coordinate, position
        Number of the unconstrained coordinate in which the largest of them is furthest away, and its position there;
        -1 and NaN if there is none, or if the mass is a broad slab or a narrow spike
        (:mod:`pmm_mcmc.warmup.hidden_mass`).
    """

    mass: float = math.nan
    coordinate: int = -1
    position: float = math.nan

    @property
    def statistics(self) -> dict[str, float | int]:
        """Their values by name, as among the statistics of draws."""
        return dict(zip(OTHER_MODES, self, strict=True))


# The names of the fields among the statistics of draws.
OTHER_MODES = ("other_modes", "other_mode_coordinate", "other_mode_position")
