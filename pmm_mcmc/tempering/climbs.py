"""Climbs from draws at all temperatures: maxima of the posterior that only draws of hotter levels meet.

A mode that is narrow beside another has little weight at temperatures in between, so that few chains bring it to the
posterior; but a draw in its basin is enough to find it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import Block, TunedParameters
from pmm_mcmc.tempering.path import Points, TemperingPath
from pmm_mcmc.warmup.climb import Climbers, Value
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.scouts import along_coordinates, look_around

__all__ = ["look", "unmet_maxima"]

# Maxima at most, the highest ones.
_MOST_MAXIMA = 24
# Climbers of one call.
_TOGETHER = 256
# Gradients of each climber at most.
_GRADIENTS_PER_CLIMB = 60
# Two ends are one maximum if their log densities differ by less, and their squared distance in variances is less.
_NATS = 0.2
_SAME_DISTANCE = 0.25
# Places along coordinates that climbs start from: at each of so many distances the one that stands out.
_PLACES = 16
# Draws at the posterior from which climbs start.
_POSTERIOR_STARTS = 256
# Share of the gradients that climbs spend at most.
_SHARE = 0.2


def look(
    path: TemperingPath,
    setting: TunedParameters,
    hot: np.ndarray,
    cold: Points,
    prior: np.ndarray,
    n_grad: int,
    rng: np.random.Generator,
) -> tuple[OtherModes, np.ndarray, int]:
    """Look for modes that no draw at the posterior is in; return them, the maxima of climbs, and the gradients.

    Climbs start from draws ``hot`` ``(n, d)`` at temperatures below 1, scouts from draws of the ``prior`` ``(m, d)``
    and what climbs find; both are compared with draws ``cold`` ``(k, C, ...)`` at temperature 1, whose ``setting`` it
    is.  Climbs spend at most a fifth of ``n_grad``, the gradients of the run so far, and scouts no more.
    """
    flat = cold.position.reshape(-1, path.d)
    some = flat[rng.permutation(len(flat))[:_POSTERIOR_STARTS]]
    unmet, climb_gradients = unmet_maxima(
        path, setting.coordinates, rng.permutation(hot), some, int(_SHARE * n_grad), rng
    )
    if not len(unmet) and not len(prior):
        return OtherModes(0.0), unmet, climb_gradients
    position, slope, lp = (np.swapaxes(array, 0, 1) for array in (cold.position, cold.slope(1.0), cold.lp))
    nothing = np.zeros(lp.shape, np.int64)
    block = Block(position, slope, lp, nothing, nothing, nothing, np.ones(lp.shape))
    modes, maxima, scout_gradients = look_around(path.engine, setting, block, prior, n_grad, rng, unmet)
    return modes, maxima, climb_gradients + scout_gradients


def unmet_maxima(
    path: TemperingPath,
    coordinates: Coordinates,
    hot: np.ndarray,
    cold: np.ndarray,
    limit: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int]:
    """Climb from draws, and from places along coordinates where the density falls least away from maxima of cold draws.

    Return the maxima that no cold draw reaches, and the number of gradients, about ``limit`` at most.  Draws ``hot``
    come in random order; in ``coordinates`` the posterior is about as wide in each direction.
    """
    d = hot.shape[1]
    value = path.value(coordinates)
    home = coordinates.whiten(cold).mean(axis=0)
    tops, top_lp, widths, n_grad = _ends(value, coordinates.whiten(cold), home, 0.25 * limit)
    if not len(tops):  # nothing that the others could be compared with
        return np.empty((0, d)), n_grad
    places, place_gradients = _outstanding(value, coordinates, tops, top_lp, (limit - n_grad) // 2, rng)
    n_grad += place_gradients
    starts = np.concatenate([places, coordinates.whiten(hot)])
    position, lp, scale, climb_gradients = _ends(value, starts, home, limit - n_grad)
    n_grad += climb_gradients
    new = np.ones(len(lp), bool)
    chosen: list[int] = []

    def drop(y: np.ndarray, top: float, width: float) -> None:
        near = np.flatnonzero(new & (np.abs(lp - top) < _NATS))
        apart = ((position[near] - y) ** 2).sum(axis=1)
        new[near[apart < _SAME_DISTANCE * d * np.minimum(np.minimum(scale[near], width), 1.0)]] = False

    for y, top, width in zip(tops, top_lp, widths, strict=True):
        drop(y, float(top), float(width))
    while new.any() and len(chosen) < _MOST_MAXIMA:
        best = int(np.flatnonzero(new)[np.argmax(lp[new])])
        chosen.append(best)
        drop(position[best], float(lp[best]), float(scale[best]))
        new[best] = False
    return coordinates.place(position[chosen]), n_grad


def _outstanding(
    value: Value, coordinates: Coordinates, tops: np.ndarray, lp: np.ndarray, limit: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Return places along coordinates where the density is highest for their distance from a maximum, and gradients."""
    offsets = along_coordinates(coordinates, limit, tops.shape[1], rng)
    offsets = offsets[np.argsort((offsets**2).sum(axis=1))]
    base = rng.integers(len(tops), size=len(offsets))
    places = tops[base] + offsets
    fall = (lp[base] - np.nan_to_num(value(places)[0], nan=-np.inf)) / np.maximum((offsets**2).sum(axis=1), 1e-300)
    least = [group[np.argmin(fall[group])] for group in np.array_split(np.arange(len(offsets)), _PLACES) if len(group)]
    return places[np.array(least, int)], len(offsets)


def _ends(value: Value, start: np.ndarray, home: np.ndarray, limit: float) -> tuple[Any, Any, Any, int]:
    """Return positions, log densities and variances of maxima, and the number of gradients of the climbs."""
    reached = [(np.empty((0, start.shape[1])), np.empty(0), np.empty(0))]
    n_grad = 0
    for i in range(0, len(start), _TOGETHER):
        if n_grad >= limit:
            break
        some = start[i : i + _TOGETHER]
        end = Climbers.climb(value, some, home, _GRADIENTS_PER_CLIMB * len(some))
        n_grad += end.spent
        reached.append((end.position[end.arrived], end.lp[end.arrived], end.scale[end.arrived]))
    position, lp, scale = (np.concatenate(parts) for parts in zip(*reached, strict=True))
    return position, lp, scale, n_grad
