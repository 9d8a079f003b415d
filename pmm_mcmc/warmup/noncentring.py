"""The fit of the non-centring, to the same window of draws as the preconditioner.

Its parameters say how far each variable with a parent is non-centred, by the curvature that data give each of its
elements (:meth:`pmm_mcmc.coordinates.structure.Structure.learn`).  ``x`` are the model's coordinates and ``z`` the
non-centred ones, in which the warm-up works.  A curvature is a change of the gradient over *pairs*: places where the
chains are, and places nearby that cost one gradient each.  At the starts they decide where the warm-up begins: a wide
prior puts a scale so far up that data hold every element more firmly than it does, and non-centred chains would have to
walk down a ridge.  Before each update of the warm-up the parameters are fitted again, to the pairs of the last two
blocks, and the window is expressed in the new ``z``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates, best_coordinates, misfit
from pmm_mcmc.coordinates.child import Child
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.contract import Engine, in_model_coordinates
from pmm_mcmc.warmup.block import Block, narrowness, past_transient
from pmm_mcmc.warmup.thresholds import THRESHOLDS

# Pairs of a block, one gradient each, for all variables together; each has one at least.  With 2, 4 or 8 for each
# variable seven hierarchies cost the same but for chance.
_PAIRS = 8
# Most that starts may be off by once they are expressed in the chains' coordinates.
_ROUNDED = 1e-6
# Draws by which a scale is tested for its sign.
_TESTED = 200


def noncentring_at_starts(engine: Engine, starts: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the non-centring at the starts ``(chain, d)`` of the model, and the gradients that it has cost."""
    structure = engine.structure
    noncentring = structure.initial_noncentring()
    if not structure.children:
        return noncentring, 0
    z, _ = structure.to_z(starts[:_PAIRS], noncentring)
    x, of_x = in_model_coordinates(z, engine.evaluations_at(z, noncentring))
    finite = np.isfinite(of_x).all(axis=1)
    if not finite.any():
        return noncentring, len(z)
    noncentring, n_grad = noncentring_at(engine, x[finite], of_x[finite], noncentring)
    everything = np.ones(len(structure.signed), bool)
    noncentring = structure.without_sign(noncentring, everything)
    # Curvatures of 1e14 beside none, as of counts far off, leave no digit of a group.
    back = structure.to_x(structure.to_z(starts, noncentring)[0], noncentring)
    if not np.allclose(back, starts, rtol=_ROUNDED, atol=_ROUNDED):
        noncentring = structure.without_sign(structure.initial_noncentring(), everything)
    return noncentring, len(z) + n_grad


def noncentring_at(engine: Engine, x: np.ndarray, of_x: np.ndarray, noncentring: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the non-centring at positions ``(n, d)`` with gradients, and the gradients that its pairs have cost."""
    rows = np.linspace(0, len(x) - 1, min(_PAIRS, len(x))).astype(int)
    children = engine.structure.children
    pairs = [_pairs(engine, x[rows], of_x[rows], child, noncentring, 0) for child in children]
    return engine.structure.learn(x, of_x, pairs, noncentring), sum(array.shape[1] for array in pairs)


def _pairs(
    engine: Engine, x: np.ndarray, of_x: np.ndarray, child: Child, noncentring: np.ndarray, seed: int
) -> np.ndarray:
    """Return pairs ``(4, n, d)`` of a child at positions ``(n, d)``, none of a fixed one: see ``Structure.learn``."""
    if child.fixed:
        return np.empty((4, 0, x.shape[1]))
    noncentring = engine.structure.unswept(noncentring)
    z = engine.structure.displaced(x, child, noncentring, np.random.default_rng(seed))
    return np.stack([x, of_x, *in_model_coordinates(z, engine.evaluations_at(z, noncentring))])


@dataclass
class NoncentringFit:
    """What the fit is made by.

    Attributes
    ----------
    positions, gradients
        The window of draws in the model's coordinates, and the gradients there: arrays ``(chain, n, d)``.
    pairs
        Those of each variable in the last two blocks: arrays ``(4, n, d)``.
    evaluations
        Gradients spent for pairs.
    """

    positions: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    pairs: list[list[np.ndarray]] = field(default_factory=list)
    evaluations: int = 0

    def observe(self, block: Block, structure: Structure, adapting: bool) -> Block:
        """Return draws ``z`` with evaluations as draws with gradients, and keep ``x`` for the next fit, if any."""
        x, slope = in_model_coordinates(block.position, block.gradient)
        d = x.shape[-1]
        z, gradient = structure.folded(block.position, block.gradient[..., :d])
        if adapting:
            for arrays, newest in ((self.positions, x), (self.gradients, slope)):
                arrays[:] = [*(older[: len(x)] for older in arrays), newest.copy()]
        return block._replace(position=z, gradient=gradient, lp=block.lp + block.gradient[..., 3 * d])

    def end(self) -> None:
        """Drop what no fit will be made by."""
        self.positions = []
        self.gradients = []
        self.pairs = []

    def learn(
        self, engine: Engine, old: np.ndarray, blocks: list[Block], length: int
    ) -> tuple[np.ndarray, list[Block]]:
        """Fit the non-centring to the newest ``length`` draws; return it, and these draws in the new coordinates.

        ``blocks`` are the draws so far, in the coordinates of the ``old`` non-centring.
        """
        structure = engine.structure
        newest = blocks[-1].lp.shape[1]
        chains, _, d = blocks[-1].position.shape
        length = max(min(length, THRESHOLDS.window_numbers // max(chains * d, 1)), newest)
        x, slope = (np.concatenate(arrays, axis=1)[:, -length:] for arrays in (self.positions, self.gradients))
        self.positions = [x]
        self.gradients = [slope]
        window = Block.newest(blocks, length)
        usable = past_transient(-window.lp, d, narrowness(blocks[-1].gradient, d))
        in_order = usable.T.ravel()
        at_x, of_x = (array.swapaxes(0, 1).reshape(-1, d)[in_order] for array in (x, slope))
        good = np.isfinite(at_x).all(axis=1) & np.isfinite(of_x).all(axis=1)
        if good.sum() < 2:
            return old, blocks
        at_x = at_x[good]
        of_x = of_x[good]
        begin = int((1.0 - newest / x.shape[1]) * (len(at_x) - 1))
        children = engine.structure.children
        around = []
        for child in children:
            elements = child.shape[-1] if child.kind == "grouped" else 1
            count = min(max(-(-_PAIRS // len(children)), -(-elements // 2)), _PAIRS)
            rows = np.unique(np.linspace(begin, len(at_x) - 1, count).astype(int))
            around.append(_pairs(engine, at_x[rows], of_x[rows], child, old, self.evaluations))
            self.evaluations += around[-1].shape[1]
        self.pairs = [*self.pairs[-1:], around]
        pairs = [np.concatenate(arrays, axis=1) for arrays in zip(*self.pairs, strict=True)]
        noncentring = structure.learn(at_x, of_x, pairs, old)
        if structure.signed.size:
            at_z, _ = structure.to_z(at_x, noncentring)
            _, of_z = structure.pull_back(at_z, of_x, noncentring)
            noncentring = structure.without_sign(noncentring, one_sided(structure, at_z, of_z, noncentring))
        z, log_det = structure.to_z(x, noncentring)
        _, gradient = structure.pull_back(z, slope, noncentring)
        _, old_log_det = structure.to_z(x, old)
        window = window._replace(position=z, gradient=gradient, lp=window.lp - old_log_det + log_det)
        cut = window.lp.shape[1] - newest
        earlier_blocks = [Block(*(array[:, :cut] for array in window))] if cut else []
        return noncentring, [*earlier_blocks, Block(*(array[:, cut:] for array in window))]


def one_sided(structure: Structure, z: np.ndarray, gradient: np.ndarray, noncentring: np.ndarray) -> np.ndarray:
    """Return which signed scales ``(k,)`` are better off as logarithms, at draws ``(n, d)`` in order of time.

    A scale with a sign has no tail towards 0.  Yet it may have one upward, as the scale of few groups has, and what
    changes sign with it may be correlated with what does not, as these groups' effects are with an intercept: the
    other way round on the other side, where no preconditioner suits that suits this one.  The older draws give a
    preconditioner for the newer ones with the sign, and one for their logarithms: the logarithm is taken if that
    leaves less.  Newer draws that are mirrored tell whether the former fits on the other side, but for its centre, of
    which a step knows nothing: not if it leaves more of a coordinate that changes sign than a preconditioner that fits
    may leave.  In eight models (two seeds) signs that left up to 1.4 cost 0.3 to 1.3 times what logarithms did, 0.6 in
    the median, and runs that kept one that left 2.4 or more 2 to 15 times as much.
    """
    split = int(0.6 * len(z))
    sides = np.zeros(len(structure.signed), bool)
    if split < 2:
        return sides
    coordinates = best_coordinates(z[:split], gradient[:split])
    rows = np.linspace(split, len(z) - 1, min(_TESTED, len(z) - split)).astype(int)
    here = _misfit_of_shape(coordinates, z[rows], gradient[rows])
    for i, (mirrored, of_mirrored, count) in enumerate(structure.mirrored(z[rows], gradient[rows])):
        # On a Gaussian the mean of y^2 + g^2 is that of (y + g)^2, and 2.
        left = _misfit_of_shape(coordinates, mirrored, of_mirrored) - here
        sides[i] = left > (THRESHOLDS.misfit - 2.0) * count
        if not sides[i]:
            log_z, of_log_z = structure.as_logarithms(z, gradient, noncentring, np.array([i]))
            of_logarithm = best_coordinates(log_z[:split], of_log_z[:split])
            sides[i] = _misfit_of_shape(of_logarithm, log_z[rows], of_log_z[rows]) < here
    return sides


def _misfit_of_shape(coordinates: Coordinates, position: np.ndarray, gradient: np.ndarray) -> float:
    """Return the misfit of coordinates whose centre is fitted to the draws."""
    off = (coordinates.whiten(position) + coordinates.pull_back(gradient)).mean(axis=0)
    return misfit(coordinates._replace(centre=coordinates.place(off)), position, gradient)
