r"""Jumps and walls of a log density, which its gradient does not show, looked for on segments between draws.

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

from pmm_mcmc.diagnostics.calibration import CALIBRATION

__all__ = ["DRAWS", "Break", "Density", "breaks_between", "looked_at"]

# Log densities ``(n,)`` and gradients ``(n, d)`` at positions ``(n, d)``.
Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Draws between which segments lie: some of each side of a break that cuts off a twentieth are in 9 runs of 10.
DRAWS = 48
# A half of the length 2^-16 of an edge that does not close contains a jump: a sampler's steps are much longer.
_HALVINGS = 16
# Gradients after which no more segments are halved, and most jumps, and walls, that are traced to their places.
_MOST, _TRACED = 400, 6


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
    which = (np.arange(of_each) + 0.5) * draws / of_each
    return np.arange(0, chains, -(-chains // number)), np.unique(which.astype(int))


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
        found = look.between(np.unique(np.asarray(draws, dtype=float), axis=0), failures)
    what = {} if found is None else found._asdict()
    return {"gradients": look.spent} | {name: value for name, value in what.items() if value != math.inf}


class _Points(NamedTuple):
    """Positions ``(n, d)``, log densities ``(n,)``, NaN where something is not finite, and gradients ``(n, d)``."""

    x: np.ndarray
    lp: np.ndarray
    g: np.ndarray

    def at(self, which: Any) -> _Points:
        return _Points(*(part[which] for part in self))


def _joined(*parts: _Points) -> _Points:
    return _Points(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _open_by(a: _Points, b: _Points) -> np.ndarray:
    """Return by how much segments do not close; NaN where an end is not finite."""
    return np.abs(b.lp - a.lp - 0.5 * ((a.g + b.g) * (b.x - a.x)).sum(axis=1))


class _Look:
    """A search that counts what it evaluates."""

    def __init__(self, density: Density, rounding: float):
        self._density, self._rounding, self.spent = density, rounding, 0

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
        a, b = points.at(tree.row), points.at(tree.col)
        (left, right), walls = self._jumps(a, b)
        if failures:
            way = (b.x - a.x) / sd
            way *= sd * math.sqrt(x.shape[1]) / np.sqrt((way**2).sum(axis=1, keepdims=True))
            beyond = self._evaluated(np.concatenate([b.x + way, a.x - way]))
            out = np.isnan(beyond.lp)
            walls = [*walls, (_joined(b, a).at(out), beyond.at(out))]
        inside, outside = left.at([]), right.at([])
        if walls:
            inside, outside = (_joined(*side) for side in zip(*walls, strict=True))
        chosen = np.unique(np.linspace(0.0, max(len(inside.lp) - 1.0, 0.0), _TRACED).astype(int))[: len(inside.lp)]
        inside, outside = inside.at(chosen), outside.at(chosen)
        for _ in range(_HALVINGS * bool(walls)):
            middle = self._evaluated(0.5 * (inside.x + outside.x))
            out = np.isnan(middle.lp)
            inside, outside = _either(out, inside, middle), _either(out, middle, outside)
        found = []
        for kind, one, other in (("jump", left, right), ("wall", inside, outside)):
            # A place is part of the posterior if it is as probable as draws are.
            there = np.fmax(one.lp, other.lp) >= lowest
            found += self._placed(kind, one.at(there), other.at(there))
        return _most_common(found, sd)

    def _jumps(self, a: _Points, b: _Points) -> tuple[tuple[_Points, _Points], list[tuple[_Points, _Points]]]:
        """Return the shortest segments that contain a jump, and segments from a finite point to one that is not."""
        walls, jumps = [], (a.at([]), b.at([]))
        opened, kept, depth = np.full(len(a.lp), np.inf), np.zeros(len(a.lp), int), np.zeros(len(a.lp), int)
        while len(a.lp) and self.spent < _MOST:
            # Those first that stay open as they are halved.
            order = np.lexsort([-opened, -kept])[: _MOST - self.spent]
            a, b, opened, kept, depth = a.at(order), b.at(order), opened[order], kept[order], depth[order]
            middle = self._evaluated(0.5 * (a.x + b.x))
            out = np.isnan(middle.lp)
            if out.any():
                walls.append((a.at(out), middle.at(out)))
            a, b = _joined(a, middle).at(np.tile(~out, 2)), _joined(middle, b).at(np.tile(~out, 2))
            before, kept, depth = (np.tile(part[~out], 2) for part in (opened, kept, depth + 1))
            opened = _open_by(a, b)
            kept = np.where(opened > 0.7 * before, kept + 1, 0)
            limit = CALIBRATION.jump + self._rounding * np.maximum(np.abs(a.lp), np.abs(b.lp))
            still = opened > limit
            # Of the jumps that are already known to be such, only some are traced.
            still &= (kept < 3) | (np.cumsum(kept >= 3) <= _TRACED)
            done = still & (depth >= _HALVINGS)
            jumps = _joined(jumps[0], a.at(done)), _joined(jumps[1], b.at(done))
            still &= ~done
            a, b, opened, kept, depth = a.at(still), b.at(still), opened[still], kept[still], depth[still]
        return jumps, walls

    def _placed(self, kind: str, a: _Points, b: _Points) -> list[Break]:
        """Return breaks in short segments with the coordinate that leads across each."""
        n, d = a.x.shape
        first, last = np.zeros(n, int), np.full(n, d)  # coordinates below `first` may move, those below `last` may not
        while n and (last - first).max() > 1:
            half = (first + last) // 2
            lp = self._evaluated(np.where(np.arange(d) < half[:, None], b.x, a.x)).lp
            across = np.isnan(lp) if kind == "wall" else np.abs(lp - a.lp) > np.abs(lp - b.lp)
            first, last = np.where(across, first, half), np.where(across, half, last)
        size = np.full(n, math.inf) if kind == "wall" else np.abs(b.lp - a.lp)
        return [Break(kind, float(size[i]), int(first[i]), float(a.x[i, first[i]]), True) for i in range(n)]


def _either(condition: np.ndarray, one: _Points, other: _Points) -> _Points:
    return _Points(*(
        np.where(condition[:, None] if u.ndim == 2 else condition, u, v) for u, v in zip(one, other, strict=True)
    ))  # fmt: skip


def _most_common(found: list[Break], sd: np.ndarray) -> Break | None:
    """Return one break for all that are of the most frequent kind and coordinate."""
    if not found:
        return None
    (kind, coordinate), _ = Counter((one.kind, one.coordinate) for one in found).most_common(1)[0]
    same = sorted(one.value for one in found if (one.kind, one.coordinate) == (kind, coordinate))
    others = any(one.coordinate != coordinate for one in found if one.kind == kind)
    fixed = not others and bool(same[-1] - same[0] < 1e-3 * sd[coordinate])
    size = float(np.median([one.size for one in found if one.kind == kind]))
    return Break(kind, size, coordinate, same[len(same) // 2], fixed)
