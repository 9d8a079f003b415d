"""Sinks that follow one source follow it alike: what draws do not tell of one of them is as with its siblings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.pairs import RISE

__all__ = ["EXACT", "HARMLESS", "shared", "with_anchors"]

_Columns = tuple[np.ndarray, np.ndarray]

# Sinks of one source, below which there is no common slope.
_FEWEST = 4
# Loss that the common slope may leave, in parts of that of a sink's own, and at which a fit is exact.
HARMLESS, EXACT = 1.02, 1e-6
# How far a slope that is not shared must be from the common one, in log scale for each sd of the source,
# for a sink to be tried with its siblings' sources and a ceiling.
_APART = 0.1
# Part of the siblings whose locations must follow a source for the others to be tried with it.
_COMMON = 0.5


def shared(block: Sinks, fitted: _Columns, held: _Columns) -> Sinks:
    r"""Give sinks the median slope of their siblings on each source, where draws do not speak against it.

    Effects of one group, :math:`x_i \sim N(\mu, e^{s})`, have one slope on :math:`s`.  Of those that their data bound
    little tells it where the draws are, and one that is too small bends the neck below them: chains do not enter it
    then, without a sign of bias.

    Parameters
    ----------
    block
        Fitted sinks.
    fitted, held
        Draws and gradients ``(d, n)`` to fit anew what is not shared, and to compare the losses.

    Returns
    -------
    Sinks
        Those whose loss the common slope does not raise, as they are or with a ceiling and the sources of the
        siblings' locations, have it; the others are as they were.
    """
    sources, counts = np.unique(block.by_scale[block.by_scale >= 0], return_counts=True)
    settled: dict[int, dict[int, float]] = {}  # slopes that are shared, of each row by source
    for source in sources[np.argsort(-counts, kind="stable")].tolist():
        rows = siblings = np.flatnonzero((block.by_scale == source).any(axis=1))
        if len(siblings) < _FEWEST:
            continue
        common = float(np.median(block.slope[block.by_scale == source]))
        for like_siblings in (False, True):
            wider = _with_their_sources(block, siblings, rows) if like_siblings else block
            slopes = [{**settled.get(row, {}), source: common} for row in rows.tolist()]
            trial = _fitted_with(wider.take(rows), slopes, like_siblings, fitted)
            good = trial.losses(*held) < np.maximum(HARMLESS * block.take(rows).losses(*held), EXACT)
            if good.any():
                wider = _with_their_sources(block, siblings, rows[good]) if like_siblings else block
                block = wider.put(rows[good], trial.take(good))
                settled.update((row, own) for row, own, yes in zip(rows.tolist(), slopes, good, strict=True) if yes)
            own = (block.slope[rows] * (block.by_scale[rows] == source)).sum(axis=1)
            rows = rows[~good & (np.abs(own - common) > _APART)]
            if not rows.size:
                break
    return block.packed()


def _fitted_with(trial: Sinks, slopes: list[dict[int, float]], saturating: bool, columns: _Columns) -> Sinks:
    """Fit sinks with slopes that stay as they are given, by source."""
    theta, fixed = trial.theta.copy(), np.zeros(trial.theta.shape, bool)
    for row, own in enumerate(slopes):
        for source, slope in own.items():
            column = 1 + int(np.flatnonzero(trial.by_scale[row] == source)[0])
            theta[row, column], fixed[row, column] = slope, True
    trial = replace(trial, theta=theta)
    if saturating:
        ceiling = np.where(trial.saturating, theta[:, -2], theta[:, 0] + RISE)
        trial = trial.with_ceiling(ceiling)
    return fit(trial, *columns, fixed=fixed)


def _with_their_sources(block: Sinks, siblings: np.ndarray, rows: np.ndarray) -> Sinks:
    """Add to some sinks the sources that most siblings' locations follow, and to their anchors all of the location."""
    theirs = block.by_location[siblings]
    followed, counts = np.unique(theirs[theirs >= 0], return_counts=True)
    which = np.zeros(len(block.sink), bool)
    which[rows] = True
    for source in followed[counts >= _COMMON * len(siblings)].tolist():
        lacking = which & ~(block.by_location == source).any(axis=1)
        block = block.adding(np.where(lacking, source, -1))
    return with_anchors(block, rows)


def with_anchors(block: Sinks, rows: np.ndarray) -> Sinks:
    """Add to the anchors of some sinks all that their locations follow, but for what scales them."""
    which = np.zeros(len(block.sink), bool)
    which[rows] = True
    for own in block.by_location.T:
        known = (block.by_anchor == own[:, None]).any(axis=1) | (block.by_scale == own[:, None]).any(axis=1)
        block = block.adding_anchor(np.where(which & ~known, own, -1))
    return block
