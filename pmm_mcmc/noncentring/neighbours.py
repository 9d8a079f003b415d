"""Sinks that are each other's neighbours: every second one of a walk or a field is a source of the others."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, location_scores
from pmm_mcmc.noncentring.pairs import Draws
from pmm_mcmc.noncentring.sources import CALLED, CALLED_BACK, ROWS, grown

__all__ = ["apart"]

# Of the strongest call what a neighbour's must be; sinks that must stay, where a group that has no mean beside it, all
# of whose effects call for each other, leaves one; and of their loss what they must have with their neighbours at most.
_NEAREST, _MOST, _FEWEST, _LEFT = 0.6, 0.5, 2, 0.5
_FOLLOWERS = 3  # sinks that follow another more closely than any third


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
    nothing = np.zeros(0, int)
    kept = np.isin(block.sink, [] if known is None else known.sink)
    strength = np.abs(location_scores(block, *draws.at(draws.fitted, ROWS)))[:, block.sink]
    np.fill_diagonal(strength, 0.0)
    if len(kept) < _FEWEST:
        return block, nothing
    strongest = strength.max(axis=1)
    calling = strongest > CALLED_BACK
    calls = strength > np.maximum(CALLED_BACK, _NEAREST * strongest[:, None])
    first = np.bincount(strength.argmax(axis=1)[calling], minlength=len(kept))
    # What several follow more closely than each other, or most follow, comes first: their neighbours show then.
    common = (strength > CALLED).mean(axis=0) > _MOST
    means = ((first >= _FOLLOWERS) | common) & ~kept
    if means.any():
        trial = _without(block, means, calls | (strength > CALLED) & common, draws, len(free))
        if trial is not None:
            return trial, block.sink[means]
    means = common
    calls |= calls.T
    stays = kept.copy()
    # Along the graph, so that the pattern is one wherever it is one piece.
    for i in _in_order(calls & ~means & ~means[:, None]):
        if not (stays[i] or means[i] or (calls[i] & stays).any()):
            stays[i] = True
    trial = _without(block, ~stays, calls, draws, len(free))
    return (block, nothing) if trial is None else (trial, block.sink[~stays])


def _without(block: Sinks, taken: np.ndarray, calls: np.ndarray, draws: Draws, d: int) -> Sinks | None:
    """Return the other sinks with these as sources, if those that call for them become much closer to Gaussian."""
    if not taken.any() or (~taken).sum() < _FEWEST:
        return None
    before, calls = block.take(~taken), calls[~taken][:, taken]
    allowed = np.zeros((len(before.sink), d), bool)
    allowed[:, block.sink[taken]] = calls
    trial, held = grown(before, draws, allowed), draws.at(draws.held, ROWS)
    closer = trial.losses(*held) < _LEFT * before.losses(*held)
    return trial if closer[calls.any(axis=1)].mean() >= 0.5 else None


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
