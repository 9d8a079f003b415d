"""The setting of a step beside others, refined in warm-up: what it may learn from is one value of their variables.

Between two draws of the step the other variables move, so that changes of its gradient from draw to draw say nothing of
its curvature.  Each draw has two gradients at one value of the others: at the place where it begins, evaluated after
they moved, and at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.langevin.methods import HARMONIC
from pmm_mcmc.warmup import step_size
from pmm_mcmc.warmup.curvature import curvature_bound
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["Refinement"]

_DOUBLE = 2.0  # largest growth of a step by one refinement


@dataclass
class Refinement:
    """A setting and the pairs of places that it is refined by."""

    arguments: MethodArguments
    positions: list[np.ndarray] = field(default_factory=list)  # each (2, d): where a draw began, and where it ended
    gradients: list[np.ndarray] = field(default_factory=list)
    accept: list[float] = field(default_factory=list)  # acceptance since the last refinement
    failures: int = 0  # draws since then with a transition that failed because of the step
    due: int = THRESHOLDS.first_block  # pairs with which the next refinement is made
    share: float = 1.0  # of the step that the curvature allows

    def observe(self, position: np.ndarray, gradient: np.ndarray, accept: float, failed: bool) -> bool:
        """Add a pair ``(2, d)``; return whether a refinement is due."""
        self.positions.append(position)
        self.gradients.append(gradient)
        self.accept.append(accept)
        self.failures += failed
        return len(self.positions) >= self.due

    def refined(self, tuned: TunedParameters) -> TunedParameters:
        """Return the setting that the newest pairs show."""
        count = len(self.positions)
        accept = self.accept
        failures = self.failures
        self.accept = []
        self.failures = 0
        self.due = count + max(THRESHOLDS.first_block, int(THRESHOLDS.growth * count))
        if len(accept) < THRESHOLDS.first_block or tuned.coordinates.centre.size == 0:
            return tuned
        newest = max(int(THRESHOLDS.window * count), THRESHOLDS.first_block)
        position = np.stack(self.positions[-newest:])
        gradient = np.stack(self.gradients[-newest:])
        tuned = tuned._replace(coordinates=self._coordinates(tuned.coordinates, position, gradient))
        kernel = self.arguments.kernel
        y = tuned.coordinates.whiten(position)
        g = tuned.coordinates.pull_back(gradient)
        usable = np.ones(y.shape[:2], bool)
        curvature = curvature_bound(y, g, usable, kernel.dynamics == HARMONIC, self.arguments.sees_curvature)
        step = tuned.step_size
        if kernel.adjusted and self.arguments.step_size is None:
            step = step_size.step_for_acceptance(step, float(np.mean(accept)), _DOUBLE, self.arguments.method)
        elif step_size.follows_curvature(self.arguments):
            shrinks = failures > THRESHOLDS.failure_rate * len(accept)
            self.share = THRESHOLDS.shrink * self.share if shrinks else min(1.0, self.share / THRESHOLDS.shrink)
            longest = self.share * step_size.longest_step(self.arguments, tuned, curvature)
            step = min(longest, _DOUBLE * step) if longest > 0.0 else THRESHOLDS.shrink * step
        return step_size.with_step(self.arguments, tuned, step, curvature)

    def _coordinates(self, coordinates: Coordinates, position: np.ndarray, gradient: np.ndarray) -> Coordinates:
        """Return the preconditioner that whitens the law of the variables given the others, at the draws' centre."""
        centre = position[:, 1].mean(axis=0)
        if self.arguments.scaling is not None:
            return coordinates._replace(centre=centre)
        changes = np.diff(position, axis=1)[:, 0]
        moved = (changes**2).sum(axis=1) > 0.0
        if moved.sum() < THRESHOLDS.first_block:
            return coordinates._replace(centre=centre)
        fitted = best_coordinates(changes[moved], np.diff(gradient, axis=1)[moved, 0])
        return fitted._replace(centre=centre)
