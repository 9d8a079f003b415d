"""The setting of a step of PyMC: learnt once, before the chains that take it, and what is to be said of it.

Beside other steps it is refined in each chain's warm-up, by what one value of their variables shows: between two draws
of the step the others move, so that changes of its gradient from draw to draw say nothing of its curvature.  Each draw
has two gradients at one value of the others: at the place where it begins, evaluated after they moved, and at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Engine, TunedParameters, chains_of, in_model_coordinates
from pmm_mcmc.langevin.methods import Scheme
from pmm_mcmc.model.initial_points import JITTER, spread_starts
from pmm_mcmc.warmup import block_checks, step_size
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.step_size import longest_step
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import FEWEST, Warming, end_of_block

# Transitions of each chain that a setting is learnt from, at most: those of ``pmm.sample``.
LENGTH = 1000
# Share of the step of "auto" below which a step is said to be short, and by which a given one is too long.
_CLEAR = 0.8
# Draws after which a chain has forgotten the place that it was given: the autocorrelation of all coordinates and their
# squares is then below .5^10.
_FORGETTING = 10


@dataclass(frozen=True)
class Learnt:
    """A setting, with what its chains start from.

    Attributes
    ----------
    arguments, tuned
        What was asked for, and the setting.
    curvature
        The largest curvature that its step follows.
    places : (n, d)
        The last draws of the chains that it was learnt from, in the model's coordinates.
    settled
        Whether its last check passed.
    n_grad
        Gradients that it took, which no chain has reported.
    """

    arguments: MethodArguments
    tuned: TunedParameters
    curvature: float
    places: np.ndarray
    settled: bool
    n_grad: int

    @property
    def forgetting(self) -> int:
        """Transitions after which a chain has forgotten the place that it was given."""
        return _FORGETTING * self.tuned.steps_per_draw

    @property
    def remarks(self) -> list[str]:
        """Lines about a setting that was not learnt, a given step that is too long, and one that is held short."""
        arguments = self.arguments
        step = arguments.step_size
        lines = []
        if not self.settled and step is None:
            lines.append("its setting failed its last check; look at pmm.verdict(dt) before you use the draws")
        if arguments.kernel.adjusted or not self.places.size:
            return lines
        longest = longest_step(arguments, self.tuned, self.curvature)
        if step is not None and step > longest / _CLEAR:
            lines.append(
                f"step_size={step:.3g} is too long for target_bias={arguments.target_bias:g}, at which 'auto' takes "
                f"{longest:.2g}: variances are off by much more"
            )
        if step is None and arguments.kernel.scheme == Scheme.CELLS and "Poisson" in arguments.method:
            free = longest_step(replace(arguments, K=None, grid="left", option=2), self.tuned, self.curvature)
            held = f"option={arguments.option}" if arguments.K is None else f"K={arguments.K}"
            if longest < _CLEAR * free:
                lines.append(
                    f"{held} on the {arguments.grid} grid holds the step at {longest:.2g}, where K='auto' takes "
                    f"{free:.2g}"
                )
        return lines


def learn(
    arguments: MethodArguments,
    engine: Engine,
    centre: np.ndarray,
    rng: np.random.Generator,
    show: Callable[[Warming], None],
    width: float = JITTER,
) -> Learnt | None:
    """Return the setting that chains learn which start within ``width`` of a position; None if none can start there.

    ``show`` is called after each block.
    """
    density_parameters = engine.structure.initial_noncentring()
    tries = 0

    def gradient_at(x: np.ndarray) -> np.ndarray:
        nonlocal tries
        tries += len(x)
        return engine.gradient_at(engine.structure.to_z(x, density_parameters)[0], density_parameters)

    starts = spread_starts(centre, FEWEST, None, gradient_at, rng, width)
    if starts is None:
        return None
    warming = Warming.start(engine, arguments, starts, LENGTH, rng)
    warmup = warming.warmup
    assert warmup is not None
    while not warming.finished:
        warming.block(engine)
        show(warming)
    tuned = warming.tuned
    last = tuned.coordinates.place(chains_of(warming.ensemble.state).evaluated)
    places, _ = in_model_coordinates(last, warming.ensemble.evaluation)
    n_grad = tries + int(warming.n_grad.sum())
    return Learnt(arguments, tuned, warmup.curvature, places.copy(), bool(warmup.passed), n_grad)


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
        return len(self.pairs) >= end_of_block(self.refined)

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
