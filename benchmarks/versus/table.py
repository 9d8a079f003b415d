"""The page of the comparison with other samplers, from its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from tables import Rows, good, grouped, median
from versus.ours import SAMPLERS
from versus.rows import PEERS

__all__ = ["page"]

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


def _figure(values: Iterable[float | None], spent: Iterable[float]) -> str:
    """Median of first times with their range, each ``>spent`` where None; the lower median of an even number."""
    pairs = sorted((math.inf if v is None else v, s) for v, s in zip(values, spent, strict=True))
    words = [f"{v:.0f}" if math.isfinite(v) else f">{s:.0f}" for v, s in pairs]
    middle = words[(len(words) - 1) // 2]
    return f"{middle} [{words[0]}, {words[-1]}]" if len(words) > 1 else middle


def _range(values: list[float]) -> str:
    words = [f"{v:.3g}" for v in (median(values), min(values), max(values))]
    return f"{words[0]} [{words[1]}, {words[2]}]" if len(values) > 1 else words[0]


def _line(sampler: str, rows: Rows) -> list[str]:
    """The line of one sampler on one target, and one for each failure."""
    done = good(rows)
    lines = []
    if done:
        of = {name: [row[name] for row in done] for name in ("warm_up", "spent", "corrected")}
        first = {name: [row[name]["first"] for row in done] for name in ("b2_max", "b2_avg")}
        corr = "-" if None in of["corrected"] else f"{np.median(of['corrected']):.0f}"
        total = [None if f is None else f + w for f, w in zip(first["b2_max"], of["warm_up"], strict=True)]
        in_all = _figure(total, np.add(of["spent"], of["warm_up"]))
        ess = [_range([row[name] for row in done]) for name in ("ess_per_1000", "ess_square_per_1000")]
        fast = [median(row[name] for row in done) for name in ("ess_per_second", "ess_square_per_second")]
        lines.append(
            f"  {sampler:22s}{median(of['warm_up']):8.0f} {_figure(first['b2_max'], of['spent']):>24s} "
            f"{_figure(first['b2_avg'], of['spent']):>22s} {corr:>7s} {in_all:>24s} {ess[0]:>18s} {ess[1]:>18s} "
            f"{fast[0]:9.0f} {fast[1]:8.0f} {sum(row['failing'] for row in done):6d}  {done[-1]['note']}"
        )
    lines += [f"  {sampler:22s}seed {row['seed']} failed: {row['error']}" for row in rows if "error" in row]
    return lines


def page(rows: Rows, facts: str) -> str:
    """Every target's lines, in the order of the rows."""
    lines = [HEADER, facts]
    for target, of_target in grouped(rows).items():
        by_sampler = grouped(of_target, "sampler")
        size = next((f" (d={row['d']})" for row in of_target if "d" in row), "")
        lines += ["", f"{target}{size}, seeds {', '.join(map(str, sorted(grouped(of_target, 'seed'))))}", COLUMNS]
        for sampler in (name for name in (*SAMPLERS, *PEERS) if name in by_sampler):
            lines += _line(sampler, sorted(by_sampler[sampler], key=lambda row: row["seed"]))
    return "\n".join(lines) + "\n"
