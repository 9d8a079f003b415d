"""The table of a result's parameters: estimates, biases, convergence; computed once."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.linalg import lu_factor, lu_solve

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.estimate import Corrected, uncorrected
from pmm_mcmc.diagnostics.stein import corrected
from pmm_mcmc.warmup.standard_errors import between_pieces, count_pieces

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["BIASES", "remembered", "sd_of", "selected", "table_of"]

# Columns of the table of biases.
BIASES = (
    "mean", "mcse", "mean_cv", "mcse_cv", "bias", "bias_se", "bias_sd_units",
    "sd", "sd_cv", "mcse_sd_cv", "bias_of_sd", "bias_of_sd_se", "unexplained",
)  # fmt: skip

# Results whose tables are kept in memory.
_KEPT = 4
# Bytes of draws that a checksum reads at once: a read costs as much as a tenth of a megabyte of checksum.
_READ = 2**24


def sd_of(second: Corrected) -> tuple[np.ndarray, np.ndarray]:
    """Return corrected standard deviations with standard errors, from central second moments (delta method)."""
    sd = np.sqrt(np.maximum(second.value, 0.0))
    return sd, second.se / np.maximum(2.0 * sd, 1e-300)


def table_of(run: Run, numbers: np.ndarray | None = None) -> pd.DataFrame:
    """Return the columns of ``BIASES`` and of convergence: a row for each parameter, or for those in ``numbers``.

    ``within`` and ``between`` are standard errors of a mean over the standard deviation of the draws: ArviZ's, and the
    one between the means of the chains.
    """
    numbers = np.arange(len(run.labels)) if numbers is None else np.sort(numbers)
    parts = [pd.DataFrame(_columns(run, values), index=indices) for indices, values in run.parameters.slabs(numbers)]
    if not parts:
        return pd.DataFrame(columns=[*BIASES, "r_hat", "ess_bulk", "within", "between"], dtype=float)
    table = pd.concat(parts).loc[numbers]
    table.index = pd.Index([run.labels[i] for i in numbers])
    return table


def _columns(run: Run, values: np.ndarray) -> dict[str, np.ndarray]:
    coordinate = run.coordinate_of(values)

    if run.correctable:
        # A squared deviation does not vary with a direction linearly: it follows that of the deviation.
        directions = run.folds.directions(values, coordinate)
        mean = corrected(values, run.folds, directions, run.adjusted)
        second = corrected((values - mean.value) ** 2, run.folds, directions, run.adjusted)
    else:
        mean = uncorrected(values)
        second = uncorrected((values - mean.value) ** 2)
    sd, sd_error = sd_of(second)
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
            "mcse_sd_cv": sd_error,
            "bias_of_sd": np.where(second.used, raw_sd - sd, np.nan),
            "bias_of_sd_se": second.bias_se / np.maximum(2.0 * sd, 1e-300),
            "unexplained": mean.left,
            "r_hat": np.where(moves, converged.r_hat, np.nan),
            "ess_bulk": converged.ess_bulk,
            "within": np.where(moves, converged.mcse / raw_sd, 0.0),
            "between": np.where(moves, apart / raw_sd, 0.0),
        }


def selected(run: Run) -> np.ndarray:
    """Return the numbers of the parameters that a verdict judges: all or, of very many, the most suspect.

    The free variables, which come first, are all judged; deterministics are functions of them.  Of these, the worst by
    each of four quick measures are judged: standard error of the mean and of the variance between batches, and biases
    of mean and standard deviation that follow, to first order, from those of the coordinates.
    """
    p = len(run.labels)
    always = CALIBRATION.always_without_gradients
    if run.position is not None:
        always = max(CALIBRATION.always_judged, 2 * run.position.shape[2])
    if p <= always + 4 * CALIBRATION.worst_judged:
        return np.arange(p)
    chosen = set(range(always))
    for measure in _first_look(run):
        chosen.update(np.argsort(-measure[always:], kind="stable")[: CALIBRATION.worst_judged] + always)
    return np.array(sorted(chosen))


def _first_look(run: Run) -> np.ndarray:
    """Return the four quick measures ``(4, p)`` of :func:`selected`, from a few sums over the draws."""
    measures = np.zeros((4, len(run.labels)))
    chains = run.chains
    draws = run.draws
    cut = max(2, count_pieces(chains, draws))
    skipped = draws % cut
    linear = None
    if run.correctable:
        x = run.sampled_position.reshape(chains * draws, -1)
        if len(x) > 3 * x.shape[1]:
            directions = run.folds.directions(run.sampled_position, np.arange(x.shape[1]))
            coordinates = corrected(run.sampled_position, run.folds, directions)
            centred = x - x.mean(axis=0)
            gram = centred.T @ centred
            gram[np.diag_indices(len(gram))] += 1e-10 * gram.diagonal() + 1e-300
            variance = corrected((run.sampled_position - coordinates.value) ** 2, run.folds, directions).value
            ratio = np.sqrt(np.maximum(variance, 1e-300) / np.maximum(x.var(axis=0), 1e-300))
            linear = centred, gram, lu_factor(gram), np.nan_to_num(x.mean(axis=0) - coordinates.value), ratio
    for indices, values in run.parameters.slabs():
        with np.errstate(all="ignore"):
            f = values - values[:1, :1]
            pieces = f[:, skipped:].reshape(chains * cut, -1, len(indices))
            means = pieces.mean(axis=1)
            squares = np.einsum("mnp,mnp->mp", pieces, pieces) / pieces.shape[1]
            mean = means.mean(axis=0)
            variance = squares.mean(axis=0) - mean**2
            sd = np.sqrt(variance)
            measures[0, indices] = between_pieces(means, chains) / sd
            measures[1, indices] = between_pieces(squares - 2.0 * mean * means, chains) / variance
            if linear is not None:
                centred, gram, factor, off, ratio = linear
                flat = f.reshape(chains * draws, -1)
                slope = lu_solve(factor, centred.T @ (flat - flat.mean(axis=0)), check_finite=False).T
                measures[2, indices] = np.abs(slope @ off) / sd
                covariance = slope @ gram / len(flat)
                scaled = slope * ratio
                variance_cv = (scaled @ gram / len(flat) * scaled).sum(axis=1)
                measures[3, indices] = np.abs(1.0 - variance_cv / (covariance * slope).sum(axis=1))
    return np.nan_to_num(measures, nan=0.0, posinf=0.0)


_TABLES: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()


def remembered(dt: Any) -> dict[str, Any]:
    """Return the dictionary of tables of a result, to be added to; equal data share one, whatever object holds them."""
    key = tuple(_digest(dt[group].to_dataset()) for group in ("posterior", "sample_stats") if group in dt.children)
    tables = _TABLES.setdefault(key, {})
    _TABLES.move_to_end(key)
    while len(_TABLES) > _KEPT:
        _TABLES.popitem(last=False)
    return tables


def _digest(dataset: Any) -> tuple[Any, ...]:
    """Return a checksum of each variable, with names, coordinates and attributes."""
    numeric = [variable for variable in dataset.data_vars.values() if variable.dtype.kind in "biuf"]
    dims = {dim for variable in numeric for dim in variable.dims}
    coords = [(name, tuple(map(str, np.ravel(values)))) for name, values in dataset.coords.items() if name in dims]
    sums = []
    for variable in numeric:
        checksum = 0
        chains = variable.sizes.get("chain", 0)
        chains_at_once = max(1, _READ // max(1, variable.nbytes // max(1, chains)))
        for start in range(0, chains, chains_at_once):  # in parts, since they may be on disk and large
            values = np.ascontiguousarray(variable.isel(chain=slice(start, start + chains_at_once)).values)
            checksum = zlib.crc32(values.reshape(-1).view(np.uint8), checksum)
        sums.append((variable.name, variable.shape, str(variable.dtype), checksum))
    return tuple(sums), tuple(coords), tuple((name, str(value)) for name, value in dataset.attrs.items())
