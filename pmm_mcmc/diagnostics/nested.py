"""Nested R-hat: convergence of many chains with few draws each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc.diagnostics.convergence import normal_scores, split
from pmm_mcmc.diagnostics.parameters import Parameters, checked
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

__all__ = ["nested_r_hat"]


def nested_r_hat(dt: Any, var_names: Any = None, superchains: int | Sequence[int] | None = None) -> pd.Series:
    r"""Return nested R-hat, which compares chains that started together with chains that did not.

    For S superchains, each of M chains that started at one point and made N draws,

    .. math::
        \widehat R_\nu = \sqrt{1 + \widehat B / \widehat W}, \qquad
        \widehat B = \operatorname{var}_s \bar x_{s \cdot \cdot}, \qquad
        \widehat W = \tfrac1S \sum_s \Bigl(\operatorname{var}_m \bar x_{s m \cdot}
        + \tfrac1M \sum_m \operatorname{var}_n x_{s m n}\Bigr),

    all variances unbiased, the last one 0 for N = 1.  For independent draws :math:`\widehat B / \widehat W` is about
    :math:`1 / M` with one draw, and :math:`1 / (M (N + 1))` with more: at the first draw the statistic is at best
    :math:`\sqrt{1 + 1 / M}`.

    From 4 draws on the value is that of ``arviz.rhat_nested`` with ``method="rank"``: the formula applied to
    half-chains, of normal scores of ranks, and of ranks of distances from the median; the larger of the two.  With 1 to
    3 draws, halves of which have no variance, the formula is applied to the draws themselves, which must have one.

    Parameters
    ----------
    dt
        A result; its ``posterior`` has dimensions ``chain`` and ``draw``.
    var_names
        Parameters to report; all by default.
    superchains
        How many superchains the chains form (of C chains, chain i belongs to superchain ``i * superchains // C``), or
        for each chain the number of its superchain.  By default the posterior's attribute ``superchains``.

    Returns
    -------
    pandas.Series
        A value for each parameter, named as in ``arviz.summary``; NaN if it is constant or not finite somewhere,
        infinite (up to rounding) if chains differ between superchains only.

    Raises
    ------
    ValueError
        If it is not known which chains started together, if there are fewer than two superchains, or if they do not
        have the same number of chains, two or more.

    References
    ----------
    .. [1] C. C. Margossian, M. D. Hoffman, P. Sountsov, L. Riou-Durand, A. Vehtari, A. Gelman (2024).  Nested R-hat:
       assessing the convergence of Markov chain Monte Carlo when running many short chains.  Bayesian Analysis,
       doi:10.1214/24-BA1453, arXiv:2110.13017.  Definition 2.2.
    """
    posterior = checked(dt)["posterior"].dataset
    if posterior.sizes["draw"] == 0:
        raise ValueError("the posterior holds no draws: nested R-hat needs one a chain")
    member = _membership(posterior, superchains)
    if var_names is not None:
        posterior = posterior[[var_names] if isinstance(var_names, str) else list(var_names)]
    parameters = Parameters(posterior)
    values = np.empty(len(parameters))
    for indices, draws in parameters.slabs():
        values[indices] = _statistic(draws, member)
    return pd.Series(values, parameters.labels, name="nested_r_hat")


def _statistic(values: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return the statistic of parameters ``(chain, draw, p)``; ``member`` are the chains' superchain numbers."""
    x = np.moveaxis(values, 2, 0)
    with np.errstate(all="ignore"):  # constants, chains that do not move, and values that are not finite
        if x.shape[2] < THRESHOLDS.fewest_of_chain:
            statistic = _formula(x, member)
        else:
            scores, folded = normal_scores(split(x))
            member = np.concatenate([member, member])
            statistic = np.fmax(_formula(scores, member), _formula(folded, member))
    return np.where(np.isfinite(values).all(axis=(0, 1)), statistic, np.nan)


def _formula(x: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return the formula of ``(p, chain, draw)``."""
    superchains = int(member.max()) + 1
    x = x[:, np.argsort(member, kind="stable")]
    x = x.reshape(len(x), superchains, -1, x.shape[2])  # (parameter, superchain, chain, draw)
    means = x.mean(axis=3)
    within = means.var(axis=2, ddof=1)
    if x.shape[3] > 1:
        within = within + x.var(axis=3, ddof=1).mean(axis=2)
    between = means.mean(axis=2).var(axis=1, ddof=1)
    return np.sqrt(1.0 + between / within.mean(axis=1))


def _membership(posterior: xr.Dataset, superchains: int | Sequence[int] | None) -> np.ndarray:
    """Return the number of each chain's superchain, from 0."""
    chains = posterior.sizes["chain"]
    if superchains is None:
        superchains = posterior.attrs.get("superchains")
        if superchains is None:
            raise ValueError(
                "the posterior has no attribute 'superchains', which says how many groups of chains started together: "
                "give superchains"
            )
    if isinstance(superchains, int | np.integer):
        argument = f"superchains={superchains}"
        if "chain" in posterior.coords and not np.array_equal(posterior["chain"], np.arange(chains)):
            raise ValueError(
                f"{argument} is about all chains of a run, and the chains of this result are not 0 to {chains - 1}: "
                "give superchains, the number of its superchain for each chain"
            )
        labels = np.arange(chains) * max(superchains, 1) // chains
    else:
        labels = np.asarray(superchains)
        argument = f"superchains={np.array2string(labels, threshold=8)}"
        if labels.shape != (chains,):
            raise ValueError(f"{argument}: must be one whole number, or one for each of the {chains} chains")
    member = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(member)
    if len(sizes) < 2:
        raise ValueError(f"{argument}: must be at least 2 superchains, to compare them")
    if sizes.min() < sizes.max():
        raise ValueError(
            f"{argument}: superchains would be of {sizes.min()} to {sizes.max()} of the {chains} chains, must be of "
            "one size: choose a number that divides the chains"
        )
    if sizes.max() < 2:
        raise ValueError(
            f"{argument}: superchains would be of one chain each, must be of 2 or more (for {chains} chains that all "
            "started apart there is arviz.rhat)"
        )
    return member
