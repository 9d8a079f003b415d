r"""Exact variance of each sampler's draws for Gaussian data: no Monte Carlo, no small step.

For data :math:`N(0, l)` the exact network is linear in the state, so that given its midpoints every sampler is linear
in the state and in its noise, and the variance runs down the levels as :math:`V' = m V + q`, with the expectation over
the midpoints in :math:`m` and :math:`q`.  Data with a covariance matrix are the case of its eigenvalues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.schedule import DiffusionSchedule


def gains(schedule: DiffusionSchedule, kind: str | float, variances: np.ndarray) -> np.ndarray:
    r"""Return :math:`g`, ``(N + 1, L)``, with :math:`f(x, n) = g_n x` for the exact network; row 0 is not used.

    The exact estimate of the data is :math:`\hat x_0 = \sqrt{\bar\alpha} l / (\bar\alpha l + 1 - \bar\alpha) x`.
    """
    signal = schedule.signal[:, None]
    noise = schedule.noise[:, None]
    total = signal * variances + noise
    if kind == "x0":
        return np.sqrt(signal) * variances / total
    x0_x, x0_f, eps_x, eps_f = (column[:, None] for column in schedule.estimates(kind))
    by_noise = eps_f != 0.0
    data = np.sqrt(signal) * variances / total
    divisor = np.where(by_noise, eps_f, np.where(x0_f != 0.0, x0_f, 1.0))
    return np.where(by_noise, np.sqrt(noise) / total - eps_x, data - x0_x) / divisor


class Moments(NamedTuple):
    """Coefficients of the variance ``V`` of the state after a block, each ``(len(starts), L)``.

    The mean over the midpoints has the variance ``m V + q``, and the random midpoint adds ``spread_m V + spread_q``.
    """

    m: np.ndarray
    q: np.ndarray
    spread_m: np.ndarray
    spread_q: np.ndarray


def block_moments(
    schedule: DiffusionSchedule, law: Blocks, variances: np.ndarray, starts: np.ndarray, longest: int
) -> Iterator[Moments]:
    r"""Yield, for ``K = 1, 2, ..., longest``, what blocks of ``K`` steps do to the variance of data ``(L,)``.

    Blocks begin at the levels ``starts``; those that would end below level 0 have meaningless entries.  ``law`` gives
    the law of the midpoints and what is frozen; its edges are not used.

    The moments follow by recursion in ``K``.  With the corrections :math:`D_\tau` of weight one, all linear in state
    and noise, the mean over the midpoints is the chain with every cell corrected.  About it one midpoint has the second
    moment :math:`\sum_\tau D_\tau^2 / q_\tau - (\sum_\tau D_\tau)^2`, and Option 1 has
    :math:`(K - 1) \sum_\tau D_\tau^2`.
    """
    a_all, b_all, sigma_all = (c[:, None] for c in schedule.coefficients(law.frozen))
    g_all = gains(schedule, law.frozen, variances)
    g0 = g_all[starts]
    shape = g0.shape
    # For the path with frozen prediction, the factor of the state and the variance of its noise; for the mean the
    # same, and the covariance of the two noises.
    frozen = np.ones(shape)
    noise = np.zeros((len(starts), 1))
    mean = np.ones(shape)
    mean_noise = np.zeros(shape)
    mixed = np.zeros(shape)
    # Sums over the midpoints so far: of their second moments over the unnormalised q, and of these q.
    on_state = np.zeros(shape)
    on_noise = np.zeros(shape)
    total = np.zeros((len(starts), 1))
    for k in range(longest):
        level = np.maximum(starts - k, 1)
        a = a_all[level]
        b = b_all[level]
        sigma = sigma_all[level]
        g = g_all[level]
        d_state = b * (g * frozen - g0) if k else np.zeros(shape)
        d_noise = b * g if k else np.zeros(shape)
        if law.midpoint == "importance":
            raw = np.abs(b) * np.sqrt(k)
            shrink = np.abs(a)
        else:
            raw = np.full_like(b, float(k > 0))
            shrink = a**2
        over = np.divide(1.0, raw, out=np.zeros_like(raw), where=raw > 0.0)
        on_state = shrink * on_state + d_state**2 * over
        on_noise = shrink * on_noise + d_noise**2 * noise * over
        total = (shrink if law.midpoint == "importance" else 1.0) * total + raw
        mean = a * mean + b * g0 + d_state
        mean_noise = a**2 * mean_noise + 2.0 * a * d_noise * mixed + d_noise**2 * noise + sigma**2
        mixed = a * (a * mixed + d_noise * noise) + sigma**2
        frozen = a * frozen + b * g0
        noise = a**2 * noise + sigma**2
        if law.midpoint == "bernoulli":
            spread = k * on_state
            spread_noise = k * on_noise
        else:
            # The sum of the corrections is the mean less the path that is frozen throughout.
            spread = total * on_state - (mean - frozen) ** 2
            spread_noise = total * on_noise - (mean_noise - 2.0 * mixed + noise)
        yield Moments(mean**2, mean_noise, spread, spread_noise)


def gaussian_variance(schedule: DiffusionSchedule, variances: ArrayLike, blocks: Blocks | None = None) -> np.ndarray:
    r"""Return the exact variance of the Poisson midpoint method's samples for Gaussian data and an exact network.

    Parameters
    ----------
    schedule
        The chain, started from :math:`N(0, 1)`.
    variances
        Of the data, any shape.
    blocks
        How the chain is approximated; by default not at all: the chain itself.  For DDPM or DDIM with fewer steps
        give ``schedule.respaced(n_steps)`` or ``schedule.respaced(n_steps, eta=0)``.

    Returns
    -------
    variance : as variances
        Of the samples, without Monte Carlo error.

    Raises
    ------
    ValueError
        If a variance is not positive or the blocks do not start at the first level.
    """
    data = np.asarray(variances, dtype=float)
    if not np.all((data > 0.0) & np.isfinite(data)):
        raise ValueError(f"variances={variances!r} must be positive and finite")
    if blocks is None:
        blocks = Blocks(tuple(range(schedule.N, -1, -1)))
    if blocks.edges[0] != schedule.N:
        raise ValueError(f"blocks start at level {blocks.edges[0]}, the chain at {schedule.N}; make them for its N")
    sizes = blocks.sizes
    steps = np.arange(blocks.steps)
    starts = np.array(blocks.edges[:-1])
    m = np.empty((blocks.steps, data.size))
    q = np.empty_like(m)
    for K, of_K in enumerate(block_moments(schedule, blocks, data.ravel(), starts, sizes.max()), start=1):
        ends = steps[sizes == K]
        m[ends] = of_K.m[ends] + of_K.spread_m[ends]
        q[ends] = of_K.q[ends] + of_K.spread_q[ends]
    variance = np.ones(data.size)
    for m_i, q_i in zip(m, q, strict=True):
        variance = m_i * variance + q_i
    return variance.reshape(data.shape)
