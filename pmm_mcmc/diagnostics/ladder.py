"""The checks of a ladder of temperatures: whether weights of modes and log evidence are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.diagnostics.statement import MORE, Reason
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["evidence", "ladder_description", "restarts"]


def restarts(run: Run) -> Reason | None:
    """Return a reason if too few chains came from the reference to the posterior, or to one of its modes."""
    weight = _weights(run.ladder)
    reached = run.ladder["mode_restarts"].values[: len(weight)]
    count = int(run.ladder["restarts"])
    limit = THRESHOLDS.restarts
    text = f"{count} chains came from the reference to the posterior, limit {limit}: weights of modes are open"
    if count >= limit and len(weight) > 1:
        fewest = int(reached.argmin())
        count = int(reached[fewest])
        limit = THRESHOLDS.restarts_of_mode
        text = f"the mode of weight {weight[fewest]:.2g} was reached from the reference {count} times, limit {limit}"
    return Reason("ladder", text, MORE, None, float(count), limit) if count < limit else None


def evidence(run: Run) -> Reason | None:
    """Return a reason if estimates of the log evidence, forward and backward, contradict each other."""
    gap = float(run.ladder["forward_minus_backward"])
    # The reference may be the posterior itself: then all differences are rounding.
    rounding = 1e-9 * max(1.0, abs(float(run.ladder["log_evidence"])))
    error = max(float(run.ladder["forward_minus_backward_se"]), rounding)
    if not abs(gap) > THRESHOLDS.evidence_gap * error:
        return None
    text = (
        f"log evidence forward and backward differ by {abs(gap):.2g} (error {error:.2g}), limit "
        f"{THRESHOLDS.evidence_gap:g} errors: neighbouring temperature levels have not met the same places"
    )
    return Reason("ladder", text, MORE, None, abs(gap) / error, THRESHOLDS.evidence_gap)


def ladder_description(ladder: Any, trusted: bool) -> str:
    """Return words for what a ladder has measured; none without a ladder."""
    if ladder is None:
        return ""
    weight = _weights(ladder)
    errors = ladder["mode_weight_se"].values
    log_evidence = float(ladder["log_evidence"])
    error = float(ladder["log_evidence_se"])
    places = int(np.clip(-np.floor(np.log10(max(error, 1e-9))), 2, 6))
    count = int(ladder["restarts"])
    text = f" Ladder: log evidence {log_evidence:.{places}f} (error {error:.{places}f}), {count} restarts"
    if len(weight) > 1:
        shown = ", ".join(f"{w:.2g} (error {se:.1g})" for w, se in zip(weight[:6], errors, strict=False))
        text += f", {len(weight)} modes of weights {shown}" + ", ..." * (len(weight) > 6)
    elif len(weight):
        text += ", one mode" + ": a run without a ladder would do" * trusted
    return f"{text}."


def _weights(ladder: Any) -> np.ndarray:
    """Return the weights of the modes."""
    weight = np.asarray(ladder["mode_weight"].values)
    return weight[np.isfinite(weight)]
