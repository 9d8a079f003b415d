"""A short look for a mode in which chains from a former run are not: climbs from cold starts and from the prior."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.engines.arguments import Block, TunedParameters
from pmm_mcmc.engines.contract import Engine, model_side
from pmm_mcmc.warmup.scouts import Search, others
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["leads_elsewhere"]

# Climbs, at most.
_PLACES = 4


def leads_elsewhere(
    engine: Engine, tuned: TunedParameters, draws: Block, starts: np.ndarray, rng: np.random.Generator
) -> tuple[bool, int]:
    """Return whether climbs lead to a mode in which no draw is, and the gradients spent.

    They begin at ``starts`` ``(n, d)`` in the model's coordinates, and end after ``THRESHOLDS.climbs_elsewhere``
    gradients for each of the chains, four at least.
    """
    limit = THRESHOLDS.climbs_elsewhere * max(len(draws.lp), 4)
    search = _Elsewhere(engine, tuned, limit, rng)
    return search.leads(draws, starts), search.spent


def _apart(places: np.ndarray, home: np.ndarray) -> np.ndarray:
    """Return places that are furthest from ``home`` and from each other, of the nearest three quarters."""
    distance = np.linalg.norm(places - home, axis=1)
    order = np.argsort(distance)[: -(-3 * len(places) // 4)]
    places = places[order]
    distance = distance[order]
    chosen: list[int] = []
    while len(chosen) < min(_PLACES, len(places)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return places[chosen]


class _Elsewhere(Search):
    def leads(self, draws: Block, starts: np.ndarray) -> bool:
        """Return whether a climb from ``starts`` ends in a mode in which no draw is."""
        x = model_side(*(array.swapaxes(0, 1).reshape(-1, array.shape[2]) for array in draws[:2]))[0]
        x = self._map.around(x[-1], x)
        y, _ = self._map.whiten(x)
        chain_maxima = self._climb(y[-1:], y[-1], self._limit // 4)
        with np.errstate(all="ignore"):
            places = self._map.whiten(starts)[0]
        places = _apart(places[np.isfinite(places).all(axis=1)], y.mean(axis=0))
        ends = self._climb(places, y[-1], self._left)
        lowest = max((home.lp for home in chain_maxima), default=np.inf)
        lowest -= THRESHOLDS.lowest + THRESHOLDS.lowest_each * y.shape[1]
        for end in others(ends, chain_maxima):
            if end.lp < lowest:
                continue
            nearest = y[[np.argmin(((y - end.y) ** 2).sum(axis=1))]]
            chain_maxima += others(self._climb(nearest, nearest[0], self._left), chain_maxima)
            if not any(self._same(end, home) for home in chain_maxima):
                return True
        return False
