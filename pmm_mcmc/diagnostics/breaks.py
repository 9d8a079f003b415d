r"""A search for jumps and walls of a log density, which its gradient does not show, on segments between draws.

Along a segment from ``a`` to ``b`` a smooth log density ``l`` with gradient ``g`` closes:

.. math:: E = l(b) - l(a) - \tfrac12 (b - a) \cdot (g(a) + g(b))

is of third order in the length, and falls to an eighth in each half of a short segment.  At a kink it falls to about a
half in one of them.  At a jump one half keeps all of it, however short it is.  The segments are the edges of a shortest
tree through some draws: a surface that has draws on both sides is crossed by an edge.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

__all__ = ["DRAWS", "Break", "Density", "breaks_between", "looked_at"]

# Log densities ``(n,)`` and gradients ``(n, d)`` at positions ``(n, d)``.
Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Draws between which segments lie: some of each side of a break that cuts off a twentieth are in 9 runs of 10.
DRAWS = 48
# A half of the length 2^-16 of an edge that does not close contains a jump: a sampler's steps are much longer.
_HALVINGS = 16
# Gradients after which no more segments are halved, and most jumps, and walls, that are traced to their places.
_MOST = 400
_TRACED = 6


class Break(NamedTuple):
    """A jump or a wall of a log density.

    Attributes
    ----------
    kind
        "jump" or "wall".
    size
        Absolute change of the log density; infinite at a wall.
    coordinate, value
        An unconstrained coordinate that leads across it, and its value there.
    fixed
        Whether this value is the same wherever the break was found.
    """

    kind: str
    size: float
    coordinate: int
    value: float
    fixed: bool

    @classmethod
    def of(cls, finding: dict[str, Any]) -> Self | None:
        """Return the break in what :func:`breaks_between` returned, if there is one."""
        if "kind" not in finding:
            return None
        return cls(**{name: finding.get(name, math.inf) for name in cls._fields})


def looked_at(chains: int, draws: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the chains, and of their draws, for ``number`` draws from all of a run."""
    of_each = -(-number // chains)
    rows = (np.arange(of_each) + 0.5) * draws / of_each
    return np.arange(0, chains, -(-chains // number)), np.unique(rows.astype(int))


def breaks_between(
    draws: np.ndarray, density: Density, failures: bool = False, rounding: float = 1e-10
) -> dict[str, Any]:
    """Look for jumps and walls between draws.

    Parameters
    ----------
    draws : (n, d)
        Unconstrained positions from all chains.
    density
        Log density with gradient.
    failures
        Whether the model refused places where chains would have gone: then segments are prolonged to look there.
    rounding
        Relative rounding error of a log density.

    Returns
    -------
    dict
        The number of ``gradients`` that were evaluated and, if something was found, the fields of a :class:`Break`,
        without the size of a wall: JSON has no infinity.
    """
    look = _Look(density, rounding)
    with np.errstate(all="ignore"):  # densities that are not finite, or vast
        result = look.between(np.unique(np.asarray(draws, dtype=float), axis=0), failures)
    what = {} if result is None else result._asdict()
    return {"gradients": look.spent} | {name: value for name, value in what.items() if value != math.inf}


class _Points(NamedTuple):
    """Positions ``(n, d)``, log densities ``(n,)``, NaN where something is not finite, and gradients ``(n, d)``."""

    x: np.ndarray
    lp: np.ndarray
    g: np.ndarray

    def at(self, indices: Any) -> _Points:
        return _Points(*(array[indices] for array in self))


def _joined(*parts: _Points) -> _Points:
    return _Points(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _open_by(a: _Points, b: _Points) -> np.ndarray:
    """Return by how much segments do not close; NaN where an end is not finite."""
    return np.abs(b.lp - a.lp - 0.5 * ((a.g + b.g) * (b.x - a.x)).sum(axis=1))


class _Look:
    """A search that counts what it evaluates."""

    def __init__(self, density: Density, rounding: float):
        self._density = density
        self._rounding = rounding
        self.spent = 0

    def _evaluated(self, x: np.ndarray) -> _Points:
        self.spent += len(x)
        lp, g = self._density(x)
        return _Points(x, np.where(np.isfinite(lp + g.sum(axis=1)), lp, np.nan), g)

    def between(self, x: np.ndarray, failures: bool) -> Break | None:
        """Return the break that most of the segments cross."""
        sd = np.where(np.ptp(x, axis=0) > 0.0, x.std(axis=0), 1.0)
        if len(x) < 3 or not np.isfinite(x).all():
            return None
        points = self._evaluated(x)
        lowest = points.lp.min()
        if np.isnan(lowest):
            return None
        tree = minimum_spanning_tree(squareform(pdist(x / sd))).tocoo()
        a = points.at(tree.row)
        b = points.at(tree.col)
        (left, right), walls = self._jumps(a, b)
        if failures:
            way = (b.x - a.x) / sd
            way *= sd * math.sqrt(x.shape[1]) / np.sqrt((way**2).sum(axis=1, keepdims=True))
            beyond = self._evaluated(np.concatenate([b.x + way, a.x - way]))
            out = np.isnan(beyond.lp)
            walls = [*walls, (_joined(b, a).at(out), beyond.at(out))]
        inside = left.at([])
        outside = right.at([])
        if walls:
            inside, outside = (_joined(*side) for side in zip(*walls, strict=True))
        chosen = np.unique(np.linspace(0.0, max(len(inside.lp) - 1.0, 0.0), _TRACED).astype(int))[: len(inside.lp)]
        inside = inside.at(chosen)
        outside = outside.at(chosen)
        for _ in range(_HALVINGS * bool(len(inside.lp))):
            middle = self._evaluated(0.5 * (inside.x + outside.x))
            out = np.isnan(middle.lp)
            inside = _either(out, inside, middle)
            outside = _either(out, middle, outside)
        breaks = []
        for kind, one, other in (("jump", left, right), ("wall", inside, outside)):
            # A place is part of the posterior if it is as probable as draws are.
            probable = np.fmax(one.lp, other.lp) >= lowest
            breaks += self._placed(kind, one.at(probable), other.at(probable))
        return _most_common(breaks, sd)

    def _jumps(self, a: _Points, b: _Points) -> tuple[tuple[_Points, _Points], list[tuple[_Points, _Points]]]:
        """Return the shortest segments that contain a jump, and segments from a finite point to one that is not."""
        walls = []
        jumps = (a.at([]), b.at([]))
        opened = np.full(len(a.lp), np.inf)
        persistent = np.zeros(len(a.lp), int)
        depth = np.zeros(len(a.lp), int)
        while len(a.lp) and self.spent < _MOST:
            # Those first that stay open as they are halved.
            order = np.lexsort([-opened, -persistent])[: _MOST - self.spent]
            a = a.at(order)
            b = b.at(order)
            opened = opened[order]
            persistent = persistent[order]
            depth = depth[order]
            middle = self._evaluated(0.5 * (a.x + b.x))
            out = np.isnan(middle.lp)
            if out.any():
                walls.append((a.at(out), middle.at(out)))
            a = _joined(a, middle).at(np.tile(~out, 2))
            b = _joined(middle, b).at(np.tile(~out, 2))
            opened_before, persistent, depth = (np.tile(state[~out], 2) for state in (opened, persistent, depth + 1))
            opened = _open_by(a, b)
            persistent = np.where(opened > 0.7 * opened_before, persistent + 1, 0)
            limit = THRESHOLDS.jump + self._rounding * np.maximum(np.abs(a.lp), np.abs(b.lp))
            still = opened > limit
            # Of the jumps that are already known to be such, only some are traced.
            still &= (persistent < 3) | (np.cumsum(persistent >= 3) <= _TRACED)
            done = still & (depth >= _HALVINGS)
            jumps = _joined(jumps[0], a.at(done)), _joined(jumps[1], b.at(done))
            still &= ~done
            a = a.at(still)
            b = b.at(still)
            opened = opened[still]
            persistent = persistent[still]
            depth = depth[still]
        return jumps, walls

    def _placed(self, kind: str, a: _Points, b: _Points) -> list[Break]:
        """Return breaks in short segments with the coordinate that leads across each."""
        n, d = a.x.shape
        low = np.zeros(n, int)
        high = np.full(n, d)
        while n and (high - low).max() > 1:
            half = (low + high) // 2
            lp = self._evaluated(np.where(np.arange(d) < half[:, None], b.x, a.x)).lp
            across = np.isnan(lp) if kind == "wall" else np.abs(lp - a.lp) > np.abs(lp - b.lp)
            low = np.where(across, low, half)
            high = np.where(across, half, high)
        size = np.full(n, math.inf) if kind == "wall" else np.abs(b.lp - a.lp)
        return [Break(kind, float(size[i]), int(low[i]), float(a.x[i, low[i]]), True) for i in range(n)]


def _either(condition: np.ndarray, one: _Points, other: _Points) -> _Points:
    return _Points(*(
        np.where(condition[:, None] if u.ndim == 2 else condition, u, v) for u, v in zip(one, other, strict=True)
    ))  # fmt: skip


def _most_common(breaks: list[Break], sd: np.ndarray) -> Break | None:
    """Return one break for all that are of the most frequent kind and coordinate."""
    if not breaks:
        return None
    (kind, coordinate), _ = Counter((one.kind, one.coordinate) for one in breaks).most_common(1)[0]
    same = sorted(one.value for one in breaks if (one.kind, one.coordinate) == (kind, coordinate))
    others = any(one.coordinate != coordinate for one in breaks if one.kind == kind)
    fixed = not others and bool(same[-1] - same[0] < 1e-3 * sd[coordinate])
    size = float(np.median([one.size for one in breaks if one.kind == kind]))
    return Break(kind, size, coordinate, same[len(same) // 2], fixed)
