"""A short search for a mode in which chains from a former run are not: ascents from cold starts and from the prior."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.engines.contract import Engine, TunedParameters, in_model_coordinates
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.maxima import are_one_mode, distinct
from pmm_mcmc.warmup.mode_search import ModeSearch
from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["leads_elsewhere"]

# Ascents, at most.
_PLACES = 4


def leads_elsewhere(
    engine: Engine, tuned: TunedParameters, draws: Block, starts: np.ndarray, rng: np.random.Generator
) -> tuple[bool, int]:
    """Return whether ascents lead to a mode in which no draw is, and the gradients spent.

    They begin at ``starts`` ``(n, d)`` in the model's coordinates, and end after ``SEARCH.gradients_elsewhere``
    gradients for each of the chains, four at least.
    """
    limit = SEARCH.gradients_elsewhere * max(len(draws.lp), 4)
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


class _Elsewhere(ModeSearch):
    def leads(self, draws: Block, starts: np.ndarray) -> bool:
        """Return whether an ascent from ``starts`` ends in a mode in which no draw is."""
        x = in_model_coordinates(*(array.swapaxes(0, 1).reshape(-1, array.shape[2]) for array in draws[:2]))[0]
        x = self._map.around(x[-1], x)
        y, _ = self._map.whiten(x)
        chain_maxima = self._ascend(y[-1:], y[-1], self._limit // 4)
        with np.errstate(all="ignore"):
            whitened_starts = self._map.whiten(starts)[0]
        whitened_starts = whitened_starts[np.isfinite(whitened_starts).all(axis=1)]
        reached = self._ascend(_apart(whitened_starts, y.mean(axis=0)), y[-1], self._left)
        lowest = max((maximum.lp for maximum in chain_maxima), default=np.inf)
        lowest -= SEARCH.lowest + SEARCH.lowest_each * y.shape[1]
        for maximum in distinct(reached, chain_maxima):
            if maximum.lp < lowest:
                continue
            nearest_draw = y[[np.argmin(((y - maximum.y) ** 2).sum(axis=1))]]
            chain_maxima += distinct(self._ascend(nearest_draw, nearest_draw[0], self._left), chain_maxima)
            if not any(are_one_mode(maximum, other, self._density) for other in chain_maxima):
                return True
        return False
