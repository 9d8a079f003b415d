"""The verdict on a run as a record: state, sentence, and reasons with codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MORE", "NOT_TRUSTED", "TRUSTED", "UNDECIDED", "Reason", "Verdict", "beside", "concluded"]

TRUSTED = "trusted"
UNDECIDED = "undecided"
NOT_TRUSTED = "not trusted"
# The remedy of reasons that more draws alone remove: ``draws="auto"`` goes on until there are none.
MORE = "draw more"
# An excess of r_hat below so many times that of the limit leaves a run undecided.  Of 15 right runs that the gate of
# November 2026 refused four had an r_hat of 1.011 to 1.018; of its wrong ones that r_hat refused none was below 1.027.
NEAR = 2.0

# The state of a run with each reason.  The sentence has one remedy, that of the first reason in this order: a wrong
# step must be mended before more draws help.
_STATES = {
    "jump": NOT_TRUSTED,
    "wall": NOT_TRUSTED,
    "unstable": NOT_TRUSTED,
    "divergences": NOT_TRUSTED,
    "identity": NOT_TRUSTED,
    "bias": NOT_TRUSTED,
    "modes": NOT_TRUSTED,
    "r_hat": NOT_TRUSTED,
    "equilibration": UNDECIDED,
    "neck": UNDECIDED,
    "restarts": UNDECIDED,
    "evidence": UNDECIDED,
    "step_long": UNDECIDED,
    "one_chain": UNDECIDED,
    "few_draws": UNDECIDED,
    "mcse": UNDECIDED,
    "unmeasured": UNDECIDED,
}
# What explains what: the remedy of the first is that of the second.  A step that is known to be too long explains why
# the identity fails, and no edge of the density is needed; chains that have not forgotten their starts disagree.
_CAUSES = {("step_long", "identity"), ("equilibration", "r_hat")}


@dataclass(frozen=True)
class Reason:
    """Why a run is not trusted, or undecided; ``str`` gives the words.

    Attributes
    ----------
    code : str
        Of every run ``"few_draws"``, ``"one_chain"``, ``"r_hat"``, ``"mcse"``, ``"divergences"``; of those of this
        package also ``"equilibration"``, ``"identity"``, ``"modes"``, ``"neck"``; of unadjusted draws ``"unstable"``,
        ``"bias"``, ``"step_long"``, ``"unmeasured"``, ``"jump"``, ``"wall"``; of a ladder ``"restarts"``,
        ``"evidence"``.
    words : str
        The finding in words, with its limit.
    remedy : str
        What to do about it; may be empty.
    parameter : str or None
        The parameter concerned.
    value, limit : float or None
        The figure, and its limit.
    """

    code: str
    words: str
    remedy: str = ""
    parameter: str | None = None
    value: float | None = None
    limit: float | None = None

    def __str__(self) -> str:
        return self.words

    @property
    def state(self) -> str:
        """State of a run with this reason."""
        if self.code == "step_long" and self.value == math.inf:  # where the posterior is steepest
            return NOT_TRUSTED
        if self.code == "r_hat" and self.value is not None and self.limit is not None:
            near = self.value - 1.0 < NEAR * (self.limit - 1.0)
            return UNDECIDED if near else NOT_TRUSTED
        return _STATES[self.code]


@dataclass(frozen=True)
class Verdict:
    """Whether a run may be trusted: what :func:`pmm_mcmc.verdict` returns.

    Attributes
    ----------
    state : str
        ``"trusted"``; ``"undecided"`` if nothing wrong was found, but the draws cannot show that nothing is;
        ``"not trusted"``.
    sentence : str
        The state in words, with what is wrong and one remedy.
    reasons : tuple of Reason
        Empty for a trusted run.
    """

    state: str
    sentence: str
    reasons: tuple[Reason, ...]

    @property
    def trusted(self) -> bool:
        """Whether the state is ``"trusted"``."""
        return self.state == TRUSTED

    def __str__(self) -> str:
        return self.sentence


def beside(value: float, limit: float, digits: int) -> tuple[str, str]:
    """Format a figure and its limit with as many digits as tell them apart."""
    while digits < 12 and f"{value:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}", f"{limit:.{digits}f}"


def concluded(reasons: Iterable[Reason], good: str, note: str = "") -> Verdict:
    """Return the verdict of the reasons or, if there are none, a trusted one with the sentence ``good``.

    ``note`` ends either.
    """
    ordered = sorted(reasons, key=lambda reason: list(_STATES).index(reason.code))
    if not ordered:
        return Verdict(TRUSTED, f"Trusted: {good}{note}", ())
    state = NOT_TRUSTED if any(reason.state == NOT_TRUSTED for reason in ordered) else UNDECIDED
    decisive = [reason for reason in ordered if reason.state == state]
    sentence = f"{state.capitalize()}: {'; '.join(map(str, decisive))}."
    cause = [reason for reason in ordered if (reason.code, decisive[0].code) in _CAUSES]
    remedy = next((reason.remedy for reason in [*cause, *decisive] if reason.remedy), "")
    if remedy == MORE:
        remedy += _how_many([reason for reason in ordered if reason.remedy == MORE])
    if remedy:
        sentence += f" {remedy[0].upper()}{remedy[1:]}."
    return Verdict(state, sentence + note, tuple(ordered))


def _how_many(reasons: list[Reason]) -> str:
    """Return words for how many times as many draws remove reasons, where that is known.

    A standard error falls with the root of the number of draws, and what r_hat exceeds 1 by, which is the square of
    one, with the number itself.
    """
    times = [1.0]
    for reason in reasons:
        if not reason.value or reason.limit is None:
            continue
        if reason.code == "few_draws":
            times.append(reason.limit / reason.value)
        if reason.code == "mcse":
            times.append((reason.value / reason.limit) ** 2)
        if reason.code == "r_hat":
            times.append((reason.value - 1.0) / (reason.limit - 1.0))
    if max(times) == 1.0 or not math.isfinite(max(times)):
        return ""
    text = f": about {math.ceil(10.0 * max(times)) / 10.0:.1f} times as many"
    return f"{text}, or reparametrise" if any(reason.code == "r_hat" for reason in reasons) else text
