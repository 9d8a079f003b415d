"""The checks of unadjusted draws beyond those of every run: what a step may do to draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import pdtrc

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.modes import unequal_modes
from pmm_mcmc.diagnostics.statement import MORE, Reason, format_with_limit
from pmm_mcmc.warmup.standard_errors import largest_t, poisson_limit

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["ADJUST", "bias", "breaks", "harmless", "step_long", "unadjusted_description", "unmeasured", "unstable"]

# The remedy for what a step does to draws.  A shorter step is none that helps always: on a local linear trend half the
# step had 259 unstable transitions in place of 175, and the error of a mean rose from .12 to .56 sd.
ADJUST = "take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC())"


def harmless(run: Run) -> int:
    """Return how many transitions may fail.

    A transition that fails keeps a chain out of a region in which it would have stayed for about an autocorrelation
    time, that is for one effective draw.  So the share of the posterior that is missing is about the number of these
    transitions over that of effective draws; the slowest parameter has the fewest of these.  The limit allows for
    chance, so that one event in a short run is no reason.
    """
    return poisson_limit(CALIBRATION.unstable_rate * run.effective)


def unstable(run: Run) -> list[Reason]:
    """Return a reason if more transitions were unstable than are harmless."""
    count = _unstable_count(run)
    limit = harmless(run)
    if count <= limit:
        return []
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
    return [Reason("unstable", text, remedy, value=float(count), limit=float(limit))]


def _unstable_count(run: Run) -> int:
    return int(run.stats["unstable"].sum()) if "unstable" in run.stats else 0


def bias(run: Run) -> list[Reason]:
    """Return a reason for the largest bias of a mean, and of a standard deviation, if it is too large beyond chance."""
    biases = run.biases
    reasons = []
    for moment, size, error, left in (
        ("mean", biases.of_mean, biases.of_mean_se, biases.left),
        ("sd", biases.of_sd, biases.of_sd_se, np.zeros_like(biases.left)),
    ):
        with np.errstate(divide="ignore"):  # left = 1: nothing was corrected
            full = size / (1.0 - left)
        beyond_chance = size > largest_t(len(size), run.degrees) * error
        large = np.where((full > CALIBRATION.bias) & beyond_chance, full, 0.0)
        if large.any():
            worst = int(large.argmax())
            label = biases.labels[worst]
            value, limit = format_with_limit(100.0 * large[worst], 100.0 * CALIBRATION.bias, 1)
            text = f"the {moment} of {label} is off by {value} % of a posterior sd, limit {limit} %"
            reasons.append(Reason("bias", text, ADJUST, label, float(large[worst]), CALIBRATION.bias))
    return reasons


def step_long(run: Run) -> list[Reason]:
    """Return a reason if the step is expected to bias means, unless the draws rule that out."""
    expected_bias = run.setting("expected_bias")
    expected = math.nan if expected_bias is None else float(np.max(expected_bias))
    # Draws that lack what is where a transition would have led rule nothing out.
    unstable = _unstable_count(run)
    calm = unstable == 0 or pdtrc(unstable - 1, CALIBRATION.calm_rate * run.chains * run.draws) >= 0.05
    ruled_out = run.biases.ruled_out and calm
    if not expected > CALIBRATION.expected_bias or (ruled_out and np.isfinite(expected)):
        return []
    halving_cost = run.setting("halving_cost")
    tuned = halving_cost is not None and bool(np.isfinite(halving_cost).all())
    remedy = "lower target_bias" if tuned else "leave step_size out"
    if np.isinf(expected):
        text = "steps of this size are not stable where the posterior is steepest"
        return [Reason("step_long", text, remedy, value=expected, limit=CALIBRATION.expected_bias)]
    value, limit = format_with_limit(100.0 * expected, 100.0 * CALIBRATION.expected_bias, 0)
    text = (
        f"steps of this size may bias means by {value} % of a posterior sd, limit {limit} %, and the draws do not rule "
        "out that they do harm"
    )
    return [Reason("step_long", text, f"{remedy}, or draw more", value=expected, limit=CALIBRATION.expected_bias)]


def unmeasured(run: Run) -> list[Reason]:
    """Return reasons if no bias, or that of weights of modes, could be measured, or that of a mean not well enough."""
    if not run.has_gradients:
        text = "the bias could not be measured, for the result holds no gradients"
        remedy = ADJUST
        if "draw" in run.posterior.dims:
            remedy = "sample with keep_gradients=True" if "n_grad_total" in run.stats else ""
        return [Reason("unmeasured", text, remedy), *unequal_modes(run, ADJUST)]
    reasons = unequal_modes(run, ADJUST)
    bounds = run.biases.two_errors
    limit = 2.0 * CALIBRATION.mcse  # two standard errors of a corrected mean: as much as those of a plain mean may be
    if np.isfinite(bounds).any():
        worst = int(np.nanargmax(bounds))
        if bounds[worst] > limit:
            value, against = format_with_limit(100.0 * bounds[worst], 100.0 * limit, 0)
            label = run.biases.labels[worst]
            text = f"the corrected mean of {label} is known to {value} % of a posterior sd only, limit {against} %"
            reasons.append(Reason("unmeasured", text, MORE, label, float(bounds[worst]), limit))
    elif run.biases.moving.any() and not reasons:
        text = f"the bias could not be measured for any of the {run.kind}"
        reasons.append(Reason("unmeasured", text, ADJUST))
    return reasons


def breaks(run: Run) -> list[Reason]:
    """Return a reason if the log density has a jump or a wall between draws."""
    place = _break_place(run)
    if run.broken is None or place is None:
        return []
    label, value = place
    where = f"along {label}"
    if np.isfinite(value):
        near = f"where {label} is near {value:.3g}"
        where = near if run.broken.fixed else f"{where}, as {near.replace(label, 'it')}"
    if run.broken.kind == "wall":
        remedy = f"give {label} a prior that ends there, such as pm.Truncated, in place of the wall"
        return [Reason("wall", f"the density ends at a wall {where}", remedy, label)]
    remedy = (
        "no gradient shows a jump: put a smooth step in its place (pm.math.sigmoid), sum or integrate it out, or "
        f"sample {label} with a method that needs no gradient (pm.Slice)"
    )
    text = f"the log density jumps by {run.broken.size:.2g} {where}"
    return [Reason("jump", text, remedy, label, run.broken.size, CALIBRATION.jump)]


def _break_place(run: Run) -> tuple[str, float] | None:
    """Return the parameter that the break is along, and its value: NaN if that is no function of the coordinate."""
    if run.broken is None or run.position is None:
        return None
    label = run.unconstrained(run.broken.coordinate)
    x = run.position[..., run.broken.coordinate].ravel()
    order = np.argsort(x, kind="stable")
    values = run.draws_of(label)[order]
    if not ((np.diff(values) >= 0.0).all() or (np.diff(values) <= 0.0).all()):
        return label, np.nan
    return label, float(np.interp(run.broken.value, x[order], values))


def unadjusted_description(run: Run) -> str:
    """Return how well corrected means are known, and whose bias is not measurable."""
    biases = run.biases
    bounds = biases.two_errors
    if not np.isfinite(bounds).any():
        return "nothing varies."
    within = f"within {max(1.0, np.ceil(100.0 * np.nanmax(bounds))):.0f} % of a posterior sd, with 95 % confidence each"
    text = f"{run.means.replace('means', 'corrected means')} are {within}."
    unknown = np.flatnonzero(biases.moving & ~np.isfinite(bounds))
    if len(unknown):
        least = unknown[np.argsort(-np.nan_to_num(biases.error[unknown], nan=np.inf), kind="stable")]
        names = _abbreviated([biases.labels[i] for i in least])
        text = f"corrected means are {within}; the bias of {names} is not measurable: {ADJUST}."
    expected_bias = run.setting("expected_bias")
    unseen = expected_bias is not None and bool(np.isnan(expected_bias).any())
    if unseen and not biases.ruled_out:
        text += f" No warm-up has seen whether the step is too long: {ADJUST}."
    return text


def _abbreviated(labels: list[str]) -> str:
    """Return the names of up to three parameters, or two and the number of the others."""
    if len(labels) > 3:
        labels = [*labels[:2], f"{len(labels) - 2} more"]
    *others, last = labels
    return f"{', '.join(others)} and {last}" if others else last
