"""Weights of separated modes: the shares of the draws in the basin of attraction of each.

Ascents from some of the draws lead to maxima of the log density.  Maxima between which it does not dip are one mode.
Each other draw belongs to the mode under whose Gaussian, fitted to its draws and weighted by their number, it is most
probable.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.warmup.ascent import Ascents, Density

__all__ = ["MOST_MODES", "Modes", "find_modes", "mode_labels"]

# Modes at most; the lightest ones are one with the last.
MOST_MODES = 24
# Draws from which ascents start, and gradients for each ascent.
_ASCENTS = 256
_GRADIENTS_PER_ASCENT = 60
# Dip of the log density above which two maxima are two modes, and shares of the way between them where it is looked at.
_DIP = 0.2
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


def mode_labels(position: np.ndarray, density: Density, ascents: int = _ASCENTS) -> np.ndarray:
    """Return the number of the mode that each of the draws ``(n, d)`` is in; ``ascents`` start from as many of them."""
    some = np.unique(np.linspace(0, len(position) - 1, min(len(position), ascents)).astype(int))
    ends = Ascents.of(density, position[some], position[some].mean(axis=0), _GRADIENTS_PER_ASCENT * len(some))
    return _nearest_modes(position, some, _modes_of_maxima(ends.position, ends.lp, density))


def _modes_of_maxima(maxima: np.ndarray, lp: np.ndarray, density: Density) -> np.ndarray:
    """Return the number of the mode of each maximum, from 0; the first has the highest maximum."""
    mode_of = np.full(len(maxima), -1)
    highest: list[int] = []  # the highest maximum of each mode
    for i in np.argsort(-lp, kind="stable"):
        for mode, top in enumerate(highest):
            between = maxima[top] + _SHARES_BETWEEN[:, None] * (maxima[i] - maxima[top])
            lp_between, _ = density(between)
            if np.nan_to_num(lp_between, nan=-np.inf).min() > lp[i] - _DIP:
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
