"""The tables of the comparison with other samplers, from its stored rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["HEADER", "table"]

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
        in_all = _figure(total, [s + w for s, w in zip(spent, warm, strict=True)])
        ess = [_range([row[name] for row in good]) for name in ("ess_per_1000", "ess_square_per_1000")]
        fast = [np.median([row[name] for row in good]) for name in ("ess_per_second", "ess_square_per_second")]
        lines.append(
            f"  {sampler:22s}{np.median(warm):8.0f} {_figure(first['b2_max'], spent):>24s} "
            f"{_figure(first['b2_avg'], spent):>22s} {corr:>7s} {in_all:>24s} {ess[0]:>18s} {ess[1]:>18s} "
            f"{fast[0]:9.0f} {fast[1]:8.0f} {sum(row['failing'] for row in good):6d}  {good[-1]['note']}"
        )
    lines += [f"  {sampler:22s}seed {row['seed']} failed: {row['error']}" for row in rows if "error" in row]
    return lines


def table(rows: list[dict[str, Any]]) -> str:
    """Every target's lines, in the order of the rows."""
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
    return "\n".join(lines)
