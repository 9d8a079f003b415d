r"""How a ladder is found: annealing from the reference to the target, then rounds of tempering until it is steady.

Each round of tempering is twice as long as the one before; after it every level is fitted to its own draws, and the
temperatures are placed so that all pairs swap equally often.  The *barrier* is the sum of the rejections of all pairs,
which does not depend on how many there are; tuning ends when it changes no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.tempering import barriers, equal_rejection, pairs_for
from pmm_mcmc.tempering.annealing import ANNEALING, PRIOR_DRAWS, Annealer, NoLadder, Stage, rejections_of
from pmm_mcmc.tempering.ascents import search_modes_of_ladder
from pmm_mcmc.tempering.ladder import Ladder, Scan
from pmm_mcmc.tempering.path import Moved, Points, TemperingPath
from pmm_mcmc.warmup.step_size import step_for_acceptance

__all__ = ["LadderOptions", "NoLadder", "Tuner"]

# Scans of the first round.
_FIRST = 16
# Relative change of the barrier below which it is steady.
_STEADY = 0.1
# Blocks of a round after each of which steps adapt.
_BLOCKS = 4
# Draws that a level is fitted to.
_FITTED = 4000
# Scans of a round from whose draws between reference and posterior ascents start.
_INTERMEDIATE_SCANS = 8
# Moves between two swaps, at most.
_MOST_MOVES = 16


@dataclass(frozen=True)
class LadderOptions:
    """What the user fixes of a ladder: its inverse temperatures, its number of pairs, that it starts at the prior."""

    betas: np.ndarray | None
    pairs: int | None
    from_prior: bool


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
        ladder = yield from self._temper(stages, points)
        self.search_modes(ladder)
        ladder.freeze(self._last_log_ratio)
        yield ladder

    # -- tempering ---------------------------------------------------------------------------------------------------

    def _temper(self, stages: list[Stage], points: Points) -> Generator[None, None, Ladder]:
        """Return the ladder after rounds of tempering, from the steps of annealing and its chains at the target."""
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
            rejections = yield from self._round(ladder, scans, last)
            previous = self.barrier
            self.barrier = float(barriers(rejections).sum())
            change = abs(self.barrier - previous)
            steady = steady + 1 if scans > _FIRST and change <= _STEADY * max(self.barrier, 0.5) else 0
            if last:
                break
            scans *= 2
            order = np.concatenate([ladder.chain_at.T.ravel(), np.setdiff1d(np.arange(self.chains), ladder.chain_at)])
            self._place(ladder, rejections, order)
        return ladder

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
        """Put the chains on the ladder that equal rejections ask for, with the nearest settings that there are."""
        betas = ladder.betas
        new_betas = self.options.betas
        if new_betas is None:
            new_betas = equal_rejection(betas, rejections, self._pairs())
        barrier = np.concatenate([[0.0], np.cumsum(barriers(rejections))]) + 1e-6 * betas
        near = [int(np.abs(np.interp(beta, betas, barrier) - barrier[1:]).argmin()) + 1 for beta in new_betas]
        settings = [ladder.settings[i] for i in near]
        for k, beta in enumerate(new_betas):
            parameters = self.path.parameters_at(float(beta))
            coordinates = settings[k].coordinates._replace(density_parameters=parameters)
            settings[k] = settings[k]._replace(coordinates=coordinates)
        ladder.place(new_betas, settings, self.chains // len(new_betas), order)
        ladder.n_grad = np.full(ladder.replicas, self.spent / ladder.replicas)

    def _round(self, ladder: Ladder, scans: int, last: bool) -> Generator[None, None, np.ndarray]:
        """Make so many scans, then set each level by its draws; return the rejection of each pair."""
        replicas = ladder.replicas
        levels = ladder.pairs + 1
        fitting_scans = max(scans // 2, min(scans, _FITTED // replicas))  # those at the end, to which levels are fitted
        log_ratio = np.empty((scans, replicas, levels))
        log_ratio_before = np.empty((scans, replicas, levels))
        swap_rate = np.zeros(levels - 1)
        draws: list[Points] = []
        accept: list[np.ndarray] = []
        for i in range(scans):
            scan: Scan = ladder.advance(self.path, self._map_levels)
            log_ratio[i] = scan.log_ratio
            log_ratio_before[i] = scan.before
            swap_rate += scan.swaps.mean(axis=0) / scans
            ladder.n_grad += scan.n_grad.sum(axis=1)
            accept.append(scan.accept.mean(axis=0))
            if i >= scans - fitting_scans and i % max(1, fitting_scans * replicas // _FITTED) == 0:
                draws.append(Points(ladder.position[ladder.chain_at], ladder.evaluation[ladder.chain_at]))
            if self.path.mixture is None and (i + 1) % max(1, scans // _INTERMEDIATE_SCANS) == 0:
                self._intermediate.append(ladder.position[ladder.chain_at[:, 1:-1]].reshape(-1, self.path.d))
            if (i + 1) % max(1, scans // _BLOCKS) == 0:
                self._adapt_steps(ladder, np.mean(accept, axis=0))
                accept = []
            self.transition = ladder.transition
            self.spent = float(ladder.n_grad.sum())
            yield
        self._last_log_ratio = log_ratio.reshape(-1, levels)
        self._last_draws = [points.take((slice(None), -1)) for points in draws]
        for k in range(1, levels):
            setting = ladder.settings[k]
            # Swaps that are accepted forget the log ratio, too.
            rejection = float(1.0 - swap_rate[k - 1 : k + 1].mean())
            limit = max(1, math.ceil(_MOST_MOVES * min(1.0, 2.0 * rejection) ** 2))
            moves = _moves_between_swaps(log_ratio_before[:, :, k], log_ratio[:, :, k], setting.steps_per_draw)
            if not last:
                beta = float(ladder.betas[k])
                level_draws = Points.joined([points.take((slice(None), k)) for points in draws])
                setting = self._fitted(level_draws.position, level_draws.slope(beta), beta, setting.step_size)
            ladder.settings[k] = setting._replace(steps_per_draw=min(limit, moves))
        return 1.0 - swap_rate

    def _adapt_steps(self, ladder: Ladder, accept: np.ndarray) -> None:
        """Adapt the step of each level but the reference to its mean acceptance."""
        for k in range(1, len(accept)):
            step = step_for_acceptance(ladder.settings[k].step_size, float(accept[k]))
            ladder.settings[k] = self._with_step(ladder.settings[k], step)

    def search_modes(self, ladder: Ladder) -> None:
        """Search for modes that no draw of the last round at the posterior is in, where the reference is the prior."""
        if self.path.mixture is not None:
            ladder.other_modes = self._other_modes
            return
        rng = np.random.default_rng([*self.key.tolist(), ANNEALING, self.path.d])
        draws = Points.joined(self._last_draws, np.stack)
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
