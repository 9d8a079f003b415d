"""The checks of a verdict: each is a function of a run that returns a reason or None."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import gammaincinv, ndtri

from pmm_mcmc.diagnostics.control_variates import fails, fails_on_average
from pmm_mcmc.diagnostics.convergence import nested, superchains_of, tail_index
from pmm_mcmc.diagnostics.mode_search import OtherModes
from pmm_mcmc.diagnostics.parameters import coordinate_of
from pmm_mcmc.diagnostics.reading import harmless, two_errors
from pmm_mcmc.diagnostics.statement import MORE, Reason, format_with_limit, reason_of_largest
from pmm_mcmc.diagnostics.thresholds import SEARCH, THRESHOLDS
from pmm_mcmc.warmup.stein_identity import degrees_of_freedom, largest_t
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP

if TYPE_CHECKING:
    import xarray as xr

    from pmm_mcmc.diagnostics.reading import Run

# r_hat from which separate modes are named before more draws: at 1.73 these would have been 80 times as many.
_APART = 1.5
# Relative standard error of a standard deviation whose bias gradients do not bound, at most.  Of 375 trusted runs by
# five unadjusted methods on 24 bananas, funnels, Student, gamma and other laws 16 had an sd 7.5 % off, chance included:
# of the half that the limit was chosen on it leaves 1 of 8 trusted and 12 of 149 others undecided, of the rest 2 of 8
# and 9 of 218; of 19 programs of the scoreboard none.  All this was counted before corrections had cubic terms.
_UNBOUNDED = 0.04
# Share of runs in which chance alone makes a bias of a standard deviation doubtful: so are 25 of 375 right runs of the
# above, and none of 22 programs of the scoreboard; of runs in which RLMC widens the sd of a banana (bends .9, 1.8, 3)
# by 7 to 13 % 6 of 6, of which 2 are beyond doubt.
_DOUBT = 0.2
# What helps against a wall.
_WALL = (
    "let a prior end there, of which a transformation then takes care (pm.Uniform, pm.Truncated, an ordered transform; "
    "a bound that other variables make as their product with a fraction in (0, 1)); no step size helps"
)


# Index above which a standard deviation is hardly known.  Of 300 sets of 4,000 draws of Student's t of 2.1 and 2.5
# degrees and of exp(1.5 z) and exp(2 z) it is off by more than 20 %, and not said to be, in 2, 1, 9 and 2 %, for 44, 3,
# 17 and 13 % from .5 on, where there is no variance.  It is said of 8 % of t of 4 degrees, and of no gamma.
_HEAVY = 0.35
# Index above which there is no mean, of the whole tail and of the quarter of it that is furthest out: of wide draws
# among narrow ones, as of a component that is empty at times, half as many are called so as by the whole tail alone.
_NO_MEAN = 1.0

# -- checks of every run -----------------------------------------------------------------------------------------------


def few_draws(run: Run) -> Reason | None:
    """Return a reason if draws are too few to judge; after an equilibration one of each of many chains is enough."""
    fewest = THRESHOLDS.fewest
    of_chain = 1 if run.equilibration is not None else THRESHOLDS.fewest_of_chain
    many_chains = run.draws >= of_chain and run.chains >= fewest
    if many_chains or (run.draws >= THRESHOLDS.fewest_of_chain and run.chains * run.draws >= fewest):
        return None
    text = f"{run.chains} x {run.draws} draws are too few to judge, limit {fewest} and {of_chain} of each chain"
    return Reason("few_draws", text, MORE, value=float(run.chains * run.draws), limit=float(fewest))


def one_chain(run: Run) -> Reason | None:
    """Return a reason if there is one chain alone."""
    if run.chains > 1:
        return None
    return Reason("one_chain", "one chain cannot be compared with others", "run four chains", value=1.0, limit=2.0)


def r_hat(run: Run) -> Reason | None:
    """Return a reason if chains disagree."""
    values = run.table["r_hat"]
    name = "r_hat"
    superchains = superchains_of(run.posterior) if run.chains > 1 else 0
    if superchains:
        values = nested(run.parameters, superchains)[run.table.index]
        name = "nested r_hat"
    # Replicas of a ladder start together, and forget by restarts, which are counted.
    values = values[(run.table["sd"] > 0.0) & (run.ladder is None)]
    text = f"{name} of {{label}} is {{value}}, limit {{limit}}"
    reason = reason_of_largest("r_hat", text, MORE, values, THRESHOLDS.r_hat, digits=3)
    if reason is None:
        return reason
    temper = "use pmm.temper(), which moves between modes, or reparametrise"
    draws = run.parameters.draws_of(str(reason.parameter))
    ordered = draws[np.argsort(draws.mean(axis=1))]
    below = np.maximum.accumulate(ordered.max(axis=1))[:-1]
    above = np.minimum.accumulate(ordered.min(axis=1)[::-1])[::-1][1:]
    if (below < above).any():  # groups of chains between which draws do not overlap
        return replace(reason, remedy=f"chains keep apart: {temper}")
    if reason.value is not None and reason.value > _APART:
        return replace(reason, remedy=f"chains may be in separate modes: {temper}; if there is one mode, draw more")
    return reason


def errors_of_mean(run: Run) -> pd.Series:
    """Return standard errors of plain means in standard deviations: ArviZ's or, if larger, that between chains.

    That between a few chains is noisy: it counts only where it is larger than chance makes it for any parameter, or
    where chains are too short for ArviZ's.
    """
    within = run.table["within"]
    between = run.table["between"]
    if run.chains == 1 or not len(run.table):
        return within
    degrees = run.chains - 1
    chi_square = 2.0 * gammaincinv(0.5 * degrees, 1.0 - WARMUP.chance / len(run.table))
    chance = np.sqrt(chi_square / degrees)
    return within.where(~(between > chance * within) & within.notna(), between)


def mcse_of_mean(run: Run) -> Reason | None:
    """Return a reason if a mean is not known well enough."""
    text = "the mean of {label} is known to {value} posterior sd only, limit {limit}"
    return reason_of_largest("mcse", text, MORE, errors_of_mean(run), THRESHOLDS.mcse, digits=2)


def errors_of_sd(run: Run, limit: float = THRESHOLDS.mcse) -> pd.Series:
    """Return relative standard errors of standard deviations that gradients do not explain; else NaN.

    Above the ``limit`` they are also NaN of parameters whose tails may be too heavy for one: transformed ones,
    deterministics, and children of hierarchies (those of a funnel are known by their scale).
    """
    table = run.table
    error = table["mcse_sd_cv"] / table["sd_cv"].where(table["sd_cv"] > 0.0)
    error = error.where(table["bias_of_sd"].isna() & (table["sd"] != 0.0))
    if run.gradient is None:
        return error * np.nan
    moved = np.append((run.sampled_position != run.position).any(axis=(0, 1)), True)
    for label in error.index[error > limit]:
        if moved[coordinate_of(run.parameters.draws_of(label)[..., None], run.position)[0]]:
            error[label] = np.nan
    return error


def mcse_of_sd(run: Run) -> Reason | None:
    """Return a reason if the standard deviation of a free variable is not known well enough."""
    text = "the sd of {label} is known to {value} % only, limit {limit} %"
    errors = errors_of_sd(run).where(run.table["bias"].isna())  # where gradients explain the mean, they explain the sd
    return reason_of_largest("mcse", text, MORE, errors, THRESHOLDS.mcse, digits=0, percent=True)


def heavy_tails(run: Run) -> Reason | None:
    """Return a reason if a parameter may have no mean."""
    tails = run.table["tail"].copy()
    for label in tails.index[tails > _NO_MEAN]:
        tails[label] = np.fmin(tails[label], tail_index(run.parameters.draws_of(label)[..., None], 0.25)[0])
    text = "{label} may have no mean: the Pareto k of its tail is {value}, limit {limit}"
    remedy = "look at its median and quantiles, or give it a prior with lighter tails"
    return reason_of_largest("tails", text, remedy, tails, _NO_MEAN, digits=2)


def unknown_sds(run: Run) -> list[str]:
    """Return the parameters whose standard deviation draws can hardly tell, the heaviest tail first."""
    tails = run.table["tail"]
    return list(tails[tails > _HEAVY].sort_values(ascending=False, kind="stable").index)


def divergences(run: Run) -> Reason | None:
    """Return a reason if more transitions diverged than are harmless; of other samplers, if one did."""
    if "diverging" not in run.stats:
        return None
    flags = run.stats["diverging"].values
    count = int(flags.sum())
    of_nuts = "tree_depth" in run.stats  # beside steps of this package, or alone
    of_step = run.of_package and not of_nuts
    limit = _most_harmless(run) if of_step else 0
    if count <= limit:
        return None
    share = f"{count} of {run.chains * run.draws}"
    if not of_step:
        text = f"{share} transitions diverged"
        remedy = "raise target_accept, or reparametrise"
        if of_nuts and any(step["adjusted"] for step in run.steps):
            remedy = f"raise target_accept of NUTS; {_shorter(run)}"
    elif run.findings.get("check"):
        check, remedy = run.findings["check"]
        text = f"{share} draws followed a divergence: {check} near draws"
    elif run.wall and run.adjusted:  # the Metropolis test is exact there, whatever the step
        meeting = "followed a meeting with a wall, where the density ends or falls at once: draws are right, but slow"
        return Reason("wall", f"{share} draws {meeting}", _WALL, value=float(count), limit=float(limit))
    else:
        where = _place(run, flags > 0) if flags.ndim > 1 else ""
        text = f"{share} draws followed a divergence{where}, limit {limit}"
        remedy = _shorter(run)
    return Reason("divergences", text, remedy, value=float(count), limit=float(limit))


def _most_harmless(run: Run) -> int:
    """Return the number of transitions that may be refused, or diverge, without harm.

    Such a transition keeps a chain out of a region in which it would have stayed for about an autocorrelation time,
    that is for one effective draw.  So the share of the posterior that is missing is about the number of these
    transitions over that of effective draws, of the parameter that has fewest.  The limit allows for chance: one event
    in a short run is no reason.
    """
    effective = [1.0 / error**2 for error in errors_of_mean(run) if error > 0.0]
    return harmless(min(effective, default=float(run.chains * run.draws)))


def _place(run: Run, flags: np.ndarray) -> str:
    """Return words for where the flagged draws ``(chain, draw)`` are, if their mean is 1 sd off that of all."""
    if run.position is None or not flags.any():
        return ""
    sd = np.maximum(run.position.std(axis=(0, 1)), 1e-300)
    offset = (run.position[flags].mean(axis=0) - run.position.mean(axis=(0, 1))) / sd
    worst = int(np.argmax(np.abs(offset)))
    if abs(offset[worst]) < 1.0:
        return ""
    side = "above" if offset[worst] > 0 else "below"
    label = run.closest_parameter(run.position, worst)
    return f", most of all where {label} is {abs(offset[worst]):.1f} sd {side} its mean"


def _shorter(run: Run) -> str:
    """Return the remedy for steps that are too long somewhere."""
    if not run.adjusted:
        return run.adjust
    door = "pm" if run.steps else "pmm"
    sizes = run.posterior.attrs.get("step_size")
    for group in (run.equilibration, run.stats):
        if group is not None and "step_size" in group:
            sizes = group["step_size"].values
            break
    if sizes is None:
        return "reparametrise, or sample with a shorter step_size"
    step = 0.5 * float(np.min(sizes))
    return f"reparametrise, or sample with a shorter step: {door}.sample(step=pmm.GHMC(step_size={step:.2g}))"


def standstill(run: Run) -> Reason | None:
    """Return a reason if the acceptance of a chain of adjusted draws is below half of the others', beyond chance.

    Of 400 runs of 4 and of 1,000 chains with 4 to 1,000 independent draws none was refused, at mean acceptances of .6
    to .95 (60 runs from 1e5 draws on).  Without the allowance all are with 1,000 chains of 4 draws at .6 and .7.
    """
    if not run.adjusted or run.chains == 1 or "acceptance_rate" not in run.stats:
        return None
    accept = run.stats["acceptance_rate"].values
    if run.draws < THRESHOLDS.fewest_of_chain or accept.ndim < 2:  # draws were not kept
        return None
    for of_step in np.moveaxis(accept.reshape(*accept.shape[:2], -1), -1, 0):
        of_chain = of_step.mean(axis=1)
        middle = float(np.median(of_chain))
        error = np.sqrt(of_step.var(axis=1).mean() / run.draws)
        chance = -ndtri(WARMUP.chance / run.chains) * error
        worst = int(of_chain.argmin())
        if of_chain[worst] + chance < 0.5 * middle:
            text = f"chain {worst} stands still: it accepts {of_chain[worst]:.2f}, the middle one {middle:.2f}"
            return Reason("divergences", text, _shorter(run), None, float(of_chain[worst]), 0.5 * middle)
    return None


def improper(run: Run) -> Reason | None:
    """Return a reason if the density has no end where a prior is flat."""
    label = run.findings.get("endless")
    if not label:
        return None
    name = label.partition("[")[0]
    text = f"the posterior is improper: the prior of {name} is flat, and the density has no end in {label}"
    remedy = f"give {name} a proper prior, such as a normal one of a width that is surely enough"
    return Reason("improper", text, remedy, label)


# -- checks of every run of this package -------------------------------------------------------------------------------


def identity(run: Run) -> Reason | None:
    """Return a reason if Stein's identity fails, in one coordinate or on average over all."""
    if run.gradient is None or run.jumps:  # at a jump it lacks a boundary term
        return None
    degrees = run.identity_degrees
    whitened = run.whitened_identity
    forms = [(run.identity, "E[x dF/dx] of {label} is {value}, limit {limit}")]
    if run.adjusted and whitened is not None:
        forms.append((whitened, "E[y dF/dy] of the whitened coordinate y most like {label} is {value}, limit {limit}"))
    for form, text in forms:
        failing = fails(form, degrees)
        if failing.any():
            worst = int(np.argmax(np.abs(form.excess) * failing))
            return _of_identity(run, worst, form.excess[worst], text, 3, bool(form.excess[worst] < 0.0))
    average = run.identity if whitened is None else whitened
    if not fails_on_average(average, degrees):
        return None
    symbols = "E[x dF/dx]" if whitened is None else "E[y dF/dy] of whitened coordinates y"
    size = np.sqrt(2.0 * average.mean_square)
    highest = np.sqrt(2.0 * THRESHOLDS.identity_mean_square)
    text = f"{symbols} is {{value}} for {{label}} and off 1 by {size:.2f} on average, limit {highest:.2f}"
    worst = int(np.argmax(np.abs(average.excess)))
    return _of_identity(run, worst, average.excess[worst], text, 2, bool(average.excess.mean() < 0.0))


def _of_identity(run: Run, coordinate: int, excess: float, text: str, digits: int, narrow: bool) -> Reason:
    """Return the reason that the identity is off by ``excess`` in a coordinate, of draws too ``narrow`` or too wide."""
    label = run.closest_parameter(run.sampled_position, coordinate)
    value = float(1.0 + excess)
    limit = float(1.0 + np.copysign(THRESHOLDS.identity_excess, excess))
    shown, against = format_with_limit(value, limit, digits)
    if run.adjusted:
        remedy = "chains may not have entered an arm or a tail: draw more, or reparametrise"
        remedy += "; or the density has an edge or a jump there" * run.has_edge
    elif run.has_edge:
        remedy = (
            "the density may have an edge or a jump there, where no Langevin sampler is right: bound a parameter by "
            "its prior, and let no term jump; if it has none, draw more"
        )
    else:  # too long a step widens
        remedy = "long steps widen, and this is too narrow: draw more, or reparametrise" if narrow else run.adjust
    return Reason("identity", text.format(label=label, value=shown, limit=against), remedy, label, value, limit)


def equilibration(run: Run) -> Reason | None:
    """Return a reason if equilibration did not end."""
    if run.equilibration is None or int(run.equilibration["ended"]):
        return None
    count = int(run.equilibration["transitions"])
    text = f"equilibration did not end: chains had not forgotten their starts after {count} transitions"
    remedy = "raise tune, or start nearer with initvals="
    if run.way is not None:
        name, begin, end = run.way
        text += f", and {name} is still on its way, from {begin:.3g} at first to {end:.3g}"
        remedy = f"start nearer, with initvals={{'{name}': {end:.3g}}} or beyond, or give {name} a narrower prior"
    return Reason("equilibration", text, remedy)


# -- checks of unadjusted draws ----------------------------------------------------------------------------------------


def unstable(run: Run) -> Reason | None:
    """Return a reason if more transitions were refused as unstable than are harmless."""
    flags = run.stats["unstable"].values if "unstable" in run.stats else np.zeros(1)
    count = int(flags.sum())
    limit = _most_harmless(run)
    if count <= limit:
        return None
    steps = run.posterior.attrs.get("steps_per_draw", 0) * run.chains * run.draws
    if "steps_per_draw" in run.stats:
        steps = run.stats["steps_per_draw"].sum()
    where = _place(run, flags.reshape(run.chains, run.draws, -1).any(axis=2)) if flags.ndim > 1 else ""
    remedy = run.adjust
    by_model = int(run.stats["model_failures"].sum()) if "model_failures" in run.stats else 0
    if 2 * by_model > count:
        remedy = (
            "the model is not finite there, and a shorter step will not help: look at model.debug(), and bound "
            "parameters by their priors"
        )
    text = f"{count} of {int(steps)} transitions were unstable{where}, limit {limit}"
    return Reason("divergences", text, remedy, value=float(count), limit=float(limit))


def bias_of_mean(run: Run) -> Reason | None:
    """Return a reason if the bias of a mean, with the share that the correction does not remove, is too large."""
    values = _beyond_chance(run, run.table["bias"], run.table["bias_se"]) / (1.0 - run.table["unexplained"])
    text = "the mean of {label} is off by {value} % of a posterior sd, limit {limit} %"
    return reason_of_largest("bias", text, run.adjust, values, THRESHOLDS.bias, digits=1, percent=True)


def bias_of_sd(run: Run) -> Reason | None:
    """Return a reason if the bias of a standard deviation, with the share that is not explained, is too large."""
    values = _beyond_chance(run, run.table["whole_bias_of_sd"], run.table["whole_bias_of_sd_se"])
    text = "the sd of {label} is off by {value} % of a posterior sd, limit {limit} %"
    return reason_of_largest("bias", text, run.adjust, values, THRESHOLDS.bias, digits=1, percent=True)


def unbounded_bias_of_sd(run: Run) -> Reason | None:
    """Return a reason if the bias of a standard deviation may well be too large, or nothing bounds it."""
    table = run.table
    bias = table["whole_bias_of_sd"]
    error = table["whole_bias_of_sd_se"]
    values = _beyond_chance(run, bias, error, _DOUBT)
    text = "the sd of {label} may be off by {value} % of a posterior sd, limit {limit} %"
    reason = reason_of_largest("unmeasured", text, run.adjust, values, THRESHOLDS.bias, digits=1, percent=True)
    if reason is not None:
        return None if bias_of_sd(run) is not None else reason
    bounded = (bias.abs() + error) / table["sd_cv"] < 2.0 * THRESHOLDS.bias
    errors = errors_of_sd(run, _UNBOUNDED).where(~bounded)
    errors = errors.where(table["bias"].notna() | (errors < THRESHOLDS.mcse))  # others lack draws: mcse_of_sd
    text = "the bias of the sd of {label} is not measurable, and its error is {value} %, limit {limit} %"
    return reason_of_largest("unmeasured", text, MORE, errors, _UNBOUNDED, digits=1, percent=True)


def _beyond_chance(run: Run, bias: pd.Series, error: pd.Series, chance: float = WARMUP.chance) -> pd.Series:
    """Return the sizes of biases in standard deviations; NaN where they are due to chance in more runs than a share."""
    moving = run.table["sd"] != 0.0
    sd = run.table["sd_cv"].where(moving)
    degrees = degrees_of_freedom(run.chains, run.draws)
    return (bias.abs() / sd).where(bias.abs() > largest_t(moving.sum(), degrees, chance) * error)


def unmeasured(run: Run) -> Reason | None:
    """Return a reason if no bias could be measured, or a corrected mean is not known well enough."""
    if run.gradient is None:
        text = "the bias could not be measured, for the result holds no gradients"
        remedy = run.adjust
        if "n_grad_total" in run.stats and not any(step["keep_gradients"] for step in run.steps):
            remedy = "sample with keep_gradients=True"
        return Reason("unmeasured", text, remedy)
    errors = two_errors(run.table)
    if len(errors) and errors.isna().all():
        return Reason("unmeasured", "the bias could not be measured for any of the parameters", run.adjust)
    text = "the corrected mean of {label} is known to {value} % of a posterior sd only, limit {limit} %"
    limit = 2.0 * THRESHOLDS.mcse  # as much as two standard errors of a plain mean may be
    return reason_of_largest("unmeasured", text, MORE, errors, limit, digits=0, percent=True)


_LADDER = "use pmm.temper(), which moves between modes"


def modes(run: Run) -> Reason | None:
    """Return a reason if modes that no chain visits have a hundredth of the mass of theirs."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.ratio > THRESHOLDS.mass or not unvisited_mode(run):
        return None
    remedy = f"reparametrise so that there is one mode, or {_LADDER}"
    if others.position is None:
        remedy = "reparametrise, or try pmm.temper(), whose verdict looks there too"
    if "restart" in run.stats:
        remedy = "take more chains, or a reference from which that mode is met"
    return Reason("modes", f"{unvisited_mode(run)}, limit 1 %", remedy, None, others.mass, THRESHOLDS.mass)


def unfinished_search(run: Run) -> Reason | None:
    """Return a reason if the search for other modes has no answer."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.undecided or others.mass > 0.0:
        return None
    return Reason("search", f"other modes were looked for without an answer: {others.undecided}", _LADDER)


def labels(run: Run) -> Reason | None:
    """Return a reason if labels may be exchanged, or signs are free, in draws that are not relabelled."""
    if not run.labels:
        return None
    exchanges = "; ".join(exchange.words for exchange in run.labels)
    text = f"{exchanges}: single components mean nothing as they are drawn"
    labelled = any(not exchange.signs for exchange in run.labels)
    remedy = "order them (transform=ordered), or" if labelled else "fix it in the model, or"
    return Reason("labels", text, f"{remedy} summarise pmm.relabel(dt)", next(iter(run.labels[0].axes)))


def _is_visited(run: Run, others: OtherModes) -> bool:
    """Return whether draws are in a mode that a ladder's search met before them.

    They are if they are less than half as far away as the others, in the coordinate in which it is furthest away.
    """
    if others.position is None or run.position is None:
        return False
    distance = np.abs(run.position[..., others.coordinate] - others.position[others.coordinate])
    share = (distance < 0.5 * np.quantile(distance, 0.9)).mean()
    return bool(share > SEARCH.visited * others.mass)


def unvisited_mode(run: Run) -> str:
    """Return words for the modes that no chain visits, empty if there are none."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.mass > 0.0 or (run.ladder is not None and _is_visited(run, others)):
        return ""
    share = "nearly all of the mass" if others.mass > 0.99 else f"about {100.0 * others.mass:.2g} % of the mass"
    if others.position is None:
        return f"{share} is where there is no draw, around the chains"
    where = ""
    label = others.name if run.position is None else run.closest_parameter(run.position, others.coordinate)
    if label:
        side = "above" if others.offset > 0.0 else "below"
        where = f", {abs(others.offset):.2g} sd {side} theirs in {label},"
    return f"chains do not move to another mode{where} that has {share}"


def restarts(run: Run) -> Reason | None:
    """Return a reason if too few chains came from the reference to the posterior, or to one of its modes."""
    weight = _weights(run.ladder)
    reached = run.ladder["mode_restarts"].values[: len(weight)]
    count = int(run.ladder["restarts"])
    limit = THRESHOLDS.restarts
    text = f"{count} chains came from the reference to the posterior, limit {limit}: weights of modes are open"
    if count >= limit and len(weight) > 1:
        fewest = int(reached.argmin())
        count = int(reached[fewest])
        limit = THRESHOLDS.restarts_of_mode
        text = f"the mode of weight {weight[fewest]:.2g} was reached from the reference {count} times, limit {limit}"
    return Reason("ladder", text, MORE, None, float(count), limit) if count < limit else None


def evidence(run: Run) -> Reason | None:
    """Return a reason if estimates of the log evidence, forward and backward, contradict each other."""
    gap = float(run.ladder["forward_minus_backward"])
    # The reference may be the posterior itself: then all differences are rounding.
    rounding = 1e-9 * max(1.0, abs(float(run.ladder["log_evidence"])))
    error = max(float(run.ladder["forward_minus_backward_se"]), rounding)
    if not abs(gap) > THRESHOLDS.evidence_gap * error:
        return None
    text = (
        f"log evidence forward and backward differ by {abs(gap):.2g} (error {error:.2g}), limit "
        f"{THRESHOLDS.evidence_gap:g} errors: neighbouring temperature levels have not met the same places"
    )
    return Reason("ladder", text, MORE, None, abs(gap) / error, THRESHOLDS.evidence_gap)


def ladder_description(ladder: xr.DataTree | None, trusted: bool) -> str:
    """Return words for what a ladder has measured; none without a ladder."""
    if ladder is None:
        return ""
    weight = _weights(ladder)
    errors = np.asarray(ladder["mode_weight_se"].values)
    log_evidence = float(ladder["log_evidence"])
    error = float(ladder["log_evidence_se"])
    places = int(np.clip(-np.floor(np.log10(max(error, 1e-9))), 2, 6))
    count = int(ladder["restarts"])
    text = f" Ladder: log evidence {log_evidence:.{places}f} (error {error:.{places}f}), {count} restarts"
    if len(weight) > 1:
        shown = ", ".join(f"{w:.2g} (error {se:.1g})" for w, se in zip(weight[:6], errors, strict=False))
        text += f", {len(weight)} modes of weights {shown}" + ", ..." * (len(weight) > 6)
    elif len(weight):
        text += ", one mode" + ": a run without a ladder would do" * trusted
    return f"{text}."


def _weights(ladder: xr.DataTree) -> np.ndarray:
    weight = np.asarray(ladder["mode_weight"].values)
    return weight[np.isfinite(weight)]
