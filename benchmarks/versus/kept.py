"""Rows of measurements that are kept in a file, one a line, so that a run begins where an earlier one ended."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["about", "append", "missing", "read"]

PACKAGES = ("pmm-mcmc", "pymc", "nutpie", "numpyro", "blackjax", "diffrax", "jax", "numba", "numpy")


def about() -> dict[str, Any]:
    """Versions, machine and date."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {
        "versions": found,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def told(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The facts of `about` in words, with the load of the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    loads = sorted(row["load"] for row in rows if "load" in row)
    load = f" Load of the machine when rows began: {loads[0]:.1f} to {loads[-1]:.1f}." if loads else ""
    return f"{versions}; Python {facts['python']}, {facts['machine']}, {facts['date']}.{load}"


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file, none where there is no file."""
    return json.loads(path.read_text())["rows"] if path.exists() else []


def append(path: Path, row: dict[str, Any], facts: dict[str, Any], words: Callable[..., str]) -> None:
    """Add a row to a file of rows, in place of an older one of the same run, and print all rows beside it."""
    rows = [old for old in read(path) if key(old) != key(row)] + [row]
    lines = ",\n".join(json.dumps(_rounded(one), allow_nan=False) for one in rows)
    content = {
        path: f'{json.dumps(facts)[:-1]}, "rows": [\n{lines}\n]}}\n',
        path.with_suffix(".txt"): words(rows, facts),
    }
    for where, text in content.items():
        # Whoever stops the run at any time finds a whole file.
        new = where.with_suffix(where.suffix + ".new")
        new.write_text(text)
        new.replace(where)


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """What tells a row from others."""
    return row["target"], row["sampler"], row["seed"]


def missing(rows: list[dict[str, Any]], target: str, sampler: str, seeds: list[int]) -> list[int]:
    """Seeds that a sampler has no row of; those that failed are not tried again."""
    return [seed for seed in seeds if (target, sampler, seed) not in {key(row) for row in rows}]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None  # r_hat of chains that stand still
    return value
