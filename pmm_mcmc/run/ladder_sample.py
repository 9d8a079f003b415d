"""``pmm.sample(..., ladder=...)``: its checks, its plan, its progress."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import signal
import sys
import time
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.density import LogDensity
from pmm_mcmc.model.heartbeat import Heartbeat
from pmm_mcmc.model.reading import children_of
from pmm_mcmc.run import arguments
from pmm_mcmc.run.ladder import LadderRun, reference_of
from pmm_mcmc.run.ladder_report import LADDER
from pmm_mcmc.run.ladder_tuning import Given
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.run.progress import RunProgress
from pmm_mcmc.run.signals import stop_on_signals
from pmm_mcmc.run.starts import starts
from pmm_mcmc.run.storage import NothingStored
from pmm_mcmc.run.storage.recovery import stored_identity
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.poisson import PoissonULMC

__all__ = ["sample_on_ladder"]

_log = logging.getLogger("pmm_mcmc")

_REFUSED = {
    "more": "more= does not go on with a ladder: give store=, and resume=True",
    "keep": "keep='moments' keeps no draws, and the modes of a ladder are weighed by them: leave it out",
    "adjusted": "adjusted=False: all rungs of a ladder are adjusted; leave adjusted out",
    "superchains": "superchains= share starts, and the copies of a ladder have none: leave it out",
    "discard_tuned_samples": "discard_tuned_samples=False: the draws of a ladder's tuning are at other temperatures; "
    "leave it out",
    "draws": "draws='auto' is for chains at one temperature; the restarts of a ladder say how long it must be: give a "
    "number",
    "tune": "tune=0: a ladder is found in tuning; let it tune",
}


def sample_on_ladder(
    step: Any,
    ladder: Any,
    reference: Any,
    *,
    draws: int,
    tune: int,
    chains: int,
    seed: int | None,
    store: Any,
    resume: bool,
    initvals: Any,
    callback: Any,
    progressbar: bool,
    refused: dict[str, bool],
    **asked: Any,
) -> tuple[xr.DataTree, bool]:
    """Run ``pmm.sample`` with a ladder; return the result, and whether it has draws to judge.

    ``refused`` says by name which arguments were given that do not go with a ladder; ``asked`` are those of a plan.
    """
    for name, given in refused.items():
        if given:
            raise ValueError(f"ladder={ladder!r}: {_REFUSED[name]}")
    betas, rungs = arguments.check_ladder(ladder, reference, chains=chains)
    if asked["precision"] != "float64":
        raise ValueError(
            f"ladder with precision={asked['precision']!r}: Metropolis tests need the log density in double precision; "
            "leave one of the two out"
        )
    began, created = time.time(), datetime.datetime.now(datetime.UTC).isoformat()
    which = reference_of(asked["model"], isinstance(asked["model"], LogDensity), reference)
    if which == "prior" and initvals is not None:
        raise ValueError("initvals= does not go with a ladder from the prior, whose draws are the starts: leave it out")
    from_prior = which == "prior" and (reference == "prior" or betas is not None)
    fits = "Gaussians that are fitted"
    begin = "the prior" if from_prior else f"{fits}, or the prior" if which == "prior" else fits
    stored = _stored_seed(store) if resume else None
    if seed is None:
        seed = arguments.fresh_seed() if stored is None else stored
    with Heartbeat(bool(progressbar)) as heartbeat:

        def announce(sampled: str) -> None:
            _log.log(logging.INFO if progressbar else logging.DEBUG, "%s, on a ladder from %s", sampled, begin)
            heartbeat.say("Compiling the log density")

        plan = SamplingPlan.of(Asked(_for_ladder(step), chains=chains, reference=which, **asked), announce)
        heartbeat.stop()
    if not isinstance(asked["model"], LogDensity) and (children := children_of(pm.modelcontext(asked["model"]))):
        told = (
            "Not non-centred on a ladder: %s. If the verdict is that draws are too few, write the model non-centred by "
            "hand"
        )
        _log.log(logging.INFO if progressbar else logging.DEBUG, told, ", ".join(children))
    if resume and stored is None:
        _log.info("Nothing is stored yet in %s: the ladder is tuned from the beginning", store)
    words = ladder if isinstance(ladder, str) else repr(np.asarray(ladder).tolist())
    identity = plan.identity | {
        "chains": chains, "tune": tune, "seed": seed, "ladder": words, "reference": reference,
    }  # fmt: skip
    attrs = {"tuning_steps": tune, "random_seed": seed, **plan.attributes}
    compiling = time.time() - began
    with (
        stop_on_signals() as stopped,
        RunProgress(chains=chains, tune=tune, draws=draws, show=bool(progressbar), adjusted=True) as bar,
    ):

        def update(tuning: bool, done: int, step_size: float, K: int, n_grad: float) -> None:
            each = np.full(chains, n_grad / chains)
            bar.update(tuning=tuning, done=done, step_size=step_size, K=K, n_grad=each, failed=np.zeros(chains))

        fixed = Given(betas, None if rungs is None else rungs - 1, from_prior)
        run = LadderRun(
            plan, fixed, chains=chains, draws=draws, tune=tune, seed=seed,
            identity=identity, attrs=attrs, cores=asked["cores"], callback=callback, update=update, stopped=stopped,
        )  # fmt: skip
        update(True, 0, float("nan"), 1, 0.0)
        notes = {"created_at": created, "compile_time": compiling}
        result = run.go(
            lambda rng: starts(plan, initvals, chains, None, rng),
            store,
            resume,
            lambda: notes | {"sampling_time": time.time() - began},
        )
    there = result["posterior"].sizes["draw"]
    if not run.finished:
        lost = stopped.number == signal.SIGTERM and store is None
        kept = "in memory only: store= would keep them" if lost else "kept"
        _log.warning("Sampling was stopped after %d of %d draws of each copy; they are %s", there, draws, kept)
    if stopped.number == signal.SIGTERM:
        sys.stdout.flush()
        signal.raise_signal(signal.SIGTERM)
    if progressbar and there:
        _log.info("%s", _words(result, time.time() - began, compiling))
    return result, bool(there)


def _for_ladder(step: Any) -> Any:
    """Return the step with what a ladder takes of it: friction and scaling."""
    if step is None:
        own = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="auto")
        step = PoissonULMC.of_arguments(own, keep_gradients=True)
    if not isinstance(step, LangevinStep):
        return step  # the plan refuses it
    own = step.arguments
    if own.kernel.adjusted:
        raise ValueError(
            f"ladder with {own.method}: its rungs move by adjusted steps of their own; leave the step out, or "
            "take pmm.PoissonULMC()"
        )
    for name, value in (("step_size", own.step_size), ("K", own.K), ("steps_per_draw", own.steps_per_draw)):
        if value is not None:
            raise ValueError(f"{name}={value!r} with a ladder: each rung finds its own; leave {name} out")
    if own.reparametrise not in ("auto", "no"):
        raise ValueError(
            f"reparametrise={dict(own.reparametrise)!r} with a ladder: its chains move in the model's coordinates; "  # type: ignore[arg-type]
            "leave it out, and write the model non-centred by hand where that helps"
        )
    changed = dataclasses.replace(own, reparametrise="no", scheme="recycled" if own.automatic else own.scheme)
    return type(step).of_arguments(changed, step.keep_gradients)


def _stored_seed(store: Any) -> int | None:
    try:
        return int(stored_identity(store)["seed"])
    except NothingStored:
        return None


def _words(result: xr.DataTree, seconds: float, compiling: float) -> str:
    """Return a line on the ladder; what it found is in the verdict."""
    ladder = result[LADDER].to_dataset()
    gaussians = int(ladder["gaussians"])
    reference = "the prior" if not gaussians else "a Gaussian" if gaussians == 1 else f"{gaussians} Gaussians"
    copies = result["posterior"].sizes["chain"]
    return (
        f"Ladder of {ladder.sizes['rung']} rungs from {reference}, {copies} copies, barrier "
        f"{float(ladder['barrier'][-1]):.1f}: {seconds:.1f} s, {compiling:.1f} of them for compilation"
    )
