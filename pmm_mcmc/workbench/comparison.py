"""``pmm.workbench.compare``: several samplers on one posterior, with the same number of gradients each."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from pmm_mcmc.api import LangevinStep, check_count, check_discrete, check_free
from pmm_mcmc.workbench.reference import COLUMNS, FEWEST, PEERS, model_labels, name_of, row, run, truth_for
from pmm_mcmc.workbench.targets import Target, get

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison", "compare"]

_log = logging.getLogger("pmm_mcmc")

_DASH = "\N{EM DASH}"
_NOTE = "* more than noise alone. Errors are in posterior sd; .columns has the meanings."


def compare(
    model_or_target: str | Target | pm.Model,
    samplers: Sequence[str | LangevinStep] | Mapping[str, str | LangevinStep],
    *,
    n_grad: int = 200_000,
    reference: xr.DataTree | str | None = None,
    chains: int = 8,
    random_seed: int = 1,
) -> Comparison:
    """Compare samplers on one posterior, with the same number of gradients each.

    Every sampler runs its own warm-up and then draws until all of its chains together have spent ``n_grad`` gradients,
    warm-up included.  Everything is measured on the unconstrained scale.

    Parameters
    ----------
    model_or_target
        A PyMC model, a target of ``pmm_mcmc.workbench.targets``, or the name of one.
    samplers
        "default" for ``pmm.sample()`` as it is; steps such as ``pmm.PoissonULMC(K=16)`` with any arguments, created
        outside any model; "nuts" for PyMC's own NUTS; "nutpie" if it is installed.  A dict gives them other names.
    n_grad
        Gradients of each sampler, over all chains, warm-up included.
    reference
        The reference.  None: the target's own moments or, for a model, a run of NUTS of five times the budget; if it is
        not trusted, one of ``pmm.sample``; if neither is, there is none and no errors are told.  "nuts": such a run in
        any case.  A result of ``pm.sample`` or ``pmm.sample``: its draws, if they are not refused by their verdict.
    chains
        Number of chains of each sampler, at least 2.
    random_seed
        A non-negative integer.

    Returns
    -------
    Comparison
        The table and a figure.  A sampler that fails, or whose warm-up the budget does not cover, is a row of the table
        with only the reason, not an exception.

    Raises
    ------
    TypeError
        If the model, a sampler or the reference has another type.
    ValueError
        For an invalid argument; the message has its name, value and the remedy.

    Notes
    -----
    Gradients are counted as follows.  Samplers of this package: every evaluation, including those of tuning and of
    probes.  NUTS: leapfrog steps.  The warm-up is at most 1,000 transitions, or iterations of NUTS.  A run whose draws
    would take more than about 100 megabytes ends before its budget.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> from pmm_mcmc.workbench.comparison import compare
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> with model:
    ...     known = pm.sample(500, chains=2, cores=1, progressbar=False, random_seed=1)
    >>> report = compare(model, ["default", pmm.ULMC()], n_grad=20_000, chains=4, reference=known)
    >>> list(report.table.index)
    ['pmm.sample', 'ULMC']
    """
    least = {"chains": 2, "n_grad": 2 * FEWEST, "random_seed": 0}
    for name, value in (("chains", chains), ("n_grad", n_grad), ("random_seed", random_seed)):
        check_count(name, value, least[name])
    target, model, title = _posterior(model_or_target)
    named = _named(samplers, model)
    labels = model_labels(model)
    truth, source = truth_for(target, model, reference, n_grad, chains, random_seed)
    if truth is not None and truth.mean.size != len(labels):
        raise ValueError(f"reference: has {truth.mean.size} coordinates, the model {len(labels)}")
    rows = {}
    for name, sampler in named.items():
        try:
            rows[name] = row(run(sampler, model, n_grad, chains, random_seed), truth, labels)
        except Exception as error:
            # A failure of one sampler does not end the others.
            _log.warning("%s failed: %s", name, error)
            reason = str(error) if isinstance(error, ValueError | ImportError) else f"{type(error).__name__}: {error}"
            rows[name] = {"trusted": None, "says": reason}
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(COLUMNS))
    return Comparison(title, source, table)


def _posterior(model_or_target: str | Target | pm.Model) -> tuple[Target | None, pm.Model, str]:
    """Return the target (None for a model), the model and a title."""
    target: Any = get(model_or_target) if isinstance(model_or_target, str) else model_or_target
    if isinstance(target, Target):
        model = target.build()
        title = target.title
    elif isinstance(target, pm.Model):
        model = target
        title = target.name or "Your model"
        target = None
    else:
        raise TypeError(
            f"model_or_target={target!r}: must be a PyMC model, a target of pmm.workbench.targets, or the name of one"
        )
    check_free(model)
    check_discrete(model, " first")
    return target, model, title


def _named(
    samplers: Sequence[str | LangevinStep] | Mapping[str, str | LangevinStep], model: pm.Model
) -> dict[str, str | LangevinStep]:
    """Check the samplers, and name them."""
    if isinstance(samplers, str) or not isinstance(samplers, Sequence | Mapping):
        raise TypeError(f"samplers={samplers!r}: must be a list, such as [pmm.PoissonULMC(), 'nuts'], or a dict")
    if not samplers:
        raise ValueError("samplers: is empty; name at least one")
    pairs = list(samplers.items()) if isinstance(samplers, Mapping) else [(None, sampler) for sampler in samplers]
    named: dict[str, Any] = {}
    for label, sampler in pairs:
        if isinstance(sampler, str):
            if sampler not in PEERS:
                raise ValueError(f"samplers: {sampler!r} is unknown; the ones with a name are {', '.join(PEERS)}")
            name = PEERS[sampler]
        elif not isinstance(sampler, LangevinStep):
            raise TypeError(
                f"samplers: {sampler!r} is none; take 'default', steps such as pmm.PoissonULMC() (with brackets), "
                "'nuts' or 'nutpie'"
            )
        else:
            name = name_of(sampler)
            if sampler.model is not None and sampler.model is not model:
                raise ValueError(f"samplers: {name} was made for another model; make it outside any")
        name = name if label is None else str(label)
        if name in named:
            raise ValueError(f"samplers: {name} is there twice; leave one out, or give names with a dict")
        named[name] = sampler
    return named


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
    columns: ClassVar[dict[str, str]] = COLUMNS

    def _lines(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the main columns of the table as text, and lines on the samplers that failed."""
        lines = []
        for _, line in self.table.iterrows():
            texts = {"trusted": {True: "yes", False: "no"}.get(line["trusted"], _DASH)}
            for name, heading, form in (("gradients", "gradients", ",.0f"), ("per_draw", "for a draw", ",.3g")):
                texts[heading] = _DASH if pd.isna(line[name]) else format(line[name], form)
            for name, heading in (("mean", "error of mean"), ("sd", "of sd")):
                error = line[f"{name}_error"]
                star = "*" if error > line[f"{name}_noise"] else " "
                texts[heading] = f"{_DASH} " if pd.isna(error) else f"{error:.3f}{star}"
            lines.append(texts)
        failed = [f"{name}: {line['says']}" for name, line in self.table.iterrows() if pd.isna(line["gradients"])]
        return pd.DataFrame(lines, index=pd.Index(_short_names(self.table))), failed

    def _repr_html_(self) -> str:
        table, failed = self._lines()
        above = [f"<b>{escape(self.title)}</b>", f"Reference: {escape(self.reference)}"]
        below = [escape(line) for line in (_NOTE, *failed)]
        return f"<p>{'<br>'.join(above)}</p>{table.to_html(border=0)}<p>{'<br>'.join(below)}</p>"

    def __repr__(self) -> str:
        """Return the title, the reference and the main columns of the table, 80 characters wide."""
        table, failed = self._lines()
        lines = [self.title, f"Reference: {self.reference}", "", table.to_string(), "", _NOTE, *failed]
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
            errors.set_yticks(height, _short_names(table))
            errors.set(xlim=(0.0, None), ylim=(len(table) - 0.5, -0.5), xlabel="largest error (posterior sd)")
            errors.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0.0)
            costs.barh(height, table["per_draw"].astype(float), 0.5, color="0.5")
            costs.tick_params(left=False, labelleft=False)
            costs.set_xlabel("gradients for an effective draw")
        return figure


def _short_names(table: pd.DataFrame) -> list[str]:
    """Return the names of the rows, of at most 28 characters."""
    names = [str(name) for name in table.index]
    return [name if len(name) <= 28 else f"{name[:27]}\N{HORIZONTAL ELLIPSIS}" for name in names]
