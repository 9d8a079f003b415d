"""The table of a result: for each parameter plain and corrected estimates, biases, and convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.parameters import ROUNDING, coordinate_of
from pmm_mcmc.diagnostics.stein import corrected, uncorrected
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import between_pieces, count_pieces

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["BIASES", "selected", "table_of"]

# Columns of ``pmm.summary(dt, kind="bias")``.
BIASES = (
    "mean", "mcse", "mean_cv", "mcse_cv", "bias", "bias_se", "bias_sd_units",
    "sd", "sd_cv", "mcse_sd_cv", "bias_of_sd", "bias_of_sd_se", "unexplained",
)  # fmt: skip


def table_of(run: Run, numbers: np.ndarray | None = None) -> pd.DataFrame:
    """Return a row for each parameter, or for those with these ``numbers``.

    Columns are those of ``BIASES`` and of convergence: ``r_hat``, ``ess_bulk``, and ``within`` and ``between``, two
    standard errors of the mean over the standard deviation of the draws: ArviZ's, and that between the chains.
    """
    numbers = np.arange(len(run.parameters)) if numbers is None else np.sort(numbers)
    tables = [pd.DataFrame(_columns(run, values), index=indices) for indices, values in run.parameters.slabs(numbers)]
    if not tables:
        return pd.DataFrame(columns=[*BIASES, "r_hat", "ess_bulk", "within", "between"], dtype=float)
    table = pd.concat(tables).loc[numbers]
    table.index = pd.Index([run.parameters.labels[i] for i in numbers])
    return table


def _columns(run: Run, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of parameters with draws ``(chain, draw, p)``."""
    chains = values.shape[0]
    coordinate = coordinate_of(values, run.sampled_position)
    with np.errstate(invalid="ignore"):
        constant = np.ptp(values, axis=(0, 1)) <= ROUNDING * np.abs(values[0, 0])
    values = np.where(constant, values[:1, :1], values) if constant.any() else values
    if run.correctable:
        mean = corrected(values, run.folds, coordinate, unbiased=run.adjusted)
        # Control variates of a variance are those of the deviation, along whose direction its square varies too.
        variance = corrected((values - mean.value) ** 2, run.folds, coordinate, values, unbiased=run.adjusted)
    else:
        mean = uncorrected(values)
        variance = uncorrected((values - mean.value) ** 2)
    sd = np.sqrt(np.maximum(variance.value, 0.0))
    twice_sd = np.maximum(2.0 * sd, 1e-300)  # by which errors of a variance are divided: the delta method
    with np.errstate(invalid="ignore", divide="ignore"):  # the standard deviation of what is not finite
        about_first = values - values[:1, :1]
        plain_sd = about_first.std(axis=(0, 1))
        converged = convergence(values)
        moves = plain_sd > 0.0
        between = np.zeros_like(plain_sd)
        if chains > 1:
            between = about_first.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(chains)
        return {
            "mean": mean.plain,
            "mcse": mean.plain_se,
            "mean_cv": mean.value,
            # Plain means are kept where the error between few batches is small, by chance too: ArviZ's may be larger.
            "mcse_cv": np.where(mean.used, mean.se, np.fmax(mean.se, converged.mcse)),
            "bias": mean.bias,
            "bias_se": mean.bias_se,
            "bias_sd_units": mean.bias / np.where(sd > 0.0, sd, np.nan),
            "sd": plain_sd,
            "sd_cv": np.where(variance.used, sd, plain_sd),
            "mcse_sd_cv": variance.se / twice_sd,
            "bias_of_sd": np.where(variance.used, plain_sd - sd, np.nan),
            "bias_of_sd_se": variance.bias_se / twice_sd,
            "unexplained": mean.unexplained,
            "r_hat": np.where(moves, converged.r_hat, np.nan),
            "ess_bulk": converged.ess_bulk,
            "within": np.where(moves, converged.mcse / plain_sd, 0.0),
            "between": np.where(moves, between / plain_sd, 0.0),
        }


def selected(run: Run) -> np.ndarray:
    """Return the numbers of the parameters that a verdict judges: all or, of very many, the most suspect.

    The first ones, which are the free variables, are always judged.  Of the others, deterministics, those are judged
    whose mean, or variance, has the largest standard errors between batches.
    """
    p = len(run.parameters)
    always = THRESHOLDS.always_without_gradients
    if run.position is not None:
        always = max(THRESHOLDS.always_judged, 2 * run.position.shape[2])
    if p <= always + 2 * THRESHOLDS.worst_judged:
        return np.arange(p)
    errors = np.zeros((2, p))
    batches = max(2, count_pieces(run.chains, run.draws))  # of each chain
    for indices, values in run.parameters.slabs():
        with np.errstate(all="ignore"):
            about_first = values - values[:1, :1]
            batched = about_first[:, run.draws % batches :].reshape(run.chains * batches, -1, len(indices))
            means = batched.mean(axis=1)
            squares = np.einsum("mnp,mnp->mp", batched, batched) / batched.shape[1]
            mean = means.mean(axis=0)
            variance = squares.mean(axis=0) - mean**2
            errors[0, indices] = between_pieces(means, run.chains) / np.sqrt(variance)
            errors[1, indices] = between_pieces(squares - 2.0 * mean * means, run.chains) / variance
    suspicion = np.nan_to_num(errors, nan=0.0, posinf=0.0)[:, always:]
    worst = np.argsort(-suspicion, axis=1, kind="stable")[:, : THRESHOLDS.worst_judged] + always
    return np.union1d(np.arange(always), worst)
