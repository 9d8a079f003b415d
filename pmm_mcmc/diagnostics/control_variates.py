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
are many).  Of few coordinates the cubic ones :math:`(x_j - m_j)^2 (h_j + 2)` go with them: the square of a function
that is bent along a coordinate varies with its fourth power.

Draws are cut into *folds*, whose coefficients are fitted on the draws of all others: the estimate does not overfit, and
its standard error follows from the variation of the corrected values.  A correction that leaves a share ``r`` of the
variance of a mean leaves about :math:`\sqrt r` of its bias (``benchmarks/frozen/calibration.txt``).

The identity of the coordinates themselves, :math:`E[(x_i - c_i)\,\partial_i F] = 1` with ``F`` minus the log density,
says whether draws are of the posterior.  The *excess* of its average is that average minus 1: positive for draws that
are too wide, as by too long a step.  Its standard error is that of 64 batches or, if larger, from autocorrelations:
errors of 16 batches are low by half once in 250 runs.

References
----------
.. [1] A. Mira, R. Solgi, D. Imparato, "Zero variance Markov chain Monte Carlo for Bayesian estimators", Statistics and
   Computing 23, 2013.
.. [2] C. J. Oates, M. Girolami, N. Chopin, "Control functionals for Monte Carlo integration", JRSS B 79, 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np
from scipy.special import fdtri

from pmm_mcmc.coordinates.affine import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.convergence import mcse_of_means
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.stein_identity import (
    Identity,
    batch_means,
    between_pieces,
    count_pieces,
    largest_t,
    stein_identity,
)
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP

# Numbers of own terms to regress on; the last set has the virial terms too.
_ORDERS = (1, 2, 3, 3)
# Numbers of positions that are copied together, and of functions that are corrected together: the latter fit a cache.
_COPIED = 2**20
_BLOCK = 2**18


class Corrected(NamedTuple):
    """Estimates of ``p`` expectations, each of shape ``(p,)``.

    A function that is not finite everywhere has a plain estimate without an error; a constant has no bias and no error.
    """

    plain: np.ndarray  # mean over the draws, with its standard error
    plain_se: np.ndarray
    value: np.ndarray  # corrected estimate, with its standard error, if ``used``, else the plain one
    se: np.ndarray
    bias: np.ndarray  # plain minus corrected estimate, with its standard error; NaN where not measurable
    bias_se: np.ndarray
    # Share of the error, and about that of the bias, which is left; ``se`` includes it if the bias is beyond doubt.
    unexplained: np.ndarray
    # The bias by all that the correction shows of it, also where it is not used: over the share that it explains.
    whole_bias: np.ndarray
    whole_bias_se: np.ndarray
    # (chain, p): ``value`` from the draws of each chain, with coefficients from the others.
    by_chain: np.ndarray

    @property
    def used(self) -> np.ndarray:
        """Whether the correction reduced the error enough."""
        return ~np.isnan(self.bias)


def uncorrected(values: np.ndarray) -> Corrected:
    """Return plain means of functions ``(chain, draw, p)``, whose bias is not measurable."""
    origin = values[0, 0]
    none = np.full(len(origin), np.nan)
    with np.errstate(invalid="ignore"):  # the mean of what is not finite
        f = values - origin
        pieces = batch_means(f)
        value = origin + pieces.mean(axis=0)
        error = between_pieces(pieces, len(values)) if len(pieces) > 1 else none
        shares = np.ones(len(origin))
        by_chain = origin + f.mean(axis=1)
        return Corrected(value, error, value, error, none, none, shares, none, none, by_chain)


def corrected(
    values: np.ndarray, folds: Folds, coordinate: np.ndarray, noise: np.ndarray | None = None, *, unbiased: bool = False
) -> tuple[Corrected, Corrected]:
    """Estimate means and variances of functions with ``values`` ``(chain, draw, p)`` at the draws of ``folds``.

    ``coordinate`` ``(p,)`` is the coordinate that a function equals, or -1: its direction need not be estimated.  The
    squared deviation from the corrected mean, which varies with no direction linearly, has the terms of the deviation.
    Where ``values`` are averages of two numbers, these are off by ``noise``.  To errors of draws that are not
    ``unbiased`` is added what a correction leaves of the bias.

    On the unconstrained scale there are no boundary terms.  Draws with wrong weights of separate modes fulfil the
    identity.
    """
    p = values.shape[2]
    f, origin = folds.about_first(values)
    centre = f.mean(axis=0)
    between = 0.0 if noise is None else np.nan_to_num(folds.in_pieces(noise)) ** 2
    functions = (f - centre, (f - centre) ** 2 + between)
    pieces = np.empty((2, len(_ORDERS), folds.chains * folds.pieces_per_chain, p))
    for fold, numbers in folds.members:
        n = fold.fitted
        rows = fold.rows
        h, inverse, virial = fold.virial()
        shape = (len(numbers), (len(rows) - n) // len(numbers))  # pieces and draws of each
        virial_means = virial.reshape(*shape, virial.shape[1]).mean(axis=1)
        u, s1 = fold.along(fold.directions(functions[0][rows[:n]], coordinate))
        for block in np.array_split(np.arange(p), -(-p * len(rows) // _BLOCK)):
            terms = np.stack(own_terms(u[:, block], s1[:, block]))
            term_means = terms[:, n:].reshape(3, *shape, len(block)).mean(axis=2)
            fit = _Fit(terms[:, :n], h, inverse)
            for function, of_function in zip(functions, pieces, strict=True):
                means = function[rows[n:, None], block].reshape(*shape, len(block)).mean(axis=1)
                coefficients = fit.of(function[rows[:n, None], block])
                for corrected_pieces, (slopes, virial_slopes) in zip(of_function, coefficients, strict=True):
                    explained = np.einsum("iwp,ip->wp", term_means[: len(slopes)], slopes)
                    explained += virial_means[:, : len(virial_slopes)] @ virial_slopes
                    corrected_pieces[np.ix_(numbers, block)] = means - explained
    plain, plain_squares = (each.reshape(pieces.shape[2], -1, p).mean(axis=1) for each in functions)
    deviation, squares = pieces
    mean = _estimates(deviation, plain, functions[0].std(axis=0), origin + centre, folds, unbiased)
    # Estimates are linear in functions: those of squares about the corrected mean follow from those about the centre.
    shift = np.nan_to_num(mean.value - (origin + centre))
    squares = squares - shift * (2.0 * deviation - shift)
    plain_squares = plain_squares - shift * (2.0 * plain - shift)
    spread = ((functions[0] - shift) ** 2 + between).std(axis=0)
    return mean, _estimates(squares, plain_squares, spread, 0.0 * origin, folds, unbiased)


def own_terms(u: np.ndarray, s1: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the own terms ``S_1, S_2, S_3`` from positions ``u`` along a direction and ``S_1``."""
    return s1, u * s1 - 1.0, u * u * s1 - 2.0 * u


class _Fit:
    """Regressions on the own terms ``(3, n, p)`` of functions that vary along the same directions.

    ``h`` ``(n, m)`` are the virial terms about their means, and ``inverse`` is that of their normal matrix, with a
    ridge.
    """

    def __init__(self, terms: np.ndarray, h: np.ndarray, inverse: np.ndarray):
        self._terms = terms - terms.mean(axis=1, keepdims=True)
        self._h = h
        self._inverse = inverse
        gram = np.empty((terms.shape[2], 3, 3))
        for i in range(3):
            for j in range(i + 1):
                gram[:, i, j] = gram[:, j, i] = np.einsum("np,np->p", self._terms[i], self._terms[j])
        self._gram = gram
        # Normal equations of both sets of terms, from which the virial ones are eliminated first.
        self._with_terms = np.stack([h.T @ term for term in self._terms])
        self._by_terms = inverse @ self._with_terms

    def of(self, values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each set of terms the coefficients of the own ``(order, p)`` and of the virial terms ``(m, p)``.

        ``values`` ``(n, p)`` are those of the functions.
        """
        f = values - values.mean(axis=0)
        right = np.stack([np.einsum("np,np->p", term, f) for term in self._terms], axis=1)
        none = np.zeros((0, values.shape[1]))
        by_direction = [(_slopes(self._gram[:, :order, :order], right[:, :order]), none) for order in _ORDERS[:-1]]
        by_values = self._inverse @ (self._h.T @ f)
        gram = self._gram - np.einsum("imp,jmp->pij", self._with_terms, self._by_terms)
        slopes = _slopes(gram, right - np.einsum("imp,mp->pi", self._with_terms, by_values))
        return [*by_direction, (slopes, by_values - np.einsum("imp,ip->mp", self._by_terms, slopes))]


def _slopes(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve the normal equations of each function, ``(p, order, order)`` and ``(p, order)``; return ``(order, p)``."""
    order = gram.shape[-1]
    # A tiny ridge, for terms that are collinear or constant.
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300
    return np.linalg.solve(gram + ridge[:, None, None] * np.eye(order), right[..., None])[..., 0].T


def _estimates(
    pieces: np.ndarray, plain: np.ndarray, sd: np.ndarray, origin: np.ndarray, folds: Folds, unbiased: bool
) -> Corrected:
    """Return the corrected estimate of each function where that reduces the error enough, else the plain one.

    ``pieces`` ``(set, m, p)`` and ``plain`` are batch means about ``origin``: corrected by each set of terms, and
    plain.  All functions have the same number of own terms; only those that scale others have the virial terms too.
    """
    sd = np.maximum(sd, 1e-300)
    plain_se = between_pieces(plain, folds.chains)
    errors = np.stack([between_pieces(each, folds.chains) for each in pieces])
    mean_square = np.mean((errors[:-1] / sd) ** 2, axis=1)
    best = int(mean_square.argmin())
    scales_others = (folds.coordinates > 1) & (errors[-1] ** 2 * THRESHOLDS.gain_of_virial < errors[best] ** 2)
    estimate = np.where(scales_others, pieces[-1], pieces[best])
    error = np.where(scales_others, errors[-1], errors[best])
    limit = THRESHOLDS.gain_of_one
    if mean_square[best] * THRESHOLDS.gain_of_all > np.mean((plain_se / sd) ** 2):
        limit /= THRESHOLDS.gain_of_all  # corrections help few functions, which must gain more
    ratio = error**2 / np.maximum(plain_se**2, 1e-300)
    used = (ratio < limit) & np.isfinite(origin)
    unexplained = np.minimum(np.sqrt(ratio), 1.0)
    explained = np.where(unexplained < 1.0, 1.0 - unexplained, np.nan)
    bias = plain.mean(axis=0) - estimate.mean(axis=0)
    bias_se = between_pieces(plain - estimate, folds.chains)
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
        whole_bias=bias / explained + not_finite,
        whole_bias_se=bias_se / explained + not_finite,
        by_chain=origin + estimate.reshape(folds.chains, folds.pieces_per_chain, -1).mean(axis=1),
    )


class Folds:
    """The folds of a result, from positions and gradients ``(chain, draw, d)``: what all functions of them share.

    Each chain is cut into pieces, whose means give standard errors.  A fold is a chain, some of many chains, or a piece
    of a single one.  ``members`` are the folds with the numbers of their pieces.
    """

    def __init__(self, position: np.ndarray, gradient: np.ndarray):
        self.chains, draws, self.coordinates = position.shape
        self.pieces_per_chain = count_pieces(self.chains, draws)
        self._skipped = draws % self.pieces_per_chain  # first draws of each chain, which are in no piece
        pieces = np.repeat(np.arange(self.chains * self.pieces_per_chain), draws // self.pieces_per_chain)
        folds = pieces
        if self.chains > 1:
            folds = pieces // self.pieces_per_chain * min(self.chains, THRESHOLDS.folds) // self.chains
        x, g = (values[:, self._skipped :].reshape(-1, self.coordinates) for values in (position, gradient))
        self.members: list[tuple[Fold, np.ndarray]] = []
        for number in np.unique(folds):
            held = np.flatnonzero(folds == number)
            train = np.flatnonzero(folds != number)
            train = train[:: -(-len(train) // THRESHOLDS.fitted_draws)]
            fold = Fold(x, g, np.concatenate([train, held]), len(train))
            self.members.append((fold, np.unique(pieces[held])))

    def in_pieces(self, values: np.ndarray) -> np.ndarray:
        """Return functions ``(chain, draw, p)`` of draws in pieces, as ``(n, p)``."""
        return values[:, self._skipped :].reshape(-1, values.shape[2])

    def about_first(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return functions ``(chain, draw, p)`` of draws in pieces, minus their first values, as ``(n, p)``; and these.

        So a constant is exactly zero.  A function that is not finite somewhere is 0, and its first value NaN.
        """
        f = self.in_pieces(values)
        finite = np.isfinite(f).all(axis=0)
        return np.where(finite, f - np.where(finite, f[0], 0.0), 0.0), np.where(finite, f[0], np.nan)


class Fold:
    """One fold: the draws ``rows[:fitted]`` to fit coefficients on, and ``rows[fitted:]``, to which they are applied.

    Positions and gradients ``(n, d)`` are of all draws.  A ``dense`` Gaussian has a full covariance, else a diagonal.
    """

    def __init__(self, position: np.ndarray, gradient: np.ndarray, rows: np.ndarray, fitted: int):
        self._x = position
        self._g = gradient
        self.rows = rows
        self.fitted = fitted
        self._inverse: np.ndarray | None = None
        train = rows[:fitted]
        d = position.shape[1]
        self.dense = d <= MOST_DENSE and fitted > 3 * d
        if self.dense:
            x = position[train]
            self._centre, root = affine_scale(x, gradient[train], dense=True)
            self._mean = x.mean(axis=0)
            self._covariance = root @ root.T
            self._gram = (x - self._mean).T @ (x - self._mean)
            # A tiny ridge; the slope on a coordinate that does not move is 0.
            diagonal = self._gram.diagonal()
            self._gram[np.diag_indices(d)] = np.where(diagonal > 0.0, diagonal * (1.0 + 1e-10), 1.0)
        else:
            self._centre, self._scale, self._mean = np.empty((3, d))
            for columns in self._ranges(d):
                x = position[train, columns]
                self._centre[columns], self._scale[columns] = affine_scale(x, gradient[train, columns], dense=False)
                self._mean[columns] = x.mean(axis=0)

    def _ranges(self, count: int) -> Iterator[slice]:
        """Yield ranges of ``count`` coordinates, or sums of them, that are few enough to be copied together."""
        number = min(count, 1 + len(self.rows) * self._x.shape[1] // _COPIED)
        return starmap(slice, pairwise(np.arange(number + 1) * count // max(number, 1)))

    def directions(self, values: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
        """Return the direction along which each function, with values ``(fitted, p)``, varies.

        These are slopes ``(p, d)`` or, unless the fold is dense, the number of one coordinate each ``(p,)``.  It is
        known of a function that equals a ``coordinate``, and estimated where that is -1.
        """
        free = np.flatnonzero(coordinate < 0)
        train = self.rows[: self.fitted]
        f = values[:, free]
        f = f - f.mean(axis=0)
        if self.dense:
            # Least squares of f on x is exact for linear functions, however correlated the coordinates are.
            slope = np.zeros((len(coordinate), self._x.shape[1]))
            slope[coordinate >= 0, coordinate[coordinate >= 0]] = 1.0
            if len(free):
                slope[free] = np.linalg.solve(self._gram, (self._x[train] - self._mean).T @ f).T
            return slope
        # Too many coordinates to know how they move together: follow the one that f varies with most.
        best = coordinate.copy()
        largest = np.full(len(free), -1.0)
        for columns in self._ranges(self._x.shape[1]) if len(free) else ():
            x = self._x[train, columns] - self._mean[columns]
            with_each = np.abs(f.T @ (x / np.maximum(x.std(axis=0), 1e-300)))
            strongest = with_each.argmax(axis=1)
            strength = with_each[np.arange(len(free)), strongest]
            best[free] = np.where(strength > largest, columns.start + strongest, best[free])
            largest = np.maximum(largest, strength)
        return best

    def along(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions ``u`` along each direction and the terms ``S_1`` of all draws, ``(rows, p)`` each."""
        if self.dense:
            slopes = directions @ self._covariance
            s = np.sqrt(np.maximum((slopes * directions).sum(axis=1), 1e-300))
            return (self._x[self.rows] - self._centre) @ (directions.T / s), self._g[self.rows] @ (slopes.T / -s)
        elements = (self.rows[:, None], directions)
        scale = self._scale[directions]
        return (self._x[elements] - self._centre[directions]) / scale, -(self._g[elements] * scale)

    def virial(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return virial terms to fit on, about their means, their inverse normal matrix, and those to correct by."""
        terms = self.virial_terms()
        h = terms[: self.fitted] - terms[: self.fitted].mean(axis=0)
        if self._inverse is None:
            self._inverse = inverse_normal_matrix(h)
        return h, self._inverse, terms[self.fitted :]

    def virial_terms(self) -> np.ndarray:
        """Return the virial terms of all coordinates or, if these are many, sums over neighbours, then cubic ones."""
        d = self._x.shape[1]
        count, cubic = count_virial_terms(self.fitted, d)
        starts = np.arange(count + 1) * d // max(count, 1)
        result = np.empty((len(self.rows), count + cubic))
        for sums in self._ranges(count):
            columns = slice(starts[sums.start], starts[sums.stop])
            deviation = self._x[self.rows, columns] - self._mean[columns]
            terms = deviation * self._g[self.rows, columns]
            if cubic:
                result[:, count:][:, columns] = deviation**2 * (terms + 3.0)
            terms += 1.0
            result[:, sums] = np.add.reduceat(terms, starts[sums] - columns.start, axis=1)
        return result


def inverse_normal_matrix(h: np.ndarray) -> np.ndarray:
    """Return the inverse of the normal matrix of virial terms ``(n, m)`` about their means, with a ridge."""
    variance = np.maximum((h**2).mean(axis=0), 1e-300)
    return np.linalg.inv(h.T @ h + np.diag(THRESHOLDS.ridge * len(h) * variance))


def count_virial_terms(n: int, d: int) -> tuple[int, int]:
    """Return the numbers of virial terms and of cubic ones to fit on ``n`` draws.

    There are none for one coordinate, where the first would be ``S_2``, and cubic ones if both fit for each coordinate.
    """
    if d == 1:
        return 0, 0
    cubic = d if 2 * d * THRESHOLDS.draws_a_cubic_term <= n else 0
    return min(d, THRESHOLDS.virial_terms, n // THRESHOLDS.draws_a_term), cubic


# -- the identity of the coordinates -----------------------------------------------------------------------------------


def identity_of(position: np.ndarray, gradient: np.ndarray) -> Identity:
    """Return Stein's identity of each coordinate of draws ``(chain, draw, d)``."""
    return stein_identity(position, gradient, THRESHOLDS.identity_pieces, mcse_of_means)


def whitened_identity(position: np.ndarray, gradient: np.ndarray) -> Identity | None:
    """Return Stein's identity of whitened coordinates; None for one coordinate, very many, few draws or constants.

    Of collinear coordinates the products vary by far more than 1, so that a failure hides in their noise; of whitened
    ones they do not.  The whitening is symmetric: whitened coordinate ``i`` is the one most like coordinate ``i``.
    """
    chains, draws, d = position.shape
    n = chains * draws
    if not (1 < d <= MOST_DENSE and n > 3 * d and np.isfinite(position).all() and np.isfinite(gradient).all()):
        return None
    if not (np.ptp(position, axis=(0, 1)) > 0.0).all():
        return None
    x = position.reshape(n, d)
    every = -(-n // THRESHOLDS.fitted_draws)
    centre, root = affine_scale(x[::every], gradient.reshape(n, d)[::every], dense=True)
    y = (x - centre) @ np.linalg.inv(root).T
    if not np.isfinite(y).all():
        return None
    return identity_of(y.reshape(position.shape), gradient @ root)


def fails(identity: Identity, degrees: int, times: float = 1.0) -> np.ndarray:
    """Return in which coordinates the identity fails: the excess is large, and ``times`` the limit of chance or more.

    ``degrees`` are the degrees of freedom of its standard errors.
    """
    chance = times * max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    return (np.abs(identity.excess) > THRESHOLDS.identity_excess) & (np.abs(identity.z) > chance)


def fails_on_average(identity: Identity, degrees: int) -> bool:
    """Return whether the identity fails on average over all coordinates."""
    # By chance the mean square of the z-scores is about 1; collinear coordinates have the same z-score.
    chance = fdtri(identity.independent, degrees, 1.0 - WARMUP.chance)
    with np.errstate(over="ignore"):  # a coordinate that does not move
        beyond_chance = float(np.mean(identity.z**2)) > max(WARMUP.identity_z, chance)
    return bool(identity.mean_square > THRESHOLDS.identity_mean_square and beyond_chance)


def fails_as_at_an_edge(identity: Identity, degrees: int, moving: np.ndarray, widest: np.ndarray) -> bool:
    """Return whether the identity fails as where the density ends or jumps, in a coordinate that is ``moving``.

    There it fails of the posterior itself, in either direction and by far.  ``widest`` ``(d,)`` is the excess that the
    step explains.
    """
    excess = identity.excess
    chance = max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(excess / identity.z)
        unexplained = excess > np.maximum(widest + chance * error, THRESHOLDS.widest)
    edges = fails(identity, degrees, THRESHOLDS.edge_z) & ((excess < 0.0) | unexplained)
    return bool((edges & moving).any())
