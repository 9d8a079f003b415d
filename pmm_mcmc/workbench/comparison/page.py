"""The report on a comparison of samplers."""

from __future__ import annotations

import re
from typing import Any

from pmm_mcmc.workbench.comparison.step_sizes import STEP_COLUMNS
from pmm_mcmc.workbench.report.columns import FORMS
from pmm_mcmc.workbench.report.page import Figure, Items, Page, Section, Table, Verdict

__all__ = ["comparison_page"]

# Groups of columns, one table each, by patterns of their names; a table fits a screen and a sheet of paper.
_GROUPS = (
    ("Effective draws and convergence", r"trusted|ess_.*_per_1000|r_hat|b2_max|grads_to_.*"),
    ("Errors of means", r"mean_.*"),
    ("Errors of standard deviations", r"sd_.*"),
    ("Distance from the posterior", r"wasserstein.*|occupancy.*|ksd.*"),
    ("Gradients", r"unstable|grads_.*|draws"),
    ("Time", r"ess_.*_per_s|seconds_.*"),
    ("In words", r"setting|says|error"),
    ("Other measures", r".*"),
)
_FORMS = {"r_hat": FORMS["r_hat"]}


def comparison_page(comparison: Any) -> str:
    """Return the report on a comparison of samplers as one self-contained HTML file.

    Parameters
    ----------
    comparison
        A result of :func:`pmm_mcmc.workbench.compare`: ``title``; ``verdict``, a list of sentences; ``table``, a row
        for each sampler; ``columns``, the meaning of its columns; ``notes``, a list of sentences; ``steps``, the table
        of runs at other step sizes or None; ``figures()``, by name a figure of matplotlib and its caption.

    Returns
    -------
    str
        The text of the file.  Equal comparisons give equal texts.

    Raises
    ------
    ImportError
        If Jinja2 or matplotlib is not installed.
    """
    sections = [Section("Tables", _tables(comparison))]
    figures = [Figure(str(caption), figure) for figure, caption in comparison.figures().values()]
    if comparison.steps is not None:
        sections.append(Section("Step sizes", _step_tables(comparison.steps)))
    if figures:
        sections.append(Section("Figures", figures))
    if comparison.notes:
        sections.append(Section("How it was done", [Items([str(note) for note in comparison.notes])]))
    verdict = Verdict("plain", "What was found", [str(sentence) for sentence in comparison.verdict])
    return Page(str(comparison.title), verdict, sections).html()


def _tables(comparison: Any, most_columns: int = 8) -> list[Table]:
    # Where nothing failed there is nothing to say of it.
    frame = comparison.table.dropna(axis="columns", how="all")
    first = str(frame.index.name or "sampler")
    left, tables = list(frame.columns), []
    for caption, pattern in _GROUPS:
        names = [name for name in left if re.fullmatch(pattern, str(name))]
        left = [name for name in left if name not in names]
        for at in range(0, len(names), most_columns):
            part = frame[names[at : at + most_columns]]
            forms = dict.fromkeys(part.columns, ".3g") | _FORMS
            tables.append(Table.of_frame(part, caption, first, comparison.columns, forms))
    return tables


def _step_tables(steps: Any) -> list[Table]:
    times = "\N{MULTIPLICATION SIGN}"
    rows = [f"{name}, {times} {m:.3g}" for name, m in zip(steps["sampler"], steps["multiple"], strict=True)]
    frame, tables = steps.set_axis(rows).dropna(axis="columns", how="all"), []
    for caption, pattern in (
        ("Errors of means at multiples of the step size", r"step_size|mean_.*"),
        ("Errors of standard deviations at multiples of the step size", r"step_size|sd_.*"),
        ("These runs", r"unstable|grads|error"),
    ):
        part = frame[[name for name in frame if re.fullmatch(pattern, name)]]
        tables.append(Table.of_frame(part, caption, "sampler", STEP_COLUMNS, dict.fromkeys(part, ".3g")))
    return tables
