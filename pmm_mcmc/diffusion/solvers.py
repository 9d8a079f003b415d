"""Multistep solvers, the baselines among few calls: DPM-Solver++ (2M), (3M) and the stochastic SDE-DPM-Solver++ (2M).

Lu et al., arXiv:2211.01095, in terms of the estimate of the data, at levels evenly spaced in log signal-to-noise ratio.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pmm_mcmc.diffusion.schedule import DiffusionSchedule

__all__ = ["MultistepRow", "multistep_solver"]


class MultistepRow(NamedTuple):
    """One call: ``X <- x X + d D + d_before D_before + d_earlier D_earlier + noise Z``, ``D`` the data at ``level``."""

    level: int
    x: float
    d: float
    d_before: float
    d_earlier: float
    noise: float


def multistep_solver(
    schedule: DiffusionSchedule, n_calls: int, order: int = 2, stochastic: bool = False
) -> list[MultistepRow]:
    r"""Return the coefficients of the calls of a solver, whose last step is of first order.

    The step is :math:`h` in half the log signal-to-noise ratio.  Earlier calls give the slope and the curvature of the
    estimate of the data, with which the ODE is integrated exactly (algorithm 2 of the paper for order 2).  The SDE has
    noise :math:`\sqrt{(1 - \bar\alpha)(1 - e^{-2h})}` and twice the exponent in the integrals.

    Parameters
    ----------
    schedule
        Gives the levels; its variant has no effect.
    n_calls
        Calls of the network, one a step.
    order
        2 or 3; the first steps, and the second last, are of lower order.  In much published code the curvature counts
        half, which leaves that solver of the second order.
    stochastic
        Whether the SDE is solved, which is of order 2 only.

    Raises
    ------
    ValueError
        If there are not that many levels, the last has no signal, or there is no such solver.
    """
    if not 1 <= n_calls <= schedule.N:
        raise ValueError(f"n_calls={n_calls} is not between 1 and the {schedule.N} levels of the schedule")
    if order not in (2, 3) or (stochastic and order == 3):
        raise ValueError(f"order={order} with stochastic={stochastic}: use 2, or 3 for the solver of the ODE")
    if schedule.signal[-1] == 0.0:
        raise ValueError("DPM-Solver++ needs alphas_cumprod[-1] > 0: its time is the log signal-to-noise ratio")
    ratio = 0.5 * np.log(schedule.signal[1:] / schedule.noise[1:])
    levels = _levels(ratio, n_calls)
    rows = []
    for i, (level, next_level) in enumerate(pairwise(levels)):
        h = ratio[next_level - 1] - ratio[level - 1]
        exponent = 2.0 * h if stochastic else h
        signal = np.sqrt(schedule.signal[next_level])
        weight = -signal * np.expm1(-exponent)
        data = np.array([weight, 0.0, 0.0])
        previous_length = (ratio[level - 1] - ratio[levels[max(i - 1, 0)] - 1]) / h
        if i >= 2 and order == 3 and i < n_calls - 2:
            earlier_length = (ratio[levels[i - 1] - 1] - ratio[levels[i - 2] - 1]) / h
            slope_now = np.array([1.0, -1.0, 0.0]) / previous_length
            slope_then = np.array([0.0, 1.0, -1.0]) / earlier_length
            curvature = (slope_now - slope_then) / (previous_length + earlier_length)
            data += signal * (1.0 + np.expm1(-h) / h) * (slope_now + previous_length * curvature)
            data += signal * (1.0 - 2.0 * (np.expm1(-h) + h) / h**2) * curvature
        elif i >= 1:
            data += weight * np.array([0.5, -0.5, 0.0]) / previous_length
        shrink = np.sqrt(schedule.noise[next_level] / schedule.noise[level]) * np.exp(h - exponent)
        noise = np.sqrt(schedule.noise[next_level] * -np.expm1(-exponent)) if stochastic else 0.0
        of_data, of_previous, of_earlier = map(float, data)
        rows.append(MultistepRow(int(level), float(shrink), of_data, of_previous, of_earlier, float(noise)))
    return [*rows, MultistepRow(int(levels[-1]), 0.0, 1.0, 0.0, 0.0, 0.0)]


def _levels(ratio: np.ndarray, n_calls: int) -> np.ndarray:
    """Return the levels of the calls, evenly spaced in the log ratios of levels 1 to N as far as these allow."""
    wanted = np.linspace(ratio[-1], ratio[0], n_calls)
    levels = np.array([1 + int(np.abs(ratio - value).argmin()) for value in wanted])
    # Near the clean end the levels lie further apart than the even spacing, and the solver takes each of them.
    order = np.arange(n_calls)
    return np.minimum(np.maximum.accumulate((levels + order)[::-1])[::-1] - order, ratio.size - order)
