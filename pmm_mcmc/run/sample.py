"""``pmm.sample``: many chains in compiled loops, stored while they run, and resumed after any interruption."""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.verdict import last_words
from pmm_mcmc.engines.processes import speaks
from pmm_mcmc.model.heartbeat import Heartbeat
from pmm_mcmc.run import arguments
from pmm_mcmc.run.driver import Driver, FinishedChunk, Run, StopSampling
from pmm_mcmc.run.findings import edges_of, modes_of, noncentring_of, noted
from pmm_mcmc.run.finished_run import FinishedRun
from pmm_mcmc.run.ladder_sample import sample_on_ladder
from pmm_mcmc.run.memory import describe, peak_bytes, refuse_too_large, rows_of_chunk
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.run.progress import RunProgress
from pmm_mcmc.run.recorders import MemoryRecorder, MomentsRecorder, StoreRecorder, device_of
from pmm_mcmc.run.signals import stop_on_signals
from pmm_mcmc.run.starts import draws_of_prior, starts
from pmm_mcmc.run.until import AUTO, DRAWS, Until, UntilKnown, bound_after, look_every
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, report_of
from pmm_mcmc.warmup.pooled import Warmed, warm_up

__all__ = ["FinishedChunk", "StopSampling", "Warmed", "sample", "warm_up"]

_log = logging.getLogger("pmm_mcmc")

# Chains by default, and those of all temperatures of a ladder.
_CHAINS = 4
_REPLICAS = 96

# Bytes of a predicted peak from which on it is said.
_LARGE = 2**30


def sample(
    step: Any = None,
    draws: int | Literal["auto"] = DRAWS,
    *,
    tune: int = 1000,
    chains: int | None = None,
    model: Any = None,
    random_seed: Any = None,
    initvals: Any = None,
    more: xr.DataTree | None = None,
    var_names: Sequence[str] | None = None,
    cores: int | None = None,
    backend: str = "auto",
    device: str = "auto",
    precision: str = "float64",
    chain_batch_size: int | str = "auto",
    superchains: int | str | None = "auto",
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    discard_tuned_samples: bool = True,
    log_likelihood: bool = False,
    keep: str = "draws",
    adjusted: bool | None = None,
    ladder: Any = None,
    reference: str = "auto",
    callback: Callable[[FinishedChunk], None] | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    **others: Any,
) -> xr.DataTree:
    r"""Draw samples with compiled loops: many chains, on CPU threads or on JAX, stored and resumable.

    All chains share one warm-up (:mod:`pmm_mcmc.warmup`), which ends as soon as its tuned parameters have been found
    and checked.  Draws depend only on the seed, the chain and the transition: not on lengths of chunks, batches of
    chains, devices or interruptions.

    Parameters
    ----------
    step
        The method with its arguments, such as ``pmm.PoissonULMC(K=16)``, created inside the model or outside any; the
        draws are then its own, unless ``adjusted`` is True.  Default: warm-up by ``PoissonULMC()``, adjusted draws.
    draws
        Number of recorded draws of each chain, of ``steps_per_draw`` transitions each.  May come first, as in
        ``pm.sample``.  "auto": until the verdict asks for no more draws, at most 1000 (see Notes); with ``more`` or
        ``resume``, at most the next multiple of 1000.
    tune
        Largest number of transitions of each chain in warm-up, and in equilibration.
    chains
        Number of chains: 4 by default, and 96 with a ladder, which are those of all its temperatures.
    model
        A PyMC model (default: that of the enclosing ``with``), or a :class:`pmm_mcmc.LogDensity`.
    random_seed
        A non-negative integer; a fresh one by default.  From a list of integers, a NumPy ``SeedSequence`` or
        ``Generator``, an integer below :math:`2^{62}` is drawn: a list gives the same one each time, a generator the
        next one.
    initvals
        Initial points of the chains: as for ``pm.sample``, values by name, or a list of them, one per chain; so also
        for a NumPyro or Stan model.  For any :class:`pmm_mcmc.LogDensity` an array ``(d,)`` or ``(chains, d)`` of
        unconstrained coordinates.  By default uniformly within one unit of the model's initial point, nearer or further
        where there is no density.
    more
        A result of this function in memory, to which ``draws`` more draws of each chain are appended, with the bytes of
        one long run.  Step, ``chains``, ``tune``, seed and the like are those of the result and need not be given.  A
        run in a store continues with ``resume``.
    var_names
        Variables in the result; by default all, with deterministics.
    cores
        Number of threads that run chains on numba; by default all processors that this process may use.
    backend
        "numba": compiled loops on CPU threads, one chain each.  "jax": chains in lockstep on JAX's devices.  "auto":
        JAX for a :class:`pmm_mcmc.LogDensity` or if it has an accelerator, otherwise numba.
    device
        The device of JAX: "cpu", "gpu", "tpu", or "auto": JAX's accelerator, or the CPU if there is none or if a brief
        trial shows that gradients are clearly faster there.  All local devices of the kind share the chains, and so do
        all processes that ``jax.distributed`` has connected; these must call this function with equal arguments and one
        ``store``.
    precision
        On JAX: "float64"; "mixed" (log density and gradient in single precision, everything else in double); "float32".
    chain_batch_size
        Number of chains that advance together, which bounds the memory that they need.  "auto": as many as fit into
        about a hundred megabytes.
    superchains
        Number of superchains, whose chains share an initial point, for :func:`pmm_mcmc.nested_r_hat`: a number that
        divides ``chains``, or None for an initial point for each chain.  "auto": up to 16 for 64 chains or more,
        otherwise None.
    store
        Path, or URL that fsspec knows, of a zarr store that is written during the run and can be read at any time with
        :func:`pmm_mcmc.open`.  The returned result reads from it when it is used.
    resume
        Continue the run in ``store`` from its last chunk, with the same bytes as without an interruption.  A larger
        ``draws`` than before extends it.
    discard_tuned_samples
        False keeps the draws of the warm-up, in groups ``warmup_*``.
    log_likelihood
        Compute the group ``log_likelihood``.
    keep
        "draws"; or "moments" if the draws would fit neither memory nor disk: means and standard deviations of each
        chain, in groups ``posterior_mean`` and ``posterior_sd``; no bias is measured.  The memory then does not depend
        on ``draws``.
    adjusted
        True (default, unless ``step`` is given): the stationary law of the draws is the posterior itself.  Warm-up is
        followed by an equilibration of at most ``tune`` transitions, and equilibration and draws are made by
        :class:`GHMC`, with the preconditioner and the non-centring that warm-up fitted; the group ``equilibration`` of
        the result has its setting.  False: the draws of ``step`` itself, which have the small bias of its
        discretisation.  With ``tune=0`` the chains are those of :class:`GHMC` from the start; in single precision there
        are unadjusted draws only.
    ladder
        "auto" samples separated modes with their weights, and the evidence: non-reversible parallel tempering of copies
        of a ladder of temperatures, which share the ``chains``.  Also a number of rungs, or an array of temperatures
        from 0 to 1.  The result has a draw of each copy in place of each chain, and a group ``ladder``.  All rungs move
        by :class:`GHMC`, so that neither weights nor evidence have a bias of the step; variables are not non-centred.
        ``tune`` is the largest number of moves of a chain before the draws, of several transitions each; ``store``
        begins with the draws, so that a run that is killed while the ladder is tuned is tuned again by ``resume``.
    reference
        Of a ladder: "prior"; "gaussian", a mixture of Gaussians that is fitted to what annealing from around
        ``initvals`` meets; or "auto": the prior, if there is one to draw from, and from there such a mixture where it
        is nearer to the posterior or climbs find a mode that chains from the prior do not reach.
    callback
        Called with a :class:`FinishedChunk` after every chunk; may raise :class:`StopSampling`, which ends the run and
        keeps the finished draws, as Ctrl-C and SIGTERM do.
    progressbar
        Show progress: a bar in a terminal or a notebook, a line every two seconds in a file.
    compute_convergence_checks
        Log the verdict (:func:`pmm_mcmc.verdict`).  For this, jumps and walls of the log density are looked for between
        draws, with 95 to some 700 gradients in all, necks beyond them, with 400 and, where the posterior narrows, some
        :math:`40 (d + 40)` more; they are in no statistic.
    **others
        Arguments of ``pm.sample`` with another name here, or with no meaning, are refused with what to use instead.

    Returns
    -------
    xarray.DataTree
        The result, with the groups, dims, coords, statistics and attributes of ``pm.sample``'s result for the same
        step.  If draws are kept in memory, it has a small group ``checkpoint`` to continue from (``more``).  Its
        ``sampling_time`` is in seconds and includes ``compile_time``.

    Raises
    ------
    ValueError
        For an invalid argument or model; the message has its name, value and the remedy.
    TypeError
        For an unknown argument; the message suggests a known one.
    SamplingError
        If the log density or its gradient is not finite at the initial point.
    StoreError
        If a store cannot be written, or belongs to another run.

    Notes
    -----
    The first Ctrl-C ends the run within a second, or at the end of a block of warm-up, and returns the finished draws.
    SIGTERM, which batch systems send before the end, does the same and then has its usual effect: by default the
    process ends, so that only draws in a ``store`` are kept, unless you install another handler.

    ``draws="auto"`` looks at the draws a few times: first when independent ones would suffice, with four chains at 100,
    200, 300, 400, 600, 900 and 1000 of each chain.  It ends where :func:`pmm_mcmc.verdict` has no reason left whose
    remedy is "draw more": chains agree, and all means, and standard deviations whose bias is not measurable, are known
    to its limits.  Any other reason is left to the verdict at the end.  A line says why it ended, at the bound with the
    parameter that is not known yet.  The draws are those of a run of as many by number.  It needs two chains or more if
    only moments are kept, and has no meaning on a ladder.

    When warm-up ends, a line says what the draws will cost: gradients of each chain, and the time at the present rate.

    Memory: the draws themselves, unless they go to a ``store`` or are kept as moments; in addition at most 128 MiB for
    the current chunk, as much for the chains that advance together, and about :math:`20 d` numbers for each chain; on
    JAX some 100 MiB more for its buffers; or, if it is more, the draws that the warm-up learns from.  The peak is
    predicted (``python -m benchmarks memory``), said if it is above 1 GiB, and a run that would not fit is refused
    before it starts.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pmm.sample(pmm.PoissonULMC(K=16), draws=50, tune=200, chains=8, progressbar=False, random_seed=1)
    >>> dt["posterior"]["x"].shape
    (8, 50, 3)
    """
    if "exact" in others and adjusted is None:  # its old name
        adjusted = others.pop("exact")
    arguments.refuse_unknown(others, sample)
    step, draws = arguments.step_and_draws(step, draws, DRAWS)
    auto = isinstance(draws, str) and draws == AUTO
    before = None
    if more is not None:
        for name, given in (("store", store), ("initvals", initvals), ("keep", None if keep == "draws" else keep)):
            if given is not None:
                raise ValueError(f"{name}={given!r}: does not go with more=, which continues in memory; leave it out")
        before = FinishedRun.of(more)
        step = before.step() if step is None else step
        (
            chains, tune, superchains, backend, device, precision, discard_tuned_samples, log_likelihood, var_names,
            adjusted,
        ) = before.in_place_of_defaults(
            sample, chains=chains, tune=tune, superchains=superchains, backend=backend, device=device,
            precision=precision, discard_tuned_samples=discard_tuned_samples, log_likelihood=log_likelihood,
            var_names=var_names, adjusted=adjusted,
        )  # fmt: skip
    adjusts = arguments.check_adjusted(adjusted, step)
    if chains is None:
        chains = _CHAINS if ladder is None else _REPLICAS
    number: Any = 1 if auto else draws
    arguments.check_counts(draws=number, chains=chains, tune=tune, cores=cores, chain_batch_size=chain_batch_size)
    if resume and store is None:
        raise ValueError("resume=True needs store=, the path of the run to continue")
    seed = arguments.seed_of(random_seed)
    arguments.check_keep(
        keep, store=store is not None, log_likelihood=log_likelihood, discard_tuned_samples=discard_tuned_samples,
        auto_alone=auto and chains == 1,
    )  # fmt: skip
    if ladder is not None:
        result, judged = sample_on_ladder(
            step, ladder, reference, draws=int(number), tune=int(tune), chains=int(chains), seed=seed, store=store,
            resume=bool(resume), initvals=initvals, callback=callback, progressbar=progressbar, model=model,
            var_names=var_names, cores=cores, backend=backend, device=device, precision=precision,
            log_likelihood=log_likelihood,
            refused={
                "draws": auto, "more": more is not None, "keep": keep != "draws",
                "adjusted": adjusted is False, "tune": tune == 0,
                "superchains": superchains not in ("auto", None), "discard_tuned_samples": not discard_tuned_samples,
            },
        )  # fmt: skip
        if compute_convergence_checks and judged:
            _log_verdict(result)
        return result
    if reference != "auto":
        raise ValueError(f"reference={reference!r}: is that of a ladder; give ladder='auto' too, or leave it out")
    groups = arguments.number_of_superchains(superchains, chains)
    if store is not None and resume and device == "auto" and backend != "numba":
        device = device_of(store)  # a new trial could choose another device
    began, created = time.time(), datetime.datetime.now(datetime.UTC).isoformat()
    show = bool(progressbar) and (backend == "numba" or speaks())
    level = logging.INFO if show else logging.DEBUG
    with Heartbeat(show) as heartbeat:

        def announce(sampled: str) -> None:
            _log.log(level, sampled)
            heartbeat.say("Compiling the log density")

        asked = Asked(
            step, model, chains, backend, device, precision, log_likelihood, var_names, cores, tune > 0, adjusts
        )
        plan = SamplingPlan.of(asked, announce)
        if plan.engine.structure is not None:
            _log.log(level, plan.engine.structure.words)
        if tune == 0:
            plan.check_fixed()
        processes = plan.processes(chains)
        processes.check(store, draws=AUTO if auto else int(number), resume=bool(resume))
        if seed is None and before is not None:
            seed = before.identity["seed"]
        elif not isinstance(random_seed, int | np.integer):  # each process would draw another one
            seed = processes.first(arguments.fresh_seed() if seed is None else seed)
        identity = plan.identity | {
            "chains": chains, "tune": tune, "seed": seed, "superchains": groups,
            "discard_tuned_samples": discard_tuned_samples,
        }  # fmt: skip
        attrs = {"tuning_steps": tune, "random_seed": seed, **plan.attributes}
        if groups is not None:
            attrs["superchains"] = groups
        empty = plan.empty(chains)
        if not discard_tuned_samples:
            empty |= {f"warmup_{group}": arrays for group, arrays in plan.empty(chains, tuning=True).items()}
        done = 0 if before is None else before.run.done
        every = look_every(chains) if auto else number + done
        rows = rows_of_chunk(every, chains, plan.numbers_per_draw)
        recorder: MemoryRecorder | MomentsRecorder | StoreRecorder
        longest = tune * (1 + plan.equilibrates)
        warming = 0 if discard_tuned_samples else longest
        most = bound_after(done, every) if auto else number + done
        moments = keep == "moments"
        needed = peak_bytes(plan, chains, most, rows, tune=tune, warming=warming, moments=moments)
        if store is None and needed > _LARGE:
            _log.log(level, "Memory: about %s at the peak", describe(needed))
        if moments:
            recorder = MomentsRecorder(plan.layout, attrs, empty)
        elif store is None:
            refuse_too_large(most + warming, chains, plan.numbers_per_draw, needed)
            recorder = MemoryRecorder(
                plan.layout, attrs, empty, identity, plan.arguments, before, None if auto else number + done
            )
        else:
            template = plan.layout.tree(empty, attrs)
            if plan.equilibrates and tune:
                template[EQUILIBRATION] = xr.DataTree(report_of(None, chains))
            free = () if random_seed is not None else ("seed",)
            with processes.together():
                recorder = StoreRecorder.open(
                    store, template, identity, rows, min(chains, plan.file_chains), resume, free, processes
                )
            rows = recorder.rows
        with processes.together(), recorder:
            heartbeat.say("Compiling the method")
            run = recorder.run
            if run is None:
                rng = np.random.default_rng(recorder.seed if recorder.seed is not None else seed)
                first = starts(plan, initvals, chains, groups, rng)
                run = Run.start(plan, first, tune, rng)
                run.warming.prior = draws_of_prior(plan, rng) if tune else None
                recorder.begin(run)
            if auto:
                every = -(-every // rows) * rows if store is not None else every
                until: Until = UntilKnown(every, run.done, recorder.so_far, processes)
            else:
                until = Until(number + done)
                if run.done > until.bound:
                    raise ValueError(
                        f"draws={draws}: the store has {run.done} draws of each chain already; ask for more"
                    )
            if not plan.adjusted or run.tuning:
                run.warming.ensemble.prepare(plan.engine, run.tuned)
            if plan.adjusted:
                run.warming.ensemble.prepare(plan.adjusted_engine, run.tuned)
            heartbeat.stop()
            compiling = time.time() - began
            bar_of = {"show": show and processes.primary, "adjusted": plan.adjusted}
            with (
                stop_on_signals() as stopped,
                RunProgress(chains=chains, tune=longest, draws=until.bound, **bar_of) as bar,
            ):

                def update(run: Run, done: int, n_grad: np.ndarray, failed: np.ndarray) -> None:
                    step_size, K = run.tuned.step_size, run.tuned.K
                    bar.update(tuning=run.tuning, done=done, step_size=step_size, K=K, n_grad=n_grad, failed=failed)

                def announce_cost(gradients: float, seconds: float) -> None:
                    if processes.primary:
                        _log.log(level, until.announced(run.n_grad, run.tuned.steps_per_draw, gradients, seconds))

                driver = Driver(
                    plan, run, recorder, until=until, tune=tune, rows=rows, batch=plan.batch(chain_batch_size, chains),
                    processes=processes, keep_warmup=not discard_tuned_samples, callback=callback, update=update,
                    announce=announce_cost,
                )  # fmt: skip
                update(run, run.done, run.n_grad, run.unstable)
                finished = driver.go(stopped)
                if finished:
                    bar.end_at(run.done)
            so_far = recorder.so_far() if processes.primary else {}
            stats = so_far["sample_stats"].to_dataset() if "sample_stats" in so_far else None
            edges = edges_of(plan, run, stats) if compute_convergence_checks and finished else {}
            seconds = time.time() - began
            recorder.note(
                {
                    "created_at": created,
                    "sampling_time": seconds,
                    "compile_time": compiling,
                    **noncentring_of(plan, run, stats),
                    **noted(modes_of(run.warming.other_modes), edges),
                }
            )
    result = recorder.result()
    there = run.done if keep == "moments" else result["posterior"].sizes["draw"]
    if processes.primary:
        if not finished:
            lost = stopped.number == signal.SIGTERM and store is None
            kept = "in memory only: store= would keep them" if lost else "kept"
            _log.warning(
                "Sampling was stopped after %d of %d draws of each chain; they are %s", there, until.bound, kept
            )
        elif isinstance(until, UntilKnown):
            _log.log(*until.report(there, store is not None, level))
        _log.log(level, "Sampling %d chains took %.1f s, %.1f of them for compilation", chains, seconds, compiling)
    if stopped.number == signal.SIGTERM:
        sys.stdout.flush()
        signal.raise_signal(signal.SIGTERM)
    if compute_convergence_checks and there and processes.primary:
        _log_verdict(result)
    return result


def _log_verdict(result: xr.DataTree) -> None:
    try:
        _log.log(*last_words(result))
    except Exception:  # no error here may lose the draws
        _log.exception("No verdict on this run, for an error in it; the draws are kept")
