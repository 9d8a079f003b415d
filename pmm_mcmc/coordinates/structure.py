r"""How a model is non-centred: the maps between its unconstrained coordinates and those in which chains move.

A position is a flat vector ``(d,)`` in one of three kinds of coordinates, equal in a model without hierarchy:

- ``x``: the unconstrained coordinates of the model.
- ``p``: as ``x``, with Cholesky factors as standard deviations and correlations (:class:`Factor`), and with effects
  in place of the offsets of a model that is non-centred by hand.
- ``z``: where chains move: as ``p``, with variables non-centred (*children*, :mod:`pmm_mcmc.coordinates.child`), with
  some scales that have a sign (:class:`Signs`), and with variables such as an intercept *swept*: what children have in
  common, which these make up for, is added to them.

How far variables are non-centred are numbers that warm-up learns, in one flat array ``noncentring``: the parameters of
each child, the weights of what is swept, then ``log c`` of each scale with a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.child import Child, ChildDraws, Places, curvature


class Signs(NamedTuple):
    """Which scales have a sign, and what changes sign with them.

    A signed scale is ``s = c sinh(v)`` with ``v`` its coordinate and ``c`` the median of its draws: linear through 0,
    where a logarithm has a long tail, and logarithmic where the scale is large, where a linear coordinate has one.  If
    the non-centred children that it scales change sign with ``v`` and, where it is one of several standard deviations,
    its correlations do, the model is at the same point: the log density is a smooth function of ``v`` across 0.

    Attributes
    ----------
    signed : (k,) int
        Coordinates of their logarithms.
    flips : (d, j) int
        Coordinates of the signed scales whose signs each coordinate has, filled up with -1.
    by_hand
        Names of those that scale no child: the model is non-centred by hand.
    """

    signed: np.ndarray
    flips: np.ndarray
    by_hand: Sequence[str]

    @classmethod
    def none(cls, d: int) -> Signs:
        """Return that no scale of ``d`` coordinates has a sign."""
        return cls(np.zeros(0, int), np.zeros((d, 0), int), ())


class Factor(NamedTuple):
    r"""A packed Cholesky factor of a covariance (``LKJCholeskyCov``), sampled by sds and correlations.

    It has ``n`` rows, and its first coordinate is ``begin``.  PyMC's coordinates ``x`` of a packed factor are its
    elements below the diagonal and the logarithms of those on it: row ``i`` is the standard deviation times a unit
    vector, so that near 0 all of a row shrinks together, which is a funnel.  Here row ``i`` has instead the logarithm
    ``u`` of its standard deviation, in the diagonal's place, and of each element before the diagonal the ``y`` with
    :math:`\sinh y_j = L_{ij} / L_{ii}` (of two elements the inverse hyperbolic tangent of the correlation):

    .. math:: x_{ii} = u_i - \tfrac12 \log\Bigl(1 + \sum_j \sinh^2 y_{ij}\Bigr), \quad x_{ij} = e^{x_{ii}} \sinh y_{ij},
       \quad \log\Bigl|\frac{\partial x}{\partial (u, y)}\Bigr| = \sum_i (i - 1)\, x_{ii} + \sum_{ij} \log\cosh y_{ij} .
    """

    begin: int
    n: int

    @property
    def at(self) -> slice:
        """Its coordinates."""
        return slice(self.begin, self.begin + self.n * (self.n + 1) // 2)

    @property
    def scales(self) -> np.ndarray:
        """Coordinates of the logarithms of its standard deviations."""
        return self.begin + np.cumsum(np.arange(1, self.n + 1)) - 1

    def split(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return indices of the diagonal and of the elements below it among the coordinates, and rows of the latter."""
        row, column = np.tril_indices(self.n)
        return np.flatnonzero(row == column), np.flatnonzero(row != column), row[row != column]

    def to_x(self, xp: Any, coordinates: Any) -> tuple[Any, Any]:
        """Return the model's coordinates of one factor, and the log determinant of the map.

        ``coordinates`` ``(n (n + 1) / 2,)`` are ``u`` and ``y``, and ``xp`` is the namespace of NumPy, JAX or
        PyTensor.
        """
        diagonal, below, row = self.split()
        ratio = xp.sinh(coordinates[below])
        log_diagonal = coordinates[diagonal] - 0.5 * xp.log1p(_by_row(ratio**2, row, self.n))
        x = xp.concatenate([log_diagonal, xp.exp(log_diagonal[row]) * ratio])
        log_det = (np.arange(self.n) * log_diagonal).sum() + xp.log(xp.cosh(coordinates[below])).sum()
        return x[np.argsort(np.concatenate([diagonal, below]))], log_det

    def from_x(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``u`` and ``y`` at the model's coordinates, a row a draw, and log determinants of :meth:`to_x`."""
        diagonal, below, row = self.split()
        out = x.copy()
        log_diagonal = x[:, diagonal]
        ratio = x[:, below] * np.exp(-log_diagonal[:, row])
        out[:, below] = np.arcsinh(ratio)
        out[:, diagonal] += 0.5 * np.log1p(_by_row(ratio.T**2, row, self.n).T)
        return out, (np.arange(self.n) * log_diagonal).sum(axis=1) + 0.5 * np.log1p(ratio**2).sum(axis=1)


def _by_row(values: Any, row: np.ndarray, n: int) -> Any:
    """Return sums over the elements of each row, of values whose first axis is that of elements."""
    return (values[:, None] * (row[:, None] == np.arange(n)).reshape(len(row), n, *[1] * (values.ndim - 1))).sum(axis=0)


# The non-centring is learnt from at most so many draws, the newest.
_MOST_DRAWS = 2000
# Change of a child's elements in a pair, in units in which they have a standard deviation of about 1.
_WIDTH = 1e-3
# A scale ``c sinh(v)`` with ``c`` so many powers of e below its values is a logarithm: nothing comes to the other side.
_FAR = 12.0
# Draws, at least, that tell which coordinates follow what elements have in common, and the share of their variance that
# is left of one that does.  With .25, .5 and .75 crossed factors and an item response cost the same but for chance;
# where all are swept, the item response costs 1.5 times as much, as 60 abilities follow 15 difficulties a little.
_FEWEST = 25
_FOLLOWS = 0.5
_TINY = 1e-300
# Matrices of draws are made for blocks of draws that hold so many numbers.
_NUMBERS = 2_000_000


class Structure:
    """How the chains of a model or density are non-centred.

    Parameters
    ----------
    d
        Number of coordinates.
    children
        The variables that are non-centred, each after those that it depends on.
    scales
        Function from positions ``p`` ``(n, d)`` to a list of locations ``mu`` and scales ``L``, one pair a child:
        ``(n, m)`` and ``(n, m)`` elementwise, ``(n, G, K)`` and ``(n, K, K)`` grouped or dense; of a walk ``(n, m)``
        and a pair of innovation variances ``(n, m)`` and coefficients ``(n, p)``.
    pull
        Function from ``z``, gradients with respect to ``x``, both ``(n, d)``, and ``noncentring``, to ``x`` and
        gradients of the log density of ``z``.
    signs
        Scales with a sign, if there are any.
    factors
        Cholesky factors of covariances.
    swept
        Coordinates that may be swept, of variables that are neither children nor needed by any: none by default.
    """

    def __init__(
        self,
        d: int,
        children: Sequence[Child],
        scales: Callable[[np.ndarray], list[tuple[Any, Any]]],
        pull: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
        signs: Signs | None = None,
        factors: Sequence[Factor] = (),
        swept: np.ndarray | None = None,
    ):
        self.d = d
        self.children = tuple(children)
        self._scales = scales
        self._pull = pull
        self._signs = signs or Signs.none(d)
        self.signed = self._signs.signed
        self._factors = factors
        self._swept = np.zeros(0, int) if swept is None else swept
        self._places = Places.of(children, len(self._swept), len(self.signed))
        self.n_parameters = self._places.log_c.stop
        # Each draw has a matrix for each group.
        sizes = (child.size * child.shape[-1] if child.shape else 1 for child in children)
        self._draws_of_block = max(_NUMBERS // max(max(sizes, default=d), 1), 1)

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
        """Return the parameters at a chain's start: all children fully non-centred."""
        return np.zeros(self.n_parameters)

    def to_x(self, z: np.ndarray, noncentring: Any) -> np.ndarray:
        """Return the model's positions of ``z`` ``(..., d)``."""
        return self.pull_back(z, np.zeros_like(z), noncentring)[0]

    def pull_back(self, z: np.ndarray, gradient: np.ndarray, noncentring: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ``x`` ``(..., d)``, and the gradient of the log density of ``z`` from that of the model's at ``x``."""
        if self.is_identity or not z.size:
            return z, gradient
        flat, of_x = (np.ascontiguousarray(values.reshape(-1, self.d)) for values in (z, gradient))
        pairs = [self._pull(flat[rows], of_x[rows], noncentring) for rows in self._blocks(flat)]
        x, of_z = (np.concatenate(values).reshape(z.shape) for values in zip(*pairs, strict=True))
        return x, of_z

    def to_z(self, x: np.ndarray, noncentring: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z``, signs positive, of the model's positions ``(..., d)``, and the log determinant of the map."""
        if self.is_identity:
            return x, np.zeros(x.shape[:-1])
        flat = x.reshape(-1, self.d)
        z = np.empty_like(flat)
        log_det = np.empty(len(flat))
        for rows in self._blocks(flat):
            z[rows], log_det[rows], _ = self._to_z(flat[rows], noncentring)
        return z.reshape(x.shape), log_det.reshape(x.shape[:-1])

    def _blocks(self, x: np.ndarray) -> list[slice]:
        n = self._draws_of_block
        return [slice(begin, begin + n) for begin in range(0, max(len(x), 1), n)]

    def _to_p(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``p`` ``(n, d)``, with offsets, and the log determinant ``(n,)`` of the map from it to ``x``."""
        p = x.copy()
        log_det = np.zeros(len(x))
        for factor in self._factors:
            p[:, factor.at], more = factor.from_x(x[:, factor.at])
            log_det += more
        return p, log_det

    def _to_z(self, x: np.ndarray, noncentring: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[ChildDraws]]:
        """Return ``z`` and the log determinant at ``x`` ``(n, d)``, and the draws of each child."""
        draws = []
        with np.errstate(all="ignore"):
            p, log_det = self._to_p(x)
            laws = self._scales(p)
            for child, (mu, L) in zip(self.children, laws, strict=True):
                if child.is_offset:
                    p[:, child.at], of_effects = child.effects(p[:, child.at], mu, L)
                    log_det -= of_effects
            z = p.copy()
            for child, indices, (mu, L) in zip(self.children, self._places.children, laws, strict=True):
                of_child = child.to_z(p[:, child.at], mu, L, noncentring[indices])
                z[:, child.at] = of_child.z
                log_det += of_child.log_det
                draws.append(of_child)
            in_common = self._in_common(p, noncentring)
            weights = noncentring[self._places.weights].reshape(len(self._swept), in_common.shape[1])
            z[:, self._swept] += in_common @ weights.T
            if self.signed.size:
                logarithm = p[:, self.signed]
                c = np.exp(noncentring[self._places.log_c])
                s = np.exp(logarithm)
                z[:, self.signed] = np.arcsinh(s / c)
                log_det += (0.5 * np.log(s * s + c * c) - logarithm).sum(axis=1)
        return z, log_det, draws

    def _in_common(self, p: np.ndarray, noncentring: np.ndarray) -> np.ndarray:
        """Return what the elements of each child that sweeps have in common, ``(n, k)``, at ``p`` ``(n, d)``."""
        pairs = zip(self.children, self._places.children, strict=True)
        columns = [child.in_common(p[:, child.at], noncentring[i]) for child, i in pairs if child.sweeps]
        return np.concatenate([np.empty((len(p), 0)), *columns], axis=1)

    def unswept(self, noncentring: np.ndarray) -> np.ndarray:
        """Return parameters with which nothing makes up for what elements have in common."""
        out = noncentring.copy()
        out[self._places.weights] = 0.0
        for child, indices in zip(self.children, self._places.children, strict=True):
            if child.sweeps:
                out[indices.stop - 1] = 0.0
        return out

    def with_signs_of(self, noncentring: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return parameters with the signs of others."""
        out = noncentring.copy()
        out[self._places.log_c] = other[self._places.log_c]
        return out

    def folded(self, z: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same points as ``z`` ``(..., d)`` with positive scales, and the gradients there."""
        if not self.signed.size:
            return z, gradient
        # A last 1 is the sign of -1, that is of no scale.
        sign = np.where(np.concatenate([z, np.ones_like(z[..., :1])], axis=-1) < 0.0, -1.0, 1.0)
        flip = sign[..., self._signs.flips].prod(axis=-1)
        return z * flip, gradient * flip

    def diagnostic_coordinates(
        self, z: np.ndarray, gradient: np.ndarray, noncentring: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z`` with logarithms of positive scales, for diagnostics and store, and gradients of its density."""
        if not self.signed.size:
            return z, gradient
        return self.as_logarithms(*self.folded(z, gradient), noncentring, np.arange(len(self.signed)))

    def as_logarithms(
        self, z: np.ndarray, gradient: np.ndarray, noncentring: Any, indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z`` ``(..., d)`` with logarithms of some positive signed scales, and gradients of its density."""
        z = z.copy()
        gradient = gradient.copy()
        scales = self.signed[indices]
        v = z[..., scales]
        gradient[..., scales] = np.tanh(v) * gradient[..., scales] + np.cosh(v) ** -2
        with np.errstate(divide="ignore"):
            z[..., scales] = np.log(np.exp(noncentring[self._places.log_c][indices]) * np.sinh(v))
        return z, gradient

    def displaced(self, x: np.ndarray, child: Child, noncentring: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``z`` of positions ``x`` ``(n, d)``, every element of a child a little to a random side."""
        z, _ = self.to_z(x, noncentring)
        z[:, child.at] += _WIDTH * rng.choice([-1.0, 1.0], size=(len(z), child.size))
        return z

    def learn(
        self, x: np.ndarray, of_x: np.ndarray, pairs: Sequence[np.ndarray], noncentring: np.ndarray
    ) -> np.ndarray:
        r"""Return the parameters of the non-centring at draws in order of time, made with ``noncentring``.

        They are those of ``r``, :math:`r = a - H x`, the gradient of the posterior without the child's prior
        (:meth:`pmm_mcmc.coordinates.child.Child.rest`): ``H`` by its changes over pairs of points, less what other
        variables make up for over the draws, ``a`` by its mean over them.  ``x`` and ``of_x``, the gradient there, are
        ``(n, d)``; the ``pairs`` of each child, arrays ``(4, m, d)``, are positions and gradients, and those at
        :meth:`displaced` positions.
        """
        x, of_x = (values[-_MOST_DRAWS:] for values in (x, of_x))
        variance = x.var(axis=0)
        noncentring = self.unswept(noncentring)
        blocks = [self._rests(x[rows], of_x[rows], variance, noncentring) for rows in self._blocks(x)]
        out = noncentring.copy()
        with np.errstate(all="ignore"):
            p = x.copy()
            for i, child in enumerate(self.children):
                p[:, child.at] = np.concatenate([block[i][2] for block in blocks])
            triples = zip(range(len(self.children)), self.children, self._places.children, strict=True)
            learnt = [(i, child, indices) for i, child, indices in triples if not child.fixed]
            curvatures = [curvature(*self._changes(i, pairs[i], variance, noncentring)) for i, _, _ in learnt]
            for H, (_, child, indices) in zip(curvatures, learnt, strict=True):
                if child.sweeps and child.kind == "elementwise":
                    out[indices][child.size : 2 * child.size] = H[:, 0, 0]
            swept = bool(self._sweep(p, out).any())
            for H, (i, child, indices) in zip(curvatures, learnt, strict=True):
                r, weight, elements = (
                    np.concatenate(arrays) for arrays in zip(*(block[i] for block in blocks), strict=True)
                )
                out[indices] = child.fit(r, elements, weight, H, swept)
            if swept:
                out[self._places.weights] = self._sweep(p, out).ravel()
            if self.signed.size:
                out[self._places.log_c] = np.median(self._to_p(x)[0][:, self.signed], axis=0)
        return out

    def _sweep(self, p: np.ndarray, noncentring: np.ndarray) -> np.ndarray:
        """Return the weights by which swept coordinates follow what elements have in common, at draws ``(n, d)``.

        They are 0 of a coordinate that follows less than half, and of all where draws are few.
        """
        in_common = self._in_common(p, noncentring)
        weights = np.zeros((len(self._swept), in_common.shape[1]))
        if not weights.size or len(p) < _FEWEST:
            return weights
        moves = in_common - in_common.mean(axis=0)
        position = p[:, self._swept] - p[:, self._swept].mean(axis=0)
        slopes = np.linalg.lstsq(moves, position, rcond=1e-8)[0]
        follows = (position - moves @ slopes).var(axis=0) < _FOLLOWS * position.var(axis=0)
        weights[follows] = -slopes.T[follows]
        return weights

    def _changes(
        self, i: int, pairs: np.ndarray, variance: np.ndarray, noncentring: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return changes over its pairs, of the gradient of a child's rest and of its position, and the weights."""
        x, of_x, other_x, of_other = pairs
        (r, weight, elements), *_ = self._rests(x, of_x, variance, noncentring, i, i + 1)
        (other_r, _, other_elements), *_ = self._rests(other_x, of_other, variance, noncentring, i, i + 1)
        of_groups = (*weight.shape, -1)
        dx = (other_elements - elements).reshape(of_groups)
        dr = (other_r - r).reshape(of_groups)
        usable = np.isfinite(dr).all(axis=(1, 2)) & np.isfinite(dx).all(axis=(1, 2)) & np.isfinite(weight).all(axis=1)
        return dr[usable], dx[usable], weight[usable]

    def _rests(
        self,
        x: np.ndarray,
        of_x: np.ndarray,
        variance: np.ndarray,
        noncentring: np.ndarray,
        begin: int = 0,
        end: int | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return for each child, or some in succession, the gradient of the posterior's rest, weights, and elements."""
        z, _, draws = self._to_z(x, noncentring)
        _, of_z = self.pull_back(z, of_x, noncentring)
        with np.errstate(all="ignore"):
            return [
                (*child.rest(of_child, of_x[:, child.at], of_z[:, child.at], variance[child.at]), of_child.x)
                for child, of_child in zip(self.children[begin:end], draws[begin:end], strict=True)
            ]

    def mirrored(self, z: np.ndarray, gradient: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield for each scale with a sign the points ``z`` ``(n, d)`` on its other side, with gradients.

        The third is the number of coordinates that change sign.
        """
        for scale in self.signed:
            flip = np.where((self._signs.flips == scale).any(axis=1), -1.0, 1.0)
            yield z * flip, gradient * flip, int((flip < 0.0).sum())

    def without_sign(self, noncentring: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return parameters with which signed scales stay on one side, as logarithms, by a ``mask`` ``(k,)``."""
        out = noncentring.copy()
        out[self._places.log_c] -= _FAR * mask
        return out

    def degree(self, x: np.ndarray, noncentring: np.ndarray) -> dict[str, np.ndarray]:
        """Return how far each element is non-centred: the mean over draws of the prior's share of its precision."""
        out = {child.name: np.zeros(child.shape) for child in self.children}
        for rows in self._blocks(x):
            _, _, draws = self._to_z(x[rows], noncentring)
            for child, indices, of_child in zip(self.children, self._places.children, draws, strict=True):
                share = child.prior_share(of_child, noncentring[indices])
                out[child.name] += share.sum(axis=0).reshape(child.shape) / len(x)
        return out

    @property
    def words(self) -> str:
        """A sentence on the non-centring, in the model's names."""
        sentences = []
        for child in self.children:
            about = [f" about {_and(child.location)}"] if child.location else []
            scaled = [f", scaled by {_and(child.scale)}"] if child.scale else []
            sentences.append(
                f"{child.name} is sampled {'partly ' * child.is_offset}non-centred{''.join(about + scaled)}"
            )
        if by_hand := self._signs.by_hand:
            sentences.append(f"{_and(by_hand)} {'is' if len(by_hand) == 1 else 'are'} sampled with a sign")
        return "; ".join(sentences)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
