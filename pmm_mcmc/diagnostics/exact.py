"""What a verdict says of an exact leg: whether it was long enough, and that no bias is left to be measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.statement import Reason, Verdict, beside, concluded
from pmm_mcmc.warmup.standard_errors import largest_t

__all__ = ["forgotten", "is_exact", "leg_reasons", "snapshot", "with_leg", "without_bias"]


def forgotten(dt: Any) -> bool:
    """Return whether the result has an exact leg that was long enough."""
    return "exact_leg" in dt.children and bool(int(dt["exact_leg"]["ended"]))


def is_exact(dt: Any) -> bool:
    """Return whether the result is of an exact leg that was long enough, or of a ladder, whose draws are exact too."""
    return forgotten(dt) or "ladder" in dt.children


def leg_reasons(dt: Any, chains: int) -> list[Reason]:
    """Return a reason if the result has an exact leg that was too short."""
    if "exact_leg" not in dt.children or forgotten(dt):
        return []
    leg = dt["exact_leg"]
    label, change, error = _largest(leg)
    words = f"the exact leg was too short: chains had not forgotten their starts after {int(leg['transitions'])} "
    words += "trajectories"
    if change > largest_t(2 * leg.sizes["coordinate"], chains - 1) * error:
        words += f", and the mean of {label} still changed by {change:.2f} posterior sd (error {error:.2f})"
    return [Reason("exact_leg", words, "raise tune, or start nearer with initvals=", label)]


def snapshot(dt: Any, chains: int, draws: int) -> Verdict | None:
    """Return the verdict on an exact leg of which each of many chains has too few draws for anything else to be judged.

    Its draws are independent of each other, since every chain has forgotten its start.  None for other results.
    """
    if "exact_leg" not in dt.children or draws >= CALIBRATION.fewest_of_chain or chains < CALIBRATION.fewest:
        return None
    reasons, error = leg_reasons(dt, chains), 1.0 / np.sqrt(chains)
    if error > CALIBRATION.mcse:
        value, limit = beside(error, CALIBRATION.mcse, 3)
        words = f"standard errors of means are {value} posterior sd, with few draws of {chains} chains, limit {limit}"
        reasons.append(Reason("mcse", words, "take more chains or draws", None, float(error), CALIBRATION.mcse))
    known = f"all means are within {np.ceil(200.0 * error):.0f} % of a posterior sd, with 95 % confidence each."
    return with_leg(dt, concluded(reasons, known))


def without_bias(dt: Any, measured: Measured) -> Measured:
    """Return biases of zero where none could be measured, for a result whose draws are of an invariant kernel."""
    if not {"exact_leg", "ladder"} & set(dt.children):
        return measured
    of_mean, of_sd = (np.isfinite(values) for values in (measured.of_mean, measured.of_sd))
    return measured._replace(
        of_mean=np.where(of_mean, measured.of_mean, 0.0),
        of_mean_se=np.where(of_mean, measured.of_mean_se, 0.0),
        left=np.where(of_mean, measured.left, 0.0),
        of_sd=np.where(of_sd, measured.of_sd, 0.0),
        of_sd_se=np.where(of_sd, measured.of_sd_se, 0.0),
    )


def with_leg(dt: Any, verdict: Verdict) -> Verdict:
    """Return a verdict whose sentence says of an exact leg that was long enough how it ended."""
    if not forgotten(dt):
        return verdict
    leg = dt["exact_leg"]
    label, change, error = _largest(leg)
    words = (
        f" Exact leg: {int(leg['transitions'])} trajectories of a chain, acceptance {float(leg['acceptance']):.2f}; "
        f"between its last blocks no mean changed beyond chance (most: {label}, by {change:.2f} sd, error {error:.2f})."
    )
    return replace(verdict, sentence=verdict.sentence + words)


def _largest(leg: Any) -> tuple[str, float, float]:
    """Return the mean that changed most in the last blocks, in standard errors: its name, change and error."""
    change, error = np.abs(leg["drift"].values), leg["drift_se"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.nan_to_num(change / error, nan=-1.0)
    worst = int(z.argmax())
    return str(leg["coordinate"].values[worst]), float(change[worst]), float(error[worst])
