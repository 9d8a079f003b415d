"""The checks of unadjusted draws beyond those of every run: what a step may do to draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import pdtrc

from pmm_mcmc.diagnostics.statement import MORE, Reason, format_with_limit
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import largest_t

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["ADJUST", "CHECKS", "biases_of", "ruled_out"]

# The remedy for what a step does to draws.  A shorter step does not always help: on a local linear trend half the
# step had 259 unstable transitions in place of 175, and the error of a mean rose from .12 to .56 sd.
ADJUST = "take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC())"


def biases_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the absolute biases of the parameters of a table that vary, in posterior standard deviations.

    Columns ``of_mean``, ``of_mean_se``, ``of_sd``, ``of_sd_se`` are what the correction removed, NaN where that is not
    measurable; ``left`` is the share of the bias of a mean that it is expected not to remove; ``bound`` is two standard
    errors above the bias of a mean, with what was not removed; ``two_errors`` are two standard errors of the corrected
    mean, with the same, NaN where the bias is not measurable.
    """
    table = table[table["sd"] != 0.0]
    names = {"bias": "of_mean", "bias_se": "of_mean_se", "bias_of_sd": "of_sd", "bias_of_sd_se": "of_sd_se"}
    biases = table[list(names)].abs().div(table["sd_cv"], axis=0).rename(columns=names)
    left = table["unexplained"]
    sure = (biases["of_mean"] - 2.0 * biases["of_mean_se"]).clip(lower=0.0)
    bound = biases["of_mean"] + 2.0 * biases["of_mean_se"] + left / (1.0 - left) * sure
    two_errors = 2.0 * (table["mcse_cv"] / table["sd_cv"]).where(biases["of_mean"].notna())
    return biases.assign(left=left, bound=bound, two_errors=two_errors)


def ruled_out(biases: pd.DataFrame) -> bool:
    """Return whether a bias that matters is ruled out, of every mean and standard deviation."""
    of_sd = biases["of_sd"] + 2.0 * biases["of_sd_se"]
    return bool(((biases["bound"] < THRESHOLDS.ruled_out) & (of_sd < THRESHOLDS.ruled_out)).all())


# -- checks ------------------------------------------------------------------------------------------------------------


def unstable(run: Run) -> Reason | None:
    """Return a reason if more transitions were unstable than are harmless."""
    count = _unstable_count(run)
    limit = run.harmless
    if count <= limit:
        return None
    flags = run.stats["unstable"].values > 0
    steps = run.setting("steps_per_draw")
    transitions = 0 if steps is None else int(steps.sum() if steps.ndim else steps * run.chains * run.draws)
    where = run.place(flags.reshape(run.chains, run.draws, -1).any(axis=2)) if flags.ndim > 1 else ""
    text = f"{count} of {transitions} transitions were unstable{where}, limit {limit}"
    remedy = ADJUST
    by_model = int(run.stats["model_failures"].sum()) if "model_failures" in run.stats else 0
    if 2 * by_model > count:
        remedy = (
            "the model is not finite there, and a shorter step will not help: look at model.debug(), and bound "
            "parameters by their priors"
        )
    return Reason("divergences", text, remedy, value=float(count), limit=float(limit))


def _unstable_count(run: Run) -> int:
    return int(run.stats["unstable"].sum()) if "unstable" in run.stats else 0


def bias_of_mean(run: Run) -> Reason | None:
    """Return a reason for the largest bias of a mean if it is too large beyond chance."""
    return _bias(run, "mean", 1.0 - run.biases["left"])


def bias_of_sd(run: Run) -> Reason | None:
    """Return a reason for the largest bias of a standard deviation if it is too large beyond chance."""
    return _bias(run, "sd", 1.0)


def _bias(run: Run, moment: str, removed: Any) -> Reason | None:
    """Return a reason for the largest bias of a moment, of which the correction removed a share."""
    size = run.biases[f"of_{moment}"]
    full = size / removed
    beyond_chance = size > largest_t(len(size), run.degrees) * run.biases[f"of_{moment}_se"]
    large = full[(full > THRESHOLDS.bias) & beyond_chance]
    if not len(large):
        return None
    label = str(large.idxmax())
    value, limit = format_with_limit(100.0 * large[label], 100.0 * THRESHOLDS.bias, 1)
    text = f"the {moment} of {label} is off by {value} % of a posterior sd, limit {limit} %"
    return Reason("bias", text, ADJUST, label, float(large[label]), THRESHOLDS.bias)


def step_long(run: Run) -> Reason | None:
    """Return a reason if the step is expected to bias means, unless the draws rule that out."""
    expected_bias = run.setting("expected_bias")
    expected = math.nan if expected_bias is None else float(np.max(expected_bias))
    # Draws say nothing about places that unstable transitions would have reached.
    unstable = _unstable_count(run)
    calm = unstable == 0 or pdtrc(unstable - 1, THRESHOLDS.calm_rate * run.chains * run.draws) >= 0.05
    harm_ruled_out = ruled_out(run.biases) and calm
    if not expected > THRESHOLDS.expected_bias or (harm_ruled_out and np.isfinite(expected)):
        return None
    halving_cost = run.setting("halving_cost")
    tuned = halving_cost is not None and bool(np.isfinite(halving_cost).all())
    remedy = "lower target_bias" if tuned else "leave step_size out"
    text = "steps of this size are not stable where the posterior is steepest"
    if np.isfinite(expected):
        value, limit = format_with_limit(100.0 * expected, 100.0 * THRESHOLDS.expected_bias, 0)
        text = (
            f"steps of this size may bias means by {value} % of a posterior sd, limit {limit} %, and the draws do not "
            "rule out that they do harm"
        )
        remedy = f"{remedy}, or draw more"
    return Reason("step_long", text, remedy, value=expected, limit=THRESHOLDS.expected_bias)


def unmeasured(run: Run) -> Reason | None:
    """Return a reason if no bias could be measured, or that of a mean not well enough."""
    if not run.has_gradients:
        text = "the bias could not be measured, for the result holds no gradients"
        of_step = "draw" in run.posterior.dims and "n_grad_total" in run.stats
        return Reason("unmeasured", text, "sample with keep_gradients=True" if of_step else ADJUST)
    bounds = run.biases["two_errors"]
    limit = 2.0 * THRESHOLDS.mcse  # two standard errors of a corrected mean: as much as those of a plain mean may be
    if bounds.notna().any():
        label = str(bounds.idxmax())
        if not bounds[label] > limit:
            return None
        value, against = format_with_limit(100.0 * bounds[label], 100.0 * limit, 0)
        text = f"the corrected mean of {label} is known to {value} % of a posterior sd only, limit {against} %"
        return Reason("unmeasured", text, MORE, label, float(bounds[label]), limit)
    if not len(bounds) or unequal_modes(run) is not None:
        return None
    return Reason("unmeasured", "the bias could not be measured for any of the parameters", ADJUST)


def unequal_modes(run: Run) -> Reason | None:
    """Return a reason if chains move between modes of unequal width."""
    mode = run.other_mode
    if mode is None or not mode.visited:
        return None
    parameter = run.unconstrained(mode.coordinate) if run.position is not None else None
    where = f", apart in {parameter}" if parameter else ""
    text = f"chains move between modes of unequal width{where}: a step shifts their weights, and no gradient shows it"
    return Reason("unmeasured", text, ADJUST, parameter, mode.mass)


def jump(run: Run) -> Reason | None:
    """Return a reason if the log density jumps, or ends at a wall, between draws."""
    edge = run.broken
    if edge is None or run.position is None:
        return None
    label = run.unconstrained(edge.coordinate)
    where = f"along {label}"
    x = run.position[..., edge.coordinate].ravel()
    order = np.argsort(x, kind="stable")
    values = run.draws_of(label).ravel()[order]
    if (np.diff(values) >= 0.0).all() or (np.diff(values) <= 0.0).all():  # a function of the coordinate
        near = f"where {label} is near {np.interp(edge.value, x[order], values):.3g}"
        where = near if edge.fixed else f"{where}, as {near.replace(label, 'it')}"
    if edge.kind == "wall":
        remedy = f"give {label} a prior that ends there, such as pm.Truncated, in place of the wall"
        return Reason("jump", f"the density ends at a wall {where}", remedy, label)
    remedy = (
        "no gradient shows a jump: put a smooth step in its place (pm.math.sigmoid), sum or integrate it out, or "
        f"sample {label} with a method that needs no gradient (pm.Slice)"
    )
    text = f"the log density jumps by {edge.size:.2g} {where}"
    return Reason("jump", text, remedy, label, edge.size, THRESHOLDS.jump)


CHECKS = (unstable, bias_of_mean, bias_of_sd, step_long, unmeasured, unequal_modes, jump)
