"""The phases of a run of ``pmm.sample``: warm-up, equilibration of adjusted draws, draws."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.search_thresholds import SEARCH
from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.engines.taped_engine import TapedEngine
from pmm_mcmc.run.chunks import Gathered
from pmm_mcmc.run.console import Console
from pmm_mcmc.run.driver import Driver, FinishedChunk, Stopped
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.progress import count
from pmm_mcmc.run.state import Run
from pmm_mcmc.run.stopping import StoppingRule
from pmm_mcmc.run.trial import judge_start
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import Equilibration
from pmm_mcmc.warmup.warm_start import FITS
from pmm_mcmc.warmup.warm_up import training_chains

__all__ = ["Sampling"]

# Seconds between updates of the progress bar and checks for Ctrl-C.  Draws do not depend on it.
_SECONDS = 0.3
# Seconds of draws by which their cost is announced.
_ANNOUNCED = 0.5


class Sampling(Driver):
    """The driver of a run, new or resumed, whose phase follows from its state.

    The ``console`` shows several times a second where the run is and, with the first draws, what all will cost.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        run: Run,
        recorder: Any,
        rule: StoppingRule,
        console: Console,
    ):
        super().__init__(plan.processes, plan.request.callback)
        self.plan = plan
        self.run: Run = run
        self.recorder = recorder
        self.rule = rule
        self.console = console
        self._pace = 1
        self._warm_up_cost: np.ndarray | None = None  # until what the draws cost is announced
        self._measured = np.zeros(3)  # draws, gradients of a chain and seconds by which it is

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""
        return not self.run.tuning and self.run.done >= self.rule.limit

    def phase(self) -> Callable[[Stopped], FinishedChunk | None] | None:
        """Return the function that advances the present phase by a chunk; None after the last."""
        if self.run.tuning:
            return self._block
        return None if self.rule(self.run.done) else self._draw

    def _block(self, stopped: Stopped) -> FinishedChunk | None:
        """Advance by a block of the warm-up or of the equilibration after it."""
        run = self.run
        warming = run.warming
        chains = self.processes.chains
        advance: Callable[..., None]
        if run.equilibration is None:
            assert warming.warmup is not None
            engine = self.plan.engine
            rows = warming.warmup.boundary - warming.warmup.done
            advance = warming.block
        else:
            engine = self.plan.adjusted_engine
            rows = run.equilibration.rows
            advance = functools.partial(run.equilibration.block, warming)
        if not ready(engine, warming.ensemble.transition + rows, self.console, stopped):
            return None
        noncentring = run.tuned.coordinates.density_parameters
        n_grad = run.n_grad[chains].copy()
        rejected = run.unstable[chains].copy()
        gathered = Gathered(len(n_grad), rows)
        on_trial = run.warm_start is not None and not run.warm_start.outcome
        trial_chains = training_chains(self.plan.engine.d) - chains.start
        trial_draws: list[Block] = []

        def note(batch: slice, chunk: Chunk) -> None:
            rejected[batch] += chunk.unstable.sum(axis=1)
            if not self.plan.request.discard_tuned_samples:
                gathered.put(batch, 0, self.plan.groups_of(chunk, noncentring, n_grad[batch], "warmup_"))
            if on_trial:
                number = max(trial_chains - batch.start, 0)
                trial_draws.append(Block(*(array[:number].copy() for array in Block.of(chunk))))

        advance(engine, self.plan.batch(rows), note, self.processes)
        (run.unstable,) = self.processes.join(rejected)
        done = warming.ensemble.transition
        self.console.update(run.tuning, run.tuned, done, run.n_grad, run.unstable)
        if (not on_trial or self._start_fits(trial_draws)) and self._phase_ends():
            run.unstable = np.zeros_like(run.unstable)
        if not run.tuning:
            self.recorder.note(run.attributes(self.plan.setting))
        if not run.tuning and rows and self.processes.primary:
            self._warm_up_cost = run.n_grad.copy()
        return FinishedChunk(True, done, gathered.groups)

    def _start_fits(self, draws: list[Block]) -> bool:
        """Return whether a former setting fits, by the draws of its first block; if not, warm-up follows."""
        run = self.run
        trial = run.warm_start
        assert trial is not None
        block = Block(*self.processes.join(*(np.concatenate(arrays) for arrays in zip(*draws, strict=True))))
        judge_start(self.plan, run, block)
        self.console.log("%s", trial.words(float(run.n_grad.mean())))
        return trial.outcome == FITS

    def _phase_ends(self) -> bool:
        """Go on from warm-up to equilibration, if draws are adjusted, and to draws; return whether a phase ended."""
        run = self.run
        warming = run.warming
        if run.equilibration is not None:  # which ends once the chains have forgotten their start
            run.tuning = not run.equilibration.finished
            return not run.tuning
        if not warming.finished:
            return False
        warming.warmup = None  # its draws are no longer needed
        tune = self.plan.request.tune
        if self.plan.equilibrates:
            run.equilibration = Equilibration.begin(warming, self.plan.engine.kernel, self.plan.arguments, tune)
        run.tuning = self.plan.equilibrates
        return True

    def _draw(self, stopped: Stopped) -> FinishedChunk | None:
        """Draw a chunk, or as much of it as is finished when the run is stopped."""
        run = self.run
        tuned = run.tuned
        thin = tuned.steps_per_draw
        noncentring = tuned.coordinates.density_parameters
        engine = self.plan.adjusted_engine if self.plan.request.adjusted else self.plan.engine
        ensemble = run.warming.ensemble
        chains = self.processes.chains
        local_ensemble = run.warming.ensemble.subset(chains)
        n_grad = run.n_grad[chains]
        unstable = run.unstable[chains]
        rows = min(self.recorder.rows, self.rule.next_end(run.done) - run.done)
        done = 0
        gathered = Gathered(len(n_grad), rows)
        while done < rows:
            n = min(self._pace, rows - done)
            if not ready(engine, local_ensemble.transition + n * thin, self.console, stopped):
                break
            began = time.perf_counter()
            gradients = 0
            for batch, chunk in local_ensemble.advance_in_batches(engine, tuned, n, self.plan.batch(n), thin=thin):
                gathered.put(batch, done, self.plan.groups_of(chunk, noncentring, n_grad[batch], ""))
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
        ensemble.state, ensemble.evaluation, run.warming.n_grad, run.unstable = self.processes.join(
            local_ensemble.state, local_ensemble.evaluation, n_grad, unstable
        )
        return FinishedChunk(False, run.done, gathered.upto(done), done == rows) if done else None

    def _announce(self, draws: int, gradients: float, seconds: float, last: bool) -> None:
        """Log once what the draws will cost, by the pace of the first: at the ``last`` of a chunk at latest."""
        if self._warm_up_cost is None:
            return
        self._measured += draws, gradients, seconds
        if last or self._measured[2] >= _ANNOUNCED:
            _, gradients, seconds = self._measured / self._measured[0]
            cost = self.rule.cost(self._warm_up_cost, gradients, seconds)
            if self.plan.searches:
                cost += f", and {count(SEARCH.gradients / len(self.run.n_grad))} to look for other modes"
            self.console.log(cost)
            self._warm_up_cost = None


def ready(engine: Any, transition: int, console: Console, stopped: Any) -> bool:
    """Compile what chains need to come to a transition, and return whether it is there: not if the run was stopped."""
    if not isinstance(engine, TapedEngine) or not engine.waits(transition):
        return True
    with console.compiling(stopped):
        engine.compile()
    return not engine.waits(transition)
