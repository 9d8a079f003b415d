"""The tables of the comparison with other samplers, from its stored rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

__all__ = ["HEADER", "figure", "ratios", "table"]

HEADER = """\
Gradients a chain until the error b2 of the second moments is below 0.01; median over chains, then over seeds.
In brackets the least and the largest of the seeds; > where it was not below within what was spent.

warm-up  gradients of tuning                   ESS      least bulk ESS of a coordinate in 1000 gradients after warm-up
b2_max   largest error of all coordinates      ESS2     likewise of the coordinates' squares
b2_avg   mean error of the coordinates         a second likewise in a second of CPU, without compilation
corr.    b2_max of Stein-corrected estimates   fails    rejected or divergent transitions, all seeds
total    warm-up and b2_max, raw               setting  what was tuned, of the last seed
"""
COLUMNS = (
    f"  {'sampler':22s}{'warm-up':>8s} {'b2_max':>24s} {'b2_avg':>22s} {'corr.':>7s} {'total':>24s}"
    f" {'ESS':>18s} {'ESS2':>18s} {'a second':>9s} {'ESS2':>8s} {'fails':>6s}  setting"
)


# Peers that are told the posterior's standard deviations.
GIVEN = ("BlackJAX MALA", "ALIGN", "QUICSORT")


def figure(values: Iterable[float | None], spent: Iterable[float], spread: bool = True) -> str:
    """Median of first times with their range, each ``>spent`` where None; the lower median of an even number."""
    pairs = sorted((math.inf if v is None else v, s) for v, s in zip(values, spent, strict=True))
    words = [f"{v:.0f}" if math.isfinite(v) else f">{s:.0f}" for v, s in pairs]
    middle = words[(len(words) - 1) // 2]
    return f"{middle} [{words[0]}, {words[-1]}]" if spread and len(words) > 1 else middle


def _range(values: list[float]) -> str:
    words = [f"{v:.3g}" for v in (float(np.median(values)), min(values), max(values))]
    return f"{words[0]} [{words[1]}, {words[2]}]" if len(values) > 1 else words[0]


def _line(sampler: str, rows: list[dict[str, Any]]) -> list[str]:
    """The line of one sampler on one target, and one for each failure."""
    good = [row for row in rows if "error" not in row]
    lines = []
    if good:
        warm = [row["warm_up"] for row in good]
        spent = [row["spent"] for row in good]
        first = {name: [row[name]["first"] for row in good] for name in ("b2_max", "b2_avg")}
        corrected = [row["corrected"] for row in good]
        corr = "-" if None in corrected else f"{np.median(corrected):.0f}"
        total = [None if f is None else f + w for f, w in zip(first["b2_max"], warm, strict=True)]
        in_all = figure(total, [s + w for s, w in zip(spent, warm, strict=True)])
        ess = [_range([row[name] for row in good]) for name in ("ess_per_1000", "ess_square_per_1000")]
        fast = [np.median([row[name] for row in good]) for name in ("ess_per_second", "ess_square_per_second")]
        lines.append(
            f"  {sampler:22s}{np.median(warm):8.0f} {figure(first['b2_max'], spent):>24s} "
            f"{figure(first['b2_avg'], spent):>22s} {corr:>7s} {in_all:>24s} {ess[0]:>18s} {ess[1]:>18s} "
            f"{fast[0]:9.0f} {fast[1]:8.0f} {sum(row['failing'] for row in good):6d}  {good[-1]['note']}"
        )
    lines += [f"  {sampler:22s}seed {row['seed']} failed: {row['error']}" for row in rows if "error" in row]
    return lines


def _middle(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], float], worst: float) -> float:
    """Median over seeds; a failed seed counts as the worst."""
    return float(np.median([worst if "error" in row else of(row) for row in rows]))


def _total(row: dict[str, Any]) -> float:
    first = row["b2_max"]["first"]
    return math.inf if first is None else first + row["warm_up"]


def _after(row: dict[str, Any]) -> float:
    first = row["b2_max"]["first"]
    return math.inf if first is None else first


KINDS: tuple[tuple[str, Callable[[dict[str, Any]], float], bool], ...] = (
    ("gradients in all", _total, False),
    ("gradients after warm-up", _after, False),
    ("ESS of squares a gradient", lambda row: row["ess_square_per_1000"], True),
    ("ESS of squares a second", lambda row: row["ess_square_per_second"], True),
)


def _against(own: float, other: float, more: bool) -> str:
    """How much better a figure is than another: of two that are both infinite nothing can be said."""
    up, down = (own, other) if more else (other, own)
    if math.isinf(up) and math.isinf(down):
        return "neither got there"
    return "inf" if not down or math.isinf(up) else f"{up / down:.2f}"


def ratios(by_sampler: dict[str, list[dict[str, Any]]], ours: Iterable[str], default: str) -> list[str]:
    """How our best and our default compare with the best peer of a target; above 1 is in our favour."""
    ours = set(ours)
    lines = []
    for label, of, more in KINDS:
        middle = {name: _middle(rows, of, 0.0 if more else math.inf) for name, rows in by_sampler.items()}
        mine = {name: value for name, value in middle.items() if name in ours}
        peers = {name: value for name, value in middle.items() if name not in ours}
        pick = max if more else min
        for kind, group in (
            ("peer", peers),
            ("peer that tunes itself", {n: v for n, v in peers.items() if n not in GIVEN}),
        ):
            if not (mine and group):
                continue
            best, peer = pick(mine, key=mine.__getitem__), pick(group, key=group.__getitem__)
            line = f"  {label:26s} best of ours ({best}) against best {kind} ({peer}): "
            line += _against(mine[best], group[peer], more)
            lines.append(line + (f"; default {_against(mine[default], group[peer], more)}" if default in mine else ""))
    return lines


def table(rows: list[dict[str, Any]], ours: Iterable[str], default: str, apart: Iterable[str] = ()) -> str:
    """Every target's lines, in the order of the rows, and how the best compare, without the samplers ``apart``."""
    ours, apart = list(ours), set(apart)
    lines = []
    targets: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        targets.setdefault(row["target"], {}).setdefault(row["sampler"], []).append(row)
    for target, by_sampler in targets.items():
        some = next(iter(by_sampler.values()))
        seeds = sorted({row["seed"] for group in by_sampler.values() for row in group})
        lines += ["", f"{target} (d={some[0]['d']}), seeds {', '.join(map(str, seeds))}", COLUMNS]
        for sampler, group in by_sampler.items():
            lines += _line(sampler, sorted(group, key=lambda row: row["seed"]))
        compared = {sampler: group for sampler, group in by_sampler.items() if sampler not in apart}
        lines += ratios(compared, ours, default)
    return "\n".join(lines)
