"""Stein's corrections of first and second moments, from co-moments in place of draws.

The corrections are those of :mod:`pmm_mcmc.diagnostics.stein` without the virial terms, for unconstrained coordinates,
from the co-moments of :mod:`pmm_mcmc.diagnostics.comoments`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.comoments import FEATURES, PAIRS, combined
from pmm_mcmc.diagnostics.estimate import Corrected, Estimate, choose
from pmm_mcmc.diagnostics.stein import ORDERS, solve_slopes
from pmm_mcmc.warmup.standard_errors import worth_independent
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = ["SteinMoments", "weighted"]

# Index of the co-moment of two features.
_AT = np.zeros((len(FEATURES), len(FEATURES)), int)
_AT[PAIRS] = _AT[PAIRS[::-1]] = np.arange(len(PAIRS[0]))
_U, _U2, _G = (FEATURES.index(name) for name in ("u", "u^2", "sg"))
_TERMS = tuple(FEATURES.index(name) for name in ("S1", "S2", "S3"))


class SteinMoments(NamedTuple):
    """First and second moments of ``d`` unconstrained coordinates, in units of ``scale``, and their Stein identity."""

    labels: list[str]
    centre: np.ndarray
    scale: np.ndarray
    sd: np.ndarray
    first: Corrected
    second: Corrected
    identity: Identity
    pieces: int

    @classmethod
    def of(cls, stein: xr.Dataset) -> SteinMoments:
        """Read the group ``stein`` of a result."""
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
        excess, error = weighted(n, w)
        mean_square = np.nan
        if len(n) > 1:
            cross = (n[:, None] * w).sum(axis=0) ** 2 - ((n[:, None] * w) ** 2).sum(axis=0)
            mean_square = float(0.5 * np.mean(cross) / (n.sum() ** 2 - (n**2).sum()))
        labels = [str(name) for name in stein["coordinate"].values]
        identity = Identity(excess, excess / np.maximum(error, 1e-300), mean_square, worth_independent(w))
        return cls(labels, centre, scale, sd, first, second, identity, len(n))


def weighted(n: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of ``(piece, d)``, pieces of ``n`` draws, and its standard error from the spread between them."""
    weights, pieces = (n / n.sum())[:, None], len(n)
    mean = values[0] + (weights * (values - values[0])).sum(axis=0)
    if pieces == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, np.sqrt(pieces / (pieces - 1) * (weights**2 * (values - mean) ** 2).sum(axis=0))


def _moving(n: np.ndarray, mean: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Return which coordinates move; co-moments of one that does not are not above rounding."""
    return np.isfinite(scatter).all(axis=0) & (scatter[_AT[_U, _U]] > 1e-24 * n.sum() * (1.0 + mean[_U] ** 2))


def _corrected(
    n: np.ndarray, mean: np.ndarray, scatter: np.ndarray, of_u: np.ndarray, constant: np.ndarray | float = 0.0
) -> Corrected:
    """Correct ``of_u[0] u + of_u[1] u^2 + constant`` of each coordinate by its own terms.

    The rules are those of :func:`pmm_mcmc.diagnostics.stein.corrected_expectations`, without the virial terms: slopes
    of a piece are fitted on all others.
    """
    pieces = len(n)
    value_of = (_U, _U2)
    raw = np.einsum("kd,kpd->pd", of_u, mean[list(value_of)]) + constant
    whole_mean, whole = combined(n, mean, scatter)
    variance = sum(of_u[a] * of_u[b] * whole[_AT[value_of[a], value_of[b]]] for a in (0, 1) for b in (0, 1)) / n.sum()
    value, raw_se = weighted(n, raw)
    moving = _moving(n, whole_mean, whole)
    if pieces == 1 or not moving.any():
        none = np.full(len(value), np.nan)
        return Corrected(value, raw_se, value, raw_se, none, none, np.zeros(len(value), bool), none, none, raw)
    corrected = {order: np.empty_like(raw) for order in ORDERS}
    # Co-moments about the mean of all, so that those of all but one piece are a difference.
    away = mean - whole_mean[:, None]
    for piece in range(pieces):
        left = n.sum() - n[piece]
        shift = away[:, piece] * n[piece]
        a, b = PAIRS
        own = scatter[:, piece] + n[piece] * away[a, piece] * away[b, piece]
        others = whole - own - shift[a] * shift[b] / left
        for order in ORDERS:
            terms = _TERMS[:order]
            gram = np.array([[others[_AT[i, j]] for j in terms] for i in terms]).transpose(2, 0, 1)
            right = np.array([sum(of_u[k] * others[_AT[value_of[k], i]] for k in (0, 1)) for i in terms])
            slopes = solve_slopes(gram, right.T)
            corrected[order][piece] = raw[piece] - (slopes * mean[list(terms), piece]).sum(axis=0)
    means, errors = {}, {}
    for order in ORDERS:
        means[order], errors[order] = weighted(n, corrected[order])
    unit = np.maximum(variance[moving], 1e-300)
    mean_error = {order: float(np.mean(errors[order][moving] ** 2 / unit)) for order in ORDERS}
    best = min(mean_error, key=lambda order: mean_error[order])
    return choose(
        Estimate(value, raw_se, raw),
        Estimate(means[best], errors[best], corrected[best]),
        weighted(n, raw - corrected[best]),
        moving,
        mean_error[best],
        float(np.mean(raw_se[moving] ** 2 / unit)),
    )
