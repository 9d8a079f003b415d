"""The search for modes of a ladder: ascents from draws at all temperatures, beside those of an ordinary run.

A mode that is narrow beside another has little weight at temperatures in between, so that few chains bring it to the
posterior; but a draw in its basin is enough to find it.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_mass import Maximum, distinct
from pmm_mcmc.diagnostics.mode_search import OtherModes, SearchSpace, lowest_falls, search_modes, turned
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.tempering.path import Points, TemperingPath

__all__ = ["search_modes_of_ladder", "unmet_maxima"]

# Maxima at most, the highest ones.
_MOST_MAXIMA = 24
# Ascents that are made together.
_TOGETHER = 256
# Gradients of each ascent at most.
_GRADIENTS_PER_ASCENT = 60
# Places along coordinates from which ascents start, each at another distance.
_PLACES = 16
# Draws at the posterior from which ascents start.
_POSTERIOR_STARTS = 256
# Share of the gradients that ascents spend at most.
_SHARE = 0.2


def search_modes_of_ladder(
    path: TemperingPath,
    setting: TunedParameters,
    intermediate: np.ndarray,
    draws: Points,
    prior: np.ndarray,
    n_grad: int,
    rng: np.random.Generator,
) -> tuple[OtherModes, np.ndarray, int]:
    """Return the modes that no draw at the posterior is in, the maxima ``(m, d)`` of all ascents, and the gradients.

    Ascents start from positions ``(n, d)`` at ``intermediate`` temperatures and, as after the draws of other runs, from
    draws of the ``prior`` ``(m, d)``.  They are compared with ``draws`` ``(k, C, ...)`` of the posterior, whose
    ``setting`` it is.  Those from intermediate temperatures spend a fifth of ``n_grad`` at most, the gradients so far.
    """
    positions = draws.position.reshape(-1, path.d)
    periods = path.engine.periods
    space = SearchSpace(
        path.whitened_density(Coordinates(np.zeros(path.d), np.ones(path.d))),
        turned(positions, positions[-1], periods),
        copy=None if periods is None else lambda y: turned(y, positions[-1], periods),
        coordinates=setting.coordinates,
    )
    unmet = unmet_maxima(space, rng.permutation(intermediate), int(_SHARE * n_grad), rng)
    if not len(unmet) and not len(prior):
        return OtherModes(0.0), unmet, space.spent
    modes, maxima = search_modes(space, prior, rng, maxima=unmet)
    return modes, maxima, space.spent


def unmet_maxima(space: SearchSpace, intermediate: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Return the maxima ``(m, d)`` that no ascent from a draw at the posterior, those of the ``space``, reaches.

    Ascents start from positions ``(n, d)`` at ``intermediate`` temperatures, in random order, and from places along
    coordinates where the density falls least away from the maxima of draws.  They spend about ``limit`` gradients.
    """
    met = _maxima(space, rng.permutation(space.draws)[:_POSTERIOR_STARTS], 0.25 * limit)
    if not met:  # nothing that the others could be compared with
        return np.empty((0, space.d))
    places = _places_to_ascend(space, met, (limit - space.spent) // 2, rng)
    maxima = _maxima(space, np.concatenate([places, space.whiten(intermediate)]), limit)
    highest_first = sorted(maxima, key=lambda maximum: -maximum.lp)
    unmet = [maximum.y for maximum in distinct(highest_first, met)[:_MOST_MAXIMA]]
    return space.place(np.reshape(unmet, (-1, space.d)))


def _maxima(space: SearchSpace, start: np.ndarray, limit: float) -> list[Maximum]:
    """Return the maxima that ascents from whitened starts reach, until about ``limit`` gradients are spent."""
    maxima: list[Maximum] = []
    for i in range(0, len(start), _TOGETHER):
        if space.spent >= limit:
            break
        group = start[i : i + _TOGETHER]
        maxima += space.maxima(group, _GRADIENTS_PER_ASCENT * len(group))
    return maxima


def _places_to_ascend(space: SearchSpace, met: list[Maximum], limit: int, rng: np.random.Generator) -> np.ndarray:
    """Return places along coordinates where the density is highest for their distance from a maximum."""
    offsets = space.along_coordinates(limit, rng).reshape(-1, space.d)
    base = [met[i] for i in rng.integers(len(met), size=len(offsets))]
    places = np.reshape([maximum.y for maximum in base], (-1, space.d)) + offsets
    best, _ = lowest_falls(offsets, [maximum.lp for maximum in base] - space.lp(places), _PLACES)
    return places[best]
