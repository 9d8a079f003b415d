"""Rounding of a summary: as many digits as the standard errors support, and no rounding to zero.

The table that shows some digits and keeps them all is ArviZ's own, ``arviz_stats.summary.SummaryDataFrame``, which it
does not document; ``tests/diagnostics/test_summary.py`` says so if it moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from arviz_stats.summary import SummaryDataFrame

__all__ = ["rounded"]

# The standard error that determines the places of an estimate.
_ERRORS = {"mean": "mcse_mean", "sd": "mcse_sd", "median": "mcse_median"} | {
    "mean_corrected": "mcse_corrected",
    "bias": "bias_se",
}


def rounded(table: pd.DataFrame, round_to: Any) -> pd.DataFrame:
    """Return a table that shows rounded numbers: "auto" by their standard errors, "none" all digits, else as ArviZ."""
    if round_to in ("none", "None"):
        return pd.DataFrame(table)
    if round_to != "auto" and round_to is not None:
        from arviz_stats.base.stats_utils import round_num

        return pd.DataFrame(table).map(lambda value: round_num(value, round_to))
    shown = {str(name): _shown(table, str(name)) for name in table}
    return SummaryDataFrame(
        table, fmt_map={name: dict(zip(table.index, of, strict=True)) for name, of in shown.items()}
    )


def _shown(table: pd.DataFrame, name: str) -> list[str]:
    values = table[name].to_numpy(dtype=float)
    if name.startswith("ess_") and name != "ess_per_grad":
        return [f"{value:.0f}" if np.isfinite(value) else str(value) for value in np.floor(values)]
    if name == "r_hat":
        # Three digits: the limit of the verdict is 1.010.
        return [f"{value:.3f}" if np.isfinite(value) else str(value) for value in values]
    error = _ERRORS.get(name)
    errors = np.full(len(values), np.nan)
    if error in table:
        errors = table[error].to_numpy(dtype=float)
    elif name == "sd" and "ess_bulk" in table:  # approximate standard error of a standard deviation
        errors = values / np.sqrt(2.0 * np.maximum(table["ess_bulk"].to_numpy(dtype=float), 1.0))
    if error is not None and "sd" in table:
        # A corrected mean of a Gaussian is exact but for rounding, of about 1e-9 sd; 5 places of an sd are enough.
        scale = table["sd"].to_numpy(dtype=float)
        values = np.where(np.abs(values) < 1e-9 * scale, 0.0, values)
        errors = np.maximum(errors, 1e-5 * scale)
    return [_number(value, error) for value, error in zip(values, errors, strict=True)]


def _number(value: float, error: float) -> str:
    """Format a number with the places that two standard errors support, or with two digits if there is no error."""
    if not np.isfinite(value) or value == 0.0:
        return "0" if value == 0.0 else str(value)
    if not error > 0.0 or not np.isfinite(error):
        return f"{value:.2g}"
    places = -int(np.floor(np.log10(2.0 * error)))
    if places < 0:
        return f"{value:.2e}"
    text = f"{value:.{places}f}"
    return text if float(text) else f"{value:.1g}"
