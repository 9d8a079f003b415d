"""The verdict on a result: a list of checks, each a function of the result that returns a reason or None."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from pmm_mcmc.diagnostics import unadjusted
from pmm_mcmc.diagnostics.description import COLUMNS, description, unvisited_mode
from pmm_mcmc.diagnostics.identity import fails, fails_on_average
from pmm_mcmc.diagnostics.ladder import evidence, ladder_description, restarts
from pmm_mcmc.diagnostics.moments_summary import MomentsRun
from pmm_mcmc.diagnostics.necks import TAIL, mass_beyond
from pmm_mcmc.diagnostics.parameters import checked
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.recent_tables import tables_of
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict, format_with_limit, reason_of_largest, verdict_of
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.unadjusted import ADJUST
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP

__all__ = ["Reason", "Verdict", "asks_for_more", "checks_of", "judge", "last_message", "verdict"]

# The remedy where chains do not move between places.
_APART = "chains keep apart: use pmm.temper(), which moves between modes, or reparametrise"


def verdict(dt: Any) -> Verdict:
    """Say in one sentence whether a run may be trusted and, if not, what fails and what to do.

    A run is **not trusted** if something is wrong: chains disagree; transitions diverged, or a chain stands still; the
    Stein identity fails, as it does where chains have not entered an arm or a tail; another mode has more than a
    hundredth of the mass.

    It is **undecided** if nothing wrong is seen, but the draws cannot show that nothing is: there are fewer than 20, or
    one chain; the standard error of a mean exceeds 0.05 posterior standard deviations; the standard deviation of a free
    variable is known to worse than 5 %, where gradients explain neither it nor the mean; equilibration did not end; a
    neck beyond the draws has a hundredth more of the mass than of the draws, by prediction; or, with a ladder, weights
    rest on too few restarts, or its estimates of the evidence differ.

    Otherwise it is **trusted**.  The percentage in the sentence is two standard errors of the mean that is known worst.
    Modes that neither a chain nor the search for modes has met are not seen.

    Unadjusted draws are **not trusted** also if too many transitions were unstable, or if the bias of a mean or a
    standard deviation exceeds 0.075 posterior standard deviations (of a mean, with the share that the correction did
    not remove).  They are **undecided** also if no bias could be measured.

    Parameters
    ----------
    dt
        A result of any sampler; one of another sampler is judged by draws and divergences alone.

    Returns
    -------
    Verdict
        ``state``, ``trusted``, ``sentence``, ``reasons``; a notebook shows them.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is no result of sampling; the message has the remedy.

    Notes
    -----
    If there are very many parameters, the verdict judges the first, 200 or twice as many as there are coordinates
    (PyMC's results begin with the free variables), and of the deterministics after them up to 100 that differ most
    between batches.  Tables of the last few results are kept; :func:`pmm_mcmc.summary` does not compute them again.
    """
    tables = tables_of(checked(dt))
    if "verdict" not in tables:
        run = _read(dt)
        tables["verdict"] = judge(run)
        tables["selected"] = run.table
        tables["unadjusted"] = run.unadjusted
    return tables["verdict"]


def _read(dt: Any) -> Run:
    return MomentsRun(dt) if "posterior_mean" in dt.children else read(dt)


def judge(run: Run) -> Verdict:
    """Return the verdict on a result as it was read."""
    reasons = [reason for check in checks_of(run) if (reason := check(run)) is not None]
    good = "" if reasons else description(run)
    return verdict_of(reasons, good, ladder_description(run.ladder, not reasons))


def checks_of(run: Run) -> tuple[Callable[[Run], Reason | None], ...]:
    """Return the checks that apply to a result."""
    if few_draws(run) is not None:
        return (few_draws,)
    return (
        *(one_chain, r_hat, mcse_of_mean, mcse_of_sd, divergences, standstill),
        *((equilibration, identity, modes, neck) if run.of_package else ()),
        *(unadjusted.CHECKS if run.unadjusted else ()),
        *((restarts, evidence) if run.ladder is not None else ()),
    )


# -- checks of every run -----------------------------------------------------------------------------------------------


def few_draws(run: Run) -> Reason | None:
    """Return a reason if draws are too few to judge; after an equilibration one of each of many chains is enough."""
    fewest = THRESHOLDS.fewest
    of_chain = 1 if run.equilibration is not None else THRESHOLDS.fewest_of_chain
    if run.draws >= of_chain and run.chains * run.draws >= fewest:
        if run.draws >= THRESHOLDS.fewest_of_chain or run.chains >= fewest:
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
    text = f"{run.r_hat.name} of {{label}} is {{value}}, limit {{limit}}"
    reason = reason_of_largest("r_hat", text, MORE, run.r_hat, THRESHOLDS.r_hat, digits=3)
    if reason is not None and run.keep_apart(str(reason.parameter)):
        return replace(reason, remedy=_APART)
    return reason


def mcse_of_mean(run: Run) -> Reason | None:
    """Return a reason if a mean is not known well enough."""
    text = "the mean of {label} is known to {value} posterior sd only, limit {limit}"
    return reason_of_largest("mcse", text, MORE, run.errors, THRESHOLDS.mcse, digits=2)


def mcse_of_sd(run: Run) -> Reason | None:
    """Return a reason if the standard deviation of a free variable is not known well enough."""
    text = "the sd of {label} is known to {value} % only, limit {limit} %"
    errors = run.errors_of_sd.where(run.table["bias"].isna())  # where gradients explain the mean, they explain the sd
    return reason_of_largest("mcse", text, MORE, errors, THRESHOLDS.mcse, digits=0, percent=True)


def divergences(run: Run) -> Reason | None:
    """Return a reason if more transitions diverged than are harmless; of other samplers, if one did."""
    if "diverging" not in run.stats:
        return None
    flags = run.stats["diverging"].values
    count = int(flags.sum())
    limit = run.harmless if run.of_package else 0
    if count <= limit:
        return None
    text = f"{count} of {run.chains * run.draws} transitions diverged"
    remedy = "raise target_accept, or reparametrise"
    if run.of_package:
        place = run.place(flags > 0) if flags.ndim > 1 else ""
        text = f"{count} of {run.chains * run.draws} draws followed a divergence{place}, limit {limit}"
        remedy = _shorter(run)
    return Reason("divergences", text, remedy, value=float(count), limit=float(limit))


def _shorter(run: Run) -> str:
    """Return the remedy for steps that are too long somewhere."""
    if run.equilibration is None:
        return ADJUST
    step = 0.5 * float(np.min(run.equilibration["step_size"].values))
    return f"reparametrise, or sample with a shorter step: pmm.sample(step=pmm.GHMC(step_size={step:.2g}))"


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
    of_chain = accept.mean(axis=1)
    middle = float(np.median(of_chain))
    error = np.sqrt(accept.var(axis=1).mean() / run.draws)
    chance = -ndtri(WARMUP.chance / run.chains) * error
    worst = int(of_chain.argmin())
    if not of_chain[worst] + chance < 0.5 * middle:
        return None
    text = f"chain {worst} stands still: it accepts {of_chain[worst]:.2f}, the middle one {middle:.2f}"
    return Reason("divergences", text, _shorter(run), None, float(of_chain[worst]), 0.5 * middle)


# -- checks of every run of this package -------------------------------------------------------------------------------


def equilibration(run: Run) -> Reason | None:
    """Return a reason if equilibration did not end."""
    if run.equilibration is None or int(run.equilibration["ended"]):
        return None
    count = int(run.equilibration["transitions"])
    text = f"equilibration did not end: chains had not forgotten their starts after {count} transitions"
    return Reason("equilibration", text, "raise tune, or start nearer with initvals=")


def identity(run: Run) -> Reason | None:
    """Return a reason if the Stein identity fails, in one coordinate or on average over all."""
    each = run.identity
    if each is None or run.jumps:  # at a jump it lacks a boundary term
        return None
    whitened = run.whitened_identity
    degrees = run.identity_degrees
    symbols = "E[x dF/dx] of {}"
    failing = fails(each, degrees)
    if run.adjusted and whitened is not None and not failing.any():
        each = whitened
        symbols = "E[y dF/dy] of the whitened coordinate y most like {}"
        failing = fails(each, degrees)
    if not failing.any():
        return _identity_on_average(run, degrees)
    worst = int(np.argmax(np.abs(each.excess) * failing))
    label = run.coordinate(worst)
    value, limit = _value_and_limit(each.excess[worst])
    shown, against = format_with_limit(value, limit, 3)
    text = f"{symbols.format(label)} is {shown}, limit {against}"
    return Reason("identity", text, _remedy_of_identity(run, value < 1.0), label, value, limit)


def _identity_on_average(run: Run, degrees: int) -> Reason | None:
    """Return a reason if the identity, of whitened coordinates if these can be had, fails on average over all."""
    each = run.identity if run.whitened_identity is None else run.whitened_identity
    if each is None or not fails_on_average(each, degrees):
        return None
    symbols = "E[x dF/dx]" if run.whitened_identity is None else "E[y dF/dy] of whitened coordinates y"
    worst = int(np.argmax(np.abs(each.excess)))
    label = run.coordinate(worst)
    value, limit = _value_and_limit(each.excess[worst])
    shown, _ = format_with_limit(value, limit, 2)
    average = np.sqrt(2.0 * each.mean_square)
    highest = np.sqrt(2.0 * THRESHOLDS.identity_mean_square)
    text = f"{symbols} is {shown} for {label} and off 1 by {average:.2f} on average, limit {highest:.2f}"
    return Reason("identity", text, _remedy_of_identity(run, bool(each.excess.mean() < 0.0)), label, value, limit)


def _value_and_limit(excess: float) -> tuple[float, float]:
    return float(1.0 + excess), float(1.0 + np.copysign(THRESHOLDS.identity_excess, excess))


def _remedy_of_identity(run: Run, narrow: bool) -> str:
    """Return the remedy where the identity fails, of draws that are too ``narrow`` or too wide."""
    if run.adjusted:
        remedy = "chains may not have entered an arm or a tail: draw more, or reparametrise"
        return f"{remedy}; or the density has an edge or a jump there" if run.has_edge else remedy
    if run.has_edge:
        return (
            "the density may have an edge or a jump there, where no Langevin sampler is right: bound a parameter by "
            "its prior, and let no term jump; if it has none, draw more"
        )
    if narrow:  # too long a step widens
        return "long steps widen, and this is too narrow: draw more, or reparametrise"
    return ADJUST


def modes(run: Run) -> Reason | None:
    """Return a reason if a mode that no chain visits has a hundredth of the mass of theirs."""
    mode = run.other_modes
    text = unvisited_mode(run)
    if mode is None or not text:
        return None
    ratio = mode.mass / max(1.0 - mode.mass, 1e-300)
    if ratio <= THRESHOLDS.mass:
        return None
    remedy = "reparametrise so that there is one mode, or use pmm.temper(), which moves between modes"
    if mode.hidden:
        remedy = "reparametrise, or try pmm.temper(), whose verdict looks there too"
    elif ratio > 0.9 and abs(ratio / round(ratio) - 1.0) < 0.1:
        remedy = (
            "modes of equal mass are often relabellings of exchangeable components: order these; otherwise use "
            "pmm.temper(), which moves between modes"
        )
    if "restart" in run.stats:
        remedy = "take more chains, or a reference from which that mode is met"
    return Reason("modes", f"{text}, limit 1 %", remedy, None, mode.mass, THRESHOLDS.mass)


def neck(run: Run) -> Reason | None:
    """Return a reason if a neck beyond the draws has, by prediction, a hundredth more of the mass than of the draws."""
    predictions = run.findings.get("necks", {}).get("along", []) if run.has_gradients else []
    for prediction in predictions:
        side = prediction["side"]
        z = run.sampled_position[..., prediction["coordinate"]].ravel()
        mass = mass_beyond(z, side, prediction["at"], prediction["log_density"])
        if mass > TAIL + THRESHOLDS.mass:
            edge = side * float(np.quantile(side * z, 1.0 - TAIL))
            parameter = run.coordinate(prediction["coordinate"])
            value = run.draws_of(parameter).ravel()[int(np.argmin(np.abs(z - edge)))]
            where = "below" if edge < np.median(z) else "above"
            text = (
                f"by a prediction {100.0 * mass:.0f} % of the mass is where {parameter} is {where} {value:.3g}, a neck "
                f"with {100.0 * TAIL:.0f} % of the draws"
            )
            remedy = f"draw more, or keep {parameter} from there by its prior"
            return Reason("neck", text, remedy, parameter, mass, TAIL + THRESHOLDS.mass)
    return None


# -- for runs ---------------------------------------------------------------------------------------------------------


def asks_for_more(dt: Any) -> Reason | None:
    """Return the first reason of the verdict that more draws may remove, or that forbids to call a run enough.

    The result is one that a run has so far: its table is not kept.
    """
    reasons = judge(_read(dt)).reasons
    return next((each for each in reasons if each.remedy == MORE or each.code in ("r_hat", "equilibration")), None)


def last_message(dt: Any) -> tuple[int, str]:
    """Return the level and the text of a run's last message: the sentence of the verdict, a warning unless trusted.

    The text of a trusted run also names the function that shows the estimates, and explains its columns.
    """
    judgement = verdict(dt)
    if not judgement.trusted:
        return logging.WARNING, judgement.sentence
    columns = "" if "posterior_mean" in dt.children else f", where {COLUMNS}"
    return logging.INFO, f"{judgement.sentence}\nThe estimates are in pmm.summary(dt){columns}."
