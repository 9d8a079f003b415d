"""Stopping rules: a run ends after a number of draws or, for ``draws="auto"``, once the verdict asks for no more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.verdict import asks_for_more
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.console import count

_log = logging.getLogger("pmm_mcmc")

AUTO = "auto"
# Draws of each chain by default, and at most for ``draws="auto"``: that never costs more than the default.
DRAWS = 1000


def first_look(chains: int) -> int:
    """Return the draws of each chain before the first verdict: a divisor of :data:`DRAWS`, at least 20.

    So many draws of all chains, if they were independent, would estimate a mean to the verdict's limit.
    """
    needed = max(THRESHOLDS.mcse**-2.0 / chains, THRESHOLDS.fewest)
    return min((n for n in range(1, DRAWS + 1) if DRAWS % n == 0 and n >= needed), default=DRAWS)


def limit_after(done: int, every: int) -> int:
    """Return the first limit above ``done`` draws: a multiple of :data:`DRAWS`, in whole multiples of ``every``."""
    limit = -(-DRAWS // every) * every
    return limit * (done // limit + 1)


class StoppingRule:
    """The rule that a run ends after the last of some numbers of draws, or after an earlier one if the draws suffice.

    Attributes
    ----------
    ends
        The numbers of draws of each chain at which the run may end, in rising order.
    limit
        The last of them.
    """

    prefix = ""  # of the cost

    def __init__(self, ends: Sequence[int]):
        self.ends = list(ends)
        self.limit = self.ends[-1]

    def next_end(self, done: int) -> int:
        """Return the next number of draws at which the run may end."""
        return next((n for n in self.ends if n > done), self.limit)

    def __call__(self, done: int) -> bool:
        """Return whether the run ends after so many draws."""
        return (done in self.ends and self.suffices()) or done >= self.limit

    def suffices(self) -> bool:
        """Return whether the draws so far are enough."""
        return False

    def cost(self, n_grad: np.ndarray, gradients: float, seconds: float) -> str:
        """Return a line, for the first draws, that says what all of them will cost.

        It takes the gradients ``(chain,)`` of the warm-up, and for a draw the gradients of each chain and the time for
        all chains.
        """
        cost = f"{self.prefix}{count(self.limit * gradients)} for {self.limit} draws ({_time(self.limit * seconds)})"
        return f"Gradients a chain: {count(np.mean(n_grad))} for warm-up, then {cost}"


class VerdictRule(StoppingRule):
    """The rule of ``draws="auto"``: a run ends once the verdict on its ``result()`` does not ask for more draws.

    The verdict is asked after ``every`` draws, and again after half as many more, in multiples of ``every``, up to the
    first limit above the ``done`` draws of an earlier run; so an interrupted run ends where another one does.  Of
    several processes the first one asks.  ``missing`` is the reason of the last verdict to draw more.
    """

    prefix = "up to "

    def __init__(self, every: int, done: int, result: Callable[[], Any], processes: Processes):
        limit = limit_after(done, every)
        ends = [every]
        while ends[-1] < limit:
            end = ends[-1]
            ends.append(min(end + every * max(1, end // (2 * every)), limit_after(end, every)))
        super().__init__(ends)
        self._result = result
        self._processes = processes
        self.missing: Reason | None = None

    def suffices(self) -> bool:
        """Return whether the verdict asks for no more draws, for all processes what the first one says."""
        enough = True
        if self._processes.primary:
            try:
                self.missing = asks_for_more(self._result())
                enough = self.missing is None
            except Exception:  # no error here may lose the draws
                _log.exception("draws='auto': these draws could not be judged, for an error in it; the run goes on")
                enough = False
        return bool(self._processes.first(int(enough)))

    def report(self, done: int, stored: bool, level: int) -> None:
        """Log why the run ended, at ``level`` or as a warning."""
        if self.missing is None:
            _log.log(level, "draws='auto': %d draws of each chain were enough, of at most %d", done, self.limit)
            return
        more = "store= and resume=True" if stored else "pmm.extend(dt, model=model)"
        _log.warning(
            "draws='auto' ended at its bound, %d draws of each chain, where %s; it goes on with %s",
            done, self.missing, more,
        )  # fmt: skip


def stopping_rule(draws: int | str, chains: int, done: int, recorder: Any, processes: Processes) -> StoppingRule:
    """Return the rule for ``draws`` of each chain or "auto"; refuse fewer draws than the ``done`` ones of a store."""
    if isinstance(draws, str):
        every = -(-first_look(chains) // recorder.rows) * recorder.rows  # whole chunks
        return VerdictRule(every, done, recorder.so_far, processes)
    if done > draws:
        raise ValueError(f"draws={draws}: the store has {done} draws of each chain already; ask for more")
    return StoppingRule([draws])


def _time(seconds: float) -> str:
    """Return an estimated time in seconds, minutes or hours."""
    if seconds < 1.0:
        return "under 1 s"
    if seconds < 100.0:
        return f"{count(seconds)} s"
    if seconds < 6000.0:
        return f"{count(seconds / 60.0)} min"
    return f"{count(seconds / 3600.0)} h"
