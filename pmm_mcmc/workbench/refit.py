"""``pmm.refit``: one model, many data, one compilation; fits on all processors, shown while they go on, and stored."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import dict_to_dataset
from pymc.exceptions import SamplingError
from rich.progress import BarColumn, Progress, TextColumn
from threadpoolctl import threadpool_limits

import pmm_mcmc.api as api
from pmm_mcmc.workbench.inputs import Inputs

# Draws of each chain after which a fit may end: where means are known to the verdict's limit, and chains agree.
_ENDS = (250, 500, 1000)


class Fit(NamedTuple):
    """A fit: draws by name ``(chain, draw, ...)``, convergence of all parameters ``(p,)``, gradients, verdict.

    ``start`` says what became of the setting it began with: "fits", "refined" or "dropped"; empty without one.
    """

    draws: dict[str, np.ndarray]
    convergence: api.Convergence
    gradients: int
    verdict: api.Verdict
    start: str


class _Draws(api.StoppingRule):
    """Recorder of the draws of a fit, which ends where chains agree, and all means are known to the verdict's limit."""

    rows = _ENDS[0]

    def __init__(self, chains: int):
        super().__init__(_ENDS)
        self._gathered = api.Gathered(chains, _ENDS[-1])
        self.convergence = api.Convergence(*[np.empty(0)] * 3)

    def put(self, groups: api.Groups, complete: bool = True) -> None:
        """Record a chunk, but none of a warm-up."""
        if "posterior" in groups:
            self._gathered.append(groups)

    def note(self, attributes: dict[str, Any]) -> None:
        """Attributes are not kept."""

    @property
    def groups(self) -> api.Groups:
        """The draws so far, by group and name."""
        return self._gathered.upto(self._gathered.done)

    def suffices(self) -> bool:
        """Return whether the draws so far have converged."""
        self.convergence = api.convergence(table(self.groups["posterior"]))
        unknown = self.convergence.ess_bulk < api.THRESHOLDS.mcse**-2.0
        return not (unknown | (self.convergence.r_hat > api.THRESHOLDS.r_hat)).any()


# A console of a run that says nothing.
_SILENT: Any = SimpleNamespace(log=lambda *_: None, update=lambda *_: None)

type StorePath = str | os.PathLike[str]
Record = dict[str, Any]
# Records in a file of a store, and seconds between lines of progress where none can be drawn over.
_FILE = 10
_FILE_NAME = "records-{:08d}"
_SECONDS = 5.0


@contextmanager
def _opened(
    path: StorePath | None, resume: bool, identity: dict[str, Any]
) -> Iterator[tuple[api.Folder | None, list[Record]]]:
    """Open a store; yield it with its records."""
    if path is None:
        yield None, []
        return
    folder = api.Folder(path)
    with folder.opened_for_writing():
        stored = folder.get("identity")
        if stored is not None and not resume:
            raise api.StoreError(f"store={os.fspath(path)!r}: has records; use resume=True, or another path")
        if stored is None:
            folder.put("identity", api.encode(identity))
        elif texts := api.differences(api.decode(stored), identity):
            raise api.StoreError(
                f"store={os.fspath(path)!r}: another run's ({texts}); give its arguments, or another path"
            )
        records: list[Record] = []
        while (data := folder.get(_FILE_NAME.format(len(records) + _FILE))) is not None:
            records += api.decode(data)
        yield folder, records
        folder.release()


def _mapped(
    task: Callable[[int], Record], numbers: Sequence[int], cores: int, stopped: api.StopRequest
) -> Iterator[Record]:
    """Yield the records of tasks in their order."""
    if min(cores, len(numbers)) < 2 or not sys.platform.startswith("linux"):
        yield from map(task, numbers)
        return
    # Processes that are forked have what is compiled.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(cores, len(numbers)), context, _begin, (task,))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of this process do not hold what the others need
            futures = [pool.submit(_in_process, number) for number in numbers]
        while futures:
            yield futures.pop(0).result()
    except BrokenProcessPool as error:
        if not stopped():  # a signal to all processes ends the others at once
            raise RuntimeError(
                "a process ended while it sampled, perhaps for want of memory; give fewer cores="
            ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_TASK: list[Callable[[int], Record]] = []


def _begin(task: Callable[[int], Record]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _TASK[:] = [task]


def _in_process(number: int) -> Record:
    return _TASK[0](number)


@contextmanager
def _bar(count: int, stored: int, show: bool) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Show progress: a bar, or a line every few seconds; yield the function that updates it."""
    if not show:
        yield lambda records: None
        return
    screen = api.console()
    began = last = perf_counter()
    drawn = screen.is_interactive or screen.is_jupyter
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None)
    bar = Progress(*columns, console=screen, refresh_per_second=api.DRAWINGS, expand=True, disable=not drawn)
    shown = bar.add_task(f"0 of {count} fits", total=count, completed=stored)

    def update(records: Sequence[Record]) -> None:
        nonlocal last
        done = len(records)
        now = perf_counter()
        left = (count - done) * (now - began) / max(done - stored, 1)
        untrusted = sum(record["state"] != "trusted" for record in records)
        line = f"{done} of {count} fits, {untrusted} not trusted, {api.clock(now - began)}, {api.clock(left)} left"
        bar.update(shown, completed=done, description=line)
        if not drawn and (now - last > _SECONDS or done == count):
            api.write(screen, line, last=done == count)
            last = now

    with bar:
        yield update


_log = logging.getLogger("pmm_mcmc")

# Figures of each parameter in a record, and what a record is without a fit.
FIGURES = ("mean", "sd", "ess", "r_hat")
# Draws of each chain that are kept.
_KEPT = 100


def refit(
    model: pm.Model | None = None,
    data_sets: Sequence[Mapping[str, Any]] = (),
    *,
    step: api.Step | None = None,
    start: xr.DataTree | StorePath | None = None,
    var_names: Sequence[str] | None = None,
    random_seed: api.Seed | None = None,
    cores: int | None = None,
    store: StorePath | None = None,
    resume: bool = False,
    progressbar: bool = True,
) -> xr.DataTree:
    """Sample a model for each of many data sets, with one compilation: to cross-validate, to bootstrap, to forecast.

    Each fit has four chains, with a warm-up of their own or from ``start``, and draws until means are known to 0.05
    posterior standard deviations and chains agree: 250, 500 or at most 1000 of each chain.

    Parameters
    ----------
    model
        A PyMC model (default: that of the enclosing ``with``).  It keeps its own data.
    data_sets
        For each fit a dict of arrays by the name of a ``pm.Data``, or of an observed variable whose data are constants.
        What a dict leaves out stays as it is.  Values of ``pm.Data`` may have other lengths.
    step, start, var_names
        As for :func:`pmm_mcmc.sample`.  From ``start``, such as the fit of all data, each fit takes fewer gradients.
    random_seed
        As for :func:`pmm_mcmc.sample`.  A fit depends on it and on its place in the list alone.
    cores
        Number of processes; by default one for each processor that this process may use.  Linux alone has several.
    store, resume
        Path of a folder where fits are kept while others go on, and whether to go on with those in it.
    progressbar
        Show progress, with the time left.

    Returns
    -------
    xarray.DataTree
        Groups ``mean``, ``sd``, ``ess`` and ``r_hat``, ``(data_set, *event)``; ``posterior``, ``(data_set, chain,
        draw, *event)``, with 100 draws of each chain; ``fits``, ``(data_set,)``, with the ``state`` of the verdict, the
        ``reason`` for it, the ``gradients`` of a chain, and whether the setting of ``start`` "fits", was "refined" or
        "dropped".  Jumps, necks and other modes are not looked for.  A fit that failed has the state "failed", and NaN.

    Raises
    ------
    ValueError
        If the model has no data or discrete variables, or a data set does not fit it.
    StoreError
        If a store belongs to another run.

    Notes
    -----
    The first Ctrl-C or SIGTERM ends the loop, which returns the fits that are finished.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=[1.0, 2.0, 4.0])
    >>> sets = [{"y": [1.0, 2.0, 4.0]}, {"y": [2.0, 2.0, 4.0]}]
    >>> pmm.refit(model, sets, random_seed=1, cores=1, progressbar=False)["mean"]["mu"].sizes["data_set"]
    2
    """
    inputs = Inputs.of(api.model_of(model))
    kind = type(data_sets).__name__
    data_sets = [] if isinstance(data_sets, Mapping) else list(data_sets)
    if not data_sets:
        raise ValueError(f"data_sets=<{kind}>: must be a list of dicts, one for each fit")
    for i, data in enumerate(data_sets):
        inputs.check(data, f"data_sets[{i}]")
    study = Study(
        inputs, step, start, var_names=var_names, random_seed=random_seed, cores=cores, store=store, resume=resume,
        progressbar=progressbar,
    )  # fmt: skip

    def task(i: int) -> Record:
        return study.fitted(i, data_sets[i], kept)

    digest = study.digest()
    for data in data_sets:
        for name in sorted(data):
            digest.update(name.encode() + np.ascontiguousarray(data[name]).tobytes())
    records = study.records(task, len(data_sets), {"data": digest.hexdigest()})
    groups: dict[str, Any] = {name: study.dataset([r[name] for r in records], "data_set") for name in FIGURES}
    groups["posterior"] = study.dataset([r["draws"] for r in records], "data_set", "chain", "draw")
    return xr.DataTree.from_dict(groups | {"fits": study.fits_of(records, "data_set")})


def kept(fit: Fit | None, shape: tuple[int, int]) -> Record:
    """Return the draws of a fit that are kept, evenly spaced."""
    if fit is None:
        return {"draws": np.full((shape[0], _KEPT, shape[1]), np.nan)}
    values = table(fit.draws)
    return {"draws": values[:, np.linspace(0, values.shape[1] - 1, _KEPT).astype(int)]}


def table(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return values ``(chain, draw, ...)`` by name as one array ``(chain, draw, p)``."""
    return np.concatenate([v.reshape(*v.shape[:2], -1) for v in values.values()], axis=2).astype(float)


class Study:
    """Fits of one model in a loop: what :func:`refit` and :func:`pmm_mcmc.sbc` share."""

    def __init__(
        self, inputs: Inputs, step: api.Step | None, start: xr.DataTree | StorePath | None = None, **options: Any
    ):
        self.inputs = inputs
        former = None if start is None else api.FinishedRun.of_start(start)
        request = api.Request(
            model=inputs.model, step=step, start=former, backend="numba", replaces_data=True, **options
        )  # fmt: skip
        if request.arguments.integrated:
            raise ValueError(
                f"step: {', '.join(request.arguments.integrated)} cannot be integrated out of data that each fit has "
                "anew; leave reparametrise out"
            )
        self._cores = request.cores or api.cores()
        self._request = dataclasses.replace(request, cores=1)  # of each process
        self.seed = api.fresh_seed() if self._request.seed is None else self._request.seed
        level = logging.INFO if request.progressbar else logging.DEBUG
        # Plan and initial point serve all fits.  A warm-up is each fit's own, or that from the start: the setting of
        # another fit, kept unchecked, took two to thirty times the gradients where scales differ between data.
        self._plan = plan = api.SamplingPlan.of(self._request, lambda line: _log.log(level, "%s", line))
        self._centre = api.model_starts(plan.model, plan.model.value_vars, None, 1)[0][0]
        self._shapes = {n: v.shape[2:] for n, v in plan.values(np.empty((1, 0, plan.engine.d)))["posterior"].items()}

    def digest(self) -> Any:
        """Return a hash that tells the run from which fits start, for data to be added."""
        start = self._request.start
        return hashlib.sha256(b"" if start is None else start.run.warming.ensemble.state.tobytes())

    @property
    def names(self) -> list[str]:
        """The variables of a fit."""
        return list(self._shapes)

    @property
    def labels(self) -> list[str]:
        """The labels of all parameters."""
        return api.flat_names(list(self._shapes.items()))

    def fitted(self, i: int, data: Mapping[str, Any], more: Callable[..., Record]) -> Record:
        """Return the record of a fit, with what ``more`` makes of it."""
        self.inputs.set(data)
        p = sum(int(np.prod(shape)) for shape in self._shapes.values())
        shape = self._request.chains, p
        try:
            fit = self._fit([self.seed, i, 1])
        except (SamplingError, ValueError) as error:
            nothing = dict.fromkeys(FIGURES, np.full(p, np.nan))
            return nothing | {"state": "failed", "reason": str(error), "gradients": 0, "start": ""} | more(None, shape)
        values = table(fit.draws)
        reason = "" if fit.verdict.trusted else str(fit.verdict.reasons[0])
        return {
            "mean": values.mean(axis=(0, 1)), "sd": values.std(axis=(0, 1)), "ess": fit.convergence.ess_bulk,
            "r_hat": fit.convergence.r_hat, "state": fit.verdict.state, "reason": reason, "gradients": fit.gradients,
            "start": fit.start,
        } | more(fit, shape)  # fmt: skip

    def _fit(self, seed: list[int]) -> Fit:
        """Sample the model with its present data, by random numbers that depend on the seed alone."""
        plan = self._plan
        request = self._request
        rng = np.random.default_rng(seed)
        positions = api.spread_starts(
            self._centre, request.chains, None, lambda x: api.density_at(plan.engine, x)[1], rng
        )
        if positions is None:  # says why there is none
            positions = api.starts(plan.engine, plan.model, None, None, request.chains, None, rng)
        run = plan.approach.begun(positions, request.start, request.superchains, rng)
        draws = _Draws(request.chains)
        api.Sampling(plan, run, draws, draws, _SILENT).go(api.StopRequest())
        tree = plan.layout.tree(draws.groups, plan.attributes | run.attributes(plan.setting))
        for name, report in run.reports().items():
            tree[name] = report
        outcome = "" if run.warm_start is None else run.warm_start.outcome
        return Fit(
            draws.groups["posterior"], draws.convergence, int(run.n_grad.mean()), api.judge(api.read(tree)), outcome
        )

    def records(self, task: Callable[[int], Record], count: int, more: dict[str, Any]) -> list[Record]:
        """Return the records of tasks 0 to ``count - 1``, or of the first of them if a signal ends the loop.

        A record depends on the number of its task alone.  ``more`` are entries that a stored loop must have to be
        resumed.  How many fits are not trusted is logged.
        """
        identity = self._plan.identity | {"seed": self.seed} | more  # its density is that of the model's own data
        request = self._request
        stopped = api.StopRequest()
        opened = _opened(request.store, request.resume, identity)
        with self.inputs.restored(), opened as (folder, records), threadpool_limits(1):
            del records[count:]
            with _bar(count, len(records), request.progressbar) as update, api.stop_on_signals(stopped):
                for record in _mapped(task, range(len(records), count), self._cores, stopped):
                    records.append(record)
                    update(records)
                    if folder is not None and len(records) % _FILE == 0:
                        folder.put(_FILE_NAME.format(len(records)), api.encode(records[-_FILE:]))
                    if stopped():
                        break
        stopped.raise_again()
        if len(records) < count:
            _log.warning("Stopped after %d of %d fits, which are returned", len(records), count)
        untrusted = [i for i, record in enumerate(records) if record["state"] != "trusted"]
        for i in untrusted[:3]:
            _log.warning("Fit %d is %s: %s", i, records[i]["state"], records[i]["reason"])
        if len(untrusted) > 3:
            _log.warning(
                "%d of %d fits are not trusted; the group of fits has the reason of each", len(untrusted), count
            )
        return records

    def dataset(self, rows: Sequence[np.ndarray] | np.ndarray, *dims: str) -> xr.Dataset:
        """Return arrays ``(*dims, p)``, the first of which are rows, by variable."""
        array = np.asarray(rows)
        coords, dims_of = api.coords_and_dims(self.inputs.model)
        values = {}
        start = 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            values[name] = array[..., start : start + size].reshape(*array.shape[:-1], *shape)
            start += size
        options: Any = {"coords": coords, "dims": dims_of, "sample_dims": list(dims)}
        return dict_to_dataset(values, **options, check_conventions=False).drop_attrs()

    def fits_of(self, records: Sequence[Record], dim: str) -> xr.Dataset:
        """Return the state of each fit."""
        names = ("state", "reason", "gradients", *["start"] * (self._request.start is not None))
        columns = {name: (dim, np.array([r[name] for r in records])) for name in names}
        return xr.Dataset(columns, {dim: np.arange(len(records))})
