"""The table of a result's parameters: estimates, biases, convergence; computed once."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.parameters import ROUNDING, coordinate_of
from pmm_mcmc.diagnostics.stein import corrected, uncorrected
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import between_pieces, count_pieces

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["BIASES", "remembered", "selected", "table_of"]

# Columns of the table of biases.
BIASES = (
    "mean", "mcse", "mean_cv", "mcse_cv", "bias", "bias_se", "bias_sd_units",
    "sd", "sd_cv", "mcse_sd_cv", "bias_of_sd", "bias_of_sd_se", "unexplained",
)  # fmt: skip

# Results whose tables are kept in memory.
_KEPT = 4
_GROUPS = ("posterior", "posterior_mean", "sample_stats", "sample_stats_total", "equilibration", "ladder")
# Bytes of draws that a checksum reads at once: a read costs as much as a tenth of a megabyte of checksum.
_READ = 2**24


def table_of(run: Run, numbers: np.ndarray | None = None) -> pd.DataFrame:
    """Return the columns of ``BIASES`` and of convergence: a row for each parameter, or for those in ``numbers``.

    ``within`` and ``between`` are standard errors of a mean over the standard deviation of the draws: ArviZ's, and the
    one between the means of the chains.
    """
    numbers = np.arange(len(run.parameters)) if numbers is None else np.sort(numbers)
    parts = [pd.DataFrame(_columns(run, values), index=indices) for indices, values in run.parameters.slabs(numbers)]
    if not parts:
        return pd.DataFrame(columns=[*BIASES, "r_hat", "ess_bulk", "within", "between"], dtype=float)
    table = pd.concat(parts).loc[numbers]
    table.index = pd.Index([run.parameters.labels[i] for i in numbers])
    return table


def _columns(run: Run, values: np.ndarray) -> dict[str, np.ndarray]:
    coordinate = coordinate_of(values, run.sampled_position)
    with np.errstate(invalid="ignore"):
        constant = np.ptp(values, axis=(0, 1)) <= ROUNDING * np.abs(values[0, 0])
    values = np.where(constant, values[:1, :1], values) if constant.any() else values
    if run.correctable:
        mean = corrected(values, run.folds, coordinate, unbiased=run.adjusted)
        # A squared deviation does not vary with a direction linearly: it follows that of the deviation.
        second = corrected((values - mean.value) ** 2, run.folds, coordinate, values, unbiased=run.adjusted)
    else:
        mean = uncorrected(values)
        second = uncorrected((values - mean.value) ** 2)
    sd = np.sqrt(np.maximum(second.value, 0.0))  # and by the delta method
    of_variance = np.maximum(2.0 * sd, 1e-300)
    with np.errstate(invalid="ignore", divide="ignore"):  # the standard deviation of what is not finite
        about = values - values[:1, :1]
        raw_sd = about.std(axis=(0, 1))
        chains = values.shape[0]
        converged = convergence(values)
        moves = raw_sd > 0.0
        apart = about.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(chains) if chains > 1 else np.zeros_like(raw_sd)
        return {
            "mean": mean.raw,
            "mcse": mean.raw_se,
            "mean_cv": mean.value,
            "mcse_cv": mean.se,
            "bias": mean.bias,
            "bias_se": mean.bias_se,
            "bias_sd_units": mean.bias / np.where(sd > 0.0, sd, np.nan),
            "sd": raw_sd,
            "sd_cv": np.where(second.used, sd, raw_sd),
            "mcse_sd_cv": second.se / of_variance,
            "bias_of_sd": np.where(second.used, raw_sd - sd, np.nan),
            "bias_of_sd_se": second.bias_se / of_variance,
            "unexplained": mean.left,
            "r_hat": np.where(moves, converged.r_hat, np.nan),
            "ess_bulk": converged.ess_bulk,
            "within": np.where(moves, converged.mcse / raw_sd, 0.0),
            "between": np.where(moves, apart / raw_sd, 0.0),
        }


def selected(run: Run) -> np.ndarray:
    """Return the numbers of the parameters that a verdict judges: all or, of very many, the most suspect.

    The free variables, which come first, are all judged; deterministics are functions of them.  Of these, the worst are
    judged by the standard errors between batches of the mean, and of the variance.
    """
    p = len(run.parameters)
    always = THRESHOLDS.always_without_gradients
    if run.position is not None:
        always = max(THRESHOLDS.always_judged, 2 * run.position.shape[2])
    if p <= always + 2 * THRESHOLDS.worst_judged:
        return np.arange(p)
    measures = np.zeros((2, p))
    cut = max(2, count_pieces(run.chains, run.draws))
    for indices, values in run.parameters.slabs():
        with np.errstate(all="ignore"):
            f = values - values[:1, :1]
            pieces = f[:, run.draws % cut :].reshape(run.chains * cut, -1, len(indices))
            means = pieces.mean(axis=1)
            squares = np.einsum("mnp,mnp->mp", pieces, pieces) / pieces.shape[1]
            mean = means.mean(axis=0)
            variance = squares.mean(axis=0) - mean**2
            measures[0, indices] = between_pieces(means, run.chains) / np.sqrt(variance)
            measures[1, indices] = between_pieces(squares - 2.0 * mean * means, run.chains) / variance
    suspicion = np.nan_to_num(measures, nan=0.0, posinf=0.0)[:, always:]
    worst = np.argsort(-suspicion, axis=1, kind="stable")[:, : THRESHOLDS.worst_judged] + always
    return np.union1d(np.arange(always), worst)


_TABLES: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()


def remembered(dt: Any) -> dict[str, Any]:
    """Return the dictionary of tables of a result, to be added to; equal data share one, whatever object holds them."""
    key = tuple((group, *_digest(dt[group].to_dataset())) for group in _GROUPS if group in dt.children)
    tables = _TABLES.setdefault(key, {})
    _TABLES.move_to_end(key)
    while len(_TABLES) > _KEPT:
        _TABLES.popitem(last=False)
    return tables


def _digest(dataset: Any) -> tuple[Any, ...]:
    """Return a checksum of each variable, with names, coordinates and attributes."""
    coords = tuple((name, tuple(map(str, np.ravel(values)))) for name, values in dataset.coords.items())
    sums = []
    for variable in dataset.data_vars.values():
        checksum = 0
        dim = variable.dims[0] if variable.ndim else None
        rows = max(1, _READ * variable.sizes.get(dim, 1) // max(1, variable.nbytes))
        for start in range(0, variable.sizes.get(dim, 1), rows):  # in parts, since they may be on disk and large
            values = variable.isel({dim: slice(start, start + rows)} if dim else {}).values
            numeric = values.dtype.kind in "biuf"
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8) if numeric else str(values).encode()
            checksum = zlib.crc32(data, checksum)
        sums.append((variable.name, variable.shape, str(variable.dtype), checksum))
    return tuple(sums), coords, tuple((name, str(value)) for name, value in dataset.attrs.items())
