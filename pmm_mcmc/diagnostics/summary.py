"""ArviZ's summary with the bias beside it."""

from __future__ import annotations

import logging
from typing import Any

import arviz as az
import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.bias import _judge, _read, _table

__all__ = ["summary"]

_log = logging.getLogger("pmm_mcmc")


def summary(dt: Any, var_names: Any = None, **options: Any) -> pd.DataFrame:
    """Summarise a result: ArviZ's columns, corrected means, bias with standard error, ESS for each gradient.

    Logs one sentence of verdict, which is also in ``.attrs["verdict"]``.

    Parameters
    ----------
    dt
        A result whose ``sample_stats`` hold ``gradient`` and ``unconstrained`` (all step methods here store them).
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
    everything = _read(dt)
    table = _table(everything)
    judged = _judge(dt, everything, table)
    with np.errstate(all="ignore"):  # constants have no r_hat, and ArviZ says so with a warning of NumPy
        out = az.summary(dt, var_names=var_names, **{"round_to": "none", **options})
    for column in ("mean_corrected", "mcse_corrected", "bias", "bias_se"):
        out[column] = table[column].reindex(out.index)
    stats = dt["sample_stats"]
    if "ess_bulk" in out and "n_grad_total" in stats:
        spent = float(stats["n_grad_total"].isel(draw=-1).sum())
        out["ess_per_grad"] = out["ess_bulk"].astype(float) / spent
    out.attrs["verdict"] = judged.sentence
    _log.log(logging.INFO if judged.trusted else logging.WARNING, judged.sentence)
    return out
