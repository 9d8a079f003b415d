"""Convergence of many parameters at once: ArviZ's ``rhat``, ``ess`` and ``mcse``, and nested R-hat.

ArviZ computes one parameter after the other; here blocks of parameters that fit the processor's cache are computed
together, to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from pmm_mcmc.diagnostics.parameters import Parameters, checked
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

__all__ = ["Convergence", "convergence", "mcse_of_means", "nested", "nested_r_hat", "superchains_of"]

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
    scores, folded = _normal_scores(_split(block))
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


def _normal_scores(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normal scores of the ranks of ``(p, chain, draw)`` by parameter, and of distances from the median."""
    scores, median = _scores(x)
    return scores, _scores(np.abs(x - median[:, None, None]))[0]


def _scores(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normal scores of ranks by Blom's formula, which ArviZ uses, and medians."""
    flat = x.reshape(len(x), -1)
    n = flat.shape[1]
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, axis=1)
    at = np.arange(n)
    ends = np.ones((len(flat), n + 1), bool)  # whether a value differs from the one before
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=ends[:, 1:-1])
    # Ties, as of proposals that were rejected, share the mean of their ranks.
    lowest = np.maximum.accumulate(np.where(ends[:, :-1], at, 0), axis=1)
    highest = np.minimum.accumulate(np.where(ends[:, :0:-1], at[::-1], n), axis=1)[:, ::-1]
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


def nested_r_hat(dt: Any, var_names: Any = None) -> pd.Series:
    r"""Return nested R-hat, which compares chains that started together with chains that did not.

    For S superchains, each of M chains that started at one point and made N draws,

    .. math::
        \widehat R_\nu = \sqrt{1 + \widehat B / \widehat W}, \qquad
        \widehat B = \operatorname{var}_s \bar x_{s \cdot \cdot}, \qquad
        \widehat W = \tfrac1S \sum_s \Bigl(\operatorname{var}_m \bar x_{s m \cdot}
        + \tfrac1M \sum_m \operatorname{var}_n x_{s m n}\Bigr),

    all variances unbiased, the last one 0 for N = 1.  Of independent draws it is about :math:`\sqrt{1 + 1 / M}` with
    one draw of each chain, and :math:`\sqrt{1 + 1 / (M (N + 1))}` with more.

    From 4 draws on the value is that of ``arviz.rhat_nested`` with ``method="rank"``: the formula applied to
    half-chains, of normal scores of ranks, and of ranks of distances from the median; the larger of the two.  With 1 to
    3 draws, halves of which have no variance, the formula is applied to the draws themselves, which must have one.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` with 64 chains or more, which start in superchains (an attribute of the
        posterior says how many).
    var_names
        Parameters to report; all by default.

    Returns
    -------
    pandas.Series
        A value for each parameter, named as in ``arviz.summary``; NaN if it is constant or not finite somewhere,
        infinite (up to rounding) if chains differ between superchains only.

    Raises
    ------
    ValueError
        If the chains did not start in superchains, or are not all chains of the run.

    References
    ----------
    .. [1] C. C. Margossian, M. D. Hoffman, P. Sountsov, L. Riou-Durand, A. Vehtari, A. Gelman (2024).  Nested R-hat:
       assessing the convergence of Markov chain Monte Carlo when running many short chains.  Bayesian Analysis,
       doi:10.1214/24-BA1453, arXiv:2110.13017.  Definition 2.2.
    """
    posterior = checked(dt)["posterior"].dataset
    superchains = superchains_of(posterior)
    if not superchains:
        raise ValueError(
            "dt: its chains are not all chains of a run that began in superchains, as pmm.sample(chains=64) does; "
            "arviz.rhat_nested has superchain_ids for other chains"
        )
    if var_names is not None:
        posterior = posterior[[var_names] if isinstance(var_names, str) else list(var_names)]
    return nested(Parameters(posterior), superchains).rename("nested_r_hat")


def superchains_of(posterior: xr.Dataset) -> int:
    """Return how many superchains the chains form, as many chains each, one after the other; 0 if none."""
    superchains = int(posterior.attrs.get("superchains", 0))
    chains = posterior.sizes["chain"]
    complete = "chain" not in posterior.coords or np.array_equal(posterior["chain"], np.arange(chains))
    return superchains if superchains and complete and chains % superchains == 0 else 0


def nested(parameters: Parameters, superchains: int) -> pd.Series:
    """Return nested R-hat of parameters."""
    values = np.empty(len(parameters))
    for indices, draws in parameters.slabs():
        values[indices] = _nested(draws, superchains)
    return pd.Series(values, parameters.labels, name="nested r_hat")


def _nested(values: np.ndarray, superchains: int) -> np.ndarray:
    """Return the statistic of parameters ``(chain, draw, p)``."""
    _, draws, p = values.shape
    x = np.moveaxis(values, 2, 0).reshape(p * superchains, -1, draws)
    with np.errstate(all="ignore"):  # constants, chains that do not move, and values that are not finite
        if draws < THRESHOLDS.fewest_of_chain:
            statistic = _formula(x.reshape(p, superchains, -1, draws))
        else:
            halves = _split(x)
            scores = _normal_scores(halves.reshape(p, -1, halves.shape[2]))
            statistic = np.fmax(*(_formula(each.reshape(p, superchains, -1, halves.shape[2])) for each in scores))
    return np.where(np.isfinite(values).all(axis=(0, 1)), statistic, np.nan)


def _formula(x: np.ndarray) -> np.ndarray:
    """Return the formula of ``(parameter, superchain, chain, draw)``."""
    means = x.mean(axis=3)
    within = means.var(axis=2, ddof=1)
    if x.shape[3] > 1:
        within = within + x.var(axis=3, ddof=1).mean(axis=2)
    between = means.mean(axis=2).var(axis=1, ddof=1)
    return np.sqrt(1.0 + between / within.mean(axis=1))
