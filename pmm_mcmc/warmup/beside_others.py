"""The setting of a step beside others, refined in warm-up: what it may learn from is one value of their variables.

Between two draws of the step the other variables move, so that changes of its gradient from draw to draw say nothing of
its curvature.  Each draw has two gradients at one value of the others: at the place where it begins, evaluated after
they moved, and at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.warmup import block_checks, step_size, timetable
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = ["Refinement"]


@dataclass
class Refinement:
    """A setting and the pairs of places that it is refined by, each a block of two draws."""

    arguments: MethodArguments
    pairs: list[Block] = field(default_factory=list)
    refined: int = 0  # pairs of former refinements
    share: float = 1.0  # of the step that the curvature allows

    @property
    def due(self) -> bool:
        """Whether the next refinement is."""
        return len(self.pairs) >= timetable.end_of_block(self.refined)

    def refine(self, tuned: TunedParameters) -> TunedParameters:
        """Return the setting that the newest pairs show."""
        count = len(self.pairs)
        latest = self.pairs[self.refined :]
        self.refined = count
        if len(latest) < THRESHOLDS.first_block or tuned.coordinates.centre.size == 0:
            return tuned
        newest = max(int(THRESHOLDS.window * count), THRESHOLDS.first_block)
        window = Block(*(np.concatenate(arrays) for arrays in zip(*self.pairs[-newest:], strict=True)))
        tuned = tuned._replace(coordinates=self._coordinates(tuned.coordinates, window))
        usable = np.ones(window.lp.shape, bool)
        curvature = block_checks.curvature(self.arguments, tuned.coordinates, window, usable, LocalCurvature())
        failures = np.mean([block_checks.failed(pair).any() for pair in latest])
        accept = float(np.mean([pair.accept for pair in latest]))
        shrinks = bool(failures > THRESHOLDS.failure_rate)
        tuned, self.share = step_size.adapted(self.arguments, tuned, self.share, accept, shrinks, curvature)
        return tuned

    def _coordinates(self, coordinates: Coordinates, window: Block) -> Coordinates:
        """Return the preconditioner that whitens the law of the variables given the others, at the draws' centre."""
        position = np.diff(window.position, axis=1)
        gradient = np.diff(window.gradient, axis=1)
        moved = (position**2).sum(axis=2) > 0.0
        if moved.sum() >= THRESHOLDS.first_block:
            changes = window._replace(position=position, gradient=gradient)
            coordinates = block_checks.fitted_coordinates(self.arguments, coordinates, changes, moved)
        return coordinates._replace(centre=window.position[:, 1].mean(axis=0))
