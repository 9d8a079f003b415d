"""The verdict on a run as a record: state, sentence, and reasons with codes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

TRUSTED = "trusted"
UNDECIDED = "undecided"
NOT_TRUSTED = "not trusted"
# The remedy of reasons that more draws alone remove: ``draws="auto"`` goes on until there are none.
MORE = "draw more"
# The remedy for what a step does to draws.  A shorter step does not always help: on a local linear trend half the
# step had 259 unstable transitions in place of 175, and the error of a mean rose from .12 to .56 sd.
ADJUST = "take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC())"
# A run is undecided, not "not trusted", if r_hat - 1 is below _NEAR times (limit - 1).  In the acceptance runs of
# November 2026, 4 of 15 correct runs that were refused had an r_hat of 1.011 to 1.018, and no wrong run refused for its
# r_hat was below 1.027.
_NEAR = 2.0

# Times as many draws above which chains may rather be in separate modes.
_MANY_TIMES = 10.0

# The state of a run with each reason.  The sentence has one remedy, that of the first reason in this order: a wrong
# step must be mended before more draws help.
_STATES = {
    "improper": NOT_TRUSTED,
    "divergences": NOT_TRUSTED,
    "identity": NOT_TRUSTED,
    "bias": NOT_TRUSTED,
    "modes": NOT_TRUSTED,
    "r_hat": NOT_TRUSTED,
    "wall": UNDECIDED,
    "equilibration": UNDECIDED,
    "neck": UNDECIDED,
    "search": UNDECIDED,
    "labels": UNDECIDED,
    "tails": UNDECIDED,
    "ladder": UNDECIDED,
    "one_chain": UNDECIDED,
    "few_draws": UNDECIDED,
    "mcse": UNDECIDED,
    "unmeasured": UNDECIDED,
}
# Reasons that chains are slow, and how many times as many draws are much.
_SLOW = ("divergences", "identity", "r_hat", "neck")
_MUCH_MORE = 2.0
_COLOURS = {TRUSTED: "#2e7d32", UNDECIDED: "#b26a00", NOT_TRUSTED: "#b71c1c"}


@dataclass(frozen=True)
class Reason:
    """Why a run is not trusted, or undecided; ``str`` gives the words.

    Attributes
    ----------
    code : str
        Of every run ``"few_draws"``, ``"one_chain"``, ``"r_hat"``, ``"mcse"``, ``"divergences"``, ``"tails"``, and of a
        search for other modes ``"modes"``, ``"search"``, ``"labels"``; of those of this package also
        ``"equilibration"``, ``"identity"``, ``"improper"``, ``"neck"``, ``"wall"``; of unadjusted draws ``"bias"``,
        ``"unmeasured"``; of a ladder ``"ladder"``.
    words : str
        The finding in words, with its limit.
    remedy : str
        What to do about it.
    parameter : str or None
        The parameter concerned.
    value, limit : float or None
        The figure, and its limit.
    """

    code: str
    words: str
    remedy: str
    parameter: str | None = None
    value: float | None = None
    limit: float | None = None

    def __str__(self) -> str:
        return self.words

    @property
    def state(self) -> str:
        """State of a run with this reason."""
        near = self.code == "r_hat" and self.value and self.limit and self.value - 1.0 < _NEAR * (self.limit - 1.0)
        return UNDECIDED if near else _STATES[self.code]

    @property
    def draws_factor(self) -> float:
        """How many times as many draws remove it, on average; 1 where that is not known.

        The standard error falls with the square root of the number of draws, and r_hat - 1, the square of such an
        error, with the number itself.
        """
        if self.remedy != MORE or not self.value or self.limit is None:
            return 1.0
        factors = {
            "few_draws": self.limit / self.value,
            "mcse": (self.value / self.limit) ** 2,
            "r_hat": (self.value - 1.0) / (self.limit - 1.0),
        }
        return factors.get(self.code, 1.0)


@dataclass(frozen=True)
class Verdict:
    """Whether a run may be trusted: what :func:`pmm_mcmc.verdict` returns; a notebook shows it as a list.

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

    def _repr_html_(self) -> str:
        state, _, text = self.sentence.partition(":")
        head = f'<p><b style="color:{_COLOURS[self.state]}">{escape(state)}</b>:{escape(text)}</p>'
        lines = [escape(f"{each.code}: {each}. Remedy: {each.remedy}.") for each in self.reasons]
        return head + "".join(f"<li>{line}</li>" for line in lines)


def format_with_limit(value: float, limit: float, digits: int) -> tuple[str, str]:
    """Format a figure and its limit with as many digits as tell them apart."""
    while digits < 12 and f"{value:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}", f"{limit:.{digits}f}"


def reason_of_largest(
    code: str, text: str, remedy: str, values: pd.Series, limit: float, *, digits: int, percent: bool = False
) -> Reason | None:
    """Return a reason for the largest of the values of some parameters, if it exceeds a limit.

    ``text`` has places for ``{label}``, the parameter, ``{value}`` and ``{limit}``, which are shown with ``digits``.
    """
    if not (values > limit).any():
        return None
    label = str(values.idxmax())
    unit = 100.0 if percent else 1.0
    value = float(values[label])
    shown, against = format_with_limit(unit * value, unit * limit, digits)
    return Reason(code, text.format(label=label, value=shown, limit=against), remedy, label, value, limit)


def verdict_of(reasons: Iterable[Reason], good: str, note: str = "", block: Sequence[str] = ()) -> Verdict:
    """Return the verdict of the reasons or, if there are none, a trusted one with the sentence ``good``.

    ``note`` ends either.  ``block`` are variables that could be integrated out, the first remedy for slow chains.
    """
    ordered = sorted(reasons, key=lambda reason: list(_STATES).index(reason.code))
    if not ordered:
        return Verdict(TRUSTED, f"Trusted: {good}{note}", ())
    state = NOT_TRUSTED if any(reason.state == NOT_TRUSTED for reason in ordered) else UNDECIDED
    decisive = [reason for reason in ordered if reason.state == state]
    remedy = decisive[0].remedy
    if decisive[0].code in ("identity", "r_hat"):  # chains that have not forgotten their starts disagree
        cause = next((reason for reason in ordered if reason.code in ("wall", "equilibration")), None)
        if cause is not None:
            remedy = cause.remedy
            decisive = [cause, *(reason for reason in decisive if reason is not cause)]
    times = max(reason.draws_factor for reason in ordered)
    if remedy == MORE and 1.0 < times < math.inf:
        remedy += f": at least {math.ceil(10.0 * times) / 10.0:.1f} times as many"
        overlapping = any(reason.code == "r_hat" and reason.remedy == MORE for reason in ordered)
        remedy += ", or reparametrise" * overlapping
        remedy += "; if there are several modes, use pmm.temper()" * (overlapping and times > _MANY_TIMES)
    if block and (decisive[0].code in _SLOW or times > _MUCH_MORE):
        choices = ", ".join(f"'{name}': 'integrated'" for name in block)
        remedy = f"integrate {' and '.join(block)} out: pass reparametrise={{{choices}}}; or {remedy}"
    sentence = f"{state.capitalize()}: {'; '.join(map(str, decisive))}. {remedy[0].upper()}{remedy[1:]}."
    return Verdict(state, sentence + note, tuple(ordered))
