"""Recorders of the draws of a run, in memory or in a store, with chunks that fit the memory.

A run calls ``begin`` or finds a ``run`` to continue, then ``put`` with each chunk; ``result`` is what the user gets.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr
from rich.filesize import decimal

from pmm_mcmc.coordinates.affine import MOST_DENSE
from pmm_mcmc.diagnostics.control_variates import count_virial_terms
from pmm_mcmc.diagnostics.parameters import SLAB
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS as DIAGNOSTICS
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.beginning import CHECKPOINT, TYPES, FinishedRun, Run
from pmm_mcmc.run.driver import Gathered, Groups, numbers_of
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import stored_run
from pmm_mcmc.run.stopping import first_look, limit_after
from pmm_mcmc.run.storage import Store, open_store
from pmm_mcmc.run.storage.checkpoint import encode
from pmm_mcmc.run.storage.store import differences
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, report_of
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import training_chains

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
    sizes = list(_groups_left())
    if kilobytes is not None:
        sizes.append(1024 * kilobytes)
    else:
        names = getattr(os, "sysconf_names", {})  # not on Windows
        pages = [os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names]
        sizes += [n * os.sysconf("SC_PAGE_SIZE") for n in pages if n > 0][:1]
    return max(min(sizes), 0) if sizes else None


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


def peak_bytes(
    d: int, chains: int, draws: int, rows: int, numbers: int, parameters: int, tune: int, warming: int
) -> int:
    """Return the approximate peak bytes of a run: of its warm-up, or of its draws with a chunk or with the verdict.

    ``rows`` are the draws of a chunk, ``numbers`` those recorded of a draw, ``parameters`` those that are judged;
    ``warming`` is the number of draws of the warm-up that are kept.
    """
    n = chains * draws
    window = math.ceil(THRESHOLDS.window * min(THRESHOLDS.least_adapted, tune))
    warm_up = max(20 * chains, 10 * window * min(chains, training_chains(d))) * d if tune else 0
    ending = 2 * chains * min(rows, draws) * numbers
    fold = min(n, DIAGNOSTICS.fitted_draws + n // DIAGNOSTICS.folds)
    terms = fold * sum(count_virial_terms(fold, d))
    slab = min(n * parameters, max(SLAB // 8, n))
    checks = 3 * terms + 11 * slab
    whitened = 2 * n * d if 1 < d <= MOST_DENSE else 0
    ending = max(ending, checks, whitened) + chains * (draws + warming) * numbers
    return 8 * (chains * (5 * d + 2) + max(warm_up, ending)) + _LABEL_BYTES * numbers


def refuse_too_large(empty: Groups, draws: int, chains: int, needed: int, later: str) -> None:
    """Raise ``ValueError`` if the draws, or a run that needs so many bytes, would not fit the available memory.

    ``empty`` are arrays without draws; ``later`` says how to compute afterwards what is left out, if one can.
    """
    numbers = numbers_of(empty)
    needed = max(needed, 8 * draws * chains * numbers)
    available = available_bytes()
    if available is None or needed <= available:
        return
    raise ValueError(
        f"{chains} chains of {draws} draws, {numbers} numbers each, need {decimal(needed)} of memory; "
        f"{decimal(available)} are available: {_smaller(empty, later)}, give store= to keep them on disk, or take "
        "fewer chains or draws"
    )


def _smaller(empty: Groups, later: str) -> str:
    """Return what to leave out of the draws: a variable that is most of them, or else gradients."""
    posterior = {name: math.prod(values.shape[2:]) for name, values in empty["posterior"].items()}
    largest = max(posterior, key=lambda name: posterior[name])
    if 2 * posterior[largest] > sum(math.prod(a.shape[2:]) for group in empty.values() for a in group.values()):
        others = [name for name in posterior if name != largest]
        return f"{largest} has {posterior[largest]} of these numbers: leave it out (var_names={others!r}){later}"
    return "leave the gradients out (step=pmm.GHMC(keep_gradients=False))"


# The attributes that add up where a run goes on in memory.
_TIMES = ("sampling_time", "compile_time")
# Bytes of a predicted peak above which it is logged.
_LARGE = 2**30


class MemoryRecorder:
    """Recorder that keeps the draws in memory; without a ladder the result has a checkpoint, to continue from.

    Arrays are as long as ``draws``, the most draws of a chain with those of a finished run that goes on, and
    ``warmup_draws``, the most that are kept of its warm-up: what is not filled takes no memory.
    """

    def __init__(
        self,
        layout: ResultTree,
        arguments: MethodArguments,
        attrs: dict[str, Any],
        empty: Groups,
        rows: int,
        identity: dict[str, Any],
        draws: int,
        warmup_draws: int = 0,
    ):
        self.run: Any = None
        self.rows = rows
        self.seed = attrs["random_seed"]
        self._layout = layout
        self._arguments = arguments
        self._attrs = dict(attrs)
        self._empty = empty
        self._identity = identity
        self._draws = Gathered(identity["chains"], draws)
        self._warmup = Gathered(identity["chains"], warmup_draws)
        self._times: dict[str, float] = {}  # of the finished run that goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, run: Any) -> None:
        """Record a run from its start on."""
        self.run = run

    def go_on(self, finished: FinishedRun) -> None:
        """Begin where a finished run ended."""
        changes = differences(finished.identity, self._identity)
        if changes:
            raise ValueError(
                f"dt: is the result of another run ({changes}); give the model of that run, or start a new one"
            )
        self.run = finished.run
        self.put(finished.groups(self._empty))
        attributes = finished.result["posterior"].attrs
        self._times = {name: float(attributes.get(name, 0.0)) for name in _TIMES}

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk."""
        self._warmup.append({group: arrays for group, arrays in groups.items() if group.startswith("warmup_")})
        self._draws.append({group: arrays for group, arrays in groups.items() if not group.startswith("warmup_")})

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result; times add up."""
        self._attrs |= attrs | {name: attrs[name] + seconds for name, seconds in self._times.items() if name in attrs}

    def so_far(self, others: Mapping[str, xr.Dataset] | None = None) -> xr.DataTree:
        """Return the result of all chunks so far, for a verdict, with ``others`` of its groups."""
        groups = self._empty | self._warmup.upto(self._warmup.done) | self._draws.upto(self._draws.done)
        return self._layout.tree(groups, self._attrs, others)

    def positions(self) -> xr.DataArray | None:
        """Return the unconstrained draws ``(chain, draw, d)`` so far, where they are kept."""
        values = self._draws.upto(self._draws.done).get("sample_stats", {}).get("unconstrained")
        return None if values is None else xr.DataArray(values, dims=("chain", "draw", "coordinate"))

    def result(self) -> xr.DataTree:
        """Return the result of all chunks, with a checkpoint to continue from."""
        others = self.run.reports()
        if isinstance(self.run, Run):
            state = np.frombuffer(encode((self._identity, self._arguments, self.run)), np.uint8)
            others[CHECKPOINT] = xr.Dataset({"state": ("byte", state)})
        return self.so_far(others)


class StoreRecorder:
    """Recorder that writes whole chunks of equal length to a store, each with a checkpoint.

    ``run`` and ``seed`` are those of the stored run to continue, if there is one.
    """

    def __init__(self, path: str | os.PathLike[str], store: Store, rows: int, seed: int, processes: Processes):
        self._path = path
        self._store = store
        self._processes = processes
        self.rows = rows
        self.seed = seed
        self.run: Any = None
        # Draws of the warm-up, whose blocks have any length, that do not fill a chunk yet: of this process' chains.
        self._waiting: Groups = {}
        if store.checkpoint is not None:
            self.run, waiting = store.checkpoint
            for group, arrays in waiting.items():
                self._waiting[group] = {name: values[processes.chains] for name, values in arrays.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._store.__exit__(kind)

    def begin(self, run: Any) -> None:
        """Store the start of the chains."""
        self.run = run
        self._commit()

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk; an interrupted one is not stored, and is drawn again when the run resumes."""
        if not complete:
            return
        for group, arrays in groups.items():
            if group.startswith("warmup_"):
                if group in self._waiting:
                    waiting = self._waiting.pop(group)
                    arrays = {name: np.concatenate([waiting[name], values], axis=1) for name, values in arrays.items()}
                length = next(iter(arrays.values())).shape[1]
                cut = length - length % self.rows if self.run.tuning else length
                if cut < length:
                    self._waiting[group] = {name: values[:, cut:].copy() for name, values in arrays.items()}
                arrays = {name: values[:, :cut] for name, values in arrays.items()}
            if next(iter(arrays.values())).shape[1]:
                self._store.append(group, arrays, self._processes.chains)
        for group, report in self.run.reports(new=True).items():
            self._store.append(group, report)
        self._commit()

    def _commit(self) -> None:
        joined = {
            group: dict(zip(arrays, self._processes.join(*arrays.values()), strict=True))
            for group, arrays in self._waiting.items()
        }
        # A collective call: all processes have appended their chains before the commit makes them visible, and
        # processes that round differently must stop.
        self._processes.agree("the setting that they have found", encode(self.run.tuned))
        self._store.commit((self.run, joined))

    def note(self, attrs: dict[str, Any]) -> None:
        """Add attributes to the result."""
        self._store.note(dict.fromkeys(self._store.rows, attrs))

    def so_far(self) -> xr.DataTree:
        """Return the stored run as it is now, for a verdict."""
        return open_store(self._path)

    def positions(self) -> xr.DataArray | None:
        """Return the unconstrained draws ``(chain, draw, d)``, where they are kept."""
        tree = self.so_far()
        return tree["sample_stats"].to_dataset().get("unconstrained") if tree["posterior"].sizes["draw"] else None

    def result(self) -> xr.DataTree:
        """Return the stored run, which is read when it is used."""
        self._processes.wait()  # until the first process has closed it
        return open_store(self._path)


def recorder_of(plan: SamplingPlan, seed: int, log: Callable[..., None]) -> MemoryRecorder | StoreRecorder:
    """Return the recorder of a run, new or resumed; ``log`` what memory it takes.

    Raises
    ------
    ValueError
        If the run would not fit the memory, or another one is to be continued.
    """
    request = plan.request
    chains = request.chains
    tune = request.tune
    identity = plan.identity | {
        "chains": chains, "tune": tune, "seed": seed, "superchains": request.superchains,
        "discard_tuned_samples": request.discard_tuned_samples,
    }  # fmt: skip
    attrs = {"tuning_steps": tune, "random_seed": seed, **plan.attributes}
    if request.superchains is not None:
        attrs["superchains"] = request.superchains
    empty = plan.empty(chains)
    warmup_draws = 0
    if not request.discard_tuned_samples:
        empty |= {f"warmup_{group}": arrays for group, arrays in empty.items()}
        warmup_draws = plan.longest_warmup * (1 + (request.start is not None))
    draws = request.draws
    longest = draws
    if request.auto:
        longest = first_look(chains)
        draws = limit_after(0 if request.finished_run is None else request.finished_run.run.done, longest)
    rows = rows_of_chunk(longest, chains, plan.numbers_per_draw)
    if request.store is not None:
        return _of_store(plan, empty, attrs, identity | {"rows": rows})
    numbers = plan.numbers_per_draw
    needed = getattr(plan.engine, "workspaces", 0)
    needed += peak_bytes(plan.engine.d, chains, draws, rows, numbers, len(plan.layout.names), tune, warmup_draws)
    if needed > _LARGE:
        log("Memory: about %s at the peak", decimal(needed))
    refuse_too_large(plan.empty(1), draws + warmup_draws, chains, needed, plan.later)
    recorder = MemoryRecorder(plan.layout, plan.arguments, attrs, empty, rows, identity, draws, warmup_draws)
    if request.finished_run is not None:
        recorder.go_on(request.finished_run)
    return recorder


def _of_store(plan: SamplingPlan, empty: Groups, attrs: dict[str, Any], identity: dict[str, Any]) -> StoreRecorder:
    """Return the recorder of a run in a store, new or resumed."""
    request = plan.request
    processes = plan.processes
    store = request.store
    assert store is not None
    primary = processes.primary
    if not primary:
        processes.wait()  # until the first process has opened it
    stored = stored_run(store) if request.resume else {}
    if stored:
        identity["rows"] = stored.get("rows", identity["rows"])
        if request.random_seed is None:
            identity["seed"] = stored.get("seed", identity["seed"])
    if stored or not primary:
        opened = Store.resume(store, identity, types=TYPES, primary=primary)
    else:
        template = plan.layout.tree(empty, attrs)
        if plan.equilibrates and request.tune:
            template[EQUILIBRATION] = xr.DataTree(report_of(None, request.chains))
        files = min(request.chains, plan.file_chains)
        opened = Store.create(store, template, identity, identity["rows"], files)
    if primary:
        processes.wait()
    return StoreRecorder(store, opened, identity["rows"], identity["seed"], processes)
