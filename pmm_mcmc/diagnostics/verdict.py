"""The biases of a result's parameters, and the verdict on it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import chi2

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.exact import is_exact, leg_reasons, snapshot, with_leg, without_bias
from pmm_mcmc.diagnostics.judgement import Findings
from pmm_mcmc.diagnostics.judgement import judge as judge_found
from pmm_mcmc.diagnostics.ladder import ladder_reasons, with_ladder
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.moments_summary import moments_verdict
from pmm_mcmc.diagnostics.necks import neck_reasons
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.reasons import divergence_reasons, size_reasons
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict, concluded
from pmm_mcmc.diagnostics.table import BIASES, judged, remembered, table_of
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP

__all__ = ["Reason", "Verdict", "asks_for_more", "bias_table", "judge", "last_words", "verdict"]


def bias_table(dt: Any, var_names: Any = None) -> pd.DataFrame:
    """Estimate the discretisation bias of each parameter's mean and standard deviation.

    A bias is the raw minus the Stein-corrected estimate (:mod:`pmm_mcmc.diagnostics.stein`), in the parameter's units.

    Parameters
    ----------
    dt
        A result of any sampler.  Biases are measured if ``sample_stats`` has ``gradient`` and ``unconstrained``, which
        every step method here stores if it moves all continuous variables of the model.
    var_names
        Parameters to report; all by default.

    Returns
    -------
    pandas.DataFrame
        A row a parameter: ``mean``, ``mcse``, ``mean_corrected``, ``mcse_corrected``, ``bias``, ``bias_se``,
        ``bias_sd_units`` (over the corrected standard deviation), then ``sd``, ``sd_corrected``, ``mcse_sd_corrected``,
        ``bias_of_sd``, ``bias_of_sd_se`` and ``unexplained``, the share of a mean's noise, and so about the share of
        its bias, that the correction does not remove.  Biases are NaN, and corrected estimates equal to the plain ones,
        where nothing can be corrected: the gradients explain too little of the parameter; there are none, or fewer than
        20 draws; or the Stein identity fails as it does at an edge or a jump of the density (then in all rows).  NaN
        does not mean that there is no bias.  A bias contains the noise of the raw estimate, which ``bias_se`` measures.
    """
    return table_of(read(dt, var_names))[list(BIASES)]


def verdict(dt: Any) -> Verdict:
    """Say in one sentence whether a run may be trusted and, if not, what fails and what to do.

    A run is **not trusted** if something is wrong: the log density jumps, or ends at a wall, between draws; too many
    transitions were unstable; chains disagree; scouts found another mode with more than a hundredth of the mass; the
    Stein identity fails; the bias of a mean or a standard deviation exceeds 0.075 posterior standard deviations (of a
    mean, with the share that the correction did not remove); or the step is not stable where the posterior is steepest.

    It is **undecided** if nothing wrong was found, but the draws cannot show that nothing is: there are fewer than 20,
    or one chain; the standard error of a mean exceeds 0.05 posterior standard deviations, or two standard errors of a
    corrected mean exceed 0.1; the standard deviation of a free variable, whose bias is not measurable, is known to
    worse than 5 %, where that of its mean is not either; chains move between modes of unequal width; a neck beyond the
    draws has a hundredth more of the mass than of the draws, by prediction; no bias could be measured, as without
    gradients; or the step is much longer than warm-up would have made it, and the draws do not
    rule out a bias of 0.1.

    Otherwise it is **trusted**.  The percentage in the sentence is two standard errors of the worst corrected mean, in
    posterior standard deviations, with the bias that the correction did not remove.  Modes that neither chains nor
    scouts have found are not seen.

    Parameters
    ----------
    dt
        A result of any sampler; without gradients, only convergence is judged.

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
        return moments_verdict(dt)
    known = remembered(dt)
    if "verdict" not in known:
        run = read(dt)
        known["judged"] = table_of(run, judged(run))
        known["verdict"] = judge(dt, run, known["judged"])
    return known["verdict"]


def judge(dt: Any, run: Run, table: pd.DataFrame) -> Verdict:
    """Return the verdict on a result from the table of its parameters.

    Parameters
    ----------
    dt, run
        The result, as a tree and as :func:`pmm_mcmc.diagnostics.reading.read` returns it.
    table
        The table of :func:`pmm_mcmc.diagnostics.table.table_of`.
    """
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    few = size_reasons(run.chains, run.draws)
    if any(reason.code == "few_draws" for reason in few):
        return snapshot(dt, run.chains, run.draws) or concluded(few, "")
    plain = _measured(list(table.index), table)
    measured = without_bias(dt, plain)
    more = divergence_reasons(stats) + leg_reasons(dt, run.chains) + ladder_reasons(dt)
    if run.judged is not None:
        more += neck_reasons(dt["posterior"].attrs, run.judged, partial(_valued, run, table))
    elif not is_exact(dt):
        words = "the bias could not be measured, for the result holds no gradients"
        remedy = "sample with keep_gradients=True" if "n_grad_total" in stats else ""
        more.append(Reason("no_gradients", words, remedy))
    found = _findings(dt, run, table, plain, measured)
    return with_ladder(dt, with_leg(dt, judge_found(found, more, measured)))


def _findings(dt: Any, run: Run, table: pd.DataFrame, plain: Measured, measured: Measured) -> Findings:
    """Return what is known of a result from its draws."""
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    there, at = run.judged is not None, partial(_of_position, run, table)
    r_hat, r_hat_name = _r_hat(dt, table)
    return Findings(
        stats, run.chains, run.draws, plain.labels, r_hat, _errors_of_means(table, run.chains), measured,
        run.identity if there else None,
        run.degrees,
        run.moving if there else True,
        partial(_name, run, table),
        "parameters" if len(table) == len(run.parameters) else "parameters judged",
        together=run.together if there else None,
        r_hat_name=r_hat_name,
        broken=run.broken,
        place=partial(_place, run, table) if run.broken is not None and run.position is not None else None,
        where=lambda: _where(run, table, stats["unstable"].values),
        uncertain=_free_alone(run, plain) if there else None,
        position=run.position,
        at=at,
        exact=is_exact(dt),
    )  # fmt: skip


def asks_for_more(dt: Any) -> Reason | None:
    """Return the first reason of the verdict on a result that more draws alone would remove, if there is one.

    The result is one that a run has so far: its table is not kept.
    """
    if "posterior_mean" in dt.children:
        found = moments_verdict(dt)
    else:
        run = read(dt)
        found = judge(dt, run, table_of(run, judged(run)))
    return next((reason for reason in found.reasons if reason.remedy == MORE), None)


def _measured(labels: list[str], table: pd.DataFrame) -> Measured:
    """Return the biases of a table in posterior standard deviations."""
    scale = table["sd_corrected"].where(table["sd_corrected"] > 0.0)
    mean, mean_se, of_sd, of_sd_se, error, error_of_sd = (
        (table[name].abs() / scale).to_numpy()
        for name in ("bias", "bias_se", "bias_of_sd", "bias_of_sd_se", "mcse_corrected", "mcse_sd_corrected")
    )
    moving = table["sd"].to_numpy() != 0.0
    left = table["unexplained"].to_numpy()
    return Measured(labels, mean, mean_se, left, of_sd, of_sd_se, moving, error, error_of_sd)


def _free_alone(run: Run, measured: Measured) -> Measured:
    """Leave out errors of standard deviations of parameters whose tails may be too heavy to have one.

    These are the transformed ones, and children of hierarchies: those of a funnel are known by their scale.
    """
    unsure = np.flatnonzero(~np.isfinite(measured.of_sd) & (measured.error_of_sd > CALIBRATION.mcse))
    plain = Run(run.parameters, run.chains, run.draws, judged=run.position)
    number = {label: i for i, label in enumerate(run.labels)}
    own = plain.own_of(run.parameters.read(np.array([number[measured.labels[int(i)]] for i in unsure], int)))
    error = measured.error_of_sd.copy()
    assert run.position is not None and run.judged is not None
    moved = np.append((run.judged != run.position).any(axis=(0, 1)), True)
    error[unsure[moved[own]]] = np.nan
    return measured._replace(error_of_sd=error)


def _r_hat(dt: Any, table: pd.DataFrame) -> tuple[np.ndarray, str]:
    """Return r_hat of each parameter, 1 of constants, and what it is called."""
    r_hat, name = table["r_hat"], "r_hat"
    if dt["posterior"].sizes["chain"] > 1 and "superchains" in dt["posterior"].attrs:  # many, of few draws each
        r_hat, name = nested_r_hat(dt).reindex(table.index), "nested r_hat"
    # Copies of a ladder start together, and forget by restarts, which are counted.
    judged = (table["sd"] > 0.0) & ("ladder" not in dt.children)
    return np.where(judged, r_hat, 1.0), name


def _errors_of_means(table: pd.DataFrame, chains: int) -> np.ndarray:
    """Return standard errors of means, in standard deviations: ArviZ's, or the one between chains if that is larger.

    Between a few chains it is noisy: it counts only where it is larger than chance makes it for any parameter.
    """
    within, between = table["within"].to_numpy(), table["between"].to_numpy()
    if chains == 1 or not len(table):
        return within
    chance = np.sqrt(chi2.ppf(1.0 - WARMUP.chance / len(table), chains - 1) / (chains - 1))
    return np.where(between > chance * within, between, within)


def _name(run: Run, table: pd.DataFrame, coordinate: int) -> str:
    """Return the parameter of a table that a coordinate is or, if there is none, that correlates with it most."""
    x = run.judged[..., coordinate]
    best, closest = "", -1.0
    known = set(table.index)
    numbers = np.array([i for i, label in enumerate(run.labels) if label in known])
    for at, values in run.parameters.slabs(numbers):
        own = run.own_of(values) == coordinate
        if own.any():
            return run.labels[at[int(own.argmax())]]
        flat = values.reshape(x.size, -1)
        with np.errstate(all="ignore"):
            correlation = np.nan_to_num(np.abs([np.corrcoef(x.ravel(), f)[0, 1] for f in flat.T]))
        if correlation.max() > closest:
            best, closest = run.labels[at[int(correlation.argmax())]], float(correlation.max())
    return best


def _valued(run: Run, table: pd.DataFrame, coordinate: int, value: float) -> tuple[str, str]:
    """Return the parameter of a coordinate, and words for where the coordinate is beyond a value, on its side."""
    label, z = _name(run, table, coordinate), run.judged[..., coordinate].ravel()
    there = run.parameters.read(np.array([run.labels.index(label)])).ravel()[int(np.argmin(np.abs(z - value)))]
    return label, f"{'below' if value < np.median(z) else 'above'} {there:.3g}"


def _where(run: Run, table: pd.DataFrame, unstable: np.ndarray) -> str:
    """Return words for where draws with unstable transitions are, if their mean is more than 1 sd off that of all."""
    if run.position is None:
        return ""
    bad = (unstable > 0).reshape(run.chains, run.draws, -1).any(axis=2)
    sd = np.maximum(run.position.std(axis=(0, 1)), 1e-300)
    away = (run.position[bad].mean(axis=0) - run.position.mean(axis=(0, 1))) / sd
    worst = int(np.argmax(np.abs(away)))
    if abs(away[worst]) < 1.0:
        return ""
    side = "above" if away[worst] > 0 else "below"
    return f", most of all where {_of_position(run, table, worst)} is {abs(away[worst]):.1f} sd {side} its mean"


def _of_position(run: Run, table: pd.DataFrame, coordinate: int) -> str:
    plain = Run(run.parameters, run.chains, run.draws, judged=run.position)
    return _name(plain, table, coordinate)


def _place(run: Run, table: pd.DataFrame) -> tuple[str, float]:
    """Return the parameter that a break is along, and its value there: NaN if that is no function of the coordinate."""
    assert run.broken is not None
    label = _of_position(run, table, run.broken.coordinate)
    x = run.position[..., run.broken.coordinate].ravel()
    order = np.argsort(x, kind="stable")
    values = run.parameters.read(np.array([run.labels.index(label)])).ravel()[order]
    if not ((np.diff(values) >= 0.0).all() or (np.diff(values) <= 0.0).all()):
        return label, np.nan
    return label, float(np.interp(run.broken.value, x[order], values))


def last_words(dt: Any) -> tuple[int, str]:
    """Return what a run ends with, and its level of logging: the sentence of the verdict, a warning unless trusted.

    After a good one it says where the means are that the sentence speaks of.
    """
    judgement = verdict(dt)
    if judgement.trusted:
        return logging.INFO, f"{judgement.sentence} The corrected means are in pmm.summary(dt)."
    return logging.WARNING, judgement.sentence
