"""The warm-up of one chain: blocks of transitions, an update after each, a check at the frozen setting at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.methods import HARMONIC, Scheme, Settings
from pmm_mcmc.tuning.scale import best_coordinates, diagonal_scale, settled
from pmm_mcmc.tuning.step_size import lipschitz_bound, midpoint_count, safe_step
from pmm_mcmc.tuning.thinning import steps_for_autocorrelation

__all__ = ["Tuned", "Warmup", "fixed_setting"]

DEFAULT_FRICTION = 1.0
_WINDOW = 0.6  # of the transitions so far, the newest part that counts
_FIRST_BLOCK, _GROWTH = 25, 0.3
_CHECK_FROM, _CHECK_BLOCK = 0.7, 0.1  # of the warm-up: where the setting is frozen, and how often it is looked at
_GUARD_RATE = 1e-3  # of rejected transitions in a block: above it the step must shrink
_TARGET_ACCEPT = 0.574  # optimal for MALA in high dimension (Roberts and Rosenthal 1998)


class Tuned(NamedTuple):
    """What the engine runs with: step size, K, friction, whitened coordinates, transitions per draw."""

    step_size: float
    K: int
    friction: float
    coordinates: Coordinates
    steps_per_draw: int


def fixed_setting(settings: Settings, centre: np.ndarray) -> Tuned:
    """Return the setting of a run without warm-up; raise where the step size is not given."""
    if settings.step_size is None:
        raise ValueError(
            f"step_size='auto' with tune=0: {settings.method} finds its step size in warm-up. "
            "Give step_size=, or let it tune (tune=1000)"
        )
    scale = np.ones_like(centre) if settings.scaling is None else np.array(settings.scaling)
    friction = settings.friction or DEFAULT_FRICTION
    K = midpoint_count(settings, settings.step_size, friction, 1.0)
    return Tuned(settings.step_size, K, friction, Coordinates(centre.copy(), scale), settings.steps_per_draw or 1)


@dataclass
class Warmup:
    """Adapt one chain over ``length`` transitions.

    The caller runs transitions up to :attr:`boundary`, hands their draws to :meth:`observe`, and goes on with the
    setting that :meth:`update` returns.

    Attributes
    ----------
    settings, length
        What is given, and the transitions there are.
    tuned
        The setting in force.
    done, boundary
        Transitions observed; where the block in hand ends.
    """

    settings: Settings
    length: int
    tuned: Tuned
    done: int = 0
    boundary: int = 0
    _block_start: int = 0
    _setting_since: int = 0
    _blocks: int = 0
    _cap: float = 1.0
    _position: list[np.ndarray] = field(default_factory=list)
    _gradient: list[np.ndarray] = field(default_factory=list)
    _potential: list[np.ndarray] = field(default_factory=list)
    _unstable: list[np.ndarray] = field(default_factory=list)
    _accept: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def start(cls, settings: Settings, length: int, position: np.ndarray, gradient: np.ndarray) -> Warmup:
        """Begin from probes ``(n, d)`` around the initial point, the first of which is that point."""
        d = position.shape[1]
        if settings.scaling is None:
            _, scale = diagonal_scale(position, gradient, np.ones(d))
        else:
            scale = np.array(settings.scaling)
        friction = settings.friction or DEFAULT_FRICTION
        self = cls(settings, length, Tuned(1.0, 1, friction, Coordinates(position[0].copy(), scale), 1))
        lipschitz = self._lipschitz(position, gradient, np.ones(len(position), dtype=bool))
        if settings.step_size is not None:
            step = settings.step_size
        elif settings.kernel.scheme == Scheme.MALA:
            step = 0.5 / (lipschitz * max(d, 1) ** (1 / 3))
        else:
            step = 0.5 * safe_step(settings, friction, lipschitz)
        self._set_step(step, lipschitz)
        self.boundary = self._next_boundary()
        return self

    def observe(
        self, position: np.ndarray, gradient: np.ndarray, lp: np.ndarray, unstable: np.ndarray, accept: np.ndarray
    ) -> None:
        """Take note of draws ``(n, d)``, one a transition, with log density, rejections and acceptance ``(n,)``."""
        self._position.append(position)
        self._gradient.append(gradient)
        self._potential.append(-lp)
        self._unstable.append(unstable)
        self._accept.append(accept)
        self.done += len(lp)

    def update(self) -> Tuned:
        """Close the block; return the setting for the next one or, after the last, for the draws."""
        rejected, accept = self._rates()
        if not self._frozen_at(self._block_start):
            self._adapt(rejected, accept)
            self._setting_since = self.done
        elif rejected > _GUARD_RATE and self._step_is_free:
            self._set_step(0.7 * self.tuned.step_size, 1.0)
            self._setting_since = self.done
        self._block_start = self.done
        self._blocks += 1
        self._unstable, self._accept = [], []
        if self.done >= self.length:
            self.tuned = self.tuned._replace(steps_per_draw=self._steps_per_draw())
        else:
            self.boundary = self._next_boundary()
        return self.tuned

    def stop(self) -> None:
        """End here: the next :meth:`update` is the last."""
        self.length = self.boundary = self.done

    @property
    def _step_is_free(self) -> bool:
        return self.settings.step_size is None and self.settings.kernel.scheme != Scheme.MALA

    def _frozen_at(self, transition: int) -> bool:
        return transition >= int(_CHECK_FROM * self.length)

    def _next_boundary(self) -> int:
        freeze = int(_CHECK_FROM * self.length)
        if self._frozen_at(self.done):
            return min(self.done + max(1, int(_CHECK_BLOCK * self.length)), self.length)
        boundary = self.done + max(_FIRST_BLOCK, int(_GROWTH * self.done))
        return boundary if freeze - boundary >= _FIRST_BLOCK else freeze

    def _rates(self) -> tuple[float, float]:
        """Rejected transitions in the block, but for those of the way down at the start, and mean acceptance."""
        if not self._unstable:
            return 0.0, 0.0
        unstable, accept = np.concatenate(self._unstable), np.concatenate(self._accept)
        potential = np.concatenate(self._potential)[-len(unstable) :]
        arrived = settled(potential, self._position[-1].shape[1])
        return float((unstable * arrived).mean()), float(accept.mean())

    def _window(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, gradients and a mask of those past the transient, over the newest part of the run."""
        position, gradient = np.concatenate(self._position), np.concatenate(self._gradient)
        potential = np.concatenate(self._potential)
        kept = min(len(potential), math.ceil(_WINDOW * self.done))
        position, gradient, potential = position[-kept:], gradient[-kept:], potential[-kept:]
        self._position, self._gradient, self._potential = [position], [gradient], [potential]
        return position, gradient, settled(potential, position.shape[1])

    def _adapt(self, rejected: float, accept: float) -> None:
        position, gradient, usable = self._window()
        previous = self.tuned
        if self.settings.scaling is None:
            coordinates = best_coordinates(position[usable], gradient[usable])
        else:
            coordinates = previous.coordinates._replace(centre=position[usable].mean(axis=0))
        self.tuned = previous._replace(coordinates=coordinates)
        if self.settings.step_size is not None:
            self._set_step(previous.step_size, 1.0)
        elif self.settings.kernel.scheme == Scheme.MALA:
            gain = 2.0 / math.sqrt(1.0 + self._blocks)
            self._set_step(previous.step_size * math.exp(gain * (accept - _TARGET_ACCEPT)), 1.0)
        else:
            self._cap = 0.8 * self._cap if rejected > _GUARD_RATE else min(1.0, 1.05 * self._cap)
            lipschitz = self._lipschitz(position, gradient, usable)
            step = self._cap * safe_step(self.settings, previous.friction, lipschitz)
            self._set_step(min(step, 2.0 * previous.step_size), lipschitz)

    def _set_step(self, step: float, lipschitz: float) -> None:
        K = midpoint_count(self.settings, step, self.tuned.friction, lipschitz)
        self.tuned = self.tuned._replace(step_size=step, K=K)

    def _lipschitz(self, position: np.ndarray, gradient: np.ndarray, usable: np.ndarray) -> float:
        y, g = self.tuned.coordinates.whiten(position), self.tuned.coordinates.pull_back(gradient)
        return lipschitz_bound(y, g, usable, remainder=self.settings.kernel.dynamics == HARMONIC)

    def _steps_per_draw(self) -> int:
        if self.settings.steps_per_draw is not None:
            return self.settings.steps_per_draw
        if not self._position:
            return 1
        position = np.concatenate(self._position)
        kept = max(self.length - self._setting_since, self.length // 2)
        return steps_for_autocorrelation(position[-kept:])
