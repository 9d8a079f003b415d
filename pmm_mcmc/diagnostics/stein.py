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
(``benchmarks/frozen/calibration.txt``).

References
----------
.. [1] A. Mira, R. Solgi, D. Imparato, "Zero variance Markov chain Monte Carlo for Bayesian estimators", Statistics and
   Computing 23, 2013.
.. [2] C. J. Oates, M. Girolami, N. Chopin, "Control functionals for Monte Carlo integration", JRSS B 79, 2017.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.estimate import Corrected, Estimate, choose
from pmm_mcmc.diagnostics.folds import Folds
from pmm_mcmc.warmup.standard_errors import between_pieces

__all__ = [
    "ORDERS",
    "corrected",
    "corrected_expectations",
    "own_terms",
    "solve_slopes",
]

# Sets of regressors: the first one, two or three own-direction terms, or all three with the virial terms.
ORDERS = (1, 2, 3)
_VIRIAL = "virial"
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
        Virial terms about their means, and the inverse of their normal matrix.

    Returns
    -------
    dict of (order, p), (m, p)
        Coefficients of the own-direction and, by ridge, of the virial terms, by the set.
    """
    p = values.shape[1]
    h, inverse = shared
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
    with_terms = np.stack([h.T @ term for term in t])
    with_values = h.T @ f
    by_terms = inverse @ with_terms
    by_values = inverse @ with_values
    gram = gram - np.einsum("imp,jmp->pij", with_terms, by_terms)
    right = right - np.einsum("imp,mp->pi", with_terms, by_values)
    slopes = solve_slopes(gram, right)
    return coefficients | {_VIRIAL: (slopes, by_values - np.einsum("imp,ip->mp", by_terms, slopes))}


def corrected_expectations(
    values: np.ndarray,
    position: np.ndarray,
    gradient: np.ndarray,
    coordinate: np.ndarray | None = None,
    follow: np.ndarray | None = None,
) -> Corrected:
    """Estimate the posterior expectations of functions of the parameters.

    Parameters
    ----------
    values : (chain, draw, p)
        The functions at the draws.
    position, gradient : (chain, draw, d)
        Unconstrained positions, and the gradient of the log density there.
    coordinate : (p,) int, optional
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
    folds = Folds(position, gradient)
    return corrected(values, folds, folds.directions(values if follow is None else follow, coordinate))


def corrected(values: np.ndarray, folds: Folds, directions: list[np.ndarray], unbiased: bool = False) -> Corrected:
    """Estimate expectations of functions as :func:`corrected_expectations` does, from folds made before.

    Parameters
    ----------
    values : (chain, draw, p)
        The functions at the draws.
    folds
        The draws.
    directions
        How the functions, or those that they follow, vary: ``folds.directions`` of them.
    unbiased
        Whether the draws have no bias: then nothing is added to errors for what a correction leaves of it.
    """
    p = values.shape[2]
    chains = folds.chains
    cut = folds.cut
    f = folds.flat(values)
    # Minus its first value a constant is exactly zero.  Functions that are not finite are 0 here, NaN at the end.
    finite = np.isfinite(f).all(axis=0)
    origin = np.where(finite, f[0], np.nan)
    f = np.where(finite, f - np.where(finite, f[0], 0.0), 0.0)

    pieces = {order: np.empty((chains * cut, p)) for order in (*ORDERS, _VIRIAL)}
    for (fold, train, held, numbers), direction in zip(folds, directions, strict=True):
        each = len(held) // len(numbers)
        n = len(train)
        h, inverse, shared = fold.virial()
        shared = shared.reshape(len(numbers), each, shared.shape[1]).mean(axis=1)
        u, s1 = fold.along(direction)
        for block in np.array_split(np.arange(p), -(-p * (n + len(held)) // _BLOCK)):
            terms = np.stack(own_terms(u[:, block], s1[:, block]))
            single = terms[:, n:].reshape(3, len(numbers), each, len(block)).mean(axis=2)
            plain = f[held[:, None], block].reshape(len(numbers), each, len(block)).mean(axis=1)
            for order, (slopes, more) in _fit(terms[:, :n], f[train[:, None], block], (h, inverse)).items():
                explained = np.einsum("iwp,ip->wp", single[: len(slopes)], slopes) + shared[:, : len(more)] @ more
                pieces[order][np.ix_(numbers, block)] = plain - explained
    raw = f.reshape(chains * cut, -1, p).mean(axis=1)

    raw_se = between_pieces(raw, chains)
    spreads = {order: between_pieces(pieces_of, chains) for order, pieces_of in pieces.items()}
    scale = np.maximum(f.std(axis=0), 1e-300)
    mean_error = {order: float(np.mean((spreads[order] / scale) ** 2)) for order in ORDERS}
    best = min(mean_error, key=lambda order: mean_error[order])
    # All functions have the same number of own terms; only those that scale others have the virial terms too.
    by_virial = (folds.coordinates > 1) & (spreads[_VIRIAL] ** 2 * CALIBRATION.gain_of_virial < spreads[best] ** 2)
    chosen = np.where(by_virial, pieces[_VIRIAL], pieces[best])
    error = np.where(by_virial, spreads[_VIRIAL], spreads[best])
    chosen_estimate = choose(
        Estimate(origin + raw.mean(axis=0), raw_se, raw),
        Estimate(origin + chosen.mean(axis=0), error, chosen),
        (raw.mean(axis=0) - chosen.mean(axis=0), between_pieces(raw - chosen, chains)),
        finite,
        mean_error[best],
        float(np.mean((raw_se / scale) ** 2)),
        unbiased,
    )
    return chosen_estimate._replace(by_chain=origin + chosen_estimate.by_chain.reshape(chains, cut, p).mean(axis=1))
