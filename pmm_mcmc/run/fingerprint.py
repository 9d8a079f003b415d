"""The identity of a log density, to continue a run: numbers at two fixed points, and names with shapes and dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pmm_mcmc.engines.contract import Engine, evaluated_at
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.chunks import Groups

__all__ = ["coordinate_labels", "identity_of"]


def coordinate_labels(names: Sequence[str]) -> list[str]:
    """Return the last label of each variable of the sampled vector, in order: its name and shape."""
    return list({name.partition("[")[0]: name for name in names}.values())


def identity_of(
    engine: Engine, layout: ResultTree, values_at: Callable[[np.ndarray], Groups], centre: np.ndarray
) -> dict[str, Any]:
    """Return entries by which a density is recognised, in another process and after a model is rebuilt.

    ``engine`` evaluates the density, and ``values_at`` the variables of ``layout`` at positions ``(1, n, d)``, by
    group, at two points near ``centre``: the model's initial point, or 0 without a model.  ``density`` has values and
    gradients there; ``derived`` sums of the variables; ``coordinates`` the last labels of the sampled vector's
    variables, in order; and each variable an entry with its type, dims and shape.
    """
    points = centre + 0.1 * np.random.default_rng(0).standard_normal((2, len(centre)))
    groups = values_at(points[None])
    lp, gradient = evaluated_at(engine.evaluate, points)
    variables = {f"{group}/{name}": values for group in groups for name, values in groups[group].items()}
    sums = [values[0].reshape(2, -1).sum(axis=1, dtype=float) for values in variables.values()]
    kinds = {name: f"{values.dtype} {list(values.shape[2:])}" for name, values in variables.items()}
    dims = layout.dims
    return {
        "density": np.column_stack([lp, gradient]),
        "derived": np.array(sums).reshape(len(sums), 2),
        "coordinates": coordinate_labels(layout.names),
        **{name: " ".join([kind, *dims.get(name.partition("/")[2], ())]) for name, kind in kinds.items()},
    }
