"""Annealing: how all chains come from draws of the reference to the target, and the mixture that is fitted there.

Annealing raises the inverse temperature ``beta`` from 0 to 1.  By each step the effective number of chains, by their
importance weights, falls to a half; they are resampled, and moves at the new temperature fit a setting to it.
Annealing finds modes and where they lie; a ladder that starts there, from a mixture of Gaussians, has less of a way to
go than one that starts from the prior.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates, best_coordinates, diagonal_scale
from pmm_mcmc.diagnostics.mode_search import OtherModes
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.tempering.ladder import SEARCHES
from pmm_mcmc.tempering.modes import fitted_mixture, search_modes_of_ladder
from pmm_mcmc.tempering.path import MOST_TRANSITIONS, Points, TemperingPath, barriers, expected_rejections, step_of_ess
from pmm_mcmc.warmup.step_size import adjusted_friction, step_for_acceptance
from pmm_mcmc.warmup.thresholds import THRESHOLDS

ANNEALING = 3  # what random numbers are for: a part of their keys
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
PRIOR_DRAWS = 128


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


class Annealer:
    """Annealing of ``chains`` chains; ``spent`` are the gradients of all, ``transition`` is the number of moves."""

    def __init__(self, path: TemperingPath, arguments: MethodArguments, chains: int, key: np.ndarray):
        self.path = path
        self.arguments = arguments
        self.chains = chains
        self.key = key
        self.keys = np.random.default_rng([*key.tolist(), 0]).integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        self.transition = 0
        self.spent = 0.0
        self.tuned = TunedParameters(math.nan, 1, math.nan, Coordinates(np.zeros(path.d), np.ones(path.d)), 1)
        self._reference_draws = 0  # how often the reference was drawn from: a part of the key
        self._intermediate: list[np.ndarray] = [np.empty((0, path.d))]  # positions before the target, for ascents
        self._other_modes = OtherModes()
        self._move_time = THRESHOLDS.ladder_span / (arguments.friction or 1.0)

    def annealed(self, start: np.ndarray | None, from_prior: bool) -> Annealed:
        """Return the steps of annealing and its chains at the target, from the reference that the ladder will have.

        Where there is no prior the reference is at first a Gaussian that covers ``start`` ``(n, d)``; ``from_prior``
        says that the prior remains the reference.
        """
        if not self.path.has_prior:
            assert start is not None
            self.path.mixture = GaussianMixture.of(start.mean(axis=0), np.maximum(3.0 * start.std(axis=0), 1.0))
        if from_prior:
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
        from_reference = self._draw(PRIOR_DRAWS).position
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

    # -- annealing ---------------------------------------------------------------------------------------------------

    def _draw(self, n: int) -> Points:
        """Return independent draws of the reference."""
        self._reference_draws += 1
        self.spent += n
        return self.path.draw((*self.key.tolist(), ANNEALING, self._reference_draws), n)

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
        rng = np.random.default_rng([*self.key.tolist(), ANNEALING, 0, self._reference_draws])
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


def rejections_of(stages: list[Stage]) -> tuple[np.ndarray, np.ndarray]:
    """Return the temperatures of annealing, and the rejections of swaps between neighbours that its steps show."""
    betas = np.array([stage.beta for stage in stages])
    return betas, expected_rejections(betas, [stage.log_ratio[:512] for stage in stages])


def _barrier_of(stages: list[Stage]) -> float:
    """Return the barrier between reference and target, as annealing has met it."""
    return float(barriers(rejections_of(stages)[1]).sum())
