"""Estimates of expectations: raw, corrected, and the choice between the two.

What corrects them is in ``stein.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.warmup.standard_errors import between_pieces, count_pieces

__all__ = ["Corrected", "Estimate", "choose", "uncorrected"]


class Corrected(NamedTuple):
    """Estimates of ``p`` expectations, each of shape ``(p,)``.

    Attributes
    ----------
    raw, raw_se
        Plain mean over draws, with its standard error.
    value, se
        Corrected estimate with its standard error if ``used``, else the raw one.
    bias, bias_se
        Raw minus corrected estimate, with its standard error; NaN where not measurable.
    used
        Whether the correction reduced the error enough.
    ratio
        Squared standard error of the correction over that of the raw estimate.
    left
        Share of the bias that the correction is expected not to remove, the root of ``ratio``; ``se`` includes it if
        the bias is beyond doubt.
    by_chain : (chain, p)
        ``value`` from each chain's own draws, with coefficients from the others.

    A function that is not finite everywhere has the raw estimate without an error; a constant has no bias and no error.
    """

    raw: np.ndarray
    raw_se: np.ndarray
    value: np.ndarray
    se: np.ndarray
    bias: np.ndarray
    bias_se: np.ndarray
    used: np.ndarray
    ratio: np.ndarray
    left: np.ndarray
    by_chain: np.ndarray


def uncorrected(values: np.ndarray) -> Corrected:
    """Return plain means of functions ``(chain, draw, p)``, whose bias is not measurable."""
    chains, draws, p = values.shape
    cut = count_pieces(chains, draws)
    origin = values[:1, :1]
    with np.errstate(invalid="ignore"):  # the mean of what is not finite
        pieces = (values[:, draws % cut :] - origin).reshape(chains * cut, -1, p).mean(axis=1)
        by_chain = origin[0] + (values - origin).mean(axis=1)
        value = origin[0, 0] + pieces.mean(axis=0)
        error = between_pieces(pieces, chains) if len(pieces) > 1 else np.full(p, np.nan)
    none = np.full(p, np.nan)
    all_of_it = np.ones(p)
    return Corrected(value, error, value, error, none, none, np.zeros(p, bool), all_of_it, all_of_it, by_chain)


class Estimate(NamedTuple):
    """Estimates of ``p`` expectations with standard errors ``(p,)``, and the batch means ``(m, p)`` behind them."""

    value: np.ndarray
    se: np.ndarray
    pieces: np.ndarray


def choose(
    raw: Estimate,
    corrected: Estimate,
    bias: tuple[np.ndarray, np.ndarray],
    usable: np.ndarray,
    corrected_error: float,
    raw_error: float,
    unbiased: bool = False,
) -> Corrected:
    """Choose the corrected estimate of each function if it reduces the error enough, else the raw one.

    Parameters
    ----------
    raw, corrected
        Both estimates of each function.
    bias
        Raw minus corrected estimate, and its standard error.
    usable : (p,) bool
        Functions that are finite everywhere.
    corrected_error, raw_error
        Mean over functions of the squared standard error over the function's variance, corrected and raw.
    unbiased
        Whether the draws have no bias of which a correction might leave a share.

    Returns
    -------
    Corrected
        With the batch means of the chosen estimate in ``by_chain``.
    """
    difference, difference_se = bias
    error = corrected.se
    ratio = error**2 / np.maximum(raw.se**2, 1e-300)
    used = (ratio < CALIBRATION.gain_of_one) & usable
    if corrected_error * CALIBRATION.gain_of_all > raw_error:
        # Corrections do not help most functions: those that they do help must gain more.
        used &= ratio < CALIBRATION.gain_of_one / CALIBRATION.gain_of_all
    unknown = np.where(np.isfinite(raw.value), 0.0, np.nan)
    left = np.minimum(np.sqrt(ratio), 1.0)
    sure = np.maximum(np.abs(difference) - CALIBRATION.beyond_doubt * difference_se, 0.0)
    remaining = left / np.maximum(1.0 - left, 1e-10) * sure
    return Corrected(
        raw.value,
        raw.se + unknown,
        np.where(used, corrected.value, raw.value),
        np.where(used, error if unbiased else np.hypot(error, remaining), raw.se) + unknown,
        np.where(used, difference, np.nan),
        np.where(used, difference_se, np.nan),
        used,
        ratio + unknown,
        left + unknown,
        np.where(used, corrected.pieces, raw.pieces),
    )
