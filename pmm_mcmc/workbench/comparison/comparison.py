"""``pmm.workbench.compare``: several samplers on one posterior, with the same number of gradients each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pmm_mcmc.model.checks import check_discrete, check_free
from pmm_mcmc.run.devices import check_count
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.comparison.reference import truth_for
from pmm_mcmc.workbench.comparison.result import COLUMNS, Comparison, row
from pmm_mcmc.workbench.comparison.runs import FEWEST, PEERS, TooSmall, model_labels, name_of, run

__all__ = ["compare"]

_log = logging.getLogger("pmm_mcmc")


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
            reason = str(error) if isinstance(error, TooSmall | ImportError) else f"{type(error).__name__}: {error}"
            rows[name] = {"trusted": None, "says": reason}
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(COLUMNS))
    return Comparison(title, source, table, COLUMNS)


def _posterior(model_or_target: Any) -> tuple[Any, Any, str]:
    """Return the target (None for a model), the model and a title."""
    import pymc as pm

    target: Any = targets.get(model_or_target) if isinstance(model_or_target, str) else model_or_target
    if isinstance(target, targets.Target):
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
