"""``pmm.workbench.compare``: several samplers on one posterior, with the same number of gradients each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pmm_mcmc.workbench.comparison.findings import notes_of, verdict_in_words
from pmm_mcmc.workbench.comparison.inputs import check_numbers, named_samplers, posterior_of, seed_of
from pmm_mcmc.workbench.comparison.measures import AGAINST_TRUTH, COLUMNS, row
from pmm_mcmc.workbench.comparison.peers import PEERS, NutsRun, nuts_run, with_gradients
from pmm_mcmc.workbench.comparison.reference import (
    Truth,
    model_labels,
    truth_of_draws,
    truth_of_target,
    unconstrained_draws,
)
from pmm_mcmc.workbench.comparison.result import Comparison
from pmm_mcmc.workbench.comparison.runs import TooSmall, Trace, in_words, run_step

__all__ = ["compare"]

_log = logging.getLogger("pmm_mcmc")

# Budget of a reference run of NUTS, in budgets of a sampler.
_LONGER = 5


def compare(
    model_or_target: Any,
    samplers: Sequence[Any] | Mapping[str, Any],
    *,
    n_grad: int = 200_000,
    reference: Any = None,
    chains: int = 8,
    random_seed: Any = 1,
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
        outside any model; "nuts" for PyMC's own NUTS; "nutpie" if it is installed.  A dict gives them other names.  If
        the reference is a run of NUTS, "nuts" is the first part of that run.
    n_grad
        Gradients of each sampler, over all chains, warm-up included.
    reference
        The reference.  None: the target's own moments or, for a model, a run of NUTS of five times the budget.  "nuts":
        such a run in any case.  A result of ``pm.sample`` or ``pmm.sample``: its draws.
    chains
        Number of chains of each sampler, at least 2.
    random_seed
        A non-negative integer, or a ``Generator`` or ``SeedSequence`` of NumPy, from which an integer is drawn.  The
        notes of the result contain the integer.

    Returns
    -------
    Comparison
        The table, verdict and figures.  A sampler that fails, or whose warm-up the budget does not cover, is a row of
        the table with only the reason, not an exception.  If NUTS is the reference and its warm-up takes more than the
        budget, its row is the whole reference run, without errors.

    Raises
    ------
    TypeError
        If the model or a sampler has another type.
    ValueError
        For an invalid argument; the message has its name, value and the remedy.

    Notes
    -----
    Gradients are counted as follows.  Samplers of this package: every evaluation, including those of tuning and of
    probes.  NUTS: leapfrog steps; the gradient at the start of a trajectory is known from the previous one and is not
    counted, although PyMC evaluates it again.  The warm-up is at most 1,000 transitions, or iterations of NUTS.

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
    check_numbers(n_grad=n_grad, chains=chains)
    seed = seed_of(random_seed)
    target, model, title = posterior_of(model_or_target)
    named = named_samplers(samplers, model)
    labels = model_labels(model) if target is None else list(target.labels)
    rng = np.random.default_rng([seed, 1])
    truth, long = _truth(target, model, reference, labels, n_grad, chains, seed, rng)
    modes = None if target is None else target.modes
    traces, rows, failures = [], {}, {}
    for name, sampler in named.items():
        try:
            if sampler == "nuts" and long is not None:
                trace, why = _of_reference(long, name, model, n_grad)
            else:
                trace, why = _run(name, sampler, model, n_grad, chains, seed), None
            rows[name] = row(trace, truth, labels, modes, seed)
            if why is None:
                traces.append(trace)
            else:
                rows[name] |= dict.fromkeys((c for c in rows[name] if c in AGAINST_TRUTH), None) | {"error": why}
        except Exception as error:
            # A failure of one sampler does not end the others.
            _log.warning("%s failed: %s", name, error)
            failures[name] = in_words(error)
            rows[name] = {"trusted": None, "error": failures[name]}
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(COLUMNS))
    table = table.drop(columns=[c for c in COLUMNS if c not in ("error", "trusted") and table[c].isna().all()])
    notes = notes_of(target, truth, n_grad, chains, seed, named, long is not None)
    return Comparison(
        title,
        verdict_in_words(table, truth, failures),
        table,
        {name: text for name, text in COLUMNS.items() if name in table},
        notes,
        failures,
        traces,
        truth,
        labels,
        modes,
    )


def _truth(
    target: Any, model: Any, reference: Any, labels: list[str], n_grad: int, chains: int, seed: int, rng: Any
) -> tuple[Truth, NutsRun | None]:
    """Return the reference, and its run of NUTS if it is one."""
    if reference is None and target is not None:
        return truth_of_target(target, rng), None
    if reference is None or (isinstance(reference, str) and reference == "nuts"):
        try:
            long = nuts_run(model, _LONGER * n_grad, chains, seed + 1)
        except TooSmall as error:
            raise ValueError(
                f"reference: the warm-up of NUTS takes more than {_LONGER} times n_grad={n_grad}; give a larger one, "
                "or draws of your own as reference="
            ) from error
        run = long.trace("NUTS", _LONGER * n_grad)
        says = None if run.ran.trusted else run.ran.sentence
        source = f"A run of NUTS of {_LONGER} times the budget ({run.position.shape[1]} draws of {chains} chains)."
        return truth_of_draws(run.position, source, says), long
    if isinstance(reference, str):
        raise ValueError(f"reference={reference!r}: must be 'nuts', a result of pm.sample, or None")
    draws = unconstrained_draws(reference, model)
    if draws.shape[-1] != len(labels):
        raise ValueError(f"reference: has {draws.shape[-1]} coordinates, the model {len(labels)}")
    return truth_of_draws(draws, f"Your own draws ({draws.shape[1]} of each of {draws.shape[0]} chains)."), None


def _of_reference(long: NutsRun, name: str, model: Any, n_grad: int) -> tuple[Trace, str | None]:
    """Return the part of the reference run within the budget; if that is too small, the whole run and the reason."""
    try:
        return with_gradients(long.trace(name, n_grad), model), None
    except TooSmall:
        trace = with_gradients(long.trace(name, _LONGER * n_grad), model)
        return trace, (
            f"its warm-up alone took {trace.warmup_n_grad.sum():,} gradients, and n_grad={n_grad:,} leaves too few for "
            f"draws: this row is the whole reference run, of {trace.spent:,.0f}"
        )


def _run(name: str, sampler: Any, model: Any, n_grad: int, chains: int, seed: int) -> Trace:
    if not isinstance(sampler, str):
        return run_step(name, sampler, model, n_grad, chains, seed)
    trace = PEERS[sampler](name, model, n_grad, chains, seed)
    return trace if trace.gradient is not None else with_gradients(trace, model)
