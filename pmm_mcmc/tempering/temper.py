"""``pmm.temper``: separated modes and the evidence, by chains on a ladder of temperatures."""

from __future__ import annotations

import dataclasses
import json
import logging
import numbers
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from pmm_mcmc.diagnostics.labels import FINDINGS
from pmm_mcmc.engines.processes import is_primary_process
from pmm_mcmc.model.checks import flat_priors, model_of
from pmm_mcmc.model.hierarchy import children_of
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.run.console import Console, RunProgress, interrupted
from pmm_mcmc.run.driver import FinishedChunk, StopRequest, stop_on_signals
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import (
    Initvals,
    Jax,
    Model,
    Request,
    Seed,
    Step,
    fresh_seed,
    refuse_unknown,
    stored_run,
)
from pmm_mcmc.run.stopping import DRAWS
from pmm_mcmc.steps.pymc_step import LangevinStep
from pmm_mcmc.tempering.driver import Tempering
from pmm_mcmc.tempering.ladder import LADDER
from pmm_mcmc.tempering.tuning import LadderOptions

_log = logging.getLogger("pmm_mcmc")


def temper(
    draws: int = DRAWS,
    *,
    tune: int = 1000,
    chains: int = 96,
    ladder: str | int | Sequence[float] = "auto",
    reference: str = "auto",
    step: Step | None = None,
    model: Model | None = None,
    random_seed: Seed | None = None,
    initvals: Initvals | None = None,
    var_names: Sequence[str] | None = None,
    cores: int | None = None,
    backend: str | Jax = "auto",
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callback: Callable[[FinishedChunk], None] | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    **others: Any,
) -> xr.DataTree:
    r"""Sample separated modes with their weights, and the evidence, by non-reversible parallel tempering.

    Replicas of a ladder of temperatures, from a reference that is easily sampled to the posterior, share the chains.
    All levels move by :class:`GHMC`, so that neither weights nor evidence have a bias of the step; variables are not
    non-centred.

    Parameters
    ----------
    draws
        Number of recorded draws of each replica.
    tune
        The largest number of moves of a chain before the draws, of several transitions each.
    chains
        Number of chains at all temperature levels together.
    ladder
        "auto", a number of temperature levels, or an array of temperatures from 0 to 1.
    reference
        "prior"; "gaussian", a mixture of Gaussians that is fitted to what annealing from around ``initvals`` meets; or
        "auto": the prior, if there is one to draw from, and from there such a mixture where it is nearer to the
        posterior or ascents find a mode that chains from the prior do not reach.
    step
        A step whose friction and scaling the levels take.
    store, resume
        As for :func:`pmm_mcmc.sample`.  A store begins with the draws, so that a run that is killed while the ladder is
        tuned is tuned again by ``resume``.
    model, random_seed, initvals, var_names, cores, backend
        As for :func:`pmm_mcmc.sample`.
    callback, progressbar, compute_convergence_checks
        As for :func:`pmm_mcmc.sample`.
    **others
        Other arguments of ``pm.sample`` raise an error that names the replacement.

    Returns
    -------
    xarray.DataTree
        As of :func:`pmm_mcmc.sample`, with a draw of each replica in place of each chain, and a group ``ladder``.

    Raises
    ------
    ValueError
        For an invalid argument or model; the message has its name, value and the remedy.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.NormalMixture("x", w=[0.5, 0.5], mu=[-20.0, 20.0], sigma=1.0)
    ...     dt = pmm.temper(draws=20, tune=100, chains=24, progressbar=False, random_seed=1)
    >>> "log_evidence" in dt["ladder"]
    True
    """
    refuse_unknown(others, temper)
    request = Request(
        draws=draws,
        step=step,
        tune=tune,
        chains=chains,
        ladder=ladder,
        reference=reference,
        model=model,
        random_seed=random_seed,
        initvals=initvals,
        var_names=var_names,
        cores=cores,
        backend=backend,
        adjusted=True,
        store=store,
        resume=resume,
        callback=callback,
        progressbar=progressbar,
        compute_convergence_checks=compute_convergence_checks,
    )
    return _tempered(request)


def _tempered(request: Request) -> xr.DataTree:
    """Run what is requested, and return its result."""
    ladder = request.ladder if isinstance(request.ladder, str) else repr(np.asarray(request.ladder).tolist())
    identity = {"chains": request.chains, "tune": request.tune, "reference": request.reference, "ladder": ladder}
    request, options = _on_ladder(request)
    stored = stored_run(request.store) if request.resume and request.store is not None else {}
    if request.seed is None:
        request = dataclasses.replace(request, seed=stored.get("seed", fresh_seed()))
    identity["seed"] = request.seed
    shown = bool(request.progressbar) and (request.backend != "jax" or is_primary_process())
    with threadpool_limits(1, user_api="blas"), Console(shown, "Compiling the log density") as console:
        begin = "the prior" if options.from_prior else "the prior or fitted Gaussians"
        begin = begin if request.reference == "prior" else "fitted Gaussians"
        plan = SamplingPlan.of(request, lambda sampled: console.announce(f"{sampled}, on a ladder from {begin}"))
        console.prepared()
        children = [] if isinstance(request.model, LogDensity) else children_of(model_of(request.model))
        if children:
            console.log(
                "Not non-centred on a ladder: %s. If the verdict is that draws are too few, write the model "
                "non-centred by hand",
                ", ".join(children),
            )
        if request.resume and not stored:
            _log.info("Nothing is stored yet in %s: the ladder is tuned from the beginning", request.store)
        bar = RunProgress(
            chains=request.chains, tune=request.tune, draws=request.draws, show=console.show, adjusted=True
        )
        console.update = bar.update
        with ExitStack() as stack, stop_on_signals(StopRequest()) as stopped, bar:
            driver = Tempering(plan, request, options, plan.identity | identity, stored, console, stack)
            finished = driver.go(stopped)
            if driver.tuned:
                if finished or request.store is None:
                    driver.weigh_modes()
                driver.recorder.note(
                    console.times() | {FINDINGS: json.dumps({"modes": driver.run.other_modes._asdict()})}
                )
    result = driver.result()
    draws = result["posterior"].sizes["draw"]
    if not finished:
        place = f"after {draws} of {request.draws} draws of each replica"
        interrupted(stopped, request.store is not None, "only a ladder with store= can go on", draws, place)
    stopped.raise_again()
    if draws:
        console.log("%s", _words(result, console))
        if request.compute_convergence_checks:
            console.verdict(result)
    return result


def _on_ladder(request: Request) -> tuple[Request, LadderOptions]:
    """Return the request with the step and the reference of a ladder, and what the user fixes of it."""
    if request.auto:
        raise ValueError(
            f"ladder={request.ladder!r}: draws='auto' is for chains at one temperature; the restarts of a ladder say "
            "how long it must be: give a number"
        )
    if not request.adapts:
        raise ValueError("tune=0: a ladder is found in tuning; let it tune")
    betas, levels = _temperatures(request.ladder, request.reference, chains=request.chains)
    if request.precision != "float64":
        raise ValueError(
            f"ladder with precision={request.precision!r}: Metropolis tests need the log density in double precision; "
            "leave one of the two out"
        )
    reference = _reference_of(request.model, request.reference)
    if reference == "prior" and request.initvals is not None:
        raise ValueError("initvals= does not go with a ladder from the prior, whose draws are the starts: leave it out")
    from_prior = reference == "prior" and (request.reference == "prior" or betas is not None)
    options = LadderOptions(betas, None if levels is None else levels - 1, from_prior)
    return dataclasses.replace(request, step=_for_ladder(request.step), reference=reference), options


def _reference_of(model: Model | None, reference: str | None) -> str:
    """Return the reference of a ladder, ``"prior"`` or ``"gaussian"``; refuse a prior that nothing is drawn from."""
    if isinstance(model, LogDensity):
        if reference == "prior":
            raise ValueError(
                "reference='prior': a LogDensity has no prior that is known; leave reference out, or take 'gaussian'"
            )
        return "gaussian"
    pymc_model = model_of(model)
    improper = [rv.name for rv in flat_priors(pymc_model)]
    if reference == "prior" and improper:
        raise ValueError(
            f"reference='prior': nothing can be drawn from the flat prior of {', '.join(improper)}; give a proper "
            "prior, or take reference='gaussian'"
        )
    if reference != "auto":
        return str(reference)
    informed = bool(pymc_model.observed_RVs or pymc_model.potentials)
    return "prior" if informed and not improper else "gaussian"


def _temperatures(
    ladder: str | int | Sequence[float], reference: str | None, *, chains: int
) -> tuple[np.ndarray | None, int | None]:
    """Return the temperatures of a ladder and their number, None where tuning finds them."""
    if reference not in ("auto", "prior", "gaussian"):
        raise ValueError(f"reference={reference!r}: must be 'auto', 'prior' or 'gaussian'")
    betas: np.ndarray | None = None
    levels: int | None = None
    remedy = "must be 'auto', a number of temperature levels of at least 2, or temperatures that rise from 0 to 1"
    if isinstance(ladder, numbers.Integral) and not isinstance(ladder, bool | np.bool_):
        levels = int(ladder)
        if levels < 2:
            raise ValueError(f"ladder={ladder!r}: {remedy}")
    elif not (isinstance(ladder, str) and ladder == "auto"):
        try:
            betas = np.array(ladder, dtype=float)
        except (TypeError, ValueError):
            betas = np.zeros(1)
        levels = len(betas) if betas.ndim == 1 else 0
        if levels < 2 or betas[0] != 0.0 or betas[-1] != 1.0 or not (np.diff(betas) > 0.0).all():
            raise ValueError(f"ladder={ladder!r}: {remedy}")
    least = 2 * (levels or 3)
    if chains < least:
        raise ValueError(
            f"chains={chains}: is too few for two replicas of a ladder of {levels or 3} temperature levels; "
            f"take chains={least} or more, some hundreds if modes are many or narrow"
        )
    return betas, levels


def _for_ladder(step: LangevinStep) -> LangevinStep:
    """Return the step with what a ladder takes of it: friction and scaling."""
    arguments = step.arguments
    if arguments.integrated:
        raise ValueError(
            f"step: {', '.join(arguments.integrated)} cannot be integrated out: a ladder samples all variables; leave "
            "reparametrise out"
        )
    if arguments.kernel.adjusted:
        raise ValueError(
            f"ladder with {arguments.method}: its levels move by adjusted steps of their own; leave the step "
            "out, or take pmm.PoissonULMC()"
        )
    for name in ("step_size", "K", "steps_per_draw"):
        value = getattr(arguments, name)
        if value is not None:
            raise ValueError(f"{name}={value!r} with a ladder: each temperature level finds its own; leave {name} out")
    if not isinstance(arguments.reparametrise, str):
        raise ValueError(
            f"reparametrise={dict(arguments.reparametrise)!r} with a ladder: "
            "its chains move in the model's coordinates; leave it out, and write the model non-centred by hand where "
            "that helps"
        )
    changed = dataclasses.replace(
        arguments, reparametrise="no", scheme="recycled" if arguments.automatic else arguments.scheme
    )
    return type(step).of_arguments(changed, step.keep_gradients)


def _words(result: xr.DataTree, console: Console) -> str:
    """Return a line on the ladder; the verdict has its estimates."""
    ladder = result[LADDER].to_dataset()
    gaussians = int(ladder["gaussians"])
    reference = "the prior"
    if gaussians:
        reference = "a Gaussian" if gaussians == 1 else f"{gaussians} Gaussians"
    replicas = result["posterior"].sizes["chain"]
    return (
        f"Ladder of {ladder.sizes['rung']} temperature levels from {reference}, {replicas} replicas, barrier "
        f"{float(ladder['barrier'][-1]):.1f}: {console.sampling_time:.1f} s, {console.compile_time:.1f} of them for "
        "preparation"
    )
