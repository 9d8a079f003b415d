"""What a verdict says of a ladder of temperatures: whether weights of modes and log evidence are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict

__all__ = ["ladder_reasons", "with_ladder"]


def ladder_reasons(dt: Any) -> list[Reason]:
    """Return reasons if a result of a ladder rests on too few restarts, or if its estimates of the evidence differ."""
    if "ladder" not in dt.children:
        return []
    ladder, limit = dt["ladder"], CALIBRATION.restarts
    reasons, restarts = [], int(ladder["restarts"])
    weight, reached = _modes(ladder), ladder["mode_restarts"].values
    fewest = int(np.argmin(reached[: len(weight)])) if len(weight) else 0
    if restarts < limit:
        words = f"{restarts} chains came from the reference to the posterior, limit {limit}: weights of modes are open"
        reasons.append(Reason("restarts", words, MORE, None, restarts, limit))
    elif len(weight) > 1 and reached[fewest] < CALIBRATION.restarts_of_mode:
        limit = CALIBRATION.restarts_of_mode
        words = (
            f"the mode of weight {weight[fewest]:.2g} was reached from the reference {int(reached[fewest])} times, "
            f"limit {limit}"
        )
        reasons.append(Reason("restarts", words, MORE, None, float(reached[fewest]), limit))
    gap, error = (float(ladder[f"forward_minus_backward{end}"]) for end in ("", "_se"))
    # The reference may be the posterior itself: then all differences are rounding.
    error = max(error, 1e-9 * max(1.0, abs(float(ladder["log_evidence"]))))
    if abs(gap) > CALIBRATION.evidence_gap * error:
        words = (
            f"log evidence forward and backward differ by {abs(gap):.2g} (error {error:.2g}), limit "
            f"{CALIBRATION.evidence_gap:g} errors: neighbouring rungs have not met the same places"
        )
        reasons.append(Reason("evidence", words, MORE, None, abs(gap) / error, CALIBRATION.evidence_gap))
    return reasons


def with_ladder(dt: Any, verdict: Verdict) -> Verdict:
    """Return a verdict whose sentence says what the ladder found."""
    if "ladder" not in dt.children:
        return verdict
    ladder = dt["ladder"]
    weight, errors = _modes(ladder), ladder["mode_weight_se"].values
    evidence, error = float(ladder["log_evidence"]), float(ladder["log_evidence_se"])
    places = int(np.clip(-np.floor(np.log10(max(error, 1e-9))), 2, 6))
    words = (
        f" Ladder: log evidence {evidence:.{places}f} (error {error:.{places}f}), {int(ladder['restarts'])} restarts"
    )
    if len(weight) > 1:
        shown = ", ".join(f"{w:.2g} (error {se:.1g})" for w, se in zip(weight[:6], errors, strict=False))
        words += f", {len(weight)} modes of weights {shown}" + ", ..." * (len(weight) > 6)
    elif len(weight):
        words += ", one mode" + ": a run without a ladder would do" * verdict.trusted
    return replace(verdict, sentence=f"{verdict.sentence}{words}.")


def _modes(ladder: Any) -> np.ndarray:
    """Return the weights of the modes that were found."""
    weight = np.asarray(ladder["mode_weight"].values)
    return weight[np.isfinite(weight)]
