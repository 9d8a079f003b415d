"""Runs on a ladder of temperatures: chains that travel between a reference and the posterior find separated modes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.log_evidence import LadderSums
from pmm_mcmc.diagnostics.mode_weights import find_modes
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.model.mixture import GaussianMixture
from pmm_mcmc.model.tempered import improper_priors
from pmm_mcmc.run import devices
from pmm_mcmc.run.chunks import Groups, groups_of
from pmm_mcmc.run.driver import FinishedChunk, StopSampling
from pmm_mcmc.run.findings import modes_of, noted
from pmm_mcmc.run.ladder_climbs import look
from pmm_mcmc.run.ladder_path import Moved, Path, Points
from pmm_mcmc.run.ladder_report import LADDER, with_modes, without_draws
from pmm_mcmc.run.ladder_state import LOOK, LOOKS, REMEMBER, Ladder, Scan
from pmm_mcmc.run.ladder_tuning import Fixed, Tuner
from pmm_mcmc.run.memory import refuse_too_large, rows_of_chunk
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request, stored_run
from pmm_mcmc.run.storage import Store, open_store
from pmm_mcmc.warmup.other_modes import OtherModes

__all__ = ["LadderRun", "reference_of"]

_TYPES = (Coordinates, Ladder, LadderSums, OtherModes, TunedParameters)


class _Stopped(Exception):
    """Ctrl-C while the ladder was tuned."""


def reference_of(model: Any, is_density: bool, reference: str) -> str:
    """Return the reference of a ladder, ``"prior"`` or ``"gaussian"``.

    Raises
    ------
    ValueError
        If the prior is asked for and there is none to draw from.
    """
    if is_density:
        if reference == "prior":
            raise ValueError(
                "reference='prior': a LogDensity has no prior that is known; leave reference out, or take 'gaussian'"
            )
        return "gaussian"
    model = pm.modelcontext(model)
    improper = improper_priors(model)
    if reference == "prior" and improper:
        raise ValueError(
            f"reference='prior': nothing can be drawn from the flat prior of {', '.join(improper)}; give a proper "
            "prior, or take reference='gaussian'"
        )
    if reference != "auto":
        return reference
    informed = bool(model.observed_RVs or model.potentials)
    return "prior" if informed and not improper else "gaussian"


class LadderRun:
    """One run on a ladder.

    Parameters
    ----------
    plan
        The sampling plan.
    fixed
        What the user fixes of the ladder.
    request, reference
        What was asked for; and the reference, which may be "auto".
    update, stopped
        Update of the progress: whether tuning, done, ladder settings, gradients; whether to stop.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        fixed: Fixed,
        request: Request,
        reference: str | None,
        *,
        update: Callable[[bool, int, float, int, float], None],
        stopped: Callable[[], bool],
    ):
        self.plan = plan
        self.fixed = fixed
        self.request = request
        self.chains = request.chains
        self.draws = request.draws
        self.tune = request.tune
        ladder = request.ladder
        self.identity = plan.identity | {
            "chains": self.chains, "tune": self.tune, "seed": request.seed, "reference": reference,
            "ladder": ladder if isinstance(ladder, str) else repr(np.asarray(ladder).tolist()),
        }  # fmt: skip
        self.attrs = {"tuning_steps": self.tune, "random_seed": request.seed, **plan.attributes}
        self._update = update
        self._stopped = stopped
        self.path = Path(plan.adjusted_engine, plan.prior_sampler)
        self._threads = 1 if plan.attributes["backend"] == "jax" else (request.cores or devices.cores())
        self.finished = False

    def go(
        self,
        starts: Callable[[np.random.Generator], np.ndarray],
        notes: Callable[[], dict[str, Any]],
    ) -> xr.DataTree:
        """Tune the ladder and sample; return the result, of the finished draws if the run was stopped.

        ``starts`` draws what a Gaussian reference covers at first; ``notes`` are attributes that differ between equal
        runs.
        """
        store = self.request.store
        with ExitStack() as stack:
            each = stack.enter_context(_mapping(self._threads))
            opened: Store | None = None
            if store is not None and self.request.resume:
                opened = self._resumed(store)
            if opened is not None:
                stack.enter_context(opened)
                (ladder,) = opened.checkpoint
                self._restore(ladder)
            else:
                try:
                    ladder = self._tuned(starts, each)
                except _Stopped:
                    return self.plan.layout.tree(self.plan.empty(self.chains), self.attrs)
                if store is not None:
                    opened = stack.enter_context(self._created(store, ladder))
                    opened.commit((ladder,))
            return self._sampled(ladder, each, store, opened, notes)

    # -- tuning ------------------------------------------------------------------------------------------------------

    def _tuned(self, starts: Callable[[np.random.Generator], np.ndarray], each: Any) -> Ladder:
        rng = np.random.default_rng(self.request.seed)
        key = rng.integers(0, 2**63, size=2, dtype=np.uint64)
        start = None if self.path.has_prior else starts(rng)

        def note(tuner: Tuner) -> None:
            self._update(True, tuner.transition, tuner.step_size, tuner.K, tuner.spent)
            if self._stopped():
                raise _Stopped

        tuner = Tuner(self.path, self.plan.arguments, self.fixed, self.chains, self.tune, key, each, note)
        ladder = tuner.run(start)
        tuner.look_around(ladder)
        ladder.sums = LadderSums.start(ladder.betas, tuner.last, ladder.copies)
        ladder.swapped = np.zeros(ladder.pairs)
        ladder.restarts[:] = 0
        ladder.round_trips[:] = 0
        ladder.arrived[:] = False
        ladder.tuning_gradients = float(ladder.n_grad.sum())
        return ladder

    def _restore(self, ladder: Ladder) -> None:
        """Set the reference of a stored ladder."""
        self.path.mixture = GaussianMixture.of_flat(ladder.numbers, self.path.d) if ladder.numbers.size else None

    # -- draws -------------------------------------------------------------------------------------------------------

    def _sampled(
        self,
        ladder: Ladder,
        each: Any,
        store: str | os.PathLike[str] | None,
        opened: Store | None,
        notes: Callable[[], dict[str, Any]],
    ) -> xr.DataTree:
        plan = self.plan
        names = self.plan.layout.names
        if ladder.done > self.draws:
            raise ValueError(
                f"draws={self.draws}: the store has {ladder.done} draws of each chain already; ask for more"
            )
        rows = self.identity.get("rows") or rows_of_chunk(self.draws, ladder.copies, plan.numbers_per_draw)
        if opened is None:
            refuse_too_large(self.draws, ladder.copies, plan.numbers_per_draw)
        chunks: list[Groups] = []
        stop = False
        while ladder.done < self.draws and not stop:
            groups, complete = self._chunk(ladder, each, min(rows, self.draws - ladder.done))
            stop = self._reported(ladder, groups) or not complete
            if opened is None:
                chunks.append(groups)
            elif complete:
                for group, arrays in groups.items():
                    opened.append(group, arrays)
                self._append_report(opened, without_draws(ladder, names))
                opened.commit((ladder,))
        self.finished = ladder.done >= self.draws
        report = without_draws(ladder, names)
        if opened is not None:
            assert store is not None
            if self.finished and not ladder.judged:
                ladder.judged = True
                self._append_report(opened, self._judged(report, open_store(store), ladder))
                opened.commit((ladder,))
            modes = noted(modes_of(ladder.other_modes))
            opened.note({group: notes() | modes for group in opened.rows})
            opened.close()
            return open_store(store)
        empty = self._empty(ladder.copies)
        whole_groups: Groups = {}
        for group, arrays in empty.items():
            whole_groups[group] = {n: np.concatenate([e, *(c[group][n] for c in chunks)], 1) for n, e in arrays.items()}
        tree = plan.layout.tree(whole_groups, self.attrs | notes() | noted(modes_of(ladder.other_modes)))
        tree[LADDER] = xr.DataTree(_trimmed(self._judged(report, tree, ladder)))
        return tree

    def _empty(self, copies: int) -> Groups:
        groups = self.plan.empty(copies)
        groups["sample_stats"]["restart"] = np.empty((copies, 0), np.int64)
        return groups

    def _chunk(self, ladder: Ladder, each: Any, rows: int) -> tuple[Groups, bool]:
        """Return the draws of some scans, and whether all of them were made."""
        C = ladder.copies
        d = self.path.d
        chunk = Chunk.empty((C, rows), d, d)
        arrived = np.zeros((C, rows), np.int64)
        setting = ladder.settings[-1]
        n_grad_before = ladder.n_grad.astype(np.int64)
        done = 0
        while done < rows and not (done and self._stopped()):
            scan: Scan = ladder.advance(self.path, each)
            ladder.sums.add(np.arange(C), scan.log_ratio[None])  # type: ignore[union-attr]
            ladder.swapped += scan.swaps.mean(axis=0)
            ladder.done += 1
            if ladder.done % REMEMBER == 0:
                ladder.remember(scan.cold)
            n_grad = scan.n_grad.sum(axis=1) + (self._look(ladder) if ladder.done % LOOK == 0 else 0)
            ladder.n_grad += n_grad
            chunk.position[:, done] = scan.cold.position
            chunk.gradient[:, done] = scan.cold.slope(1.0)
            chunk.lp[:, done] = scan.cold.lp
            chunk.accept[:, done] = scan.accept[:, -1]
            chunk.n_grad[:, done] = n_grad
            chunk.unstable[:, done] = scan.unstable[:, -1]
            arrived[:, done] = scan.arrived
            done += 1
            self._update(False, ladder.done, setting.step_size, setting.K, float(ladder.n_grad.sum()))
        chunk = Chunk(*(array[:, :done] for array in chunk))
        groups = groups_of(self.plan, chunk, setting, n_grad_before, "")
        stats = groups["sample_stats"]
        stats["restart"] = arrived[:, :done]
        return groups, done == rows

    def _look(self, ladder: Ladder) -> int:
        """Look for modes that chains between the prior and the posterior are in; return the gradients of each copy.

        Nothing is looked for once a mode was found.
        """
        setting = ladder.settings[-1]
        d = self.path.d
        if ladder.other_modes.mass > 0.0 or self.path.mixture is not None:
            return 0
        rng = np.random.default_rng([*ladder.key.tolist(), LOOKS, ladder.done])
        hot = ladder.position[ladder.slot[:, 1:-1]].reshape(-1, d)
        cold = ladder.recent
        draws = Points(cold[..., :d], cold[..., d:])
        n_grad = int(ladder.n_grad.sum())
        ladder.other_modes, _, gradients = look(self.path, setting, hot, draws, np.empty((0, d)), n_grad, rng)
        return -(-gradients // ladder.copies)

    def _reported(self, ladder: Ladder, groups: Groups) -> bool:
        """Call the callback; return whether to stop."""
        try:
            if self.request.callback is not None:
                self.request.callback(FinishedChunk(False, ladder.done, groups["posterior"], groups["sample_stats"]))
        except StopSampling:
            return True
        return self._stopped()

    def _judged(self, report: xr.Dataset, tree: xr.DataTree, ladder: Ladder) -> xr.Dataset:
        """Return the report with modes, if draws were kept."""
        stats = tree["sample_stats"]
        if "unconstrained" not in stats or not ladder.done:
            return report
        coordinates = ladder.settings[-1].coordinates
        z, restart = (np.asarray(stats[name].values) for name in ("unconstrained", "restart"))
        modes = find_modes(coordinates.whiten(z), restart > 0, self.path.value(coordinates))
        return with_modes(report, modes, coordinates.place(modes.centre))

    # -- store -------------------------------------------------------------------------------------------------------

    def _resumed(self, path: str | os.PathLike[str]) -> Store | None:
        stored = stored_run(path)
        if not stored:
            return None
        self.identity = self.identity | {"rows": stored["rows"]}
        return Store.resume(path, self.identity, types=_TYPES)

    def _created(self, path: str | os.PathLike[str], ladder: Ladder) -> Store:
        template = self.plan.layout.tree(self._empty(ladder.copies), self.attrs)
        template[LADDER] = xr.DataTree(without_draws(ladder, self.plan.layout.names))
        rows = rows_of_chunk(self.draws, ladder.copies, self.plan.numbers_per_draw)
        self.identity = self.identity | {"rows": rows}
        return Store.create(path, template, self.identity, rows, min(ladder.copies, self.plan.file_chains))

    def _append_report(self, opened: Store, report: xr.Dataset) -> None:
        opened.append(LADDER, {str(name): values.values for name, values in report.data_vars.items()})


def _trimmed(report: xr.Dataset) -> xr.Dataset:
    """Return a report without the places of modes that there are not."""
    return report.isel(mode=slice(0, int(np.isfinite(report["mode_weight"].values).sum())))


@contextmanager
def _mapping(threads: int) -> Iterator[Callable[..., list[Moved]]]:
    """Yield a function that maps another over rungs, on threads."""
    if threads == 1:
        yield lambda function, rungs: [function(k) for k in rungs]
        return
    with ThreadPoolExecutor(threads) as pool:
        yield lambda function, rungs: list(pool.map(function, rungs))
