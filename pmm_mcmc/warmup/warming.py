"""A warm-up of chains that have one setting: those of a run, or those that a step of PyMC learns its setting from.

The setting is learnt from the draws of some *training chains*, and of more of them in the first blocks, which are
short; the others follow it.  Many chains at one time show the scale that few show over time, so that blocks are shorter
where there are more chains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, TunedParameters
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.warmup import timetable
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.low_starts import raised_starts
from pmm_mcmc.warmup.noncentring import noncentring_at_starts
from pmm_mcmc.warmup.schedule import Warmup
from pmm_mcmc.warmup.step_size import fixed_setting
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.transient import narrowness, past_transient, replacements

__all__ = ["FEWEST", "Warming", "training_chains"]

# Chains that a setting is learnt from in any number of coordinates: those of a default run, and of a step of PyMC's.
# Their setting is as near to that of many as the setting of more is (benchmarks/frozen/tuning.txt).
FEWEST = 4


def training_chains(d: int) -> int:
    """Return the number of chains that a setting is learnt from, at most, in ``d`` coordinates."""
    limit = THRESHOLDS.training_numbers // max(d, 1)
    return min(max(limit, FEWEST), THRESHOLDS.training_chains)


@dataclass
class Warming:
    """A warm-up in progress: all that is needed to continue it, bit for bit."""

    ensemble: Ensemble
    tuned: TunedParameters  # the setting of the chains
    warmup: Warmup | None  # the schedule; None without warm-up
    n_grad: np.ndarray  # (chain,): gradients spent, with shares of those of the schedule

    @classmethod
    def start(
        cls,
        engine: Engine,
        arguments: MethodArguments,
        starts: np.ndarray,
        length: int,
        rng: np.random.Generator,
        checked: bool = True,
    ) -> Warming:
        """Begin at dispersed positions ``(chain, d)`` in the model's coordinates, for ``length`` transitions at most.

        The last blocks check the setting, if it is to be ``checked``: an equilibration checks its own.  Starts without
        a finite log density and gradient are an error, and so is a ``length`` of 0 without a step size.
        """
        density_parameters = engine.structure.initial_noncentring()
        pair_gradients = 0
        if length:
            density_parameters, pair_gradients = noncentring_at_starts(engine, starts)
        starts, _ = engine.structure.to_z(starts, density_parameters)
        gradients = engine.gradient_at(starts, density_parameters)
        bad = np.flatnonzero(~np.isfinite(gradients).all(axis=1))
        if bad.size:
            raise ValueError(f"starts[{bad[0]}]: the log density or its gradient is not finite there; start elsewhere")
        n_grad = np.full(len(starts), 2 - (-pair_gradients // len(starts)))
        if length == 0:
            warmup = None
            tuned = fixed_setting(arguments, starts[0], density_parameters)
        else:
            starts, gradients, ascent_gradients = raised_starts(engine, starts, gradients, density_parameters)
            n_grad += ascent_gradients
            shortest = timetable.shortest_block(len(starts))
            training = slice(timetable.learnt_from(len(starts), shortest, training_chains(engine.d)))
            warmup = Warmup.start(
                arguments, length, starts[training], gradients[training], density_parameters=density_parameters,
                shortest=shortest, ends="passed" if checked else "frozen",
            )  # fmt: skip
            tuned = warmup.tuned
        ensemble = Ensemble.start(engine, tuned.coordinates, starts, rng)
        return cls(ensemble, tuned, warmup, n_grad)

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.warmup is None or self.warmup.finished

    def advance(
        self,
        engine: Engine,
        setting: TunedParameters,
        rows: int,
        batch: int | None,
        observe: Callable[[slice, Chunk], None],
        processes: Processes,
        tolerance: float = 0.0,
    ) -> np.ndarray:
        """Advance all chains by ``rows`` transitions; return which draws are past the transient, ``(chain, rows)``.

        ``observe`` is called with each ``batch`` of chains of this process, counted from its first, and their draws.
        """
        local_ensemble = self.ensemble.subset(processes.chains)
        n_grad = self.n_grad[processes.chains].copy()
        lp = np.empty((len(n_grad), rows))
        narrow = np.empty(len(n_grad))
        for chains, chunk in local_ensemble.advance_in_batches(engine, setting, rows, batch, tolerance=tolerance):
            lp[chains] = chunk.sampled_lp
            narrow[chains] = narrowness(chunk.evaluation, engine.d)
            n_grad[chains] += chunk.n_grad.sum(axis=1)
            observe(chains, chunk)
        self.ensemble.transition = local_ensemble.transition
        self.ensemble.state, self.ensemble.evaluation, self.n_grad, lp, narrow = processes.join(
            local_ensemble.state, local_ensemble.evaluation, n_grad, lp, narrow
        )
        return past_transient(-lp, engine.d, narrow)

    def block(
        self,
        engine: Engine,
        batch: int | None = None,
        look: Callable[[slice, Chunk], None] | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Advance all chains over the current block, and update the setting; arguments as of :meth:`advance`."""
        warmup = self.warmup
        assert warmup is not None
        n = len(self.n_grad)
        rows = warmup.boundary - warmup.done
        processes = Processes(slice(0, n)) if processes is None else processes
        training_count = int(min(warmup.learning_chains, timetable.learnt_from(n, rows, training_chains(engine.d))))
        training: list[Block] = []
        rejected: list[np.ndarray] = []

        def observe(chains: slice, chunk: Chunk) -> None:
            training_rows = max(training_count - processes.chains.start - chains.start, 0)
            if training_rows or not training:
                # Copies, since views would keep the whole batch in memory.
                training.append(Block(*(array[:training_rows].copy() for array in Block.of(chunk))))
            rejected.append(chunk.unstable)
            if look is not None:
                look(chains, chunk)

        usable = self.advance(engine, self.tuned, rows, batch, observe, processes, warmup.tolerance)
        newest = Block(*processes.join(*(np.concatenate(arrays) for arrays in zip(*training, strict=True))))
        training.clear()  # in many coordinates it is as large as all draws
        (unstable,) = processes.join(np.concatenate(rejected))
        old = self.tuned.coordinates
        self._close(engine, newest, replacements(usable, unstable))
        self.ensemble.change_coordinates(engine, old, self.tuned.coordinates)

    def _close(self, engine: Engine, block: Block, source: np.ndarray) -> None:
        """Update the setting by the draws of the training chains in a block, and replace chains that are stuck.

        ``source`` is the number of the chain from which each chain goes on; that of the training chains follows from
        their draws.  States keep their old coordinates.
        """
        warmup = self.warmup
        assert warmup is not None
        chains = np.arange(len(self.n_grad))
        warmup.observe(block, engine.structure)
        earlier_shares = self._shares()
        self.tuned = warmup.update(engine)
        if warmup.frozen is not None or not warmup.replaces:
            source = chains.copy()
        source[: len(warmup.source)] = warmup.source
        if not np.array_equal(source, chains):
            self.ensemble.copy_from(source)
        self.n_grad = self.n_grad + self._shares() - earlier_shares

    def _shares(self) -> np.ndarray:
        """Return each chain's share of the gradients that the schedule has evaluated."""
        assert self.warmup is not None
        each, more = divmod(self.warmup.n_grad, len(self.n_grad))
        return each + (np.arange(len(self.n_grad)) < more)
