"""Sources of sinks beyond those of their pairs: which are tried, which are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, anchor_scores, fit, location_scores, scale_effect_scores
from pmm_mcmc.noncentring.pairs import CORRELATED, Draws, best_kind, scale_scores

__all__ = [
    "CALLED",
    "CALLED_BACK",
    "MOST_SCALES",
    "ROWS",
    "STEPS",
    "allowed_sources",
    "anchored",
    "grown",
    "pruned",
    "with_mean",
]

# Correlation from which another source is tried, the part of the loss that it must leave at most, and most of each.
CALLED, _LEFT, MOST_SCALES, _MOST_LOCATIONS, _MOST_ANCHORS = 0.15, 0.95, 3, 5, 2
# A source is left out where the loss without it is below so many times that with it.
_USELESS = 1.02
# Loss per draw at which a fit is exact and needs no more sources.
_EXACT = 1e-6
# Draws to fit, draws to find what is called for, and steps of a fit that is not the last.
ROWS, _SCORED, STEPS = 600, 300, 15
# Like a sink, a coordinate is a source of locations only where so many sinks call for it so strongly.
_WANTED, CALLED_BACK = 3, 0.3

# Loss from which a sink is far from Gaussian, sources to try for such, and the part of it that one must leave at most.
_FAR, _TRIED, _MUCH = 1.0, 10, 0.3

_Scores = Callable[[Sinks, np.ndarray, np.ndarray], np.ndarray]


def allowed_sources(block: Sinks, draws: Draws, free: np.ndarray, freed: np.ndarray) -> np.ndarray:
    """Which coordinates ``(m, d)`` may be a source of each sink: not those that are like the sinks, unless wanted."""
    scores = np.abs(scale_scores(draws.x, draws.g)) > CORRELATED
    siblings = scores[:, block.by_scale[:, 0]].T & (block.by_scale[:, :1] >= 0)
    calls = np.abs(location_scores(block, *draws.at(draws.fitted, _SCORED)))
    wanted = (calls > CALLED_BACK).sum(axis=0) >= _WANTED
    wanted[freed] = True
    allowed = free & (wanted | ~siblings)
    allowed[:, block.sink] = False
    return allowed


def grown(block: Sinks, draws: Draws, allowed: np.ndarray) -> Sinks:
    """Add sources of scales and locations, the one that is called for most by each sink first, while they help."""
    block = _with_more(block, draws, allowed, location_scores, Sinks.adding, _MOST_LOCATIONS)
    block = _with_more(block, draws, allowed, scale_effect_scores, Sinks.adding_scale, MOST_SCALES - 1)
    return _with_more(block, draws, allowed, location_scores, Sinks.adding, _MOST_LOCATIONS)


def _with_more(
    block: Sinks, draws: Draws, allowed: np.ndarray, scores: _Scores, adding: Callable[..., Sinks], most: int
) -> Sinks:
    columns, held = draws.at(draws.fitted, ROWS), draws.at(draws.held, ROWS)
    few = draws.at(draws.fitted, _SCORED)
    at = np.arange(len(block.sink))
    for _ in range(most):
        before = block.take(at).losses(*held)
        at, before = at[before > _EXACT], before[before > _EXACT]
        calls = np.abs(scores(block.take(at), *few)) * allowed[at]
        called = calls.max(axis=1, initial=0.0) > CALLED
        if not called.any():
            break
        at, before, best = at[called], before[called], calls[called].argmax(axis=1)
        found = fit(adding(block.take(at), best), *columns, STEPS)
        helps = found.losses(*held) < _LEFT * before
        at = at[helps]
        extra = np.full(len(block.sink), -1)
        extra[at] = best[helps]
        block = adding(block, extra).put(at, found.take(helps))
    return block


def with_mean(block: Sinks, draws: Draws, free: np.ndarray) -> Sinks:
    """Add one source to the locations of sinks that are far from Gaussian yet, which need not call for it clearly.

    Where all chains are deep in a neck, effects and their mean differ by less than either varies: only the fit tells.
    """
    columns, held = draws.at(draws.fitted, ROWS), draws.at(draws.held, ROWS)
    before = block.losses(*held)
    at = np.flatnonzero(before > _FAR)
    calls = np.abs(location_scores(block.take(at), *draws.at(draws.fitted, _SCORED))).sum(axis=0) * free
    calls[block.sink] = calls[block.by_scale[block.by_scale >= 0]] = 0.0
    best, lowest = block, np.inf
    for source in np.argsort(-calls, kind="stable")[:_TRIED]:
        lacking = at[~(block.by_location[at] == source).any(axis=1)]
        if not (calls[source] > 0.0 and lacking.size):
            continue
        extra = np.full(len(block.sink), -1)
        extra[lacking] = source
        wider = block.adding(extra)
        found = fit(wider.take(lacking), *columns, STEPS)
        after = found.losses(*held)
        helps = after < _MUCH * before[lacking]
        left = np.log(np.where(helps, after, before[lacking]) + _EXACT).sum() - np.log(before[lacking]).sum()
        if helps.any() and left < lowest:
            lowest, extra[lacking[~helps]] = left, -1
            best = block.adding(extra).put(lacking[helps], found.take(helps))
    return best


def anchored(block: Sinks, draws: Draws, allowed: np.ndarray) -> Sinks:
    """Add sources of anchors: those of locations, without which a true ceiling may not win, and others called for."""
    held, block = draws.at(draws.held, ROWS), block.packed()
    before = block.losses(*held)
    at = before > _EXACT
    scales = (block.by_location[:, :, None] == block.by_scale[:, None]).any(axis=2)
    for shifts in np.where(scales | ~at[:, None], -1, block.by_location).T:
        known = (block.by_anchor == shifts[:, None]).any(axis=1)
        block = block.adding_anchor(np.where(known, -1, shifts))
    block = block.packed()
    linear = replace(block, theta=block.theta.copy())
    linear.theta[:, -2] = np.inf
    trial = best_kind(linear.take(at), draws, *draws.at(draws.fitted, ROWS), STEPS)
    helps = trial.saturating & (trial.losses(*held) < _LEFT * before[at])
    block = block.put(np.flatnonzero(at)[helps], trial.take(helps))
    return _with_more(block, draws, allowed, anchor_scores, Sinks.adding_anchor, _MOST_ANCHORS)


def pruned(block: Sinks, draws: Draws, known: Sinks | None) -> Sinks:
    """Leave sources out that do not help on draws held out, those that were known excepted, but for anchors."""
    new = ~np.isin(block.sink, [] if known is None else known.sink)
    columns, held = draws.at(draws.fitted, ROWS), draws.at(draws.held, ROWS)
    for name in ("by_anchor", "by_location", "by_scale"):
        for column in range(getattr(block, name).shape[1] - 1, -1, -1):
            sources = getattr(block, name)
            others = np.delete(sources, column, axis=1)
            may = {"by_anchor": True, "by_location": new, "by_scale": new & (others >= 0).any(axis=1)}[name]
            at = np.flatnonzero(may & (sources[:, column] >= 0))
            if not at.size:
                continue
            fewer = sources.copy()
            fewer[at, column] = -1
            trial = fit(replace(block, **{name: fewer}).take(at), *columns, STEPS)
            drop = trial.losses(*held) < np.maximum(_USELESS * block.take(at).losses(*held), _EXACT)
            fewer[at[~drop], column] = sources[at[~drop], column]
            block = replace(block, **{name: fewer}).put(at[drop], trial.take(drop))
    return block
