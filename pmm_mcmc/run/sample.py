"""``pmm.sample``: whole chains compiled, many at once, stored while they run, and resumed after any interruption."""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.diagnostics.noncentred import SITES, WORDS
from pmm_mcmc.diagnostics.verdict import last_words
from pmm_mcmc.engines.contract import model_side
from pmm_mcmc.engines.processes import speaks
from pmm_mcmc.model.heartbeat import Heartbeat
from pmm_mcmc.run import arguments
from pmm_mcmc.run.driver import Driver, FinishedChunk, Run, StopSampling, stop_on_signals
from pmm_mcmc.run.memory import available_bytes, describe
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.progress import RunProgress
from pmm_mcmc.run.recorders import Before, MemoryRecorder, MomentsRecorder, StoreRecorder, device_of
from pmm_mcmc.warmup.pooled import Warmed, warm_up

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FinishedChunk", "StopSampling", "Warmed", "sample", "warm_up"]

_log = logging.getLogger("pmm_mcmc")

_DRAWS = 1000  # of each chain by default, as of PyMC
# Bytes of the arrays of a chunk, in all its groups, and draws of it at most.
_CHUNK_BYTES, _MOST_ROWS = 2**27, 100
# Chains of a batch at most, on a CPU: their draws of a fraction of a second then fit the memory at any dimension.
_BATCH_BYTES = 2**27


def sample(
    step: Any = None,
    draws: int = _DRAWS,
    *,
    tune: int = 1000,
    chains: int = 4,
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
    callback: Callable[[FinishedChunk], None] | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    **others: Any,
) -> xr.DataTree:
    r"""Draw samples with whole chains compiled: many chains, on CPU threads or through JAX, stored and resumable.

    The chains learn their setting together in a warm-up of their own (:mod:`pmm_mcmc.warmup`), which ends as soon as
    the setting has been found and checked, and then draw.  Draws depend on the seed, the chain and the transition
    alone: not on lengths of chunks, batches of chains, devices or interruptions.

    Parameters
    ----------
    step
        The method with its arguments, such as ``pmm.PoissonULMC(K=16)``, made inside the model or outside any.
        Default ``PoissonULMC()``, the recycled scheme.
    draws
        Recorded draws of each chain; each takes ``steps_per_draw`` transitions.  May come first, as in ``pm.sample``.
    tune
        Most transitions of each chain's warm-up.
    chains
        Number of chains.
    model
        A PyMC model (default: that of the enclosing ``with``), or a :class:`pmm_mcmc.LogDensity`.
    random_seed
        A non-negative integer; a fresh one by default.  A list of integers, a NumPy ``SeedSequence`` or ``Generator``
        is asked for an integer below :math:`2^{62}`: a list gives the same one each time, a generator the next one.
    initvals
        Where chains start: as for ``pm.sample``; for a :class:`pmm_mcmc.LogDensity` an array ``(d,)`` or
        ``(chains, d)``.  By default uniformly within one unit of the model's initial point.
    more
        A result of this function, kept in memory: ``draws`` more of each of its chains are drawn and put behind those
        that are there, to the bytes of one long run.  Step, ``chains``, ``tune``, seed and the like are then its own,
        and need not be given again; a run in a store goes on with ``resume``.
    var_names
        Variables that the result holds; all, with deterministics, by default.
    cores
        Threads that run chains, on numba; all processors that this process may use by default.
    backend
        "numba": compiled loops on CPU threads, a chain each.  "jax": chains in lockstep, on whatever JAX runs on.
        "auto": JAX for a :class:`pmm_mcmc.LogDensity` or where it has an accelerator, else numba.
    device
        Where JAX runs: "cpu", "gpu", "tpu", or "auto": JAX's accelerator, or the CPU where there is none or gradients
        of the chains are clearly faster there, in a brief trial.  All local devices of the kind share the chains; so do
        all processes that ``jax.distributed`` has connected, which must call this function alike, with one ``store``.
    precision
        On JAX: "float64"; "mixed" evaluates the log density and its gradient in single precision and keeps all else in
        double; "float32".
    chain_batch_size
        Chains that advance together between two passes over the chains, which bounds the memory that they need.
        "auto": as many as a hundred megabytes hold.
    superchains
        Chains of a superchain start at one point, for :func:`pmm_mcmc.nested_r_hat`.  A number that divides
        ``chains``, or None for starts of their own.  "auto": up to 16 from 64 chains on, else None.
    store
        A path, or a URL that fsspec knows, of a zarr store to write to while the run goes on; it can be read at any
        time with :func:`pmm_mcmc.open`.  What is returned is then read from there when used.
    resume
        Go on with the run in ``store``, from its last chunk: the same bytes as if it had never been interrupted.  More
        ``draws`` than then prolong it.
    discard_tuned_samples
        False keeps the draws of the warm-up, in groups ``warmup_*``.
    log_likelihood
        Compute the group ``log_likelihood``.
    keep
        "draws", or "moments" where the draws would fit neither memory nor disk: means and standard deviations of each
        chain, in groups ``posterior_mean`` and ``posterior_sd``, and what :func:`pmm_mcmc.summary` needs for corrected
        means.  The memory then does not depend on ``draws``.
    callback
        Called with a :class:`FinishedChunk` after every chunk; may raise :class:`StopSampling`, which ends the run and
        keeps what is finished, as Ctrl-C and SIGTERM do.
    progressbar
        Show what is being done: a bar in a terminal or a notebook, a line every two seconds in a file.
    compute_convergence_checks
        Log the verdict (:func:`pmm_mcmc.verdict`).
    **others
        Arguments of ``pm.sample`` that have another name here or no meaning are refused, with what to use instead.

    Returns
    -------
    xarray.DataTree
        Groups, dims, coords, statistics and attributes of ``pm.sample``'s result with the same step; a group
        ``checkpoint``, small, to go on from (``more``), where draws are kept in memory.  Its ``sampling_time`` is in
        seconds and holds ``compile_time``.

    Raises
    ------
    ValueError
        For an argument or model that cannot work, with its name and the remedy.
    TypeError
        For an argument that there is not, with the one that was meant.
    SamplingError
        Where the log density or its gradient is not finite at the initial point.
    StoreError
        Where a store cannot be written, or is that of another run.

    Notes
    -----
    The first Ctrl-C ends the run within a second or a block of the warm-up and returns what is finished.  SIGTERM, by
    which batch systems announce the end, does the same and then acts as it would have without this function: by default
    the process ends, so that only what is in a ``store`` is kept; a handler of your own decides otherwise.

    Memory: the draws themselves if there is no ``store`` and they are not kept as moments; beside them at most 128 MiB
    for the chunk in hand, as much for the chains that advance at a time, and about :math:`20 d` numbers for each chain;
    on JAX some 100 MiB more for its buffers.  Draws that would not fit are refused before the run starts.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pmm.sample(pmm.PoissonULMC(K=16), draws=50, tune=200, chains=8, progressbar=False, random_seed=1)
    >>> dt["posterior"]["x"].shape
    (8, 50, 3)
    """
    arguments.refuse_unknown(others, sample)
    step, draws = arguments.step_and_draws(step, draws, _DRAWS)
    before = None
    if more is not None:
        for name, given in (("store", store), ("initvals", initvals), ("keep", None if keep == "draws" else keep)):
            if given is not None:
                raise ValueError(f"{name}={given!r}: does not go with more=, which goes on in memory; leave it out")
        before = Before.of(more)
        step = before.step() if step is None else step
        chains, tune, superchains, backend, device, precision, discard_tuned_samples, log_likelihood, var_names = (
            before.taken_up(
                sample, chains=chains, tune=tune, superchains=superchains, backend=backend, device=device,
                precision=precision, discard_tuned_samples=discard_tuned_samples, log_likelihood=log_likelihood,
                var_names=var_names,
            )
        )  # fmt: skip
    arguments.check_counts(draws=draws, chains=chains, tune=tune, cores=cores, chain_batch_size=chain_batch_size)
    if resume and store is None:
        raise ValueError("resume=True needs store=, the path of the run to go on with")
    seed = arguments.seed_of(random_seed)
    if keep not in ("draws", "moments"):
        raise ValueError(f"keep={keep!r}: must be 'draws' or 'moments'")
    for name, wanted in (("store", store is not None), ("log_likelihood", log_likelihood)):
        if keep == "moments" and wanted:
            raise ValueError(f"{name} goes with draws, of which keep='moments' keeps none: leave one of the two out")
    if keep == "moments" and not discard_tuned_samples:
        raise ValueError("discard_tuned_samples=False goes with draws, of which keep='moments' keeps none")
    groups = arguments.number_of_superchains(superchains, chains)
    if store is not None and resume and device == "auto" and backend != "numba":
        device = device_of(store)  # another trial might choose another one
    began, created = time.time(), datetime.datetime.now(datetime.UTC).isoformat()
    show = bool(progressbar) and (backend == "numba" or speaks())
    with Heartbeat(show) as heartbeat:

        def begins(words: str) -> None:
            _log.log(logging.INFO if show else logging.DEBUG, words)
            heartbeat.say("Compiling the log density")

        target = SamplingPlan.of(
            step, model, backend, device, precision, chains, log_likelihood, var_names, cores, begins, tune > 0
        )
        if target.engine.structure is not None:
            _log.log(logging.INFO if show else logging.DEBUG, target.engine.structure.words)
        if tune == 0:
            target.check_fixed()
        processes = target.processes(chains)
        processes.check(store, draws=int(draws), resume=bool(resume))
        if seed is None and before is not None:
            seed = before.identity["seed"]
        elif not isinstance(random_seed, int | np.integer):  # other processes would not find the same
            seed = processes.first(arguments.fresh_seed() if seed is None else seed)
        identity = target.identity | {
            "chains": chains, "tune": tune, "seed": seed, "superchains": groups,
            "discard_tuned_samples": discard_tuned_samples,
        }  # fmt: skip
        attrs = {"tuning_steps": tune, "random_seed": seed, **target.attributes}
        if groups is not None:
            attrs["superchains"] = groups
        empty = target.empty(chains)
        if not discard_tuned_samples:
            empty |= {f"warmup_{group}": arrays for group, arrays in target.empty(chains, tuning=True).items()}
        done = 0 if before is None else before.run.done
        draws, rows = draws + done, _rows(draws, chains, target.numbers_per_draw)
        sink: MemoryRecorder | MomentsRecorder | StoreRecorder
        if keep == "moments":
            sink = MomentsRecorder(target.layout, attrs, empty, target.engine.structure)
        elif store is None:
            _refuse_too_large(draws + (0 if discard_tuned_samples else tune), chains, target.numbers_per_draw)
            sink = MemoryRecorder(target.layout, attrs, empty, identity, target.settings, before)
        else:
            template = target.layout.tree(empty, attrs)
            free = () if random_seed is not None else ("seed",)
            with processes.together():
                sink = StoreRecorder.open(
                    store, template, identity, rows, min(chains, target.file_chains), resume, free, processes
                )
            rows = sink.rows
        with processes.together(), sink:
            heartbeat.say("Compiling the method")
            run = sink.run
            if run is None:
                rng = np.random.default_rng(sink.seed if sink.seed is not None else seed)
                starts = target.starts(initvals, chains, groups, rng)
                run = Run.start(target.engine, target.settings, starts, tune, rng)
                sink.begin(run)
            if run.done > draws:
                raise ValueError(f"draws={draws}: the store has {run.done} draws of each chain already; ask for more")
            run.warming.ensemble.prepare(target.engine, run.tuned)
            heartbeat.stop()
            compiling = time.time() - began
            with (
                stop_on_signals() as stopped,
                RunProgress(chains=chains, tune=tune, draws=draws, show=show and processes.primary) as bar,
            ):

                def update(run: Run, done: int, n_grad: np.ndarray, unstable: np.ndarray) -> None:
                    step_size, K = run.tuned.step_size, run.tuned.K
                    bar.update(tuning=run.tuning, done=done, step_size=step_size, K=K, n_grad=n_grad, unstable=unstable)

                driver = Driver(
                    target.engine, run, values=target.values, statistics=target.statistics, sink=sink, draws=draws,
                    rows=rows, batch=_batch(chain_batch_size, chains, target), processes=processes,
                    keep_warmup=not discard_tuned_samples, callback=callback, update=update,
                )  # fmt: skip
                update(run, run.done, run.n_grad, run.unstable)
                finished = driver.go(stopped)
            seconds = time.time() - began
            sink.note(
                {
                    "created_at": created,
                    "sampling_time": seconds,
                    "compile_time": compiling,
                    **_reparametrisation(driver),
                }
            )
    result = sink.result()
    there = run.done if keep == "moments" else result["posterior"].sizes["draw"]
    if processes.primary:
        if not finished:
            lost = stopped.number == signal.SIGTERM and store is None
            kept = "in memory only: store= would keep them" if lost else "kept"
            _log.warning("Sampling was stopped after %d of %d draws of each chain; they are %s", there, draws, kept)
        level = logging.INFO if show else logging.DEBUG
        _log.log(level, "Sampling %d chains took %.1f s, %.1f of them for compilation", chains, seconds, compiling)
    if stopped.number == signal.SIGTERM:
        sys.stdout.flush()
        signal.raise_signal(signal.SIGTERM)
    if compute_convergence_checks and there and processes.primary:
        _say(result)
    return result


def _rows(draws: int, chains: int, numbers_per_draw: int) -> int:
    """Draws of a chunk: a divisor of them all where there is one, so that a stored run can be prolonged."""
    most = int(np.clip(_CHUNK_BYTES // (8 * chains * numbers_per_draw), 1, min(_MOST_ROWS, draws)))
    divisor = max(n for n in range(1, most + 1) if draws % n == 0)
    return divisor if 4 * divisor >= most else most


def _batch(given: Any, chains: int, target: SamplingPlan) -> Callable[[int], int]:
    """Chains that advance at a time, by the number of draws: whole groups, and one for each device."""
    unit, each = target.group * target.devices, 8 * target.numbers_per_draw

    def batch(rows: int) -> int:
        if given == "auto":
            return min(chains, max(1, _BATCH_BYTES // (each * rows * unit)) * unit)
        return min(chains, -(-int(given) // target.group) * target.group)

    return batch


def _refuse_too_large(draws: int, chains: int, numbers_per_draw: int) -> None:
    needed, there = 8 * draws * chains * numbers_per_draw, available_bytes()
    if there is not None and needed > there:
        raise ValueError(
            f"{chains} chains of {draws} draws, {numbers_per_draw} numbers each, need {describe(needed)} of memory; "
            f"{describe(there)} are available: give store= to keep them on disk, take fewer chains or draws, or leave "
            "the gradients out (keep_gradients=False), which are half of it or more"
        )


def _reparametrisation(driver: Driver) -> dict[str, str]:
    """Attributes that say what is non-centred, and how far."""
    structure, sites = driver.engine.structure, driver.run.tuned.coordinates.sites
    if structure is None or sites is None:
        return {}
    x = driver.newest if len(driver.newest) else model_side(*_evaluated(driver.run))[0]
    degree = {name: values.tolist() for name, values in structure.degree(x, sites).items()}
    return {SITES: json.dumps({"sites": sites.tolist(), "degree": degree}), WORDS: structure.words}


def _evaluated(run: Run) -> tuple[np.ndarray, np.ndarray]:
    ensemble = run.warming.ensemble
    d = ensemble.state.shape[1] // 4
    return run.tuned.coordinates.place(ensemble.state[:, 3 * d : 4 * d]), ensemble.gradient


def _say(result: xr.DataTree) -> None:
    """Log the verdict."""
    try:
        _log.log(*last_words(result))
    except Exception:  # whatever it is, the draws are there
        _log.exception("No verdict on this run, for an error in it; the draws are kept")
