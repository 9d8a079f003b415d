r"""Which coordinates scale which others, from draws and gradients alone.

Where the scale of a sink ``i`` follows a source ``j``, draws of the sink are wide and its gradients small at large
``x_j``, and the other way round at small: what a coordinate that is standard Gaussian given all others does not do.
With both in units in which they are of one size,

.. math:: q_i = \log(1 + g_i^2) - \log(1 + x_i^2)

falls along with ``x_j``, for a funnel with slope ``B`` by ``4 B`` where both are large.  The correlations of all pairs
are one product of matrices.  They only propose: a pair is kept if shift and scale of the sink, fitted as functions of
the source (:mod:`pmm_mcmc.noncentring.fit`), whiten other draws than the fit has seen much better than the same shift
with a constant scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pmm_mcmc.noncentring.fit import Sinks, fit, location_scores, mean_loss

__all__ = ["Draws", "Pairs", "best_kind", "find_pairs", "scale_scores", "scale_share", "some"]

# Of a correlation: independent draws leave 2/sqrt(n), those of a short warm-up up to .2.
CORRELATED = 0.2
# Effects on the location that a pair's fit may take up.
_LOCATIONS = 2
_PER_SINK, _MOST_PAIRS, _ROWS, _STEPS = 4, 1000, 256, 10
# Share of the loss at a constant scale that a source must leave at most, and its least effect in standard deviations.
LARGEST_SHARE, LEAST_EFFECT = 0.8, 0.1
_UNCLEAR_SHARE = 0.95  # beside other sinks of the same source
# A ceiling must leave this part of the loss without one, and win by so much.
CEILING_SHARE, CEILING_LEAST = 0.8, 0.003
# Where a ceiling is begun at, above the fitted log scale at the centre.
RISE = 0.5


@dataclass(frozen=True)
class Draws:
    """Draws and gradients ``(d, n)`` in units of order one, those to fit and those held out, and two halves.

    Attributes
    ----------
    x, g
        Coordinates first.
    fitted, held : (k,), (n - k,) int
        Columns.
    halves : two arrays of int
        Columns of the chains of either half, or of either half of the time where there is one chain.
    """

    x: np.ndarray
    g: np.ndarray
    fitted: np.ndarray
    held: np.ndarray
    halves: tuple[np.ndarray, np.ndarray]

    def at(self, columns: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return draws and gradients of some columns, at most so many, evenly spaced."""
        if most is not None and len(columns) > most:
            columns = columns[np.linspace(0, len(columns) - 1, most).astype(int)]
        return np.ascontiguousarray(self.x[:, columns]), np.ascontiguousarray(self.g[:, columns])


class Pairs(NamedTuple):
    """Pairs found: ``source[k]`` scales ``sink[k]``.

    Attributes
    ----------
    sink, source : (m,) int
        Coordinates.
    slope : (m,)
        Effect of the source on the log scale, fitted alone.
    gain : (m,)
        Decrease of ``log(1 + loss / 2)`` of the sink on draws held out, against a constant scale.
    clear : (m,) bool
        Whether the source takes away enough of the loss to be believed by itself, not only beside others like it.
    """

    sink: np.ndarray
    source: np.ndarray
    slope: np.ndarray
    gain: np.ndarray
    clear: np.ndarray


def some(n: int, most: int, attempt: int = 0) -> np.ndarray:
    """Return which of ``n`` draws to take where so many are enough: in their order, and not always the same chains'."""
    return np.sort(np.random.default_rng([n, attempt]).permutation(n)[:most])


def scale_scores(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the correlations ``(d, d)`` of every ``-q_i`` (rows) with every ``x_j``, zero on the diagonal."""
    spread = np.median(np.abs(x), axis=1, keepdims=True)
    steep = np.median(np.abs(g), axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        root = np.sqrt(steep / spread)
        q = np.log1p((x * root) ** 2) - np.log1p((g / root) ** 2)
        scores = _standard(q) @ _standard(x).T / x.shape[1]
    np.fill_diagonal(scores, 0.0)
    return np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0)


def find_pairs(
    draws: Draws,
    may_sink: np.ndarray,
    may_source: np.ndarray,
    least: float = CORRELATED,
    barred: np.ndarray | None = None,
) -> Pairs:
    """Find which coordinates scale which.

    Parameters
    ----------
    draws
        Draws of one time, from the transient or after it.
    may_sink, may_source : (d,) bool
        Coordinates to look among.
    least
        Correlation from which a pair is fitted.
    barred : (d, d) bool
        Sinks and sources that are no pair.
    """
    scores = scale_scores(draws.x, draws.g) * may_sink[:, None] * may_source
    if barred is not None:
        scores[barred] = 0.0
    strength = np.abs(scores)
    few = min(_PER_SINK, len(scores))
    threshold = np.maximum(np.partition(strength, -few, axis=1)[:, -few], least)
    sink, source = np.nonzero(strength >= threshold[:, None])
    most = np.sort(np.argsort(-strength[sink, source], kind="stable")[:_MOST_PAIRS])
    sink, source = sink[most], source[most]
    x, g = draws.at(draws.fitted, _ROWS)
    start = Sinks.start(sink, source[:, None], source[:, None], 0.5 * np.sign(scores[sink, source])[:, None])
    found = best_kind(start, draws, x, g, _STEPS)
    held = draws.at(draws.held, 2 * _ROWS)
    for _ in range(_LOCATIONS):
        calls = np.abs(location_scores(found, x, g)) * may_source
        calls[np.arange(len(sink)), sink] = 0.0
        best = calls.argmax(axis=1)
        share, _ = scale_share(found, *held)
        called = (calls[np.arange(len(sink)), best] > CORRELATED) & (share >= LARGEST_SHARE)
        if not called.any():
            break
        found = found.adding(np.where(called, best, -1))
        at = np.flatnonzero(called)
        found = found.put(at, best_kind(found.take(at), draws, x, g, _STEPS))
    share, gain = scale_share(found, *held)
    seen, _ = scale_share(found, x, g)
    slope = found.slope[:, 0]
    left = np.maximum(share, seen)
    kept = (left < _UNCLEAR_SHARE) & (np.abs(slope) > LEAST_EFFECT)
    return Pairs(sink[kept], source[kept], slope[kept], gain[kept], left[kept] < LARGEST_SHARE)


def best_kind(start: Sinks, draws: Draws, x: np.ndarray, g: np.ndarray, steps: int = 60) -> Sinks:
    """Fit linear and saturating and return, for each sink, the saturating one only where it wins on draws held out."""
    held = draws.at(draws.held, 2 * _ROWS)
    linear = replace(start, theta=start.theta.copy())
    known = start.saturating
    linear.theta[known, -2] = np.inf
    linear = fit(linear, x, g, steps)
    trial = linear.with_ceiling(linear.theta[:, 0] + RISE)
    trial = fit(replace(trial, theta=np.where(known[:, None], start.theta, trial.theta)), x, g, steps)
    wins = trial.losses(*held) < CEILING_SHARE * linear.losses(*held) - CEILING_LEAST
    wins &= np.isfinite(trial.theta[:, :-2]).all(axis=1)
    return linear.put(np.flatnonzero(wins), trial.take(wins))


def scale_share(sinks: Sinks, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of the loss at the best constant scale that is left, and the gain in ``log(1 + loss / 2)``.

    Both losses are with the fitted shift: one that bends with a source is not a scale that follows it.
    """
    shift, *_ = sinks.evaluate(x)
    offset, gradient = x[sinks.sink] - shift, g[sinks.sink]
    constant = np.full(len(offset), np.inf)
    for size in (np.median, np.mean):
        with np.errstate(all="ignore"):
            ratio = size(np.abs(offset), axis=1) / size(np.abs(gradient), axis=1)
            root = np.sqrt(ratio)[:, None]
            constant = np.minimum(constant, mean_loss(offset / root + gradient * root))
    loss = sinks.losses(x, g)
    with np.errstate(all="ignore"):
        share = np.where(constant > 0.0, loss / constant, 1.0)
        return share, np.log1p(0.5 * constant) - np.log1p(0.5 * loss)


def _standard(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(axis=1, keepdims=True)
    return centred / centred.std(axis=1, keepdims=True)
