r"""Locations that are weighted means of others: of an effect about its group's mean, of a walk about its neighbours.

Of :math:`x_i \sim N(\sum_j C_{ij} x_j, e^{2 s})` with effects :math:`x_j` of one kind, and their common mean among
them, :math:`\sum_j C_{ij} = 1`, and there is no constant: if all are shifted, so is :math:`x_i`.  Draws tell it to a
few per cent.  A sum that is off by :math:`\delta`, or a constant :math:`\delta`, moves :math:`z_i` by
:math:`\delta e^{-s}`, ever more widths the deeper the neck, which chains do not enter then.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.pairs import CEILING_LEAST, CEILING_SHARE, RISE
from pmm_mcmc.noncentring.siblings import EXACT, with_anchors

__all__ = ["as_means"]

_Columns = tuple[np.ndarray, np.ndarray]

# In turn, for sinks that are left if these are not more than such a part of all: whether with a constant, and the loss
# that it may leave, in parts of that of a sink's own, or so much more.  Where half of the siblings have none, draws
# must speak against it more clearly.
_TOLERATED = ((1.0, False, 1.25, 0.02), (0.5, False, 1.6, 0.1), (1.0, True, 1.1, 0.005))
# Sources that may be the common mean; loads that may be chance, of others and of the mean.
_LIKELY, _LITTLE, _BARELY = 3, 0.1, 0.003
_CLEARLY = 0.97  # part of the loss that more sources must leave at most


def as_means(block: Sinks, centre: np.ndarray, scale: np.ndarray, fitted: _Columns, held: _Columns) -> Sinks:
    """Make the locations weighted means of their sources, where draws do not speak against it.

    Parameters
    ----------
    block
        Fitted sinks.
    centre, scale : (d,)
        Draws times ``scale`` plus ``centre`` are the model's coordinates.
    fitted, held
        Draws and gradients ``(d, n)`` to fit anew what is left, and to compare the losses.

    Returns
    -------
    Sinks
        Those whose loss it hardly raises have loads that sum to one, perhaps with the block's most common source
        besides, and no constant, or a constant if need be; the others are as they were.
    """
    counted = _counted(block)
    sources, counts = np.unique(block.by_location[counted], return_counts=True)
    if not sources.size:
        return block
    units, rows = (centre, scale), np.arange(len(block.sink))
    likely = sources[np.argsort(-counts, kind="stable")[:_LIKELY]].tolist()
    few = _followed(block, scale)
    tried = [_means(_about(few, mean), False, *units, fitted, held) for mean in likely]
    total = [np.log(found.losses(*held) + EXACT).sum() for found in tried]
    about, common = tried[int(np.argmin(total))], likely[int(np.argmin(total))]
    barely = (np.abs(_natural(about, scale)) * (about.by_location == common)).sum(axis=1) < _BARELY
    with_none = np.flatnonzero(barely & _counted(few).any(axis=1))
    about = _with(about, with_none, _means(few.take(with_none), False, *units, fitted, held))
    loss, best, left = block.losses(*held), block, rows
    exact = loss < EXACT
    for most_left, constant, harmless, hardly in _TOLERATED:
        if len(left) > most_left * len(rows):
            continue
        limit = np.where(exact, EXACT, np.maximum(harmless * loss, loss + hardly))
        lowest = np.full(len(left), np.inf)
        for trial in (about, block, _about(block, common)):
            which = np.flatnonzero(_counted(trial)[left].any(axis=1))
            found = trial.take(left[which])
            if trial is not about or constant:
                found = _means(found, constant, *units, fitted, held)
            new = found.losses(*held)
            better = (new < limit[left[which]]) & (new < _CLEARLY * lowest[which]) & (lowest[which] > EXACT)
            lowest[which[better]] = new[better]
            best = _with(best, left[which[better]], found.take(better))
        left = left[np.isinf(lowest)]
    return best.packed()


def _followed(block: Sinks, scale: np.ndarray) -> Sinks:
    """Return the sinks with only those sources of their locations that they follow by more than a little."""
    follows = (block.by_location >= 0) & (np.abs(_natural(block, scale)) > _LITTLE)
    return replace(block, by_location=np.where(follows, block.by_location, -1)).packed()


def _natural(block: Sinks, scale: np.ndarray) -> np.ndarray:
    """Return the loads in the model's coordinates."""
    return block.load * scale[block.sink][:, None] / scale[block.by_location]


def _about(block: Sinks, mean: int) -> Sinks:
    """Return the sinks with the mean as a source."""
    return block.adding(np.where((block.by_location == mean).any(axis=1), -1, mean)).packed()


def _with(block: Sinks, rows: np.ndarray, other: Sinks) -> Sinks:
    """Return the block with some sinks replaced, sources and all."""
    rest = np.setdiff1d(np.arange(len(block.sink)), rows)
    return block.take(rest).beside(other).take(np.argsort(np.concatenate([rest, rows])))


def _counted(block: Sinks) -> np.ndarray:
    """Which sources of the locations ``(m, l)`` are effects: those that scale none of the sinks."""
    return (block.by_location >= 0) & ~np.isin(block.by_location, block.by_scale)


def _means(
    block: Sinks, constant: bool, centre: np.ndarray, scale: np.ndarray, fitted: _Columns, held: _Columns
) -> Sinks:
    """Fit the sinks as means, with slopes as they are, and with a ceiling where that wins clearly."""
    if not len(block.sink):
        return block
    if not constant:
        block = replace(block, by_location=np.where(_counted(block), block.by_location, -1))
    rows = np.arange(len(block.sink))
    linear = replace(block, theta=block.theta.copy())
    linear.theta[:, -2] = np.inf
    bounded = with_anchors(block, rows[~block.saturating])
    started = bounded.with_ceiling(bounded.theta[:, 0] + RISE).theta
    bounded = replace(bounded, theta=np.where(block.saturating[:, None], bounded.theta, started))
    linear, bounded = (_fitted(kind, constant, centre, scale, fitted) for kind in (linear, bounded))
    wins = bounded.losses(*held) < CEILING_SHARE * linear.losses(*held) - CEILING_LEAST
    return with_anchors(linear, rows[~block.saturating]).put(rows[wins], bounded.take(wins))


def _fitted(block: Sinks, constant: bool, centre: np.ndarray, scale: np.ndarray, columns: _Columns) -> Sinks:
    """Fit with differences from one of the sources in place of the others, and its load fixed."""
    (x, g), d = columns, len(scale)
    k, rows = block.by_scale.shape[1], np.arange(len(block.sink))
    others = _counted(block)
    base_at = others.argmax(axis=1)
    base = block.by_location[rows, base_at]
    others[rows, base_at] = False
    sink, column = np.nonzero(others)
    source, of = block.by_location[sink, column], base[sink]
    ratio, offset = scale[of] / scale[source], (centre[source] - centre[of]) / scale[source]
    x = np.concatenate([x, x[source] + offset[:, None] - ratio[:, None] * x[of]])
    by_location, theta = block.by_location.copy(), block.theta.copy()
    by_location[sink, column] = d + np.arange(len(source))
    fixed = np.zeros(theta.shape, bool)
    fixed[:, 1 : 1 + k] = True
    theta[rows, 2 + k + base_at], fixed[rows, 2 + k + base_at] = scale[base] / scale[block.sink], True
    theta[:, 1 + k], fixed[:, 1 + k] = (centre[base] - centre[block.sink]) / scale[block.sink], not constant
    found = fit(replace(block, by_location=by_location, theta=theta), x, g, fixed=fixed)
    theta = found.theta.copy()
    load = theta[sink, 2 + k + column]
    np.subtract.at(theta, (sink, 2 + k + base_at[sink]), load * ratio)
    np.add.at(theta, (sink, np.full(len(sink), 1 + k)), load * offset)
    return replace(block, theta=theta, loss=found.loss)
