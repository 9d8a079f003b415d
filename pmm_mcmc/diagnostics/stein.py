r"""Posterior expectations by control variates from Stein's identity, which also shows the bias of unadjusted draws.

With ``g`` the gradient of the log density and any smooth ``phi``, :math:`\Delta \phi + g \cdot \nabla \phi` has
expectation zero under the posterior [1]_ [2]_.  A function ``f`` is regressed on a few such terms over the draws; the
constant of the regression estimates its expectation.  As far as the terms explain ``f``, this estimate has neither the
noise of the draws nor the bias of the sampler.

The *own terms* of ``f`` vary along the direction in which ``f`` does.  With ``J`` the linear coefficients of ``f``,
``S`` the covariance of a Gaussian fitted to positions and gradients, ``m`` its mean, :math:`s^2 = J S J^T`,
:math:`u = J (x - m) / s` and :math:`S_1 = -g \cdot S J^T / s`, they are

.. math:: S_1, \qquad S_2 = u S_1 - 1, \qquad S_3 = u^2 S_1 - 2 u .

They are exact for means and variances of any Gaussian.  A parameter that scales others (a hierarchical standard
deviation) varies with the variance of these, which is a linear function of no direction; so the *virial terms*
:math:`h_j = (x_j - m_j) g_j + 1` of all coordinates are a further set (by ridge regression; sums of neighbours if there
are many).  Coefficients are fitted on other chains than they are applied to (:mod:`pmm_mcmc.diagnostics.folds`): the
estimate does not overfit, and its standard error follows from the variation of the corrected values.

A correction that leaves a share ``r`` of the variance of a mean leaves about :math:`\sqrt r` of its bias
(``benchmarks/frozen/calibration.txt``).

References
----------
.. [1] A. Mira, R. Solgi, D. Imparato, "Zero variance Markov chain Monte Carlo for Bayesian estimators", Statistics and
   Computing 23, 2013.
.. [2] C. J. Oates, M. Girolami, N. Chopin, "Control functionals for Monte Carlo integration", JRSS B 79, 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pmm_mcmc.diagnostics.folds import Folds
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.standard_errors import batch_means, between_pieces

__all__ = ["ORDERS", "Corrected", "corrected", "own_terms", "solve_slopes", "uncorrected"]

# Sets of terms to regress on: the first one, two or three own terms, or all three with the virial terms.
ORDERS = (1, 2, 3)
_VIRIAL = "virial"
# Numbers in a block of functions that are corrected together: two megabytes fit a processor's cache.
_BLOCK = 2**18


class Corrected(NamedTuple):
    """Estimates of ``p`` expectations, each of shape ``(p,)``.

    A function that is not finite everywhere has the plain estimate without an error; a constant has no bias and no
    error.
    """

    plain: np.ndarray  # mean over the draws, with its standard error
    plain_se: np.ndarray
    value: np.ndarray  # corrected estimate, with its standard error, if ``used``, else the plain one
    se: np.ndarray
    bias: np.ndarray  # plain minus corrected estimate, with its standard error; NaN where not measurable
    bias_se: np.ndarray
    # Standard error of the corrected over that of the plain estimate, 1 at most: the share of the bias that the
    # correction is expected not to remove; ``se`` includes it if the bias is beyond doubt.
    unexplained: np.ndarray
    # (chain, p): ``value`` from the draws of each chain, with coefficients from the others (``benchmarks/versus``).
    by_chain: np.ndarray

    @property
    def used(self) -> np.ndarray:
        """Whether the correction reduced the error enough."""
        return ~np.isnan(self.bias)


def uncorrected(values: np.ndarray) -> Corrected:
    """Return plain means of functions ``(chain, draw, p)``, whose bias is not measurable."""
    origin = values[0, 0]
    with np.errstate(invalid="ignore"):  # the mean of what is not finite
        f = values - origin
        pieces = batch_means(f)
        value = origin + pieces.mean(axis=0)
        none = np.full(len(origin), np.nan)
        error = between_pieces(pieces, len(values)) if len(pieces) > 1 else none
        by_chain = origin + f.mean(axis=1)
    return Corrected(value, error, value, error, none, none, np.ones(len(origin)), by_chain)


def own_terms(u: np.ndarray, s1: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the own terms ``S_1, S_2, S_3`` from positions ``u`` along a direction and ``S_1``."""
    return s1, u * s1 - 1.0, u * u * s1 - 2.0 * u


def solve_slopes(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve the normal equations of each function, ``(p, order, order)`` and ``(p, order)``; return ``(order, p)``."""
    order = gram.shape[-1]
    # A tiny ridge, for terms that are collinear or constant.
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300
    return np.linalg.solve(gram + ridge[:, None, None] * np.eye(order), right[..., None])[..., 0].T


def _fit(
    terms: np.ndarray, values: np.ndarray, virial: Sequence[np.ndarray]
) -> dict[int | str, tuple[np.ndarray, np.ndarray]]:
    """Return for each set of terms the coefficients of the own ``(order, p)`` and of the virial terms ``(m, p)``.

    ``terms`` ``(3, n, p)`` are the own terms of functions with ``values`` ``(n, p)``; ``virial`` are the virial terms
    about their means ``(n, m)``, and the inverse of their normal matrix, with a ridge.
    """
    p = values.shape[1]
    h, inverse = virial
    t = terms - terms.mean(axis=1, keepdims=True)
    f = values - values.mean(axis=0)
    gram = np.empty((p, 3, 3))
    right = np.empty((p, 3))
    for i in range(3):
        right[:, i] = np.einsum("np,np->p", t[i], f)
        for j in range(i + 1):
            gram[:, i, j] = gram[:, j, i] = np.einsum("np,np->p", t[i], t[j])
    none = np.zeros((0, p))
    coefficients: dict[int | str, tuple[np.ndarray, np.ndarray]] = {
        order: (solve_slopes(gram[:, :order, :order], right[:, :order]), none) for order in ORDERS
    }
    if not h.shape[1]:
        return coefficients | {_VIRIAL: coefficients[ORDERS[-1]]}
    # Normal equations of both sets of terms, from which the virial ones are eliminated first.
    with_terms = np.stack([h.T @ term for term in t])
    with_values = h.T @ f
    by_terms = inverse @ with_terms
    by_values = inverse @ with_values
    gram = gram - np.einsum("imp,jmp->pij", with_terms, by_terms)
    right = right - np.einsum("imp,mp->pi", with_terms, by_values)
    slopes = solve_slopes(gram, right)
    return coefficients | {_VIRIAL: (slopes, by_values - np.einsum("imp,ip->mp", by_terms, slopes))}


def corrected(
    values: np.ndarray,
    folds: Folds,
    coordinate: np.ndarray | None = None,
    follow: np.ndarray | None = None,
    *,
    unbiased: bool = False,
) -> Corrected:
    """Estimate the posterior expectations of functions with ``values`` ``(chain, draw, p)`` at the draws of ``folds``.

    ``coordinate`` ``(p,)`` is the coordinate that a function equals, or -1: its direction need not be estimated.  The
    directions are those of ``follow`` ``(chain, draw, p)``, by default of the functions: a squared deviation, which
    varies with no direction linearly, uses that of the deviation.  To errors of draws that are not ``unbiased`` is
    added what a correction leaves of the bias.

    The identity needs a density that vanishes at infinity; on the unconstrained scale there are no boundary terms.
    Draws with wrong weights of separate modes fulfil it.
    """
    p = values.shape[2]
    chains = folds.chains
    directions = folds.directions(values if follow is None else follow, coordinate)
    f, origin = folds.about_first(values)
    pieces = {name: np.empty((chains * folds.pieces_per_chain, p)) for name in (*ORDERS, _VIRIAL)}
    for (fold, rows, numbers), direction in zip(folds.members, directions, strict=True):
        n = fold.fitted
        *fitted_virial, virial = fold.virial()
        shape = (len(numbers), (len(rows) - n) // len(numbers))  # pieces and draws of each
        virial_means = virial.reshape(*shape, virial.shape[1]).mean(axis=1)
        u, s1 = fold.along(direction)
        for block in np.array_split(np.arange(p), -(-p * len(rows) // _BLOCK)):
            terms = np.stack(own_terms(u[:, block], s1[:, block]))
            term_means = terms[:, n:].reshape(3, *shape, len(block)).mean(axis=2)
            means = f[rows[n:, None], block].reshape(*shape, len(block)).mean(axis=1)
            for name, (slopes, more) in _fit(terms[:, :n], f[rows[:n, None], block], fitted_virial).items():
                explained = np.einsum("iwp,ip->wp", term_means[: len(slopes)], slopes)
                explained += virial_means[:, : len(more)] @ more
                pieces[name][np.ix_(numbers, block)] = means - explained
    plain = f.reshape(chains * folds.pieces_per_chain, -1, p).mean(axis=1)
    return _estimates(pieces, plain, f.std(axis=0), origin, folds, unbiased)


def _estimates(
    pieces: dict[int | str, np.ndarray],
    plain: np.ndarray,
    sd: np.ndarray,
    origin: np.ndarray,
    folds: Folds,
    unbiased: bool,
) -> Corrected:
    """Return the corrected estimate of each function where that reduces the error enough, else the plain one.

    ``pieces`` and ``plain`` are batch means ``(m, p)`` about ``origin``: corrected by each set of terms, and plain.
    """
    chains = folds.chains
    sd = np.maximum(sd, 1e-300)
    plain_se = between_pieces(plain, chains)
    estimate, error, mean_square = _by_best_terms(pieces, sd, folds)
    limit = THRESHOLDS.gain_of_one
    if mean_square * THRESHOLDS.gain_of_all > np.mean((plain_se / sd) ** 2):
        limit /= THRESHOLDS.gain_of_all  # corrections help few functions, which must gain more
    ratio = error**2 / np.maximum(plain_se**2, 1e-300)
    used = (ratio < limit) & np.isfinite(origin)
    unexplained = np.minimum(np.sqrt(ratio), 1.0)
    bias = plain.mean(axis=0) - estimate.mean(axis=0)
    bias_se = between_pieces(plain - estimate, chains)
    if not unbiased:
        # What the correction leaves of a bias that is beyond doubt.
        sure = np.maximum(np.abs(bias) - THRESHOLDS.beyond_doubt * bias_se, 0.0)
        error = np.hypot(error, unexplained / np.maximum(1.0 - unexplained, 1e-10) * sure)
    estimate = np.where(used, estimate, plain)
    not_finite = 0.0 * origin  # NaN where a function is not finite somewhere
    return Corrected(
        plain=origin + plain.mean(axis=0),
        plain_se=plain_se + not_finite,
        value=origin + estimate.mean(axis=0),
        se=np.where(used, error, plain_se) + not_finite,
        bias=np.where(used, bias, np.nan),
        bias_se=np.where(used, bias_se, np.nan),
        unexplained=unexplained + not_finite,
        by_chain=origin + estimate.reshape(chains, folds.pieces_per_chain, -1).mean(axis=1),
    )


def _by_best_terms(
    pieces: dict[int | str, np.ndarray], sd: np.ndarray, folds: Folds
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return each function's batch means by its best set of terms, their standard error, and the mean squared error.

    All functions have the same number of own terms; only those that scale others have the virial terms too.  The mean
    squared error is that of all functions by own terms, over their variances.
    """
    errors = {name: between_pieces(values, folds.chains) for name, values in pieces.items()}
    mean_square = {order: float(np.mean((errors[order] / sd) ** 2)) for order in ORDERS}
    best = min(ORDERS, key=lambda order: mean_square[order])
    by_virial = (folds.coordinates > 1) & (errors[_VIRIAL] ** 2 * THRESHOLDS.gain_of_virial < errors[best] ** 2)
    estimate = np.where(by_virial, pieces[_VIRIAL], pieces[best])
    return estimate, np.where(by_virial, errors[_VIRIAL], errors[best]), mean_square[best]
