"""The search for modes of a ladder: ascents from draws at all temperatures, beside those of an ordinary run.

A mode that is narrow beside another has little weight at temperatures in between, so that few chains bring it to the
posterior; but a draw in its basin is enough to find it.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_mass import Maximum, distinct
from pmm_mcmc.diagnostics.mode_search import search_modes
from pmm_mcmc.diagnostics.other_modes import OtherModes
from pmm_mcmc.diagnostics.search_space import SearchSpace, along_coordinates, turned
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.tempering.path import Points, TemperingPath
from pmm_mcmc.warmup.ascent import Ascents, Density

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
    some = positions[rng.permutation(len(positions))[:_POSTERIOR_STARTS]]
    unmet, ascent_gradients = unmet_maxima(
        path, setting.coordinates, rng.permutation(intermediate), some, int(_SHARE * n_grad), rng
    )
    if not len(unmet) and not len(prior):
        return OtherModes(0.0), unmet, ascent_gradients
    periods = path.engine.periods
    x = turned(positions, positions[-1], periods)
    space = SearchSpace(
        path.whitened_density(Coordinates(np.zeros(path.d), np.ones(path.d))),
        x,
        copy=None if periods is None else lambda y: turned(y, positions[-1], periods),
        coordinates=setting.coordinates,
    )
    modes, maxima = search_modes(space, prior, rng, maxima=unmet)
    return modes, maxima, ascent_gradients + modes.n_grad


def unmet_maxima(
    path: TemperingPath,
    coordinates: Coordinates,
    intermediate: np.ndarray,
    draws: np.ndarray,
    limit: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int]:
    """Return the maxima ``(m, d)`` that no ascent from a draw at the posterior reaches, and the gradients spent.

    Ascents start from positions ``(n, d)`` at ``intermediate`` temperatures, in random order, and from places along
    coordinates where the density falls least away from the maxima of ``draws`` ``(m, d)`` of the posterior.  They spend
    about ``limit`` gradients at most.  In ``coordinates`` the posterior is about as wide in each direction.
    """
    density = path.whitened_density(coordinates)
    y = coordinates.whiten(draws)
    centre = y.mean(axis=0)
    met, n_grad = _maxima(density, y, centre, 0.25 * limit)
    if not met:  # nothing that the others could be compared with
        return np.empty((0, len(centre))), n_grad
    places, place_gradients = _places_to_ascend(density, coordinates, met, (limit - n_grad) // 2, rng)
    n_grad += place_gradients
    starts = np.concatenate([places, coordinates.whiten(intermediate)])
    maxima, ascent_gradients = _maxima(density, starts, centre, limit - n_grad)
    highest_first = sorted(maxima, key=lambda maximum: -maximum.lp)
    unmet = [maximum.y for maximum in distinct(highest_first, met)[:_MOST_MAXIMA]]
    return coordinates.place(np.reshape(unmet, (-1, len(centre)))), n_grad + ascent_gradients


def _maxima(density: Density, start: np.ndarray, centre: np.ndarray, limit: float) -> tuple[list[Maximum], int]:
    """Return the maxima that ascents from the starts reach, and the gradients spent, about ``limit`` at most."""
    maxima: list[Maximum] = []
    n_grad = 0
    for i in range(0, len(start), _TOGETHER):
        if n_grad >= limit:
            break
        group = start[i : i + _TOGETHER]
        ends = Ascents.of(density, group, centre, _GRADIENTS_PER_ASCENT * len(group))
        n_grad += ends.spent
        arrived = ends.arrived
        scales = ends.scale[arrived].tolist()
        maxima += map(Maximum, ends.position[arrived], ends.lp[arrived].tolist(), ends.gradient[arrived], scales)
    return maxima, n_grad


def _places_to_ascend(
    density: Density, coordinates: Coordinates, met: list[Maximum], limit: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Return places along coordinates where the density is highest for their distance from a maximum, and gradients."""
    offsets = along_coordinates(coordinates, limit, len(met[0].y), rng).reshape(-1, len(met[0].y))
    offsets = offsets[np.argsort((offsets**2).sum(axis=1))]
    base = rng.integers(len(met), size=len(offsets))
    places = np.array([maximum.y for maximum in met])[base] + offsets
    lp = np.nan_to_num(density(places)[0], nan=-np.inf)
    top = np.array([maximum.lp for maximum in met])[base]
    fall = (top - lp) / np.maximum((offsets**2).sum(axis=1), 1e-300)
    least = [group[np.argmin(fall[group])] for group in np.array_split(np.arange(len(offsets)), _PLACES) if len(group)]
    return places[np.array(least, int)], len(offsets)
