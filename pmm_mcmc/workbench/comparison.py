"""``pmm.workbench.compare``: several samplers on one posterior, with the same number of gradients each."""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc.api import (
    METHODS,
    LangevinStep,
    MethodArguments,
    Verdict,
    check_count,
    check_discrete,
    check_free,
    flat_names,
    sample,
    unconstraining_of,
    verdict,
)
from pmm_mcmc.workbench.reference import COLUMNS, row, truth_for
from pmm_mcmc.workbench.targets import Target, get

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FEWEST", "PEERS", "Comparison", "Run", "compare", "model_labels", "name_of", "run", "unconstrained_draws"]

# Samplers that have a name, and what tables call them.
PEERS = {"default": "pmm.sample", "nuts": "NUTS", "nutpie": "nutpie"}
# Fewest draws of each chain for a row of the table.
FEWEST = 50
# Numbers that the draws of one sampler may hold: 128 megabytes.
_MOST_NUMBERS = 2**24


class Run(NamedTuple):
    """A sampler's run within its budget.

    Attributes
    ----------
    position : (chain, draw, d)
        Unconstrained draws after warm-up.
    n_grad : int
        Gradients of all chains, warm-up included.
    verdict : Verdict
        What ``pmm.verdict`` says of these draws.
    """

    position: np.ndarray
    n_grad: int
    verdict: Verdict


def run(sampler: Any, model: Any, budget: int, chains: int, seed: int) -> Run:
    """Run a sampler until its chains together have spent the budget.

    A first, very short run with the same seed shows the cost of warm-up and draws.  The second run repeats its warm-up.

    Raises
    ------
    ValueError
        If the budget does not cover the warm-up and some draws.
    """
    # PyMC's own length of a warm-up.
    options = {"tune": 1000, "chains": chains, "random_seed": seed, "model": model}
    options |= {"progressbar": False, "compute_convergence_checks": False}
    dt, n_grad, warmup = _drawn(sampler, FEWEST, options)
    per_draw = float(n_grad.mean())
    if budget - warmup < FEWEST * per_draw:
        enough = math.ceil((warmup + 2 * FEWEST * per_draw) / 1000) * 1000
        raise ValueError(
            f"the warm-up took {warmup:,} of {budget:,} gradients and left too few for {FEWEST} draws of each "
            f"chain: give n_grad={enough:_} or more"
        )
    # A tenth more, since gradients of a draw vary; what is beyond the budget is cut off.
    draws = math.ceil(1.1 * (budget - warmup) / per_draw)
    numbers = sum(array.size for name in ("posterior", "sample_stats") for array in dt[name].data_vars.values())
    dt, n_grad, warmup = _drawn(sampler, min(draws, max(FEWEST, FEWEST * _MOST_NUMBERS // numbers)), options)
    gradients = warmup + np.cumsum(n_grad)
    n = max(int(np.searchsorted(gradients, budget, side="right")), 4)  # a verdict needs four
    dt = dt.isel(draw=slice(n), missing_dims="ignore")
    return Run(unconstrained_draws(dt, model), int(gradients[n - 1]), verdict(dt, model=model))


def _drawn(sampler: Any, draws: int, options: dict[str, Any]) -> tuple[xr.DataTree, np.ndarray, int]:
    """Return a result, the gradients of each draw ``(draw,)`` and of the warm-up, of all chains together."""
    if sampler in ("nuts", "nutpie"):  # gradients are the leapfrog steps of its trees
        import pymc as pm

        engine = "pymc" if sampler == "nuts" else sampler
        dt = pm.sample(draws, nuts_sampler=engine, cores=1, discard_tuned_samples=False, quiet=True, **options)
        n_grad, warmup = (dt[group]["n_steps"].values for group in ("sample_stats", "warmup_sample_stats"))
    else:
        dt = sample(draws, step=None if sampler == "default" else sampler, **options)
        stats = dt["sample_stats"].to_dataset()
        n_grad = stats["n_steps" if "n_steps" in stats else "n_grad"].values
        warmup = stats["n_grad_total"].values[:, 0] - n_grad[:, 0]
    return dt, n_grad.sum(axis=0), int(warmup.sum())


def name_of(step: Any) -> str:
    """Return a name for a step: its method, with the arguments that are not defaults."""
    arguments = step.arguments
    plain = MethodArguments.checked(arguments.method, dynamics=arguments.dynamics)
    settings = [
        f"{field.name}={getattr(arguments, field.name)!r}"
        for field in fields(MethodArguments)
        if field.name not in ("method", "dynamics", "scaling")
        and getattr(arguments, field.name) != getattr(plain, field.name)
    ]
    if len(METHODS[arguments.method].dynamics) > 1:
        settings.insert(0, f"dynamics={arguments.dynamics!r}")
    if arguments.scaling is not None:
        settings.append("scaling=...")
    return f"{arguments.method}({', '.join(settings)})" if settings else arguments.method


def model_labels(model: Any) -> list[str]:
    """Return labels of a model's unconstrained coordinates, such as ``school[A]``, or ``log tau`` for a logarithm."""
    point = model.initial_point(0)
    labels: list[str] = []
    for value in model.continuous_value_vars:
        variable = model.values_to_rvs[value]
        transform = model.rvs_to_transforms.get(variable)
        name = variable.name if transform is None else f"{str(transform.name).replace('_', ' ')} {variable.name}"
        shape = np.shape(point[value.name])
        coords = [model.coords.get(dim) for dim in model.named_vars_to_dims.get(variable.name, ())]
        # A transform may remove a coordinate, and a dim may have no names.
        if len(shape) and tuple(len(each or ()) for each in coords) == shape:
            labels += [f"{name}[{', '.join(map(str, index))}]" for index in product(*coords)]
        else:
            labels += flat_names([(name, shape)])
    return labels


def unconstrained_draws(dt: Any, model: Any) -> np.ndarray:
    """Return the draws of a result on the unconstrained scale of a model: ``(chain, draw, d)``.

    Raises
    ------
    ValueError
        If the result lacks a variable of the model.
    """
    stats = dt["sample_stats"].to_dataset() if "sample_stats" in dt.children else {}
    if "unconstrained" in stats and stats["unconstrained"].shape[-1] == len(model_labels(model)):
        return np.asarray(stats["unconstrained"].values, dtype=float)
    posterior = dt["posterior"]
    missing = [variable.name for variable in model.free_RVs if variable.name not in posterior]
    if missing:
        raise ValueError(f"reference: it has no draws of {', '.join(missing)}: bring draws of all variables")
    values = [np.asarray(posterior[variable.name].values, dtype=float) for variable in model.free_RVs]
    forward = unconstraining_of(model)
    chains, draws = values[0].shape[:2]
    return np.array(
        [
            [np.concatenate([np.ravel(array) for array in forward(*(value[c, t] for value in values))])
             for t in range(draws)]
            for c in range(chains)
        ]
    )  # fmt: skip


_log = logging.getLogger("pmm_mcmc")

_DASH = "\N{EM DASH}"
_NOTE = "* more than noise alone. Errors are in posterior sd; .columns has the meanings."


def compare(
    model_or_target: Any,
    samplers: Sequence[Any] | Mapping[str, Any],
    *,
    n_grad: int = 200_000,
    reference: Any = None,
    chains: int = 8,
    random_seed: int = 1,
) -> Comparison:
    """Compare samplers on one posterior, with the same number of gradients each.

    Every sampler runs its own warm-up and then draws until all of its chains together have spent ``n_grad`` gradients,
    warm-up included.  Everything is measured on the unconstrained scale.

    Parameters
    ----------
    model_or_target
        A PyMC model, a target of :mod:`pmm_mcmc.workbench.targets`, or the name of one.
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


def _posterior(model_or_target: Any) -> tuple[Any, Any, str]:
    """Return the target (None for a model), the model and a title."""
    import pymc as pm

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


def _named(samplers: Any, model: Any) -> dict[str, Any]:
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
