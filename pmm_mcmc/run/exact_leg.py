r"""The exact leg: Metropolis-adjusted trajectories that end the approach to the posterior and then make the draws.

A chain is left by warm-up with the small bias of its step.  The leg takes it on from there by Metropolis-adjusted
Langevin trajectories [1]_, whose stationary law is the posterior, with the preconditioner, the non-centring and the
friction :math:`\gamma` that warm-up found: a trajectory lasts :math:`2 / \gamma`.  In a few rounds the step adapts to
the acceptance of all chains, and is frozen.  What is left of the bias then decays as autocorrelations do, and the
approach ends when

- no chain is on its way down from a start far out,
- it is several times as long as the longest autocorrelation, of means and of variances, and
- a test over chains finds no change of any mean or variance between its last two blocks.

.. [1] L. Riou-Durand and J. Vogrinc, "Metropolis Adjusted Langevin Trajectories: a robust alternative to Hamiltonian
   Monte Carlo", arXiv:2202.13230 (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from pmm_mcmc.engines.arguments import MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import Chunk, Engine, at_draw, model_side
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.langevin.methods import ADJUSTED, TRAJECTORIES, Kernel
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.evidence import narrowness, settled, steps_for_autocorrelation
from pmm_mcmc.warmup.pooled import Warming, training_chains
from pmm_mcmc.warmup.standard_errors import largest_t
from pmm_mcmc.warmup.step_size import towards_acceptance

__all__ = ["EXACT_LEG", "Leg", "check_method", "for_trajectories", "mean_and_error", "next_step", "report_of"]

EXACT_LEG = "exact_leg"
_COLUMNS = tuple(f"{change}{of}{se}" for change in ("moved", "drift") for of in ("", "_of_sd") for se in ("", "_se"))


def check_method(arguments: MethodArguments, backend: str, precision: str) -> None:
    """Raise ``ValueError`` where there can be no exact leg."""
    if arguments.kernel.scheme in ADJUSTED:
        raise ValueError(f"exact=True: {arguments.method} is exact already, without a leg; leave exact out")
    if backend == "jax" and precision != "float64":
        raise ValueError(
            f"exact=True with precision={precision!r}: its Metropolis test needs the log density in double precision; "
            "leave one of the two out"
        )


def for_trajectories(tuned: TunedParameters) -> TunedParameters:
    """Return the setting of adjusted trajectories for chains that were tuned for an unadjusted method."""
    span = CALIBRATION.leg_span / tuned.friction
    first = tuned._replace(friction=CALIBRATION.leg_friction * tuned.friction, steps_per_draw=1, halving_cost=math.nan)
    return _with_step(first._replace(expected_bias=0.0), max(tuned.step_size, span / CALIBRATION.leg_steps), span)


def next_step(tuned: TunedParameters, accept: float, rounds: int) -> TunedParameters:
    """Return the setting after a number of rounds of adaptation, the last of them with the acceptance ``accept``."""
    span = _span(tuned)
    return _with_step(tuned, towards_acceptance(tuned.step_size, accept, rounds, CALIBRATION.leg_acceptance), span)


def _span(tuned: TunedParameters) -> float:
    """Return the time of a trajectory from the friction within it."""
    return CALIBRATION.leg_span * CALIBRATION.leg_friction / tuned.friction


def _with_step(tuned: TunedParameters, step: float, span: float) -> TunedParameters:
    # Near the edge of stability variances hardly change: for a single step of 2 it is at curvature 1.6, of 1.5 at 2.4.
    step = min(step, 0.75 * span)
    return tuned._replace(step_size=step, K=min(round(span / step), CALIBRATION.leg_steps))


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means over the first axis, and their standard errors."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


@dataclass
class Leg:
    """An exact leg in progress: all that is needed to continue it, bit for bit.

    Attributes
    ----------
    tuned
        The present setting: ``K`` steps of ``step_size`` are a trajectory.
    length
        Trajectories of each chain before the draws, at most.
    steps_per_draw
        The given number, or None.
    start : (chain, d)
        The model's positions where the leg began.
    rows
        Length of the next block.
    done, rounds, frozen
        Trajectories so far; rounds of adaptation so far; trajectories at which the step was frozen.
    latest, before : (chain, 2, d)
        Means of each chain in the last block and the one before it, of the distance from the mean start and its square.
    lag
        Trajectories after which the largest autocorrelation is below one half, in the last block.
    finished, ended
        Whether the draws follow; whether by then the chains had forgotten their start.
    acceptance, n_grad
        Mean acceptance since the step was frozen, and gradients of each chain in the whole leg.
    """

    tuned: TunedParameters
    length: int
    steps_per_draw: int | None
    start: np.ndarray
    rows: int
    done: int = 0
    rounds: int = 0
    frozen: int = 0
    latest: np.ndarray = field(default_factory=lambda: np.empty((0, 2, 0)))
    before: np.ndarray = field(default_factory=lambda: np.empty((0, 2, 0)))
    lag: int = 0
    finished: bool = False
    ended: bool = False
    acceptance: float = math.nan
    n_grad: float = 0.0

    @classmethod
    def begin(cls, warming: Warming, kernel: Kernel, length: int, steps_per_draw: int | None) -> Leg:
        """Turn the chains of a finished warm-up into those of a leg, at their last draws, for no gradients."""
        ensemble, tuned = warming.ensemble, warming.tuned
        ensemble.state = at_draw(ensemble.state, kernel, TRAJECTORIES)
        d = ensemble.state.shape[1] // 4
        start, _ = model_side(tuned.coordinates.place(ensemble.state[:, :d]), ensemble.gradient)
        rows = max(2, -(-CALIBRATION.leg_round // len(start)))
        return cls(for_trajectories(tuned), length, steps_per_draw, start.copy(), rows)

    def block(
        self,
        warming: Warming,
        engine: Engine,
        batch: int | None,
        look: Callable[[slice, Chunk], None],
        processes: Processes,
    ) -> None:
        """Advance all chains over a block, and decide what follows; arguments as of :meth:`Warming.block`."""
        mine, spent = warming.part(processes.own), warming.n_grad[processes.own].copy()
        chains, d = len(spent), self.start.shape[1]
        accept, means, training = np.empty(chains), np.empty((chains, 2, d)), []
        lp, narrow = np.empty((chains, self.rows)), np.empty(chains)
        centre, frozen = self.start.mean(axis=0), self.rounds == CALIBRATION.leg_rounds
        for which, chunk in mine.advance_in_batches(engine, self.tuned, self.rows, batch):
            away = chunk.model_position - centre
            accept[which], lp[which] = chunk.accept.mean(axis=1), chunk.sampled_lp
            narrow[which] = narrowness(chunk.gradient, d)
            means[which, 0], means[which, 1] = away.mean(axis=1), (away**2).mean(axis=1)
            kept = max(training_chains(d) - processes.own.start - which.start, 0)
            training.append(np.concatenate([away[:kept], away[:kept] ** 2], axis=-1))
            spent[which] += chunk.n_grad.sum(axis=1)
            look(which, chunk)
        ensemble, before = warming.ensemble, warming.n_grad
        ensemble.transition = mine.transition
        ensemble.state, ensemble.gradient, warming.n_grad, accept, means, lp, narrow = processes.join(
            mine.state, mine.gradient, spent, accept, means, lp, narrow
        )
        (seen,) = processes.join(np.concatenate(training))
        self.n_grad += float((warming.n_grad - before).mean())
        self.done += self.rows
        if frozen:
            self._judge(means, float(accept.mean()), seen, settled(-lp, d, narrow))
        else:
            self._adapt(float(accept.mean()))

    def _adapt(self, accept: float) -> None:
        self.rounds += 1
        self.tuned = next_step(self.tuned, accept, self.rounds)
        if self.rounds == CALIBRATION.leg_rounds:
            self.frozen, self.rows = self.done, CALIBRATION.leg_block

    def _judge(self, means: np.ndarray, accept: float, seen: np.ndarray, usable: np.ndarray) -> None:
        since, old = self.done - self.frozen, self.done - self.frozen - self.rows
        self.acceptance = accept if old == 0 else (old * self.acceptance + self.rows * accept) / since
        self.before, self.latest = self.latest, means
        self.lag = steps_for_autocorrelation(seen)
        enough = seen.shape[0] * seen.shape[1] >= 2 * CALIBRATION.leg_round  # for autocorrelations beyond their noise
        if self.tuned.K == 1 and self.lag > 1 and enough:
            # Acceptance does not see directions that a single long step turns about: two steps see to them.
            half = 0.5 * _span(self.tuned)
            self.tuned, self.frozen = _with_step(self.tuned, half, 2.0 * half), self.done
            self.latest, self.before = self.latest[:0], self.latest[:0]
            self.rows = CALIBRATION.leg_block
            self.finished = self.done + self.rows > self.length
            return
        known = self.lag <= max(1, self.rows // 8)  # a longer one is not known from a block of this length
        forgotten = known and since >= CALIBRATION.leg_lags * self.lag
        arrived = usable[:, -max(1, self.rows // 4) :].any(axis=1).all()
        self.ended = bool(forgotten and arrived and len(self.before) and not self._drifts())
        self.rows = max(CALIBRATION.leg_block, math.ceil(1.5 * self.rows))
        self.finished = self.ended or self.done + self.rows > self.length
        if self.finished:
            of_means = seen[..., : self.start.shape[1]]  # as for other methods: the approach alone looks at squares
            steps = self.steps_per_draw or steps_for_autocorrelation(of_means)
            self.tuned = self.tuned._replace(steps_per_draw=steps)

    def _drifts(self) -> bool:
        """Return whether the means over chains changed between the last two blocks by more than chance."""
        change, error = mean_and_error(self.latest - self.before)
        limit = largest_t(change.size, len(self.latest) - 1)
        return bool((np.abs(change) > limit * error).any())


def report_of(names: Sequence[str], leg: Leg | None = None) -> xr.Dataset:
    """Return the group of a result: how far each mean and standard deviation moved, in posterior sds.

    ``moved`` is the change from the start of the leg to its last block before the draws, ``drift`` that between the
    last two blocks.  Without a leg the columns are NaN, as before its end.
    """
    columns = {name: np.full(len(names), np.nan) for name in _COLUMNS}
    numbers = (0, math.nan, math.nan, math.nan, 0, 0, 0)
    if leg is not None:
        away = leg.start - leg.start.mean(axis=0)
        for name, earlier in (("moved", np.stack([away, away**2], axis=1)), ("drift", leg.before)):
            if len(earlier) and len(leg.latest):
                columns |= _changes(leg.latest, earlier, name)
        tuned = leg.tuned
        numbers = (leg.done, leg.n_grad, leg.acceptance, tuned.step_size, tuned.K, leg.lag, int(leg.ended))
    which = ("transitions", "gradients", "acceptance", "step_size", "K", "lag", "ended")
    variables = {name: ("coordinate", values) for name, values in columns.items()}
    return xr.Dataset(variables | dict(zip(which, map(np.asarray, numbers), strict=True)), {"coordinate": list(names)})


def _changes(latest: np.ndarray, earlier: np.ndarray, name: str) -> dict[str, np.ndarray]:
    variance = latest[:, 1].mean(axis=0) - latest[:, 0].mean(axis=0) ** 2
    sd = np.sqrt(np.where(variance > 0.0, variance, np.nan))
    (mean, square), (mean_se, square_se) = mean_and_error(latest - earlier)
    parts = mean / sd, mean_se / sd, square / (2.0 * sd**2), square_se / (2.0 * sd**2)
    return dict(zip((c for c in _COLUMNS if c.startswith(name)), parts, strict=True))
