"""The tuning of a ladder of temperatures: annealing from the reference to the posterior, then rounds of tempering.

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

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.tempering.annealing import ANNEALING, PRIOR_DRAWS, Annealer, NoLadder, Stage, rejections_of
from pmm_mcmc.tempering.ladder import Ladder, Scan
from pmm_mcmc.tempering.modes import search_modes_of_ladder
from pmm_mcmc.tempering.path import Moved, Points, TemperingPath, barriers, equal_rejection, pairs_for
from pmm_mcmc.warmup.step_size import step_for_acceptance

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


class Tuner(Annealer):
    """Tuning of a ladder for ``chains`` chains in at most ``tune`` moves of each."""

    def __init__(
        self,
        path: TemperingPath,
        arguments: MethodArguments,
        options: LadderOptions,
        chains: int,
        tune: int,
        key: np.ndarray,
        map_levels: Callable[..., list[Moved]],
    ):
        super().__init__(path, arguments, chains, key)
        self.options = options
        self.tune = tune
        self._map_levels = map_levels
        self.barrier = math.nan

    def run(self, start: np.ndarray | None) -> Iterator[Ladder | None]:
        """Tune: yield None after each step, and the tuned ladder at the end.

        Where there is no prior, the reference is at first a Gaussian that covers ``start`` ``(n, d)``.
        """
        stages, points = yield from self.annealed(start, self.options.from_prior)
        ladder, last_round = yield from self._temper(stages, points)
        self._search_modes(ladder, last_round.draws)
        ladder.freeze(last_round.log_ratio.reshape(-1, ladder.pairs + 1))
        yield ladder

    def _temper(self, stages: list[Stage], points: Points) -> Generator[None, None, tuple[Ladder, Round]]:
        """Return the ladder after rounds of tempering, and the last of these.

        It starts from the ``stages`` of annealing and its chains at the target, ``points``.
        """
        betas, rejections = rejections_of(stages)
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
            self._fit_levels(ladder, newest.draws)
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

    def _fit_levels(self, ladder: Ladder, draws: list[Points]) -> None:
        """Fit the preconditioner of each level but the reference to its draws."""
        for k, setting in enumerate(ladder.settings[1:], 1):
            beta = float(ladder.betas[k])
            of_level = Points.joined([points.take((slice(None), k)) for points in draws])
            fitted = self._fitted(of_level.position, of_level.slope(beta), beta, setting.step_size)
            ladder.settings[k] = fitted._replace(steps_per_draw=setting.steps_per_draw)

    def _search_modes(self, ladder: Ladder, last_draws: list[Points]) -> None:
        """Search for modes that no draw of the last round at the posterior is in, where the reference is the prior."""
        if self.path.mixture is not None:
            ladder.other_modes = self._other_modes
            return
        rng = np.random.default_rng([*self.key.tolist(), ANNEALING, self.path.d])
        draws = Points.joined([points.take((slice(None), -1)) for points in last_draws], np.stack)
        prior = self._draw(PRIOR_DRAWS).position
        n_grad = int(ladder.n_grad.sum())
        intermediate = np.concatenate(self._intermediate)
        modes, _, gradients = search_modes_of_ladder(self.path, ladder.tuned, intermediate, draws, prior, n_grad, rng)
        met_before = self._other_modes.mass > 0.0 and not modes.mass > 0.0
        ladder.other_modes = self._other_modes if met_before else modes
        ladder.n_grad += (gradients + PRIOR_DRAWS) / ladder.replicas


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
