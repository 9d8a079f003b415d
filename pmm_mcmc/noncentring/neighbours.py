"""Sinks that are each other's neighbours: every second one of a walk or a field is a source of the others."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, location_scores
from pmm_mcmc.noncentring.pairs import Draws
from pmm_mcmc.noncentring.siblings import EXACT
from pmm_mcmc.noncentring.sources import CALLED, CALLED_BACK, ROWS, grown

__all__ = ["apart"]

# Of the strongest call what a neighbour's must be; part of the sinks that must call for their common mean; sinks that
# follow another more closely than any third, to be taken for a mean of their own.
_NEAREST, _MOST, _FOLLOWERS = 0.6, 0.5, 3
# Sinks that must stay: a group that has no mean beside it, all of whose effects call for each other, would leave one.
# What the log of the loss must fall by.
_FEWEST, _FALLEN = 2, 0.7


def apart(block: Sinks, draws: Draws, free: np.ndarray, known: Sinks | None) -> tuple[Sinks, np.ndarray]:
    r"""Take sinks out so that none of the others has a neighbour among them, and let these be their sources.

    In :math:`x_t \sim N(\mu + \rho (x_{t-1} - \mu), e^{2 s})` all :math:`x_t` are scaled by :math:`s`, and each
    given all else follows its neighbours.  Every second one is straightened here, given those between; of these, with
    the former integrated out, every second one at the level above, and so on.

    Parameters
    ----------
    block
        Fitted sinks.
    draws
        With gradients from which the deeper levels have been taken off.
    free : (d,) bool
        Coordinates that are not a sink of a deeper level.
    known
        Sinks of this level that are known from before, which are kept.

    Returns
    -------
    tuple
        The sinks that are left with their sources, and the coordinates that have become sources; the block and none
        where sinks have no neighbours, many of them, or do not become much closer to Gaussian given these.
    """
    nothing, m = np.zeros(0, int), len(block.sink)
    if m < _FEWEST:
        return block, nothing
    kept = np.isin(block.sink, [] if known is None else known.sink)
    strength = np.abs(location_scores(block, *draws.at(draws.fitted, ROWS)))[:, block.sink]
    np.fill_diagonal(strength, 0.0)
    strongest = strength.max(axis=1)
    calls = strength > np.maximum(CALLED_BACK, _NEAREST * strongest[:, None])
    # What several follow more closely than each other, what most follow, and every second along the graph of calls.
    first = np.bincount(strength.argmax(axis=1)[strongest > CALLED_BACK], minlength=m)
    common = np.arange(m) == strength.mean(axis=0).argmax()
    common &= (strength > CALLED).mean(axis=0) > _MOST
    tried = [first >= _FOLLOWERS, common, _every_second(calls | calls.T, kept, common)]
    best, taken, most = block, nothing, 0.0
    for which in tried:
        found = _without(block, which & ~kept, calls | (strength > CALLED) & common, draws, len(free))
        if found is not None and found[1] > most:
            best, most, taken = *found, block.sink[which & ~kept]
    return best, taken


def _without(block: Sinks, taken: np.ndarray, calls: np.ndarray, draws: Draws, d: int) -> tuple[Sinks, float] | None:
    """Return the other sinks with these as sources, and what the losses of all have fallen by, in logs.

    None where those that call for these do not become much closer to Gaussian.
    """
    calls = calls[~taken][:, taken]
    if not calls.any() or (~taken).sum() < _FEWEST:
        return None
    before = block.take(~taken)
    allowed = np.zeros((len(before.sink), d), bool)
    allowed[:, block.sink[taken]] = calls
    trial, held = grown(before, draws, allowed), draws.at(draws.held, ROWS)
    fallen = np.log(before.losses(*held) + EXACT) - np.log(trial.losses(*held) + EXACT)
    much = fallen[calls.any(axis=1)] > _FALLEN
    return (trial, float(fallen.sum())) if much.mean() >= 0.5 else None


def _every_second(calls: np.ndarray, kept: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Return which nodes to take out of a graph, these among them, so that no two that stay have an edge."""
    stays = kept.copy()
    # From node to node, so that the pattern is one wherever the graph is one piece.
    for i in _in_order(calls & ~common & ~common[:, None]):
        if not (stays[i] or common[i] or (calls[i] & stays).any()):
            stays[i] = True
    return ~stays


def _in_order(calls: np.ndarray) -> list[int]:
    """Return the nodes of a graph breadth first, each piece from that with the fewest neighbours."""
    order: list[int] = []
    seen = np.zeros(len(calls), bool)
    for start in np.argsort(calls.sum(axis=1), kind="stable").tolist():
        queue = [] if seen[start] else [start]
        seen[start] = True
        while queue:
            i = queue.pop(0)
            order.append(i)
            more = np.flatnonzero(calls[i] & ~seen)
            seen[more] = True
            queue += more.tolist()
    return order
