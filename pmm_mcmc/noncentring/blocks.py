"""One level of a hierarchy: sinks with the sources of their scales and locations, found from draws and fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, fit, location_scores
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.neighbours import apart
from pmm_mcmc.noncentring.pairs import (
    LARGEST_SHARE,
    LEAST_EFFECT,
    Draws,
    Pairs,
    best_kind,
    find_pairs,
    scale_share,
)
from pmm_mcmc.noncentring.sources import (
    CALLED_BACK,
    MOST_SCALES,
    ROWS,
    STEPS,
    allowed_sources,
    anchored,
    grown,
    pruned,
    with_mean,
)

__all__ = ["as_map", "common_means", "divergence", "find_block", "pulled_back", "refit"]

# From so many sinks that call for it, a sink is tried as a source of their locations instead.
_CALLERS, _STRONGER, _TURNED, _TURNS = 3, 1.3, 3, 3
# Correlation from which a source that has sinks is offered to others.
_OFFERED = 0.1
# How far the slopes of the two halves may lie apart, of the slope and at least in standard deviations.
_APART, _APART_LEAST = 0.35, 0.1
# Sinks of one source that follow their common mean, at least, and the part of them.
_FEWEST_FOLLOW, _PART_FOLLOW = 8, 0.25
# A move must lower the divergence summed over coordinates by so much.
_LEAST_MOVE = 0.02


def find_block(
    draws: Draws,
    free: np.ndarray,
    known: Sinks | None = None,
    upstream: np.ndarray | None = None,
    means: np.ndarray | None = None,
) -> Sinks:
    """Find the sinks of one level: those that scale nothing themselves.

    Parameters
    ----------
    draws
        With gradients from which the deeper levels have been taken off.
    free : (d,) bool
        Coordinates that are not a sink of a deeper level.
    known
        Sinks of this level that are known from before: kept, whatever else is found.
    upstream : (d,) bool
        Coordinates that must not become sinks here: sources, and sinks of levels above, known from before.
    means : (d, d) bool
        Pairs of a coordinate and a source whose sink it is not: :func:`common_means`.

    Returns
    -------
    Sinks
        Fitted on ``draws.fitted``; none where nothing scales anything.
    """
    may_sink = free if upstream is None else free & ~upstream
    pairs = find_pairs(draws, may_sink, free, barred=means)
    block = _coloured(pairs, known)
    if not len(block.sink):
        return block
    columns = draws.at(draws.fitted, ROWS)
    freed = np.zeros(0, int)
    block = best_kind(block, draws, *columns, STEPS)
    block = grown(block, draws, allowed_sources(block, draws, free, freed))
    block = best_kind(with_mean(block, draws, free), draws, *columns, STEPS)
    for _ in range(_TURNS):
        block, more = apart(block, draws, free, known)
        if not more.size:
            break
        freed = np.concatenate([freed, more])
    for _ in range(_TURNS):
        block, more = _turned(block, draws, free, known)
        if not more.size:
            break
        freed = np.concatenate([freed, more])
        block = best_kind(grown(block, draws, allowed_sources(block, draws, free, freed)), draws, *columns, STEPS)
    block = _offered(block, draws, free, may_sink, freed, means)
    block = anchored(block, draws, allowed_sources(block, draws, free, freed))
    block = best_kind(block, draws, *columns)
    return pruned(_agreeing(block, draws, known), draws, known)


def common_means(blocks: list[Sinks], d: int) -> np.ndarray:
    """Return which coordinates ``(d, d)`` are the means, common to many sinks, of effects that a source scales.

    The mean of effects has their scale too, given them.  But they are the sinks, and it is their source.
    """
    followed, scaled = np.zeros((d, d), int), np.zeros(d, int)
    for block in blocks:
        for scales, shifts in zip(block.by_scale, block.by_location, strict=True):
            own = scales[scales >= 0]
            scaled[own] += 1
            followed[np.ix_(shifts[shifts >= 0], own)] += 1
    return followed >= np.maximum(_FEWEST_FOLLOW, _PART_FOLLOW * scaled)


def refit(block: Sinks, draws: Draws, columns: np.ndarray) -> Sinks:
    """Fit anew on some columns, from where the block stands."""
    return fit(block, *draws.at(columns))


def as_map(block: Sinks) -> FunnelMap:
    """Return the block as a map, in the units of its draws; sources without any effect are left out."""
    k = block.by_scale.shape[1]
    sources, effects, counts = [], [], []
    by_anchor = np.where(block.saturating[:, None], block.by_anchor, -1)
    for row in zip(
        *(block.by_scale, block.by_location, by_anchor), *(block.slope, block.load, block.anchor_load), strict=True
    ):
        own: dict[int, list[float]] = {}
        for position, (which, values) in enumerate(zip(row[:3], row[3:], strict=True)):
            for j, value in zip(which.tolist(), values.tolist(), strict=True):
                if j >= 0:
                    own.setdefault(j, [0.0, 0.0, 0.0])[position] += value
        sources += sorted(own)
        effects += [own[j] for j in sorted(own)]
        counts.append(len(own))
    a, c, t, e = (block.theta[:, column].copy() for column in (0, 1 + k, -2, -1))
    e[np.isinf(t)] = 0.0
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    slope, load, anchor_load = np.ascontiguousarray(np.array(effects, float).reshape(-1, 3).T)
    return FunnelMap(
        block.sink.astype(np.int64),
        start,
        np.array(sources, np.int64),
        slope,
        load,
        anchor_load,
        a,
        c,
        t,
        e,
    )


def pulled_back(block: Sinks, draws: Draws) -> Draws:
    """Return the draws with gradients with respect to the sinks' straightened coordinates."""
    found = as_map(block)
    gradient = found.pull_back(found.to_z(draws.x.T), draws.g.T)
    return replace(draws, g=np.ascontiguousarray(gradient.T))


def divergence(block: Sinks, draws: Draws, free: np.ndarray) -> float:
    """Return the sum over coordinates of ``log(1 + D / 2)`` on draws held out, each with its best scale and shift."""
    x, g = draws.at(draws.held)
    found = as_map(block)
    z = found.to_z(x.T)
    g_z = found.pull_back(z, g.T)
    z, g_z = z[:, free], g_z[:, free]
    with np.errstate(all="ignore"):
        apart = z.std(axis=0) * g_z.std(axis=0) + ((z - z.mean(axis=0)) * (g_z - g_z.mean(axis=0))).mean(axis=0)
        total = np.log(np.maximum(apart + 1.0, 1.0)).sum()
    return float(total) if np.isfinite(total) else np.inf


def _coloured(pairs: Pairs, known: Sinks | None) -> Sinks:
    """Let each coordinate be a source or a sink, the sources of most gain first."""
    clear = pairs.clear
    sources: dict[int, float] = {}
    for j, gain in zip(pairs.source[clear].tolist(), pairs.gain[clear].tolist(), strict=True):
        sources[j] = sources.get(j, 0.0) + gain
    slopes: dict[int, dict[int, float]] = {}
    fixed: set[int] = set()
    if known is not None:
        for i, row, slope in zip(known.sink.tolist(), known.by_scale.tolist(), known.slope.tolist(), strict=True):
            slopes[i] = {j: b for j, b in zip(row, slope, strict=True) if j >= 0}
            fixed.update(slopes[i])
        for others in (known.by_location, known.by_anchor):
            fixed.update(others[others >= 0].tolist())
    ranked = sorted(sources, key=lambda j: -sources[j])
    several = {j for j in ranked if np.sum(clear & (pairs.source == j)) > 1}
    first = ranked[:1] if ranked and ranked[0] in several else [j for j in ranked if j not in several]
    chosen = set(slopes)
    for j in [*first, *(j for j in ranked if j not in first)]:
        if j in chosen:
            continue
        own = (pairs.source == j) & (clear | (j in several))
        sinks = dict(zip(pairs.sink[own].tolist(), pairs.slope[own].tolist(), strict=True))
        if j in first:
            fixed.add(j)
            chosen.update(i for i in sinks if i not in fixed)
        for i, b in sinks.items():
            if i in chosen and len(slopes.setdefault(i, {})) < MOST_SCALES:
                slopes[i].setdefault(j, b)
    sink = np.array(sorted(slopes), int)
    most = max((len(slopes[i]) for i in sink.tolist()), default=1)
    by_scale, slope = np.full((len(sink), most), -1), np.zeros((len(sink), most))
    for row, i in enumerate(sink.tolist()):
        for column, (j, b) in enumerate(slopes[i].items()):
            by_scale[row, column], slope[row, column] = j, b / len(slopes[i])
    start = Sinks.start(sink, by_scale, by_scale, slope)
    if known is not None and len(known.sink):
        start = _continued(start, known)
    return start


def _continued(start: Sinks, known: Sinks) -> Sinks:
    """Add the known sources of locations and anchors to those of the sinks that were known."""
    for adding, name in ((Sinks.adding, "by_location"), (Sinks.adding_anchor, "by_anchor")):
        for column in getattr(known, name).T:
            by_sink = dict(zip(known.sink.tolist(), column.tolist(), strict=True))
            more = np.array([by_sink.get(i, -1) for i in start.sink.tolist()], int)
            doubled = (getattr(start, name) == more[:, None]).any(axis=1)
            start = adding(start, np.where(doubled, -1, more))
    return start


def _turned(block: Sinks, draws: Draws, free: np.ndarray, known: Sinks | None) -> tuple[Sinks, np.ndarray]:
    """Try sinks that others call for as sources of their locations; return the block and which have been turned."""
    kept = np.isin(block.sink, [] if known is None else known.sink)
    calls = np.abs(location_scores(block, *draws.at(draws.fitted, ROWS)))[:, block.sink]
    np.fill_diagonal(calls, 0.0)
    callers = (calls > CALLED_BACK).sum(axis=0)
    likely = (callers >= _CALLERS) & ~kept
    strength = np.where(likely, (calls**2).sum(axis=0) / np.maximum((calls**2).sum(axis=1), 1e-12), 0.0)
    turn = strength > _STRONGER
    singly = np.argsort(-strength)[: min(_TURNED, likely.sum())]
    best, freed, lowest = block, np.zeros(0, int), divergence(block, draws, free) - _LEAST_MOVE
    for which in (turn, *(np.arange(len(turn)) == k for k in singly)):
        if which.any() and not which.all():
            trial = block.take(~which)
            allowed = np.zeros((len(trial.sink), len(free)), bool)
            allowed[:, block.sink[which]] = True
            trial = grown(trial, draws, allowed)
            found = divergence(trial, draws, free)
            if found < lowest:
                best, freed, lowest = trial, block.sink[which], found
    return best, freed


def _offered(
    block: Sinks, draws: Draws, free: np.ndarray, may_sink: np.ndarray, freed: np.ndarray, means: np.ndarray | None
) -> Sinks:
    """Offer sources with two sinks or more to all that are neither."""
    sources, counts = np.unique(block.by_scale[block.by_scale >= 0], return_counts=True)
    many, rest = np.zeros(len(free), bool), may_sink.copy()
    many[sources[counts > 1]] = True
    used = np.concatenate([block.by_scale.ravel(), block.by_location.ravel(), block.by_anchor.ravel()])
    rest[block.sink] = rest[used[used >= 0]] = False
    if not (many.any() and rest.any()):
        return block
    columns = draws.at(draws.fitted, ROWS)
    pairs = find_pairs(draws, rest, free & many, least=_OFFERED, barred=means)
    more = best_kind(_coloured(pairs, None), draws, *columns, STEPS)
    rest[more.sink] = False
    like = _like_siblings(block, np.flatnonzero(rest), int(sources[counts.argmax()]), draws, columns)
    more = more.beside(like)
    if not len(more.sink):
        return block
    trial = block.beside(more)
    trial = grown(trial, draws, allowed_sources(trial, draws, free, freed))
    lower = divergence(trial, draws, free) < divergence(block, draws, free) - _LEAST_MOVE
    return trial if lower else block


def _like_siblings(
    block: Sinks, rest: np.ndarray, source: int, draws: Draws, columns: tuple[np.ndarray, np.ndarray]
) -> Sinks:
    """Return those that the scale and the most common location of the source's sinks straighten."""
    own = (block.by_scale == source).any(axis=1)
    shifts, counts = np.unique(block.by_location[own], return_counts=True)
    counts = np.where((shifts < 0) | (shifts == source), 0, counts)
    if not counts.any():
        return block.take(np.zeros(0, int))
    sources = np.tile([source, shifts[counts.argmax()]], (len(rest), 1))
    slope = np.full((len(rest), 1), np.median(block.slope[block.by_scale == source]))
    found = best_kind(Sinks.start(rest, sources[:, :1], sources, slope), draws, *columns, STEPS)
    share, gain = scale_share(found, *draws.at(draws.held, ROWS))
    return found.take((share < LARGEST_SHARE) & (gain > _LEAST_MOVE))


def _agreeing(block: Sinks, draws: Draws, known: Sinks | None) -> Sinks:
    """Keep sinks whose fits on one half of the chains hold on the other, with like slopes; and those known."""
    kept = np.isin(block.sink, [] if known is None else known.sink)
    share, gain = scale_share(block, *draws.at(draws.held))
    good = (share < LARGEST_SHARE) & (gain > _LEAST_MOVE) & (np.abs(block.slope).max(axis=1) > LEAST_EFFECT)
    slopes = []
    for own, other in (draws.halves, draws.halves[::-1]):
        half = refit(block, draws, own)
        share, _ = scale_share(half, *draws.at(other))
        good &= share < LARGEST_SHARE
        slopes.append(half.slope)
    apart, size = np.abs(slopes[0] - slopes[1]), np.maximum(np.abs(slopes[0]), np.abs(slopes[1]))
    good &= (apart <= np.maximum(_APART * size, _APART_LEAST)).all(axis=1)
    return block.take(kept | good)
