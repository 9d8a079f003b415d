"""``pmm.workbench.compare``: several samplers on one posterior, with the same number of gradients each, over seeds."""

from __future__ import annotations

import hashlib
import logging
import os
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.stats import ttest_ind

import pmm_mcmc.api as api
from pmm_mcmc._version import __version__
from pmm_mcmc.workbench.entrants import FEWEST, NAMES, Run, Sampler, named, run
from pmm_mcmc.workbench.figures import THEMES, draw, short_names
from pmm_mcmc.workbench.measures import MEASURES, Arrays, beyond_noise, measured, score_of
from pmm_mcmc.workbench.reference import Truth, model_labels, truth_of_draws, truth_of_target, unconstrained_draws
from pmm_mcmc.workbench.targets import Target, get

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_log = logging.getLogger("pmm_mcmc")

_DASH = "\N{EM DASH}"
_NOTE = (
    "Verdicts: runs trusted/undecided/not. Means over seeds with their standard errors; errors in posterior sd. "
    "* all chains together are off by more than noise. + more than the budget, for a warm-up. .columns explains."
)
_TABLES = {
    "Cost": {"warm_up": "warm-up", "gradients": "in all", "per_mean": "for a mean", "per_square": "for a square"},
    "Error": {
        "mean_error": "mean",
        "sd_error": "sd",
        "tail_error": "5/95 %",
        "mode_error": "modes",
        "elsewhere": "unvisited",
    },
    "Law": {"sliced_w2": "sliced W2", "stein": "Stein", "coverage": "covered", "r_hat": "r_hat"},
}
# What conclusions are about, and the words for the best.
_CONCLUSIONS = {
    "mean_error": "Least error of the means",
    "sd_error": "Least error of the sd",
    "mode_error": "Least error of the modes' weights",
    "per_mean": "Fewest gradients after warm-up for an effective draw of a mean",
    "per_square": "Fewest gradients after warm-up for an effective draw of a square",
}
# Of a conclusion, over all samplers that are compared with the best.
_ALARMS = 0.01
# Chains that disagree by more have no effective draws to be paid for.
STUCK = 1.1
# Between the seed of a reference and those of the runs.
_APART = 10**6
# Budget of a reference run, in budgets of a sampler.
_LONGER = 5


def compare(
    model_or_target: str | Target | pm.Model,
    samplers: Sequence[Sampler] | Mapping[str, Sampler],
    *,
    n_grad: int = 200_000,
    seeds: int = 5,
    reference: xr.DataTree | str | None = None,
    mode: Callable[[np.ndarray], np.ndarray] | None = None,
    chains: int = 4,
    random_seed: int = 1,
    folder: str | os.PathLike[str] | None = None,
    progressbar: bool = True,
) -> Comparison:
    """Compare samplers on one posterior, with the same number of gradients each, over several seeds.

    Every sampler runs its own warm-up and then draws until all of its chains together have spent ``n_grad`` gradients,
    warm-up included; where the warm-up leaves less than half of them, draws get that half all the same, and the table
    says so.  Everything is measured on the unconstrained scale.

    Parameters
    ----------
    model_or_target
        A PyMC model, a target of ``pmm_mcmc.workbench.targets``, or the name of one.
    samplers
        "default" for ``pmm.sample()`` as it is; steps such as ``pmm.MALA()`` or ``pmm.ULMC(step_size=.1)``, created
        outside any model; ``pmm.temper``; "nuts" for PyMC's own NUTS, or ``pm.NUTS(...)`` of the model; "nutpie" if it
        is installed; a function ``(model, seed, n_grad)`` that returns a DataTree; or a DataTree of draws that somebody
        else made, which is one run.  A dict gives them other names.
    n_grad
        Gradients of each run, over all chains, warm-up included.
    seeds
        Number of runs of each sampler, with the seeds ``random_seed``, ``random_seed + 1``, ....
    reference
        The reference.  None: the target's own answer or, for a model, a run of NUTS of five times the budget; if it is
        not trusted, one of ``pmm.sample``; if neither is, there is none and no errors are told.  "nuts": such a run in
        any case.  A result of ``pm.sample`` or ``pmm.sample``: its draws, if they are not refused by their verdict.
    mode
        Function that returns the number of the mode, from 0, of unconstrained points ``(chain, draw, d)``; of targets
        that have modes their own.
    chains
        Number of chains of each run, at least 2; ``pmm.temper`` has its own.
    random_seed
        A non-negative integer.
    folder
        Folder in which each finished run is kept, so that a comparison that was interrupted goes on, and one with more
        seeds or samplers runs only these.
    progressbar
        Show a line of progress.

    Returns
    -------
    Comparison
        The table, conclusions and a figure.  A sampler that fails is a row of the table with only the reason, not an
        exception.

    Raises
    ------
    TypeError
        If the model, a sampler or the reference has another type.
    ValueError
        For an invalid argument; the message has its name, value and the remedy.

    Notes
    -----
    Gradients are counted as follows.  Samplers of this package: every evaluation, including those of tuning and of
    probes.  NUTS: leapfrog steps.  Other results: the statistic ``n_steps`` or ``n_grad``, and otherwise no cost is
    told.  The warm-up is at most 1,000 transitions, or iterations of NUTS.  A run whose draws would take more than
    about 100 megabytes ends before its budget.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> from pmm_mcmc.workbench.comparison import compare
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> with model:
    ...     known = pm.sample(500, chains=2, cores=1, progressbar=False, random_seed=1)
    >>> options = {"n_grad": 20_000, "seeds": 2, "reference": known, "progressbar": False}
    >>> report = compare(model, ["default", pmm.ULMC()], **options)
    >>> list(report.table.index)
    ['pmm.sample', 'ULMC']
    """
    least = {"chains": 2, "n_grad": 2 * FEWEST, "random_seed": 0, "seeds": 1}
    for name, value in (("chains", chains), ("n_grad", n_grad), ("random_seed", random_seed), ("seeds", seeds)):
        api.check_count(name, value, least[name])
    target, model, title = _posterior(model_or_target)
    entrants = named(samplers, model)
    score = score_of(model)
    # An initial point, and a gradient beside it, tell models and data apart.
    point = model.initial_point(0)
    start = np.concatenate([np.ravel(point[value.name]) for value in model.continuous_value_vars])[None].astype(float)
    cache = _Cache(folder, np.concatenate([start, score(start + 0.1)]))
    truth, source = _truth_for(target, model, reference, n_grad, chains, random_seed, cache)
    labels = model_labels(model)
    if truth is not None and truth.mean.size != len(labels):
        raise ValueError(f"reference: has {truth.mean.size} coordinates, the model {len(labels)}")
    weights = None
    if target is not None and mode is None:
        mode = target.mode
        weights = np.array(target.mode_weights) if target.mode_weights else None
    if mode is not None and weights is None and truth is not None and truth.draws is not None:
        modes = np.asarray(mode(truth.draws)).astype(int)
        weights = np.bincount(modes) / len(modes)
    runs: dict[str, list[Arrays]] = {name: [] for name in entrants}
    failures: dict[str, str] = {}
    screen = api.console() if progressbar else None
    began = time.monotonic()
    for name, sampler in entrants.items():
        for seed in range(random_seed, random_seed + (1 if isinstance(sampler, xr.DataTree) else seeds)):
            if screen is not None:
                api.write(screen, f"{title}: {name}, seed {seed}, after {api.clock(time.monotonic() - began)}")
            try:
                drawn = cache.run(name, sampler, model, n_grad, chains, seed)
                runs[name].append(measured(drawn, truth, mode, weights, score))
            except Exception as error:
                # A failure of one sampler does not end the others.
                _log.warning("%s failed with seed %d: %s", name, seed, error)
                plain = isinstance(error, ValueError | ImportError)
                failures.setdefault(name, f"seed {seed}: {'' if plain else f'{type(error).__name__}: '}{error}")
                if not runs[name]:
                    break
    if screen is not None:
        api.write(screen, f"{title}: {len(entrants)} samplers in {api.clock(time.monotonic() - began)}", last=True)
    return Comparison(title, source, _table(runs, failures, truth, labels), n_grad, runs, truth, labels, weights)


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
    api.check_free(model)
    api.check_discrete(model, " first")
    return target, model, title


class _Cache:
    """Runs in a folder, a file each, under a key of what they depend on, but for the code of functions."""

    def __init__(self, folder: str | os.PathLike[str] | None, mark: np.ndarray):
        self._folder = None if folder is None else Path(folder)
        self._mark = mark
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, sampler: Sampler, model: pm.Model, n_grad: int, chains: int, seed: int) -> Run:
        """Return the run that is kept, or run the sampler."""
        if self._folder is None or isinstance(sampler, xr.DataTree):
            return run(sampler, model, n_grad, chains, seed)
        setting = getattr(sampler, "arguments", None)
        key = repr((name, setting, n_grad, chains, seed, __version__, self._mark.tobytes()))
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
        if path.exists():
            with np.load(path) as file:
                judgement = api.Verdict(str(file["state"]), str(file["says"]), ())
                return Run(
                    file["position"], float(file["warm_up"]), file["gradients"], judgement, float(file["elsewhere"])
                )  # fmt: skip
        made = run(sampler, model, n_grad, chains, seed)
        arrays: dict[str, Any] = made._asdict()
        judgement = arrays.pop("verdict")
        draft = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(draft, state=judgement.state, says=judgement.sentence, **arrays)
        draft.replace(path)
        return made


def _truth_for(
    target: Target | None,
    model: pm.Model,
    reference: xr.DataTree | str | None,
    n_grad: int,
    chains: int,
    seed: int,
    cache: _Cache,
) -> tuple[Truth | None, str]:
    """Return the reference, or None if nothing can be trusted to be one, and a sentence about it."""
    if reference is None and target is not None:
        return truth_of_target(target), target.reference.source
    if reference is None or (isinstance(reference, str) and reference == "nuts"):
        refused = ""
        for sampler in ("nuts", "default"):
            try:
                # A seed that no run of the comparison has.
                long = cache.run("reference", sampler, model, _LONGER * n_grad, chains, seed + _APART)
            except Exception as error:  # the other may not fail
                refused += f" {NAMES[sampler]} is none: {error}."
                continue
            if long.verdict.trusted:
                source = f"A run of {NAMES[sampler]} of {_LONGER} times the budget: {_size(long.position)}."
                return truth_of_draws(long.position), source + refused
            refused += f" {NAMES[sampler]} is none: {long.verdict.sentence}"
        return None, f"None, so that no errors are known.{refused}"
    if isinstance(reference, str) or "posterior" not in getattr(reference, "children", ()):
        raise TypeError(
            f"reference={reference!r}: must be 'nuts' for a long run, a result of pm.sample or pmm.sample, or None"
        )
    judgement = api.verdict(reference)
    if judgement.state == api.NOT_TRUSTED:
        return None, f"None, for the draws that were given are not to be trusted. {judgement.sentence}"
    position = unconstrained_draws(reference, model)
    return truth_of_draws(position), f"The draws that were given: {_size(position)}."


def _size(position: np.ndarray) -> str:
    return f"{position.shape[1]:,} draws of each of {position.shape[0]} chains"


def _table(
    runs: dict[str, list[Arrays]], failures: dict[str, str], truth: Truth | None, labels: list[str]
) -> pd.DataFrame:
    """Return the table of :class:`Comparison`."""
    rows: dict[str, dict[str, Any]] = {}
    for name, arrays in runs.items():
        row: dict[str, Any] = {}
        states = [str(each["state"]) for each in arrays]
        if arrays:
            row = {
                state.replace(" ", "_"): states.count(state) for state in (api.TRUSTED, api.UNDECIDED, api.NOT_TRUSTED)
            }
        stuck = any(float(each["r_hat"]) > STUCK for each in arrays)
        for measure in MEASURES:
            values = np.array([float(each[measure]) for each in arrays])
            if len(values) and not (stuck and measure.startswith("per_")):
                row[measure] = values.mean()
                row[f"{measure}_se"] = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        if arrays and truth is not None and not stuck:
            for kind, (beyond, worst, size) in beyond_noise(arrays, truth).items():
                row |= {f"{kind}_beyond": beyond, f"{kind}_at": labels[worst], f"{kind}_off": size}
        texts = [str(each["says"]) for each in arrays if str(each["state"]) != api.TRUSTED]
        row["says"] = " ".join([*([failures[name]] if name in failures else []), *dict.fromkeys(texts[:1])])
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(Comparison.columns))


@dataclass(repr=False)
class Comparison:
    """A comparison of samplers: a table, conclusions, and a figure.

    Attributes
    ----------
    title : str
        What was sampled.
    reference : str
        A sentence about the reference.
    table : pandas.DataFrame
        A row for each sampler, including those that failed: the mean over seeds of each measure, and in ``..._se`` its
        standard error over seeds.  Where chains of a run disagree (``r_hat`` above 1.1) there are
        neither costs nor what is said of noise.
    n_grad : int
        The budget of each run.
    runs : dict
        The measures of each run, a list for each sampler, with what figures are drawn from.
    columns : dict
        Meaning of each column of the table.
    """

    title: str
    reference: str
    table: pd.DataFrame
    n_grad: int
    runs: dict[str, list[Arrays]]
    truth: Truth | None = field(repr=False)
    labels: list[str]
    mode_weights: np.ndarray | None
    columns: ClassVar[dict[str, str]] = {
        "trusted": "Number of runs that pmm.verdict trusts, without the reference.",
        "undecided": "Number of runs of which it found nothing wrong, but cannot show it.",
        "not_trusted": "Number of runs that it refuses.",
        **{
            column: text
            for name, meaning in MEASURES.items()
            for column, text in ((name, meaning), (f"{name}_se", f"Standard error over seeds of {name}."))
        },
        **{
            f"{kind}{ending}": text.format(what)
            for kind, what in (("mean", "mean"), ("sd", "standard deviation"))
            for ending, text in (
                ("_beyond", "Whether the {} of all chains of all seeds is off by more than noise, at a level of 5 %."),
                ("_at", "The parameter whose {} is off most, in its standard errors."),
                ("_off", "By how much, with its sign, in posterior standard deviations."),
            )
        },
        "says": "The failure, and what pmm.verdict says of the first run that it does not trust.",
    }

    @property
    def conclusions(self) -> list[str]:
        """What the seeds carry: for each measure the best sampler, those not told apart from it, and those behind it.

        A sampler is behind the best if a t test of the logarithms over seeds has a p value below .01 over the number of
        samplers compared.
        """
        return [line for measure, best in _CONCLUSIONS.items() if (line := self._conclusion(measure, best))]

    def _conclusion(self, measure: str, best: str) -> str:
        with np.errstate(divide="ignore"):
            logs = {
                name: np.log([float(each[measure]) for each in self.runs[name]])
                for name in self.table.index[self.table[measure].notna()]
            }
        logs = {name: values for name, values in logs.items() if len(values) > 1 and np.isfinite(values).all()}
        if len(logs) < 2:
            return ""
        order = sorted(logs, key=lambda name: logs[name].mean())
        p = {name: float(ttest_ind(logs[order[0]], logs[name], equal_var=False).pvalue) for name in order[1:]}
        behind = [name for name in order[1:] if p[name] < _ALARMS / len(p)]
        level = [name for name in order[1:] if name not in behind]
        text = f"{best}: {order[0]}"
        text += f"; not told apart from it: {', '.join(level)}" if level else ""
        return text + (f"; behind it: {', '.join(behind)}." if behind else ".")

    def _tables(self) -> dict[str, pd.DataFrame]:
        """Return the main columns of the table as text, in parts."""
        names = short_names(self.table)
        parts = {}
        for title, columns in _TABLES.items():
            lines = []
            for _, row in self.table.iterrows():
                counts = [row["trusted"], row["undecided"], row["not_trusted"]]
                line = {}
                if title == "Cost":
                    line["verdict"] = _DASH if pd.isna(row["trusted"]) else "/".join(f"{count:.0f}" for count in counts)
                for measure, heading in columns.items():
                    star = row.get(f"{measure.removesuffix('_error')}_beyond") is True
                    above = measure == "gradients" and row[measure] > 1.001 * self.n_grad
                    decimals = 3 if measure == "r_hat" else None
                    text = _with_error(row[measure], row[f"{measure}_se"], decimals)
                    line[heading] = text + ("*" if star else "+" * above)
                lines.append(line)
            parts[title] = pd.DataFrame(lines, index=pd.Index(names, name=title))
        return parts

    def _notes(self) -> list[str]:
        """Return lines below the tables: the legend, what failed or is stuck, and the conclusions."""
        stuck = [name for name, arrays in self.runs.items() if any(float(each["r_hat"]) > STUCK for each in arrays)]
        lines = [_NOTE]
        lines += (
            [f"No cost and no star where chains disagree (r_hat above {STUCK}): {', '.join(stuck)}."] if stuck else []
        )
        lines += [f"{name}: {text.split('. ')[0]}." for name, text in self.table["says"].items() if text]
        return [*lines, *self.conclusions]

    def _repr_html_(self) -> str:
        parts = "".join(table.to_html(border=0) for table in self._tables().values())
        below = "<br>".join(escape(line) for line in self._notes())
        head = f"<b>{escape(self.title)}</b><br>Reference: {escape(self.reference)}"
        return f"<p>{head}</p>{parts}<p>{below}</p>"

    def __repr__(self) -> str:
        """Return the title, the reference, the main columns of the table and conclusions, 80 characters wide."""
        lines = [self.title, f"Reference: {self.reference}"]
        for title, table in self._tables().items():
            lines += ["", table.rename_axis(columns=title).rename_axis(index=None).to_string()]
        lines += ["", *self._notes()]
        return "\n".join(line if "\n" in line else textwrap.fill(line, 79, subsequent_indent="  ") for line in lines)

    def figure(self, theme: str = "light") -> Figure:
        """Draw error and ``r_hat`` against gradients, weights of modes, and the marginal of the worst parameter.

        It becomes pyplot's current figure, for ``plt.savefig("figure.pdf")``.

        Parameters
        ----------
        theme
            "light" or "dark".

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If no sampler ran, or there is no such theme.
        ImportError
            If matplotlib is not installed.
        """
        runs = {name: arrays for name, arrays in self.runs.items() if arrays}
        if not runs:
            raise ValueError("no sampler ran, so that there is nothing to draw: the column 'says' has the reasons")
        if theme not in THEMES:
            raise ValueError(f"theme={theme!r}: must be 'light' or 'dark'")
        return draw(runs, self.truth, self.labels, self.mode_weights, theme)


def _with_error(value: float, error: float, decimals: int | None = None) -> str:
    """Return a number with two digits, and its standard error with as many decimals."""
    if pd.isna(value):
        return _DASH
    if decimals is None:
        decimals = int(np.clip(1 - np.floor(np.log10(abs(value))), 0, 4)) if value else 2
    texts = [f"{number:,.{decimals}f}" for number in (value, error) if not pd.isna(number)]
    return "\N{PLUS-MINUS SIGN}".join(text.removeprefix("0") if "." in text else text for text in texts)
