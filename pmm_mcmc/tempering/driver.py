"""The phases of ``pmm.temper``: annealing and tuning of a ladder of temperatures, then draws of its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_search import OtherModes
from pmm_mcmc.engines.contract import Chunk, TunedParameters
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.run.beginning import starts
from pmm_mcmc.run.console import Console
from pmm_mcmc.run.driver import Driver, FinishedChunk, StopRequest
from pmm_mcmc.run.plan import SamplingPlan, cores
from pmm_mcmc.run.recorders import MemoryRecorder, StoreRecorder, refuse_too_large, rows_of_chunk
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.stopping import stopping_rule
from pmm_mcmc.run.storage import Store
from pmm_mcmc.tempering.ladder import LADDER, Ladder, LadderSums, Trips, report_of
from pmm_mcmc.tempering.modes import Modes, find_modes
from pmm_mcmc.tempering.path import Moved, TemperingPath
from pmm_mcmc.tempering.tuning import LadderOptions, Tuner

_TYPES = (Coordinates, GaussianMixture, Ladder, LadderSums, Modes, OtherModes, Trips, TunedParameters)


class Tempering(Driver):
    """The driver of a run on a ladder, new or resumed.

    Once the ladder is ``tuned`` there are a ``run``, which is the ladder, and a ``recorder``.  A run to continue must
    have the entries ``identity``; ``stored`` are those that it has, empty for a new one.  The ``stack`` closes the
    recorder, and the threads over which temperature levels are shared.
    """

    run: Ladder
    recorder: MemoryRecorder | StoreRecorder

    def __init__(
        self,
        plan: SamplingPlan,
        request: Request,
        options: LadderOptions,
        identity: dict[str, Any],
        stored: dict[str, Any],
        console: Console,
        stack: ExitStack,
    ):
        super().__init__(Processes(slice(0, request.chains)), request.callback)
        self.plan = plan
        self.request = request
        self.console = console
        self.path = TemperingPath(plan.adjusted_engine, plan.prior_sampler)
        self.tuned = bool(stored)
        self._identity = identity
        self._stack = stack
        threads = 1 if plan.attributes["backend"] == "jax" else (request.cores or cores())
        self._map_levels = stack.enter_context(_mapped_over_levels(threads))
        if stored:
            rows = stored["rows"]
            store = str(self.request.store)
            self._record_in(Store.resume(store, self._identity | {"rows": rows}, types=_TYPES), rows)
            self.run = self.recorder.run
            stopping_rule(self.request.draws, self.run.replicas, self.run.done, self.recorder, self.processes)
            self.path.mixture = self.run.mixture
            self.console.update(False, self.run.tuned, self.run.done, *self._shown(float(self.run.n_grad.sum())))
        else:
            rng = np.random.default_rng(request.seed)
            key = rng.integers(0, 2**63, size=2, dtype=np.uint64)
            start = None
            if not self.path.has_prior:
                start = starts(plan.engine, plan.model, plan.density, request.initvals, request.chains, None, rng)
            self._tuner = Tuner(self.path, plan.arguments, options, request.chains, request.tune, key, self._map_levels)
            self._tuning = self._tuner.run(start)
            console.update(True, self._tuner.tuned, 0, *self._shown(0.0))

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""
        return self.tuned and self.run.done >= self.request.draws

    def advance(self, stopped: StopRequest) -> FinishedChunk | None:
        """Advance annealing by a temperature, tuning by a scan or, once the ladder is tuned, the draws by a chunk."""
        if self.tuned:
            return self._draw(stopped)
        ladder = next(self._tuning)
        tuner = self._tuner
        self.console.update(True, tuner.tuned, tuner.transition, *self._shown(tuner.spent))
        if ladder is not None:
            self._begin(ladder)
        return None

    def _shown(self, n_grad: float) -> tuple[np.ndarray, np.ndarray]:
        """Return for each chain its share of the gradients, and no failures, which are those of all temperatures."""
        chains = self.request.chains
        return np.full(chains, n_grad / chains), np.zeros(chains)

    def _draw(self, stopped: StopRequest) -> FinishedChunk:
        """Draw a chunk, of one scan for each draw, or as much of it as is finished when the run is stopped."""
        ladder = self.run
        replicas = ladder.replicas
        d = self.path.d
        rows = min(self.recorder.rows, self.request.draws - ladder.done)
        chunk = Chunk.empty((replicas, rows), d, d)
        arrived = np.zeros((replicas, rows), np.int64)
        setting = ladder.tuned
        n_grad_before = ladder.n_grad.astype(np.int64)
        done = 0
        while done < rows and not (done and stopped()):
            scan = ladder.draw(self.path, self._map_levels)
            n_grad = scan.n_grad.sum(axis=1)
            ladder.n_grad += n_grad
            chunk.position[:, done] = scan.draws.position
            chunk.evaluation[:, done] = scan.draws.slope(1.0)
            chunk.lp[:, done] = scan.draws.lp
            chunk.accept[:, done] = scan.accept[:, -1]
            chunk.n_grad[:, done] = n_grad
            chunk.unstable[:, done] = scan.unstable[:, -1]
            arrived[:, done] = scan.arrived
            done += 1
            self.console.update(False, setting, ladder.done, *self._shown(float(ladder.n_grad.sum())))
        chunk = Chunk(*(array[:, :done] for array in chunk))
        groups = self.plan.groups_of(chunk, setting.coordinates.density_parameters, n_grad_before, "")
        groups["sample_stats"]["restart"] = arrived[:, :done]
        return FinishedChunk(False, ladder.done, groups, done == rows)

    def weigh_modes(self) -> None:
        """Find the modes of the draws so far and weigh them, if their positions were kept, for the report."""
        ladder = self.run
        stats = self.recorder.so_far()["sample_stats"]
        if ladder.modes is not None or not ladder.done or "unconstrained" not in stats:
            return
        coordinates = ladder.tuned.coordinates
        position, restart = (np.asarray(stats[name].values) for name in ("unconstrained", "restart"))
        # On a ladder nothing is non-centred: the chains move in the unconstrained coordinates of the model.
        modes = find_modes(coordinates.whiten(position), restart > 0, self.path.whitened_density(coordinates))
        ladder.modes = modes._replace(centre=coordinates.place(modes.centre), label=np.empty((0, 0), np.int64))
        self.recorder.put({})

    def result(self) -> xr.DataTree:
        """Return the result, without draws if the run was stopped before the ladder was tuned."""
        if not self.tuned:
            return self.plan.layout.tree(self.plan.empty(self.request.chains), self.attributes)
        result = self.recorder.result()
        if self.request.store is None:
            report = self._named(result[LADDER].to_dataset())
            modes = int(np.isfinite(report["mode_weight"].values).sum())
            result[LADDER] = xr.DataTree(report.isel(mode=slice(0, modes)))
        return result

    def _named(self, report: xr.Dataset) -> xr.Dataset:
        """Return a report with the names of coordinates."""
        return report.assign_coords(coordinate=list(self.plan.layout.names))

    # -- recorders ---------------------------------------------------------------------------------------------------

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the result but those that differ between equal runs."""
        return {
            "tuning_steps": self.request.tune, "random_seed": self.request.seed, **self.plan.attributes,
        }  # fmt: skip

    def _begin(self, ladder: Ladder) -> None:
        """Begin to record the draws of a tuned ladder."""
        plan = self.plan
        request = self.request
        replicas = ladder.replicas
        empty = plan.empty(replicas)
        empty["sample_stats"]["restart"] = np.empty((replicas, 0), np.int64)
        rows = rows_of_chunk(request.draws, replicas, plan.numbers_per_draw)
        if request.store is None:
            refuse_too_large(plan.empty(1), request.draws, replicas, 0, plan.later)
            identity = self._identity | {"chains": replicas}
            self.recorder = MemoryRecorder(
                plan.layout, plan.arguments, self.attributes, empty, rows, identity, request.draws
            )
        else:
            template = plan.layout.tree(empty, self.attributes)
            template[LADDER] = xr.DataTree(self._named(report_of(ladder)))
            identity = self._identity | {"rows": rows}
            store = Store.create(request.store, template, identity, rows, min(replicas, plan.file_chains))
            self._record_in(store, rows)
        self.run = ladder
        self.tuned = True
        self.recorder.begin(ladder)

    def _record_in(self, store: Store, rows: int) -> None:
        recorder = StoreRecorder(str(self.request.store), store, rows, self._identity["seed"], self.processes)
        self.recorder = self._stack.enter_context(recorder)


@contextmanager
def _mapped_over_levels(threads: int) -> Iterator[Callable[..., list[Moved]]]:
    """Yield a function that maps another over temperature levels, on threads."""
    if threads == 1:
        yield lambda function, levels: [function(k) for k in levels]
        return
    with ThreadPoolExecutor(threads) as pool:
        yield lambda function, levels: list(pool.map(function, levels))
