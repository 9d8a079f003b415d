"""How the numbers of a summary are shown: as many digits as are known, and no rounding to zero.

The table that shows some digits and keeps them all is ArviZ's own, ``arviz_stats.summary.SummaryDataFrame``, which it
does not document; ``tests/diagnostics/test_summary.py`` says so if it moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from arviz_stats.summary import SummaryDataFrame

__all__ = ["rounded"]

# Which standard error says how many places an estimate has.
_ERRORS = {"mean": "mcse_mean", "sd": "mcse_sd", "median": "mcse_median"} | {
    "mean_corrected": "mcse_corrected",
    "bias": "bias_se",
}

# In posterior standard deviations: what is nothing but rounding, and the smallest error that places are given for.
_ROUNDING, _FINEST = 1e-9, 1e-5


def rounded(table: pd.DataFrame, round_to: Any) -> pd.DataFrame:
    """Return a table that shows its numbers rounded: "auto" by their errors, "none" not, else as ArviZ rounds."""
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
    elif name == "sd" and "ess_bulk" in table:  # about, for the number of its digits
        errors = values / np.sqrt(2.0 * np.maximum(table["ess_bulk"].to_numpy(dtype=float), 1.0))
    if error is not None and "sd" in table:  # of a Gaussian a corrected mean is exact but for rounding
        scale = table["sd"].to_numpy(dtype=float)
        values = np.where(np.abs(values) < _ROUNDING * scale, 0.0, values)
        errors = np.maximum(errors, _FINEST * scale)
    return [_number(value, error) for value, error in zip(values, errors, strict=True)]


def _number(value: float, error: float) -> str:
    """Write a number with as many places as two standard errors leave; two digits where there is no error."""
    if not np.isfinite(value) or value == 0.0:
        return "0" if value == 0.0 else str(value)
    if not error > 0.0 or not np.isfinite(error):
        return f"{value:.2g}"
    places = -int(np.floor(np.log10(2.0 * error)))
    if places < 0:
        return f"{value:.2e}"
    text = f"{value:.{places}f}"
    return text if float(text) else f"{value:.1g}"
