"""The verdict on a result: a list of checks, each a function of the result that returns a reason or None.

A run is trusted if no check has a reason.  ``checks_of`` is the list, ``statement.py`` makes the sentence of reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from pmm_mcmc.diagnostics import checks
from pmm_mcmc.diagnostics.necks import neck
from pmm_mcmc.diagnostics.parameters import Result
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict, verdict_of
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

# The columns of a summary that ArviZ does not have, in a line.
COLUMNS = "mean_cv is the mean, with less noise by control variates, and mcse_cv its standard error"


def judge(run: Run) -> Verdict:
    """Return the verdict on a result as it was read."""
    reasons = [reason for check in checks_of(run) if (reason := check(run)) is not None]
    # A wall makes draws slow, not wrong: of 54 adjusted runs on 18 models whose density ends at once, 25 had no other
    # reason, all of them right to .1 sd; 12 of the other 29 were not.
    walls = [reason for reason in reasons if reason.code == "wall"]
    good = ""
    if len(walls) == len(reasons):
        good = _description(run) + "".join(f" {wall}: {wall.remedy}." for wall in walls)
        reasons = []
    block = run.findings.get("block", [])
    return verdict_of(reasons, good, checks.ladder_description(run.ladder, not reasons), block)


def checks_of(run: Run) -> tuple[Callable[[Run], Reason | None], ...]:
    """Return the checks that apply to a result."""
    if checks.few_draws(run) is not None:
        return (checks.few_draws,)
    every = (
        *(checks.one_chain, checks.r_hat, checks.mcse_of_mean, checks.mcse_of_sd),
        *(checks.divergences, checks.standstill, checks.heavy_tails),
    )
    of_package = (checks.improper, checks.equilibration, checks.identity, neck)
    biases = (checks.bias_of_mean, checks.bias_of_sd, checks.unbounded_bias_of_sd, checks.unmeasured)
    unadjusted = (checks.unstable, *biases)
    return (
        *every,
        *(checks.modes, checks.unfinished_search, checks.labels),
        *(of_package if run.of_package else ()),
        *(unadjusted if run.unadjusted else ()),
        *((checks.restarts, checks.evidence) if run.ladder is not None else ()),
    )


# -- the sentence of a run without reasons -----------------------------------------------------------------------------


def _description(run: Run) -> str:
    """Return the sentence of a run without reasons: how well means are known, and further remarks."""
    text = _means(run)
    error = checks.errors_of_sd(run)
    if (error > THRESHOLDS.mcse).any():
        label = error.idxmax()
        text += f" The sd of {label} is known to {100.0 * error[label]:.0f} % at best: if it matters, draw more."
    heavy = checks.unknown_sds(run)
    if heavy:
        text += f" The sd of {_abbreviated(heavy)} is hardly known: the tail is heavy."
    if run.mixed_labels:
        exchanges = "; ".join(exchange.words for exchange in run.mixed_labels)
        text += f" {exchanges[0].upper()}{exchanges[1:]}: pmm.relabel(dt) tells single components apart."
    mode = checks.unvisited_mode(run)
    if mode:
        text += f" {mode[0].upper()}{mode[1:]}: pmm.temper() would weigh it."
    return text


def _means(run: Run) -> str:
    """Return how well the means are known, those of unadjusted draws where their bias is measurable."""
    table = run.table[run.table["sd"] != 0.0]
    error = table["mcse_cv"] / table["sd_cv"]
    measured = error.where(table["bias"].notna()) if run.unadjusted else error
    if not measured.notna().any():
        not_finite = len(table) and not run.unadjusted
        return "no mean is finite: look at how parameters are computed." if not_finite else "nothing varies."
    text = f"within {max(1.0, np.ceil(200.0 * measured.max())):.0f} % of a posterior sd, with 95 % confidence each"
    if not run.unadjusted and len(error) > 1:
        free = error[[label.partition("[")[0] in run.findings.get("free", []) for label in error.index]]
        of_free = free.idxmax() if free.notna().any() else error.idxmax()
        text += f"; {of_free} is known least" + " of the free variables" * (of_free != error.idxmax())
    constant = list(run.table.index[run.table["sd"] == 0.0])
    if constant:
        text += f"; {_abbreviated(constant)} {'is' if len(constant) == 1 else 'are'} constant"
    rows = len(run.table)
    count = len(run.parameters)
    means = "all means" if rows == count else f"the {rows} of {count} means that were judged"
    unknown = error[measured.isna()].fillna(np.inf).sort_values(ascending=False, kind="stable")
    if len(unknown) and run.unadjusted:
        names = _abbreviated(list(unknown.index))
        return f"corrected means are {text}; the bias of {names} is not measurable: {run.adjust}."
    if len(unknown):
        text += f"; {unknown.index[0]} is not finite everywhere: look at how it is computed"
        means = means.removeprefix("all ")
    if run.unadjusted:
        means = means.replace("means", "corrected means")
    return f"{means} are {text}."


def _abbreviated(labels: list[str]) -> str:
    """Return the names of up to three parameters, or two and the number of the others."""
    if len(labels) > 3:
        labels = [*labels[:2], f"{len(labels) - 2} more"]
    *others, last = labels
    return f"{', '.join(others)} and {last}" if others else last


# -- for runs ---------------------------------------------------------------------------------------------------------


def asks_for_more(dt: Result) -> Reason | None:
    """Return the first reason of the verdict that more draws may remove, or that forbids to call a run enough."""
    reasons = judge(read(dt)).reasons
    return next((each for each in reasons if each.remedy == MORE or each.code in ("r_hat", "equilibration")), None)


def last_message(dt: Result) -> tuple[int, str]:
    """Return the level and the text of a run's last message: the sentence of the verdict, a warning unless trusted.

    The text of a trusted run also names the function that shows the estimates, and explains its columns.
    """
    judgement = judge(read(dt))
    if not judgement.trusted:
        return logging.WARNING, judgement.sentence
    return logging.INFO, f"{judgement.sentence}\nThe estimates are in pmm.summary(dt), where {COLUMNS}."
