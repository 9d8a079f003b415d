"""The phases of a run of ``pmm.sample``, each of which advances the chains by a chunk and says what follows.

In order::

    trial of a former setting --> warm-up --> equilibration of adjusted draws --> draws

A run begins with a warm-up, or with the trial.  A phase has the values that it needs; all that changes is in the
:class:`~pmm_mcmc.run.beginning.Run`, which a checkpoint holds, with the name of its phase.  Its ``advance`` returns the
chunk, None if the run was stopped first, and the name of the phase that follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.thresholds import SEARCH
from pmm_mcmc.engines.contract import Chunk, Engine
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.engines.taped_engine import TapedEngine
from pmm_mcmc.run.beginning import DRAWS, TRIAL, WARM_UP, Approach, Run
from pmm_mcmc.run.console import Console, count
from pmm_mcmc.run.driver import Driver, FinishedChunk, Gathered, Groups, Recorder, StopRequest
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.stopping import StoppingRule
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, Equilibration
from pmm_mcmc.warmup.warm_start import DROPPED, FITS
from pmm_mcmc.warmup.warm_up import training_chains

# Seconds between updates of the progress bar and checks for Ctrl-C.  Draws do not depend on it.
_SECONDS = 0.3
# Seconds of draws by which their cost is announced.
_ANNOUNCED = 0.5

Look = Callable[[slice, Chunk], None]


@dataclass
class Chains:
    """The chains of a run, as they are advanced, shown and recorded in every phase."""

    console: Console
    processes: Processes
    batch: Callable[[int], int]  # of chains that advance together by so many draws
    groups_of: Callable[..., Groups]  # the named arrays of a chunk of draws
    keep_warmup: bool

    def ready(self, engine: Engine, transition: int, stopped: StopRequest) -> bool:
        """Compile what chains need to come to a transition; return whether it is there: not if the run was stopped."""
        if not isinstance(engine, TapedEngine) or not engine.waits(transition):
            return True
        with self.console.compiling(stopped):
            engine.compile()
        return not engine.waits(transition)

    def block(
        self, run: Run, engine: Engine, rows: int, advance: Callable[..., None], stopped: StopRequest, look: Look | None
    ) -> FinishedChunk | None:
        """Advance by a block before the draws, of ``rows`` transitions; ``look`` is called with the draws."""
        if not self.ready(engine, run.warming.ensemble.transition + rows, stopped):
            return None
        chains = self.processes.chains
        noncentring = run.tuned.coordinates.density_parameters
        n_grad = run.n_grad[chains].copy()
        rejected = run.unstable[chains].copy()
        gathered = Gathered(len(n_grad), rows)

        def note(batch: slice, chunk: Chunk) -> None:
            rejected[batch] += chunk.unstable.sum(axis=1)
            if self.keep_warmup:
                gathered.put(batch, 0, self.groups_of(chunk, noncentring, n_grad[batch], "warmup_"))
            if look is not None:
                look(batch, chunk)

        advance(engine, self.batch(rows), note, self.processes)
        (run.unstable,) = self.processes.join(rejected)
        done = run.warming.ensemble.transition
        self.show(run, done)
        return FinishedChunk(True, done, gathered.groups)

    def show(self, run: Run, done: int) -> None:
        """Show where the run is."""
        self.console.update(run.tuning, run.tuned, done, run.n_grad, run.unstable)


@dataclass
class WarmUp:
    """The schedule that finds the setting; an equilibration or the draws follow."""

    chains: Chains
    approach: Approach

    def advance(self, run: Run, stopped: StopRequest, look: Look | None = None) -> tuple[FinishedChunk | None, str]:
        """Advance by a block of the schedule."""
        warming = run.warming
        assert warming.warmup is not None
        rows = warming.warmup.boundary - warming.warmup.done
        approach = self.approach
        block = self.chains.block(run, approach.engine, rows, warming.block, stopped, look)
        if not warming.finished:
            return block, WARM_UP
        warming.warmup = None  # its draws are no longer needed
        if not approach.equilibrates:
            return block, DRAWS
        kernel = approach.engine.kernel
        run.equilibration = Equilibration.begin(warming, kernel, approach.arguments, approach.tune)
        return block, EQUILIBRATION


@dataclass
class Equilibrating:
    """The equilibration of adjusted draws, until the chains have forgotten their starts."""

    chains: Chains
    engine: Engine

    def advance(self, run: Run, stopped: StopRequest, look: Look | None = None) -> tuple[FinishedChunk | None, str]:
        """Advance by a block."""
        equilibration = run.equilibration
        assert equilibration is not None

        def advance(engine: Engine, *block: Any) -> None:
            equilibration.block(run.warming, engine, *block)

        chunk = self.chains.block(run, self.engine, equilibration.rows, advance, stopped, look)
        return chunk, DRAWS if equilibration.finished else EQUILIBRATION


@dataclass
class Trial:
    """The first block of a run with a former setting, which says whether it fits.

    ``first`` is the phase of that block, with which the run goes on if it does; else a warm-up follows.
    """

    first: WarmUp | Equilibrating
    warm_up: WarmUp

    def advance(self, run: Run, stopped: StopRequest) -> tuple[FinishedChunk | None, str]:
        """Advance by the block, and judge the setting by its draws."""
        trial = run.warm_start
        assert trial is not None
        chains = self.warm_up.chains
        approach = self.warm_up.approach
        engine = approach.engine
        training = training_chains(engine.d) - chains.processes.chains.start
        blocks: list[Block] = []

        def look(batch: slice, chunk: Chunk) -> None:
            number = max(training - batch.start, 0)
            blocks.append(Block(*(array[:number].copy() for array in Block.of(chunk))))

        chunk, following = self.first.advance(run, stopped, look)
        if chunk is None:
            return None, TRIAL
        draws = Block(*chains.processes.join(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True))))
        trial.judge(engine, run.tuned, draws)
        if trial.outcome == DROPPED:
            approach.start_anew(run)
        elif trial.outcome != FITS:
            approach.go_on_from(run, draws)
        chains.console.log("%s", trial.words(float(run.n_grad.mean())))
        return chunk, following if trial.outcome == FITS else WARM_UP


@dataclass
class Drawing:
    """The draws, in chunks of at most ``rows``, until a rule ends them.

    The console shows several times a second where the run is and, with the first draws, what all will cost.
    """

    chains: Chains
    engine: Engine
    rule: StoppingRule
    rows: int
    searches: bool  # whether other modes will be looked for
    warm_up_cost: np.ndarray | None = None  # (chain,), until what the draws cost is announced
    _pace: int = 1
    # Draws, gradients of a chain and seconds by which their cost is known.
    _measured: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def advance(self, run: Run, stopped: StopRequest) -> tuple[FinishedChunk | None, str]:
        """Draw a chunk, or as much of it as is finished when the run is stopped."""
        tuned = run.tuned
        noncentring = tuned.coordinates.density_parameters
        thin = tuned.steps_per_draw
        processes = self.chains.processes
        ensemble = run.warming.ensemble
        local_ensemble = ensemble.subset(processes.chains)
        n_grad = run.n_grad[processes.chains]
        unstable = run.unstable[processes.chains]
        rows = min(self.rows, self.rule.next_end(run.done) - run.done)
        done = 0
        gathered = Gathered(len(n_grad), rows)
        while done < rows:
            n = min(self._pace, rows - done)
            if not self.chains.ready(self.engine, local_ensemble.transition + n * thin, stopped):
                break
            began = time.perf_counter()
            gradients = 0
            batch_size = self.chains.batch(n)
            for batch, chunk in local_ensemble.advance_in_batches(self.engine, tuned, n, batch_size, thin=thin):
                gathered.put(batch, done, self.chains.groups_of(chunk, noncentring, n_grad[batch], ""))
                n_grad[batch] += chunk.n_grad.sum(axis=1)
                unstable[batch] += chunk.unstable.sum(axis=1)
                gradients += int(chunk.n_grad.sum())
            seconds = time.perf_counter() - began
            self._pace = int(np.clip(_SECONDS * n / max(seconds, 1e-9), 1, 2 * self._pace))
            done += n
            run.done += n
            self._announce(n, gradients / len(n_grad), seconds, len(run.n_grad), last=done == rows)
            self.chains.show(run, run.done)
            # Several processes stop only between chunks: within one they would not stop at the same draw.
            if done < rows and processes.count == 1 and stopped():
                break
        ensemble.transition = local_ensemble.transition
        ensemble.state, ensemble.evaluation, run.warming.n_grad, run.unstable = processes.join(
            local_ensemble.state, local_ensemble.evaluation, n_grad, unstable
        )
        return FinishedChunk(False, run.done, gathered.upto(done), done == rows) if done else None, DRAWS

    def _announce(self, draws: int, gradients: float, seconds: float, chains: int, last: bool) -> None:
        """Log once what the draws will cost, by the pace of the first: at the ``last`` of a chunk at latest."""
        if self.warm_up_cost is None:
            return
        self._measured += draws, gradients, seconds
        if last or self._measured[2] >= _ANNOUNCED:
            _, gradients, seconds = self._measured / self._measured[0]
            cost = self.rule.cost(self.warm_up_cost, gradients, seconds)
            if self.searches:
                cost += f", and {count(SEARCH.gradients / chains)} to look for other modes"
            self.chains.console.log(cost)
            self.warm_up_cost = None


type Phase = Trial | WarmUp | Equilibrating | Drawing


class Sampling(Driver):
    """The driver of a run, new or resumed, from phase to phase."""

    def __init__(self, plan: SamplingPlan, run: Run, recorder: Recorder, rule: StoppingRule, console: Console):
        request = plan.request
        super().__init__(plan.processes, request.callback)
        self.run = run
        self.recorder = recorder
        self._rule = rule
        self._setting = plan.setting
        chains = Chains(console, plan.processes, plan.batch, plan.groups_of, not request.discard_tuned_samples)
        self._warm_up = warm_up = WarmUp(chains, plan.approach)
        adjusted = plan.adjusted_engine if request.adjusted else plan.engine
        equilibrating = Equilibrating(chains, adjusted)
        self._draws = Drawing(chains, adjusted, rule, recorder.rows, plan.searches)
        self._phases: dict[str, Phase] = {
            TRIAL: Trial(equilibrating if plan.equilibrates else warm_up, warm_up),
            WARM_UP: warm_up,
            EQUILIBRATION: equilibrating,
            DRAWS: self._draws,
        }

    def prepare(self) -> None:
        """Compile what the run goes on with."""
        for engine in dict.fromkeys([self._warm_up.approach.engine, self._draws.engine][not self.run.tuning :]):
            self.run.warming.ensemble.prepare(engine, self.run.tuned)

    @property
    def ended(self) -> bool:
        """Whether all draws are made."""
        return not self.run.tuning and self.run.done >= self._rule.limit

    def over(self) -> bool:
        """Return whether the draws so far are enough."""
        return not self.run.tuning and self._rule(self.run.done)

    def advance(self, stopped: StopRequest) -> FinishedChunk | None:
        """Advance the present phase by a chunk, and go on to the one that follows."""
        run = self.run
        chunk, following = self._phases[run.phase].advance(run, stopped)
        if following != run.phase:
            run.phase = following
            run.unstable = np.zeros_like(run.unstable)
        if following == DRAWS and chunk is not None and chunk.tuning:
            self.recorder.note(run.attributes(self._setting))
            self._draws.warm_up_cost = run.n_grad.copy() if self.processes.primary else None
        return chunk
