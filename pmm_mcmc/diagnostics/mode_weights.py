"""Weights of separated modes: draws labelled by basin of attraction.

Some draws climb to maxima of the log density.  Maxima between which it does not dip are one mode.  All other draws
belong to the mode that is nearest by the Gaussian law of its draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.warmup.climb import Climbers, Value

__all__ = ["MOST_MODES", "Modes", "find_modes", "mode_labels"]

# Modes at most; the lightest ones are one with the last.
MOST_MODES = 24
# Draws that climb, gradients for each of them, and the log density dip above which two maxima are two modes.
_CLIMBING = 256
_GRADIENTS_PER_CLIMB = 60
_DIP = 0.2
_SHARES_BETWEEN = np.linspace(0.0, 1.0, 11)[1:-1]
_ROUNDS = 3  # rounds of assigning draws to the nearest mode, whose scale is of the round before


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


def find_modes(position: np.ndarray, restart: np.ndarray, value: Value) -> Modes:
    """Find the modes of draws and weigh them.

    Draws ``(chain, draw, d)`` are in coordinates in which the density, whose logarithm and gradient ``value`` returns,
    is about as wide in each direction; ``restart`` ``(chain, draw)`` says which are the first of a restart.
    """
    chains, draws, d = position.shape
    flat = position.reshape(-1, d)
    label = mode_labels(flat, value)
    order = np.argsort(-np.bincount(label), kind="stable")
    label = np.argsort(order)[label].reshape(chains, draws)
    modes = len(order)
    share = np.stack([(label == k).mean(axis=1) for k in range(modes)], axis=1)
    weight = share.mean(axis=0)
    of_restart = np.array([(restart & (label == k)).sum() for k in range(modes)])
    between = share.std(axis=0, ddof=1) / np.sqrt(chains) if chains > 1 else np.full(modes, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        binomial = np.sqrt(weight * (1.0 - weight) / restart.sum()) if modes > 1 else np.zeros(1)
    centre = np.stack([flat[label.ravel() == k].mean(axis=0) for k in range(modes)])
    return Modes(weight, np.fmax(between, binomial), centre, of_restart, label)


def mode_labels(position: np.ndarray, value: Value, climbs: int = _CLIMBING) -> np.ndarray:
    """Return the numbers ``(n,)`` of the modes that draws ``(n, d)`` are in, by ``climbs`` climbs from them."""
    some = np.unique(np.linspace(0, len(position) - 1, min(len(position), climbs)).astype(int))
    ends = Climbers.climb(value, position[some], position[some].mean(axis=0), _GRADIENTS_PER_CLIMB * len(some))
    return _labelled(position, some, _basins(ends.position, ends.lp, value))


def _basins(maxima: np.ndarray, lp: np.ndarray, value: Value) -> np.ndarray:
    """Return the number of the mode of each maximum."""
    basin = np.full(len(maxima), -1)
    tops: list[int] = []
    for i in np.argsort(-lp, kind="stable"):
        for mode, top in enumerate(tops):
            between = maxima[top] + _SHARES_BETWEEN[:, None] * (maxima[i] - maxima[top])
            at_between, _ = value(between)
            if np.nan_to_num(at_between, nan=-np.inf).min() > lp[i] - _DIP:
                basin[i] = mode
                break
        else:
            if len(tops) < MOST_MODES:
                tops.append(int(i))
            basin[i] = len(tops) - 1
    return basin


def _labelled(flat: np.ndarray, some: np.ndarray, basin: np.ndarray) -> np.ndarray:
    """Return the mode of every draw, from those of some."""
    modes = int(basin.max()) + 1
    d = flat.shape[1]
    if modes == 1:
        return np.zeros(len(flat), int)
    label = basin
    sample = flat[some]
    for _ in range(_ROUNDS):
        distance = np.empty((len(flat), modes))
        spread = sum(((sample[label == k] - sample[label == k].mean(axis=0)) ** 2).sum(axis=0) for k in range(modes))
        common = np.maximum(spread / len(sample), 1e-12)
        for k in range(modes):
            members = sample[label == k]
            # Shrink towards the spread common to all modes, with the weight of d draws.
            width = (((members - members.mean(axis=0)) ** 2).sum(axis=0) + d * common) / (len(members) + d)
            log_share = np.log(max(len(members), 1) / len(sample))
            distance[:, k] = ((flat - members.mean(axis=0)) ** 2 / width + np.log(width)).sum(axis=1) - 2.0 * log_share
        everything = distance.argmin(axis=1)
        everything[some] = basin
        label = everything
        sample = flat
    return label
