"""The warm-up of many chains with one setting.

The setting is tuned on the draws of some chains, and of more of them in the first blocks.  Many chains at one time show
the scale that few show over time, so that blocks are shorter where there are more chains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.arguments import Block, MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import Chunk, Engine
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.warmup import timetable
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.evidence import narrowness, replacements, settled
from pmm_mcmc.warmup.noncentring import NoncentringWarmup
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.scouts import look_around
from pmm_mcmc.warmup.step_size import fixed_setting

__all__ = ["Warmed", "Warming", "training_chains", "warm_up"]

# Chains that a setting is learnt from in any number of coordinates: those of a default run.
_FEWEST = 4


def training_chains(d: int) -> int:
    """Return the number of chains that a setting is learnt from, at most, in ``d`` coordinates."""
    limit = CALIBRATION.training_numbers // max(d, 1)
    return min(max(limit, _FEWEST), CALIBRATION.training_chains)


class Warmed(NamedTuple):
    """Chains ready to sample: the ensemble, its setting, and the gradients that each chain spent in warm-up."""

    ensemble: Ensemble
    tuned: TunedParameters
    n_grad: np.ndarray
    warmup: NoncentringWarmup | None


@dataclass
class Warming:
    """A warm-up in progress: all that is needed to continue it, bit for bit.

    Attributes
    ----------
    ensemble, tuned, warmup
        The chains, their setting, and the schedule (``None`` without warm-up).
    n_grad : (chain,)
        Gradients spent by each chain, with its share of those that the schedule and the scouts evaluated.
    prior : (n, d), optional
        Draws of the prior for the scouts that look for other modes at the end; without it there are none.
    other_modes
        What they found.
    """

    ensemble: Ensemble
    tuned: TunedParameters
    warmup: NoncentringWarmup | None
    n_grad: np.ndarray
    prior: np.ndarray | None = None
    other_modes: OtherModes = field(default_factory=OtherModes)

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
        """Begin at positions ``(chain, d)`` in the model's coordinates.

        The last blocks check the setting, if it is to be ``checked``: an equilibration checks its own.

        Raises
        ------
        ValueError
            If the log density or its gradient is not finite at one of the starts, or if ``length`` is 0 and the step
            size is not given.
        """
        if length == 0:
            fixed_setting(arguments, starts[0])
        structure = engine.structure
        sites = structure.none()
        starts, _ = structure.to_z(starts, sites)
        gradients = engine.gradient_at(starts, sites)
        bad = np.flatnonzero(~np.isfinite(gradients).all(axis=1))
        if bad.size:
            raise ValueError(f"starts[{bad[0]}]: the log density or its gradient is not finite there; start elsewhere")
        if length == 0:
            warmup = None
            tuned = fixed_setting(arguments, starts[0], sites)
        else:
            shortest = timetable.shortest_block(len(starts))
            training = slice(timetable.learnt_from(len(starts), shortest, training_chains(engine.d)))
            warmup = NoncentringWarmup.start(
                arguments,
                length,
                starts[training],
                gradients[training],
                sites=sites,
                shortest=shortest,
                checked=checked,
            )
            tuned = warmup.tuned
        ensemble = Ensemble.start(engine, tuned.coordinates, starts, rng)
        return cls(ensemble, tuned, warmup, np.full(len(starts), 2))

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.warmup is None or self.warmup.finished

    def part(self, chains: slice) -> Ensemble:
        """Return an ensemble of some chains, with views of their states and a separate count of transitions."""
        ensemble = self.ensemble
        return replace(
            ensemble, state=ensemble.state[chains], gradient=ensemble.gradient[chains], keys=ensemble.keys[chains]
        )

    def block(
        self,
        engine: Engine,
        batch: int | None = None,
        look: Callable[[slice, Chunk], None] | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Advance all chains over the current block, and update the setting.

        Parameters
        ----------
        engine
            Advances the chains.
        batch
            Chains that advance at a time; all by default.
        look
            Called with each batch: which chains, counted from the first of this process, and their draws.
        processes
            The processes that share the chains; one by default.
        """
        warmup = self.warmup
        old = self.tuned
        assert warmup is not None
        chains = len(self.n_grad)
        rows = warmup.boundary - warmup.done
        trained = training_chains(engine.d)
        processes = Processes(slice(0, chains)) if processes is None else processes
        learning = int(min(warmup.learning, timetable.learnt_from(chains, rows, trained)))
        local_ensemble = self.part(processes.own)
        n_grad = self.n_grad[processes.own].copy()
        training: list[Block] = []
        lp = np.empty((len(n_grad), rows))
        unstable = np.empty((len(n_grad), rows), np.int64)
        narrow = np.empty(len(n_grad))
        for chain_slice, chunk in local_ensemble.advance_in_batches(
            engine, old, rows, batch, tolerance=warmup.tolerance
        ):
            training_rows = max(learning - processes.own.start - chain_slice.start, 0)
            if training_rows or not training:
                # Copies, since views would keep the whole batch in memory.
                training.append(Block(*(array[:training_rows].copy() for array in Block.of(chunk))))
            lp[chain_slice] = chunk.sampled_lp
            unstable[chain_slice] = chunk.unstable
            narrow[chain_slice] = narrowness(chunk.gradient, engine.d)
            n_grad[chain_slice] += chunk.n_grad.sum(axis=1)
            if look is not None:
                look(chain_slice, chunk)
        self.ensemble.transition = local_ensemble.transition
        self.ensemble.state, self.ensemble.gradient, lp, unstable, n_grad, narrow = processes.join(
            local_ensemble.state, local_ensemble.gradient, lp, unstable, n_grad, narrow
        )
        newest = Block(*processes.join(*(np.concatenate(array) for array in zip(*training, strict=True))))
        del training  # in many coordinates it is as large as all draws
        warmup.observe(newest, engine.structure)
        earlier_shares = self._shares()
        self.tuned = warmup.update(engine.structure, engine.gradient_at)
        source = np.arange(chains)
        if warmup.frozen is None and chains > trained and warmup.replaces:
            source = replacements(settled(-lp, engine.d, narrow), unstable)
        source[:learning] = warmup.source
        if not np.array_equal(source, np.arange(chains)):
            self.ensemble.copy_from(source)
        self.ensemble.change(engine, old.coordinates, self.tuned.coordinates)
        if warmup.ready and not warmup.finished:
            warmup.stop()
            self.tuned = warmup.update(engine.structure, engine.gradient_at)
        self.n_grad = n_grad + self._shares() - earlier_shares
        if self.finished and self.prior is not None:
            rng = np.random.default_rng(self.ensemble.keys[0])
            spent_so_far = int(self.n_grad.sum())
            self.other_modes, _, more = look_around(engine, self.tuned, newest, self.prior, spent_so_far, rng)
            self.prior = None
            self.n_grad += -(-more // chains)

    def _shares(self) -> np.ndarray:
        """Return each chain's share of the gradients that the schedule has evaluated."""
        assert self.warmup is not None
        each, more = divmod(self.warmup.n_grad, len(self.n_grad))
        return each + (np.arange(len(self.n_grad)) < more)

    def result(self) -> Warmed:
        """Return chains and setting as they are now."""
        return Warmed(self.ensemble, self.tuned, self.n_grad, self.warmup)


def warm_up(
    engine: Engine, arguments: MethodArguments, starts: np.ndarray, *, length: int, rng: np.random.Generator
) -> Warmed:
    """Warm chains up together, until the setting is frozen and a check has passed.

    Parameters
    ----------
    engine
        Advances the chains.
    arguments
        Arguments of the method; warm-up determines those that are "auto".
    starts : (chain, d)
        Dispersed positions with a finite log density.
    length
        Transitions of each chain at most.
    rng
        Draws the keys and velocities of the chains.

    Returns
    -------
    Warmed
        Chains, setting and gradients spent.

    Raises
    ------
    ValueError
        If the log density or its gradient is not finite at one of the starts.
    """
    warming = Warming.start(engine, arguments, starts, length, rng)
    while not warming.finished:
        warming.block(engine)
    return warming.result()
