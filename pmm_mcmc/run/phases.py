"""A run of ``pmm.sample`` and its phases: warm-up, equilibration of adjusted draws, draws."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pmm_mcmc.engines.contract import Chunk, Engine, TunedParameters
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import GHMC
from pmm_mcmc.run.chunks import Gathered, groups_of
from pmm_mcmc.run.driver import Advance, Driver, Stopped
from pmm_mcmc.run.on_tape import ready
from pmm_mcmc.run.until import Until
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, Equilibration, adjusted_setting, report_of
from pmm_mcmc.warmup.warm_start import DROPPED, FITS, WarmStart, warmup_from
from pmm_mcmc.warmup.warming import Warming, training_chains

if TYPE_CHECKING:
    from pmm_mcmc.run.console import Console
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request

__all__ = ["Run", "Sampling"]

# Seconds between updates of the progress bar and checks for Ctrl-C.  Draws do not depend on it.
_SECONDS = 0.3
# Seconds of draws by which their cost is announced.
_ANNOUNCED = 0.5


@dataclass
class Run:
    """The state of a run: all that it needs to continue bit for bit.

    Attributes
    ----------
    warming
        The warm-up with its chains, which are the chains of the run.
    tuning
        Whether the warm-up, or the equilibration after it, is still in progress.
    done
        Number of finished draws after it.
    n_grad : (chain,)
        Gradients spent in all.
    unstable : (chain,)
        Transitions rejected in the current phase.
    equilibration
        None before it, and in runs without one.
    warm_start
        The trial of a former run's setting, in runs that start from one.
    """

    warming: Warming
    tuning: bool
    done: int
    n_grad: np.ndarray
    unstable: np.ndarray
    equilibration: Equilibration | None = None
    warm_start: WarmStart | None = None

    @classmethod
    def start(
        cls,
        plan: SamplingPlan,
        starts: np.ndarray,
        tune: int,
        rng: np.random.Generator,
    ) -> Run:
        """Start at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.warming.Warming.start`."""
        warming = Warming.start(plan.engine, plan.arguments, starts, tune, rng, checked=not plan.equilibrates)
        if plan.equilibrates and warming.finished:
            kernel = plan.engine.kernel
            warming.ensemble.rest_at_draws(kernel, GHMC)
            warming.tuned = adjusted_setting(warming.tuned, kernel, warming.tuned.step_size)
        nothing = np.zeros(len(starts), np.int64)
        return cls(warming, not warming.finished, 0, warming.n_grad.copy(), nothing)

    def prepare(self, plan: SamplingPlan) -> None:
        """Compile what the run goes on with."""
        if not plan.adjusted or self.tuning:
            self.warming.ensemble.prepare(plan.engine, self.tuned)
        if plan.adjusted:
            self.warming.ensemble.prepare(plan.adjusted_engine, self.tuned)

    @property
    def tuned(self) -> TunedParameters:
        """The current tuned parameters."""
        return self.warming.tuned if self.equilibration is None else self.equilibration.tuned

    def attributes(self, plan: SamplingPlan) -> dict[str, Any]:
        """Return the setting of the draws as attributes of the result; of adjusted ones ``equilibration`` has it."""
        setting = {name: np.asarray(getattr(self.tuned, name)).item() for name in plan.setting}
        return setting if self.warm_start is None else setting | {"start": self.warm_start.outcome}

    def reports(self, new: bool = False) -> dict[str, xr.Dataset]:
        """Return the groups of the result beside its draws, those alone that the last chunk changed if ``new``."""
        if self.equilibration is None or (new and (self.tuning or self.done)):
            return {}
        return {EQUILIBRATION: report_of(self.equilibration, len(self.n_grad))}

    def judge_start(self, plan: SamplingPlan, tune: int, block: Block) -> None:
        """Judge a former setting by a block of draws; unless it fits, warm-up follows, from it or from a cold start."""
        trial = self.warm_start
        assert trial is not None
        warming = self.warming
        rng = np.random.default_rng(warming.ensemble.keys[0])
        gradients = trial.judge(plan.engine, self.tuned, block, rng)
        warming.n_grad += -(-gradients // len(warming.n_grad))
        self.n_grad = warming.n_grad.copy()
        if trial.outcome == FITS:
            return
        self.equilibration = None
        self.unstable = np.zeros_like(self.unstable)
        if trial.outcome == DROPPED:
            self.start_cold(plan, tune, rng)
            return
        if plan.equilibrates:
            warming.ensemble.rest_at_draws(GHMC, plan.engine.kernel)
        z, gradient = plan.engine.structure.folded(block.position, block.gradient[..., : plan.engine.d])
        self.warm_up_from(plan, tune, block._replace(position=z, gradient=gradient))

    def start_cold(self, plan: SamplingPlan, tune: int, rng: np.random.Generator) -> None:
        """Begin anew from a cold start, after a former setting was dropped."""
        trial = self.warm_start
        assert trial is not None
        self.warming = Run.start(plan, trial.starts, tune, rng).warming
        self.warming.n_grad += self.n_grad
        self.warming.prior = trial.prior
        self.n_grad = self.warming.n_grad.copy()

    def warm_up_from(self, plan: SamplingPlan, tune: int, draws: Block) -> None:
        """Let a warm-up of ``tune`` transitions at most follow from the setting: a check of it while it is on trial."""
        trial = self.warm_start
        warming = self.warming
        assert trial is not None
        warming.warmup = warmup_from(
            plan.arguments, tune, warming.tuned, draws, chains=len(self.n_grad), adjusts=plan.equilibrates,
            fits=not trial.outcome,
        )  # fmt: skip
        warming.tuned = warming.warmup.tuned
        warming.length = tune
        warming.prior = trial.prior if trial.outcome else None


class Sampling(Driver):
    """The driver of a run, new or resumed, whose phase follows from its state.

    The ``console`` shows several times a second where the run is and, with the first draws, what all will cost.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        request: Request,
        run: Run,
        recorder: Any,
        until: Until,
        console: Console,
        processes: Processes,
    ):
        super().__init__(request.callback, processes)
        self.plan = plan
        self.run: Run = run
        self.recorder = recorder
        self.until = until
        self.console = console
        self._tune = request.tune
        self._keep_warmup = not request.discard_tuned_samples
        self._batch = plan.batch(request.batch, request.chains)
        self._pace = 1
        self._warm_up_cost: np.ndarray | None = None  # until what the draws cost is announced
        self._measured = np.zeros(3)  # draws, gradients of a chain and seconds by which it is

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""
        return not self.run.tuning and self.run.done >= self.until.bound

    def phase(self) -> Callable[[Stopped], Advance | None] | None:
        """Return the function that advances the present phase by a chunk; None after the last."""
        if self.run.warm_start is not None and not self.run.warm_start.outcome:
            return self._try_start
        if self.run.tuning:
            return self._warm_up if self.run.equilibration is None else self._equilibrate
        return None if self.until(self.run.done) else self._draw

    def _try_start(self, stopped: Stopped) -> Advance | None:
        """Advance by a block, as warm-up or equilibration would, that says whether a former setting fits."""
        run = self.run
        trial = run.warm_start
        warming = run.warming
        assert trial is not None
        learners = training_chains(self.plan.engine.d)
        drawn: list[Block] = []

        def observed(look: Callable[[slice, Chunk], None], chains: slice, chunk: Chunk) -> None:
            number = max(learners - self.processes.chains.start - chains.start, 0)
            drawn.append(Block(*(array[:number].copy() for array in Block.of(chunk))))
            look(chains, chunk)

        def advance(engine: Engine, batch: int | None, look: Any, processes: Processes) -> None:
            block = warming.block if run.equilibration is None else functools.partial(run.equilibration.block, warming)
            block(engine, batch, functools.partial(observed, look), processes)

        def ends() -> bool:
            block = Block(*self.processes.join(*(np.concatenate(arrays) for arrays in zip(*drawn, strict=True))))
            run.judge_start(self.plan, self._tune, block)
            self.console.log("%s", trial.words(float(run.n_grad.mean())))
            if trial.outcome != FITS:
                return False
            return self._after_warm_up() if run.equilibration is None else self._after_equilibration()

        if run.equilibration is not None:
            return self._block(stopped, self.plan.adjusted_engine, run.equilibration.rows, advance, ends)
        assert warming.warmup is not None
        return self._block(stopped, self.plan.engine, warming.warmup.boundary - warming.warmup.done, advance, ends)

    def _warm_up(self, stopped: Stopped) -> Advance | None:
        """Advance by a block of warm-up; equilibration follows if draws are adjusted, otherwise they follow."""
        warming = self.run.warming
        warmup = warming.warmup
        assert warmup is not None
        rows = warmup.boundary - warmup.done
        return self._block(stopped, self.plan.engine, rows, warming.block, self._after_warm_up)

    def _after_warm_up(self) -> bool:
        run = self.run
        warming = run.warming
        if not warming.finished:
            if warming.moved and warming.warmup is not None and not warming.warmup.done:
                self.console.log(
                    "%d of %d chains were in modes with less than a millionth of the mass of another: they start again "
                    "in that, and the warm-up with them",
                    warming.moved, len(run.n_grad),
                )  # fmt: skip
            return False
        warming.warmup = None  # its draws are no longer needed
        if self.plan.equilibrates:
            run.equilibration = Equilibration.begin(warming, self.plan.engine.kernel, self.plan.arguments, self._tune)
        run.tuning = self.plan.equilibrates
        return True

    def _equilibrate(self, stopped: Stopped) -> Advance | None:
        """Advance by a block of equilibration; draws follow once the chains have forgotten their start."""
        equilibration = self.run.equilibration
        assert equilibration is not None
        block = functools.partial(equilibration.block, self.run.warming)
        return self._block(stopped, self.plan.adjusted_engine, equilibration.rows, block, self._after_equilibration)

    def _after_equilibration(self) -> bool:
        assert self.run.equilibration is not None
        self.run.tuning = not self.run.equilibration.finished
        return not self.run.tuning

    def _block(
        self, stopped: Stopped, engine: Engine, rows: int, advance: Callable[..., None], ends: Callable[[], bool]
    ) -> Advance | None:
        """Advance by a block of ``rows`` transitions; ``ends`` says whether it was the last."""
        run = self.run
        warming = run.warming
        if not ready(engine, warming.ensemble.transition + rows, self.console, stopped):
            return None
        chains = self.processes.chains
        n_grad = run.n_grad[chains].copy()
        rejected = run.unstable[chains].copy()
        chunk_of_all = Gathered(len(n_grad), rows)

        def note(batch: slice, chunk: Chunk) -> None:
            rejected[batch] += chunk.unstable.sum(axis=1)
            if self._keep_warmup:
                chunk_of_all.put(batch, 0, groups_of(self.plan, chunk, setting, n_grad[batch], "warmup_"))

        setting = run.tuned
        advance(engine, self._batch(rows), note, self.processes)
        run.n_grad = warming.n_grad.copy()
        (run.unstable,) = self.processes.join(rejected)
        done = warming.ensemble.transition
        self.console.update(run.tuning, run.tuned, done, run.n_grad, run.unstable)
        if ends():
            run.unstable = np.zeros_like(run.unstable)
        if not run.tuning:
            self.recorder.note(run.attributes(self.plan))
        if not run.tuning and rows and self.processes.primary:
            self._warm_up_cost = run.n_grad.copy()
        return Advance(chunk_of_all.groups, True, done)

    def _draw(self, stopped: Stopped) -> Advance | None:
        """Draw a chunk, or as much of it as is finished when the run is stopped."""
        run = self.run
        tuned = run.tuned
        thin = tuned.steps_per_draw
        engine = self.plan.adjusted_engine if self.plan.adjusted else self.plan.engine
        ensemble = run.warming.ensemble
        chains = self.processes.chains
        local_ensemble = run.warming.ensemble.subset(chains)
        n_grad = run.n_grad[chains]
        unstable = run.unstable[chains]
        rows = min(self.recorder.rows, self.until.next_end(run.done) - run.done)
        done = 0
        chunk_of_all = Gathered(len(n_grad), rows)
        while done < rows:
            n = min(self._pace, rows - done)
            if not ready(engine, local_ensemble.transition + n * thin, self.console, stopped):
                break
            began = time.perf_counter()
            gradients = 0
            for batch, chunk in local_ensemble.advance_in_batches(engine, tuned, n, self._batch(n), thin=thin):
                chunk_of_all.put(batch, done, groups_of(self.plan, chunk, tuned, n_grad[batch], ""))
                n_grad[batch] += chunk.n_grad.sum(axis=1)
                unstable[batch] += chunk.unstable.sum(axis=1)
                gradients += int(chunk.n_grad.sum())
            seconds = time.perf_counter() - began
            self._pace = int(np.clip(_SECONDS * n / max(seconds, 1e-9), 1, 2 * self._pace))
            done += n
            run.done += n
            self._announce(n, gradients / len(n_grad), seconds, last=done == rows)
            self.console.update(run.tuning, run.tuned, run.done, run.n_grad, run.unstable)
            # Several processes stop only between chunks: within one they would not stop at the same draw.
            if done < rows and self.processes.count == 1 and stopped():
                break
        ensemble.transition = local_ensemble.transition
        ensemble.state, ensemble.evaluation, run.n_grad, run.unstable = self.processes.join(
            local_ensemble.state, local_ensemble.evaluation, n_grad, unstable
        )
        return Advance(chunk_of_all.upto(done), False, run.done, done == rows) if done else None

    def _announce(self, draws: int, gradients: float, seconds: float, last: bool) -> None:
        """Log once what the draws will cost, by the pace of the first: at the ``last`` of a chunk at latest."""
        if self._warm_up_cost is None:
            return
        self._measured += draws, gradients, seconds
        if last or self._measured[2] >= _ANNOUNCED:
            _, gradients, seconds = self._measured / self._measured[0]
            thin = self.run.tuned.steps_per_draw
            self.console.log(self.until.announced(self._warm_up_cost, thin, gradients, seconds))
            self._warm_up_cost = None
