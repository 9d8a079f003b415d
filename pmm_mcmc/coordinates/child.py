r"""A child: a variable that is sampled non-centred, given the location and scale that its parents make.

The prior of a child is ``x = mu + L w`` with ``w`` of unit scale.  The parameters ``(a, H)`` of its non-centring stand
for the *rest* of the posterior, all but this prior, as a function of ``x``: :math:`\exp(a^T x - x^T H x / 2)`.  Under
the two ``w`` has the precision :math:`B = C C^T = I + L^T H L`, and chains move in

.. math:: z = C^T w - C^{-1} L^T (a - H \mu),

which is standard normal where the rest is as ``(a, H)`` say.  There are four kinds of children:

- ``"elementwise"``: every element by itself (:func:`element_to_x`).
- ``"grouped"``: groups of few elements with one covariance (:mod:`pmm_mcmc.coordinates.groups`), or their contrasts.
- ``"dense"``: one group, a vector, with a diagonal ``H``.
- ``"walk"``: an autoregression (:mod:`pmm_mcmc.coordinates.walk`).

``H`` is the curvature of the rest as the child sees it, all other coordinates of the chains held (:func:`curvature`),
less what other variables make up for (:func:`made_up_for`), and ``a`` such that the mean of its gradient ``a - H x`` is
that of draws (:func:`intercept`).  ``H`` is not the slope of the gradient over draws of one element: where an intercept
makes up for whatever a few effects have in common, the gradient is nearly the same at all draws, and the data would
seem not to hold any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import MOST_DENSE
from pmm_mcmc.coordinates.groups import upper_root
from pmm_mcmc.coordinates.walk import rows_to_z


def element_to_x(xp: Any, mu: Any, L: Any, a: Any, h: Any, rho: Any, z: Any) -> tuple[Any, Any]:
    r"""Return elements ``x`` and the log determinant of the map; ``xp`` is the namespace of NumPy, JAX or PyTensor.

    Of each element by itself, where ``rho`` is 0,

    .. math:: w = \frac{L (a - h \mu)}{D} + \frac{z}{\sqrt D}, \qquad D = 1 + L^2 h, \qquad
       \log\Bigl|\frac{\partial x}{\partial z}\Bigr| = \log|L| - \tfrac12 \log D .

    With ``h = 0`` this is the non-centred form and with ``h`` large the centred one.  Nothing is divided by ``L``, so
    that the map is exact at both ends: ``x -> mu + L z`` for ``L -> 0``, ``x -> a/h + z / sqrt(h)`` for ``L -> inf``.
    It is the law of ``x`` if prior and rest are Gaussian; for others it is a change of variables all the same.

    ``rho`` is the share of the data's hold on what all elements have in common, their mean with weights ``h``, that
    an intercept makes up for: :math:`H = diag(h) - \rho h h^T / \sum h`.  With ``v = L h sqrt(rho / sum h)`` and
    :math:`q = v / \sqrt D` the root of ``B`` is :math:`C = \sqrt D\,(I - q q^T / (1 + s))`, ``s^2 = 1 - |q|^2``.
    """
    w, D, s = _offset(xp, mu, L, a, h, rho, z)
    return mu + L * w, (xp.log(xp.abs(L)) - 0.5 * xp.log(D)).sum() - xp.log(s).sum()


def element_to_offset(xp: Any, mu: Any, L: Any, a: Any, h: Any, rho: Any, z: Any) -> tuple[Any, Any]:
    """Return ``w`` of :func:`element_to_x`, the element of a model that is non-centred by hand, and the determinant."""
    w, D, s = _offset(xp, mu, L, a, h, rho, z)
    return w, -0.5 * xp.log(D).sum() - xp.log(s).sum()


def _offset(xp: Any, mu: Any, L: Any, a: Any, h: Any, rho: Any, z: Any) -> tuple[Any, Any, Any]:
    D, q, s = _root(xp, L, h, rho)
    e = _stretched(q, 1.0 / (s + s * s), L * (a - h * (mu - rho * common(h, mu))) / xp.sqrt(D))
    return _stretched(q, 1.0 / (s + s * s), e + z) / xp.sqrt(D), D, s


def _root(xp: Any, L: Any, h: Any, rho: Any) -> tuple[Any, Any, Any]:
    """Return ``D``, ``q`` and ``s`` of :func:`element_to_x`; the last axis is that of elements."""
    D = 1.0 + L * L * h
    total = h.sum() + _SMALL
    q = L * h * xp.sqrt(rho / total) / xp.sqrt(D)
    return D, q, xp.sqrt(1.0 - rho + rho * (h / D).sum(axis=-1, keepdims=True) / total)


def _stretched(q: Any, factor: Any, y: Any) -> Any:
    """Return ``(I + factor q q') y``."""
    return y + q * (factor * (q * y).sum(axis=-1, keepdims=True))


def common(h: Any, x: Any) -> Any:
    """Return what elements have in common: their mean ``(..., 1)`` with weights ``h``."""
    return (h * x).sum(axis=-1, keepdims=True) / (h.sum() + _SMALL)


# Ridge of the mean gradient: 0 counts for so many draws.
_RIDGE = 4.0
# Ridge of the curvature, as a share of the squared changes: without it fewer pairs than elements have no solution.
_LEAST = 1e-6
# Draws, at least, that tell what other variables make up for: starts do not.
_FEWEST = 25
_TINY = 1e-300  # keeps divisions by zero weights finite
_SMALL = 1e-30  # the same in single precision


def curvature(dr: np.ndarray, dx: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return ``H`` ``(G, K, K)`` by ``dr = -H dx``, changes of gradient and position; 0 where not finite.

    It is fitted by weighted least squares, group by group, and is symmetric with no negative eigenvalue.  Of ``G``
    groups of ``K`` elements, gradients and positions are ``(n, G, K)`` and weights, inverse variances of the gradients
    up to a constant, ``(n, G)``.
    """
    weighted = weight[..., None, None] * dx[..., None]
    gram = (weighted * dx[..., None, :]).sum(axis=0)
    size = np.trace(gram, axis1=1, axis2=2)[:, None, None]
    cross = (weighted * dr[..., None, :]).sum(axis=0)
    H = -np.linalg.solve(gram + (_LEAST * size + _TINY) * np.eye(dx.shape[2]), cross)
    bad = ~np.isfinite(H).all(axis=(1, 2), keepdims=True)
    H = np.where(bad, 0.0, H)
    values, vectors = np.linalg.eigh(0.5 * (H + H.swapaxes(1, 2)))
    return (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)


def made_up_for(r: np.ndarray, x: np.ndarray, weight: np.ndarray, H: np.ndarray) -> np.ndarray:
    r"""Return the part ``(m,)`` of the curvatures ``H`` ``(m,)`` of elements that other variables make up for.

    Where those follow the elements, the gradient ``r`` at draws changes by less than ``-H x``: given all elements it is
    on average :math:`(\delta - H) x`, and :math:`H - \delta` is the curvature that is left once the others are
    integrated out, of a Gaussian exactly.  ``r``, ``x`` and weights are ``(n, m)``; the ridge of the regression of
    ``r + H x`` on all elements counts for ``m`` draws, and fewer than twice as many and 25 tell nothing.
    """
    n, m = x.shape
    if n < max(_FEWEST, 2 * m):
        return np.zeros(m)
    weight = (weight / np.maximum(weight.mean(axis=0), _TINY)).mean(axis=1, keepdims=True)
    y = r + H * x
    total = np.maximum(weight.sum(), _TINY)
    dx = x - (weight * x).sum(axis=0) / total
    dy = y - (weight * y).sum(axis=0) / total
    gram = (weight * dx).T @ dx
    gram[np.diag_indices(m)] *= 1.0 + m / n
    slope = or_nan(np.linalg.solve, gram[None], ((weight * dx).T @ dy)[None])[0]
    return np.clip(np.nan_to_num(np.diagonal(slope), nan=0.0, posinf=0.0, neginf=0.0), 0.0, H)


def share_in_common(r: np.ndarray, x: np.ndarray, h: np.ndarray) -> float:
    """Return the share of the curvature of what elements have in common that other variables make up for.

    Arguments are those of :func:`made_up_for`, of which this is one direction, for all that draws tell of it.
    """
    if len(x) < _FEWEST:
        return 0.0
    held = x @ h
    held -= held.mean()
    slope = (held @ r.sum(axis=1)) / np.maximum(held @ held, _TINY)
    return float(np.clip(np.nan_to_num(1.0 + slope), 0.0, 1.0))


def intercept(r: np.ndarray, x: np.ndarray, weight: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Return ``a`` ``(G, K)`` of the curvatures ``H``, by the gradients ``r`` of draws ``x``; 0 where not finite."""
    total = weight.sum(axis=0)[:, None]
    unit = weight.mean(axis=0)[:, None]
    weight = weight[..., None]
    centre = (weight * x).sum(axis=0) / np.maximum(total, _TINY)
    mean = (weight * r).sum(axis=0) / (total + _RIDGE * unit + _TINY)
    a = mean + np.einsum("gkl,gl->gk", H, centre)
    return np.where(np.isfinite(a).all(axis=1, keepdims=True), a, 0.0)


class ChildDraws(NamedTuple):
    """Draws of the ``m`` elements of a child, in the coordinates of :meth:`Child.to_z`.

    Attributes
    ----------
    x : (n, m)
        The child or, of one that is an offset, the effects.
    z : (n, m)
        The child in the coordinates of the chains.
    log_det : (n,)
        Log determinant of the map from ``z`` to ``x``.
    w, mu, L
        The child in units of its prior, its location and its scale; a walk has no ``w``.
    B
        Precision of ``w``: elementwise the diagonal of ``B``, of groups its upper triangular root ``C``; a walk has
        None.
    """

    x: np.ndarray
    z: np.ndarray
    log_det: np.ndarray
    w: Any
    mu: Any
    L: Any
    B: Any


class Child(NamedTuple):
    """A variable that is sampled non-centred.

    Attributes
    ----------
    name
        Of the variable in the model.
    kind
        ``"elementwise"``, ``"grouped"``, ``"dense"`` or ``"walk"``.
    begin, shape
        Its first coordinate, and the shape of its coordinates.
    fixed
        Whether it is fully non-centred, whatever draws say.
    location, scale
        Names of the variables that it is non-centred about and scaled by.
    is_offset
        Whether the model has ``w`` in its place, as one that is non-centred by hand.
    """

    name: str
    kind: str
    begin: int
    shape: tuple[int, ...]
    fixed: bool
    location: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    is_offset: bool = False

    @property
    def size(self) -> int:
        """Number of its coordinates."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def at(self) -> slice:
        """Its coordinates."""
        return slice(self.begin, self.begin + self.size)

    @property
    def sweeps(self) -> bool:
        """Whether other variables may make up for what its elements or groups have in common."""
        return self.kind in ("elementwise", "grouped") and self.size > 1 and not self.fixed

    @property
    def n_common(self) -> int:
        """Number of coordinates that others may make up for."""
        return self.sweeps * (self.shape[-1] if self.kind == "grouped" else 1)

    @property
    def n_parameters(self) -> int:
        """Number of parameters of its non-centring."""
        if self.kind == "grouped":
            return self.size * (1 + self.shape[-1]) + 1
        return 2 * self.size + (self.kind == "elementwise")

    def split(self, parameters: Any) -> tuple[Any, ...]:
        """Return ``a`` and ``H`` from the flat parameters: ``(m,)`` both, or ``(G, K)`` and ``(G, K, K)`` of groups.

        The ``rho`` ``(1,)`` of :func:`element_to_x` or, of groups, :meth:`turned` follows.
        """
        m = self.size
        if self.kind == "elementwise":
            return parameters[:m], parameters[m : 2 * m], parameters[2 * m :]
        if self.kind == "grouped":
            K = self.shape[-1]
            H = parameters[m : m + m * K].reshape((m // K, K, K))
            return parameters[:m].reshape((m // K, K)), H, parameters[m + m * K :]
        if self.kind == "dense":
            return parameters[None, :m], parameters[None, m:, None] * np.eye(m)
        return parameters[:m], parameters[m:]

    def turned(self, groups: Any, rho: Any = 1.0) -> Any:
        """Return groups ``(..., G, K)`` reflected so that the first is what all have in common, or reflected back.

        The others are contrasts, and under the prior, about its mean, all have the law that groups have.  With a
        ``rho`` of 0 groups are as they are.
        """
        v = self._normal[:, None]
        return groups - 2.0 * rho * v * (v * groups).sum(axis=-2, keepdims=True)

    def turned_blocks(self, blocks: np.ndarray, rho: Any = 1.0) -> np.ndarray:
        """Return the diagonal blocks ``(..., G, n)``, of ``n`` numbers each, of a block diagonal matrix that is turned.

        Each is a mean of blocks whose weights are squares of the reflection's elements.
        """
        share = self._normal[:, None] ** 2
        return (1.0 - 4.0 * rho * share) * blocks + (2.0 * rho) ** 2 * share * (share * blocks).sum(-2, keepdims=True)

    @property
    def _normal(self) -> np.ndarray:
        """The unit normal ``(G,)`` of the reflection, which takes the first axis to that of equal numbers."""
        count = self.size // self.shape[-1]
        normal = np.full(count, count**-0.5)
        normal[0] -= 1.0
        return normal / max(np.linalg.norm(normal), _SMALL)

    def in_common(self, x: Any, parameters: Any) -> Any:
        """Return what its elements ``(..., m)`` have in common, ``(..., k)``: their mean, or that of groups."""
        if self.kind == "grouped":
            return x.reshape((*x.shape[:-1], -1, self.shape[-1])).mean(axis=-2)
        return common(self.split(parameters)[1], x)

    def effects(self, w: np.ndarray, mu: Any, L: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ``mu + L w`` of offsets ``w`` ``(n, m)``, and the log determinants."""
        if self.kind == "elementwise":
            return mu + L * w, np.log(np.abs(L)).sum(axis=1)
        x = mu + w.reshape(mu.shape) @ L.swapaxes(1, 2)
        return x.reshape(w.shape), mu.shape[1] * _log_diagonal(L)

    def fit(self, r: np.ndarray, x: np.ndarray, weight: np.ndarray, H: np.ndarray, swept: bool) -> np.ndarray:
        """Return its parameters by gradients ``r`` of the rest at draws ``x`` ``(n, m)``, and the curvature over pairs.

        ``swept`` is whether another variable follows what elements have in common.
        """
        of_groups = (*weight.shape, -1)
        groups = x.reshape(of_groups)
        of_rest = r.reshape(of_groups)
        if swept and self.kind == "grouped":
            return self._fit_of_turned(self.turned(of_rest), self.turned(groups), weight, H)
        rho = share_in_common(r, x, H[:, 0, 0]) if swept and self.sweeps else 0.0
        if self.kind in ("elementwise", "dense") and self.size <= MOST_DENSE:
            h = H[:, 0, 0]
            others = made_up_for(r, x, weight, h) - rho * h * h / max(h.sum(), _TINY)
            H[:, 0, 0] = h - np.maximum(others, 0.0)
        a = intercept(of_rest, groups, weight, H)
        if rho:
            # Nor does the rest pull at it: what is left by chance would count with the square of the scale.
            h = H[:, 0]
            a -= rho * h * a.sum() / max(h.sum(), _TINY)
        return np.concatenate([a.ravel(), H.ravel(), [rho]])[: self.n_parameters]

    def _fit_of_turned(self, r: np.ndarray, x: np.ndarray, weight: np.ndarray, H: np.ndarray) -> np.ndarray:
        """Return the parameters of turned groups; what they have in common has the curvature left over draws."""
        weight = np.broadcast_to(weight.mean(axis=1, keepdims=True), weight.shape)
        H = self.turned_blocks(H.reshape(len(H), -1)).reshape(H.shape)
        changes = r[:, :1] - r[:, :1].mean(axis=0)
        moves = x[:, :1] - x[:, :1].mean(axis=0)
        H[:1] = curvature(changes, moves, weight[:, :1])
        a = intercept(r, x, weight, H)
        a[0] = H[0] @ x[:, 0].mean(axis=0)  # the rest does not pull at it
        return np.concatenate([a.ravel(), H.ravel(), [1.0]])

    def to_z(self, x: np.ndarray, mu: Any, L: Any, parameters: np.ndarray) -> ChildDraws:
        """Return ``z`` of the child's elements ``x`` ``(n, m)``, given location and scale, with what it is made of."""
        if self.kind == "elementwise":
            a, h, rho = self.split(parameters)
            D, q, s = _root(np, L, h, rho)
            w = (x - mu) / L
            e = _stretched(q, 1.0 / (s + s * s), L * (a - h * (mu - rho * common(h, mu))) / np.sqrt(D))
            z = _stretched(q, -1.0 / (1.0 + s), np.sqrt(D) * w) - e
            log_det = np.log(np.abs(L)).sum(axis=1) - 0.5 * np.log(D).sum(axis=1) - np.log(s)[:, 0]
            return ChildDraws(x, z, log_det, w, mu, L, D * (1.0 - q * q))
        a, H, *rho = self.split(parameters)
        if self.kind == "walk":
            variances, coefficients = L
            z, log_det = rows_to_z(coefficients, variances, mu, a, H, x)
            return ChildDraws(x, z, log_det, None, mu, L, None)
        offset = x.reshape(mu.shape) - mu
        if rho:
            offset = self.turned(offset, *rho)
            mu = self.turned(mu, *rho)
        w = or_nan(np.linalg.solve, L, offset.swapaxes(1, 2)).swapaxes(1, 2)
        pull = (a - (H @ mu[..., None])[..., 0]) @ L
        C = or_nan(_upper_root, np.eye(mu.shape[2]) + L.swapaxes(1, 2)[:, None] @ H @ L[:, None])
        z = (w[..., None, :] @ C)[..., 0, :] - or_nan(np.linalg.solve, C, pull[..., None])[..., 0]
        log_det = mu.shape[1] * _log_diagonal(L) - _log_diagonal(C).sum(axis=1)
        return ChildDraws(x, z.reshape(len(x), -1), log_det, w, mu, L, C)

    def rest(
        self, draws: ChildDraws, of_x: np.ndarray, of_z: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the gradient ``r`` of the rest of the posterior at ``x``, and the weights of its regression on ``x``.

        With the gradient :math:`g_z` of the log density of ``z``, that is :math:`r = L^{-T} (C g_z + w)`; of a walk the
        gradient by ``x`` less that of the prior.  The weights are variances of ``x``: given its parents, under prior
        and parameters; of a vector or a walk those of all draws.

        ``of_x`` and ``of_z`` are gradients of the log density with respect to ``x`` and ``z``, of the child's elements
        ``(n, m)``; ``variance`` ``(m,)`` is that of ``x``.
        """
        x, _, _, w, mu, L, B = draws
        equal_weights = np.broadcast_to(variance, x.shape)
        if self.kind == "elementwise":
            return (np.sqrt(B) * of_z + w) / L, L * L / B
        if self.kind == "walk":
            return of_x + _precision_times(x - mu, *L), equal_weights
        y = (B @ of_z.reshape(w.shape)[..., None])[..., 0] + w
        r = np.linalg.solve(L.swapaxes(1, 2), y.swapaxes(1, 2)).swapaxes(1, 2)
        if self.kind == "dense":
            return r[:, 0], equal_weights
        size = np.diagonal(L, axis1=1, axis2=2)[:, None, :] ** 2
        return r, 1.0 / ((B * B).sum(axis=-1) / size).mean(axis=2)

    def prior_share(self, draws: ChildDraws, parameters: np.ndarray) -> np.ndarray:
        """Return the prior's share of the precision of each element ``(n, m)``: 1 is non-centred, 0 is centred."""
        B = draws.B
        if self.kind == "walk":
            variances, _ = draws.L
            B = 1.0 + variances * self.split(parameters)[1]
        elif self.kind != "elementwise":
            B = (B * B).sum(axis=-1)  # the diagonal of C C'
        if self.kind == "grouped":
            *_, rho = self.split(parameters)
            B = self.turned_blocks(B, rho)
        return (1.0 / B).reshape(len(B), -1)


class Places(NamedTuple):
    """Where parameters of a non-centring are in the flat array: of each child, of the sweep, and of the signs."""

    children: list[slice]
    weights: slice
    log_c: slice

    @classmethod
    def of(cls, children: Sequence[Child], swept: int = 0, signed: int = 0) -> Places:
        """Return the places for so many coordinates that are swept and scales that have a sign."""
        n_weights = swept * sum(child.n_common for child in children)
        ends = np.cumsum([0, *(child.n_parameters for child in children), n_weights, signed]).tolist()
        *slices, weights, log_c = (slice(begin, end) for begin, end in pairwise(ends))
        return cls(slices, weights, log_c)


def _upper_root(matrix: np.ndarray) -> np.ndarray:
    return upper_root(np.linalg.cholesky, matrix)


def _log_diagonal(matrix: np.ndarray) -> np.ndarray:
    return np.log(np.diagonal(matrix, axis1=-2, axis2=-1)).sum(axis=-1)


def _precision_times(x: np.ndarray, variances: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the prior precision of an autoregression times ``x`` ``(n, m)``."""
    innovations = x.copy()
    for lag in range(1, coefficients.shape[1] + 1):
        innovations[:, lag:] -= coefficients[:, lag - 1, None] * x[:, :-lag]
    innovations /= variances
    out = innovations.copy()
    for lag in range(1, coefficients.shape[1] + 1):
        out[:, :-lag] -= coefficients[:, lag - 1, None] * innovations[:, lag:]
    return out


def or_nan(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Return what a function of ``numpy.linalg`` returns for arrays ``(n, ...)``, NaN where it refuses a matrix.

    NumPy refuses all matrices for one that is not positive definite, which happens far out.
    """
    try:
        return function(*arrays)
    except np.linalg.LinAlgError:
        if len(arrays[0]) == 1:
            return np.full(arrays[-1].shape, np.nan)
    rows = zip(*(np.split(array, len(array)) for array in arrays), strict=True)
    return np.concatenate([or_nan(function, *row) for row in rows])
