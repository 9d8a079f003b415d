r"""Blocks chosen for the data: edges by dynamic programming on the exact law for Gaussian data.

Let a block from ``t`` to ``t - K`` start where the chain itself has the variance :math:`v_t`.  Its mean over the
midpoints is off by :math:`m v_t + q - v_{t-K}`, its random midpoint adds :math:`m' v_t + q'`, and the rest of the chain
carries both to the samples by the factor :math:`P_{t-K}`, the product of its own :math:`m`.  So a block costs

.. math:: c(t, K) = \max_l \frac{P_{t-K}}{v_0} \left(|m v_t + q - v_{t-K}| + m' v_t + q'\right)

and the sum of the costs over the blocks bounds, to first order, the relative error of the variance of the samples for
all data variances ``l`` of the range.  It is minimised exactly, over all edges.  The two parts are not allowed to
cancel, as they do where a block is far too long: on data that are not Gaussian they would not.

A block of a flow has the larger of two such costs: with the prediction that is frozen, and with that for data of
variance 10.  For Gaussian data of one variance a frozen prediction is exact however long the block is (``v``: of
variance 1), and a plan that relies on it makes blocks too long for other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.gaussian import block_moments, gains
from pmm_mcmc.diffusion.schedule import DiffusionSchedule

# Measured on a network that was not used for the choice: docs/diffusion.md, "Evidence for flows".
_ALSO_FROZEN = 10.0


def _costs(schedule: DiffusionSchedule, law: Blocks, variances: np.ndarray) -> np.ndarray:
    """Return the cost of a block by its first and last level, ``(N + 1, N + 1)``: infinite below two steps."""
    N = schedule.N
    a, b, sigma = (c[:, None] for c in schedule.coefficients(law.frozen))
    factor = (a + b * gains(schedule, law.frozen, variances)) ** 2
    variance = np.ones((N + 1, variances.size))  # of the chain's state at each level
    to_samples = np.ones((N + 1, variances.size))  # factor of an error at a level in the samples
    for level in range(N, 0, -1):
        variance[level - 1] = factor[level] * variance[level] + sigma[level] ** 2
    for level in range(1, N + 1):
        to_samples[level] = factor[level] * to_samples[level - 1]
    costs = np.full((N + 1, N + 1), np.inf)
    starts = np.arange(N, 0, -1)
    for K, moments in enumerate(block_moments(schedule, law, variances, starts, N), start=1):
        if K > 1:
            t = np.arange(N, K - 1, -1)
            with np.errstate(over="ignore", invalid="ignore"):
                m, q, spread_m, spread_q = (values[: t.size] for values in moments)
                error = np.abs(m * variance[t] + q - variance[t - K]) + spread_m * variance[t] + spread_q
                cost = np.max(error * to_samples[t - K] / variance[0], axis=1)
            costs[t, t - K] = np.nan_to_num(cost, nan=np.inf)
    return costs


def plan_blocks(
    schedule: DiffusionSchedule,
    n_steps: int,
    variances: Sequence[float] = (1e-3, 100.0),
    *,
    midpoint: str = "importance",
    frozen: str | float = "v",
) -> Blocks:
    """Return the best blocks for data whose variances, direction by direction, lie in a range.

    Parameters
    ----------
    schedule
        The chain that is to be approximated.
    n_steps
        Number of blocks; the network is called twice in each.
    variances
        Smallest and largest variance of the data along any direction, in the units that the network sees: the largest
        eigenvalue of the covariance of the data, and the variance of the finest detail that should be right.  Better
        too wide than too narrow: the calls saved by a range that is too narrow are paid for in errors outside.
    midpoint, frozen
        As of :class:`~pmm_mcmc.diffusion.Blocks`.

    Returns
    -------
    Blocks
        With the least cost of all of ``n_steps`` blocks.  :func:`~pmm_mcmc.diffusion.gaussian_variance` of
        them and of the chain shows their error.

    Raises
    ------
    ValueError
        If ``n_steps`` is impossible or the range is not one of positive numbers.
    """
    low, high = variances
    if not 0.0 < low <= high < np.inf:
        raise ValueError(f"variances={variances!r}: give the smallest and the largest, 0 < smallest <= largest")
    law = Blocks.shrinking(schedule.N, n_steps, midpoint=midpoint, frozen=frozen)
    # Two variances a factor of two: between them the errors are smooth.
    grid = np.geomspace(low, high, 1 + int(np.ceil(2.0 * np.log2(high / low))))
    costs = _costs(schedule, law, grid)
    # The chains of DDPM gain nothing by it, and lose some per cent on Gaussian data.
    if schedule.variant == "sde":
        costs = np.maximum(costs, _costs(schedule, replace(law, frozen=_ALSO_FROZEN), grid))
    best = np.full(schedule.N + 1, np.inf)
    best[0] = 0.0
    choices = []
    for _ in range(n_steps):
        choice = np.argmin(costs + best, axis=1)
        best = np.min(costs + best, axis=1)
        choices.append(choice)
    edges = [schedule.N]
    for choice in reversed(choices):
        edges.append(int(choice[edges[-1]]))
    return Blocks(tuple(edges), midpoint, frozen)
