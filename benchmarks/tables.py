"""Rows of measurements in a file, and what pages count of them: medians, ratios, wrong runs that are trusted.

A row is a model (``target``), a sampler and a seed, with what was measured, or an ``error``.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Rows = list[Row]
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("pmm-mcmc", "pymc", "nutpie", "numpyro", "blackjax", "jax", "numba", "numpy")
TRUSTED = ("trusted", "no warning")


def about() -> dict[str, Any]:
    """Return versions, machine and date."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    date = time.strftime("%Y-%m-%d")
    return {"versions": versions, "python": platform.python_version(), "machine": machine, "date": date}


def told(rows: Rows, facts: dict[str, Any]) -> str:
    """Return the facts of `about` in words, with the load of the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    loads = sorted(row["load"] for row in rows if "load" in row)
    load = f" Load of the machine when rows began: {loads[0]:.1f} to {loads[-1]:.1f}." if loads else ""
    older = sum(row.get("date") != facts["date"] for row in rows)
    dates = f"{facts['date']}{f', {older} of {len(rows)} rows earlier' if older else ''}"
    return f"{versions}; Python {facts['python']}, {facts['machine']}, {dates}.{load}"


def read(path: Path) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of a file with the facts of the last one; without a file none, and those of now."""
    if not path.exists():
        return [], about()
    content = json.loads(path.read_text())
    return content.pop("rows"), content


def append(path: Path, row: Row, facts: dict[str, Any], page: Callable[[Rows, str], str]) -> None:
    """Add a row to a file of rows, in place of an older one of the same run, and print all rows beside it."""
    rows = [old for old in read(path)[0] if key(old) != key(row)] + [{**row, "date": facts["date"]}]
    lines = ",\n".join(json.dumps(_rounded(one), allow_nan=False) for one in rows)
    content = {
        path: f'{json.dumps(facts)[:-1]}, "rows": [\n{lines}\n]}}\n',
        path.with_suffix(".txt"): page(rows, told(rows, facts)),
    }
    for where, text in content.items():
        replace(where, text)


def replace(path: Path, text: str) -> None:
    """Write a file that is whole for whoever stops the run at any time."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text)
    new.replace(path)


def entries(path: Path, content: dict[str, Any]) -> None:
    """Write a file of entries by name, one a line."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in content.items())
    replace(path, "{\n" + lines + "\n}\n")


def key(row: Row) -> tuple[str, str, int]:
    """Return what tells a row from others."""
    return row["target"], row["sampler"], row["seed"]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None  # r_hat of chains that stand still
    return value


def good(rows: Iterable[Row]) -> Rows:
    """Return the rows of runs that ended."""
    return [row for row in rows if "error" not in row]


def grouped(rows: Iterable[Row], name: str = "target") -> dict[Any, Rows]:
    """Return rows by one of their entries, in the order of the rows."""
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


def median(values: Iterable[float]) -> float:
    """Return the median, NaN of none."""
    values = list(values)
    return float(np.median(values)) if values else np.nan


def medians(rows: Iterable[Row], sampler: str, cost: str) -> dict[str, float]:
    """Return a sampler's cost by model, the median over seeds."""
    mine = [row for row in good(rows) if row["sampler"] == sampler]
    return {target: median(row[cost] for row in of) for target, of in grouped(mine).items()}


def ratios(rows: Iterable[Row], sampler: str, other: str, cost: str) -> dict[str, float]:
    """Return a sampler's cost over another's, by model that both ran."""
    mine, theirs = (medians(rows, name, cost) for name in (sampler, other))
    return {target: mine[target] / theirs[target] for target in theirs if target in mine}


def lies(row: Row) -> bool:
    """Return whether a run is wrong and trusted."""
    return bool(row.get("wrong")) and row["state"] in TRUSTED


def refused(row: Row) -> bool:
    """Return whether a run is right and not trusted."""
    return bool(row.get("right")) and row["state"] not in TRUSTED


def states(rows: Rows) -> tuple[int, int, int]:
    """Return how many runs are trusted, undecided and neither."""
    trusted = sum(row["state"] in TRUSTED for row in rows)
    undecided = sum(row["state"] == "undecided" for row in rows)
    return trusted, undecided, len(rows) - trusted - undecided


def run_of(row: Row) -> str:
    """Return which run a row is of."""
    return f"{row['target']} {row['sampler']} seed {row['seed']}"


def errors_in_words(row: Row) -> str:
    """Return the worst errors of a run with their z."""
    words = "{} of {} {:+.3f} ({:+.1f})"
    return ", ".join(words.format(what, *(row[what][name] for name in ("of", "off", "z"))) for what in ("mean", "sd"))


def lists(rows: Rows, judged: Rows) -> list[str]:
    """Return the runs that failed, and of ``judged`` those that the verdict got wrong, one a line."""
    lines = []
    for title, holds in (("Wrong and trusted", lies), ("Right and refused", refused)):
        these = [row for row in good(judged) if holds(row) and (holds is lies or "sentence" in row)]
        lines.append(f"{title}: {len(these)}")
        lines += [f"  {run_of(row)}: {errors_in_words(row)}; {row.get('sentence', row['state'])}" for row in these]
    failed = [row for row in rows if "error" in row]
    return [*lines, f"Failed: {len(failed)}", *(f"  {run_of(row)}: {row['error']}" for row in failed)]


def status(rows: Rows) -> int:
    """Return 1 if a run failed, or is wrong and trusted, and say which."""
    bad = [row for row in rows if "error" in row or lies(row)]
    for row in bad:
        what = f"failed: {row['error']}" if "error" in row else f"is wrong and trusted: {errors_in_words(row)}"
        print(f"{run_of(row)} {what}", file=sys.stderr)
    return int(bool(bad))
