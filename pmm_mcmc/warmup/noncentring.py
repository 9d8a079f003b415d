"""The fit of the non-centring, to the same window of draws as the preconditioner.

Its parameters say how far each variable with a parent is non-centred.  ``x`` are the model's coordinates and ``z`` the
non-centred ones, in which the warm-up works.  Before each update of the warm-up the parameters are fitted again and the
window is expressed in the new ``z``.  This evaluates no gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.contract import in_model_coordinates
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.transient import narrowness, past_transient

__all__ = ["NoncentringFit"]


@dataclass
class NoncentringFit:
    """The window of draws in the model's coordinates, and the gradients there: arrays ``(chain, n, d)``."""

    positions: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)

    def observe(self, block: Block, structure: Structure, adapting: bool) -> Block:
        """Return draws ``z`` with evaluations as draws with gradients, and keep ``x`` for the next fit, if any."""
        x, slope = in_model_coordinates(block.position, block.gradient)
        d = x.shape[-1]
        z, gradient = structure.folded(block.position, block.gradient[..., :d])
        if adapting:
            for arrays, newest in ((self.positions, x), (self.gradients, slope)):
                arrays[:] = [*(older[: len(x)] for older in arrays), newest.copy()]
        return block._replace(position=z, gradient=gradient, lp=block.lp + block.gradient[..., 3 * d])

    def learn(
        self, structure: Structure, old: np.ndarray, blocks: list[Block], length: int
    ) -> tuple[np.ndarray, list[Block]]:
        """Fit the non-centring to the newest ``length`` draws; return it, and these draws in the new coordinates.

        ``blocks`` are the draws so far, in the coordinates of the ``old`` non-centring.
        """
        newest = blocks[-1].lp.shape[1]
        chains, _, d = blocks[-1].position.shape
        length = max(min(length, THRESHOLDS.window_numbers // max(chains * d, 1)), newest)
        x, slope = (np.concatenate(arrays, axis=1)[:, -length:] for arrays in (self.positions, self.gradients))
        self.positions = [x]
        self.gradients = [slope]
        window = Block.newest(blocks, length)
        usable = past_transient(-window.lp, d, narrowness(blocks[-1].gradient, d))
        in_order = usable.T.ravel()
        arrays = [array.swapaxes(0, 1).reshape(-1, d)[in_order] for array in (x, slope, window.gradient)]
        good = np.logical_and.reduce([np.isfinite(array).all(axis=1) for array in arrays])
        if good.sum() < 2:
            return old, blocks
        at_x, of_x, of_z = (array[good] for array in arrays)
        noncentring = structure.learn(at_x, of_x, of_z, old)
        z, log_det = structure.to_z(x, noncentring)
        _, gradient = structure.pull_back(z, slope, noncentring)
        _, old_log_det = structure.to_z(x, old)
        window = window._replace(position=z, gradient=gradient, lp=window.lp - old_log_det + log_det)
        cut = window.lp.shape[1] - newest
        earlier_blocks = [Block(*(array[:, :cut] for array in window))] if cut else []
        return noncentring, [*earlier_blocks, Block(*(array[:, cut:] for array in window))]
