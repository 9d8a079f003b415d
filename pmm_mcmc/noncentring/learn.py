r"""Learns the map that straightens a posterior's funnels, from draws and gradients that warm-up has anyway.

Level by level, the deepest first: sinks with their sources are found and fitted
(:mod:`pmm_mcmc.noncentring.blocks`), the gradient is pulled back to their straightened coordinates, and what is left is
searched for the level above.  Three levels of a hierarchy are two turns.

The map is accepted by draws held out, the newest 40 %, with the Fisher divergence from a Gaussian per coordinate,
:math:`D = mean |W^{-1} (z - m) + W^T g^z|^2 / d`, each with the best affine scale ``W`` of the older draws, diagonal or
dense: it must fall by half, and by a tenth for each coordinate that the map involves, be they few among many.  It is
then fitted twice more, on all draws, and on these and points down its own necks (:mod:`pmm_mcmc.noncentring.neck`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pmm_mcmc.noncentring.blocks import as_map, common_means, divergence, find_block, pulled_back, refit
from pmm_mcmc.noncentring.fit import Sinks
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.left import FEWEST, FITTED, gaussian_divergence, left
from pmm_mcmc.noncentring.means import as_means
from pmm_mcmc.noncentring.neck import Necks
from pmm_mcmc.noncentring.pairs import Draws, some
from pmm_mcmc.noncentring.siblings import shared
from pmm_mcmc.noncentring.steady import steady
from pmm_mcmc.noncentring.words import describe

__all__ = ["Learnt", "learn_map"]

_Columns = tuple[np.ndarray, np.ndarray]

_MOST_LEVELS = 8
_RATIO = 0.5  # of the divergence: what a map must leave at most
# What it must take away for each coordinate involved, and the fewest of these to count on before any has been found.
_LEAST, _INVOLVED = 0.1, 10
# Of the divergence summed over coordinates, what a level must take away, and a new map of what the last one has left:
# for less it is not worth that warm-up begins anew.
_LEVEL_SHARE, _LEVEL_LEAST = 0.03, 0.05
# Divergence in the worst coordinate from which a map is not built upon, and another is looked for beside it, at once on
# such a part of the draws: where one of several that tell the same is taken for the source, all that follows is wrong.
_BADLY, _ATTEMPTS, _SPARED = 1.0, 4, 0.75
# Draws for the few numbers that are fitted anew once a level is known, so many for all its sinks.
_FEW, _MANY, _NUMBERS = 400, 1400, 600_000


@dataclass(frozen=True)
class Learnt:
    """What was learnt.

    Attributes
    ----------
    map
        The map, or ``None`` where none is needed or none was found that holds on draws held out.
    found
        What scales with what, a phrase for each group of sinks; also of a map that was refused.
    before, after
        Divergence per coordinate of draws held out from a Gaussian, with the best affine scale alone and on top of the
        map that was found; equal where none was.
    n_grad
        Gradients that were taken.
    """

    map: FunnelMap | None
    found: tuple[str, ...]
    before: float
    after: float
    n_grad: int = 0

    def __str__(self) -> str:
        """Return what was found and what it brought, in words."""
        if not self.found:
            return "no funnel found"
        verdict = "straightened" if self.map is not None else "left alone"
        found = "; ".join(self.found)
        return f"{found}: {verdict} (divergence from a Gaussian on new draws {self.before:.3g} -> {self.after:.3g})"


def learn_map(
    position: np.ndarray,
    gradient: np.ndarray,
    chain: np.ndarray,
    previous: FunnelMap | None = None,
    names: Sequence[str] | None = None,
    gradient_at: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Learnt:
    """Learn which coordinates scale which others, and the map that undoes it.

    Parameters
    ----------
    position, gradient : (n, d)
        Draws and the gradient of the log density there, in the model's own coordinates, in order of time, the chains
        side by side; those of the transient too, as long as they are finite.
    chain : (n,) int
        The chain of each.
    previous
        A map learnt before: what it has as sinks and sources is kept, and only added to.
    names
        Of the coordinates, for the report.
    gradient_at
        Gradients of the log density at positions ``(n, d)``: the map is then fitted down its necks too.

    Returns
    -------
    Learnt
        The map, if any, and what it brings; ``previous`` itself where nothing better was found.

    Raises
    ------
    ValueError
        If the arrays do not fit together, or ``previous`` does not fit the model.
    """
    x, g, chain = np.asarray(position, float), np.asarray(gradient, float), np.asarray(chain)
    if x.ndim != 2 or g.shape != x.shape or chain.shape != x.shape[:1]:
        raise ValueError(
            f"position {x.shape}, gradient {g.shape} and chain {chain.shape} do not fit together: pass (n, d), (n, d) "
            "and (n,)"
        )
    if previous is not None:
        previous.checked(x.shape[1])
    x, g, chain = _usable(x, g, chain)
    varies = bool(len(x)) and bool(np.all(np.ptp(x, axis=0) > 0.0)) and bool(np.all(np.ptp(g, axis=0) > 0.0))
    if len(x) < FEWEST or x.shape[1] < 2 or not varies:
        return Learnt(previous, (), math.nan, math.nan)
    before = float(gaussian_divergence(x, g).mean())
    d = x.shape[1]
    if previous is None and not d * before > _LEAST * min(d, _INVOLVED):
        return Learnt(None, (), before, before)
    centre, scale = np.median(x, axis=0), x.std(axis=0)
    draws = _draws(x, g, chain, centre, scale)
    old, worst_of_old = (math.inf, math.inf) if previous is None else left(previous, x, g)
    # What was taken for a sink or a source further up may be in the way of what these draws teach.
    levels = [] if previous is None or worst_of_old > _BADLY else _levels(previous, centre, scale)
    names = [f"x[{i}]" for i in range(d)] if names is None else names
    blocks, after, found = [], math.inf, None
    for attempt in range(_ATTEMPTS):
        trial = _blocks(draws if attempt == 0 else _fewer(draws, attempt), levels, centre, scale)
        if not trial:
            continue
        one = _joined(trial, centre, scale).checked(d)
        leaves, worst = left(one, x, g)
        if leaves < after:
            blocks, after, found = trial, leaves, one
        if worst < _BADLY:
            break
    kept = previous is not None and (found is None or not d * (old - after) > _LEVEL_LEAST)
    if kept:
        found, after = previous, old
    if found is None:
        return Learnt(None, (), before, before)
    words = describe(found, names)
    involved = len(np.union1d(found.sink, found.source))
    if not (after < _RATIO * before and d * (before - after) > _LEAST * involved):
        return Learnt(None, words, before, after)
    necks = Necks(x, gradient_at)
    if not kept:
        blocks = _final(blocks, _draws(*necks.beside(x, g, chain), centre, scale), centre, scale)
        if gradient_at is not None:
            necks.look(_joined(blocks, centre, scale).checked(d))
            blocks = _final(blocks, _draws(*necks.beside(x, g, chain), centre, scale), centre, scale)
        found = _joined(blocks, centre, scale).checked(d)
    return Learnt(found, words, before, after, necks.n_grad)


def _usable(x: np.ndarray, g: np.ndarray, chain: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Leave out draws that are not finite, and those that stand where their chain stood before."""
    good = np.isfinite(x).all(axis=1) & np.isfinite(g).all(axis=1)
    for name in np.unique(chain):
        own = np.flatnonzero(chain == name)
        good[own[1:]] &= (np.diff(x[own], axis=0) != 0.0).any(axis=1)
    return x[good], g[good], chain[good]


def _draws(x: np.ndarray, g: np.ndarray, chain: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> Draws:
    """Return the draws in units of order one, with the two parts of the time and the two halves of the chains."""
    n, names = len(x), np.unique(chain)
    split = int(FITTED * n)
    if len(names) > 1:
        halves = np.flatnonzero(np.isin(chain, names[::2])), np.flatnonzero(np.isin(chain, names[1::2]))
    else:
        halves = np.arange(n // 2), np.arange(n // 2, n)
    u, slope = np.ascontiguousarray(((x - centre) / scale).T), np.ascontiguousarray((g * scale).T)
    return Draws(u, slope, np.arange(split), np.arange(split, n), halves)


def _fewer(draws: Draws, attempt: int) -> Draws:
    """Leave out some of the draws to fit, others in each attempt."""
    most = int(_SPARED * len(draws.fitted))
    return replace(draws, fitted=draws.fitted[some(len(draws.fitted), most, attempt)])


def _blocks(draws: Draws, known: list[Sinks], centre: np.ndarray, scale: np.ndarray) -> list[Sinks]:
    """Find the levels, the deepest first."""
    d = len(draws.x)
    free = np.ones(d, bool)
    blocks: list[Sinks] = []
    nothing = Sinks.start(np.zeros(0, int), np.zeros((0, 1), int), np.zeros((0, 0), int), np.zeros((0, 1)))
    for level in range(max(_MOST_LEVELS, len(known))):
        own = known[level] if level < len(known) else None
        upstream = np.zeros(d, bool)
        for above in known[level + 1 :]:
            upstream[above.sink] = True
            for sources in (above.by_scale, above.by_location, above.by_anchor):
                upstream[sources[sources >= 0]] = True
        block = find_block(draws, free, own, upstream, common_means(blocks, d))
        if not len(block.sink):
            break
        without = divergence(nothing, draws, free)
        if own is None and divergence(block, draws, free) > without - max(_LEVEL_SHARE * without, _LEVEL_LEAST):
            break
        columns = draws.at(draws.fitted), draws.at(draws.held)
        block = _regular(refit(block, draws, draws.fitted), centre, scale, *columns)
        blocks.append(block)
        draws = pulled_back(block, draws)
        free = free.copy()
        free[block.sink] = False
    return blocks


def _regular(block: Sinks, centre: np.ndarray, scale: np.ndarray, fitted: _Columns, held: _Columns) -> Sinks:
    """Give the sinks of a level what those of a hierarchy have, where draws do not speak against it."""
    most = max(_FEW, min(_MANY, _NUMBERS // max(len(block.sink), 1)))
    fitted, held = _few(fitted, most), _few(held, most)
    return as_means(steady(shared(block, fitted, held), fitted, held), centre, scale, fitted, held)


def _few(columns: _Columns, most: int) -> _Columns:
    x, g = columns
    which = some(x.shape[1], most)
    return np.ascontiguousarray(x[:, which]), np.ascontiguousarray(g[:, which])


def _final(blocks: list[Sinks], draws: Draws, centre: np.ndarray, scale: np.ndarray) -> list[Sinks]:
    """Fit the levels anew, on all draws."""
    fitted, everything = [], np.arange(draws.x.shape[1])
    for block in blocks:
        columns = draws.at(everything)
        fitted.append(_regular(refit(block, draws, everything), centre, scale, columns, columns))
        draws = pulled_back(fitted[-1], draws)
    return fitted


def _joined(blocks: list[Sinks], centre: np.ndarray, scale: np.ndarray) -> FunnelMap:
    """Return all levels as one map of the model's own coordinates, the levels above first."""
    maps = [as_map(block) for block in reversed(blocks)]
    parts = {name: np.concatenate([getattr(m, name) for m in maps]) for name in FunnelMap._fields}
    parts["start"] = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(m.start) for m in maps]))])
    return FunnelMap(**parts).rescaled(centre, scale)


def _levels(found: FunnelMap, centre: np.ndarray, scale: np.ndarray) -> list[Sinks]:
    """Return sinks, sources and slopes of a map in units of the draws, the deepest level first."""
    levels = []
    for at in reversed(found.levels()):
        rows: list[tuple[list[int], list[int], list[int], list[float]]] = []
        for k in range(at.start, at.stop):
            inside = slice(found.start[k], found.start[k + 1])
            source, slope = found.source[inside], found.slope[inside]
            scales, shifts, pulls = (part[inside] != 0.0 for part in (found.slope, found.load, found.anchor_load))
            effect = slope[scales] * scale[source[scales]]
            rows.append((source[scales].tolist(), source[shifts].tolist(), source[pulls].tolist(), effect.tolist()))
        m = len(rows)
        widths = [max(least, *(len(row[part]) for row in rows)) for part, least in enumerate((1, 1, 0))]
        by_scale, by_location, by_anchor = (np.full((m, width), -1) for width in widths)
        slopes = np.zeros((m, widths[0]))
        for k, (scales_of, locations_of, anchors_of, effects) in enumerate(rows):
            by_scale[k, : len(scales_of)], slopes[k, : len(effects)] = scales_of, effects
            by_location[k, : len(locations_of)], by_anchor[k, : len(anchors_of)] = locations_of, anchors_of
        level = Sinks.start(found.sink[at], by_scale, by_location, slopes)
        for column in by_anchor.T:
            level = level.adding_anchor(column)
        levels.append(level)
    return levels
