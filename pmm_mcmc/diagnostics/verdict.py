"""The verdict on a result: a list of checks, each a function of the result that returns the reasons it has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.identity import fails, fails_on_average, holds
from pmm_mcmc.diagnostics.ladder import evidence, ladder_description, restarts
from pmm_mcmc.diagnostics.modes import mode_description, mode_reasons
from pmm_mcmc.diagnostics.moments_summary import MomentsRun
from pmm_mcmc.diagnostics.necks import neck_reasons
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict, concluded, format_with_limit
from pmm_mcmc.diagnostics.table import remembered
from pmm_mcmc.diagnostics.unadjusted import (
    ADJUST,
    bias,
    breaks,
    harmless,
    step_long,
    unadjusted_description,
    unmeasured,
    unstable,
)
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = ["Reason", "Verdict", "asks_for_more", "checks_of", "last_words", "verdict"]

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
    Modes that neither chains nor scouts have met are not seen.

    Unadjusted draws are **not trusted** also if the log density jumps, or ends at a wall, between draws; if too many
    transitions were unstable; if the bias of a mean or a standard deviation exceeds 0.075 posterior standard deviations
    (of a mean, with the share that the correction did not remove); or if the step is not stable where the posterior is
    steepest.  They are **undecided** also if no bias could be measured, if chains move between modes of unequal width,
    or if the step is much longer than warm-up would have made it, and the draws do not rule out a bias of 0.1.

    Parameters
    ----------
    dt
        A result of any sampler; one of another sampler is judged by draws and divergences alone.

    Returns
    -------
    Verdict
        ``state``, ``trusted``, ``sentence``, ``reasons``.

    Notes
    -----
    If there are very many parameters, the verdict judges the first, 200 or twice as many as there are coordinates
    (PyMC's results begin with the free variables), and of the deterministics after them up to 200 that a quick look at
    all finds the worst.  Tables of the last few results are kept; :func:`pmm_mcmc.summary` does not compute them again.
    """
    if "posterior_mean" in dt.children:  # draws were not kept
        return judge(MomentsRun(dt))
    tables = remembered(dt)
    if "verdict" not in tables:
        run = read(dt)
        tables["verdict"] = judge(run)
        tables["selected"] = run.table
        tables["unadjusted"] = run.unadjusted
    return tables["verdict"]


def judge(run: Run) -> Verdict:
    """Return the verdict on a result as it was read."""
    reasons = [reason for check in checks_of(run) for reason in check(run)]
    return concluded(reasons, description(run), ladder_description(run.ladder, not reasons))


def checks_of(run: Run) -> tuple[Callable[[Run], list[Reason]], ...]:
    """Return the checks that apply to a result."""
    if few_draws(run):
        return (few_draws,)
    checks = [one_chain, r_hat, mcse, divergences]
    if run.of_package:
        checks += [equilibration, identity, modes, neck]
    if run.unadjusted:
        checks += [unstable, bias, step_long, unmeasured, breaks]
    if run.ladder is not None:
        checks += [restarts, evidence]
    return tuple(checks)


# -- checks of every run -----------------------------------------------------------------------------------------------


def few_draws(run: Run) -> list[Reason]:
    """Return a reason if draws are too few to judge; after an equilibration one of each of many chains is enough."""
    fewest = CALIBRATION.fewest
    of_chain = 1 if run.equilibration is not None else CALIBRATION.fewest_of_chain
    if run.draws >= of_chain and run.chains * run.draws >= fewest:
        if run.draws >= CALIBRATION.fewest_of_chain or run.chains >= fewest:
            return []
    text = f"{run.chains} x {run.draws} draws are too few to judge, limit {fewest} and {of_chain} of each chain"
    return [Reason("few_draws", text, MORE, value=float(run.chains * run.draws), limit=float(fewest))]


def one_chain(run: Run) -> list[Reason]:
    """Return a reason if there is one chain alone."""
    if run.chains > 1:
        return []
    return [Reason("one_chain", "one chain cannot be compared with others", "run four chains", value=1.0, limit=2.0)]


def r_hat(run: Run) -> list[Reason]:
    """Return a reason if chains disagree."""
    values = run.r_hat
    if not (values > CALIBRATION.r_hat).any():
        return []
    label = str(values.idxmax())
    value, limit = format_with_limit(values[label], CALIBRATION.r_hat, 3)
    return [
        Reason(
            "r_hat",
            f"{values.name} of {label} is {value}, limit {limit}",
            _APART if run.keep_apart(label) else MORE,
            label,
            float(values[label]),
            CALIBRATION.r_hat,
        )
    ]


def mcse(run: Run) -> list[Reason]:
    """Return reasons if a mean, or the standard deviation of a free variable, is not known well enough."""
    reasons = []
    if (run.errors > CALIBRATION.mcse).any():
        label = str(run.errors.idxmax())
        value, limit = format_with_limit(run.errors[label], CALIBRATION.mcse, 2)
        text = f"the mean of {label} is known to {value} posterior sd only, limit {limit}"
        reasons.append(Reason("mcse", text, MORE, label, float(run.errors[label]), CALIBRATION.mcse))
    unexplained = run.errors_of_sd.where(run.table["bias"].isna())
    if (unexplained > CALIBRATION.mcse).any():
        label = str(unexplained.idxmax())
        value, limit = format_with_limit(100.0 * unexplained[label], 100.0 * CALIBRATION.mcse, 0)
        text = f"the sd of {label} is known to {value} % only, limit {limit} %"
        reasons.append(Reason("mcse", text, MORE, label, float(unexplained[label]), CALIBRATION.mcse))
    return reasons


def divergences(run: Run) -> list[Reason]:
    """Return reasons if transitions diverged, or a chain stands still."""
    still = _still(run)
    if "diverging" not in run.stats:
        return still
    if run.adjusted and run.broken is not None:  # beyond a wall there is no density, and proposals there are rejected
        return still
    flags = run.stats["diverging"].values
    count = int(flags.sum())
    limit = harmless(run) if run.of_package else 0
    if count <= limit:
        return still
    text = f"{count} of {run.chains * run.draws} transitions diverged"
    remedy = "raise target_accept, or reparametrise"
    if run.of_package:
        place = run.place(flags > 0) if flags.ndim > 1 else ""
        text = f"{count} of {run.chains * run.draws} draws followed a divergence{place}, limit {limit}"
        remedy = _shorter(run)
    return [Reason("divergences", text, remedy, value=float(count), limit=float(limit)), *still]


def _shorter(run: Run) -> str:
    """Return the remedy for steps that are too long somewhere."""
    if run.equilibration is None:
        return ADJUST
    step = 0.5 * float(np.min(run.equilibration["step_size"].values))
    return f"reparametrise, or sample with a shorter step: pmm.sample(step=pmm.GHMC(step_size={step:.2g}))"


def _still(run: Run) -> list[Reason]:
    """Return a reason if the acceptance of a chain of adjusted draws is below half of the others', beyond chance.

    Of 400 runs of 4 and of 1,000 chains with 4 to 1,000 independent draws none was refused, at mean acceptances of .6
    to .95 (60 runs from 1e5 draws on).  Without the allowance all are with 1,000 chains of 4 draws at .6 and .7.
    """
    if not run.adjusted or run.chains == 1 or "acceptance_rate" not in run.stats:
        return []
    if run.draws < CALIBRATION.fewest_of_chain:
        return []
    accept = run.stats["acceptance_rate"].values
    if accept.ndim < 2:  # draws were not kept
        return []
    of_chain = accept.mean(axis=1)
    middle = float(np.median(of_chain))
    error = np.sqrt(accept.var(axis=1).mean() / run.draws)
    chance = -ndtri(WARMUP.chance / run.chains) * error
    worst = int(of_chain.argmin())
    if not of_chain[worst] + chance < 0.5 * middle:
        return []
    text = f"chain {worst} stands still: it accepts {of_chain[worst]:.2f}, the middle one {middle:.2f}"
    return [Reason("divergences", text, _shorter(run), None, float(of_chain[worst]), 0.5 * middle)]


# -- checks of every run of this package -------------------------------------------------------------------------------


def equilibration(run: Run) -> list[Reason]:
    """Return a reason if equilibration did not end."""
    if run.equilibration is None or int(run.equilibration["ended"]):
        return []
    count = int(run.equilibration["transitions"])
    text = f"equilibration did not end: chains had not forgotten their starts after {count} transitions"
    return [Reason("equilibration", text, "raise tune, or start nearer with initvals=")]


def identity(run: Run) -> list[Reason]:
    """Return a reason if the Stein identity fails, in one coordinate or on average over all."""
    plain = run.identity
    if plain is None or (run.adjusted and run.broken is not None):  # at an edge or a jump it lacks a boundary term
        return []
    whitened = run.whitened_identity
    identities = [(plain, "E[x dF/dx] of {}")]
    if run.adjusted and whitened is not None:
        identities.append((whitened, "E[y dF/dy] of the whitened coordinate y most like {}"))
    for each, template in identities:
        failing = fails(each, run.identity_degrees)
        if failing.any():
            worst = int(np.argmax(np.where(failing, np.abs(each.excess), 0.0)))
            label = run.coordinate(worst)
            limit = 1.0 + np.copysign(CALIBRATION.identity_excess, each.excess[worst])
            value, against = format_with_limit(1.0 + each.excess[worst], limit, 3)
            text = f"{template.format(label)} is {value}, limit {against}"
            narrow = bool(each.excess[worst] < 0.0)
            return [Reason("identity", text, _cause(run, narrow), label, float(1.0 + each.excess[worst]), float(limit))]
    return _on_average(run, plain if whitened is None else whitened, whitened is not None)


def _on_average(run: Run, each: Identity, is_whitened: bool) -> list[Reason]:
    if not fails_on_average(each, run.identity_degrees):
        return []
    worst = int(np.argmax(np.abs(each.excess)))
    label = run.coordinate(worst)
    limit = 1.0 + np.copysign(CALIBRATION.identity_excess, each.excess[worst])
    value, _ = format_with_limit(1.0 + each.excess[worst], limit, 2)
    symbols = "E[y dF/dy] of whitened coordinates y" if is_whitened else "E[x dF/dx]"
    average = np.sqrt(2.0 * each.mean_square)
    highest = np.sqrt(2.0 * CALIBRATION.identity_mean_square)
    text = f"{symbols} is {value} for {label} and off 1 by {average:.2f} on average, limit {highest:.2f}"
    narrow = bool(each.excess.mean() < 0.0)
    return [Reason("identity", text, _cause(run, narrow), label, float(1.0 + each.excess[worst]), float(limit))]


def _cause(run: Run, narrow: bool) -> str:
    """Return the remedy where the identity fails."""
    edge = run.identity is not None and not holds(run.identity, run.identity_degrees, run.moving)
    if run.adjusted:
        remedy = "chains may not have entered an arm or a tail: draw more, or reparametrise"
        return f"{remedy}; or the density has an edge or a jump there" if edge else remedy
    if edge:
        return (
            "the density may have an edge or a jump there, where no Langevin sampler is right: bound a parameter by "
            "its prior, and let no term jump; if it has none, draw more"
        )
    if narrow:  # too long a step widens
        return "long steps widen, and this is too narrow: draw more, or reparametrise"
    return ADJUST


def modes(run: Run) -> list[Reason]:
    """Return a reason if another mode with mass has no draws."""
    return mode_reasons(run)


def neck(run: Run) -> list[Reason]:
    """Return a reason if a neck beyond the draws has mass, by prediction."""
    return [] if run.sampled_position is None else neck_reasons(run)


# -- the sentence of a trusted run -------------------------------------------------------------------------------------


def description(run: Run) -> str:
    """Return the sentence of a run without reasons: how well its means are known, and further remarks."""
    if few_draws(run):
        return ""
    text = (unadjusted_description(run) if run.unadjusted else _means(run)) + _sds(run)
    return text + mode_description(run) if run.of_package else text


def _means(run: Run) -> str:
    table = run.table
    moving = table["sd"] != 0.0
    if not moving.any():
        return "nothing varies."
    corrected = table["mcse_cv"] / table["sd_cv"]
    # A parameter that gradients do not explain has its plain mean and error.
    error = corrected.where(table["bias"].notna(), run.errors)[moving]
    if not error.notna().any():
        return "no mean is finite."
    within = f"within {max(1.0, np.ceil(200.0 * error.max())):.0f} % of a posterior sd, with 95 % confidence each"
    unknown = error.index[error.isna()]
    if len(unknown):
        return f"means are {within}; {unknown[0]} is not finite everywhere."
    return f"{run.means} are {within}."


def _sds(run: Run) -> str:
    error = run.errors_of_sd
    if not (error > CALIBRATION.mcse).any():
        return ""
    label = error.idxmax()
    return f" The sd of {label} is known to {100.0 * error[label]:.0f} % at best."


# -- for runs ---------------------------------------------------------------------------------------------------------


def asks_for_more(dt: Any) -> Reason | None:
    """Return the first reason of the verdict on a result that more draws may remove, if there is one.

    The result is one that a run has so far: its table is not kept.
    """
    run = MomentsRun(dt) if "posterior_mean" in dt.children else read(dt)
    return next((reason for reason in judge(run).reasons if reason.remedy == MORE or reason.code == "r_hat"), None)


def last_words(dt: Any) -> tuple[int, str]:
    """Return the level and the text of a run's last message: the sentence of the verdict, a warning unless trusted.

    The text of a trusted run also names the function that shows the estimates.
    """
    judgement = verdict(dt)
    if judgement.trusted:
        return logging.INFO, f"{judgement.sentence} The estimates are in pmm.summary(dt)."
    return logging.WARNING, judgement.sentence
