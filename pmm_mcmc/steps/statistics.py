"""Sample statistics of every draw, and the columns of PyMC's progress bar."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.progress import TextColumn
from rich.table import Column

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.contract import Chunk
from pmm_mcmc.steps.chain import Chain

__all__ = [
    "ADJUSTED_STATISTICS",
    "GRADIENTS",
    "STATISTICS",
    "WITHOUT_FRICTION",
    "Stats",
    "columns_of",
    "progress_columns",
    "progress_values",
    "rows_of",
]  # fmt: skip

GRADIENTS = ("gradient", "unconstrained", "noncentred")
# Names, types and shapes, in the form of PyMC's stats_dtypes_shapes.
STATISTICS: dict[str, tuple[Any, Any]] = {
    "step_size": (np.float64, []),
    "K": (np.int64, []),
    "friction": (np.float64, []),
    "steps_per_draw": (np.int64, []),
    "n_grad": (np.int64, []),
    "n_grad_total": (np.int64, []),
    "unstable": (np.int64, []),
    "refined": (np.int64, []),
    "model_failures": (np.int64, []),
    "model_logp": (np.float64, []),
    **dict.fromkeys(GRADIENTS, (object, None)),
}
# The same for adjusted draws.
ADJUSTED_STATISTICS: dict[str, tuple[Any, Any]] = {
    "step_size": (np.float64, []),
    "friction": (np.float64, []),
    "steps_per_draw": (np.int64, []),
    "acceptance_rate": (np.float64, []),
    "diverging": (bool, []),  # bool as in NUTS: PyMC refuses one statistic with two types
    "n_steps": (np.int64, []),
    **{name: STATISTICS[name] for name in ("n_grad_total", "model_logp", *GRADIENTS)},
}
WITHOUT_FRICTION = {name: kind for name, kind in STATISTICS.items() if name != "friction"}


class Stats(dict[str, Any]):
    """Statistics of one draw; for the progress bar, whether it is of the warm-up, and the failures of its phase."""

    __slots__ = ("tuning", "unstable_total")
    tuning: bool
    unstable_total: int


def rows_of(chunk: Chunk, chain: Chain, statistics: dict[str, tuple[Any, Any]], structure: Structure) -> list[Stats]:
    """Return the ``statistics`` of each draw of a chunk, from the chain before them."""
    tuned = chain.tuned
    d = chunk.position.shape[1]
    sampled = chunk.position, chunk.evaluation
    if "gradient" in statistics:
        sampled = structure.diagnostic_coordinates(
            chunk.position, chunk.evaluation[:, :d], tuned.coordinates.density_parameters
        )
    constant = {
        "step_size": tuned.step_size,
        "K": tuned.K,
        "friction": tuned.friction if chain.arguments.dynamics == "underdamped" else np.nan,
        "steps_per_draw": chain.thin,
    }
    constant = {name: value for name, value in constant.items() if name in statistics}
    tuning = chain.iteration < chain.n_tune  # a chunk ends at the end of the warm-up
    rows = []
    for failed in (chain.unstable + np.cumsum(chunk.unstable)).tolist():
        row = Stats(constant)
        row.unstable_total = failed
        row.tuning = tuning
        rows.append(row)
    for name, values in columns_of(chunk, np.asarray(chain.reported), *sampled).items():
        if name in statistics:
            for row, value in zip(rows, values if name in GRADIENTS else values.tolist(), strict=True):
                row[name] = value
    return rows


def columns_of(chunk: Chunk, n_grad: np.ndarray, noncentred: np.ndarray, gradient: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of the draws of a chunk by name; ``n_grad`` are the gradients before it."""
    return {
        "n_grad": chunk.n_grad,
        "n_steps": chunk.n_grad,
        "n_grad_total": n_grad[..., None] + np.cumsum(chunk.n_grad, axis=-1),
        "unstable": chunk.unstable,
        "diverging": chunk.unstable > 0,
        "model_failures": chunk.model_failures,
        "model_logp": chunk.lp,
        "acceptance_rate": chunk.accept,
        "refined": chunk.refined,
        "gradient": gradient,
        "unconstrained": chunk.model_position,
        "noncentred": noncentred,
    }


# Columns of the progress bar, and their headings.
_COLUMNS = {
    "step_size": ("{task.fields[step_size]:0.3g}", "Step size"),
    "K": ("{task.fields[K]}", "K"),
    "n_grad": ("{task.fields[n_grad]}", "Gradients"),
    "unstable": ("{task.fields[unstable]}", "Unstable"),
}


def progress_columns(n_chains: int) -> tuple[list[TextColumn], dict[str, list[float]]]:
    """Return the columns of PyMC's progress bar, and their first values for each chain."""
    columns = [TextColumn(text, table_column=Column(heading, ratio=1)) for text, heading in _COLUMNS.values()]
    return columns, {name: [0] * n_chains for name in _COLUMNS}


def progress_values(stats: Stats) -> dict[str, Any]:
    """Return the values of these columns after a draw."""
    return {
        "step_size": stats["step_size"],
        "K": stats.get("K", 1),
        "n_grad": stats["n_grad_total"],
        "unstable": stats.unstable_total,
        "failing": stats.unstable_total > 0 and not stats.tuning,
    }
