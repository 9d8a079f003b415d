"""The coordinates in which a hierarchical model is sampled: which variables are non-centred, and the arithmetic of it.

Kinds of flat positions ``(d,)``, which are all equal in a model without hierarchy:

- ``x``: the unconstrained coordinates of the model.
- ``p``: as ``x``, with Cholesky factors as standard deviations and correlations (:mod:`pmm_mcmc.coordinates.factors`).
- ``z``: where chains move: children non-centred, some scales signed.
- ``q``: for diagnostics and store: ``z`` with signs removed and signed scales as logarithms.

A site is the pair ``(a, h)`` that says how far a child is non-centred (:mod:`pmm_mcmc.coordinates.elementwise`).

A signed scale is ``s = c sinh(v)`` with ``v`` its coordinate and ``c`` the median of its draws: linear through 0,
where a logarithm has a long tail, and logarithmic where the scale is large, where a linear coordinate has one.  With it
the children that it scales change sign, and where it is one of several standard deviations its correlations do: the
same point, and the log density of ``z`` is a smooth function across 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.elementwise import learn_elementwise, learn_grouped, or_nan, undone
from pmm_mcmc.coordinates.factors import Factor
from pmm_mcmc.coordinates.walk_loops import undo_rows

__all__ = ["Child", "Signs", "Structure"]

# Sites are learnt from at most so many draws, the newest.
_MOST_DRAWS = 2000
# Matrices of draws are made in blocks of so many numbers.
_NUMBERS = 2_000_000


class Child(NamedTuple):
    """A variable that is sampled non-centred.

    Attributes
    ----------
    name
        Of the variable in the model.
    kind
        ``"elementwise"``; ``"grouped"``: groups of few elements with one covariance; ``"dense"``: one vector with a
        covariance; ``"walk"``: an autoregression.
    begin, shape
        Its first coordinate, and the shape of its coordinates.
    fixed
        Whether it is fully non-centred, whatever draws say.
    location, scale
        Names of the variables that it is non-centred about and scaled by.
    """

    name: str
    kind: str
    begin: int
    shape: tuple[int, ...]
    fixed: bool
    location: tuple[str, ...]
    scale: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of its coordinates."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def at(self) -> slice:
        """Its coordinates."""
        return slice(self.begin, self.begin + self.size)

    @property
    def n_parameters(self) -> int:
        """Number of its site's parameters."""
        if self.kind == "grouped":
            return self.size * (1 + self.shape[-1])
        return 2 * self.size

    def split(self, values: Any) -> tuple[Any, Any]:
        """Return ``a`` and ``h`` or ``H`` from its site's parameters, in the shapes of the formulas."""
        m = self.size
        K = self.shape[-1] if self.shape else 1
        if self.kind == "grouped":
            return values[:m].reshape((m // K, K)), values[m:].reshape((m // K, K, K))
        if self.kind == "dense":
            return values[None, :m], values[None, m:, None] * np.eye(m)
        return values[:m], values[m:]


class Signs(NamedTuple):
    """Scales that are sampled with a sign.

    Attributes
    ----------
    signed : (k,) int
        Coordinates of their logarithms.
    flips : (d, k) int
        Coordinates of the signed scales whose signs each coordinate has, or -1.
    by_hand
        Names of those that scale no child: the model is non-centred by hand.
    """

    signed: np.ndarray
    flips: np.ndarray
    by_hand: Sequence[str]


class Structure:
    """How the chains of a model or density are non-centred.

    Parameters
    ----------
    d
        Number of coordinates.
    children
        In an order in which each comes after the children that it depends on.
    scales
        Function from positions ``p`` ``(n, d)`` to a list of locations ``mu`` and scales ``L``, one pair a child:
        ``(n, m)`` and ``(n, m)`` elementwise, ``(n, G, K)`` and ``(n, K, K)`` grouped or dense; of a walk ``(n, m)``
        and a pair of innovation variances ``(n, m)`` and coefficients ``(n, p)``.
    pull
        Function from ``z``, gradients with respect to ``x``, both ``(n, d)``, and ``noncentring``, to ``x`` and
        gradients of the log density of ``z``.
    signs
        Signed scales, if there are any.
    factors
        Cholesky factors of covariances.
    """

    def __init__(
        self,
        d: int,
        children: Sequence[Child],
        scales: Callable[[np.ndarray], list[tuple[Any, Any]]],
        pull: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
        signs: Signs | None = None,
        factors: Sequence[Factor] = (),
    ):
        self.d = d
        self.children = tuple(children)
        self._scales = scales
        self._pull = pull
        self.signed, self._flips, self._by_hand = signs or Signs(np.zeros(0, int), np.zeros((d, 0), int), ())
        self._factors = factors
        ends = np.cumsum([0, *(child.n_parameters for child in children)])
        self.n_parameters = int(ends[-1]) + len(self.signed)
        self._parameter_indices = [slice(*ends[i : i + 2]) for i in range(len(children))]
        # Each draw has a matrix for each group.
        sizes = (child.size * child.shape[-1] if child.shape else 1 for child in children)
        self._rows = max(_NUMBERS // max(max(sizes, default=d), 1), 1)

    @classmethod
    def identity(cls, d: int) -> Structure:
        """Return the structure of a density without hierarchy."""
        return cls(d, (), lambda p: [], lambda z, gradient, noncentring: (z, gradient))

    @property
    def is_identity(self) -> bool:
        """Whether ``x`` is ``z``."""
        return not self.children and not self.signed.size

    @property
    def width(self) -> int:
        """Length of an evaluation: see :mod:`pmm_mcmc.engines.contract`."""
        return self.d if self.is_identity else 3 * self.d + 1

    def initial_noncentring(self) -> np.ndarray:
        """Return the noncentring of a chain's start: all children non-centred."""
        return np.zeros(self.n_parameters)

    def to_x(self, z: np.ndarray, noncentring: Any) -> np.ndarray:
        """Return the model's positions of ``z`` ``(..., d)``."""
        return self.pull_back(z, np.zeros_like(z), noncentring)[0]

    def pull_back(self, z: np.ndarray, gradient: np.ndarray, noncentring: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ``x``, and the gradient of the log density of ``z`` from that of the model's at ``x``."""
        if self.is_identity:
            return z, gradient
        flat, of_x = (np.ascontiguousarray(values.reshape(-1, self.d)) for values in (z, gradient))
        pairs = [self._pull(flat[rows], of_x[rows], noncentring) for rows in self._blocks(flat)]
        x, slope = (np.concatenate(values).reshape(z.shape) for values in zip(*pairs, strict=True))
        return x, slope

    def to_z(self, x: np.ndarray, noncentring: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z``, signs positive, of the model's positions ``(..., d)``, and the log determinant of the map."""
        if self.is_identity:
            return x, np.zeros(x.shape[:-1])
        flat = x.reshape(-1, self.d)
        z = np.empty_like(flat)
        log_det = np.empty(len(flat))
        for rows in self._blocks(flat):
            z[rows], log_det[rows], _ = self._undone(flat[rows], noncentring)
        return z.reshape(x.shape), log_det.reshape(x.shape[:-1])

    def _blocks(self, x: np.ndarray) -> list[slice]:
        return [slice(begin, begin + self._rows) for begin in range(0, max(len(x), 1), self._rows)]

    def _factored(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``p`` and the log determinant of ``x`` by it."""
        p = x.copy()
        log_det = np.zeros(len(x))
        for factor in self._factors:
            p[:, factor.at], more = factor.undone(x[:, factor.at])
            log_det += more
        return p, log_det

    def _undone(self, x: np.ndarray, noncentring: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[Any, ...]]]:
        """Return ``z`` and the log determinant, and of each child ``w``, location, scale, and ``B`` or its factor."""
        states = []
        with np.errstate(all="ignore"):
            p, log_det = self._factored(x)
            z = p.copy()
            for child, indices, (mu, L) in zip(self.children, self._parameter_indices, self._scales(p), strict=True):
                values = x[:, child.at]
                a, h = child.split(noncentring[indices])
                if child.kind == "elementwise":
                    z[:, child.at], w, B = undone(mu, L, a, h, values)
                    log_det += np.log(np.abs(L)).sum(axis=1) - 0.5 * np.log(B).sum(axis=1)
                elif child.kind == "walk":
                    v, rho = L
                    w = B = None
                    z[:, child.at], more = undo_rows(rho, v, mu, a, h, values)
                    log_det += more
                else:
                    w = or_nan(np.linalg.solve, L, (values.reshape(mu.shape) - mu).swapaxes(1, 2)).swapaxes(1, 2)
                    pull = (a - (h @ mu[..., None])[..., 0]) @ L
                    square = np.eye(mu.shape[2]) + L.swapaxes(1, 2)[:, None] @ h @ L[:, None]
                    B = or_nan(np.linalg.cholesky, square)
                    values = (w[..., None, :] @ B)[..., 0, :] - or_nan(np.linalg.solve, B, pull[..., None])[..., 0]
                    z[:, child.at] = values.reshape(len(x), -1)
                    log_det += mu.shape[1] * _log_diagonal(L) - _log_diagonal(B).sum(axis=1)
                states.append((w, mu, L, B))
            if self.signed.size:
                s = np.exp(p[:, self.signed])
                c = self._unit(noncentring)
                log_det += (0.5 * np.log(s * s + c * c) - p[:, self.signed]).sum(axis=1)
                z[:, self.signed] = np.arcsinh(s / c)
        return z, log_det, states

    def folded(self, z: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z`` ``(..., d)`` with positive signs, the same point, and the gradient there."""
        if not self.signed.size:
            return z, gradient
        sign = np.where(np.concatenate([z, np.ones_like(z[..., :1])], axis=-1) < 0.0, -1.0, 1.0)
        flip = sign[..., self._flips].prod(axis=-1)
        return z * flip, gradient * flip

    def _unit(self, noncentring: np.ndarray) -> np.ndarray:
        """Return ``c`` of each signed scale."""
        return np.exp(noncentring[self.n_parameters - len(self.signed) :])

    def diagnostic_coordinates(
        self, z: np.ndarray, gradient: np.ndarray, noncentring: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``q`` ``(..., d)``, the coordinates of diagnostics and store, and the gradient of its log density."""
        q, slope = self.folded(z, gradient)
        if self.signed.size:
            q = q.copy()
            slope = slope.copy()
            v = q[..., self.signed]
            slope[..., self.signed] = np.tanh(v) * slope[..., self.signed] + np.cosh(v) ** -2
            with np.errstate(divide="ignore"):
                q[..., self.signed] = np.log(self._unit(noncentring) * np.sinh(v))
        return q, slope

    def learn(self, x: np.ndarray, slope: np.ndarray, gradient: np.ndarray, noncentring: np.ndarray) -> np.ndarray:
        r"""Return the noncentring fitted to draws.

        With the gradient :math:`g_z` of the log density of ``z`` under the noncentring in force,

        .. math:: C g_z + w = L^T r, \qquad r = a - H x,

        so that a site is the regression of ``r``, the gradient of the rest of the posterior, on ``x``: linear least
        squares, at draws of any distribution.

        Parameters
        ----------
        x, slope : (n, d)
            The model's positions, in the order of time, and gradients with respect to them.
        gradient : (n, d)
            Gradients of the log density of ``z``, with positive signs.
        noncentring
            In force.
        """
        x, slope, gradient = (values[-_MOST_DRAWS:] for values in (x, slope, gradient))
        spread = x.var(axis=0)
        regressions = [
            self._rest(x[rows], slope[rows], gradient[rows], spread, noncentring) for rows in self._blocks(x)
        ]
        out = noncentring.copy()
        with np.errstate(all="ignore"):
            for i, (child, indices) in enumerate(zip(self.children, self._parameter_indices, strict=True)):
                if child.fixed:
                    continue
                blocks = zip(*(block[i] for block in regressions), strict=True)
                r, weight = (np.concatenate(arrays) for arrays in blocks)
                learn = learn_grouped if child.kind == "grouped" else learn_elementwise
                a, h = learn(r, x[:, child.at].reshape(r.shape), weight)
                out[indices] = np.concatenate([a.ravel(), h.ravel()])
            if self.signed.size:
                out[self.n_parameters - len(self.signed) :] = np.median(self._factored(x)[0][:, self.signed], axis=0)
        return out

    def _rest(
        self, x: np.ndarray, slope: np.ndarray, gradient: np.ndarray, spread: np.ndarray, noncentring: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each child the gradient of the rest of the posterior and the weights of the regression."""
        _, _, states = self._undone(x, noncentring)
        out = []
        with np.errstate(all="ignore"):
            for child, (w, mu, L, B) in zip(self.children, states, strict=True):
                g = gradient[:, child.at]
                alike = np.broadcast_to(spread[child.at], (len(x), child.size))
                if child.kind == "elementwise":
                    out.append(((np.sqrt(B) * g + w) / L, L * L / B))
                    continue
                if child.kind == "walk":
                    out.append((slope[:, child.at] + _precision_times(x[:, child.at] - mu, *L), alike))
                    continue
                y = (B @ g.reshape(w.shape)[..., None])[..., 0] + w
                r = np.linalg.solve(L.swapaxes(1, 2), y.swapaxes(1, 2)).swapaxes(1, 2)
                if child.kind == "grouped":
                    size = np.diagonal(L, axis1=1, axis2=2)[:, None, :] ** 2
                    out.append((r, 1.0 / ((B * B).sum(axis=-1) / size).mean(axis=2)))
                else:
                    out.append((r[:, 0], alike))
        return out

    def degree(self, x: np.ndarray, noncentring: np.ndarray) -> dict[str, np.ndarray]:
        """Return how far each element is non-centred: the mean over draws of the prior's share of its precision."""
        out = {child.name: np.zeros(child.shape) for child in self.children}
        for rows in self._blocks(x):
            _, _, states = self._undone(x[rows], noncentring)
            for child, indices, (_, _, L, B) in zip(self.children, self._parameter_indices, states, strict=True):
                if child.kind == "walk":
                    B = 1.0 + L[0] * child.split(noncentring[indices])[1]
                elif child.kind != "elementwise":
                    B = (B * B).sum(axis=-1)
                out[child.name] += (1.0 / B).sum(axis=0).reshape(child.shape) / len(x)
        return out

    @property
    def words(self) -> str:
        """A sentence on the non-centring, in the model's names."""
        sentences = []
        for child in self.children:
            about = [f" about {_and(child.location)}"] if child.location else []
            scaled = [f" scaled by {_and(child.scale)}"] if child.scale else []
            sentences.append(f"{child.name} is sampled non-centred{','.join(about + scaled)}")
        if self._by_hand:
            sentences.append(f"{_and(self._by_hand)} {'is' if len(self._by_hand) == 1 else 'are'} sampled with a sign")
        return "; ".join(sentences)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _log_diagonal(matrix: np.ndarray) -> np.ndarray:
    return np.log(np.diagonal(matrix, axis1=-2, axis2=-1)).sum(axis=-1)


def _precision_times(x: np.ndarray, v: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Return the prior precision of an autoregression times ``x`` ``(n, m)``: see ``coordinates/walk.py``."""
    e = x.copy()
    for k in range(rho.shape[1]):
        e[:, k + 1 :] -= rho[:, k, None] * x[:, : -k - 1]
    e /= v
    out = e.copy()
    for k in range(rho.shape[1]):
        out[:, : -k - 1] -= rho[:, k, None] * e[:, k + 1 :]
    return out
