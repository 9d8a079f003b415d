r"""Log evidence from the levels of a ladder of temperatures, by stepping stones and by Bennett's acceptance ratio.

With ``l`` the log ratio, level ``i`` has draws of :math:`\pi_i \propto q\,e^{\beta_i l}`, so that for the evidences
of two levels, with :math:`\Delta = \beta_{i+1} - \beta_i`

.. math:: \frac{Z_{i+1}}{Z_i} = E_i[e^{\Delta l}] = \frac{1}{E_{i+1}[e^{-\Delta l}]}
   = e^c \frac{E_i[\sigma(\Delta l - c)]}{E_{i+1}[\sigma(c - \Delta l)]},

forward, backward, and Bennett's [1]_ with the logistic function and any ``c``, best near the log of the ratio itself.

Sums over draws are kept for *units*, which are independent: the replicas of the ladder.  Standard errors are jackknives
over units; where these are few, they are multiplied by Student's quantile over 1.96, so that 1.96 standard errors to
each side are a 95 % interval.

.. [1] C. H. Bennett, "Efficient estimation of free energy differences from Monte Carlo data", J. Comput. Phys. 22
   (1976).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp, ndtri, stdtrit


class LogEvidence(NamedTuple):
    """Estimates of log evidence, each with its standard error.

    ``gap`` is the forward minus the backward estimate, which is 0 but for errors.
    """

    bennett: float
    bennett_se: float
    forward: float
    forward_se: float
    backward: float
    backward_se: float
    gap: float
    gap_se: float


@dataclass
class LadderSums:
    """Sums over the draws of a ladder of ``N + 1`` levels, for each of ``u`` units."""

    betas: np.ndarray  # (N + 1,): the inverse temperatures
    centres: np.ndarray  # (N,): Bennett's constants c
    count: np.ndarray  # (u,): draws
    forward: np.ndarray  # (u, N): logarithms of the sums of exp(D l) at the hotter level of each pair
    backward: np.ndarray  # (u, N): and of exp(-D l) at the colder one
    up: np.ndarray  # (u, N): sums of the logistic functions, at both
    down: np.ndarray

    @classmethod
    def start(cls, betas: np.ndarray, log_ratio: np.ndarray, units: int) -> LadderSums:
        """Begin with no draws; constants come from earlier log ratios ``(n, N + 1)``."""
        with np.errstate(invalid="ignore"):  # medians: a mean may be that of one draw far out in a tail
            middle = np.array([np.median(column[np.isfinite(column)]) for column in log_ratio.T])
        self = cls._empty(betas, 0.5 * np.diff(betas) * (middle[1:] + middle[:-1]), units)
        for _ in range(3):  # the best constant is the log of the ratio that it gives: a fixed point
            trial = cls._empty(betas, self.centres, 1)
            trial.add(np.zeros(1, int), log_ratio[:, None])
            ratios = trial.ratios("bennett", np.ones((1, 1), bool))[0]
            self.centres = np.where(np.isfinite(ratios), ratios, self.centres)
        return self

    @classmethod
    def _empty(cls, betas: np.ndarray, centres: np.ndarray, units: int) -> LadderSums:
        shape = (units, len(centres))
        logarithms = np.full(shape, -np.inf)
        sums = np.zeros(shape)
        return cls(betas, centres, np.zeros(units, np.int64), logarithms, logarithms.copy(), sums, sums.copy())

    def add(self, units: np.ndarray, log_ratio: np.ndarray) -> None:
        """Add draws of ``m`` units with log ratios ``(n, m, N + 1)``."""
        steps = np.diff(self.betas)
        hotter = steps * log_ratio[..., :-1]
        colder = steps * log_ratio[..., 1:]
        with np.errstate(all="ignore"):
            self.count[units] += len(log_ratio)
            self.forward[units] = np.logaddexp(self.forward[units], logsumexp(hotter, axis=0))
            self.backward[units] = np.logaddexp(self.backward[units], logsumexp(-colder, axis=0))
            self.up[units] += expit(hotter - self.centres).sum(axis=0)
            self.down[units] += expit(self.centres - colder).sum(axis=0)

    def ratios(self, estimator: str, units: np.ndarray) -> np.ndarray:
        """Return the logarithms ``(k, N)`` of the ratios of neighbouring evidences, by an ``estimator``.

        They are from ``k`` sets of units, which the rows of ``units`` ``(k, u)`` mark with 1.
        """
        count = np.log(units @ self.count)[:, None]
        with np.errstate(all="ignore"):
            if estimator == "bennett":
                return self.centres + np.log(units @ self.up) - np.log(units @ self.down)
            logs = self.forward if estimator == "forward" else self.backward
            top = logs.max(axis=0)
            total = np.log(units @ np.exp(logs - top)) + top - count
            return total if estimator == "forward" else -total

    def evidence(self) -> LogEvidence:
        """Return the estimates; standard errors are NaN with fewer than two units."""
        used = np.flatnonzero(self.count)
        units = np.zeros((1 + len(used), len(self.count)))  # all, and all but each one
        units[:, used] = 1.0
        units[np.arange(1, 1 + len(used)), used] = 0.0
        units = units if len(used) > 1 else units[:1]
        estimates = {name: self.ratios(name, units).sum(axis=1) for name in ("bennett", "forward", "backward")}
        estimates["gap"] = estimates["forward"] - estimates["backward"]
        student_ratio = float(stdtrit(max(len(used) - 1, 1), 0.975) / ndtri(0.975))
        fields = []
        for values in estimates.values():
            fields += [float(values[0]), student_ratio * jackknife(values[1:])]
        return LogEvidence(*fields)


def jackknife(left_out: np.ndarray) -> float:
    """Return the standard error of an estimate from its values without each of the units."""
    n = len(left_out)
    if n < 2:
        return float("nan")
    with np.errstate(invalid="ignore"):
        return float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
