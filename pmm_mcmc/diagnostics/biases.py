"""The biases of the parameters of unadjusted draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.calibration import CALIBRATION

__all__ = ["Biases", "biases_of"]


class Biases(NamedTuple):
    """Absolute biases of ``p`` parameters with their standard errors, arrays ``(p,)``.

    Attributes
    ----------
    labels
        Names of the parameters.
    of_mean, of_mean_se
        Bias of the mean that the correction removed, and its standard error.
    left
        Share of the bias of the mean that the correction is expected not to remove.
    of_sd, of_sd_se
        Bias of the standard deviation, and its standard error.
    moving
        Whether the parameter varies.
    error
        Standard error of the corrected mean, with the bias that the correction did not remove.
    """

    labels: Sequence[str]
    of_mean: np.ndarray
    of_mean_se: np.ndarray
    left: np.ndarray
    of_sd: np.ndarray
    of_sd_se: np.ndarray
    moving: np.ndarray
    error: np.ndarray

    @property
    def bounds(self) -> np.ndarray:
        """Upper bounds of the biases of means: two standard errors above, with what the correction did not remove."""
        sure = np.maximum(self.of_mean - 2.0 * self.of_mean_se, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # left = 1: nothing was corrected
            return self.of_mean + 2.0 * self.of_mean_se + self.left / (1.0 - self.left) * sure

    @property
    def small(self) -> np.ndarray:
        """Whether a bias that matters is ruled out, of the mean and the standard deviation of each parameter."""
        return (self.bounds < CALIBRATION.ruled_out) & (self.of_sd + 2.0 * self.of_sd_se < CALIBRATION.ruled_out)

    @property
    def ruled_out(self) -> bool:
        """Whether a bias that matters is ruled out, of every mean and standard deviation."""
        return bool(np.all(self.small | ~self.moving))

    @property
    def two_errors(self) -> np.ndarray:
        """Two standard errors of each corrected mean; NaN if the bias is not measurable, or the parameter constant."""
        return np.where(np.isfinite(self.of_mean) & self.moving, 2.0 * self.error, np.nan)


def biases_of(table: pd.DataFrame) -> Biases:
    """Return the biases of a table of parameters in posterior standard deviations."""
    scale = table["sd_cv"].where(table["sd_cv"] > 0.0)
    columns = ("bias", "bias_se", "bias_of_sd", "bias_of_sd_se", "mcse_cv")
    mean, mean_se, of_sd, of_sd_se, error = ((table[name].abs() / scale).to_numpy() for name in columns)
    left = table["unexplained"].to_numpy()
    return Biases(list(table.index), mean, mean_se, left, of_sd, of_sd_se, table["sd"].to_numpy() != 0.0, error)
