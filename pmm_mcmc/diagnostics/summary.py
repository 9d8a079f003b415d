"""ArviZ's summary with the bias beside it."""

from __future__ import annotations

import logging
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc.diagnostics.bias import Verdict, _judge, _read, _table
from pmm_mcmc.diagnostics.moments_summary import moments_summary, moments_verdict
from pmm_mcmc.diagnostics.noncentred import WORDS

__all__ = ["joined", "log_verdict", "summary", "with_numbers"]

_log = logging.getLogger("pmm_mcmc")


def summary(dt: Any, var_names: Any = None, **options: Any) -> pd.DataFrame:
    """Summarise a result: ArviZ's columns, corrected means, bias with standard error, ESS for each gradient.

    Logs one sentence of verdict, which is also in ``.attrs["verdict"]``.

    Parameters
    ----------
    dt
        A result whose ``sample_stats`` hold ``gradient`` and ``unconstrained`` (all step methods here store them), or
        one of ``pmm.sample(keep="moments")``, of which fewer columns are known.
    var_names
        Parameters to show; all by default.  The verdict is always on all.
    **options
        For ``arviz.summary``; ``round_to="none"`` by default.

    Returns
    -------
    pandas.DataFrame
        The columns of ``arviz.summary`` and ``mean_corrected``, ``mcse_corrected``, ``bias``, ``bias_se`` (NaN where
        not measurable) and ``ess_per_grad`` (``ess_bulk`` for each gradient spent, warm-up included).

    Raises
    ------
    ValueError
        If the result holds no gradients, or fewer than 20 draws.

    See Also
    --------
    pmm_mcmc.bias : The bias of standard deviations too.
    pmm_mcmc.verdict : The verdict alone.
    """
    if "posterior_mean" in dt.children:
        return _of_moments(dt, var_names, options)
    dt = with_numbers(dt)
    everything = _read(dt)
    table = _table(everything)
    judged = _judge(dt, everything, table)
    out = joined(dt, table[["mean_corrected", "mcse_corrected", "bias", "bias_se"]], var_names=var_names, **options)
    out.attrs["verdict"] = judged.sentence
    if WORDS in dt["posterior"].attrs:
        out.attrs[WORDS] = dt["posterior"].attrs[WORDS]
    log_verdict(judged)
    return out


def joined(dt: Any, beside: pd.DataFrame | None = None, **options: Any) -> pd.DataFrame:
    """ArviZ's summary of the draws with other columns beside it, and ``ess_per_grad`` where gradients were counted."""
    with np.errstate(all="ignore"):  # constants have no r_hat, and ArviZ says so with a warning of NumPy
        out = az.summary(dt, **{"round_to": "none", **options})
    if beside is not None:
        out[list(beside)] = beside.reindex(out.index)
    if "ess_bulk" in out and "sample_stats" in dt.children and "n_grad_total" in dt["sample_stats"]:
        spent = float(dt["sample_stats"]["n_grad_total"].isel(draw=-1).sum())
        out["ess_per_grad"] = out["ess_bulk"].astype(float) / spent
    return out


def with_numbers(dt: Any) -> Any:
    """Return a result whose truth values are 0 and 1: ArviZ takes no quantiles of others."""
    posterior = dt["posterior"].to_dataset()
    flags = {name: values.astype(int) for name, values in posterior.data_vars.items() if values.dtype == bool}
    return dt.assign({"posterior": xr.DataTree(posterior.assign(flags))}) if flags else dt


def _of_moments(dt: Any, var_names: Any, options: dict[str, Any]) -> pd.DataFrame:
    """Summarise a run that kept moments in place of draws."""
    given = {"var_names": var_names, **options}
    unknown = [name for name, value in given.items() if value is not None]
    if unknown:
        raise ValueError(
            f"{unknown[0]}={given[unknown[0]]!r}: does not apply to a run that kept no draws; leave it out"
        )
    out = moments_summary(dt)
    judged = moments_verdict(dt)
    log_verdict(judged)
    return out


def log_verdict(verdict: Verdict) -> None:
    """Log the sentence of a verdict: as a warning unless the run is trusted."""
    _log.log(logging.INFO if verdict.trusted else logging.WARNING, verdict.sentence)
