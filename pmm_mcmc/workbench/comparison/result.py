"""What ``pmm.workbench.compare`` returns: a table, a verdict in words, figures, and files of all of it."""

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
    """Samplers side by side: a table, a verdict in words, and figures.

    Attributes
    ----------
    title : str
        What was compared.
    verdict : list of str
        What came out, in sentences.
    table : pandas.DataFrame
        A row for each sampler, also for one that failed.
    columns : dict
        What each column of the table means.
    notes : list of str
        Budget, reference, how gradients are counted, seed, versions.
    failures : dict
        Samplers that failed, and why.
    traces : list of Trace
        The runs themselves: unconstrained draws, gradients, times.
    truth : Truth
        What they were compared with.
    labels : list of str
        Names of the coordinates of the draws.
    steps : pandas.DataFrame or None
        Errors at other step sizes, where they were asked for: a row for each sampler and step.
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
        """Return the title, the verdict and the columns of the table that are read first."""
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
        """Draw one figure for a paper, 7 inches wide: error against gradients, errors at the end, effective draws.

        Like every ``plot_...``, it is then pyplot's current figure, which ``plt.savefig("figure.pdf")`` writes.

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
        """Draw everything that there is to draw, for a page.

        Returns
        -------
        dict
            Name to figure of matplotlib, which pyplot does not know, and caption.

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
            If no other step sizes were asked for.
        """
        return plots.error_against_step(self)

    def plot_ess_per_grad(self) -> Figure:
        """Draw effective draws for 1,000 gradients as bars."""
        return plots.effective_draws(self)

    def plot_marginals(self) -> Figure:
        """Draw the marginals that are off most, against the reference."""
        return plots.marginals(self)

    def plot_ranks(self) -> Figure | None:
        """Draw ranks of each sampler's chains, for its worst parameter; ``None`` where no sampler has moved."""
        return plots.ranks(self)

    def plot_modes(self) -> Figure:
        """Draw the two coordinates that tell the modes apart best.

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
            Of the file, which is replaced if it is there.  It is whole at any time.

        Returns
        -------
        pathlib.Path
            Of the file.

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
        """Write everything but the draws as JSON: numbers that are not finite as null.

        Parameters
        ----------
        path
            Of the file, which is replaced if it is there.  It is whole at any time.

        Returns
        -------
        pathlib.Path
            Of the file.

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
    """Return what JSON can hold."""
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
