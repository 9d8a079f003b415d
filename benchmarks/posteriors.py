"""What a run is compared by with what is known of its posterior: moments with their errors, and what it says itself."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from scipy.stats import norm

import pmm_mcmc as pmm
from pmm_mcmc.model.result_tree import flat_names

FIELDS = ("mean", "sd", "mcse_mean", "mcse_sd")
# A bias, in posterior sds, that a trusted run must not have, and how often chance may show one in a run.
BIASED, CHANCE = 0.1, 0.01
# PyMC's own limits for a run of NUTS.
R_HAT, EFFECTIVE = 1.01, 400


def moments(tree: Any, names: list[str]) -> tuple[dict[str, np.ndarray], list[str], np.ndarray]:
    """Return means and standard deviations with standard errors, labels, and draws ``(chain, draw, p)``."""
    posterior = tree["posterior"].dataset
    parts = [posterior[name].values for name in names]
    draws = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)
    labels = flat_names([(name, part.shape[2:]) for name, part in zip(names, parts, strict=True)])
    return moments_of(draws), labels, draws


def moments_of(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Return means and standard deviations of draws ``(chain, draw, p)`` with standard errors."""
    x = xr.DataArray(draws, dims=("chain", "draw", "i"))
    found = [draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))]
    found += [np.asarray(az.mcse(x, method=kind)) for kind in ("mean", "sd")]
    return dict(zip(FIELDS, found, strict=True))


def fingerprint(model: pm.Model) -> float:
    """Log density at a fixed point: it tells whether a reference was made with the model as it is."""
    point = {name: np.asarray(value) + 0.1 for name, value in model.initial_point(0).items()}
    return float(model.compile_logp()(point))


def free_names(model: pm.Model) -> list[str]:
    return [variable.name for variable in model.free_RVs]


@contextmanager
def overheard() -> Iterator[list[str]]:
    """Collect what is logged and warned."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("pymc", "pmm_mcmc")]
    kept = [(logger.level, logger.propagate, logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.level, logger.propagate, logger.handlers = logging.INFO, False, [handler]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield said
        said += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    finally:
        for logger, values in zip(loggers, kept, strict=True):
            logger.level, logger.propagate, logger.handlers = values


def diagnosed(draws: np.ndarray) -> dict[str, Any]:
    """Return the largest r_hat and the fewest effective draws of any parameter that moves."""
    moving = draws.std(axis=(0, 1)) > 1e-12
    if not moving.any():
        raise ValueError("no parameter moved")
    x = xr.DataArray(draws[..., moving], dims=("chain", "draw", "i"))
    ess = np.minimum(np.asarray(az.ess(x, method="bulk")), np.asarray(az.ess(x, method="mean")))
    return {"r_hat": round(float(np.asarray(az.rhat(x)).max()), 4), "ess": round(float(ess.min()))}


def gradients_of(stats: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients ``(chain, draw)`` from one draw to the next, and those before the first ``(chain,)``."""
    each = stats["n_steps" if "n_steps" in stats else "n_grad"].values
    return each, stats["n_grad_total"].values[:, -1] - each.sum(axis=1)


def timed(run: Callable[..., Any]) -> tuple[Any, float]:
    """Return a run of a session that knows the model, which a short run compiles, and its seconds of CPU."""
    run(draws=10, tune=20)
    began = time.process_time()
    return run(), time.process_time() - began


def failures_of(stats: Any) -> int:
    """Return the transitions that were unstable, or the draws that followed a divergence."""
    return int(stats["unstable" if "unstable" in stats else "diverging"].sum())


def judged(tree: Any, model: Any = None) -> dict[str, Any]:
    """Return what the run says of itself, or by the density of its model."""
    try:
        verdict = pmm.verdict(tree, model=model)
    except ValueError as error:
        return {"state": "not judged", "sentence": str(error).splitlines()[0]}
    state = getattr(verdict, "state", "trusted" if verdict.trusted else "not trusted")
    codes = list(dict.fromkeys(reason.code for reason in verdict.reasons))
    return {"state": str(state), "sentence": verdict.sentence, "codes": codes}


def errors(moved: dict[str, np.ndarray], known: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    """Return the worst errors of a mean and of a standard deviation, in posterior sds, with z and parameter."""
    truth = {field: np.array(known[field]) for field in FIELDS}
    sd, found = np.where(truth["sd"] > 1e-12, truth["sd"], np.inf), {}
    limit = norm.isf(CHANCE / 4 / sd.size)
    for what, error in (("mean", "mcse_mean"), ("sd", "mcse_sd")):
        off, se = (moved[what] - truth[what]) / sd, np.hypot(moved[error], truth[error]) / sd
        z = np.divide(off, se, out=np.zeros_like(off), where=se > 0)
        wrong = (np.abs(off) > BIASED) & (np.abs(z) > limit)
        j = int(np.argmax(np.abs(off) + 1e6 * wrong))
        found[what] = {"off": round(float(off[j]), 4), "z": round(float(z[j]), 2), "of": labels[j]}
        found[what]["wrong"] = bool(wrong[j])
    return found


def alone(function: Any, *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
