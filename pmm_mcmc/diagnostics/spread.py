"""What a verdict says of standard deviations whose bias is not measurable."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.statement import MORE, Reason, beside

__all__ = ["spread_reasons"]


def spread_reasons(measured: Measured) -> tuple[list[Reason], str]:
    """Return a reason if nothing is known of a parameter but its draws, and these leave its sd uncertain; and words.

    Long tails and curved ridges leave a standard deviation uncertain: it rests on few excursions.  Where the gradients
    explain the mean, that is known in spite of them, and the error of the standard deviation is said (words) if it is
    large.  Where they explain neither, as on a bent ridge, excursions that are missing shift both.

    Parameters
    ----------
    measured
        What the gradients show.
    """
    alone = measured.moving & ~np.isfinite(measured.of_sd)
    error = np.where(alone, measured.error_of_sd, 0.0)
    if not (error > CALIBRATION.mcse).any():
        return [], ""
    unexplained = np.where(np.isfinite(measured.of_mean), 0.0, error)
    decisive = bool((unexplained > CALIBRATION.mcse).any())
    worst = int(np.nanargmax(unexplained if decisive else error))
    label, (value, limit) = measured.labels[worst], beside(100.0 * error[worst], 100.0 * CALIBRATION.mcse, 0)
    if not decisive:
        return [], f" The sd of {label} is known to {value} % at best."
    words = f"the sd of {label} is known to {value} % only, limit {limit} %"
    return [Reason("mcse_of_sd", words, MORE, label, float(error[worst]), CALIBRATION.mcse)], ""
