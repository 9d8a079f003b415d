"""Modes on a ladder: the mixture that is fitted to them, the search for those that were met, and their weights.

A *mixture* of Gaussians, one for each mode that annealing or an ascent has met, is where a ladder may start.  Its
weights are those of the modes if these are Gaussians: the mass of a mode with density ``p`` is the exponential of the
mean of ``log p`` over its draws and of their entropy.

The *search* for modes begins at draws of all temperatures, beside those of an ordinary run.  A mode that is narrow
beside another has little weight at temperatures in between, so that few chains bring it to the posterior; but a draw in
its basin is enough to find it.

*Weights* are the shares of the draws in the basin of attraction of each mode.  Ascents from some of the draws lead to
maxima of the log density.  Maxima between which it does not dip are one mode.  Each other draw belongs to the mode
under whose Gaussian, fitted to its draws and weighted by their number, it is most probable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import MOST_DENSE, Coordinates, best_coordinates
from pmm_mcmc.diagnostics.mode_mass import Maximum, distinct
from pmm_mcmc.diagnostics.mode_search import DIP, ModeSearch, OtherModes, SearchSpace, lowest_falls, turned
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.tempering.path import Points, TemperingPath
from pmm_mcmc.warmup.ascent import Ascents, Density

# Ascents by which draws are assigned to modes.
_ASCENTS = 64
# Draws that a Gaussian is fitted to at least.
_FEWEST = 20
# Numbers of all Gaussians at most: 8 MiB.
_NUMBERS = 2**20
_LOG_2PI_E = float(np.log(2.0 * np.pi)) + 1.0


def fitted_mixture(
    path: TemperingPath, setting: TunedParameters, draws: Points, unmet: Sequence[Points]
) -> tuple[GaussianMixture, int]:
    """Return a Gaussian for each mode of the draws, and the number of gradients of the ascents to modes.

    The ``draws`` ``(n, ...)`` at the posterior, whose ``setting`` it is, are in order of time; ``unmet`` are draws of
    each mode that they have not met.
    """
    density = path.whitened_density(setting.coordinates)
    n_grad = 0

    def counted(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal n_grad
        n_grad += len(y)
        return density(y)

    label = mode_labels(setting.coordinates.whiten(draws.position), counted, _ASCENTS)
    order = np.argsort(-np.bincount(label), kind="stable")
    d = path.d
    limit = max(1, min(MOST_MODES, _NUMBERS // (d * d if d <= MOST_DENSE else d)))
    by_mode = [draws.take(label == k) for k in order[: max(1, limit - len(unmet))]]
    met = [points for points in by_mode if len(points.position) >= _FEWEST] or [draws]
    parts = [_gaussian(points) for points in [*met, *unmet]]
    mixture = GaussianMixture(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    entropy = mixture.log_volume + 0.5 * d * _LOG_2PI_E
    return mixture._replace(log_weight=mixture.log_weight + entropy), n_grad


def _gaussian(points: Points) -> GaussianMixture:
    """Return a Gaussian, whose weight is the mean log density of the draws."""
    fitted = best_coordinates(points.position, points.slope(1.0))
    d = points.position.shape[1]
    if d > MOST_DENSE:
        root = points.position.std(axis=0)
    else:
        root = (fitted.place(np.eye(d)) - fitted.centre).T
    one = GaussianMixture.of(fitted.centre, root)
    return one._replace(log_weight=np.array([points.lp.mean()]))


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
    modes, maxima = ModeSearch(space, rng).run(prior, unmet)
    return modes, maxima, space.spent


def unmet_maxima(space: SearchSpace, intermediate: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Return the maxima ``(m, d)`` that no ascent from a draw at the posterior, those of the ``space``, reaches.

    Ascents start from positions ``(n, d)`` at ``intermediate`` temperatures, in random order, and from places along
    coordinates where the density falls least away from the maxima of draws: of 20 ladders that had met two modes, and
    not a narrow third on an axis through one of them, 2 to 7 found it without.  They spend about ``limit`` gradients.
    """
    met = _maxima(space, rng.permutation(space.draws)[:_POSTERIOR_STARTS], 0.25 * limit)
    if not met:  # nothing that the others could be compared with
        return np.empty((0, space.d))
    offsets = space.along_coordinates((limit - space.spent) // 2, rng).reshape(-1, space.d)
    base = [met[i] for i in rng.integers(len(met), size=len(offsets))]
    places = np.reshape([maximum.y for maximum in base], (-1, space.d)) + offsets
    best = lowest_falls(offsets, [maximum.lp for maximum in base] - space.lp(places), _PLACES)
    places = places[best]
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


# Modes at most; the lightest ones are one with the last.
MOST_MODES = 24
# Draws from which ascents start, and gradients for each ascent.
_STARTS = 256
_GRADIENTS_PER_START = 60
# Shares of the way between two maxima where the density is asked whether it dips.
_SHARES_BETWEEN = np.linspace(0.0, 1.0, 11)[1:-1]
_ROUNDS = 3  # in each all draws are assigned to modes, by Gaussians fitted to those of the round before


class Modes(NamedTuple):
    """Modes, by falling weight.

    Attributes
    ----------
    weight, weight_se : (m,)
        Shares of the draws, and standard errors: the larger of the binomial one by restarts and that between replicas.
    centre : (m, d)
        Means of the draws of each.
    restarts : (m,)
        Number of draws of each mode that begin a restart.
    label : (chain, draw)
        The mode of each draw.
    """

    weight: np.ndarray
    weight_se: np.ndarray
    centre: np.ndarray
    restarts: np.ndarray
    label: np.ndarray


def find_modes(position: np.ndarray, restart: np.ndarray, density: Density) -> Modes:
    """Find the modes of draws and weigh them.

    Draws ``(chain, draw, d)`` are in coordinates in which the density is about as wide in each direction; ``restart``
    ``(chain, draw)`` says which are the first of a restart.
    """
    chains, draws, d = position.shape
    flat = position.reshape(-1, d)
    label = mode_labels(flat, density)
    order = np.argsort(-np.bincount(label), kind="stable")
    label = np.argsort(order)[label].reshape(chains, draws)
    modes = len(order)
    share = np.stack([(label == k).mean(axis=1) for k in range(modes)], axis=1)
    weight = share.mean(axis=0)
    restarts = np.array([(restart & (label == k)).sum() for k in range(modes)])
    between = share.std(axis=0, ddof=1) / np.sqrt(chains) if chains > 1 else np.full(modes, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        binomial = np.sqrt(weight * (1.0 - weight) / restart.sum()) if modes > 1 else np.zeros(1)
    centre = np.stack([flat[label.ravel() == k].mean(axis=0) for k in range(modes)])
    return Modes(weight, np.fmax(between, binomial), centre, restarts, label)


def mode_labels(position: np.ndarray, density: Density, ascents: int = _STARTS) -> np.ndarray:
    """Return the number of the mode that each of the draws ``(n, d)`` is in; ``ascents`` start from as many of them."""
    some = np.unique(np.linspace(0, len(position) - 1, min(len(position), ascents)).astype(int))
    ends = Ascents.of(density, position[some], position[some].mean(axis=0), _GRADIENTS_PER_START * len(some))
    return _nearest_modes(position, some, _modes_of_maxima(ends.position, ends.lp, density))


def _modes_of_maxima(maxima: np.ndarray, lp: np.ndarray, density: Density) -> np.ndarray:
    """Return the number of the mode of each maximum, from 0; the first has the highest maximum."""
    mode_of = np.full(len(maxima), -1)
    highest: list[int] = []  # the highest maximum of each mode
    for i in np.argsort(-lp, kind="stable"):
        for mode, top in enumerate(highest):
            between = maxima[top] + _SHARES_BETWEEN[:, None] * (maxima[i] - maxima[top])
            lp_between, _ = density(between)
            if np.nan_to_num(lp_between, nan=-np.inf).min() > lp[i] - DIP:
                mode_of[i] = mode
                break
        else:
            if len(highest) < MOST_MODES:
                highest.append(int(i))
            mode_of[i] = len(highest) - 1
    return mode_of


def _nearest_modes(position: np.ndarray, some: np.ndarray, mode_of: np.ndarray) -> np.ndarray:
    """Return the mode of every draw ``(n, d)``, from the modes ``mode_of`` of the draws with numbers ``some``."""
    modes = int(mode_of.max()) + 1
    d = position.shape[1]
    if modes == 1:
        return np.zeros(len(position), int)
    label = mode_of
    sample = position[some]
    for _ in range(_ROUNDS):
        distance = np.empty((len(position), modes))
        spread = sum(((sample[label == k] - sample[label == k].mean(axis=0)) ** 2).sum(axis=0) for k in range(modes))
        common = np.maximum(spread / len(sample), 1e-12)
        for k in range(modes):
            members = sample[label == k]
            # Shrink towards the variance common to all modes, with the weight of d draws.
            variance = (((members - members.mean(axis=0)) ** 2).sum(axis=0) + d * common) / (len(members) + d)
            log_share = np.log(max(len(members), 1) / len(sample))
            squares = (position - members.mean(axis=0)) ** 2 / variance + np.log(variance)
            distance[:, k] = squares.sum(axis=1) - 2.0 * log_share
        label = distance.argmin(axis=1)
        label[some] = mode_of
        sample = position
    return label
