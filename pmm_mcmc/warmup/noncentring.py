"""The warm-up schedule with non-centring, which is fitted to the same window of draws as the preconditioner.

A *site* is a variable whose location or scale depends on others; its numbers say how far it is non-centred.  ``x`` are
the model's coordinates and ``z`` the non-centred ones, in which :mod:`pmm_mcmc.warmup.schedule` works.  Before each
update of the schedule the sites are fitted again and the window is expressed in the new ``z``.  This evaluates no
gradients, and the schedule goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.arguments import Block, MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import model_side
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.evidence import narrowness, settled
from pmm_mcmc.warmup.schedule import Warmup

__all__ = ["NoncentringWarmup"]


@dataclass
class NoncentringWarmup:
    """A :class:`pmm_mcmc.warmup.schedule.Warmup` that fits the non-centring too.

    Attributes
    ----------
    warmup
        The schedule.
    sites
        Numbers of the sites at present.
    """

    warmup: Warmup
    sites: np.ndarray
    _positions: list[np.ndarray] = field(default_factory=list)
    _gradients: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        arguments: MethodArguments,
        length: int,
        position: np.ndarray,
        gradient: np.ndarray,
        sites: np.ndarray,
        least: int | None = None,
        shortest: int = CALIBRATION.first_block,
        checked: bool = True,
    ) -> NoncentringWarmup:
        """Begin from positions ``z`` and gradients ``(n, d)``; see :meth:`pmm_mcmc.warmup.schedule.Warmup.start`."""
        return cls(Warmup.start(arguments, length, position, gradient, least, shortest, checked), sites)

    # -- as of the schedule ------------------------------------------------------------------------------------------

    @property
    def tuned(self) -> TunedParameters:
        """The setting at present."""
        tuned = self.warmup.tuned
        return tuned._replace(coordinates=tuned.coordinates._replace(sites=self.sites))

    @property
    def length(self) -> int:
        """Transitions of each chain at most."""
        return self.warmup.length

    @property
    def done(self) -> int:
        """Transitions observed so far."""
        return self.warmup.done

    @property
    def boundary(self) -> int:
        """The transition at which the current block ends."""
        return self.warmup.boundary

    @property
    def frozen(self) -> int | None:
        """Transition from which the setting has only been checked, or ``None``."""
        return self.warmup.frozen

    @property
    def clean(self) -> bool | None:
        """Whether the last check passed; ``None`` before the first."""
        return self.warmup.clean

    @property
    def source(self) -> np.ndarray:
        """After :meth:`update`: the chain that each chain has to go on from."""
        return self.warmup.source

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.warmup.finished

    @property
    def ready(self) -> bool:
        """Whether the setting is frozen and its last check passed."""
        return self.warmup.ready

    @property
    def learning(self) -> float:
        """How many chains the next block may have draws of."""
        return self.warmup.learning

    @property
    def replaces(self) -> bool:
        """Whether a chain that has not passed the transient is replaced."""
        return self.warmup.replaces

    @property
    def tolerance(self) -> float:
        """Energy that a step may gain beyond the guard's threshold, as a share of its kinetic energies."""
        return self.warmup.tolerance

    @property
    def n_grad(self) -> int:
        """Gradients that updates have evaluated so far, for all chains together."""
        return self.warmup.n_grad

    def stop(self) -> None:
        """End the warm-up: the next :meth:`update` is the last."""
        self.warmup.stop()

    def observe(self, block: Block, structure: Structure) -> None:
        """Record the draws ``z`` of all chains in the current block, with what the engine returned there."""
        if not structure.is_identity:
            x, slope = model_side(block.position, block.gradient)
            d = x.shape[-1]
            z, g = structure.folded(block.position, block.gradient[..., :d])
            lp = block.lp + block.gradient[..., 3 * d]
            if self.frozen is None:
                self._positions, self._gradients = (
                    [older[: len(x)] for older in arrays] for arrays in (self._positions, self._gradients)
                )
                self._positions.append(x.copy())
                self._gradients.append(slope.copy())
            block = block._replace(position=z, gradient=g, lp=lp)
        self.warmup.observe(block)

    def update(self, structure: Structure, gradient_at: Callable[..., np.ndarray]) -> TunedParameters:
        """End the block; return the setting of the next one: see :meth:`pmm_mcmc.warmup.schedule.Warmup.update`."""
        if self._positions and self.frozen is None and self.warmup.adapting:
            self._learn(structure)
        self.warmup.update(lambda z: gradient_at(z, self.sites))
        if self.frozen is not None or self.finished:
            self._positions = []
            self._gradients = []
        return self.tuned

    def _learn(self, structure: Structure) -> None:
        """Fit the sites to the window of draws, and express these in the new coordinates."""
        blocks = self.warmup.blocks
        newest = blocks[-1].lp.shape[1]
        chains, _, d = blocks[-1].position.shape
        length = max(math.ceil(CALIBRATION.window * self.done), newest)
        length = max(min(length, CALIBRATION.window_numbers // max(chains * d, 1)), newest)
        x, slope = (np.concatenate(array, axis=1)[:, -length:] for array in (self._positions, self._gradients))
        self._positions = [x]
        self._gradients = [slope]
        window = Block.newest(blocks, length)
        usable = settled(-window.lp, d, narrowness(blocks[-1].gradient, d))
        in_order = usable.T.ravel()
        arrays = [array.swapaxes(0, 1).reshape(-1, d)[in_order] for array in (x, slope, window.gradient)]
        good = np.logical_and.reduce([np.isfinite(array).all(axis=1) for array in arrays])
        if good.sum() < 2:
            return
        old = self.sites
        positions, of_x, of_z = (array[good] for array in arrays)
        self.sites = structure.learn(positions, of_x, of_z, old)
        z, log_det = structure.to_z(x, self.sites)
        _, gradient = structure.pull_back(z, slope, self.sites)
        _, old_log_det = structure.to_z(x, old)
        window = window._replace(position=z, gradient=gradient, lp=window.lp - old_log_det + log_det)
        cut = window.lp.shape[1] - newest
        earlier_blocks = [Block(*(array[:, :cut] for array in window))] if cut else []
        self.warmup.blocks = [*earlier_blocks, Block(*(array[:, cut:] for array in window))]
