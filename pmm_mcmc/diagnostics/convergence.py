"""Convergence of many parameters at once: ArviZ's ``rhat``, ``ess`` and ``mcse``, and R-hat of superchains.

ArviZ computes one parameter after the other; here blocks of parameters that fit the processor's cache are computed
together, to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from pmm_mcmc.diagnostics.parameters import Parameters
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

# Numbers in a block of parameters: a megabyte.
_BLOCK = 2**17


class Convergence(NamedTuple):
    """Rank-normalised ``rhat``, bulk ``ess``, and ``mcse`` of the mean: ``(p,)`` each, NaN where undefined."""

    r_hat: np.ndarray
    ess_bulk: np.ndarray
    mcse: np.ndarray


def convergence(values: np.ndarray) -> Convergence:
    """Return ArviZ's statistics of draws ``(chain, draw, p)``; NaN for parameters that are not finite."""
    return Convergence(*_by_block(values, _of_block, 3))


def mcse_of_means(values: np.ndarray) -> np.ndarray:
    """Return ArviZ's ``mcse`` of the means of draws ``(chain, draw, p)``; NaN for parameters that are not finite."""
    return _by_block(values, _mcse, 1)[0]


def _by_block(values: np.ndarray, statistics: Callable[[np.ndarray], np.ndarray], count: int) -> np.ndarray:
    """Return ``count`` statistics of each parameter, of blocks of finite ``(p, chain, draw)``."""
    chains, draws, p = values.shape
    table = np.full((count, p), np.nan)
    if draws >= THRESHOLDS.fewest_of_chain:
        each = max(1, _BLOCK // (chains * draws))
        for start in range(0, p, each):
            block = np.ascontiguousarray(np.moveaxis(values[..., start : start + each], 2, 0), dtype=float)
            sound = np.isfinite(block).all(axis=(1, 2))
            if sound.any():
                table[:, np.flatnonzero(sound) + start] = statistics(block[sound])
    return table


def _of_block(block: np.ndarray) -> np.ndarray:
    """Return the three statistics of finite ``(p, chain, draw)``."""
    p, chains, _ = block.shape
    halves = _split(block)
    scores, median = _scores(halves)
    folded, _ = _scores(np.abs(halves - median[:, None, None]))
    with np.errstate(all="ignore"):  # constants have no r_hat
        r_hat = np.fmax(_r_hat(scores), _r_hat(folded)) if chains > 1 else np.full(p, np.nan)
        return np.stack([r_hat, _ess(scores), _mcse(block)])


def _mcse(block: np.ndarray) -> np.ndarray:
    """Return standard errors of the means of ``(p, chain, draw)``."""
    with np.errstate(all="ignore"):
        return block.reshape(len(block), -1).std(axis=1, ddof=1) / np.sqrt(_ess(_split(block)))


def _split(x: np.ndarray) -> np.ndarray:
    """Return the first halves of ``(p, chain, draw)``, then the second ones, as chains."""
    half = x.shape[2] // 2
    return np.concatenate([x[..., :half], x[..., x.shape[2] - half :]], axis=1)


def _scores(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normal scores of ranks by Blom's formula, which ArviZ uses, and medians."""
    flat = x.reshape(len(x), -1)
    n = flat.shape[1]
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, axis=1)
    numbers = np.arange(n)
    ends = np.ones((len(flat), n + 1), bool)  # whether a value differs from the one before
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=ends[:, 1:-1])
    # Ties, as of proposals that were rejected, share the mean of their ranks.
    lowest = np.maximum.accumulate(np.where(ends[:, :-1], numbers, 0), axis=1)
    highest = np.minimum.accumulate(np.where(ends[:, :0:-1], numbers[::-1], n), axis=1)[:, ::-1]
    scores = np.empty_like(flat)
    np.put_along_axis(scores, order, _blom(n)[lowest + highest], axis=1)
    return scores.reshape(x.shape), 0.5 * (ordered[:, (n - 1) // 2] + ordered[:, n // 2])


@lru_cache(maxsize=4)
def _blom(n: int) -> np.ndarray:
    """Return the normal scores of the ranks 1, 1.5, ... of ``n`` values."""
    return ndtri((0.5 * np.arange(2 * n - 1) + 1.0 - 3.0 / 8.0) / (n + 1.0 / 4.0))


def _r_hat(x: np.ndarray) -> np.ndarray:
    draws = x.shape[2]
    between = draws * x.mean(axis=2).var(axis=1, ddof=1)
    return np.sqrt((between / x.var(axis=2, ddof=1).mean(axis=1) + draws - 1) / draws)


def _ess(x: np.ndarray) -> np.ndarray:
    """Effective sample size of ``(p, chain, draw)`` by Geyer's initial monotone sequence."""
    _, chains, draws = x.shape
    means = x.mean(axis=2)
    size = next_fast_len(2 * draws)
    spectrum = rfft(x - means[:, :, None], n=size, axis=2)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    covariance = irfft(power, n=size, axis=1)[:, :draws] / draws
    within = covariance[:, :1] * (draws / (draws - 1.0))
    total = within * ((draws - 1.0) / draws)
    if chains > 1:
        total = total + means.var(axis=1, ddof=1)[:, None]
    rho = 1.0 - (within - covariance) / total
    rho[:, 0] = 1.0
    count = max(1, (draws - 1) // 2)  # pairs of lags that Geyer's sequence may have
    pairs = rho[:, : 2 * count : 2] + rho[:, 1 : 2 * count : 2]
    ends = np.concatenate([pairs[:, : count - 1] <= 0.0, np.ones((len(x), 1), bool)], axis=1).argmax(axis=1)
    rows = np.arange(len(x))
    in_sequence = np.arange(count) < ends[:, None]
    falling = np.where(in_sequence, np.minimum.accumulate(pairs, axis=1), 0.0).sum(axis=1)
    last = rho[rows, 2 * ends]
    last = np.where((last > 0.0) | (pairs[rows, ends] >= 0.0), last, 0.0)
    n = chains * draws
    tau = np.maximum(-1.0 + 2.0 * falling + last, 1.0 / np.log10(n))
    constant = np.ptp(x.reshape(len(x), -1), axis=1) < np.finfo(float).resolution
    return np.where(constant, float(n), n / tau)


def superchains_of(posterior: xr.Dataset) -> int:
    """Return how many superchains the chains form, as many chains each, one after the other; 0 if none."""
    superchains = int(posterior.attrs.get("superchains", 0))
    chains = posterior.sizes["chain"]
    complete = "chain" not in posterior.coords or np.array_equal(posterior["chain"], np.arange(chains))
    return superchains if superchains and complete and chains % superchains == 0 else 0


def nested(parameters: Parameters, superchains: int) -> pd.Series:
    """Return nested R-hat of parameters, by ArviZ.

    With fewer than 4 draws of each chain, which ArviZ asks for, each is counted several times, without ranks: of one
    draw that is definition 2.2 of Margossian et al. (2024) itself.
    """
    from arviz_stats.base import array_stats  # a second, which other runs need not wait

    values = np.empty(len(parameters))
    for indices, draws in parameters.slabs():
        chains = len(draws)
        short = draws.shape[1] < THRESHOLDS.fewest_of_chain
        members = np.arange(chains) * superchains // chains
        values[indices] = array_stats.rhat_nested(
            np.repeat(draws, THRESHOLDS.fewest_of_chain, axis=1) if short else draws,
            members, method="identity" if short else "rank", chain_axis=0, draw_axis=1,
        )  # fmt: skip
    return pd.Series(values, parameters.labels, name="nested r_hat")


# Draws of a tail, at least.
_FEWEST = 20


def tail_index(values: np.ndarray, share: float = 1.0) -> np.ndarray:
    r"""Return Pareto's :math:`k` of the heavier tail of each parameter, of draws ``(chain, draw, n)``.

    It is that of a generalised Pareto distribution, fitted by Zhang and Stephens (2009) to the :math:`3\sqrt{S}` draws
    furthest out, or to a ``share`` of these; NaN of too few draws.
    """
    flat = values.reshape(-1, values.shape[2])
    count = int(share * min(0.2 * len(flat), 3.0 * np.sqrt(len(flat))))
    if count < _FEWEST:
        return np.full(flat.shape[1], np.nan)
    with np.errstate(all="ignore"):
        low = np.sort(np.partition(flat, count, axis=0)[: count + 1], axis=0)
        high = np.sort(np.partition(-flat, count, axis=0)[: count + 1], axis=0)
        tails = [tail[-1] - tail[-2::-1] for tail in (low, high)]
        return np.array([max(_pareto_k(tail[:, i]) for tail in tails) for i in range(flat.shape[1])])


def _pareto_k(excess: np.ndarray) -> float:
    """Return the shape of excesses ``(m,)`` in ascending order; -inf where a quarter of them are 0."""
    m = len(excess)
    quarter = excess[int(m / 4.0 + 0.5) - 1]
    if not (quarter > 0.0 and np.isfinite(excess[-1])):
        return -np.inf
    grid = np.arange(1, 31 + int(np.sqrt(m))) - 0.5
    b = (1.0 - np.sqrt(len(grid) / grid)) / (3.0 * quarter) + 1.0 / excess[-1]
    k = np.log1p(-b[:, None] * excess).mean(axis=1)
    height = m * (np.log(-b / k) - k - 1.0)
    weights = np.exp(height - height.max())
    mean_b = float(b @ weights / weights.sum())
    # With a weak prior about one half, as of Pareto smoothed importance sampling.
    return float((m * np.log1p(-mean_b * excess).mean() + 5.0) / (m + 10.0))
