"""Summary and verdict of a run of which only moments were kept (:mod:`pmm_mcmc.moments`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller

from pmm_mcmc.batches import between_pieces
from pmm_mcmc.diagnostics.bias import _FEWEST, _sd
from pmm_mcmc.diagnostics.judging import (
    BETWEEN_CHAINS,
    R_HAT,
    Measured,
    Verdict,
    bias_reasons,
    conclude,
    identity_reasons,
    length_reasons,
    unstable_reasons,
)
from pmm_mcmc.diagnostics.stein import _FAVOUR_RAW, _ORDERS, _SURE, _TINY, _WORTHWHILE, Corrected
from pmm_mcmc.moments import FEATURES, PAIRS, combined

__all__ = ["moments_summary", "moments_verdict"]

# Where the co-moment of two features is.
_AT = np.zeros((len(FEATURES), len(FEATURES)), int)
_AT[PAIRS] = _AT[PAIRS[::-1]] = np.arange(len(PAIRS[0]))
_U, _U2, _G = (FEATURES.index(name) for name in ("u", "u^2", "sg"))
_TERMS = tuple(FEATURES.index(name) for name in ("S1", "S2", "S3"))


class _Read(NamedTuple):
    """Moments of a result: of ``p`` parameters in each chain, and what is corrected of ``d`` coordinates."""

    labels: list[str]
    draws: int
    mean: np.ndarray
    sd: np.ndarray
    own: np.ndarray
    coordinates: _Coordinates | None


class _Coordinates(NamedTuple):
    """Of ``d`` unconstrained coordinates: their first and second moments, in units of ``scale``, and the identity."""

    labels: list[str]
    centre: np.ndarray
    scale: np.ndarray
    sd: np.ndarray
    first: Corrected
    second: Corrected
    excess: np.ndarray
    z: np.ndarray
    mean_square: float
    pieces: int


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

    neither split nor ranked: it does not see what all chains do alike in time [1]_.  Standard errors are from the
    spread between chains, or between pieces of at most 64 that the chains were put into: there are none of one chain.

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
    """Say whether a run of which only moments were kept may be trusted, with the checks that are possible.

    The limits are those of :func:`pmm_mcmc.verdict`; biases are judged of the unconstrained coordinates.

    Parameters
    ----------
    dt
        As for :func:`moments_summary`.

    Returns
    -------
    Verdict
        ``trusted``, ``sentence``, ``reasons``.
    """
    read = _read(dt)
    return _judge(dt, read, _table(read))


def _read(dt: Any) -> _Read:
    chains, draws = dt["posterior_mean"].sizes["chain"], int(dt["sample_stats_total"]["draws"][0])
    if draws < 2 or chains * draws < _FEWEST:
        raise ValueError(
            f"{chains} x {draws} draws are too few to be summarised: draw at least {_FEWEST}, 2 of each chain"
        )
    labels, (mean, sd) = [], (dt[group].dataset for group in ("posterior_mean", "posterior_sd"))
    labeller = BaseLabeller()
    for name, selection, index in xarray_sel_iter(mean, skip_dims={"chain"}):
        labels.append(labeller.make_label_flat(name, selection, index))
    means, sds = (
        np.concatenate([values.values.reshape(chains, -1) for values in group.data_vars.values()], axis=1)
        for group in (mean, sd)
    )
    if "stein" not in dt.children:
        return _Read(labels, draws, means, sds, np.full(len(labels), -1), None)
    stein = dt["stein"].dataset
    return _Read(labels, draws, means, sds, stein["coordinate_of"].values, _of_coordinates(stein))


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


def _of_coordinates(stein: xr.Dataset) -> _Coordinates:
    n, mean, scatter = (stein[name].values.astype(float) for name in ("draws", "mean", "scatter"))
    centre, scale = stein["centre"].values, stein["scale"].values
    of_u = np.zeros((2, len(scale)))
    of_u[0] = 1.0
    first = _corrected(n, mean, scatter, of_u)
    # (u - c)^2 = u^2 - 2 c u + c^2, with c the corrected mean.
    second = _corrected(n, mean, scatter, np.stack([-2.0 * first.value, np.ones(len(scale))]), first.value**2)
    whole_mean, whole = combined(n, mean, scatter)
    sd = np.where(_moving(n, whole_mean, whole), np.sqrt(whole[_AT[_U, _U]] / n.sum()), 0.0)
    away = mean[[_U, _G]] - whole_mean[[_U, _G], None]
    w = -(scatter[_AT[_U, _G]] / n[:, None] + away[0] * away[1]) - 1.0
    excess, error = _weighted(n, w)
    mean_square = np.nan
    if len(n) > 1:
        cross = (n[:, None] * w).sum(axis=0) ** 2 - ((n[:, None] * w) ** 2).sum(axis=0)
        mean_square = float(0.5 * np.mean(cross) / (n.sum() ** 2 - (n**2).sum()))
    labels = [str(name) for name in stein["coordinate"].values]
    z = excess / np.maximum(error, 1e-300)
    return _Coordinates(labels, centre, scale, sd, first, second, excess, z, mean_square, len(n))


def _weighted(n: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of ``(piece, d)`` over all draws, and its standard error from the spread between pieces."""
    weights, pieces = (n / n.sum())[:, None], len(n)
    mean = values[0] + (weights * (values - values[0])).sum(axis=0)
    if pieces == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, np.sqrt(pieces / (pieces - 1) * (weights**2 * (values - mean) ** 2).sum(axis=0))


def _moving(n: np.ndarray, mean: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Which coordinates move: the co-moments of one that does not are nothing but rounding."""
    return np.isfinite(scatter).all(axis=0) & (scatter[_AT[_U, _U]] > 1e-24 * n.sum() * (1.0 + mean[_U] ** 2))


def _corrected(
    n: np.ndarray, mean: np.ndarray, scatter: np.ndarray, of_u: np.ndarray, constant: np.ndarray | float = 0.0
) -> Corrected:
    """Correct ``of_u[0] u + of_u[1] u^2 + constant`` of each coordinate by its own terms.

    As :func:`pmm_mcmc.diagnostics.stein.corrected_expectations` does with draws, but for the virial terms: the slopes
    of a piece are fitted on all the others, and the same rules say what is used.
    """
    pieces = len(n)
    value_of = (_U, _U2)
    raw = np.einsum("kd,kpd->pd", of_u, mean[list(value_of)]) + constant
    whole_mean, whole = combined(n, mean, scatter)
    variance = sum(of_u[a] * of_u[b] * whole[_AT[value_of[a], value_of[b]]] for a in (0, 1) for b in (0, 1)) / n.sum()
    value, raw_se = _weighted(n, raw)
    finite = np.isfinite(value)
    moving = _moving(n, whole_mean, whole)
    unknown = np.where(finite, 0.0, np.nan)
    if pieces == 1 or not moving.any():
        none = np.full(len(value), np.nan)
        return Corrected(value, raw_se, value, raw_se, none, none, np.zeros(len(value), bool), none, none, raw)
    corrected = {order: np.empty_like(raw) for order in _ORDERS}
    # Co-moments about the mean of all, so that those of all but one piece are a difference.
    away = mean - whole_mean[:, None]
    for piece in range(pieces):
        left = n.sum() - n[piece]
        shift = away[:, piece] * n[piece]
        a, b = PAIRS
        own = scatter[:, piece] + n[piece] * away[a, piece] * away[b, piece]
        others = whole - own - shift[a] * shift[b] / left
        for order in _ORDERS:
            terms = _TERMS[:order]
            gram = np.array([[others[_AT[i, j]] for j in terms] for i in terms]).transpose(2, 0, 1)
            right = np.array([sum(of_u[k] * others[_AT[value_of[k], i]] for k in (0, 1)) for i in terms])
            gram = gram + (1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300)[:, None, None] * np.eye(order)
            slopes = np.linalg.solve(gram, right.T[..., None])[..., 0].T
            corrected[order][piece] = raw[piece] - (slopes * mean[list(terms), piece]).sum(axis=0)
    means, errors = {}, {}
    for order in _ORDERS:
        means[order], errors[order] = _weighted(n, corrected[order])
    unit = np.maximum(variance[moving], 1e-300)
    worth = {order: float(np.mean(errors[order][moving] ** 2 / unit)) for order in _ORDERS}
    best = min(worth, key=lambda order: worth[order])
    error = errors[best]
    ratio = error**2 / np.maximum(raw_se**2, 1e-300)
    used = (ratio < _WORTHWHILE) & moving
    if worth[best] * _FAVOUR_RAW > float(np.mean(raw_se[moving] ** 2 / unit)):
        used &= ratio < _WORTHWHILE / _FAVOUR_RAW
    bias, bias_se = _weighted(n, raw - corrected[best])
    part = np.minimum(np.sqrt(ratio), 1.0)
    remaining = part / np.maximum(1.0 - part, _TINY) * np.maximum(np.abs(bias) - _SURE * bias_se, 0.0)
    return Corrected(
        value,
        raw_se + unknown,
        np.where(used, means[best], value),
        np.where(used, np.hypot(error, remaining), raw_se) + unknown,
        np.where(used, bias, np.nan),
        np.where(used, bias_se, np.nan),
        used,
        ratio + unknown,
        part + unknown,
        np.where(used, corrected[best], raw),
    )


def _judge(dt: Any, read: _Read, table: pd.DataFrame) -> Verdict:
    stats = dt["sample_stats_total"]
    reasons: list[str] = []
    if "unstable" in stats and "acceptance_rate" not in stats:
        by_model = int(stats["model_failures"].sum()) if "model_failures" in stats else 0
        unstable, transitions = int(stats["unstable"].sum()), int(stats["transitions"].sum())
        reasons += unstable_reasons(unstable, len(read.mean) * read.draws, transitions, by_model)
    chains = len(read.mean)
    if chains > 1:
        r_hat, apart = table["r_hat"], table["mcse_mean"] / table["sd"].where(table["sd"] > 0.0)
        if (r_hat > R_HAT).any():
            reasons.append(f"chains disagree: r_hat of {r_hat.idxmax()} is {r_hat.max():.3g} (draw more)")
        elif (apart > BETWEEN_CHAINS).any():
            reasons.append(f"the mean of {apart.idxmax()} is known to {apart.max():.2f} posterior sd only (draw more)")
    found, at, unmeasured = _measured(read.coordinates), read.coordinates, ""
    if at is None:
        unmeasured = "was not measured: there are no gradients"
    elif at.pieces == 1:
        unmeasured = "is not measurable from the moments of one chain: use more chains"
    else:
        degrees = at.pieces - 1
        reasons += identity_reasons(at.excess, at.z, at.mean_square, degrees, at.labels.__getitem__)
        reasons += bias_reasons(found, degrees)
    reasons += length_reasons(stats, found.ruled_out)
    return conclude(reasons, found, "unconstrained coordinate", chains, stats, unmeasured)


def _measured(at: _Coordinates | None) -> Measured:
    """Return biases in units of the posterior sds; not measurable from one chain, nor without gradients."""
    if at is None or at.pieces == 1:
        labels = [] if at is None else at.labels
        unknown = np.full(max(len(labels), 1), np.nan)
        return Measured(labels, *(unknown,) * 5, np.isnan(unknown))
    # In units of the coordinates' scale, as all that is here.
    corrected_sd, _ = _sd(at.second)
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
    )
