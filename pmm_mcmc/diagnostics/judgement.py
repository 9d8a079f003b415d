"""The checks that a verdict on draws and one on moments share, and what they take of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.breaks import Break
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.modes import mode_reasons
from pmm_mcmc.diagnostics.reasons import (
    bias_reasons,
    break_reasons,
    calm,
    conclude,
    disagreement_reasons,
    identity_reasons,
    length_reasons,
    shorter,
    size_reasons,
    unstable_reasons,
)
from pmm_mcmc.diagnostics.spread import spread_reasons
from pmm_mcmc.diagnostics.statement import Reason, Verdict
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = ["Findings", "judge"]


@dataclass(frozen=True)
class Findings:
    """What is known of a result with ``p`` parameters and ``d`` coordinates, from its draws or from their moments.

    Attributes
    ----------
    stats
        Statistics, of draws or of chains.
    chains, draws
        Number of chains, and of draws of each.
    labels
        Names of the parameters.
    r_hat, errors : (p,)
        r_hat, and the standard error of the mean in standard deviations.
    measured
        Biases.
    identity, together
        The Stein identity of each coordinate, and of whitened ones; None where nothing is judged by it.
    degrees
        Degrees of freedom of standard errors.
    moving : (d,)
        Which coordinates vary.
    coordinate
        Function that returns the parameter of a coordinate of the identity.
    kind
        Noun for what the biases are of.
    r_hat_name
        Name of ``r_hat`` in words.
    broken, place
        A jump or a wall between draws; function that returns its parameter and the value there.
    where
        Function that returns words for where transitions were unstable.
    uncertain
        Whose standard deviations are judged by their errors: see :func:`pmm_mcmc.diagnostics.spread.spread_reasons`.
    position, at
        Draws of unconstrained coordinates, and function that returns the parameter of one.
    exact
        Whether the draws are those of an exact leg.
    """

    stats: Any
    chains: int
    draws: int
    labels: Sequence[str]
    r_hat: np.ndarray
    errors: np.ndarray
    measured: Measured
    identity: Identity | None
    degrees: int
    moving: np.ndarray | bool
    coordinate: Callable[[int], str]
    kind: str
    together: Identity | None = None
    r_hat_name: str = "r_hat"
    broken: Break | None = None
    place: Callable[[], tuple[str, float]] | None = None
    where: Callable[[], str] = str
    uncertain: Measured | None = None
    position: np.ndarray | None = None
    at: Callable[[int], str] = str
    exact: bool = False

    @property
    def remedy(self) -> str:
        """What to do about a step that is too long."""
        return shorter(self.stats)

    @property
    def unstable(self) -> int:
        """Number of unstable transitions, of a sampler that has them."""
        counted = "unstable" in self.stats and "acceptance_rate" not in self.stats
        return int(self.stats["unstable"].sum()) if counted else 0

    def of_transitions(self) -> list[Reason]:
        """Return reasons that are seen without a bias: breaks of the density, unstable transitions, disagreement."""
        reasons, stats = [], self.stats
        if self.place is not None:
            reasons += break_reasons(self.broken, *self.place())
        if self.unstable:
            transitions = stats["transitions" if "transitions" in stats else "steps_per_draw"].sum()
            by_model = int(stats["model_failures"].sum()) if "model_failures" in stats else 0
            of_all = self.unstable, self.errors, int(transitions), by_model
            reasons += unstable_reasons(*of_all, self.where(), self.remedy)
        return reasons + disagreement_reasons(self.labels, self.r_hat, self.errors, self.r_hat_name)

    def of_gradients(self) -> tuple[list[Reason], str]:
        """Return reasons that gradients show, and words on standard deviations."""
        if self.identity is None:
            return [], ""
        reasons = identity_reasons(
            self.identity, self.degrees, self.coordinate, self.remedy, self.moving, self.together
        )
        reasons += bias_reasons(self.measured, self.degrees, self.remedy)
        wide, words = spread_reasons(self.uncertain or self.measured)
        return reasons + wide, words


def judge(
    found: Findings,
    more: Iterable[Reason] = (),
    measured: Measured | None = None,
) -> Verdict:
    """Return the verdict on a result.

    Parameters
    ----------
    found
        What is known of it.
    more
        Reasons besides those that :class:`Findings` gives.
    measured
        Biases, where something else than gradients shows them too.
    """
    known = measured or found.measured
    by_gradients, of_sd = found.of_gradients()
    reasons = [*size_reasons(found.chains, found.draws), *found.of_transitions(), *by_gradients, *more]
    settled = known.ruled_out and calm(found.unstable, found.chains * found.draws)
    reasons += length_reasons(found.stats, settled)
    unvisited, note = mode_reasons(found.stats, found.position, found.at, found.exact)
    return conclude(reasons + unvisited, known, found.stats, found.kind, of_sd + note)
