"""The result of ``pmm.workbench.compare``: a table, a verdict as sentences, a figure."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from pmm_mcmc.workbench.comparison import paper
from pmm_mcmc.workbench.comparison.reference import Truth
from pmm_mcmc.workbench.comparison.runs import Trace

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

        It becomes pyplot's current figure, for ``plt.savefig("figure.pdf")``.

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
