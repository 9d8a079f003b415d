"""Whether a Gaussian block of a model is integrated out by itself: where that pays.

Chains move well in variables whose posterior has one shape up to scales of its own for each element, which the
preconditioner and the non-centring learn.  What they cannot follow is a shape that changes with the rest: between the
positions that are looked at, correlations of the block are compared by the spread of the eigenvalues of one precision,
of unit diagonal, in terms of the other.

``python -m benchmarks gaussian_blocks`` has what the rule was fitted on, and what it was not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor

from pmm_mcmc.model.checks import CHECKS
from pmm_mcmc.model.functions import model_cache, python_function
from pmm_mcmc.model.gaussian_block import GaussianBlock, gaussian_names, integrated_model

__all__ = ["block_that_helps", "block_that_pays"]

# Most variables, whose number enters to the third power, and fewest.
_MOST = 200
_FEWEST = 5
# Positions that are looked at, as far from the model's own as chains start.
_POSITIONS = 8
# The score from which a block is named as a remedy: those of the models above that gain nothing have 12 at most, those
# that gain 280 and more.
_FOLLOWS = 60.0
# Least score for a unit of the ratio of costs.  Of the models that it was fitted on those that gain have 160 a unit and
# more; 300 was taken, since one that is missed costs what it did, and the verdict names the block where it fails.
# Where rows depend on the rest no preconditioner helps: 350 a unit gains ten times, 11 nothing.
_WORTH = 300.0
_WORTH_OF_ROWS = 50.0


def block_that_pays(
    model: pm.Model, point: Mapping[str, np.ndarray], excluded: Collection[str]
) -> GaussianBlock | None:
    """Return the block that is integrated out of a model by itself; None for none, or one with ``excluded`` names."""
    sizes = [np.size(point[var.name]) for var in model.value_vars]
    names = gaussian_names(model, point) if sum(sizes) > _FEWEST else []
    if not set(excluded).isdisjoint(names):
        return None
    block = integrated_model(model, point, names)
    if block is None or not _FEWEST <= block.size <= _MOST:
        return None
    worth = _WORTH_OF_ROWS if block.rows_dependent else _WORTH
    pays = _shape_score(model, block, point) > worth * _nanoseconds(block) / _nanoseconds_as_written(block)
    return block if pays else None


def block_that_helps(model: pm.Model, point: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of a block whose shape follows the rest, whatever it costs: a remedy for slow chains."""
    names = gaussian_names(model, point)
    block = integrated_model(model, point, names)
    return names if block is not None and _shape_score(model, block, point) > _FOLLOWS else []


def _shape_score(model: pm.Model, block: GaussianBlock, point: Mapping[str, np.ndarray]) -> float:
    """Return the score of a block, computed once; 0 where there is no shape to compare."""
    scores: dict[GaussianBlock, float] = model_cache(model, "scores of blocks")
    if block not in scores:
        try:
            scores[block] = _score(block, point)
        except (np.linalg.LinAlgError, ValueError, *CHECKS):  # positions out of range of a check
            scores[block] = 0.0
    return scores[block]


def _nanoseconds(block: GaussianBlock) -> float:
    """Return about what a gradient takes: Cholesky factor and inverse, and the precision where it is summed anew."""
    p = block.size
    return 20_000 + 0.7 * p**3 + 0.3 * block.rows_summed * p**2


def _nanoseconds_as_written(block: GaussianBlock) -> float:
    return 6_000 + 15.0 * (block.rows + block.size) + 20.0 * block.rows_dependent * block.size


def _score(block: GaussianBlock, point: Mapping[str, np.ndarray]) -> float:
    """Return the median spread of shapes between two positions, times the root of their median condition number."""
    vars = block.rest.value_vars
    precision_at = python_function(list(vars), [block.precision])
    rng = np.random.default_rng(0)
    shapes = []
    for _ in range(_POSITIONS):
        with np.errstate(all="ignore"):
            moved = [point[var.name] + rng.uniform(-1.0, 1.0, size=np.shape(point[var.name])) for var in vars]
            (precision,) = precision_at(*(values.astype(pytensor.config.floatX) for values in moved))
            scale = np.diag(precision) ** -0.5
        shape = precision * scale * scale[:, None]
        if np.isfinite(shape).all():
            shapes.append(shape)
    if len(shapes) < 2:
        return 0.0
    conditions = [np.linalg.cond(shape) for shape in shapes]
    spreads = []
    for shape, other in pairwise(shapes):
        ridge = 1e-12 * np.eye(len(shape))
        values = np.abs(np.linalg.eigvals(np.linalg.solve(shape + ridge, other + ridge)))
        spreads.append(values.max() / values.min())
    return float(np.median(spreads) * np.sqrt(np.median(conditions)))
