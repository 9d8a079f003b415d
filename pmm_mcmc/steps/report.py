"""Counts of what went wrong while chains sampled, and sums that say where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.hosts import Hosts

__all__ = ["Observed", "Sums", "UnstableReport"]


class Observed(NamedTuple):
    """Draws ``(n, d)`` or ``(chain, n, d)``, and their counts."""

    position: np.ndarray
    unstable: np.ndarray
    model_failures: np.ndarray

    @classmethod
    def of(cls, chunk: Any) -> Observed:
        """Take from an engine's chunk what is reported."""
        return cls(chunk.model_position, chunk.unstable, chunk.model_failures)


@dataclass
class Sums:
    """Sums over draws of each of many chains, one draw after the other: no batch, piece or process changes rounding.

    Attributes
    ----------
    origin : (d,)
        What positions are counted from.
    counts : (chain, 4)
        Draws, rejected transitions, those that the model is to blame for, and draws with any.
    total, squares, unstable_total : (chain, d)
        Of positions, of their squares, and of the positions of draws with a rejected transition.
    """

    origin: np.ndarray
    counts: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    unstable_total: np.ndarray

    def observe(self, which: slice, observed: Observed) -> None:
        """Add draws ``(chain, n, d)`` of some of the chains."""
        bad = observed.unstable > 0
        counted = np.ones_like(observed.unstable), observed.unstable, observed.model_failures, bad
        self.counts[which] += np.stack(counted, axis=-1).sum(axis=1)
        total, squares, unstable_total = self.total[which], self.squares[which], self.unstable_total[which]
        for i, any_bad in enumerate(bad.any(axis=0)):
            shifted = observed.position[:, i] - self.origin
            total += shifted
            if any_bad:
                unstable_total += np.where(bad[:, i, None], shifted, 0.0)
            shifted *= shifted
            squares += shifted

    def joined(self, hosts: Hosts) -> Sums:
        """Return the sums of the chains of all processes."""
        return Sums(self.origin, *hosts.join(self.counts, self.total, self.squares, self.unstable_total))


@dataclass
class UnstableReport:
    """Running sums over the draws after warm-up: all of them, and those with a rejected transition."""

    transitions: int = 0
    draws: int = 0
    unstable: int = 0
    model_failures: int = 0
    unstable_draws: int = 0
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0
    unstable_total: np.ndarray | float = 0.0
    origin: np.ndarray | float | None = None

    def observe(self, chunk: Observed, rows: slice, thin: int) -> None:
        """Add some draws ``(n, d)`` of a chunk, each after ``thin`` transitions."""
        position, unstable, model_failures = chunk.position[rows], chunk.unstable[rows], chunk.model_failures[rows]
        if self.origin is None:
            self.origin = position[0].copy()
        shifted = position - self.origin
        bad = unstable > 0
        self.transitions += thin * len(unstable)
        self.draws += len(unstable)
        self.unstable += int(unstable.sum())
        self.model_failures += int(model_failures.sum())
        self.unstable_draws += int(bad.sum())
        self.total = self.total + shifted.sum(axis=0)
        self.squares = self.squares + (shifted**2).sum(axis=0)
        self.unstable_total = self.unstable_total + shifted[bad].sum(axis=0)

    def sums(self, chains: int, origin: np.ndarray) -> Sums:
        """Return sums over no draws yet of many chains; the origin counts where none is settled."""
        if self.origin is None:
            self.origin = origin.copy()
        nothing = np.zeros((3, chains, len(origin)))
        return Sums(np.asarray(self.origin), np.zeros((chains, 4), np.int64), *nothing)

    def add(self, sums: Sums, thin: int) -> None:
        """Add what was summed over draws of all chains, each after ``thin`` transitions."""
        draws, unstable, model_failures, unstable_draws = (int(count) for count in sums.counts.sum(axis=0))
        self.transitions += thin * draws
        self.draws += draws
        self.unstable += unstable
        self.model_failures += model_failures
        self.unstable_draws += unstable_draws
        self.total = self.total + sums.total.sum(axis=0)
        self.squares = self.squares + sums.squares.sum(axis=0)
        self.unstable_total = self.unstable_total + sums.unstable_total.sum(axis=0)
