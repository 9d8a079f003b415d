"""``pmm.sample``: many chains in compiled loops, stored while they run, resumed after any interruption."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal, cast

import numpy as np
import xarray as xr
from threadpoolctl import ThreadpoolController

from pmm_mcmc.engines.contract import density_at
from pmm_mcmc.engines.processes import is_primary_process
from pmm_mcmc.model.checks import check_direction, model_of
from pmm_mcmc.run.beginning import TRIAL, FinishedRun, Initvals, Run, starts
from pmm_mcmc.run.console import Console, RunProgress, interrupted
from pmm_mcmc.run.driver import FinishedChunk, StopRequest, stop_on_signals
from pmm_mcmc.run.findings import attributes_of
from pmm_mcmc.run.phases import Sampling
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.recorders import recorder_of
from pmm_mcmc.run.request import CHAINS, Jax, Model, Request, Seed, Step, check_count, fresh_seed, refuse_unknown
from pmm_mcmc.run.stopping import AUTO, DRAWS, VerdictRule, stopping_rule
from pmm_mcmc.steps.methods import BY_NAME

# What a run that goes on was asked for.
_INHERITED = (
    "chains", "tune", "backend", "device", "precision", "discard_tuned_samples", "var_names", "adjusted", "seed",
)  # fmt: skip


def sample(
    draws: int | Literal["auto"] = DRAWS,
    *,
    step: Step | None = None,
    reparametrise: str | bool | Mapping[str, str] = "auto",
    tune: int = 1000,
    chains: int | None = None,
    model: Model | None = None,
    random_seed: Seed | None = None,
    initvals: Initvals | None = None,
    start: xr.DataTree | str | os.PathLike[str] | None = None,
    var_names: Sequence[str] | None = None,
    cores: int | None = None,
    backend: str | Jax = "auto",
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    discard_tuned_samples: bool = True,
    adjusted: bool | None = None,
    callback: Callable[[FinishedChunk], None] | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    blocking: bool = True,
    **others: object,
) -> xr.DataTree:
    r"""Draw samples with compiled loops: many chains, on CPU threads or on JAX, stored and resumable.

    All chains share one warm-up, which ends as soon as its tuned parameters have been found
    and checked.  Draws depend only on the seed, the chain and the transition: not on lengths of chunks, batches of
    chains, devices or interruptions.

    Parameters
    ----------
    draws
        Number of recorded draws of each chain, of ``steps_per_draw`` transitions each.  "auto": until the verdict asks
        for no more draws, at most 1000 (see Notes); with ``resume``, at most the next multiple of 1000.
    step
        The method with its arguments, such as ``pmm.PoissonULMC(K=16)``, created inside the model or outside any; the
        draws are then its own, unless ``adjusted`` is True.  Default: warm-up by ``PoissonULMC()``, adjusted draws.
    reparametrise
        Without ``step``, which has its own: how variables are sampled, their draws are in the model's own terms all the
        same.  "auto": children of a hierarchy are non-centred to the degree that warm-up learns; False: as written.  A
        dict decides for the named variables: "centred", "noncentred", or **"integrated"**: normal variables that are
        Gaussian given the rest, as effects and coefficients in the mean of a normal likelihood, are integrated out of
        it, together, and drawn back exactly, an independent draw for each of the rest.
    tune
        Largest number of transitions of each chain in warm-up, and in equilibration.
    chains
        Number of chains, 4 by default.  From 64 on they start in up to 16 groups, superchains, of one initial point
        each, which ``arviz.rhat_nested`` compares.
    model
        A PyMC model (default: that of the enclosing ``with``), or a :class:`pmm_mcmc.LogDensity`.
    random_seed
        A non-negative integer; a fresh one by default.  From a list of integers, a NumPy ``SeedSequence`` or a
        ``Generator``, which gives another one each time, an integer below :math:`2^{62}` is drawn.
    initvals
        Initial points of the chains: values by name, as for ``pm.sample``, or a list of them, one per chain; for any
        :class:`pmm_mcmc.LogDensity` also an array ``(d,)`` or ``(chains, d)`` of unconstrained coordinates.  By default
        uniform within 1 of a PyMC model's own point, or within 2 of the origin, nearer or further where there is no
        density.
    start
        A former result for the same variables and step, with other data or priors, or the path of its store.  Its
        setting is checked on one block of the new posterior, and kept, refined, or dropped for a cold start.
    var_names
        Variables in the result; by default all, with deterministics.
    cores
        Number of threads that run chains on numba; by default all processors that this process may use.
    backend
        "numba": compiled loops on CPU threads, one chain each.  "tape": the same without compiling the model, for first
        draws within seconds; a gradient is the same to rounding and takes half again the time (median of 16 models; 6
        times for a tiny one), and numba runs a model that has an operation which no tape runs.  "jax", or a
        :class:`Jax` with device and precision: chains in lockstep on JAX's default device.  "auto": for a PyMC model
        the tape, and numba from the transition on at which the tape has cost as much as two compilations, by its
        instructions and the number of chains alone; with ``step`` numba from the start, as for a C function; JAX for a
        JAX function.
    store
        Path of a zarr store that is written during the run and can be read at any time with :func:`pmm_mcmc.open`: a
        folder on a disk, which can be copied elsewhere meanwhile.  The returned result reads from it when it is used.
        Needs the extra ``pmm-mcmc[store]``.
    resume
        Continue the run in ``store`` from its last chunk, with the same bytes as without an interruption.  A larger
        ``draws`` than before extends it.
    discard_tuned_samples
        False keeps the draws of the warm-up, in groups ``warmup_*``.
    adjusted
        True (default, unless ``step`` is given): the stationary law of the draws is the posterior itself.  Warm-up is
        followed by an equilibration of at most ``tune`` transitions, and equilibration and draws are made by
        :class:`GHMC`, with the preconditioner and the non-centring that warm-up fitted; the group ``equilibration`` of
        the result has its setting.  False: the draws of ``step`` itself, which have the small bias of its
        discretisation.  With ``tune=0`` the chains are those of :class:`GHMC` from the start; in single precision there
        are unadjusted draws only.
    callback
        Called with a ``FinishedChunk`` after every chunk; may raise :class:`StopSampling`, which ends the run and
        keeps the finished draws.
    progressbar
        Show progress: a bar in a terminal or a notebook, a line every few seconds in a file.
    compute_convergence_checks
        Log the verdict (:func:`pmm_mcmc.verdict`).  For this, after the draws, other modes are searched for with about
        1,500 gradients, exchangeable labels by some values of the density, and jumps of the log density and necks
        beyond the draws with 800 gradients and, where the posterior narrows, some :math:`40 (d + 40)` more; they are in
        no statistic.
    blocking
        False returns at once, while the run goes on in a thread: an object with ``progress``, the ``posterior`` so far,
        ``stop()`` and ``wait()``, of which the last two return the result.
    **others
        Arguments of ``pm.sample`` with another name here, or with no meaning, are refused with what to use instead.

    Returns
    -------
    xarray.DataTree or Background
        The result, with the groups, dims, coords and attributes of ``pm.sample``'s result for the same step, and its
        statistics but for those that are the same for all draws, which are attributes.  If draws are kept in memory, it
        has a small group ``checkpoint`` for :func:`pmm_mcmc.extend`.  Its ``sampling_time`` is in seconds and includes
        ``compile_time``.

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
    ImportError
        If ``store`` is given, and its extra is not installed.

    Notes
    -----
    The first Ctrl-C ends the run within a second, or at the end of a block of warm-up, and returns the finished draws.
    SIGTERM, which batch systems send before the end, does the same and then has its usual effect: by default the
    process ends, so that only draws in a ``store`` are kept, unless you install another handler.

    ``draws="auto"`` looks at the draws a few times, with four chains first at 100 of each.  The run ends where
    :func:`pmm_mcmc.verdict` has no reason left whose remedy is "draw more"; any other reason is left to the verdict at
    the end.  A line says why it ended, at the limit with the parameter that is not known yet.  The draws are those of a
    run of as many by number.

    ``start`` costs 8 gradients of each chain at former draws, from which chains begin, in the ratio of the densities
    where that is stable (Pareto :math:`k < 0.7`), and to which the preconditioner is refitted; and one block of up to
    16 transitions.  A line and the attribute ``start`` say "fits", "refined" (warm-up goes on from it) or "dropped".

    With the first draws, a line says what all of them will cost: gradients of each chain, and the time at their rate.

    Memory: the draws themselves, unless they go to a ``store``, about :math:`20 d` numbers for
    each chain, and some 256 MiB.  A predicted peak above 1 GiB is said, and a run that would not fit is refused before
    it starts.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pmm.sample(50, step=pmm.PoissonULMC(K=16), tune=200, chains=8, progressbar=False, random_seed=1)
    >>> dt["posterior"]["x"].shape
    (8, 50, 3)
    """
    refuse_unknown(others, sample)
    request = Request(
        draws=draws,
        step=step,
        reparametrise=reparametrise,
        tune=tune,
        chains=CHAINS if chains is None else chains,
        model=model,
        random_seed=random_seed,
        initvals=initvals,
        start=None if start is None else FinishedRun.of_start(start),
        var_names=var_names,
        cores=cores,
        backend=backend,
        store=store,
        resume=resume,
        discard_tuned_samples=discard_tuned_samples,
        adjusted=adjusted,
        callback=callback,
        progressbar=progressbar,
        compute_convergence_checks=compute_convergence_checks,
    )
    if not isinstance(blocking, bool):
        raise ValueError(f"blocking={blocking!r}: must be True or False")
    if blocking:
        return _run(request, StopRequest())
    return cast(xr.DataTree, Background(request))  # so that other calls have the type of their result


def extend(
    dt: xr.DataTree,
    draws: int | Literal["auto"] = DRAWS,
    *,
    model: Model | None = None,
    cores: int | None = None,
    callback: Callable[[FinishedChunk], None] | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    **others: object,
) -> xr.DataTree:
    """Add draws to a result in memory, with the bytes of one long run.

    Step, chains, seed and the like are those of the result.  A run in a store goes on with ``resume``, of
    :func:`pmm_mcmc.sample`.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` in memory, or of this function.
    draws
        Number of further draws of each chain.  "auto": until the verdict asks for no more draws, at most to the next
        multiple of 1000.
    model
        The model of the result (default: that of the enclosing ``with``).
    cores, callback, progressbar, compute_convergence_checks
        As for :func:`pmm_mcmc.sample`.
    **others
        Are refused with what to use instead.

    Returns
    -------
    xarray.DataTree
        The result with its earlier and its new draws.

    Raises
    ------
    ValueError
        If ``dt`` cannot go on, or is the result of another model.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     dt = pmm.sample(draws=20, tune=100, progressbar=False, random_seed=1)
    >>> pmm.extend(dt, 30, model=model, progressbar=False)["posterior"].sizes["draw"]
    50
    """
    refuse_unknown(others, extend)
    finished = FinishedRun.in_memory(dt)
    arguments = finished.arguments
    assert arguments is not None
    if draws != AUTO:
        check_count("draws", draws, 1, ", or 'auto'")
        draws = finished.run.done + int(draws)
    request = Request(
        draws=draws,
        step=BY_NAME[arguments.method].of_arguments(arguments, finished.identity["keep_gradients"]),
        model=model,
        finished_run=finished,
        cores=cores,
        callback=callback,
        progressbar=progressbar,
        compute_convergence_checks=compute_convergence_checks,
        **{name: finished.identity[name] for name in _INHERITED},
    )
    return _run(request, StopRequest())


def _run(request: Request, stopped: StopRequest) -> xr.DataTree:
    """Run what is requested and return its result; chains that run side by side have a thread of BLAS each."""
    with _libraries().limit(limits=1 if request.chains > 1 else None, user_api="blas"):
        return _sampled(request, stopped)


@functools.cache
def _libraries() -> ThreadpoolController:
    """Return the libraries with threads, which take milliseconds to find."""
    return ThreadpoolController()


def _sampled(request: Request, stopped: StopRequest) -> xr.DataTree:
    """Return the result of what is requested, of a ``finished`` run or of one that was stopped."""
    speaks = request.backend != "jax" or is_primary_process()
    begins = "Reading the log density" if request.backend in ("auto", "tape") else "Compiling the log density"
    with Console(bool(request.progressbar) and speaks, begins) as console:
        plan = SamplingPlan.of(request, console.announce)
        structure = plan.engine.structure
        if not structure.is_identity:
            console.log("%s", structure.words)
        processes = plan.processes
        processes.check(request.store, draws=request.draws, resume=request.resume)
        seed = fresh_seed() if request.seed is None else request.seed
        if not isinstance(request.random_seed, int | np.integer):
            seed = processes.first(seed)  # each would draw another one
        with processes.failing_together(), recorder_of(plan, seed, console.log) as recorder:
            console.prepares()
            if recorder.run is None:
                recorder.begin(_begin(plan, recorder.seed, console))
            run = recorder.run
            if not run.tuning:
                recorder.note(run.attributes(plan.setting))
            rule = stopping_rule(request.draws, request.chains, run.done, recorder, processes)
            sampling = Sampling(plan, run, recorder, rule, console)
            sampling.prepare()
            console.prepared()
            bar = RunProgress(
                chains=request.chains, tune=plan.longest_warmup, draws=rule.limit, adjusted=plan.request.adjusted,
                show=console.show and processes.primary,
            )  # fmt: skip
            console.update = bar.update
            with stop_on_signals(stopped), bar:
                console.update(run.tuning, run.tuned, run.done, run.n_grad, run.unstable)
                finished = sampling.go(stopped)
                if finished:
                    bar.draws = run.done
            console.checks()
            search = request.compute_convergence_checks and finished
            read = processes.primary and (search or not structure.is_identity)
            attributes = attributes_of(plan, run, recorder.positions() if read else None, search)
            recorder.note(console.times() | attributes)
    result = recorder.result()
    done = result["posterior"].sizes["draw"]
    if processes.primary:
        if not finished:
            place = f"after {done} of {rule.limit} draws of each chain"
            interrupted(stopped, request.store is not None, "go on with pmm.extend(dt, model=model)", done, place)
        elif isinstance(rule, VerdictRule):
            rule.report(done, request.store is not None, console.level)
        console.log(
            "Sampling %d chains took %.1f s, %.1f of them for preparation%s",
            request.chains, console.sampling_time, console.compile_time,
            getattr(plan.engine, "loaded_programs", str)(),
        )  # fmt: skip
    stopped.raise_again()
    if done and processes.primary and request.compute_convergence_checks:
        console.verdict(result)
    return result


def _begin(plan: SamplingPlan, seed: int, console: Console) -> Run:
    """Return a run whose chains are at their starts."""
    rng = np.random.default_rng(seed)
    request = plan.request
    positions = starts(
        plan.engine, plan.model, plan.density, request.initvals, request.chains, request.superchains, rng
    )
    if plan.model is not None:
        check_direction(plan.model, positions[0], lambda x: density_at(plan.engine, x))
    run = plan.approach.begun(positions, request.start, request.superchains, rng)
    if run.warm_start is not None and run.phase != TRIAL:
        console.log("%s", run.warm_start.words(float(run.n_grad.mean())))
    return run


_log = logging.getLogger("pmm_mcmc")


class Background:
    """A run that goes on while other code does.  It ends with the process.

    Parameters
    ----------
    request
        The checked arguments.

    Attributes
    ----------
    progress
        Where the run is, in words.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x")
    ...     run = pmm.sample(200, random_seed=1, progressbar=False, blocking=False)
    >>> run.wait()["posterior"].sizes["draw"]
    200
    >>> run
    <pmm.sample in the background: finished, 200 draws of each chain>
    """

    def __init__(self, request: Request):
        self._chunks: list[dict[str, np.ndarray]] = []
        self.progress = "compiling"
        self._result: Future[xr.DataTree] = Future()
        self._stopped = StopRequest()
        self._callback = request.callback
        # The context of a with statement is that of its thread.
        model = request.model or request.step.own_model or model_of(None)
        watched = request.watched(model, self._see)
        threading.Thread(target=self._go, args=(watched,), name="pmm.sample", daemon=True).start()

    def __repr__(self) -> str:
        return f"<pmm.sample in the background: {self.progress}>"

    @property
    def finished(self) -> bool:
        """Whether the run has ended: with all its draws, stopped, or by an error."""
        return self._result.done()

    @property
    def posterior(self) -> xr.Dataset:
        """The draws so far, without those of the warm-up; before the end dims have no names of the model."""
        if self.finished and self._result.exception() is None:
            return self._result.result()["posterior"].to_dataset()
        chunks = list(self._chunks)
        arrays = {name: np.concatenate([chunk[name] for chunk in chunks], axis=1) for name in (chunks or [{}])[0]}
        dims = {name: [f"{name}_dim_{i}" for i in range(array.ndim - 2)] for name, array in arrays.items()}
        return xr.Dataset({name: (["chain", "draw", *dims[name]], array) for name, array in arrays.items()})

    def wait(self, timeout: float | None = None) -> xr.DataTree:
        """Return the result once the run has ended.

        Parameters
        ----------
        timeout
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            If it goes on still; it is not stopped.
        Exception
            The error that ended the run.
        """
        try:
            return self._result.result(timeout)
        except TimeoutError:
            if self.finished:
                raise  # the run's own
            raise TimeoutError(
                f"timeout={timeout}: the run goes on ({self.progress}); wait again, or stop it by stop()"
            ) from None

    def stop(self) -> xr.DataTree:
        """End the run and return the result with the draws so far."""
        self._stopped.number = int(signal.SIGINT)
        return self.wait()

    def _go(self, request: Request) -> None:
        try:
            result = _run(request, self._stopped)
            self.progress = f"finished, {result['posterior'].sizes['draw']} draws of each chain"
            self._result.set_result(result)
            self._chunks = []
        except BaseException as error:
            self.progress = f"failed, {type(error).__name__}"
            _log.error("The run in the background failed: %s; its wait() raises the error", error)
            self._result.set_exception(error)

    def _see(self, chunk: FinishedChunk) -> None:
        if chunk.tuning:
            self.progress = f"warm-up, {chunk.done} transitions"
        else:
            self.progress = f"{chunk.done} draws of each chain"
            self._chunks.append(chunk.posterior)
        if self._callback is not None:
            self._callback(chunk)
