"""How much memory this process may still take, what fits it, and sizes in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["available_bytes", "describe", "refuse_too_large", "rows_of_chunk", "scaled"]

# Bytes of the arrays of a chunk, in all its groups, and draws of it at most.
_CHUNK_BYTES, _MOST_ROWS = 2**27, 100
# Where the files of Linux are; tests put others in their place.
_ROOT = Path("/")
_PREFIXES = ("", "k", "M", "G", "T", "P")
# A control group's limit, its use, and what it could give back of that: page cache that nobody has touched lately.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes() -> int | None:
    """Return the memory that can still be taken, in bytes; None where the system does not say.

    Linux: the smallest of ``MemAvailable`` and what the control groups of this process and all above them (version 1
    or 2: containers, batch systems) have left below their limits, cache that can be dropped not counted as used.
    Elsewhere: the free pages by ``sysconf``, or where these are not known (macOS) all pages of the machine, an upper
    bound.

    Returns
    -------
    int or None
        Never negative.
    """
    machine = _machine_left()
    known = [_by_sysconf() if machine is None else machine, *_groups_left()]
    sizes = [size for size in known if size is not None]
    return max(min(sizes), 0) if sizes else None


def describe(bytes: int) -> str:
    """Return a size in words, in decimal units: ``"3.2 GB"``, ``"320 MB"``, ``"12 B"``."""
    number, prefix = scaled(bytes, figures=2)
    return f"{number} {prefix}B"


def scaled(number: float, figures: int) -> tuple[str, str]:
    """Return a number in so many figures, and its prefix: ``scaled(12345, 3) == ("12.3", "k")``.

    Whole digits are never cut, and there are no decimals without a prefix.
    """
    power = 0
    while round(number) >= 1000 and power < len(_PREFIXES) - 1:
        number, power = number / 1000, power + 1
    decimals = max(figures - len(str(int(number))), 0) if power else 0
    if decimals and len(f"{number:.{decimals}f}") > figures + 1:  # 9.96 in two figures is 10
        decimals -= 1
    return f"{number:.{decimals}f}", _PREFIXES[power]


def _machine_left() -> int | None:
    for line in _lines(_ROOT / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _groups_left() -> Iterator[int | None]:
    """Yield what the control groups of this process, and those that they are in, have left."""
    for line in _lines(_ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, names = _ROOT / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, names = _ROOT / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path may be the host's, of which the container sees only the top: levels that are not
        # there are passed over.
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            yield _group_left(mount.joinpath(*parts[:depth]), *names)


def _group_left(group: Path, limit: str, used: str, cache: str) -> int | None:
    try:
        left = int((group / limit).read_text()) - int((group / used).read_text())
    except (OSError, ValueError):  # no such level, or no limit: "max"
        return None
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == cache:
            left += int(value)
    return left


def _by_sysconf() -> int | None:
    known = getattr(os, "sysconf_names", {})  # not on Windows
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in known:
            pages = os.sysconf(name)
            if pages > 0:
                return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def rows_of_chunk(draws: int, chains: int, numbers_per_draw: int) -> int:
    """Draws of a chunk: a divisor of them all where there is one, so that a stored run can be prolonged."""
    most = int(np.clip(_CHUNK_BYTES // (8 * chains * numbers_per_draw), 1, min(_MOST_ROWS, draws)))
    divisor = max(n for n in range(1, most + 1) if draws % n == 0)
    return divisor if 4 * divisor >= most else most


def refuse_too_large(draws: int, chains: int, numbers_per_draw: int) -> None:
    """Raise a ``ValueError`` where draws would not fit."""
    needed, there = 8 * draws * chains * numbers_per_draw, available_bytes()
    if there is not None and needed > there:
        raise ValueError(
            f"{chains} chains of {draws} draws, {numbers_per_draw} numbers each, need {describe(needed)} of memory; "
            f"{describe(there)} are available: give store= to keep them on disk, take fewer chains or draws, or leave "
            "the gradients out (keep_gradients=False), which are half of it or more"
        )
