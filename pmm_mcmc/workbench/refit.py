"""``pmm.refit``: one model, many data, one compilation."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from pymc.exceptions import SamplingError

from pmm_mcmc.api import (
    DRAWS,
    FinishedRun,
    Request,
    coords_and_dims,
    devices,
    flat_names,
    fresh_seed,
    model_of,
    one_step,
)
from pmm_mcmc.workbench.fits import Fit, Fits
from pmm_mcmc.workbench.inputs import Inputs
from pmm_mcmc.workbench.loop import Record, records_of

__all__ = ["FIGURES", "Study", "refit"]

_log = logging.getLogger("pmm_mcmc")

# Figures of each parameter in a record, and what a record is without a fit.
FIGURES = ("mean", "sd", "ess", "r_hat")
# Draws of each chain that are kept.
_KEPT = 100


def refit(
    model: Any = None,
    data_sets: Sequence[Mapping[str, Any]] = (),
    *,
    step: Any = None,
    start: xr.DataTree | str | os.PathLike[str] | None = None,
    var_names: Sequence[str] | None = None,
    random_seed: Any = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
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
    inputs = Inputs.of(model_of(model))
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

    digest = hashlib.sha256(study.digest_of_start)
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

    def __init__(self, inputs: Inputs, step: Any, start: Any = None, **options: Any):
        self.inputs = inputs
        method = one_step(step, DRAWS)
        former = None if start is None else FinishedRun.of_start(start)
        request = Request(
            model=inputs.model, step=method, adjusted=method is None, start=former, backend="numba", **options
        )
        self._cores = request.cores or devices.cores()
        self._request = dataclasses.replace(request, cores=1)  # of each process
        self.seed = fresh_seed() if self._request.seed is None else self._request.seed
        self._level = logging.INFO if request.progressbar else logging.DEBUG
        self._fits = Fits(self._request, lambda line: _log.log(self._level, "%s", line))
        plan = self._fits.plan
        self._shapes = {n: v.shape[2:] for n, v in plan.values(np.empty((1, 0, plan.engine.d)))["posterior"].items()}

    @property
    def digest_of_start(self) -> bytes:
        """Bytes that tell the run from which fits start; none without one."""
        start = self._request.start
        return b"" if start is None else start.run.warming.ensemble.state.tobytes()

    @property
    def names(self) -> list[str]:
        """The variables of a fit."""
        return list(self._shapes)

    @property
    def labels(self) -> list[str]:
        """The labels of all parameters."""
        return flat_names(list(self._shapes.items()))

    def fitted(self, i: int, data: Mapping[str, Any], more: Callable[..., Record]) -> Record:
        """Return the record of a fit, with what ``more`` makes of it."""
        self.inputs.set(data)
        p = sum(int(np.prod(shape)) for shape in self._shapes.values())
        shape = self._request.chains, p
        try:
            fit = self._fits.fit([self.seed, i, 1])
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

    def records(self, task: Callable[[int], Record], count: int, more: dict[str, Any]) -> list[Record]:
        """Return the records of all fits, and log how many are not trusted."""
        identity = self._fits.plan.identity | {"seed": self.seed} | more  # its density is that of the model's own data
        request = self._request
        with self.inputs.restored():
            records = records_of(task, count, self._cores, identity, request.store, request.resume, request.progressbar)
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
        coords, dims_of = coords_and_dims(self.inputs.model)
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
