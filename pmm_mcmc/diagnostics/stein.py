r"""Posterior expectations corrected by Stein's identity: bias and noise removed together.

With ``g`` the gradient of the log density and any smooth ``phi``, the Langevin generator
:math:`L \phi = \Delta \phi + g \cdot \nabla \phi` has expectation zero under the posterior.  A function ``f`` is
regressed on a few such terms over the draws, and the constant of the regression is read off: where the terms explain
``f``, neither the sampler's bias nor its noise is left in it.

The terms follow the direction in which ``f`` varies (*own-direction regressors*).  With ``J`` the linear
coefficients of ``f``, ``S`` the covariance of a Gaussian fitted to positions and gradients, ``m`` its mean,
:math:`s^2 = J S J^T`, :math:`u = J (x - m) / s` and :math:`S_1 = -g \cdot S J^T / s`,

.. math:: S_1, \qquad S_2 = u S_1 - 1, \qquad S_3 = u^2 S_1 - 2 u .

They are exact for means and variances of any Gaussian.  Coefficients are fitted on other chains than they are applied
to, so that the estimate is free of overfitting and its standard error can be read off from the spread.

References
----------
.. [1] A. Mira, R. Solgi, D. Imparato, "Zero variance Markov chain Monte Carlo for Bayesian estimators", Statistics and
   Computing 23, 2013.
.. [2] C. J. Oates, M. Girolami, N. Chopin, "Control functionals for Monte Carlo integration", JRSS B 79, 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.tuning.scale import MOST_DENSE, affine_scale

__all__ = ["Corrected", "corrected_expectations", "degrees_of_freedom", "spread"]

_ORDERS = (1, 2, 3)
# The raw estimate is kept unless a correction promises a variance smaller by this factor, over all functions ...
_FAVOUR_RAW = 1.25
# ... and, function by function, a squared standard error below this part of the raw one's.
_WORTHWHILE = 0.5
_PIECES = 16
_TINY = 1e-10


class Corrected(NamedTuple):
    """Estimates of ``p`` expectations, each of shape ``(p,)``.

    Attributes
    ----------
    raw, raw_se
        Plain mean over draws, with its standard error.
    value, se
        Corrected where ``used``, else raw.
    bias, bias_se
        Raw minus corrected, with its standard error; NaN where not measurable.
    used
        Whether the correction was worthwhile.
    ratio
        Squared standard error of the correction over the raw one's.

    A function that is not finite everywhere is left raw, without an error; a constant has no bias and no error.
    """

    raw: np.ndarray
    raw_se: np.ndarray
    value: np.ndarray
    se: np.ndarray
    bias: np.ndarray
    bias_se: np.ndarray
    used: np.ndarray
    ratio: np.ndarray


def _pieces(chains: int, draws: int) -> int:
    """Contiguous pieces to cut each chain into, for standard errors with enough degrees of freedom."""
    return max(1, min(-(-_PIECES // chains), draws // 10))


def degrees_of_freedom(chains: int, draws: int) -> int:
    """Return the degrees of freedom of the standard errors of :func:`spread`."""
    return max(1, chains * _pieces(chains, draws) - 1)


def spread(values: np.ndarray) -> np.ndarray:
    """Return standard errors ``(p,)`` of the means of ``(chain, draw, p)`` values, by batches and between chains."""
    chains, draws, p = values.shape
    cut = _pieces(chains, draws)
    used = draws - draws % cut
    return _spread(values[:, draws - used :].reshape(chains * cut, used // cut, p).mean(axis=1), chains)


def _spread(values: np.ndarray, chains: int) -> np.ndarray:
    """Return the standard error of the mean of ``(pieces, p)``: from the pieces or, if larger, from the chains."""
    n = len(values)
    se = values.std(axis=0, ddof=1) / np.sqrt(n)
    if chains > 1:
        by_chain = values.reshape(chains, n // chains, -1).mean(axis=1)
        se = np.maximum(se, by_chain.std(axis=0, ddof=1) / np.sqrt(chains))
    return se


def _regressors(
    position: np.ndarray, gradient: np.ndarray, follow: np.ndarray, own: np.ndarray, train: np.ndarray
) -> np.ndarray:
    """Return the terms ``S_1, S_2, S_3`` of each function on all draws, fitted on ``train``: ``(3, draws, p)``."""
    x, g, f = position[train], gradient[train], follow[train]
    d, n = x.shape[1], len(x)
    dense = d <= MOST_DENSE and n > 3 * d
    centre, root = affine_scale(x, g, dense=dense)
    y = position - centre
    if dense:
        covariance = root @ root.T
        # Least squares of f on x: linear functions exactly, however correlated the coordinates are.
        xc = x - x.mean(axis=0)
        gram = xc.T @ xc
        # A coordinate that does not move has no slope.
        gram[np.diag_indices(d)] = np.where(gram.diagonal() > 0.0, gram.diagonal() * (1.0 + _TINY), 1.0)
        slope = np.linalg.solve(gram, xc.T @ (f - f.mean(axis=0))).T
        slope[own >= 0] = 0.0
        slope[own >= 0, own[own >= 0]] = 1.0
        along = slope @ covariance
        s = np.sqrt(np.maximum((along * slope).sum(axis=1), 1e-300))
        u = y @ slope.T / s
        s1 = -(gradient @ along.T) / s
    else:
        # Too many coordinates to know how they move together: follow the one that f varies with most.
        xc, fc = x - x.mean(axis=0), f - f.mean(axis=0)
        correlation = np.abs(fc.T @ (xc / np.maximum(xc.std(axis=0), 1e-300)))
        best = np.where(own >= 0, own, correlation.argmax(axis=1))
        u = (y / root)[:, best]
        s1 = -(gradient * root)[:, best]
    return np.stack([s1, u * s1 - 1.0, u * u * s1 - 2.0 * u])


def _fit(terms: np.ndarray, values: np.ndarray, order: int) -> np.ndarray:
    """Coefficients ``(order, p)`` of the regression of each function on its first terms."""
    t = terms[:order] - terms[:order].mean(axis=1, keepdims=True)
    f = values - values.mean(axis=0)
    gram = np.einsum("inp,jnp->pij", t, t)
    gram += 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(order) + 1e-300 * np.eye(order)
    right = np.einsum("inp,np->pi", t, f)
    return np.linalg.solve(gram, right[..., None])[..., 0].T


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
        The coordinate that a function follows, or -1: saves the estimation of its direction.
    follow : (chain, draw, p), optional
        What to take the direction from; default ``values``.  A squared deviation has no direction of its own: it
        follows what was squared.

    Returns
    -------
    Corrected
        Raw and corrected estimates with standard errors.

    Notes
    -----
    The identity needs a density that falls off at infinity; on the unconstrained scale there are no boundary terms.
    The weights of separate modes are invisible to it.
    """
    chains, draws, p = values.shape
    cut = _pieces(chains, draws)
    used_draws = draws - draws % cut
    arrays = (values, position, gradient, values if follow is None else follow)
    f, x, g, follow = (a[:, draws - used_draws :].reshape(chains * used_draws, -1) for a in arrays)
    # Counted from its first value a constant is exactly zero; what is not finite must not spoil the others.
    finite = np.isfinite(f).all(axis=0)
    origin = np.where(finite, f[0], np.nan)
    f = np.where(finite, f - np.where(finite, f[0], 0.0), 0.0)
    follow = np.where(finite, follow - np.where(finite, follow[0], 0.0), 0.0)
    own = np.full(p, -1) if own is None else own
    pieces = np.repeat(np.arange(chains * cut), used_draws // cut)
    folds = pieces // cut if chains > 1 else pieces

    corrected = {order: np.empty((chains * cut, p)) for order in _ORDERS}
    for fold in np.unique(folds):
        held, train = folds == fold, folds != fold
        terms = _regressors(x, g, follow, own, train)
        for order in _ORDERS:
            slopes = _fit(terms[:, train], f[train], order)
            residual = f[held] - np.einsum("inp,ip->np", terms[:order][:, held], slopes)
            for piece in np.unique(pieces[held]):
                corrected[order][piece] = residual[pieces[held] == piece].mean(axis=0)
    raw = f.reshape(chains * cut, -1, p).mean(axis=1)

    raw_se = _spread(raw, chains)
    spreads = {order: _spread(corrected[order], chains) for order in _ORDERS}
    scale = np.maximum(f.std(axis=0), 1e-300)
    worth = {order: float(np.mean((spreads[order] / scale) ** 2)) for order in _ORDERS}
    best = min(worth, key=lambda order: worth[order])
    ratio = spreads[best] ** 2 / np.maximum(raw_se**2, 1e-300)
    used = (ratio < _WORTHWHILE) & finite
    if worth[best] * _FAVOUR_RAW > float(np.mean((raw_se / scale) ** 2)):
        # Not for all of them, then: only where a function's own gain is beyond doubt.
        used &= ratio < _WORTHWHILE / _FAVOUR_RAW
    unknown = np.where(finite, 0.0, np.nan)
    value = np.where(used, corrected[best].mean(axis=0), raw.mean(axis=0))
    return Corrected(
        origin + raw.mean(axis=0),
        raw_se + unknown,
        origin + value,
        np.where(used, spreads[best], raw_se) + unknown,
        np.where(used, raw.mean(axis=0) - value, np.nan),
        np.where(used, _spread(raw - corrected[best], chains), np.nan),
        used,
        ratio + unknown,
    )
