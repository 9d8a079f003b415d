"""The result of ``pmm.workbench.compare``: a table, a verdict as sentences, figures, and files with them."""

from __future__ import annotations

import json
import math
import numbers
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pmm_mcmc.workbench.comparison import paper, plots
from pmm_mcmc.workbench.comparison.measures import error_curve
from pmm_mcmc.workbench.comparison.page import comparison_page
from pmm_mcmc.workbench.comparison.reference import Truth
from pmm_mcmc.workbench.comparison.runs import Trace
from pmm_mcmc.workbench.report.files import check_place, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison"]

# What is read first, in words and lengths that let it fit a terminal.
_FIRST = {
    "mean_error": ("error of mean", ".3f"), "sd_error": ("of sd", ".3f"), "r_hat": ("r_hat", ".3f"),
    "ess_bulk_per_1000": ("ess/1000 grads", ",.3g"),
}  # fmt: skip
_YES, _DASH = {True: "yes", False: "no"}, "\N{EM DASH}"


@dataclass(repr=False)
class Comparison:
    """A comparison of samplers: a table, a verdict as sentences, and figures.

    Attributes
    ----------
    title : str
        Title of the comparison.
    verdict : list of str
        The findings as sentences.
    table : pandas.DataFrame
        A row for each sampler, including those that failed.
    columns : dict
        Meaning of each column of the table.
    notes : list of str
        Budget, reference, the counting of gradients, seed, versions.
    failures : dict
        Reasons of failed samplers, by name.
    traces : list of Trace
        The runs: unconstrained draws, gradients, times.
    truth : Truth
        The reference.
    labels : list of str
        Names of the coordinates of the draws.
    steps : pandas.DataFrame or None
        Errors at other step sizes, if requested: a row for each sampler and step.
    """

    title: str
    verdict: list[str]
    table: pd.DataFrame
    columns: dict[str, str]
    notes: list[str]
    failures: dict[str, str]
    traces: list[Trace]
    truth: Truth
    labels: list[str]
    modes: Any = None
    steps: pd.DataFrame | None = None

    def __repr__(self) -> str:
        """Return the title, the verdict and the main columns of the table."""
        shown = pd.DataFrame({"trusted": [_YES.get(value, _DASH) for value in self.table["trusted"]]})
        for name, (words, form) in _FIRST.items():
            values = self.table.reindex(columns=[name])[name]
            shown[words] = [_DASH if pd.isna(value) else format(value, form) for value in values]
        names = map(str, self.table.index)
        shown.index = pd.Index([n if len(n) <= 29 else f"{n[:28]}\N{HORIZONTAL ELLIPSIS}" for n in names])
        told = shown.to_string()
        sentences = [textwrap.fill(sentence, 79, subsequent_indent="  ") for sentence in self.verdict]
        return "\n".join([self.title, "", *sentences, "", told, "", ".table has all columns, .columns what they mean."])

    def figure(self) -> Figure:
        """Draw one figure for a paper, 7 inches wide: error against gradients, final errors, effective draws.

        Like the figure of every ``plot_...``, it becomes pyplot's current figure, for ``plt.savefig("figure.pdf")``.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If no sampler ran.
        ImportError
            If matplotlib is not installed.
        """
        return paper.figure(self)

    def figures(self) -> dict[str, tuple[Figure, str]]:
        """Draw all figures of the report.

        Returns
        -------
        dict
            By name a figure of matplotlib, closed in pyplot, and a caption.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        return plots.figures(self)

    def plot_bias_vs_grad(self) -> Figure:
        """Draw the error of a chain's second moments against the gradients that it has spent, both logarithmic."""
        return plots.error_against_gradients(self)

    def plot_bias_vs_step(self) -> Figure:
        """Draw the error of the worst parameter against the step size, both logarithmic.

        Raises
        ------
        ValueError
            If no other step sizes were run.
        """
        return plots.error_against_step(self)

    def plot_ess_per_grad(self) -> Figure:
        """Draw effective draws for 1,000 gradients as bars."""
        return plots.effective_draws(self)

    def plot_marginals(self) -> Figure:
        """Draw the marginals with the largest errors, against the reference."""
        return plots.marginals(self)

    def plot_ranks(self) -> Figure | None:
        """Draw ranks of each sampler's chains for its worst parameter; ``None`` if all chains are constant."""
        return plots.ranks(self)

    def plot_modes(self) -> Figure:
        """Draw the two coordinates that separate the modes best.

        Raises
        ------
        ValueError
            If no modes are known.
        """
        return plots.modes(self)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one self-contained page.

        Parameters
        ----------
        path
            Path of the file, which is replaced if it exists; at no time is it incomplete.

        Returns
        -------
        pathlib.Path
            Path of the file.

        Raises
        ------
        OSError
            If the file cannot be written; nothing is drawn then.
        ImportError
            If Jinja2 or matplotlib is not installed.
        """
        check_place(path)
        write_page(comparison_page(self), path)
        return Path(path)

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write everything but the draws as JSON, with null for numbers that are not finite.

        Parameters
        ----------
        path
            Path of the file, which is replaced if it exists; at no time is it incomplete.

        Returns
        -------
        pathlib.Path
            Path of the file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        content = {
            "title": self.title,
            "verdict": self.verdict,
            "notes": self.notes,
            "columns": self.columns,
            "failures": self.failures,
            "labels": self.labels,
            "table": {str(name): values.to_dict() for name, values in self.table.iterrows()},
            "curves": {trace.name: self._curve(trace) for trace in self.traces},
            "steps": [] if self.steps is None else self.steps.to_dict("records"),
        }
        write_page(json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False), path)
        return Path(path)

    def _curve(self, trace: Trace) -> dict[str, list[float]]:
        spent, error = error_curve(trace, self.truth)
        which = np.unique(np.geomspace(1, len(spent), 200).astype(int)) - 1
        return {"gradients": spent[which].tolist(), "b2_max": error[which].tolist()}


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None
