"""The tuning of a ladder of temperatures: annealing from the reference to the posterior, then rounds of tempering.

Annealing raises the inverse temperature ``beta`` from 0 to 1.  By each step the effective number of chains, by their
importance weights, falls to a half; they are resampled, and moves at the new temperature fit a setting to it.
Annealing finds modes and where they lie; a ladder that starts there, from a mixture of Gaussians, has less of a way to
go than one that starts from the prior.

A round is a number of scans, each of moves at every level and swaps between neighbours; the next round has twice as
many.  After a round the preconditioner of every level is fitted to its draws, and the temperatures are placed so that
all neighbours swap equally often.  The *barrier* is the sum of the rejection rates of all pairs of neighbours, which
hardly depends on how many there are.  Tuning ends when it is steady.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates, best_coordinates, diagonal_scale
from pmm_mcmc.diagnostics.mode_search import OtherModes
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.tempering.ladder import SEARCHES, Ladder, Scan
from pmm_mcmc.tempering.modes import fitted_mixture, search_modes_of_ladder
from pmm_mcmc.tempering.path import (
    MOST_TRANSITIONS,
    Moved,
    Points,
    TemperingPath,
    barriers,
    equal_rejection,
    expected_rejections,
    pairs_for,
    step_of_ess,
)
from pmm_mcmc.warmup.step_size import adjusted_friction, step_for_acceptance
from pmm_mcmc.warmup.thresholds import THRESHOLDS

_ANNEALING = 3  # what random numbers are for: a part of their keys
# Effective share of the chains after a step of annealing.
_SHARE = 0.5
# Steps of annealing at most.
_MOST_STAGES = 400
# Moves after each step of annealing.
_MOVES = 6
# Moves at the end of annealing, where a mixture is fitted.
_LAST_MOVES = 16
# Draws of each step from which ascents may start.
_ASCENT_STARTS = 128
# Chains that start at a maximum that no other chain is at.
_AROUND = 32
# Draws of the reference among the candidates of a search for modes.
_PRIOR_DRAWS = 128
# Scans of the first round.
_FIRST = 16
# Relative change of the barrier below which it is steady.
_STEADY = 0.1
# Blocks of a round, after each of which the step sizes adapt.
_BLOCKS = 4
# Draws that a level is fitted to, about.
_FITTED = 4000
# Scans of a round after which draws between reference and posterior are kept, from which ascents start.
_INTERMEDIATE_SCANS = 8
# Moves between two swaps, at most.
_MOST_MOVES = 16


class NoLadder(ValueError):
    """There is no ladder for these arguments."""


@dataclass
class Stage:
    """An inverse temperature of annealing, the setting of its moves, and the log ratios of the chains there."""

    beta: float
    setting: TunedParameters
    log_ratio: np.ndarray


# Yields after each step; returns the steps and the chains at the target.
Annealed = Generator[None, None, tuple[list[Stage], Points]]


@dataclass(frozen=True)
class LadderOptions:
    """What the user fixes of a ladder: its inverse temperatures, its number of pairs, that it starts at the prior."""

    betas: np.ndarray | None
    pairs: int | None
    from_prior: bool


class Round(NamedTuple):
    """What the scans of a round leave: log ratios before and after the moves ``(scan, replica, level)``, and draws."""

    earlier_log_ratio: np.ndarray
    log_ratio: np.ndarray
    swap_rate: np.ndarray  # (pair,): mean probability that neighbours swap
    draws: list[Points]  # (replica, level, ...) after each of some later scans


class Tuner:
    """Tuning of a ladder for ``chains`` chains in at most ``tune`` moves of each.

    ``spent`` are the gradients of all chains so far, ``transition`` is the number of moves.
    """

    def __init__(
        self, path: TemperingPath, arguments: MethodArguments, options: LadderOptions, chains: int, tune: int,
        key: np.ndarray, map_levels: Callable[..., list[Moved]],
    ):  # fmt: skip
        self.path = path
        self.arguments = arguments
        self.options = options
        self.chains = chains
        self.tune = tune
        self.key = key
        self.barrier = math.nan
        self._map_levels = map_levels
        self.keys = np.random.default_rng([*key.tolist(), 0]).integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        self.transition = 0
        self.spent = 0.0
        self.tuned = TunedParameters(math.nan, 1, math.nan, Coordinates(np.zeros(path.d), np.ones(path.d)), 1)
        self._reference_draws = 0  # how often the reference was drawn from: a part of the key
        self._intermediate: list[np.ndarray] = [np.empty((0, path.d))]  # positions before the target, for ascents
        self._other_modes = OtherModes()
        self._move_time = THRESHOLDS.ladder_span / (arguments.friction or 1.0)

    def run(self, start: np.ndarray | None) -> Iterator[Ladder | None]:
        """Tune: yield None after each step, and the tuned ladder at the end.

        Where there is no prior, the reference is at first a Gaussian that covers ``start`` ``(n, d)``.
        """
        stages, points = yield from self._annealed(start)
        ladder, last_round = yield from self._temper(stages, points)
        self._search_modes(ladder, last_round.draws)
        ladder.freeze(last_round.log_ratio.reshape(-1, ladder.pairs + 1))
        yield ladder

    # -- annealing ---------------------------------------------------------------------------------------------------

    def _annealed(self, start: np.ndarray | None) -> Annealed:
        """Return the steps of annealing and its chains at the target, from the reference that the ladder will have."""
        if not self.path.has_prior:
            assert start is not None
            self.path.mixture = GaussianMixture.of(start.mean(axis=0), np.maximum(3.0 * start.std(axis=0), 1.0))
        if self.options.from_prior:
            stages, draws = yield from self._anneal(_MOVES)
            return stages, draws[-1]
        stages, draws = yield from self._anneal(_LAST_MOVES)
        return (yield from self._from_mixture(stages, draws))

    def _from_mixture(self, stages: list[Stage], draws: list[Points]) -> Annealed:
        """Fit a mixture to the modes that annealing has met or ascents find, and anneal again, from there.

        The prior remains the reference where the mixture leaves more than half of the barrier; or more than all of it,
        if an ascent found a mode.
        """
        setting = stages[-1].setting
        rng = np.random.default_rng([*self.key.tolist(), SEARCHES, 0])
        by_move = Points.joined(draws, np.stack)
        from_reference = self._draw(_PRIOR_DRAWS).position
        self._other_modes, maxima, search_gradients = search_modes_of_ladder(
            self.path, setting, np.concatenate(self._intermediate), by_move, from_reference, int(self.spent), rng
        )
        unmet = [self._around(maximum, setting) for maximum in maxima]
        first_reference = self.path.mixture
        self.path.mixture, fit_gradients = fitted_mixture(self.path, setting, Points.joined(draws), unmet)
        self.spent += search_gradients + fit_gradients
        try:
            again, new_draws = yield from self._anneal(_MOVES, len(stages) if self.path.has_prior else _MOST_STAGES)
            nearer = _barrier_of(again) <= (1.0 if unmet else 0.5) * _barrier_of(stages)
        except NoLadder:
            if not self.path.has_prior:
                raise
            nearer = False
        if self.path.has_prior and not nearer:
            self.path.mixture = first_reference
            return stages, draws[-1]
        # A mode that the mixture does not cover stays in sight: no restart arrives in it.
        second_half = self.path.evaluate(draws[-1].position[self.chains // 2 :])
        self.spent += len(second_half.position)
        return again, Points.joined([new_draws[-1].take(slice(0, self.chains // 2)), second_half])

    def _around(self, maximum: np.ndarray, setting: TunedParameters) -> Points:
        """Return draws of the posterior around a maximum."""
        points = self.path.evaluate(np.tile(maximum, (min(_AROUND, self.chains), 1)))
        self.spent += len(points.position)
        centred = setting._replace(coordinates=setting.coordinates._replace(centre=maximum))
        draws, adapted = self._equilibrate(points, centred, _LAST_MOVES)  # steps of other modes may be far too long
        draws, _ = self._equilibrate(draws[-1], adapted, _LAST_MOVES)
        return Points.joined(draws)

    def _draw(self, n: int) -> Points:
        self._reference_draws += 1
        self.spent += n
        return self.path.draw((*self.key.tolist(), _ANNEALING, self._reference_draws), n)

    def _anneal(
        self, last_moves: int, limit: int = _MOST_STAGES
    ) -> Generator[None, None, tuple[list[Stage], list[Points]]]:
        """Anneal once in at most ``limit`` steps; return them and the draws of the later moves at the target."""
        points = self._draw(self.chains)
        outside = int((~np.isfinite(points.log_ratio)).sum())
        if outside:
            what = "the prior" if self.path.mixture is None else "the Gaussian reference"
            remedy = (
                "give initvals= nearer to the posterior" if not self.path.has_prior
                else "bound the prior to where the likelihood is positive, or take reference='gaussian'"
            )  # fmt: skip
            raise NoLadder(
                f"ladder: the log likelihood is not finite at {outside} of {self.chains} draws of {what}; {remedy}"
            )
        rng = np.random.default_rng([*self.key.tolist(), _ANNEALING, 0, self._reference_draws])
        setting = self._fitted(points.position, points.slope(0.0), 0.0, 0.5)
        stages = [Stage(0.0, setting, points.log_ratio.copy())]
        beta = 0.0
        while beta < 1.0:
            step = step_of_ess(points.log_ratio, 1.0 - beta, _SHARE)
            if len(stages) > limit:
                raise NoLadder(
                    f"ladder: after {len(stages)} steps of annealing the temperature is still {beta:.2g}, since the "
                    "posterior is too far from the reference; narrow the prior, or take reference='gaussian' with "
                    "initvals= near the posterior"
                )
            weights = np.exp(step * (points.log_ratio - points.log_ratio.max()))
            ticks = (rng.random() + np.arange(self.chains)) / self.chains
            source = np.searchsorted(np.cumsum(weights / weights.sum()), ticks).clip(0, self.chains - 1)
            points = points.take(source)
            beta = min(1.0, beta + step)
            beta = 1.0 if 1.0 - beta < 1e-12 else beta
            setting = self._fitted(points.position, points.slope(beta), beta, setting.step_size, diagonal=True)
            draws, setting = self._equilibrate(points, setting, last_moves if beta == 1.0 else _MOVES)
            points = draws[-1]
            stages.append(Stage(beta, setting, points.log_ratio.copy()))
            if beta < 1.0:
                self._intermediate.append(points.position[:_ASCENT_STARTS])
            yield
        return stages, draws

    def _equilibrate(
        self, points: Points, setting: TunedParameters, moves: int
    ) -> tuple[list[Points], TunedParameters]:
        """Make so many moves at one temperature; return the chains after each later one, and the adapted setting.

        Steps adapt after each move; halfway the preconditioner is fitted again.
        """
        beta = float(setting.coordinates.density_parameters[0])  # type: ignore[index]
        history = []
        for i in range(moves):
            moved = self.path.move(setting, points, self.keys[: len(points.position)], self.transition, 1)
            self.transition += 1
            self.spent += float(moved.n_grad.sum())
            points = moved.points
            history.append(points)
            step = step_for_acceptance(setting.step_size, float(moved.accept.mean()))
            setting = self._with_step(setting, step)
            if i == moves // 2:
                newest = Points.joined(history[1:])
                setting = self._fitted(newest.position, newest.slope(beta), beta, setting.step_size)
        return history[moves // 4 :], setting

    # -- rounds of tempering -----------------------------------------------------------------------------------------

    def _temper(self, stages: list[Stage], points: Points) -> Generator[None, None, tuple[Ladder, Round]]:
        """Return the ladder after rounds of tempering, and the last of these.

        It starts from the ``stages`` of annealing and its chains at the target, ``points``.
        """
        betas, rejections = _rejections_of(stages)
        order = np.arange(self.chains)
        ladder = Ladder(
            self.key, betas, [stage.setting for stage in stages], self.path.mixture, *points, self.keys,
            order[:, None], transition=self.transition,
        )  # fmt: skip
        self.barrier = float(barriers(rejections).sum())
        self._place(ladder, rejections, order)
        scans = _FIRST
        steady = 0
        while True:
            left = self.tune - ladder.transition
            moves = max(setting.steps_per_draw for setting in ladder.settings[1:])
            enough = 1 if pairs_for(self.barrier) == pairs_for(0.0) else 2  # no ladder has fewer pairs
            last = left < 3 * scans * moves or steady >= enough
            newest = yield from self._scanned(ladder, scans)
            self._set_moves(ladder, newest)
            rejections = 1.0 - newest.swap_rate
            previous = self.barrier
            self.barrier = float(barriers(rejections).sum())
            change = abs(self.barrier - previous)
            steady = steady + 1 if scans > _FIRST and change <= _STEADY * max(self.barrier, 0.5) else 0
            if last:
                return ladder, newest
            for k, setting in enumerate(ladder.settings[1:], 1):
                beta = float(ladder.betas[k])
                of_level = Points.joined([points.take((slice(None), k)) for points in newest.draws])
                fitted = self._fitted(of_level.position, of_level.slope(beta), beta, setting.step_size)
                ladder.settings[k] = fitted._replace(steps_per_draw=setting.steps_per_draw)
            scans *= 2
            # The chains by level, from the reference on, and then those of no replica.
            order = np.concatenate([ladder.chain_at.T.ravel(), np.setdiff1d(np.arange(self.chains), ladder.chain_at)])
            self._place(ladder, rejections, order)

    def _pairs(self) -> int:
        """Return the number of pairs that the barrier asks for and the chains allow."""
        if self.options.pairs is not None:
            return self.options.pairs
        wanted = pairs_for(self.barrier)
        limit = self.chains // 2 - 1
        if limit < math.ceil(1.2 * self.barrier):
            raise NoLadder(
                f"chains={self.chains}: is too few for two replicas of a ladder: the barrier between reference and "
                f"posterior is about {self.barrier:.1f}, which asks for {wanted + 1} temperature levels; "
                f"take chains={2 * (wanted + 1)} or more"
            )
        return min(wanted, limit)

    def _place(self, ladder: Ladder, rejections: np.ndarray, order: np.ndarray) -> None:
        """Put the chains on the ladder that equal rejections ask for; each level takes the setting of the nearest one.

        The distance of levels is the barrier between them.
        """
        betas = ladder.betas
        new_betas = self.options.betas
        if new_betas is None:
            new_betas = equal_rejection(betas, rejections, self._pairs())
        barrier = np.concatenate([[0.0], np.cumsum(barriers(rejections))]) + 1e-6 * betas
        nearest = [int(np.abs(np.interp(beta, betas, barrier) - barrier[1:]).argmin()) + 1 for beta in new_betas]
        settings = [ladder.settings[i] for i in nearest]
        for k, beta in enumerate(new_betas):
            parameters = self.path.parameters_at(float(beta))
            coordinates = settings[k].coordinates._replace(density_parameters=parameters)
            settings[k] = settings[k]._replace(coordinates=coordinates)
        ladder.place(new_betas, settings, self.chains // len(new_betas), order)
        ladder.n_grad = np.full(ladder.replicas, self.spent / ladder.replicas)

    def _scanned(self, ladder: Ladder, scans: int) -> Generator[None, None, Round]:
        """Make so many scans, of which blocks adapt the steps, and yield after each; return what they leave."""
        replicas = ladder.replicas
        levels = ladder.pairs + 1
        fitting_scans = max(scans // 2, min(scans, _FITTED // replicas))  # those at the end, whose draws are kept
        log_ratio = np.empty((scans, replicas, levels))
        earlier_log_ratio = np.empty((scans, replicas, levels))
        swap_rate = np.zeros(levels - 1)
        draws: list[Points] = []
        accept: list[np.ndarray] = []
        for i in range(scans):
            scan: Scan = ladder.advance(self.path, self._map_levels)
            log_ratio[i] = scan.log_ratio
            earlier_log_ratio[i] = scan.before
            swap_rate += scan.swaps.mean(axis=0) / scans
            ladder.n_grad += scan.n_grad.sum(axis=1)
            accept.append(scan.accept.mean(axis=0))
            if i >= scans - fitting_scans and i % max(1, fitting_scans * replicas // _FITTED) == 0:
                draws.append(Points(ladder.position[ladder.chain_at], ladder.evaluation[ladder.chain_at]))
            if self.path.mixture is None and (i + 1) % max(1, scans // _INTERMEDIATE_SCANS) == 0:
                self._intermediate.append(ladder.position[ladder.chain_at[:, 1:-1]].reshape(-1, self.path.d))
            if (i + 1) % max(1, scans // _BLOCKS) == 0:
                for k, rate in enumerate(np.mean(accept, axis=0)[1:].tolist(), 1):
                    step = step_for_acceptance(ladder.settings[k].step_size, rate)
                    ladder.settings[k] = self._with_step(ladder.settings[k], step)
                accept = []
            self.transition = ladder.transition
            self.spent = float(ladder.n_grad.sum())
            yield
        return Round(earlier_log_ratio, log_ratio, swap_rate, draws)

    def _set_moves(self, ladder: Ladder, scans: Round) -> None:
        """Set the moves of each level between two swaps: fewer where swaps, too, make it forget its log ratio."""
        for k, setting in enumerate(ladder.settings[1:], 1):
            rejection = float(1.0 - scans.swap_rate[k - 1 : k + 1].mean())
            limit = max(1, math.ceil(_MOST_MOVES * min(1.0, 2.0 * rejection) ** 2))
            ends = scans.earlier_log_ratio[:, :, k], scans.log_ratio[:, :, k]
            moves = _moves_between_swaps(*ends, setting.steps_per_draw)
            ladder.settings[k] = setting._replace(steps_per_draw=min(limit, moves))

    def _search_modes(self, ladder: Ladder, last_draws: list[Points]) -> None:
        """Search for modes that no draw of the last round at the posterior is in, where the reference is the prior."""
        if self.path.mixture is not None:
            ladder.other_modes = self._other_modes
            return
        rng = np.random.default_rng([*self.key.tolist(), _ANNEALING, self.path.d])
        draws = Points.joined([points.take((slice(None), -1)) for points in last_draws], np.stack)
        prior = self._draw(_PRIOR_DRAWS).position
        n_grad = int(ladder.n_grad.sum())
        intermediate = np.concatenate(self._intermediate)
        modes, _, gradients = search_modes_of_ladder(self.path, ladder.tuned, intermediate, draws, prior, n_grad, rng)
        met_before = self._other_modes.mass > 0.0 and not modes.mass > 0.0
        ladder.other_modes = self._other_modes if met_before else modes
        ladder.n_grad += (gradients + _PRIOR_DRAWS) / ladder.replicas

    # -- settings ----------------------------------------------------------------------------------------------------

    def _fitted(
        self, position: np.ndarray, slope: np.ndarray, beta: float, step: float, diagonal: bool = False
    ) -> TunedParameters:
        """Return a setting fitted to positions and gradients ``(n, d)`` of chains at one temperature."""
        if self.arguments.scaling is not None:
            coordinates = Coordinates(position.mean(axis=0), np.array(self.arguments.scaling))
        elif diagonal:
            coordinates = Coordinates(*diagonal_scale(position, slope, np.ones(position.shape[1])))
        else:
            coordinates = best_coordinates(position, slope)
        friction = adjusted_friction(step) * (self.arguments.friction or 1.0)
        coordinates = coordinates._replace(density_parameters=self.path.parameters_at(beta))
        return self._with_step(TunedParameters(step, 1, friction, coordinates, 1), step)

    def _with_step(self, setting: TunedParameters, step: float) -> TunedParameters:
        """Return a setting with another step, and as many transitions in a move as take its time."""
        step = min(step, self._move_time)
        self.tuned = setting._replace(step_size=step, K=max(1, min(MOST_TRANSITIONS, round(self._move_time / step))))
        return self.tuned


def _rejections_of(stages: list[Stage]) -> tuple[np.ndarray, np.ndarray]:
    """Return the temperatures of annealing, and the rejections of swaps between neighbours that its steps show."""
    betas = np.array([stage.beta for stage in stages])
    return betas, expected_rejections(betas, [stage.log_ratio[:512] for stage in stages])


def _barrier_of(stages: list[Stage]) -> float:
    """Return the barrier between reference and target, as annealing has met it."""
    return float(barriers(_rejections_of(stages)[1]).sum())


def _moves_between_swaps(start: np.ndarray, end: np.ndarray, moves: int) -> int:
    """Return the number of moves after which log ratios correlate by less than one half.

    ``start`` and ``end`` ``(scan, replica)`` are the log ratios at both ends of so many ``moves``.
    """
    x = start[1:].ravel()
    y = end[1:].ravel()
    x = x - x.mean()
    y = y - y.mean()
    scale = math.sqrt(float((x**2).sum() * (y**2).sum()))
    correlation = float((x * y).sum()) / scale if scale > 0.0 else 0.0
    if not 0.0 < correlation < 1.0:
        return 1 if correlation <= 0.0 else _MOST_MOVES
    return max(1, min(_MOST_MOVES, math.ceil(moves * math.log(0.5) / math.log(correlation))))
