r"""Parallel tempering in numbers: swaps, the communication barrier, and the ladder of temperatures that it gives.

The path from a reference ``q`` to a target ``gamma`` is :math:`\pi_\beta \propto q^{1-\beta} \gamma^\beta = q\,
e^{\beta l}` with :math:`l = \log\gamma - \log q`.  Chains at neighbouring temperatures swap by turns, even pairs and
odd pairs [1]_.  On fine ladders the sum over pairs of the rejections :math:`r_i` is the barrier

.. math:: \Lambda = \int_0^1 \tfrac12 E|l - l'|\,d\beta

for independent :math:`l, l'` at one temperature, and the best ladder rejects all pairs equally often.  On coarse ones a
pair's barrier is :math:`\Lambda_i = (2 / \sqrt\pi)\,\mathrm{erf}^{-1}(r_i)`, which is exact for normal ``l`` of one
variance.

.. [1] S. Syed, A. Bouchard-Cote, G. Deligiannidis and A. Doucet, "Non-reversible parallel tempering: a scalable highly
   parallel MCMC scheme", JRSS B 84 (2022).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import erfinv

__all__ = [
    "barriers", "equal_rejection", "expected_rejections", "pairs_for", "step_of_ess",
    "swap_log_ratio",
]  # fmt: skip

# A pair that rejects every swap has an infinite barrier, which no ladder could divide.
_MOST_REJECTED = 0.9999


def swap_log_ratio(betas: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """Return the log acceptance ratio ``(..., N)`` of swaps of neighbours, from ``l`` ``(..., N + 1)`` at each level.

    A reference may be drawn where the target's density is 0: there ``l`` is minus infinity, and nothing is swapped.
    """
    next_log_ratio = np.where(np.isfinite(log_ratio[..., 1:]), log_ratio[..., 1:], 0.0)
    return np.where(np.isfinite(log_ratio[..., 1:]), np.diff(betas) * (log_ratio[..., :-1] - next_log_ratio), 0.0)


def expected_rejections(betas: np.ndarray, log_ratio: list[np.ndarray]) -> np.ndarray:
    """Return the rejection ``(N,)`` of each pair of neighbours from independent values of ``l`` at each level."""
    out = np.empty(len(betas) - 1)
    for i, change in enumerate(np.diff(betas)):
        apart = change * (log_ratio[i][:, None] - log_ratio[i + 1][None, :])
        out[i] = 1.0 - np.exp(np.minimum(apart, 0.0)).mean()
    return out


def barriers(rejections: np.ndarray) -> np.ndarray:
    """Return the barrier between the neighbours of each pair."""
    return np.asarray(2.0 / math.sqrt(math.pi) * erfinv(np.clip(rejections, 0.0, _MOST_REJECTED)))


def equal_rejection(betas: np.ndarray, rejections: np.ndarray, pairs: int) -> np.ndarray:
    """Return the ladder ``(pairs + 1,)`` whose pairs are rejected equally often, by the barrier of another ladder."""
    # A pair that is never rejected still has a length: the barrier's inverse must be a function.
    lengths = barriers(rejections)
    lengths = np.maximum(lengths, 1e-6 * max(float(lengths.sum()), 1.0) * np.diff(betas))
    barrier = np.concatenate([[0.0], np.cumsum(lengths)])
    ladder = np.asarray(PchipInterpolator(barrier, betas)(np.linspace(0.0, barrier[-1], pairs + 1)))
    ladder[0] = 0.0
    ladder[-1] = 1.0
    return ladder


def pairs_for(barrier: float) -> int:
    """Return the number of pairs with which half of the swaps are accepted, two at least."""
    return max(2, math.ceil(2.0 * barrier))


def step_of_ess(log_ratio: np.ndarray, largest: float, share: float) -> float:
    """Return the largest step of temperature, up to ``largest``, that keeps an effective sample size.

    It is that of particles with weights ``exp(step l)``, as a ``share`` of their number; ``log_ratio`` ``(n,)`` are
    their values of ``l``.
    """

    def effective(step: float) -> float:
        weights = np.exp(step * (log_ratio - log_ratio.max()))
        return float(weights.sum() ** 2 / (weights**2).sum()) / len(weights)

    if effective(largest) >= share:
        return largest
    low = 0.0
    high = largest
    for _ in range(100):
        middle = 0.5 * (low + high) if low > 0.0 else high / 16.0
        low, high = (middle, high) if effective(middle) >= share else (low, middle)
        if low > 0.0 and high - low < 1e-3 * high:
            break
    return low if low > 0.0 else high
