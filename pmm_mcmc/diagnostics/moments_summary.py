"""Summary and verdict of a run of which only moments were kept (:mod:`pmm_mcmc.run.moments`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.breaks import noted
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.estimate import Corrected
from pmm_mcmc.diagnostics.judgement import Findings, judge
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.reading import labels_of
from pmm_mcmc.diagnostics.reasons import identity_holds, size_reasons, walled
from pmm_mcmc.diagnostics.statement import Reason, Verdict, concluded
from pmm_mcmc.diagnostics.stein_moments import SteinMoments
from pmm_mcmc.diagnostics.table import sd_of
from pmm_mcmc.warmup.standard_errors import between_pieces

__all__ = ["moments_summary", "moments_verdict"]


class _Read(NamedTuple):
    """Moments of ``p`` parameters in each chain, and corrected ones of ``d`` unconstrained coordinates."""

    labels: list[str]
    draws: int
    mean: np.ndarray
    sd: np.ndarray
    own: np.ndarray
    coordinates: SteinMoments | None


def moments_summary(dt: Any) -> pd.DataFrame:
    r"""Summarise a result of which only moments were kept.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` with ``keep="moments"``.

    Returns
    -------
    pandas.DataFrame
        A row a parameter: ``mean`` and ``sd`` over all chains; ``mcse_mean``, from the chains' means; ``r_hat`` (see
        Notes).  For parameters that are unconstrained coordinates themselves also ``mean_corrected``,
        ``mcse_corrected``, ``bias`` and ``bias_se`` (NaN where not measurable), as in :func:`pmm_mcmc.summary`; NaN
        for the others.  The sentence of the verdict is in ``.attrs["verdict"]``.

    Raises
    ------
    ValueError
        If there are fewer than 20 draws, or fewer than 2 of each chain.

    Notes
    -----
    Of C chains of n draws with means :math:`\bar x_c` and unbiased variances :math:`s_c^2`,

    .. math:: \widehat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_c \bar x_c}{\frac1C \sum_c s_c^2}},

    neither split nor ranked: it does not see a drift that all chains share [1]_.  Standard errors are from the spread
    between chains, or between at most 64 groups of chains; one chain has none.

    References
    ----------
    .. [1] A. Gelman, D. B. Rubin, "Inference from iterative simulation using multiple sequences", Statistical Science
       7, 1992.
    """
    read = _read(dt)
    table = _table(read)
    table.attrs["verdict"] = _judge(dt, read, table).sentence
    return table


def moments_verdict(dt: Any) -> Verdict:
    """Return the verdict on a run of which only moments were kept, with the checks that are possible.

    The limits are those of :func:`pmm_mcmc.verdict`; the biases are those of the unconstrained coordinates.

    Parameters
    ----------
    dt
        As for :func:`moments_summary`.

    Returns
    -------
    Verdict
        ``state``, ``trusted``, ``sentence``, ``reasons``.
    """
    chains, draws = dt["posterior_mean"].sizes["chain"], int(dt["sample_stats_total"]["draws"][0])
    if chains * draws < CALIBRATION.fewest:
        return concluded(size_reasons(chains, draws), "")
    read = _read(dt)
    return _judge(dt, read, _table(read))


def _read(dt: Any) -> _Read:
    chains, draws = dt["posterior_mean"].sizes["chain"], int(dt["sample_stats_total"]["draws"][0])
    if draws < 2 or chains * draws < CALIBRATION.fewest:
        raise ValueError(
            f"{chains} x {draws} draws are too few to be summarised: "
            f"draw at least {CALIBRATION.fewest}, 2 of each chain"
        )
    groups = [dt[name].dataset for name in ("posterior_mean", "posterior_sd")]
    labels = labels_of(groups[0])
    means, sds = (
        np.concatenate([values.values.reshape(chains, -1) for values in group.data_vars.values()], axis=1)
        for group in groups
    )
    if "stein" not in dt.children:
        return _Read(labels, draws, means, sds, np.full(len(labels), -1), None)
    stein = dt["stein"].dataset
    found = SteinMoments.of(stein)
    broken = noted(dt["posterior_mean"].attrs) is not None
    holds = found.pieces == 1 or identity_holds(found.identity, found.pieces - 1, found.sd > 0.0)
    if not holds or broken or walled(dt["sample_stats_total"], chains * draws):
        found = found._replace(first=_plain(found.first), second=_plain(found.second))
    return _Read(labels, draws, means, sds, stein["coordinate_of"].values, found)


def _plain(estimate: Corrected) -> Corrected:
    """Undo a correction, for a density to which the Stein identity does not apply."""
    none = np.full_like(estimate.raw, np.nan)
    plain = estimate._replace(value=estimate.raw, se=estimate.raw_se, bias=none, bias_se=none)
    return plain._replace(used=np.zeros(len(none), bool), left=np.ones(len(none)))


def _table(read: _Read) -> pd.DataFrame:
    chains, n = len(read.mean), read.draws
    with np.errstate(all="ignore"):  # values that are not finite, constants, a single chain
        about = read.mean - read.mean[:1]
        of_all = about.var(axis=0) + (read.sd**2).mean(axis=0)
        sd = np.sqrt(of_all * (chains * n / (chains * n - 1)))  # as ArviZ counts
        within = (read.sd**2).mean(axis=0) * n / (n - 1)
        unknown = np.full(len(read.labels), np.nan)
        error = between_pieces(about, chains) if chains > 1 else unknown
        r_hat = np.sqrt((n - 1) / n + about.var(axis=0, ddof=1) / within) if chains > 1 else unknown
    columns = {
        "mean": read.mean[0] + about.mean(axis=0),
        "sd": sd,
        "mcse_mean": error,
        "r_hat": np.where(sd > 0.0, r_hat, np.nan),
    }
    measured = dict.fromkeys(("mean_corrected", "mcse_corrected", "bias", "bias_se"), unknown)
    if read.coordinates is not None:
        at = read.coordinates
        first, known, own = at.first, read.own >= 0, read.own
        found = {
            "mean_corrected": at.centre + at.scale * first.value,
            "mcse_corrected": at.scale * first.se,
            "bias": at.scale * first.bias,
            "bias_se": at.scale * first.bias_se,
        }
        measured = {name: np.where(known, values[own], np.nan) for name, values in found.items()}
    return pd.DataFrame(columns | measured, index=read.labels)


def _judge(dt: Any, read: _Read, table: pd.DataFrame) -> Verdict:
    stats, chains, at = dt["sample_stats_total"], len(read.mean), read.coordinates
    broken = noted(dt["posterior_mean"].attrs)
    there = at if at is not None and at.pieces > 1 else None
    # Of the coordinates only centred ones have their values here.
    place = None if broken is None or at is None else lambda: (at.labels[broken.coordinate], np.nan)
    found = Findings(
        stats, chains, read.draws, read.labels, table["r_hat"].to_numpy(),
        (table["mcse_mean"] / table["sd"].where(table["sd"] > 0.0)).to_numpy(),
        _measured(at),
        there.identity if there else None,
        there.pieces - 1 if there else 1,
        there.sd > 0.0 if there else True,
        there.labels.__getitem__ if there else str,
        "unconstrained coordinates",
        broken=broken,
        place=place,
    )  # fmt: skip
    missing = Reason("no_gradients", "the bias could not be measured, for the result holds no gradients")
    return judge(found, [] if at is not None else [missing])


def _measured(at: SteinMoments | None) -> Measured:
    """Return biases in posterior standard deviations; NaN for one chain, and without gradients."""
    if at is None or at.pieces == 1:
        labels = [] if at is None else at.labels
        unknown = np.full(max(len(labels), 1), np.nan)
        return Measured(labels, *(unknown,) * 5, np.isnan(unknown), unknown, unknown)
    # All are in units of the coordinates' scale.
    corrected_sd, _ = sd_of(at.second)
    sd = np.where(at.second.used, corrected_sd, at.sd)
    sd = np.where(sd > 0.0, sd, np.nan)
    of_sd = np.where(at.second.used, at.sd - corrected_sd, np.nan)
    of_sd_se = at.second.bias_se / np.maximum(2.0 * corrected_sd, 1e-300)
    left = np.where(at.first.used, at.first.left, 0.0)
    return Measured(
        at.labels,
        np.abs(at.first.bias) / sd,
        at.first.bias_se / sd,
        left,
        np.abs(of_sd) / sd,
        of_sd_se / sd,
        at.sd > 0.0,
        at.first.se / sd,
        at.second.se / np.maximum(2.0 * corrected_sd, 1e-300) / sd,
    )
