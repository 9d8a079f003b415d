"""The verdict on a result, with a search for other modes by the density of its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.checks import few_draws
from pmm_mcmc.diagnostics.labels import Exchange
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.statement import Verdict
from pmm_mcmc.diagnostics.verdict import judge
from pmm_mcmc.run.mode_search import modes_and_labels
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.positions import Unconstraining
from pmm_mcmc.run.request import Request

__all__ = ["verdict"]

# Draws by which it is known where the chains are, for which positions are computed one by one.
_DRAWS = 1000


def verdict(dt: Any, *, model: Any = None) -> Verdict:
    """Say in one sentence whether a run may be trusted and, if not, what fails and what to do.

    A run is **not trusted** if something is wrong: chains disagree; transitions diverged, or a chain stands still; the
    Stein identity fails, as it does where chains have not entered an arm or a tail; another mode has more than a
    hundredth of the mass.

    It is **undecided** if nothing wrong is seen, but the draws cannot show that nothing is: there are fewer than 20, or
    one chain; the standard error of a mean exceeds 0.05 posterior standard deviations; the standard deviation of a free
    variable is known to worse than 5 %, where gradients explain neither it nor the mean; equilibration did not end; a
    neck beyond the draws has a hundredth more of the mass than of the draws, by prediction; or, with a ladder, weights
    rest on too few restarts, or its estimates of the evidence differ.

    Otherwise it is **trusted**, and the percentage is two standard errors of the mean that is known worst.  Modes that
    neither a chain nor the search for modes has met are not seen.

    Unadjusted draws are **not trusted** also if too many transitions were unstable, or if the bias of a mean or a
    standard deviation exceeds 0.075 posterior standard deviations (of a mean, with the share that the correction did
    not remove).  They are **undecided** also if no bias could be measured.

    Parameters
    ----------
    dt
        A result of any sampler; one of another sampler is judged by draws and divergences alone.
    model
        The model of the result, a PyMC model or a :class:`pmm_mcmc.LogDensity`: with it other modes are looked for by
        its density, from some of the draws, if that has not been done at the end of the run.  It takes about 1,500
        gradients, and seconds where the density is compiled for it.

    Returns
    -------
    Verdict
        ``state``, ``trusted``, ``sentence``, ``reasons``; a notebook shows them.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is no result of sampling, or of another model; the message has the remedy.

    Notes
    -----
    If there are more than 300 parameters, the verdict judges the first, up to 200 free variables, and of the others up
    to 100 that differ most between batches; of unadjusted draws the first, twice as many as there are coordinates.
    """
    run = read(dt)
    if model is not None and "modes" not in run.findings and few_draws(run) is None:
        findings = _searched(run, model)
        run = read(dt, [Exchange(*record) for record in findings["labels"]])
        run.findings.update(findings)
    return judge(run)


def _searched(run: Run, model: Any) -> dict[str, Any]:
    """Return the findings of a search for other modes and labels beside some of the draws."""
    plan = SamplingPlan.of(Request(model=model, random_seed=0))
    chains, rows = evenly_spaced(run.chains, run.draws, _DRAWS)
    if "unconstrained" in run.stats:
        x = np.asarray(run.stats["unconstrained"].isel(chain=chains, draw=rows).values, dtype=float)
        x = x.reshape(-1, x.shape[-1])
    else:
        x = Unconstraining(plan).of_posterior(run.posterior.isel(chain=chains, draw=rows))
    if x.shape[1] != plan.engine.d:
        raise ValueError(f"model: has {plan.engine.d} coordinates, and dt {x.shape[1]}; give the model of the result")
    structure = plan.engine.structure
    noncentring = None if structure.is_identity else structure.initial_noncentring()
    return modes_and_labels(plan, x, noncentring, np.random.default_rng(0))
