"""The result of ``pmm.workbench.compare``: a table and a figure."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import arviz as az
import numpy as np
import pandas as pd
from scipy.stats import t

from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, standard_error
from pmm_mcmc.workbench.comparison.reference import Truth
from pmm_mcmc.workbench.comparison.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLUMNS", "Comparison", "row"]

COLUMNS: dict[str, str] = {
    "trusted": "Whether pmm.verdict trusts the run, without the reference.",
    "gradients": "Gradients of all chains, warm-up included.",
    "per_draw": "Gradients for an effective draw of the worst parameter (bulk), warm-up included.",
    "mean_error": "Largest error of a posterior mean, in posterior standard deviations.",
    "mean_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "mean_at": "The parameter whose mean has the largest error.",
    "sd_error": "Largest relative error of a posterior standard deviation.",
    "sd_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "sd_at": "The parameter whose standard deviation has the largest error.",
    "says": "What pmm.verdict says of the run, or why there is none.",
}
_DASH = "\N{EM DASH}"
_NOTE = "* more than noise alone. Errors are in posterior sd; .columns has the meanings."


def row(run: Run, truth: Truth | None, labels: list[str]) -> dict[str, Any]:
    """Measure one run: a value for each of :data:`COLUMNS` that is known."""
    x = run.position
    with np.errstate(all="ignore"):  # a constant coordinate has no effective draws
        effective = min(float(az.ess(x[..., i], method="bulk")) for i in range(x.shape[-1]))
    out = {
        "trusted": run.judged.trusted,
        "gradients": run.spent,
        "per_draw": run.spent / effective if x.std(axis=(0, 1)).all() else np.inf,
        "says": run.judged.sentence,
    }
    return out if truth is None else out | _errors(x, truth, labels)


def _errors(x: np.ndarray, truth: Truth, labels: list[str]) -> dict[str, Any]:
    """Return the largest errors of means and standard deviations, of all chains together."""
    chains, draws, d = x.shape
    # The spread about the true mean: its square root is a standard deviation, with the delta method for the error.
    square = (x - truth.mean) ** 2
    root = np.sqrt(square.mean(axis=(0, 1)))
    of_root = standard_error(square) / (2.0 * np.maximum(root, 1e-300))
    # Noise alone puts the largest error of all parameters beyond this in 5 % of runs.
    noise = t.ppf(1.0 - 0.5 * 0.05 / d, degrees_of_freedom(chains, draws))
    out: dict[str, Any] = {}
    for name, off, se in (
        ("mean", x.mean(axis=(0, 1)) - truth.mean, np.hypot(standard_error(x), truth.error)),
        ("sd", root - truth.sd, np.hypot(of_root, truth.error_of_sd)),
    ):
        size = np.abs(off) / truth.sd
        worst = int(np.argmax(size))
        out[f"{name}_error"] = float(size[worst])
        out[f"{name}_noise"] = float(noise * se[worst] / truth.sd[worst])
        out[f"{name}_at"] = labels[worst]
    return out


@dataclass(repr=False)
class Comparison:
    """A comparison of samplers: a table and a figure.

    Attributes
    ----------
    title : str
        What was sampled.
    reference : str
        A sentence about the reference.
    table : pandas.DataFrame
        A row for each sampler, including those that failed.
    columns : dict
        Meaning of each column of the table.
    """

    title: str
    reference: str
    table: pd.DataFrame
    columns: dict[str, str]

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the main columns of the table, and lines on the samplers that failed."""
        table = self.table
        shown = pd.DataFrame(index=pd.Index([_short(str(name), 28) for name in table.index]))
        shown["trusted"] = [{True: "yes", False: "no"}.get(value, _DASH) for value in table["trusted"]]
        for name, heading, form in (("gradients", "gradients", ",.0f"), ("per_draw", "for a draw", ",.3g")):
            shown[heading] = [_DASH if pd.isna(value) else format(value, form) for value in table[name]]
        for what, heading in (("mean", "error of mean"), ("sd", "of sd")):
            sizes = zip(table[f"{what}_error"], table[f"{what}_noise"], strict=True)
            shown[heading] = [_starred(size, noise) for size, noise in sizes]
        return shown, [f"{name}: {line['says']}" for name, line in table.iterrows() if pd.isna(line["gradients"])]

    def _repr_html_(self) -> str:
        shown, failed = self._shown()
        above = [f"<b>{escape(self.title)}</b>", f"Reference: {escape(self.reference)}"]
        below = [escape(line) for line in (_NOTE, *failed)]
        return f"<p>{'<br>'.join(above)}</p>{shown.to_html(border=0)}<p>{'<br>'.join(below)}</p>"

    def __repr__(self) -> str:
        """Return the title, the reference and the main columns of the table, 80 characters wide."""
        shown, failed = self._shown()
        lines = [self.title, f"Reference: {self.reference}", "", shown.to_string(), "", _NOTE, *failed]
        return "\n".join(line if "\n" in line else textwrap.fill(line, 79, subsequent_indent="  ") for line in lines)

    def figure(self) -> Figure:
        """Draw the errors, each with what noise alone stays below, and the gradients for an effective draw.

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
        table = self.table[self.table["gradients"].notna()]
        if not len(table):
            raise ValueError("no sampler ran, so that there is nothing to draw: the column 'says' has the reasons")
        from matplotlib import pyplot as plt

        names = [_short(str(name), 28) for name in table.index]
        height = np.arange(len(table))
        style: Any = {"font.size": 8.0, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
        with plt.ioff(), plt.rc_context(style):
            # Inches; 7 are the text width of most journals.
            figure = plt.figure(figsize=(7.0, 1.2 + 0.3 * len(table)), layout="constrained")
            errors, costs = figure.subplots(1, 2, width_ratios=[1.6, 1.0], sharey=True)
            for what, offset, marker, colour in (("mean", -0.15, "o", "#0072B2"), ("sd", 0.15, "s", "#D55E00")):
                size, noise = (table[f"{what}_{kind}"].astype(float).to_numpy() for kind in ("error", "noise"))
                errors.barh(height + offset, noise, 0.2, color="0.85")
                errors.plot(size, height + offset, marker, ms=4.5, color=colour, label=what)
            errors.barh([0], [0], color="0.85", label="noise")
            errors.set_yticks(height, names)
            errors.set(xlim=(0.0, None), ylim=(len(table) - 0.5, -0.5), xlabel="largest error (posterior sd)")
            errors.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0.0)
            costs.barh(height, table["per_draw"].astype(float), 0.5, color="0.5")
            costs.tick_params(left=False, labelleft=False)
            costs.set_xlabel("gradients for an effective draw")
        return figure


def _starred(size: float, noise: float) -> str:
    """Return an error for the table, with a star if it is more than noise."""
    if pd.isna(size):
        return f"{_DASH} "
    star = "*" if size > noise else " "
    return f"{size:.3f}{star}"


def _short(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
