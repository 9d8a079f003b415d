"""Available memory, the memory that a run needs, and the size of chunks that fit it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.filesize import decimal

from pmm_mcmc.coordinates.affine import MOST_DENSE
from pmm_mcmc.diagnostics.control_variates import count_virial_terms
from pmm_mcmc.diagnostics.parameters import SLAB
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS as DIAGNOSTICS
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import training_chains

if TYPE_CHECKING:
    from pmm_mcmc.run.plan import SamplingPlan

__all__ = ["available_bytes", "peak_bytes", "refuse_too_large", "rows_of_chunk"]

# Most bytes of the arrays of a chunk, over all groups, and most draws of a chunk.
_CHUNK_BYTES = 2**27
_MOST_ROWS = 100
# Bytes of the label of a number of a draw, with its places in indices: 350 to 500 for 20,000 to 300,000 of them.
_LABEL_BYTES = 400
# The root of Linux's files; tests replace it.
_ROOT = Path("/")
# Of version 2 and 1 of control groups: the controller as a process says it, the folder of groups, and in a group the
# files of the limit and of the usage, and the entry of ``memory.stat`` that is inactive page cache.
_GROUPS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes() -> int | None:
    """Return the available memory in bytes; None where the system does not report it.

    Linux: the minimum of ``MemAvailable`` and the memory left below the limits of this process's control groups and
    their parents (version 1 or 2: containers, batch systems), where inactive page cache does not count as used.
    Elsewhere: the free pages by ``sysconf`` or, if it does not count them (macOS), all pages, an upper bound.
    """
    kilobytes = _entry(_ROOT / "proc/meminfo", "MemAvailable")
    sizes = [*_groups_left(), _free_pages() if kilobytes is None else 1024 * kilobytes]
    reported = [size for size in sizes if size is not None]
    return max(min(reported), 0) if reported else None


def _groups_left() -> Iterator[int]:
    """Yield the memory left in the control groups of this process and in their parents."""
    for line in _lines(_ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller, mount, limit, used, cache in _GROUPS:
            # In a container the path may be that of the outer system, of which the container sees only the top:
            # missing levels are skipped, as are those without a limit, "max".
            if controller not in controllers.split(","):
                continue
            levels = [level for level in path.split("/") if level]
            for depth in range(len(levels) + 1):
                group = _ROOT.joinpath(mount, *levels[:depth])
                with contextlib.suppress(OSError, ValueError):
                    left = int((group / limit).read_text()) - int((group / used).read_text())
                    yield left + (_entry(group / "memory.stat", cache) or 0)


def _free_pages() -> int | None:
    names = getattr(os, "sysconf_names", {})  # not on Windows
    pages = [os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names]
    return next((n * os.sysconf("SC_PAGE_SIZE") for n in pages if n > 0), None)


def _entry(path: Path, name: str) -> int | None:
    """Return the number after a name, at the start of a line of a file."""
    rows = [line.replace(":", " ").split() for line in _lines(path)]
    return next((int(row[1]) for row in rows if row[:1] == [name]), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def rows_of_chunk(draws: int, chains: int, numbers_per_draw: int) -> int:
    """Return the draws of a chunk, a divisor of ``draws`` if possible, so that a stored run can be extended."""
    limit = int(np.clip(_CHUNK_BYTES // (8 * chains * numbers_per_draw), 1, min(_MOST_ROWS, draws)))
    divisor = max(n for n in range(1, limit + 1) if draws % n == 0)
    return divisor if 4 * divisor >= limit else limit


def peak_bytes(plan: SamplingPlan, draws: int, rows: int, warming: int = 0) -> int:
    """Return the approximate peak bytes of a run: of its warm-up, or of its draws with a chunk or with the verdict.

    ``rows`` are the draws of a chunk, ``warming`` is the number of draws of the warm-up that are kept.
    """
    d = plan.engine.d
    chains = plan.request.chains
    tune = plan.request.tune
    numbers = plan.numbers_per_draw
    n = chains * draws
    window = math.ceil(THRESHOLDS.window * min(THRESHOLDS.least_adapted, tune))
    warm_up = max(20 * chains, 10 * window * min(chains, training_chains(d))) * d if tune else 0
    ending = 2 * chains * min(rows, draws) * numbers
    fold = min(n, DIAGNOSTICS.fitted_draws + n // DIAGNOSTICS.folds)
    terms = fold * sum(count_virial_terms(fold, d))
    slab = min(n * len(plan.layout.names), max(SLAB // 8, n))
    checks = 3 * terms + 11 * slab
    whitened = 2 * n * d if 1 < d <= MOST_DENSE else 0
    ending = max(ending, checks, whitened) + chains * (draws + warming) * numbers
    fixed = getattr(plan.engine, "workspaces", 0) + _LABEL_BYTES * numbers
    return 8 * (chains * (5 * d + 2) + max(warm_up, ending)) + fixed


def refuse_too_large(plan: SamplingPlan, draws: int, chains: int, needed: int = 0) -> None:
    """Raise ``ValueError`` if the draws, or a run that needs so many bytes, would not fit the available memory."""
    needed = max(needed, 8 * draws * chains * plan.numbers_per_draw)
    available = available_bytes()
    if available is None or needed <= available:
        return
    raise ValueError(
        f"{chains} chains of {draws} draws, {plan.numbers_per_draw} numbers each, need {decimal(needed)} of memory; "
        f"{decimal(available)} are available: {_smaller(plan)}, give store= to keep them on disk, or take fewer chains "
        "or draws"
    )


def _smaller(plan: SamplingPlan) -> str:
    """Return what to leave out of the draws: a variable that is most of them, or else gradients."""
    sizes = {
        (group, name): int(np.prod(values.shape[2:], dtype=int))
        for group, arrays in plan.empty(1).items()
        for name, values in arrays.items()
    }
    posterior = {name: size for (group, name), size in sizes.items() if group == "posterior"}
    largest = max(posterior, key=lambda name: posterior[name])
    if 2 * posterior[largest] > sum(sizes.values()):
        others = [name for name in posterior if name != largest]
        later = " and compute it afterwards, with pm.compute_deterministics" if plan.model is not None else ""
        return f"{largest} has {posterior[largest]} of these numbers: leave it out (var_names={others!r}){later}"
    return "leave the gradients out (step=pmm.GHMC(keep_gradients=False))"
