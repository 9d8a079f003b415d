"""The report on one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.moments_summary import MomentsRun
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.statement import Verdict as Judgement
from pmm_mcmc.diagnostics.summary import full_table, joined, with_numbers
from pmm_mcmc.diagnostics.verdict import verdict
from pmm_mcmc.workbench.report.columns import BIASES, ESTIMATES, FORMS, SAMPLING, interval_meaning
from pmm_mcmc.workbench.report.figures import forest, ranks, traces, unlisted
from pmm_mcmc.workbench.report.ladder import ladder_section
from pmm_mcmc.workbench.report.page import Figure, Page, Section, Table, Verdict, chosen
from pmm_mcmc.workbench.report.setting import facts, setting_section, unstable_section

__all__ = ["page_of", "run_page"]

_TONES: dict[str, Any] = {"trusted": "ok", "undecided": "unknown", "not trusted": "bad"}


class _Found(NamedTuple):
    """The summary of a run, of unadjusted draws with biases, and its verdict."""

    table: pd.DataFrame
    judged: Judgement


def run_page(dt: Any, title: str = "Report on a run") -> str:
    """Return the report on a run as one self-contained HTML file.

    It has the verdict; for each parameter the estimates, the corrected mean, effective sample sizes and r_hat; figures
    of traces and ranks; of unadjusted draws biases with their standard errors; what a ladder found; the tuned
    parameters; transitions that failed.
    For large results it shows, with a note, the parameters nearest to the limits of the verdict, and some chains.

    Parameters
    ----------
    dt
        A result of ``pm.sample`` or :func:`pmm_mcmc.sample` (also with ``keep="moments"``), or an opened store.
    title
        Title of the page.

    Returns
    -------
    str
        The contents of the file, equal for equal results.

    Raises
    ------
    ValueError
        If ``dt`` is not such a result, or has fewer than 4 draws a chain.
    ImportError
        If Jinja2 or matplotlib is not installed.
    """
    return page_of(dt, title).html()


def page_of(dt: Any, title: str) -> Page:
    """Return the report on a run as a :class:`Page`."""
    found = _summarised(dt)
    sections = [
        Section("Estimates", _tables(found.table)),
        Section("Figures", _figures(dt, found.table)),
        ladder_section(dt),
        setting_section(dt),
        unstable_section(dt),
    ]
    return Page(title, _verdict(found), [section for section in sections if section.blocks], facts(dt))


def _summarised(dt: Any) -> _Found:
    children = getattr(dt, "children", ())
    if "posterior_mean" in children:
        return _Found(MomentsRun(dt).moments, verdict(dt))
    if "posterior" not in children:
        raise ValueError(
            f"dt={type(dt).__name__}: is no result of sampling, for it has no group 'posterior'; give a result of "
            "pm.sample or pmm.sample, or pmm.open(...)"
        )
    draws = dt["posterior"].sizes.get("draw", 0)
    if draws < 4:
        raise ValueError(f"the result has {draws} draws of each chain, too few to be summarised: draw at least 4")
    return _of_draws(with_numbers(dt))


def _of_draws(dt: Any) -> _Found:
    judged, biases = verdict(dt), full_table(dt)
    measured = bool(biases["bias"].notna().any())
    columns = ["mean_cv", "mcse_cv", "sd_cv", *(BIASES if read(dt).unadjusted else ())]
    table = joined(dt, biases[columns] if measured else None)
    if "superchains" in dt["posterior"].attrs:
        table["nested_r_hat"] = nested_r_hat(dt).reindex(table.index)
    return _Found(table, judged)


def _verdict(found: _Found) -> Verdict:
    judged = found.judged
    state, _, rest = judged.sentence.partition(": ")
    return Verdict(_TONES[judged.state], state, [_sentence(rest)])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _concern(table: pd.DataFrame) -> pd.Series:
    """Return for each parameter its largest ratio of a diagnostic to the limit of the verdict."""
    concern = pd.Series(0.0, index=table.index)
    name = _r_hat(table)
    if name in table:
        concern = np.maximum(concern, (table[name].astype(float).fillna(1.0) - 1.0) / (CALIBRATION.r_hat - 1.0))
    if "bias_sd_units" in table:
        concern = np.maximum(concern, table["bias_sd_units"].abs().fillna(0.0) / CALIBRATION.bias)
    return concern


def _r_hat(table: pd.DataFrame) -> str:
    """Return the name of the column by which the verdict judges convergence."""
    return "nested_r_hat" if "nested_r_hat" in table else "r_hat"


def _tables(table: pd.DataFrame, most: int = 200) -> list[Any]:
    shown, note = table, ""
    if len(table) > most:
        kept = set(chosen(list(table.index), _concern(table), most))
        shown = table[[label in kept for label in table.index]]
        note = (
            f"{most} of {len(table):,} parameters: those nearest to the limits of the verdict, or beyond. "
            "pmm.summary has all of them."
        )
    intervals = {name: meaning for name in table.columns if (meaning := interval_meaning(name))}
    flags = {
        "bias_sd_units": (
            lambda value: abs(value) > CALIBRATION.bias,
            "more than the verdict allows, if it is not chance",
        ),
        _r_hat(table): (lambda value: value > CALIBRATION.r_hat, "more than the verdict allows"),
    }
    tables = []
    for caption, meanings in (
        ("Estimates", ESTIMATES | intervals),
        ("Bias", BIASES if "bias" in shown and shown["bias"].notna().any() else {}),
        ("How well they are known", SAMPLING),
    ):
        part = shown[[name for name in meanings if name in shown]]
        if part.shape[1]:
            tables.append(Table.of_frame(part, caption, "parameter", meanings, FORMS, flags, note))
    return tables


def _figures(dt: Any, table: pd.DataFrame) -> list[Figure]:
    figures = []
    if "bias_sd_units" in table and table["bias_sd_units"].notna().any():
        figures.append(_forest(table))
    if "posterior" in dt.children:
        figures += _of_chains(dt, table)
    return figures


def _forest(table: pd.DataFrame, most: int = 40) -> Figure:
    measured = table[table["bias_sd_units"].notna()]
    labels = chosen(list(measured.index), measured["bias_sd_units"].abs(), most)
    rows = measured.loc[[label for label in measured.index if label in set(labels)]]
    unit = rows["sd_cv" if "sd_cv" in rows else "sd"].to_numpy()
    series = {"mean": (rows["bias_sd_units"].to_numpy(), rows["bias_se"].to_numpy() / unit)}
    of_what = "means"
    if "bias_of_sd" in rows:
        series["standard deviation"] = tuple(rows[name].to_numpy() / unit for name in ("bias_of_sd", "bias_of_sd_se"))
        of_what = "means and standard deviations"
    caption = (
        f"Bias of {of_what}, with two standard errors to each side. Grey: what the verdict allows, "
        f"{CALIBRATION.bias} posterior standard deviations."
    )
    caption += _of(len(rows), len(table), "parameters", "those of which it is known, the largest first")
    return Figure(caption, forest(list(rows.index), series, CALIBRATION.bias, "bias, in posterior standard deviations"))


def _of_chains(dt: Any, table: pd.DataFrame) -> list[Figure]:
    draws, chains = _drawn(dt, table)
    if not draws:
        return []
    posterior = dt["posterior"]
    limits = _of(len(draws), len(table), "parameters", "those nearest to the limits of the verdict, or beyond")
    limits += _of(len(chains), posterior.sizes["chain"], "chains", "evenly spread over all")
    figures = [
        Figure(f"Traces: draws in the order they were made, at most 250 of a chain.{limits}", traces(draws, chains))
    ]
    if len(chains) > 1:
        step = -(-posterior.sizes["draw"] // 300)  # at most 300 draws of a chain are ranked
        thinned = {name: values[:, ::step] for name, values in draws.items()}
        text = (
            "Ranks: for each chain, the share of its draws below a quantile of all these chains, minus what is "
            "expected. Lines near zero: the chains agree; p is the chance of lines that are further off if they do, "
            "and black is what is too far off."
        )
        figures.append(Figure(text + limits, unlisted(ranks(thinned, chains))))
    return figures


def _drawn(
    dt: Any, table: pd.DataFrame, most_traces: int = 6, most_chains: int = 8
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Return the draws ``(chain, draw)`` of what is drawn, and the names of these chains."""
    from arviz_base import xarray_sel_iter
    from arviz_base.labels import BaseLabeller

    posterior = dt["posterior"].dataset
    count = posterior.sizes["chain"]
    at = np.unique(np.linspace(0, count - 1, min(count, most_chains)).round().astype(int))
    some = posterior.isel(chain=at)
    wanted = set(chosen(list(table.index), _concern(table), len(table))[: 4 * most_traces])
    labeller, every = BaseLabeller(), {}
    for name, selection, index in xarray_sel_iter(some, skip_dims={"chain", "draw"}):
        label = labeller.make_label_flat(name, selection, index)
        if label in wanted:
            values = np.asarray(some[name].isel(index).transpose("chain", "draw").values, dtype=float)
            # Constant draws and draws that are not finite have no ranks.
            if np.isfinite(values).all() and np.ptp(values) > 0.0:
                every[label] = values
    kept: Sequence[str] = chosen(list(every), [_concern(table)[label] for label in every], most_traces)
    names = posterior["chain"].values[at] if "chain" in posterior.coords else at
    return {label: every[label] for label in every if label in set(kept)}, [int(name) for name in names]


def _of(shown: int, there: int, what: str, which: str) -> str:
    """Return a note on the shown part if not all are shown, otherwise an empty string."""
    return f" {shown} of {there:,} {what}: {which}." if shown < there else ""
