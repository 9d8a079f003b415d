r"""Posterior expectations corrected by Stein's identity: bias and noise removed together.

With ``g`` the gradient of the log density and any smooth ``phi``, :math:`\Delta \phi + g \cdot \nabla \phi`, the
Langevin generator applied to ``phi``, has expectation zero under the posterior.  A function ``f`` is regressed on a few
such terms over the draws; the constant of the regression estimates its expectation.  As far as the terms explain ``f``,
this estimate has neither the sampler's bias nor its noise.

The terms follow the direction in which ``f`` varies (*own-direction regressors*).  With ``J`` the linear
coefficients of ``f``, ``S`` the covariance of a Gaussian fitted to positions and gradients, ``m`` its mean,
:math:`s^2 = J S J^T`, :math:`u = J (x - m) / s` and :math:`S_1 = -g \cdot S J^T / s`,

.. math:: S_1, \qquad S_2 = u S_1 - 1, \qquad S_3 = u^2 S_1 - 2 u .

They are exact for means and variances of any Gaussian.  A parameter that scales others (a hierarchical standard
deviation) varies with the spread of these, which is a linear function of no direction; so the *virial terms*
:math:`h_j = (x_j - m_j) g_j + 1` of all coordinates are a further set (by ridge regression; sums of neighbours if there
are many).  Coefficients are fitted on other chains than they are applied to: the estimate does not overfit, and its
standard error follows from the spread of the corrected values.

A correction that leaves a share ``r`` of the variance of a mean leaves about :math:`\sqrt r` of its bias
(``benchmarks/calibration.py``).

References
----------
.. [1] A. Mira, R. Solgi, D. Imparato, "Zero variance Markov chain Monte Carlo for Bayesian estimators", Statistics and
   Computing 23, 2013.
.. [2] C. J. Oates, M. Girolami, N. Chopin, "Control functionals for Monte Carlo integration", JRSS B 79, 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from pmm_mcmc.coordinates.scale import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.estimate import Corrected, Estimate, choose
from pmm_mcmc.warmup.standard_errors import between_pieces, count_pieces

__all__ = [
    "ORDERS",
    "corrected_expectations",
    "own_terms",
    "solve_slopes",
]

# Sets of regressors: the first one, two or three own-direction terms, or all three with the virial terms.
ORDERS, _VIRIAL = (1, 2, 3), "virial"
_TINY = 1e-10  # relative, against division by zero
# Numbers in a block of functions that are corrected together: two megabytes fit a processor's cache.
_BLOCK = 2**18


def own_terms(u: np.ndarray, s1: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``S_1, S_2, S_3`` from positions ``u`` along a direction and ``S_1``."""
    return s1, u * s1 - 1.0, u * u * s1 - 2.0 * u


def solve_slopes(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve the normal equations of each function, ``(p, order, order)`` and ``(p, order)``; return ``(order, p)``."""
    order = gram.shape[-1]
    # A tiny ridge, for terms that are collinear or constant.
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300
    return np.linalg.solve(gram + ridge[:, None, None] * np.eye(order), right[..., None])[..., 0].T


class _Basis(NamedTuple):
    """Positions ``(n, d)`` and gradients of one fold, and a Gaussian fitted to the first ``fitted`` of them."""

    x: np.ndarray
    g: np.ndarray
    fitted: int
    centre: np.ndarray
    root: np.ndarray
    factor: Any

    @classmethod
    def of(cls, x: np.ndarray, g: np.ndarray, fitted: int) -> _Basis:
        d = x.shape[1]
        dense = d <= MOST_DENSE and fitted > 3 * d
        centre, root = affine_scale(x[:fitted], g[:fitted], dense=dense)
        if not dense:
            return cls(x, g, fitted, centre, root, None)
        xc = x[:fitted] - x[:fitted].mean(axis=0)
        gram = xc.T @ xc
        # The slope on a coordinate that does not move is 0.
        gram[np.diag_indices(d)] = np.where(gram.diagonal() > 0.0, gram.diagonal() * (1.0 + _TINY), 1.0)
        return cls(x, g, fitted, centre, root, lu_factor(gram))


def _regressors(basis: _Basis, follow: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return ``S_1, S_2, S_3`` of each function on all draws of a basis, ``(3, draws, p)``."""
    n = basis.fitted
    if basis.factor is not None:
        xc, fc = basis.x[:n] - basis.x[:n].mean(axis=0), follow[:n] - follow[:n].mean(axis=0)
        y = basis.x - basis.centre
        covariance = basis.root @ basis.root.T
        # Least squares of f on x is exact for linear functions, however correlated the coordinates are.
        slope = lu_solve(basis.factor, xc.T @ fc).T
        slope[own >= 0] = 0.0
        slope[own >= 0, own[own >= 0]] = 1.0
        along = slope @ covariance
        s = np.sqrt(np.maximum((along * slope).sum(axis=1), 1e-300))
        u = y @ (slope.T / s)
        s1 = basis.g @ (along.T / -s)
    else:
        # Too many coordinates to know how they move together: follow the one that f varies with most.
        best, free = own.copy(), own < 0
        if free.any():
            xc, fc = basis.x[:n] - basis.x[:n].mean(axis=0), follow[:n, free] - follow[:n, free].mean(axis=0)
            best[free] = np.abs(fc.T @ (xc / np.maximum(xc.std(axis=0), 1e-300))).argmax(axis=1)
        u = (basis.x[:, best] - basis.centre[best]) / basis.root[best]
        s1 = -(basis.g[:, best] * basis.root[best])
    return np.stack(own_terms(u, s1))


def _shared(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return shared terms ``(n, m)`` about their means, and the inverse of their normal matrix, with a ridge."""
    h = terms - terms.mean(axis=0)
    variance = np.maximum((h**2).mean(axis=0), 1e-300)
    return h, np.linalg.inv(h.T @ h + np.diag(CALIBRATION.ridge * len(h) * variance))


def _fit(
    terms: np.ndarray, values: np.ndarray, shared: tuple[np.ndarray, np.ndarray]
) -> dict[int | str, tuple[np.ndarray, np.ndarray]]:
    """Return the coefficients of each set of regressors.

    Parameters
    ----------
    terms : (3, n, p)
        Own-direction terms of each function.
    values : (n, p)
        The functions.
    shared
        What :func:`_shared` makes of the virial terms.

    Returns
    -------
    dict of (order, p), (m, p)
        Coefficients of the own-direction and, by ridge, of the virial terms, by the set.
    """
    p, (h, inverse) = values.shape[1], shared
    t, f = terms - terms.mean(axis=1, keepdims=True), values - values.mean(axis=0)
    gram, right = np.empty((p, 3, 3)), np.empty((p, 3))
    for i in range(3):
        right[:, i] = np.einsum("np,np->p", t[i], f)
        for j in range(i + 1):
            gram[:, i, j] = gram[:, j, i] = np.einsum("np,np->p", t[i], t[j])
    none = np.zeros((0, p))
    found: dict[int | str, tuple[np.ndarray, np.ndarray]] = {
        order: (solve_slopes(gram[:, :order, :order], right[:, :order]), none) for order in ORDERS
    }
    if not h.shape[1]:
        return found | {_VIRIAL: found[ORDERS[-1]]}
    with_terms, with_values = np.stack([h.T @ part for part in t]), h.T @ f
    by_terms, by_values = inverse @ with_terms, inverse @ with_values
    gram = gram - np.einsum("imp,jmp->pij", with_terms, by_terms)
    right = right - np.einsum("imp,mp->pi", with_terms, by_values)
    own = solve_slopes(gram, right)
    return found | {_VIRIAL: (own, by_values - np.einsum("imp,ip->mp", by_terms, own))}


def _virial_terms(position: np.ndarray, gradient: np.ndarray, n: int) -> np.ndarray:
    """Return ``(x - m) g + 1`` of all coordinates, or sums over neighbours if there are many: ``(draws, m)``.

    ``m`` is the mean of the first ``n`` draws.
    """
    d = position.shape[1]
    m = min(d, CALIBRATION.virial_terms, n // CALIBRATION.draws_a_term)
    if m < 1 or d < 2:  # with one coordinate it is the own-direction term S_2
        return np.zeros((len(position), 0))
    terms = position - position[:n].mean(axis=0)
    terms *= gradient  # in place: a copy would be as large as all draws
    terms += 1.0
    return terms if m == d else np.add.reduceat(terms, np.arange(m) * d // m, axis=1)


def corrected_expectations(
    values: np.ndarray,
    position: np.ndarray,
    gradient: np.ndarray,
    own: np.ndarray | None = None,
    follow: np.ndarray | None = None,
) -> Corrected:
    """Estimate the posterior expectations of functions of the parameters.

    Parameters
    ----------
    values : (chain, draw, p)
        The functions at the draws.
    position, gradient : (chain, draw, d)
        Unconstrained positions, and the gradient of the log density there.
    own : (p,) int, optional
        The coordinate that a function equals, or -1: its direction need not be estimated.
    follow : (chain, draw, p), optional
        Functions whose directions are used; default ``values``.  A squared deviation does not vary with a direction
        linearly, and uses that of the deviation.

    Returns
    -------
    Corrected
        Raw and corrected estimates with standard errors.

    Notes
    -----
    The identity needs a density that vanishes at infinity; on the unconstrained scale there are no boundary terms.
    Draws with wrong weights of separate modes fulfil it.
    """
    chains, draws, p = values.shape
    cut = count_pieces(chains, draws)
    used_draws = draws - draws % cut
    arrays = (values, position, gradient, values if follow is None else follow)
    f, x, g, follow = (a[:, draws - used_draws :].reshape(chains * used_draws, -1) for a in arrays)
    # Minus its first value a constant is exactly zero.  Functions that are not finite are 0 here, NaN at the end.
    finite = np.isfinite(f).all(axis=0)
    origin = np.where(finite, f[0], np.nan)
    f = np.where(finite, f - np.where(finite, f[0], 0.0), 0.0)
    follow = np.where(finite, follow - np.where(finite, follow[0], 0.0), 0.0)
    own = np.full(p, -1) if own is None else own
    pieces = np.repeat(np.arange(chains * cut), used_draws // cut)
    folds = pieces // cut * min(chains, CALIBRATION.folds) // chains if chains > 1 else pieces

    corrected = {order: np.empty((chains * cut, p)) for order in (*ORDERS, _VIRIAL)}
    for fold in np.unique(folds):
        held, train = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        train = train[:: -(-len(train) // CALIBRATION.fitted_draws)]
        rows, n = np.concatenate([train, held]), len(train)
        basis = _Basis.of(x[rows], g[rows], n)
        virial = _virial_terms(basis.x, basis.g, n)
        which = np.unique(pieces[held])
        each = len(held) // len(which)
        shared = virial[n:].reshape(len(which), each, virial.shape[1]).mean(axis=1)
        fitted = _shared(virial[:n])
        for block in np.array_split(np.arange(p), -(-p * len(rows) // _BLOCK)):
            terms = _regressors(basis, follow[rows[:, None], block], own[block])
            single = terms[:, n:].reshape(3, len(which), each, len(block)).mean(axis=2)
            plain = f[held[:, None], block].reshape(len(which), each, len(block)).mean(axis=1)
            for order, (slopes, more) in _fit(terms[:, :n], f[train[:, None], block], fitted).items():
                known = np.einsum("iwp,ip->wp", single[: len(slopes)], slopes) + shared[:, : len(more)] @ more
                corrected[order][np.ix_(which, block)] = plain - known
    raw = f.reshape(chains * cut, -1, p).mean(axis=1)

    raw_se = between_pieces(raw, chains)
    spreads = {order: between_pieces(pieces_of, chains) for order, pieces_of in corrected.items()}
    scale = np.maximum(f.std(axis=0), 1e-300)
    mean_error = {order: float(np.mean((spreads[order] / scale) ** 2)) for order in ORDERS}
    best = min(mean_error, key=lambda order: mean_error[order])
    # All functions have the same number of own terms; only those that scale others have the virial terms too.
    by_virial = (x.shape[1] > 1) & (spreads[_VIRIAL] ** 2 * CALIBRATION.gain_of_virial < spreads[best] ** 2)
    chosen = np.where(by_virial, corrected[_VIRIAL], corrected[best])
    error = np.where(by_virial, spreads[_VIRIAL], spreads[best])
    chosen_estimate = choose(
        Estimate(origin + raw.mean(axis=0), raw_se, raw),
        Estimate(origin + chosen.mean(axis=0), error, chosen),
        (raw.mean(axis=0) - chosen.mean(axis=0), between_pieces(raw - chosen, chains)),
        finite,
        mean_error[best],
        float(np.mean((raw_se / scale) ** 2)),
    )
    return chosen_estimate._replace(by_chain=origin + chosen_estimate.by_chain.reshape(chains, cut, p).mean(axis=1))
