r"""Equilibration: how chains come from the warm-up, whose draws have the small bias of their step, to the posterior.

Warm-up leaves chains of an unadjusted method.  Equilibration takes them on by generalised HMC [1]_, whose stationary
law is the posterior, with the preconditioner and the non-centring that warm-up fitted, and with a step and a friction
that follow from its own (:func:`adjusted_setting`).  The first blocks adapt the step to the acceptance of the chain
that accepts least: a chain that stands still where the posterior is steep shortens it.  The step is then fixed, and
equilibration ends when

- no chain is on its way down from a start far out,
- it is several times as long as the longest autocorrelation, of means and of variances, and
- a test over chains finds no change of any mean or variance between its last two blocks.

.. [1] A. M. Horowitz, "A generalized guided Monte Carlo algorithm", Physics Letters B 268 (1991) 247-252, with the
   acceptance of R. M. Neal (:func:`pmm_mcmc.langevin.transitions.advanced_persistent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, TunedParameters, in_model_coordinates
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import GHMC, METHODS, OVERDAMPED, Kernel
from pmm_mcmc.warmup.stein_identity import largest_t, steps_for_autocorrelation
from pmm_mcmc.warmup.step_size import adjusted_friction, step_for_acceptance, with_adjusted_step
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import Warming, training_chains

EQUILIBRATION = "equilibration"


def adjusted_setting(tuned: TunedParameters, kernel: Kernel, step: float | None = None) -> TunedParameters:
    """Return the setting of adjusted draws, with a step if one is fixed, for chains tuned for an unadjusted method."""
    if step is None:
        step = tuned.step_size
        if kernel.dynamics == OVERDAMPED:
            step = math.sqrt(2.0 * step)  # a step of the position alone has the noise of such a step of the velocity
        step = min(THRESHOLDS.adjusted_step * step, METHODS["GHMC"].largest_step)
    return tuned._replace(step_size=step, K=1, friction=adjusted_friction(step) * tuned.friction, steps_per_draw=1)


def least_acceptance(accept: np.ndarray) -> float:
    """Return the acceptance rate of the chain that accepts least: of more than 20 chains, their 5 % quantile."""
    return float(np.quantile(accept, 0.05, method="lower"))


@dataclass
class Equilibration:
    """An equilibration in progress: all that is needed to continue it, bit for bit."""

    tuned: TunedParameters  # the present setting
    length: int  # transitions of each chain before the draws, at most
    steps_per_draw: int | None  # that the user fixed
    centre: np.ndarray  # (d,): the mean of the model's positions where equilibration began, for accuracy
    rows: int  # length of the next block
    done: int = 0  # transitions so far
    rounds: int = 0  # rounds of adaptation so far
    fixed: int | None = None  # transitions at which the step was fixed
    # (chain, 2, d): means of each chain in the last block, of the distance from the centre and its square; and in the
    # block before it.
    latest: np.ndarray = field(default_factory=lambda: np.empty((0, 2, 0)))
    previous: np.ndarray = field(default_factory=lambda: np.empty((0, 2, 0)))
    # Distances from the centre in each block since the step was fixed, of the training chains.
    blocks: list[np.ndarray] = field(default_factory=list)
    lag: int = 0  # transitions after which the largest autocorrelation is below one half
    ended: bool = False  # whether the chains have forgotten their start
    finished: bool = False  # whether it is over: they have, or ``length`` is reached
    acceptance: np.ndarray = field(default_factory=lambda: np.full(1, np.nan))  # (chain,): rate in the last block
    n_grad: float = 0.0  # of each chain in the whole equilibration

    @classmethod
    def begin(cls, warming: Warming, kernel: Kernel, arguments: MethodArguments, length: int) -> Equilibration:
        """Turn the chains of a finished warm-up into those of an equilibration, at their last draws, at no cost."""
        ensemble = warming.ensemble
        ensemble.rest_at_draws(kernel, GHMC)
        d = ensemble.state.shape[1] // 4
        start, _ = in_model_coordinates(warming.tuned.coordinates.place(ensemble.state[:, :d]), ensemble.evaluation)
        tuned = adjusted_setting(warming.tuned, kernel)
        # Of more than 16 chains as many transitions as 16 make.
        rows = max(2, min(THRESHOLDS.adaptation_block, -(-16 * THRESHOLDS.adaptation_block // len(start))))
        return cls(tuned, length, arguments.steps_per_draw, start.mean(axis=0), min(rows, length))

    def block(
        self,
        warming: Warming,
        engine: Engine,
        batch: int | None,
        look: Callable[[slice, Chunk], None],
        processes: Processes,
    ) -> None:
        """Advance all chains over a block, and decide what follows; arguments as of :meth:`Warming.block`."""
        d = len(self.centre)
        accept: list[np.ndarray] = []
        means: list[np.ndarray] = []
        training: list[np.ndarray] = []

        def observe(chains: slice, chunk: Chunk) -> None:
            distances = chunk.model_position - self.centre
            accept.append(chunk.accept.mean(axis=1))
            means.append(np.stack([distances.mean(axis=1), (distances**2).mean(axis=1)], axis=1))
            training_rows = max(training_chains(d) - processes.chains.start - chains.start, 0)
            training.append(distances[:training_rows].copy())
            look(chains, chunk)

        earlier = warming.n_grad
        usable = warming.advance(engine, self.tuned, self.rows, batch, observe, processes)
        self.acceptance, all_means = processes.join(np.concatenate(accept), np.concatenate(means))
        (distances,) = processes.join(np.concatenate(training))
        self.n_grad += float((warming.n_grad - earlier).mean())
        self.done += self.rows
        if not self._step_changed():
            self._check(all_means, distances, usable)
        self.finished = self.ended or self.done >= self.length
        self.rows = min(self.rows, self.length - self.done)
        if self.finished:
            self._finish()

    def _step_changed(self) -> bool:
        """Adapt the step to the last block; return whether it changed, so that equilibration begins anew."""
        if self.rounds >= THRESHOLDS.most_rounds:
            return False
        step = step_for_acceptance(self.tuned.step_size, least_acceptance(self.acceptance))
        change = step / self.tuned.step_size
        limit = THRESHOLDS.fixed_step if self.fixed is None else THRESHOLDS.most_shortening
        if limit < change < 1.0 / limit:
            return False
        self.rounds += 1
        self.tuned = with_adjusted_step(self.tuned, step)
        self.fixed = None
        self.blocks = []
        self.latest = self.latest[:0]
        return True

    def _check(self, means: np.ndarray, distances: np.ndarray, usable: np.ndarray) -> None:
        """Decide whether the chains have forgotten their start; later blocks are longer."""
        if self.fixed is None:
            self.fixed = self.done - self.rows
        self.previous = self.latest
        self.latest = means
        self.blocks.append(distances)
        self.lag = steps_for_autocorrelation(np.concatenate(self.blocks, axis=1))
        since = self.done - self.fixed
        resolved = self.lag <= max(1, since // 8)  # so few transitions do not show a longer one
        forgotten = resolved and since >= THRESHOLDS.forgetting_lags * self.lag
        arrived = bool(usable[:, -max(1, self.rows // 4) :].any(axis=1).all())
        self.ended = bool(forgotten and arrived and len(self.previous) and not self._drifts())
        if len(self.previous):
            self.rows = math.ceil(1.5 * self.rows)

    def _drifts(self) -> bool:
        """Return whether the means over chains changed between the last two blocks by more than chance."""
        if len(self.latest) == 1:
            return False
        change = self.latest - self.previous
        mean = change.mean(axis=0)
        error = change.std(axis=0, ddof=1) / np.sqrt(len(change))
        return bool((np.abs(mean) > largest_t(mean.size, len(change) - 1) * error).any())

    def _finish(self) -> None:
        """Choose the number of transitions for a draw."""
        steps = self.steps_per_draw
        if steps is None:
            steps = self.lag if self.ended else 1  # a chain that stands still gains nothing from longer draws
        self.tuned = self.tuned._replace(steps_per_draw=steps)
        self.blocks = []


def report_of(equilibration: Equilibration | None, chains: int) -> xr.Dataset:
    """Return the group of a result that says how equilibration ended, and the setting of the draws.

    While there is none, numbers are NaN or 0.
    """
    of_chains: dict[str, Any] = {"step_size": math.nan, "friction": math.nan, "steps_per_draw": 0}
    acceptance: Any = math.nan
    numbers: dict[str, Any] = {"transitions": 0, "gradients": math.nan, "lag": 0, "ended": 0}
    if equilibration is not None:
        of_chains = {name: getattr(equilibration.tuned, name) for name in of_chains}
        acceptance = equilibration.acceptance
        values = (equilibration.done, equilibration.n_grad, equilibration.lag, int(equilibration.ended))
        numbers = dict(zip(numbers, values, strict=True))
    of_chains["acceptance"] = acceptance
    variables: dict[str, Any] = {name: ("chain", np.full(chains, value)) for name, value in of_chains.items()}
    return xr.Dataset(variables | {name: ((), np.asarray(value)) for name, value in numbers.items()})
