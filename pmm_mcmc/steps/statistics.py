"""Sample statistics of every draw, and the columns of PyMC's progress bar."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType
from rich.progress import TextColumn
from rich.table import Column

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.engines.contract import Chunk, TunedParameters
from pmm_mcmc.warmup.stein_identity import poisson_limit

GRADIENTS = ("gradient", "unconstrained", "noncentred")
# What PyMC's loop alone records: the step, as JSON at the first draw after warm-up, the gradients of its setting, and
# what its last draw has to say.
OF_STEP = ("sampler", "n_grad_setting", "warning")
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
    "n_grad_setting": (np.int64, []),
    "model_logp": (np.float64, []),
    **dict.fromkeys(GRADIENTS, (object, None)),
    "sampler": (object, []),
    "warning": (SamplerWarning, None),
}
# The same for adjusted draws.
ADJUSTED_STATISTICS: dict[str, tuple[Any, Any]] = {
    "step_size": (np.float64, []),
    "friction": (np.float64, []),
    "steps_per_draw": (np.int64, []),
    "acceptance_rate": (np.float64, []),
    "diverging": (bool, []),  # bool as in NUTS: PyMC refuses one statistic with two types
    "n_steps": (np.int64, []),
    "energy": (np.float64, []),
    **{name: STATISTICS[name] for name in ("n_grad_total", "model_logp", *GRADIENTS, *OF_STEP)},
}
WITHOUT_FRICTION = {name: kind for name, kind in STATISTICS.items() if name != "friction"}
ADJUSTED_WITHOUT_FRICTION = {name: kind for name, kind in ADJUSTED_STATISTICS.items() if name != "friction"}


class Stats(dict[str, Any]):
    """Statistics of one draw; for the progress bar, whether it is of the warm-up, and the failures of its phase."""

    __slots__ = ("tuning", "unstable_total")
    tuning: bool
    unstable_total: int


def row_of(
    names: Collection[str], chunk: Chunk, setting: TunedParameters, n_grad: int, structure: Structure, **values: Any
) -> Stats:
    """Return statistics of a draw ``(1, 1, ...)`` by name: ``values``, and a chunk's after ``n_grad`` gradients."""
    noncentred = chunk.position
    gradient = chunk.evaluation[..., : noncentred.shape[-1]]
    if "gradient" in names:
        parameters = setting.coordinates.density_parameters
        noncentred, gradient = structure.diagnostic_coordinates(noncentred, gradient, parameters)
    columns = columns_of(chunk, np.array([n_grad]), noncentred, gradient)
    values |= {name: column[0, 0] if name in GRADIENTS else column[0, 0].item() for name, column in columns.items()}
    values |= {"step_size": setting.step_size, "K": setting.K}
    return Stats({name: values[name] for name in names})


def warning_of(method: str, failures: int, draws: int, thin: int, adjusted: bool, last: bool) -> SamplerWarning | None:
    """Return what the last draw of a chain has to say, which PyMC logs; the ``last`` chain names the verdict."""
    verdict = "pmm.verdict(dt, model=model) says"
    if failures > poisson_limit(THRESHOLDS.unstable_rate * draws):
        failed = "proposals diverged" if adjusted else "transitions were unstable"
        text = f"{method}: {failures} of {draws * thin} {failed}; {verdict} where, and what to do"
        return SamplerWarning(WarningType.DIVERGENCES, text, "warn")
    text = f"{method}: {verdict} what the draws are worth"
    return SamplerWarning(WarningType.CONVERGENCE, text, "info") if last else None


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
        "energy": chunk.energy,
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


def progress_columns(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
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
