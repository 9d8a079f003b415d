"""``pmm.compare``: samplers side by side on one posterior, with the same number of gradients each."""

from __future__ import annotations

import json
import logging
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pmm_mcmc.comparison.inputs import check_numbers, named_samplers, posterior_of
from pmm_mcmc.comparison.measures import COLUMNS, error_curve, row
from pmm_mcmc.comparison.peers import PEERS, run_nuts, with_gradients
from pmm_mcmc.comparison.reference import (
    Truth,
    model_labels,
    truth_of_draws,
    truth_of_target,
    unconstrained_draws,
)
from pmm_mcmc.comparison.runs import TooSmall, Trace, run_step
from pmm_mcmc.comparison.words import notes_of, verdict_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison", "compare"]

_log = logging.getLogger("pmm_mcmc")

# A reference run of NUTS spends so many times the budget of a sampler.
_LONGER = 5
_CURVE_POINTS = 200


@dataclass
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
    """

    title: str
    verdict: list[str]
    table: pd.DataFrame
    columns: dict[str, str]
    notes: list[str]
    failures: dict[str, str]
    traces: list[Trace] = field(repr=False)
    truth: Truth = field(repr=False)
    labels: list[str] = field(repr=False)
    modes: Any = field(default=None, repr=False)

    def figures(self) -> dict[str, tuple[Figure, str]]:
        """Draw everything that there is to draw.

        Returns
        -------
        dict
            Name to figure of matplotlib and caption.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        from pmm_mcmc.comparison import plots

        return plots.figures(self)

    def plot_bias_vs_grad(self) -> Figure:
        """Draw the error of a chain's second moments against the gradients that it has spent, both logarithmic."""
        from pmm_mcmc.comparison import plots

        return plots.error_against_gradients(self)

    def plot_ess_per_grad(self) -> Figure:
        """Draw effective draws for 1,000 gradients as bars."""
        from pmm_mcmc.comparison import plots

        return plots.effective_draws(self)

    def plot_marginals(self) -> Figure:
        """Draw the marginals that are off most, against the reference."""
        from pmm_mcmc.comparison import plots

        return plots.marginals(self)

    def plot_ranks(self) -> Figure:
        """Draw rank histograms of each sampler's chains, for its worst parameter."""
        from pmm_mcmc.comparison import plots

        return plots.ranks(self)

    def plot_modes(self) -> Figure:
        """Draw the two coordinates that tell the modes apart best.

        Raises
        ------
        ValueError
            If no modes are known.
        """
        from pmm_mcmc.comparison import plots

        return plots.modes(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained page.

        Parameters
        ----------
        path
            Where to.
        """
        from pmm_mcmc.report import comparison_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(comparison_page(self))

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the draws as JSON: numbers that are not finite as null.

        Parameters
        ----------
        path
            Where to.
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
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(_plain(content), file, indent=1, ensure_ascii=False, allow_nan=False)

    def _curve(self, trace: Trace) -> dict[str, list[float]]:
        spent, error = error_curve(trace, self.truth)
        which = np.unique(np.geomspace(1, len(spent), _CURVE_POINTS).astype(int)) - 1
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


def compare(
    model_or_target: Any,
    samplers: Sequence[Any] | Mapping[str, Any],
    *,
    n_grad: int = 200_000,
    reference: Any = None,
    chains: int = 8,
    seed: int = 1,
) -> Comparison:
    """Compare samplers on one posterior, with the same number of gradients each.

    Every sampler warms up by its own rules and then draws until ``n_grad`` gradients are spent by all of its chains
    together, warm-up included.  Everything is measured on the unconstrained scale.

    Parameters
    ----------
    model_or_target
        A PyMC model, a target of :mod:`pmm_mcmc.targets`, or the name of one.
    samplers
        Steps such as ``pmm.PoissonULMC(K=16)`` with whatever arguments, made outside any model; "nuts" for PyMC's own
        NUTS; "nutpie" where it is installed.  A dict gives them names of your own.
    n_grad
        Gradients of each sampler, over all chains, warm-up included.
    reference
        What to compare with.  None: the target's own answer or, for a model, a run of NUTS of five times the budget.
        "nuts": such a run in any case.  A result of ``pm.sample`` or ``pmm.sample``: your own draws.
    chains
        Number of chains of each sampler, at least 2.
    seed
        A non-negative integer.

    Returns
    -------
    Comparison
        A sampler that fails is a row of the table with the reason in words, not an exception.

    Raises
    ------
    TypeError
        If the model or a sampler is something else.
    ValueError
        For an argument that cannot work, with its name and the remedy.

    Notes
    -----
    Gradients are counted as follows.  Samplers of this package: every evaluation, tuning and probes included.  NUTS:
    leapfrog steps; the gradient at the start of a trajectory is known from the last one and is not counted, although
    PyMC evaluates it again.  The warm-up is at most 1,000 transitions, or iterations of NUTS.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> from pmm_mcmc.comparison import compare
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> with model:
    ...     known = pm.sample(500, chains=2, cores=1, progressbar=False, random_seed=1)
    >>> report = compare(model, [pmm.ULMC(), pmm.MALA()], n_grad=20_000, chains=4, reference=known)
    >>> list(report.table.index)
    ['ULMC', 'MALA']
    """
    check_numbers(n_grad=n_grad, chains=chains, seed=seed)
    target, model, title = posterior_of(model_or_target)
    named = named_samplers(samplers, model)
    labels = model_labels(model) if target is None else list(target.labels)
    rng = np.random.default_rng([seed, 1])
    truth = _truth(target, model, reference, labels, n_grad, chains, seed, rng)
    traces, rows, failures = [], {}, {}
    for name, sampler in named.items():
        try:
            trace = _run(name, sampler, model, n_grad, chains, seed)
            rows[name] = row(trace, truth, labels, None if target is None else target.modes, seed)
            traces.append(trace)
        except Exception as error:
            # Whatever one sampler fails of, the others are of use.
            _log.warning("%s failed: %s", name, error)
            failures[name] = str(error) if isinstance(error, TooSmall | ImportError) else _in_words(error)
            rows[name] = {"trusted": False, "error": failures[name]}
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(COLUMNS))
    table = table.drop(columns=[c for c in COLUMNS if c not in ("error", "trusted") and table[c].isna().all()])
    return Comparison(
        title,
        verdict_in_words(table, truth, failures),
        table,
        {name: text for name, text in COLUMNS.items() if name in table},
        notes_of(target, truth, n_grad, chains, seed, named),
        failures,
        traces,
        truth,
        labels,
        None if target is None else target.modes,
    )


def _truth(
    target: Any, model: Any, reference: Any, labels: list[str], n_grad: int, chains: int, seed: int, rng: Any
) -> Truth:
    if reference is None and target is not None:
        return truth_of_target(target, rng)
    if reference is None or (isinstance(reference, str) and reference == "nuts"):
        try:
            run = run_nuts("NUTS", model, _LONGER * n_grad, chains, seed + 1)
        except TooSmall as error:
            raise ValueError(
                f"reference: the warm-up of NUTS takes more than {_LONGER} times n_grad={n_grad}; give a larger one, "
                "or draws of your own as reference="
            ) from error
        says = None if run.ran.trusted else run.ran.sentence
        source = f"A run of NUTS of {_LONGER} times the budget ({run.position.shape[1]} draws of {chains} chains)."
        return truth_of_draws(run.position, source, says)
    if isinstance(reference, str):
        raise ValueError(f"reference={reference!r}: must be 'nuts', a result of pm.sample, or None")
    draws = unconstrained_draws(reference, model)
    if draws.shape[-1] != len(labels):
        raise ValueError(f"reference: has {draws.shape[-1]} coordinates, the model {len(labels)}")
    return truth_of_draws(draws, f"Your own draws ({draws.shape[1]} of each of {draws.shape[0]} chains).")


def _run(name: str, sampler: Any, model: Any, n_grad: int, chains: int, seed: int) -> Trace:
    if not isinstance(sampler, str):
        return run_step(name, sampler, model, n_grad, chains, seed)
    return with_gradients(PEERS[sampler](name, model, n_grad, chains, seed), model)


def _in_words(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
