"""Another mode as a result reports it (:mod:`pmm_mcmc.warmup.mode_search`), and whether draws are there."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.other_modes import OTHER_MODES

__all__ = ["Mode"]


class Mode(NamedTuple):
    """Another mode: its mass, an unconstrained coordinate along which it is apart, and its value there.

    The coordinate is -1 for mass that is no mode of its own (:mod:`pmm_mcmc.warmup.hidden_mass`).
    """

    mass: float
    coordinate: int
    value: float

    @property
    def hidden(self) -> bool:
        """Whether it is mass that is no mode of its own."""
        return self.coordinate < 0

    @property
    def share(self) -> str:
        """Its mass in words."""
        return "nearly all of the mass" if self.mass > 0.99 else f"about {100.0 * self.mass:.2g} % of the mass"

    @classmethod
    def of_finding(cls, finding: dict[str, Any]) -> Self | None:
        """Return the mode that a result reports in its attribute."""
        mode = cls(*(finding[name] for name in OTHER_MODES))
        return mode if mode.mass > 0.0 else None

    @classmethod
    def of_statistics(cls, stats: Any, chains: int) -> Self | None:
        """Return the mode with most mass, of those that each chain has met."""
        if "other_modes" not in stats:
            return None
        mass, coordinate, value = (np.reshape(stats[name].values, (chains, -1))[:, -1] for name in OTHER_MODES)
        heaviest = int(np.argmax(np.nan_to_num(mass)))
        if not mass[heaviest] > 0.0:
            return None
        return cls(float(mass[heaviest]), int(coordinate[heaviest]), float(value[heaviest]))

    def offset(self, x: np.ndarray) -> float:
        """Return by how many sd it is off the densest part of draws ``(n,)`` of its coordinate; 0 if draws are in it.

        That draws are in it and elsewhere shows that chains move; how often, their agreement shows.
        """
        centre, sd = _densest(x)
        distances = np.abs(x - self.value) / sd
        in_chains = (distances > THRESHOLDS.apart).mean()
        in_mode = (distances < 0.5 * THRESHOLDS.apart).mean()
        if in_mode > THRESHOLDS.visited * self.mass and in_chains > THRESHOLDS.visited * (1.0 - self.mass):
            return 0.0
        offset = (self.value - centre) / sd
        return offset if abs(offset) >= 1.0 else 0.0


def _densest(x: np.ndarray) -> tuple[float, float]:
    """Return centre and sd of the Gaussian that has a quarter of the draws in the shortest interval that has one."""
    ordered = np.sort(x)
    quarter = len(x) // 4
    widths = ordered[quarter:] - ordered[: len(x) - quarter]
    start = int(widths.argmin())
    return float(ordered[start] + ordered[start + quarter]) / 2.0, max(float(widths[start]) / 0.637, 1e-300)
