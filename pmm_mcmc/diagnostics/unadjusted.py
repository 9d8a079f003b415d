"""The checks of unadjusted draws beside those of every run: refused transitions, and the bias of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from pmm_mcmc.diagnostics.statement import MORE, Reason, reason_of_largest
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, largest_t

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["ADJUST", "CHECKS", "biases_of"]

# The remedy for what a step does to draws.  A shorter step does not always help: on a local linear trend half the
# step had 259 unstable transitions in place of 175, and the error of a mean rose from .12 to .56 sd.
ADJUST = "take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC())"


def biases_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the absolute biases of the parameters of a table that vary, in posterior standard deviations.

    Columns ``mean``, ``mean_se``, ``sd``, ``sd_se`` are what the correction removed, with standard errors, NaN where
    that is not measurable; ``unexplained`` is the share of the bias of a mean that it is expected not to remove;
    ``two_errors`` are two standard errors of the corrected mean, NaN where the bias is not measurable.
    """
    table = table[table["sd"] != 0.0]
    names = {"bias": "mean", "bias_se": "mean_se", "bias_of_sd": "sd", "bias_of_sd_se": "sd_se"}
    biases = table[list(names)].abs().div(table["sd_cv"], axis=0).rename(columns=names)
    two_errors = 2.0 * (table["mcse_cv"] / table["sd_cv"]).where(biases["mean"].notna())
    return biases.assign(unexplained=table["unexplained"], two_errors=two_errors)


def unstable(run: Run) -> Reason | None:
    """Return a reason if more transitions were refused as unstable than are harmless."""
    count = int(run.stats["unstable"].sum()) if "unstable" in run.stats else 0
    limit = run.harmless
    if count <= limit:
        return None
    flags = run.stats["unstable"].values > 0
    where = run.place(flags.reshape(run.chains, run.draws, -1).any(axis=2)) if flags.ndim > 1 else ""
    text = f"{count} of {run.transitions} transitions were unstable{where}, limit {limit}"
    remedy = ADJUST
    by_model = int(run.stats["model_failures"].sum()) if "model_failures" in run.stats else 0
    if 2 * by_model > count:
        remedy = (
            "the model is not finite there, and a shorter step will not help: look at model.debug(), and bound "
            "parameters by their priors"
        )
    return Reason("divergences", text, remedy, value=float(count), limit=float(limit))


def bias_of_mean(run: Run) -> Reason | None:
    """Return a reason if the bias of a mean, with the share that the correction does not remove, is too large."""
    return _bias(run, "mean", 1.0 - run.biases["unexplained"])


def bias_of_sd(run: Run) -> Reason | None:
    """Return a reason if the bias of a standard deviation is too large."""
    return _bias(run, "sd", 1.0)


def _bias(run: Run, moment: str, removed: Any) -> Reason | None:
    """Return a reason for the largest bias of a moment, beyond chance; the correction ``removed`` a share of it."""
    bias = run.biases[moment]
    beyond_chance = bias > largest_t(len(bias), degrees_of_freedom(run.chains, run.draws)) * run.biases[f"{moment}_se"]
    text = f"the {moment} of {{label}} is off by {{value}} % of a posterior sd, limit {{limit}} %"
    biases = (bias / removed)[beyond_chance]
    return reason_of_largest("bias", text, ADJUST, biases, THRESHOLDS.bias, digits=1, percent=True)


def unmeasured(run: Run) -> Reason | None:
    """Return a reason if no bias could be measured, or a corrected mean is not known well enough."""
    if not run.has_gradients:
        text = "the bias could not be measured, for the result holds no gradients"
        of_step = "draw" in run.posterior.dims and "n_grad_total" in run.stats
        return Reason("unmeasured", text, "sample with keep_gradients=True" if of_step else ADJUST)
    two_errors = run.biases["two_errors"]
    if len(two_errors) and two_errors.isna().all():
        return Reason("unmeasured", "the bias could not be measured for any of the parameters", ADJUST)
    text = "the corrected mean of {label} is known to {value} % of a posterior sd only, limit {limit} %"
    limit = 2.0 * THRESHOLDS.mcse  # as much as two standard errors of a plain mean may be
    return reason_of_largest("unmeasured", text, MORE, two_errors, limit, digits=0, percent=True)


CHECKS = (unstable, bias_of_mean, bias_of_sd, unmeasured)
