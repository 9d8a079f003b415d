"""What posteriors are compared by with long runs of NUTS: moments with their errors, and what is logged meanwhile."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

from pmm_mcmc.model.result_tree import flat_names

FIELDS = ("mean", "sd", "mcse_mean", "mcse_sd")
# A bias, in posterior sds, that a trusted run must not have, and how often chance may show one in a run.
BIASED, CHANCE = 0.1, 0.01


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
