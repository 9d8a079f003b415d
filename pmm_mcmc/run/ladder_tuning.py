r"""How a ladder is found: annealing from the reference to the target, then rounds of tempering until the barrier holds.

Annealing carries all chains from draws of the reference to the target, in steps of temperature at which half of them
would still count, and leaves at each step a preconditioner and a length of steps.  Each round of tempering then is
twice as long as the one before; after it every rung is fitted to its own draws, and the temperatures are placed anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates, diagonal_scale
from pmm_mcmc.engines.arguments import MethodArguments, OtherModes, TunedParameters
from pmm_mcmc.langevin.tempering import barriers, equal_rejection, expected_rejections, pairs_for, step_of_ess
from pmm_mcmc.model.mixture import GaussianMixture
from pmm_mcmc.run.ladder_climbs import look
from pmm_mcmc.run.ladder_fit import fitted_mixture
from pmm_mcmc.run.ladder_path import Moved, Path, Points
from pmm_mcmc.run.ladder_state import Ladder, Scan
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.step_size import towards_acceptance

__all__ = ["Given", "NoLadder", "Tuner"]

_ANNEALING = 3  # what random numbers are for: a word of their keys
# Effective share of the chains after a step of annealing, and steps at most.
_SHARE, _MOST_STAGES = 0.5, 400
# Trajectories after each step of annealing; at its end, where a mixture is fitted.
_MOVES, _LAST_MOVES = 6, 16
# Draws of each step that climbs may start from; chains that start at a maximum that no other chain is at.
_HOT, _AROUND = 128, 32
# Scans of the first round; change of the barrier below which it is known.
_FIRST, _STEADY = 16, 0.1
# Blocks of a round after each of which steps adapt; draws that a rung is fitted to.
_BLOCKS, _FITTED = 4, 4000
# Scans of a round whose draws between reference and posterior are climbed from.
_KEPT_HOT = 8
# Draws of the reference from which scouts look for modes.
_SCOUTS = 128
# Trajectories between two swaps at most, steps of a trajectory at most.
_MOST_THIN, _MOST_STEPS = 16, 64


class NoLadder(ValueError):
    """There is no ladder for these arguments."""


@dataclass(frozen=True)
class Given:
    """What the user fixes of a ladder: its temperatures, its number of pairs, that its reference is the prior."""

    betas: np.ndarray | None = None
    pairs: int | None = None
    from_prior: bool = False


@dataclass
class _Stage:
    beta: float
    setting: TunedParameters
    log_ratio: np.ndarray


class Tuner:
    """Tuning of a ladder for ``chains`` chains in at most ``tune`` trajectories of each."""

    def __init__(
        self,
        path: Path,
        arguments: MethodArguments,
        given: Given,
        chains: int,
        tune: int,
        key: np.ndarray,
        each: Callable[..., list[Moved]],
        note: Callable[[Tuner], None],
    ):
        self.path, self.arguments, self.given, self.chains, self.tune = path, arguments, given, chains, tune
        self.key, self._each, self._note = key, each, note
        self.keys = np.random.default_rng([*key.tolist(), 0]).integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        self.transition, self.n_grad, self.spent, self.barrier = 0, np.zeros(chains), 0.0, math.nan
        self.step_size, self.K = math.nan, 1
        self._draws = 0
        self._hot: list[np.ndarray] = [np.empty((0, path.d))]
        self._seen: list[Points] = []
        self._others = OtherModes()
        self._span = CALIBRATION.leg_span / (arguments.friction or 1.0)

    def run(self, start: np.ndarray | None) -> Ladder:
        """Return the tuned ladder; ``start`` ``(n, d)`` is what a Gaussian covers at first where there is no prior."""
        if not self.path.has_prior:
            assert start is not None
            self.path.mixture = GaussianMixture.of(start.mean(axis=0), np.maximum(3.0 * start.std(axis=0), 1.0))
        if self.given.from_prior:
            return self._temper(*self._anneal(_MOVES))
        return self._temper(*self._from_mixture(*self._anneal(_LAST_MOVES)))

    def _from_mixture(self, stages: list[_Stage], points: Points) -> tuple[list[_Stage], Points]:
        """Fit a mixture to the modes that annealing met and climbs find, and anneal again, from there.

        The prior stays the reference unless that leaves less than half of the barrier, or adds a mode.
        """
        setting, own, rng = stages[-1].setting, self._seen, np.random.default_rng([*self.key.tolist(), _ANNEALING, 1])
        cold = Points(*(np.stack(parts) for parts in zip(*own, strict=True)))
        far, before = self._draw(_SCOUTS).position, int(self.n_grad.sum())
        self._others, maxima, spent = look(self.path, setting, np.concatenate(self._hot), cold, far, before, rng)
        beyond = [self._around(maximum, setting) for maximum in maxima]
        flat = Points(*(np.concatenate(parts) for parts in zip(*own, strict=True)))
        prior, (self.path.mixture, more) = self.path.mixture, fitted_mixture(self.path, setting, flat, beyond)
        self.n_grad += (spent + more + _SCOUTS) / self.chains
        try:
            again, drawn = self._anneal(_MOVES)
        except NoLadder:
            if not self.path.has_prior:
                raise
            again, drawn = stages, points
        if self.path.has_prior and not beyond and 2.0 * _barrier(again) > _barrier(stages):
            self.path.mixture = prior
            return stages, points
        # A mode that the mixture does not cover stays in sight: no restart arrives in it.
        kept = self.path.evaluate(points.position[self.chains // 2 :])
        self.n_grad += len(kept.position) / self.chains
        both = zip(drawn.take(slice(0, self.chains // 2)), kept, strict=True)
        return again, Points(*(np.concatenate(parts) for parts in both))

    def _around(self, maximum: np.ndarray, setting: TunedParameters) -> Points:
        """Return draws of the posterior around a maximum."""
        points = self.path.evaluate(np.tile(maximum, (min(_AROUND, self.chains), 1)))
        centred = setting._replace(coordinates=setting.coordinates._replace(centre=maximum))
        self._settle(points, centred, _LAST_MOVES)
        return Points(*(np.concatenate(parts) for parts in zip(*self._seen, strict=True)))

    # -- annealing ---------------------------------------------------------------------------------------------------

    def _draw(self, n: int) -> Points:
        self._draws += 1
        self.n_grad += 1
        return self.path.draw((*self.key.tolist(), _ANNEALING, self._draws), n)

    def _anneal(self, last: int) -> tuple[list[_Stage], Points]:
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
        rng = np.random.default_rng([*self.key.tolist(), _ANNEALING, 0, self._draws])
        setting = self._fitted(points.position, points.slope(0.0), 0.0, 0.5)
        stages, beta = [_Stage(0.0, setting, points.log_ratio.copy())], 0.0
        while beta < 1.0:
            step = step_of_ess(points.log_ratio, 1.0 - beta, _SHARE)
            if len(stages) > _MOST_STAGES:
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
            setting = self._fitted(points.position, points.slope(beta), beta, setting.step_size, quickly=True)
            points, setting = self._settle(points, setting, last if beta == 1.0 else _MOVES)
            stages.append(_Stage(beta, setting, points.log_ratio.copy()))
            if beta < 1.0:
                self._hot.append(points.position[:_HOT])
            self.spent = float(self.n_grad.sum())
            self._note(self)
        return stages, points

    def _settle(self, points: Points, setting: TunedParameters, moves: int) -> tuple[Points, TunedParameters]:
        """Move all points at one temperature; steps adapt, and halfway the preconditioner is fitted again."""
        beta = float(setting.coordinates.sites[0])  # type: ignore[index]
        seen = []
        for i in range(moves):
            moved = self.path.move(setting, points, self.keys[: len(points.position)], self.transition, 1)
            self.transition += 1
            self.n_grad += moved.n_grad.sum() / self.chains
            points = moved.points
            seen.append(points)
            step = towards_acceptance(setting.step_size, float(moved.accept.mean()), i + 1, CALIBRATION.leg_acceptance)
            setting = self._with_step(setting, step)
            if i == moves // 2:
                everything = np.concatenate([p.position for p in seen[1:]])
                slopes = np.concatenate([p.slope(beta) for p in seen[1:]])
                setting = self._fitted(everything, slopes, beta, setting.step_size)
        self._seen = seen[moves // 4 :]
        return points, setting

    # -- settings ----------------------------------------------------------------------------------------------------

    def _fitted(
        self, position: np.ndarray, slope: np.ndarray, beta: float, step: float, quickly: bool = False
    ) -> TunedParameters:
        if self.arguments.scaling is not None:
            coordinates = Coordinates(position.mean(axis=0), np.array(self.arguments.scaling))
        elif quickly:
            coordinates = Coordinates(*diagonal_scale(position, slope, np.ones(position.shape[1])))
        else:
            coordinates = best_coordinates(position, slope)
        friction = CALIBRATION.leg_friction * (self.arguments.friction or 1.0)
        coordinates = coordinates._replace(sites=self.path.sites(beta))
        return self._with_step(TunedParameters(step, 1, friction, coordinates, 1), step)

    def _with_step(self, setting: TunedParameters, step: float) -> TunedParameters:
        step = min(step, self._span)
        self.step_size, self.K = step, max(1, min(_MOST_STEPS, round(self._span / step)))
        return setting._replace(step_size=step, K=self.K)

    def _at(self, setting: TunedParameters, beta: float) -> TunedParameters:
        return setting._replace(coordinates=setting.coordinates._replace(sites=self.path.sites(beta)))

    # -- tempering ---------------------------------------------------------------------------------------------------

    def _temper(self, stages: list[_Stage], points: Points) -> Ladder:
        betas = np.array([stage.beta for stage in stages])
        settings = [stage.setting for stage in stages]
        rejections = expected_rejections(betas, [stage.log_ratio[:512] for stage in stages])
        numbers = np.empty(0) if self.path.mixture is None else self.path.mixture.flat
        ladder = Ladder(
            self.key, betas, settings, numbers, points.position, points.evaluation, self.keys,
            np.arange(self.chains)[:, None], transition=self.transition,
        )  # fmt: skip
        self.barrier = float(barriers(rejections).sum())
        ladder.barriers.append(self.barrier)
        order = np.arange(self.chains)
        self._move_to(ladder, betas, rejections, settings, self._pairs(rejections), order)
        scans, steady = _FIRST, 0
        while True:
            left = self.tune - ladder.transition
            thin = max(setting.steps_per_draw for setting in ladder.settings[1:])
            enough = 1 if pairs_for(self.barrier) == pairs_for(0.0) else 2  # no ladder has fewer pairs
            last = left < 3 * scans * thin or steady >= enough
            rejections = self._round(ladder, scans, last)
            before, self.barrier = self.barrier, float(barriers(rejections).sum())
            ladder.barriers.append(self.barrier)
            change = abs(self.barrier - before)
            steady = steady + 1 if scans > _FIRST and change <= _STEADY * max(self.barrier, 0.5) else 0
            if last:
                break
            scans *= 2
            order = np.concatenate([ladder.slot.T.ravel(), np.setdiff1d(np.arange(self.chains), ladder.slot)])
            self._move_to(ladder, ladder.betas, rejections, ladder.settings, self._pairs(rejections), order)
        return ladder

    def _pairs(self, rejections: np.ndarray) -> int:
        """Return the number of pairs that the barrier asks for and the chains allow."""
        if self.given.betas is not None:
            return len(self.given.betas) - 1
        if self.given.pairs is not None:
            return self.given.pairs
        barrier = float(barriers(rejections).sum())
        wanted, most = pairs_for(barrier), self.chains // 2 - 1
        if most < math.ceil(1.2 * barrier):
            raise NoLadder(
                f"chains={self.chains}: is too few for two copies of a ladder: the barrier between reference and "
                f"posterior is about {barrier:.1f}, which asks for {wanted + 1} rungs; take chains={2 * (wanted + 1)} "
                "or more"
            )
        return min(wanted, most)

    def _move_to(
        self,
        ladder: Ladder,
        betas: np.ndarray,
        rejections: np.ndarray,
        settings: list[TunedParameters],
        pairs: int,
        order: np.ndarray,
    ) -> None:
        """Put the chains on the ladder that equal rejections ask for."""
        if self.given.betas is not None:
            new = self.given.betas
        else:
            new = equal_rejection(betas, rejections, pairs)
        barrier = np.concatenate([[0.0], np.cumsum(barriers(rejections))]) + 1e-6 * betas
        near = [int(np.abs(np.interp(beta, betas, barrier) - barrier[1:]).argmin()) + 1 for beta in new]
        kept = [self._at(settings[i], float(beta)) for i, beta in zip(near, new, strict=True)]
        spent = ladder.n_grad.sum() if ladder.n_grad.size else self.n_grad.sum()
        ladder.place(new, kept, self.chains // (pairs + 1), order)
        ladder.n_grad = np.full(ladder.copies, spent / ladder.copies)

    def _round(self, ladder: Ladder, scans: int, last: bool) -> np.ndarray:
        """Temper; fit each rung to its draws, but for the last time; return the rejection of each pair."""
        C, rungs = ladder.copies, ladder.pairs + 1
        kept = max(scans // 2, min(scans, _FITTED // C))
        log_ratio, before, swaps = np.empty((scans, C, rungs)), np.empty((scans, C, rungs)), np.zeros(rungs - 1)
        seen: list[Points] = []
        block = max(1, scans // _BLOCKS)
        accept: list[np.ndarray] = []
        for i in range(scans):
            found: Scan = ladder.advance(self.path, self._each)
            log_ratio[i], before[i] = found.log_ratio, found.before
            swaps += found.swaps.mean(axis=0) / scans
            ladder.n_grad += found.n_grad.sum(axis=1)
            accept.append(found.accept.mean(axis=0))
            if i >= scans - kept and i % max(1, kept * C // _FITTED) == 0:
                seen.append(Points(ladder.position[ladder.slot], ladder.evaluation[ladder.slot]))
            if self.path.mixture is None and (i + 1) % max(1, scans // _KEPT_HOT) == 0:
                self._hot.append(ladder.position[ladder.slot[:, 1:-1]].reshape(-1, self.path.d))
            if (i + 1) % block == 0:
                mean, number = np.mean(accept, axis=0), (i + 1) // block
                for k in range(1, rungs):
                    step = towards_acceptance(
                        ladder.settings[k].step_size, float(mean[k]), number, CALIBRATION.leg_acceptance
                    )
                    ladder.settings[k] = self._with_step(ladder.settings[k], step)
                accept = []
            self.transition, self.spent = ladder.transition, float(ladder.n_grad.sum())
            self._note(self)
        self._last = log_ratio.reshape(-1, rungs)
        self._cold = [points.take((slice(None), -1)) for points in seen]
        for k in range(1, rungs):
            old, beta = ladder.settings[k], float(ladder.betas[k])
            z = np.concatenate([points.position[:, k] for points in seen])
            d = z.shape[1]
            e = np.concatenate([points.evaluation[:, k] for points in seen])
            fitted = old
            if not last:
                fitted = self._fitted(z, e[:, d : 2 * d] + beta * e[:, 2 * d : 3 * d], beta, old.step_size)
            # Swaps that are accepted forget l, too.
            most = math.ceil(_MOST_THIN * min(1.0, 2.0 * float(1.0 - swaps[k - 1 : k + 1].mean())))
            thin = min(max(1, most), _thin(before[:, :, k], log_ratio[:, :, k], old.steps_per_draw))
            ladder.settings[k] = fitted._replace(steps_per_draw=thin)
        return 1.0 - swaps

    def look_around(self, ladder: Ladder) -> None:
        """Look for modes that no draw of the last round at the posterior is in, where the reference is the prior."""
        setting = ladder.settings[-1]
        if self.path.mixture is not None:
            ladder.settings[-1] = setting._replace(other_modes=self._others)
            return
        rng = np.random.default_rng([*self.key.tolist(), _ANNEALING, self.path.d])
        cold = Points(*(np.stack(parts) for parts in zip(*self._cold, strict=True)))
        prior, before = self._draw(_SCOUTS).position, int(ladder.n_grad.sum())
        modes, _, spent = look(self.path, setting, np.concatenate(self._hot), cold, prior, before, rng)
        ladder.settings[-1] = setting._replace(other_modes=modes)
        ladder.n_grad += (spent + _SCOUTS) / ladder.copies

    @property
    def last(self) -> np.ndarray:
        """The values ``(n, N + 1)`` of ``l`` in the last round."""
        return self._last


def _barrier(stages: list[_Stage]) -> float:
    betas = np.array([stage.beta for stage in stages])
    return float(barriers(expected_rejections(betas, [stage.log_ratio[:512] for stage in stages])).sum())


def _thin(before: np.ndarray, after: np.ndarray, thin: int) -> int:
    """Return the trajectories after which the correlation of ``l`` is below one half."""
    x, y = before[1:].ravel(), after[1:].ravel()
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((x**2).sum() * (y**2).sum()))
    rho = float((x * y).sum()) / scale if scale > 0.0 else 0.0
    if not 0.0 < rho < 1.0:
        return 1 if rho <= 0.0 else _MOST_THIN
    return max(1, min(_MOST_THIN, math.ceil(thin * math.log(0.5) / math.log(rho))))
