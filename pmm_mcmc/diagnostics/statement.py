"""The verdict on a run: trusted, undecided or not trusted, one sentence, and the reasons with a code each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NOT_TRUSTED", "TRUSTED", "UNDECIDED", "Reason", "Verdict", "beside", "concluded"]

TRUSTED, UNDECIDED, NOT_TRUSTED = "trusted", "undecided", "not trusted"

# What each reason makes of a run.  Of several remedies the first in this order is the one that is said: draws that were
# taken at a wrong step are of no use, however many there are.
_STATES = {
    "unstable": NOT_TRUSTED,
    "divergences": NOT_TRUSTED,
    "identity": NOT_TRUSTED,
    "bias_of_mean": NOT_TRUSTED,
    "bias_of_sd": NOT_TRUSTED,
    "step_unstable": NOT_TRUSTED,
    "r_hat": NOT_TRUSTED,
    "step_long": UNDECIDED,
    "one_chain": UNDECIDED,
    "few_draws": UNDECIDED,
    "mcse": UNDECIDED,
    "bound": UNDECIDED,
    "no_gradients": UNDECIDED,
    "unmeasured": UNDECIDED,
}


@dataclass(frozen=True)
class Reason:
    """Why a run is not trusted, or undecided; ``str`` gives the words.

    Attributes
    ----------
    code : str
        ``"unstable"``, ``"divergences"``, ``"identity"``, ``"bias_of_mean"``, ``"bias_of_sd"``, ``"step_unstable"``,
        ``"r_hat"``: not trusted.  ``"step_long"``, ``"one_chain"``, ``"few_draws"``, ``"mcse"``,
        ``"bound"``, ``"no_gradients"``, ``"unmeasured"``: undecided.
    words : str
        What was found, with its limit.
    remedy : str
        What to do; empty where there is nothing.
    parameter : str or None
        The parameter that it was found for.
    value, limit : float or None
        The figure, and what it is compared with.
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
        """What a run is for this reason."""
        return _STATES[self.code]


@dataclass(frozen=True)
class Verdict:
    """Whether a run may be trusted: what :func:`pmm_mcmc.verdict` returns.

    Attributes
    ----------
    state : str
        ``"trusted"``; ``"undecided"`` where nothing wrong was seen but the draws cannot tell; ``"not trusted"``.
    sentence : str
        The same in words, with what is wrong and the one thing to do.
    reasons : tuple of Reason
        Empty for a trusted run.
    """

    state: str
    sentence: str
    reasons: tuple[Reason, ...]

    @property
    def trusted(self) -> bool:
        """Whether the run is trusted: undecided is not."""
        return self.state == TRUSTED

    def __str__(self) -> str:
        return self.sentence


def beside(value: float, limit: float, digits: int) -> tuple[str, str]:
    """Write a figure and its limit, with digits enough that they do not look equal."""
    while digits < 12 and f"{value:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}", f"{limit:.{digits}f}"


def concluded(reasons: Iterable[Reason], good: str) -> Verdict:
    """Put reasons together or, where there are none, say what is good."""
    found = sorted(reasons, key=lambda reason: list(_STATES).index(reason.code))
    if not found:
        return Verdict(TRUSTED, f"Trusted: {good}", ())
    state = NOT_TRUSTED if any(reason.state == NOT_TRUSTED for reason in found) else UNDECIDED
    said = [reason for reason in found if reason.state == state]
    sentence = f"{state.capitalize()}: {'; '.join(map(str, said))}."
    remedy = next((reason.remedy for reason in said if reason.remedy), "")
    if remedy:
        sentence += f" {remedy[0].upper()}{remedy[1:]}."
    return Verdict(state, sentence, tuple(found))
