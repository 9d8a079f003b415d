"""The warm-up of chains that share what they learn: blocks of transitions, an update after each, a check at the end.

Any engine can drive it: run the chains of the warm-up to :attr:`Warmup.boundary`, hand their draws to
:meth:`Warmup.observe`, go on with the setting that :meth:`Warmup.update` returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.methods import HARMONIC, OVERDAMPED, Scheme, Settings
from pmm_mcmc.tuning.curvature import LocalCurvature
from pmm_mcmc.tuning.friction import DEFAULT_FRICTION, FRICTIONS, FrictionTrial, largest_spread
from pmm_mcmc.tuning.scale import best_coordinates, diagonal_scale
from pmm_mcmc.tuning.setting import Block, Tuned
from pmm_mcmc.tuning.step_size import (
    allowed_error,
    expected_bias,
    lipschitz_bound,
    midpoint_count,
    rare_curvature,
    safe_step,
)
from pmm_mcmc.tuning.thinning import steps_for_autocorrelation
from pmm_mcmc.tuning.transient import replacements, settled
from pmm_mcmc.tuning.virial import too_wide

__all__ = ["Warmup"]

_WINDOW = 0.6  # of the transitions so far, the newest part that counts
_FIRST_BLOCK, _GROWTH = 25, 0.3
_FREEZE_AT, _TRIAL_AT = 0.7, 0.5  # of the warm-up: the latest that the setting is frozen, and that friction is tried
_CHECKED_DRAWS, _LEAST_CHECK = 800, 50  # of all chains, and of each
# Above this largest curvature more transitions are wanted in proportion, up to so many times.
_STIFF, _STIFFEST = 2.0, 4.0
_GUARD_RATE = 1e-3  # of transitions in a block that fail because of the step: above it the step must shrink
_SHRINK, _RECOVER, _SHRINK_FROZEN = 0.8, 1.25, 0.7
_MOST_EXTENSIONS = 8
_MISFIT, _SPREAD, _STEADY = 4.0, 2.0, 1.25  # of a scale that fits: J per coordinate, whitened sd; and of the step
_TRIAL = 50
# On the way down from a distant start the energy is large, and so are the steps' errors in it.
_TOLERANCE = 0.25
_TARGET_ACCEPT = 0.574  # optimal for MALA in high dimension (Roberts and Rosenthal 1998)


@dataclass
class Warmup:
    """Adapt chains over at most ``length`` transitions of each.

    Attributes
    ----------
    settings, length
        What is given, and the transitions there are.
    tuned
        The setting in force.
    least
        Transitions before which the setting is not frozen, however settled it looks.
    done, boundary
        Transitions observed; where the block in hand ends.
    frozen
        Transition from which the setting has only been checked, or ``None``.
    clean
        Whether the last check found nothing; ``None`` before the first.
    source
        After :meth:`update`: the chain that each chain has to go on from.
    """

    settings: Settings
    length: int
    tuned: Tuned
    least: int = 130
    done: int = 0
    boundary: int = 0
    frozen: int | None = None
    clean: bool | None = None
    source: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    _blocks: list[Block] = field(default_factory=list)
    _before: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 0)))
    _count: int = 0
    _closed: int = 0
    _extensions: int = 0
    _cap: float = 1.0
    _lipschitz: float = 1.0
    _local: LocalCurvature = field(default_factory=LocalCurvature)
    _tried: bool = False
    _trial: FrictionTrial | None = None
    _stopped: bool = False

    @classmethod
    def start(
        cls, settings: Settings, length: int, position: np.ndarray, gradient: np.ndarray, least: int = 130
    ) -> Warmup:
        """Begin from positions and gradients ``(n, d)`` at starts or around one; the first of them is the centre."""
        d = position.shape[1]
        if settings.scaling is None:
            _, scale = diagonal_scale(position, gradient, np.ones(d))
        else:
            scale = np.array(settings.scaling)
        friction = settings.friction or DEFAULT_FRICTION
        self = cls(settings, length, Tuned(1.0, 1, friction, Coordinates(position[0].copy(), scale), 1), least)
        usable = np.ones((1, len(position)), dtype=bool)
        self._lipschitz = self._lipschitz_of(position[None], gradient[None], usable)
        if settings.step_size is not None:
            step = settings.step_size
        elif settings.kernel.scheme == Scheme.MALA:
            step = 0.5 / (self._lipschitz * max(d, 1) ** (1 / 3))
        else:
            step = 0.5 * safe_step(settings, friction, self._lipschitz, self._allowed)
        self._set_step(step)
        self.boundary = self._next_boundary(1)
        return self

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.done >= self.length

    @property
    def ready(self) -> bool:
        """Whether the setting has been frozen and found good: a driver that is free to stop may do so."""
        return self.frozen is not None and self.clean is True

    @property
    def tolerance(self) -> float:
        """Share of the kinetic energies by which the energy may rise in a step beyond the guard's threshold."""
        return _TOLERANCE if self.frozen is None else 0.0

    def observe(self, block: Block) -> None:
        """Take note of the draws of all chains over the block in hand."""
        self._blocks.append(block)
        self.done += block.lp.shape[1]

    @property
    def n_grad(self) -> int:
        """Gradients that updates have taken by themselves, for all chains."""
        return self._local.evaluations

    def update(self, gradient_at: Callable[[np.ndarray], np.ndarray] | None = None) -> Tuned:
        """Close the block; return the setting for the next one or, after the last, for the draws.

        With a function for the gradient at a position ``(d,)`` steep directions are looked for where the draws are.
        """
        if self._closed == self.done:  # stopped where nothing more was seen
            return self._finish()
        self._closed = self.done
        block = self._blocks[-1]
        chains = len(block.lp)
        self._count += 1
        self.source = np.arange(chains)
        if self.frozen is not None:
            self._check(block)
        else:
            self._adapt(block, gradient_at)
        failed = self.clean is False and self._step_is_free
        if self._stopped or (self.finished and not (failed and self._extend(block))):
            return self._finish()
        self.boundary = self._next_boundary(chains)
        return self.tuned

    def stop(self) -> None:
        """End here: the next :meth:`update` is the last."""
        self.length = self.boundary = self.done
        self._stopped = True

    @property
    def _step_is_free(self) -> bool:
        return self.settings.step_size is None and self.settings.kernel.scheme != Scheme.MALA

    @property
    def _allowed(self) -> float:
        return allowed_error(self.settings.target_bias, len(self.tuned.coordinates.centre))

    @property
    def _stiffness(self) -> float:
        """How far from one curvature the whitened posterior is, 1 to 4: rare places take longer to be seen."""
        above = self._lipschitz + (self.settings.kernel.dynamics == HARMONIC)
        return min(max(above / _STIFF, 1.0), _STIFFEST)

    @property
    def _latest(self) -> int:
        """Transition at which the setting is frozen, settled or not."""
        return int(_FREEZE_AT * self.length)

    def _next_boundary(self, chains: int) -> int:
        if self.frozen is not None:
            size = max(_LEAST_CHECK, min(int(self._stiffness * _CHECKED_DRAWS) // chains, self.length // 5))
            left = self.length - self.done
            return self.length if left < 2 * size else self.done + size
        if self._trial is not None:
            return min(self.done + _TRIAL, self._latest)
        boundary = self.done + max(_FIRST_BLOCK, int(_GROWTH * self.done))
        trial = int(_TRIAL_AT * self.length)
        if not self._tried and self.done < trial:
            boundary = min(boundary, trial)
        return boundary if self._latest - boundary >= _FIRST_BLOCK else max(self._latest, self.done + 1)

    def _finish(self) -> Tuned:
        if self._trial is not None:
            self._end_trial()
        self.length = self.boundary = self.done
        self.tuned = self.tuned._replace(
            steps_per_draw=self._steps_per_draw(),
            halving_cost=self._halving_cost(),
            expected_bias=self._expected_bias(),
        )
        return self.tuned

    def _extend(self, block: Block) -> bool:
        """After a failed check at the end: one more, up to a limit, so that the setting in use has been checked."""
        self._extensions += 1
        if self._extensions > _MOST_EXTENSIONS:
            return False
        self.length += max(_LEAST_CHECK, min(block.lp.shape[1], _CHECKED_DRAWS // len(block.lp)))
        return True

    # -- adapting ----------------------------------------------------------------------------------------------------

    def _window(self) -> Block:
        """Draws of the newest part of the warm-up; older ones are forgotten."""
        kept = max(math.ceil(_WINDOW * self.done), self._blocks[-1].lp.shape[1])
        window = Block(*(np.concatenate(part, axis=1)[:, -kept:] for part in zip(*self._blocks, strict=True)))
        self._blocks = [window]
        return window

    def _adapt(self, block: Block, gradient_at: Callable[[np.ndarray], np.ndarray] | None) -> None:
        previous, d, n = self.tuned, block.position.shape[2], block.lp.shape[1]
        window = self._window()
        usable = settled(-window.lp, d)
        failing = float((((block.unstable - block.model_failures) > 0) & usable[:, -n:]).mean())
        self.source = replacements(usable[:, -n:], block.unstable)
        if self._trial is not None:
            self._record_trial(block)
        else:
            fits = self._fits(block, usable[:, -n:])
            self._rescale(window, usable)
            self._look_for_curvature(window, usable, gradient_at)
            self._restep(window, usable, block, failing)
            change = self.tuned.step_size / previous.step_size
            steady = max(change, 1.0 / change) < _STEADY
            healthy = failing == 0.0 and np.array_equal(self.source, np.arange(len(self.source)))
            settling = self.settings.kernel.scheme == Scheme.MALA or not (fits and steady and healthy)
            if self.done >= self.least * self._stiffness and not settling:
                self._freeze_or_try(window, usable)
        if self.done >= int(_TRIAL_AT * self.length) and not self._tried:
            self._try_friction(window, usable)
        if self.done >= self._latest and self.frozen is None:
            if self._trial is not None:
                self._end_trial()
            self._freeze()

    def _freeze_or_try(self, window: Block, usable: np.ndarray) -> None:
        if not self._tried:
            self._try_friction(window, usable)
        if self._trial is None:
            self._freeze()

    def _freeze(self) -> None:
        self.frozen = self.done
        self._before = self._blocks[0].position
        self._blocks = []

    def _fits(self, block: Block, usable: np.ndarray) -> bool:
        """Whether the scale in force, which was fitted on older draws, whitens the newest ones."""
        if not usable.any() or block.position.shape[2] == 0:
            return bool(usable.any())
        y, g = (part[usable] for part in self._whitened(block))
        misfit = np.sort((y**2).mean(axis=1) + (g**2).mean(axis=1))
        kept = misfit[: math.ceil(0.99 * len(misfit))].mean()
        return bool(kept < _MISFIT) and largest_spread(y) < _SPREAD

    def _rescale(self, window: Block, usable: np.ndarray) -> None:
        # In order of time, the chains side by side.
        in_order = usable.T.ravel()
        d = window.position.shape[2]
        position = window.position.swapaxes(0, 1).reshape(usable.size, d)[in_order]
        if self.settings.scaling is None:
            coordinates = best_coordinates(position, window.gradient.swapaxes(0, 1).reshape(usable.size, d)[in_order])
        else:
            coordinates = self.tuned.coordinates._replace(centre=position.mean(axis=0))
        self.tuned = self.tuned._replace(coordinates=coordinates)

    def _restep(self, window: Block, usable: np.ndarray, block: Block, failing: float) -> None:
        previous = self.tuned.step_size
        if self.settings.kernel.scheme == Scheme.MALA and self.settings.step_size is None:
            gain = 2.0 / math.sqrt(1.0 + self._count)
            previous *= math.exp(gain * (float(block.accept.mean()) - _TARGET_ACCEPT))
        elif self._step_is_free:
            if failing > _GUARD_RATE or self._identity_fails(window, usable):
                self._cap *= _SHRINK
            else:
                self._cap = min(1.0, _RECOVER * self._cap)
            previous = min(self._free_step(), 2.0 * previous)
        self._set_step(previous)

    def _look_for_curvature(
        self, window: Block, usable: np.ndarray, gradient_at: Callable[[np.ndarray], np.ndarray] | None
    ) -> None:
        adjusted = self.settings.kernel.scheme == Scheme.MALA
        if gradient_at is None or adjusted or window.position.shape[2] < 2:
            self._lipschitz = self._lipschitz_of(window.position, window.gradient, usable)
            return
        coordinates = self.tuned.coordinates
        y, g = self._whitened(window)
        harmonic = self.settings.kernel.dynamics == HARMONIC

        def whitened(at: np.ndarray) -> np.ndarray:
            return coordinates.pull_back(gradient_at(coordinates.place(at)))

        typical = self._local(y[usable], g[usable], whitened, harmonic)
        self._lipschitz = max(rare_curvature(y, g, usable, harmonic), typical)

    def _free_step(self) -> float:
        if not self._step_is_free:
            return self.tuned.step_size
        return self._cap * safe_step(self.settings, self.tuned.friction, self._lipschitz, self._allowed)

    def _set_step(self, step: float) -> None:
        K = midpoint_count(self.settings, step, self.tuned.friction, self._lipschitz, self._allowed)
        self.tuned = self.tuned._replace(step_size=step, K=K)

    def _whitened(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        coordinates = self.tuned.coordinates
        return coordinates.whiten(block.position), coordinates.pull_back(block.gradient)

    def _lipschitz_of(self, position: np.ndarray, gradient: np.ndarray, usable: np.ndarray) -> float:
        coordinates = self.tuned.coordinates
        y, g = coordinates.whiten(position), coordinates.pull_back(gradient)
        return lipschitz_bound(y, g, usable, remainder=self.settings.kernel.dynamics == HARMONIC)

    def _identity_fails(self, block: Block, usable: np.ndarray) -> bool:
        few = self.done < self.least or block.lp.shape[1] < 40
        if few or usable.mean() < 0.99 or block.position.shape[2] == 0:
            return False
        return too_wide(block.position, block.gradient, self.settings.target_bias)

    # -- friction ----------------------------------------------------------------------------------------------------

    def _try_friction(self, window: Block, usable: np.ndarray) -> None:
        """Begin a trial of frictions, where there are slow directions that a smaller one may help."""
        self._tried = True
        fixed = self.settings.kernel.dynamics == OVERDAMPED or self.settings.friction is not None
        if fixed or not usable.any() or window.position.shape[2] == 0:
            return
        y = self._whitened(window)[0][usable]
        if self._latest - self.done >= len(FRICTIONS) * _TRIAL + _FIRST_BLOCK and largest_spread(y) > _SPREAD:
            self._trial = FrictionTrial(y)
            self._set_friction(self._trial.next)

    def _set_friction(self, friction: float) -> None:
        self.tuned = self.tuned._replace(friction=friction)
        self._set_step(self._free_step())

    def _record_trial(self, block: Block) -> None:
        assert self._trial is not None
        failing = ((block.unstable - block.model_failures) > 0).mean()
        self._trial.record(self._whitened(block)[0], bool(failing <= _GUARD_RATE))
        if self._trial.over:
            self._end_trial()
        else:
            self._set_friction(self._trial.next)

    def _end_trial(self) -> None:
        assert self._trial is not None
        best, self._trial = self._trial.best, None
        self._set_friction(best)

    # -- checking ----------------------------------------------------------------------------------------------------

    def _check(self, block: Block) -> None:
        """Look at a block at the frozen setting; a step that it finds too large shrinks, and is checked anew."""
        usable = settled(-block.lp, block.position.shape[2])
        failing = float((((block.unstable - block.model_failures) > 0) & usable).mean())
        together = Block(*(np.concatenate(part, axis=1) for part in zip(*self._blocks, strict=True)))
        self.clean = failing <= _GUARD_RATE and not self._identity_fails(together, usable)
        if not self.clean and self._step_is_free:
            self._set_step(_SHRINK_FROZEN * self.tuned.step_size)
            self._blocks = []

    def _steps_per_draw(self) -> int:
        if self.settings.steps_per_draw is not None:
            return self.settings.steps_per_draw
        found = [block.position for block in self._blocks]
        if sum(position.shape[1] for position in found) < _LEAST_CHECK:
            return steps_for_autocorrelation(self._before)  # of a short warm-up, or after a shrink of the step
        return steps_for_autocorrelation(np.concatenate(found, axis=1))

    def _halving_cost(self) -> float:
        if not self._step_is_free:
            return math.nan
        now = safe_step(self.settings, self.tuned.friction, self._lipschitz, self._allowed)
        half = safe_step(self.settings, self.tuned.friction, self._lipschitz, 0.5 * self._allowed)
        return now / half

    def _expected_bias(self) -> float:
        step, K, friction, coordinates, *_ = self.tuned
        return expected_bias(self.settings, step, friction, K, self._lipschitz, len(coordinates.centre))
