"""A warm-up of chains that have one setting: those of a run, or those that a step of PyMC learns its setting from.

The setting (:class:`TunedParameters`) is a step size with its number of midpoints ``K``, a friction, the preconditioner
with the non-centring, and the transitions of a draw.  A :class:`Warmup` is the schedule: what the draws of each block
change in the setting.  Any engine can follow it::

    warmup = Warmup.start(...)
    while not warmup.finished:
        warmup.observe(draws of the chains, with the setting warmup.tuned, from warmup.done to warmup.boundary)
        warmup.update(engine)

Blocks grow while the setting is adapted, until it is settled; then it is frozen, at 70 % of the warm-up at the latest,
and blocks of equal length check it.

A :class:`Warming` has the chains.  The setting is learnt from the draws of some *training chains*, and of more of them
in the first blocks, which are short; the others follow it.  Many chains at one time show the scale that few show over
time, so that blocks are shorter where there are more chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates, diagonal_scale
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, TunedParameters, log_det_of
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import HARMONIC
from pmm_mcmc.warmup import block_checks, step_size
from pmm_mcmc.warmup.ascent import raised_starts
from pmm_mcmc.warmup.block import Block, narrowness, past_transient, replacements
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.noncentring import NoncentringFit, noncentring_at_starts
from pmm_mcmc.warmup.stein_identity import steps_for_autocorrelation, too_wide
from pmm_mcmc.warmup.step_size import fixed_setting
from pmm_mcmc.warmup.thresholds import THRESHOLDS


def stiffness(curvature: float) -> float:
    """Return the factor, 1 to 4, by which a large curvature lengthens the warm-up: steep places are rare in draws."""
    return min(max(curvature / THRESHOLDS.stiff, 1.0), THRESHOLDS.stiffest)


def latest_freeze(length: int) -> int:
    """Return the transition at which the setting is frozen, whether it has settled or not."""
    return int(THRESHOLDS.freeze_at * length)


def shortest_block(chains: int) -> int:
    """Return the length of the first block: the more chains, the fewer transitions make as many draws.

    At least two, whose differences show the curvature.
    """
    training = THRESHOLDS.training_chains
    return max(2, -(-training * THRESHOLDS.first_block // max(chains, training)))


def learnt_from(chains: int, rows: int, training: int) -> int:
    """Return the number of chains that a block is learnt from: in short blocks more than ``training``."""
    return min(chains, max(training, -(-training * THRESHOLDS.first_block // rows)))


def end_of_block(done: int, shortest: int = THRESHOLDS.first_block) -> int:
    """Return the end of the block that begins at a transition: blocks grow."""
    return done + max(shortest, int(THRESHOLDS.growth * done))


def end_of_growing(done: int, length: int, shortest: int = THRESHOLDS.first_block) -> int:
    """Return the end of a block of adaptation; it includes a remainder too short for another block."""
    boundary = end_of_block(done, shortest)
    latest = latest_freeze(length)
    return boundary if latest - boundary >= shortest else max(latest, done + 1)


def end_of_check(done: int, length: int, chains: int, stiff: float) -> int:
    """Return the end of a check, which is longer if the posterior is stiff."""
    size = max(THRESHOLDS.least_check, min(int(stiff * THRESHOLDS.checked_draws) // chains, length // 5))
    return length if length - done < 2 * size else done + size


def extension(rows: int, chains: int) -> int:
    """Return the length of one more check, after one of ``rows`` transitions that failed at the end."""
    return max(THRESHOLDS.least_check, min(rows, THRESHOLDS.checked_draws // chains))


# Rounding of a ratio of steps.
_ROUNDING = 1e-6


@dataclass
class Warmup:
    """A warm-up in progress: its plan, its setting, where it is, and what it has learnt."""

    # The plan.
    arguments: MethodArguments
    length: int  # transitions of each chain, at most
    tuned: TunedParameters  # the setting at present
    least: int = THRESHOLDS.least_adapted  # transitions before which the setting is not frozen
    shortest: int = THRESHOLDS.first_block  # transitions of the first block
    # What ends the warm-up before its last transition: nothing ("length"), a check of the frozen setting that has
    # "passed", or that it is "frozen".
    ends: str = "length"
    # Where it is, in transitions of each chain.
    done: int = 0
    boundary: int = 0  # the end of the current block
    frozen: int | None = None  # when the setting was frozen
    passed: bool | None = None  # whether the last check passed
    _extensions: int = 0  # number of checks that were added after the planned end
    # The draws that the next update or check learns from, and those that the frozen setting was fitted to.
    blocks: list[Block] = field(default_factory=list)
    _last_positions: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 0)))
    _noncentring: NoncentringFit = field(default_factory=NoncentringFit)
    # After an update: for each chain, the number of the chain whose state it continues from.
    source: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    # The step is at most this share of what the largest curvature, in whitened coordinates, allows.
    _step_share: float = 1.0
    _curvature: float = 1.0
    _steepest: LocalCurvature = field(default_factory=LocalCurvature)

    @classmethod
    def start(
        cls,
        arguments: MethodArguments,
        length: int,
        position: np.ndarray,
        gradient: np.ndarray,
        *,
        density_parameters: np.ndarray | None = None,
        shortest: int = THRESHOLDS.first_block,
        ends: str = "length",
    ) -> Warmup:
        """Begin from positions ``z`` and gradients ``(n, d)`` at or around the starts; the first is the centre."""
        if arguments.scaling is None:
            _, scale = diagonal_scale(position, gradient, np.ones(position.shape[1]))
        else:
            scale = np.array(arguments.scaling)
        friction = arguments.friction or step_size.default_friction(arguments.kernel, 1.0)
        tuned = TunedParameters(1.0, 1, friction, Coordinates(position[0].copy(), scale, density_parameters), 1)
        self = cls(arguments, length, tuned, shortest=shortest, ends=ends)
        nothing = np.zeros((1, len(position)))
        window = Block(position[None], gradient[None], *[nothing] * 5)
        self._curvature = block_checks.curvature(arguments, tuned.coordinates, window, nothing == 0.0, self._steepest)
        self._set_step(step_size.first_step(arguments, self.tuned, self._curvature))
        self.boundary = self._next_boundary(1)
        return self

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.done >= self.length

    @property
    def curvature(self) -> float:
        """The largest curvature, in whitened coordinates, that the step follows."""
        return self._curvature

    @property
    def replaces(self) -> bool:
        """Whether a chain that is still on its way down from its start is replaced by a copy of another."""
        return self.done >= min(THRESHOLDS.first_block, latest_freeze(self.length))

    @property
    def tolerance(self) -> float:
        """Energy that a step may gain beyond the guard against unstable steps, over its kinetic energies."""
        return THRESHOLDS.energy_tolerance if self.frozen is None else 0.0

    def observe(self, block: Block, structure: Structure | None = None) -> None:
        """Add the draws of the current block, with evaluations in place of gradients if non-centred."""
        if structure is not None and not structure.is_identity:
            block = self._noncentring.observe(block, structure, self.frozen is None)
        chains = len(block.lp)
        self.blocks = [Block(*(array[:chains] for array in older)) for older in self.blocks]
        self.blocks.append(block)
        self.done += block.lp.shape[1]

    @property
    def n_grad(self) -> int:
        """Gradients that updates have evaluated so far, for all chains together."""
        return self._steepest.evaluations + self._noncentring.evaluations

    def update(self, engine: Engine | None = None) -> TunedParameters:
        """Update the setting after a block; return that of the next block or, after the last, of the draws.

        With an engine, power iteration finds the steepest directions at the draws, and the non-centring is fitted.
        """
        block = self.blocks[-1]
        chains = len(block.lp)
        self.source = np.arange(chains)
        if self.frozen is not None:
            self._check(block)
        else:
            self._adapt(engine)
        failed_check = self.passed is False and step_size.follows_curvature(self.arguments)
        if (self.ends == "passed" and self.passed) or (self.ends == "frozen" and self.frozen is not None):
            self.stop()
        if self.finished and failed_check and self._extensions < THRESHOLDS.most_extensions:
            # The step has shrunk: one more check, so that the final setting is checked.
            self._extensions += 1
            self.length += extension(block.lp.shape[1], chains)
        if self.finished:
            return self.finish()
        self.boundary = self._next_boundary(chains)
        return self.tuned

    def stop(self) -> None:
        """Let the next :meth:`update` be the last."""
        self.length = self.boundary = self.done
        self._extensions = THRESHOLDS.most_extensions

    @property
    def _stiffness(self) -> float:
        return stiffness(self._curvature + (self.arguments.kernel.dynamics == HARMONIC))

    def _next_boundary(self, chains: int) -> int:
        if self.frozen is not None:
            return end_of_check(self.done, self.length, chains, self._stiffness)
        return end_of_growing(self.done, self.length, self.shortest)

    def finish(self) -> TunedParameters:
        """End the warm-up now, also before its first block; return the setting of the draws."""
        self._noncentring.end()
        self.length = self.boundary = self.done
        self.tuned = self.tuned._replace(steps_per_draw=self._steps_per_draw())
        return self.tuned

    # -- adapting ----------------------------------------------------------------------------------------------------

    def _adapt(self, engine: Engine | None) -> None:
        """Fit the setting to a window of the newest draws; freeze a settled one."""
        length = max(math.ceil(THRESHOLDS.window * self.done), self.blocks[-1].lp.shape[1])
        if engine is not None and self._noncentring.positions:
            coordinates = self.tuned.coordinates
            assert coordinates.density_parameters is not None
            density_parameters, self.blocks = self._noncentring.learn(
                engine, coordinates.density_parameters, self.blocks, length
            )
            self.tuned = self.tuned._replace(coordinates=coordinates._replace(density_parameters=density_parameters))
        block = self.blocks[-1]
        d = block.position.shape[2]
        window = Block.newest(self.blocks, length)
        self.blocks = [window]
        usable = past_transient(-window.lp, d, narrowness(block.gradient, d))
        if self.replaces:
            self.source = replacements(usable[:, -block.lp.shape[1] :], block.unstable)
        previous = self.tuned
        usable_of_block = usable[:, -block.lp.shape[1] :]
        fits = block_checks.whitens(previous.coordinates, block, usable_of_block)
        failure_rate = float((block_checks.failed(block) & usable_of_block).mean())
        coordinates = block_checks.fitted_coordinates(self.arguments, self.tuned.coordinates, window, usable)
        self.tuned = self.tuned._replace(coordinates=coordinates)
        gradient_at = None
        if engine is not None:
            gradient_at = partial(engine.gradient_at, density_parameters=coordinates.density_parameters)
        self._curvature = block_checks.curvature(
            self.arguments, coordinates, window, usable, self._steepest, gradient_at
        )
        follows = step_size.follows_curvature(self.arguments)
        shrinks = follows and (failure_rate > THRESHOLDS.failure_rate or self._is_too_wide(window, usable))
        accept = float(block.accept.mean(axis=1).min())
        self.tuned, self._step_share = step_size.adapted(
            self.arguments, self.tuned, self._step_share, accept, shrinks, self._curvature
        )
        step = self.tuned.step_size
        # Not a cap that has just grown back, which is as much but for rounding.
        steady = max(step / previous.step_size, previous.step_size / step) < THRESHOLDS.steady - _ROUNDING
        healthy = failure_rate == 0.0 and np.array_equal(self.source, np.arange(len(self.source)))
        settled = self.done >= self.least * self._stiffness and fits and steady and healthy
        if settled or self.done >= latest_freeze(self.length):
            self.frozen = self.done
            self._last_positions = self.blocks[0].position
            self.blocks = []
            self._noncentring.end()

    def _set_step(self, step: float) -> None:
        self.tuned = step_size.with_step(self.arguments, self.tuned, step, self._curvature)

    def _is_too_wide(self, block: Block, usable: np.ndarray) -> bool:
        """Return whether draws, of which nearly all must be usable, show a bias well above the target."""
        if self.done < self.least or usable.mean() < THRESHOLDS.settled_share or block.position.shape[2] == 0:
            return False
        return too_wide(block.position, block.gradient, self.arguments.target_bias)

    # -- checking ----------------------------------------------------------------------------------------------------

    def _check(self, block: Block) -> None:
        """Check the frozen setting on a block: if the step is too long it shrinks, and the next block checks again."""
        d = block.position.shape[2]
        usable = past_transient(-block.lp, d, narrowness(block.gradient, d))
        failure_rate = float((block_checks.failed(block) & usable).mean())
        draws = Block.newest(self.blocks)
        self.passed = failure_rate <= THRESHOLDS.failure_rate and not self._is_too_wide(draws, usable)
        if not self.passed and step_size.follows_curvature(self.arguments):
            self._set_step(THRESHOLDS.shrink * self.tuned.step_size)
            self.blocks = []

    def _steps_per_draw(self) -> int:
        if self.arguments.steps_per_draw is not None:
            return self.arguments.steps_per_draw
        positions = [block.position for block in self.blocks]
        if sum(position.shape[1] for position in positions) < THRESHOLDS.least_check:
            # After a short warm-up, or where the step has shrunk lately.
            return steps_for_autocorrelation(self._last_positions)
        return steps_for_autocorrelation(np.concatenate(positions, axis=1))


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
            shortest = shortest_block(len(starts))
            training = slice(learnt_from(len(starts), shortest, training_chains(engine.d)))
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
            lp[chains] = chunk.lp + log_det_of(chunk.evaluation, engine.d)
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
        training_count = learnt_from(n, rows, training_chains(engine.d))
        if warmup.blocks:
            training_count = min(training_count, len(warmup.blocks[-1].lp))
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
        warmup.observe(newest, engine.structure)
        earlier_shares = self._shares()
        self.tuned = warmup.update(engine)
        # The chain from which each goes on, where some are stuck; of training chains that follows from their draws.
        source = np.arange(n)
        if warmup.frozen is None and warmup.replaces:
            source = replacements(usable, unstable)
        source[: len(warmup.source)] = warmup.source
        if not np.array_equal(source, np.arange(n)):
            self.ensemble.state = self.ensemble.state[source]
            self.ensemble.evaluation = self.ensemble.evaluation[source]
        self.n_grad = self.n_grad + self._shares() - earlier_shares
        self.ensemble.change_coordinates(engine, old, self.tuned.coordinates)

    def _shares(self) -> np.ndarray:
        """Return each chain's share of the gradients that the schedule has evaluated."""
        assert self.warmup is not None
        each, more = divmod(self.warmup.n_grad, len(self.n_grad))
        return each + (np.arange(len(self.n_grad)) < more)
