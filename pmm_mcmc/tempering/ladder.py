r"""Replicas of a ladder of temperatures in progress, and the log evidence from its levels.

A scan moves at every level, then swaps neighbours.  The log evidence is by stepping stones and by Bennett's acceptance
ratio.  With ``l`` the log ratio, level ``i`` has draws of :math:`\pi_i \propto q\,e^{\beta_i l}`, so that for the
evidences of two levels, with :math:`\Delta = \beta_{i+1} - \beta_i`

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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import expit, logsumexp, ndtri, stdtrit

from pmm_mcmc.diagnostics.mode_search import OtherModes
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.tempering.modes import MOST_MODES, Modes
from pmm_mcmc.tempering.path import Moved, Points, TemperingPath, barriers, swap_log_ratio

# The group of a result, and its numbers of the evidence by their names there.
LADDER = "ladder"
_EVIDENCE = {
    "log_evidence": "bennett",
    "log_evidence_forward": "forward",
    "log_evidence_backward": "backward",
    "forward_minus_backward": "gap",
}

# What random numbers are for: parts of their keys.
REFERENCE = 1
SWAPS = 2
SEARCHES = 4
# Where a chain was last, of the two ends of a ladder.
_AT_REFERENCE = 1
_AT_POSTERIOR = 2


class Scan(NamedTuple):
    """What a scan leaves behind, for ``C`` replicas and ``N + 1`` levels."""

    draws: Points  # at the posterior, of C replicas
    before: np.ndarray  # (C, N + 1): log ratios at each level before the moves
    log_ratio: np.ndarray  # and after them
    swaps: np.ndarray  # (C, N): probability that each pair swaps, tried or not
    n_grad: np.ndarray  # (C, N + 1): gradients, mean acceptance and divergences at each level
    accept: np.ndarray
    unstable: np.ndarray
    arrived: np.ndarray  # (C,): whether the draw of each replica is the first of a restart


@dataclass
class Trips:
    """The trips of ``P`` chains between the reference and the posterior of ``C`` replicas."""

    last_end: np.ndarray  # (P,): where the chain was last, at _AT_REFERENCE or at _AT_POSTERIOR; 0 if at neither
    arrived: np.ndarray  # (C,): whether the chain at the posterior has just come from the reference, a restart
    restarts: np.ndarray  # (C,): trips from the reference to the posterior, since the tuning
    round_trips: np.ndarray  # (C,): trips back

    @classmethod
    def none(cls, chains: int, replicas: int) -> Trips:
        """Return a record without any."""
        none = np.zeros(replicas, np.int64)
        return cls(np.zeros(chains, np.int8), np.zeros(replicas, bool), none, none.copy())

    def swapped(self, at_reference: np.ndarray, at_posterior: np.ndarray) -> None:
        """Count trips after a swap, by the chains ``(C,)`` that are at the ends."""
        self.round_trips += self.last_end[at_reference] == _AT_POSTERIOR
        self.last_end[at_reference] = _AT_REFERENCE
        self.arrived = self.last_end[at_posterior] == _AT_REFERENCE
        self.last_end[at_posterior] = _AT_POSTERIOR


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


@dataclass
class Ladder:
    """``C`` replicas of a ladder of ``N + 1`` levels, of ``P`` chains: all that is needed to continue, bit for bit.

    Chains stay where they are in memory; ``chain_at`` says which of them is at which level, and a swap changes it.
    """

    key: np.ndarray  # (2,) uint64: of all random numbers
    betas: np.ndarray  # (N + 1,): the inverse temperatures
    settings: list[TunedParameters]  # of each level: steps_per_draw moves of K transitions between swaps
    mixture: GaussianMixture | None  # the reference; None where it is the prior
    position: np.ndarray  # (P, d)
    evaluation: np.ndarray  # (P, 3 d + 2): see Points
    keys: np.ndarray  # (P, 2): of the random numbers of each chain
    chain_at: np.ndarray  # (C, N + 1): the chain at each level of each replica
    scan: int = 0  # scans so far
    transition: int = 0  # moves so far
    trips: Trips = field(default_factory=lambda: Trips.none(0, 0))
    sums: LadderSums | None = None  # for the log evidence, since the tuning
    swapped: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (N,): sums of swap probabilities since then
    done: int = 0  # draws
    n_grad: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (C,): gradients of each replica
    tuning_gradients: float = 0.0  # of all chains before the draws
    modes: Modes | None = None  # of the draws, once they are weighed, without labels of draws
    other_modes: OtherModes = field(default_factory=OtherModes)  # that no chain at the posterior has visited

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.chain_at)

    @property
    def pairs(self) -> int:
        """Number of pairs of neighbours."""
        return len(self.betas) - 1

    @property
    def tuned(self) -> TunedParameters:
        """The setting at the posterior."""
        return self.settings[-1]

    def reports(self, new: bool = False) -> dict[str, xr.Dataset]:
        """Return the groups of the result beside its draws, which change with each chunk."""
        return {LADDER: report_of(self)}

    def place(self, betas: np.ndarray, settings: list[TunedParameters], replicas: int, order: np.ndarray) -> None:
        """Put ``replicas`` on a new ladder of temperatures; chains are taken in ``order``, from the reference on."""
        levels = len(betas)
        P = len(self.position)
        self.betas = betas
        self.settings = settings
        fraction = (np.arange(levels)[None, :] + (np.arange(replicas)[:, None] + 0.5) / replicas) / levels
        self.chain_at = order[np.floor(fraction * P).astype(int)]
        self.trips = Trips.none(P, replicas)

    def advance(self, path: TemperingPath, map_levels: Callable[..., list[Moved]]) -> Scan:
        """Move at every level (at the reference by draws) and swap; ``map_levels`` maps a function over levels."""
        C = self.replicas
        N = self.pairs
        chain_at = self.chain_at
        earlier_log_ratio = self.evaluation[chain_at, -2]
        self._put(0, path.draw((*self.key.tolist(), REFERENCE, self.scan), C))
        n_grad = np.ones((C, N + 1), np.int64)
        accept = np.ones((C, N + 1))
        unstable = np.zeros((C, N + 1), np.int64)

        def explore(k: int) -> Moved:
            chain = chain_at[:, k]
            points = Points(self.position[chain], self.evaluation[chain])
            moves = self.settings[k].steps_per_draw
            return path.move(self.settings[k], points, self.keys[chain], self.transition, moves)

        for k, moved in zip(range(1, N + 1), map_levels(explore, range(1, N + 1)), strict=True):
            self._put(k, moved.points)
            n_grad[:, k] = moved.n_grad
            accept[:, k] = moved.accept
            unstable[:, k] = moved.unstable
        self.transition += max(setting.steps_per_draw for setting in self.settings[1:])
        draws = Points(self.position[chain_at[:, N]], self.evaluation[chain_at[:, N]])
        log_ratio = self.evaluation[chain_at, -2]
        arrived = self.trips.arrived
        self.trips.restarts += arrived
        swaps = self._swap(log_ratio)
        return Scan(draws, earlier_log_ratio, log_ratio, swaps, n_grad, accept, unstable, arrived)

    def freeze(self, log_ratio: np.ndarray) -> None:
        """End the tuning: sums and counts begin, with constants from earlier log ratios ``(n, N + 1)``."""
        self.sums = LadderSums.start(self.betas, log_ratio, self.replicas)
        self.swapped = np.zeros(self.pairs)
        for counts in (self.trips.restarts, self.trips.round_trips, self.trips.arrived):
            counts[:] = 0
        self.tuning_gradients = float(self.n_grad.sum())

    def draw(self, path: TemperingPath, map_levels: Callable[..., list[Moved]]) -> Scan:
        """Advance by a scan whose end is a draw of each replica; see :meth:`advance`."""
        assert self.sums is not None
        scan = self.advance(path, map_levels)
        self.sums.add(np.arange(self.replicas), scan.log_ratio[None])
        self.swapped += scan.swaps.mean(axis=0)
        self.done += 1
        self.modes = None
        return scan

    def _put(self, k: int, points: Points) -> None:
        self.position[self.chain_at[:, k]], self.evaluation[self.chain_at[:, k]] = points

    def _swap(self, log_ratio: np.ndarray) -> np.ndarray:
        """Swap every second pair where accepted; return the acceptance probabilities of all."""
        ratio = swap_log_ratio(self.betas, log_ratio)
        rng = np.random.default_rng([*self.key.tolist(), SWAPS, self.scan])
        accepted = np.log1p(-rng.random(ratio.shape)) < ratio
        accepted[:, 1 - self.scan % 2 :: 2] = False
        replica, level = np.nonzero(accepted)
        chain_at = self.chain_at.copy()
        chain_at[replica, level] = self.chain_at[replica, level + 1]
        chain_at[replica, level + 1] = self.chain_at[replica, level]
        self.chain_at = chain_at
        self.trips.swapped(chain_at[:, 0], chain_at[:, -1])
        self.scan += 1
        return np.exp(np.minimum(ratio, 0.0))


def report_of(ladder: Ladder) -> xr.Dataset:
    """Return the group of a result on a ladder, without names of coordinates; ``MOST_MODES`` modes, the others NaN."""
    rung = ("rung",)
    pair = ("pair",)
    mode = ("mode",)
    d = ladder.position.shape[1]
    rejected = np.full(ladder.pairs, np.nan) if ladder.done == 0 else 1.0 - ladder.swapped / ladder.done
    evidence = None if ladder.sums is None or ladder.done == 0 else ladder.sums.evidence()
    data: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, of in _EVIDENCE.items():
        data[name] = (), np.asarray(np.nan if evidence is None else getattr(evidence, of))
        data[f"{name}_se"] = (), np.asarray(np.nan if evidence is None else getattr(evidence, f"{of}_se"))
    settings = ladder.settings[1:]
    data |= {
        "temperature": (rung, ladder.betas),
        "barrier": (rung, np.concatenate([[0.0], np.cumsum(barriers(rejected))])),
        "swap_rate": (pair, 1.0 - rejected),
        "gaussians": ((), np.asarray(0 if ladder.mixture is None else len(ladder.mixture.mean))),
        "restarts": ((), np.asarray(ladder.trips.restarts.sum())),
        "round_trips": ((), np.asarray(ladder.trips.round_trips.sum())),
        "step_size": (pair, np.array([setting.step_size for setting in settings])),
        "K": (pair, np.array([setting.K for setting in settings])),
        "trajectories": (pair, np.array([setting.steps_per_draw for setting in settings])),
        "gradients": ((), np.asarray(float(ladder.n_grad.sum()))),
        "tuning_gradients": ((), np.asarray(float(ladder.tuning_gradients))),
        "mode_weight": (mode, np.full(MOST_MODES, np.nan)),
        "mode_weight_se": (mode, np.full(MOST_MODES, np.nan)),
        "mode_restarts": (mode, np.zeros(MOST_MODES, np.int64)),
        "mode_centre": (("mode", "coordinate"), np.full((MOST_MODES, d), np.nan)),
    }
    if ladder.modes is not None:
        for name in ("weight", "weight_se", "restarts", "centre"):
            data[f"mode_{name}"][1][: len(ladder.modes.weight)] = getattr(ladder.modes, name)
    return xr.Dataset(data, {"mode": np.arange(MOST_MODES), "rung": np.arange(ladder.pairs + 1)})
