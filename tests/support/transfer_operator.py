r"""Laws of unadjusted chains in one dimension without Monte Carlo: a step as a matrix of masses on nodes.

The nodes are a uniform grid in position (trigonometric, hence spectrally accurate) times Gauss-Hermite nodes in
velocity.  A column holds what a step makes of a unit of mass on a node: the moments ``E exp(-i k u) h_n(v)`` after the
step, turned back into masses.  The step itself is the package's own arithmetic on all nodes at once; noise that no
midpoint has seen is integrated in closed form.  Powers of the matrix are laws after many steps, and the vector that it
keeps is the stationary law, bias and all.

Which sums are made how: the ``K`` cells of Option 2 by the Gauss quadrature of the uniform law on ``K`` points, exact
up to ten of them; the continuous law by Gauss-Legendre; the marks of Option 1, which are independent given the noise
path, cell by cell as a function of the path (overdamped, exact), or as a product over the cells on the path's four
leading components (underdamped, whose path is smooth).  The recycled scheme remembers a gradient: its nodes have a
third coordinate, in which a step is nearly linear, so that a polynomial of degree three does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.signal import resample

from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight
from pmm_mcmc.langevin.transitions import end, interpolate, noise, path

NAMES = {OVERDAMPED: "overdamped", UNDERDAMPED: "underdamped", HARMONIC: "harmonic"}
REFINE = 8
# Positions, highest frequency, velocities.
COARSE, FINE = (61, 6.5, 8), (81, 9.0, 14)

Drift = Callable[[np.ndarray], np.ndarray]


def gauss_hermite(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and probabilities of the quadrature for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


def uniform_on_cells(K: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss quadrature of the uniform law on ``0, ..., K - 1`` (Golub-Welsch with the Gram polynomials)."""
    if n >= K:
        return np.arange(K, dtype=float), np.full(K, 1.0 / K)
    j = np.arange(1.0, n)
    beside = np.sqrt(j**2 * (K**2 - j**2) / (4.0 * (4.0 * j**2 - 1.0)))
    nodes, vectors = np.linalg.eigh(np.diag(np.full(n, 0.5 * (K - 1))) + np.diag(beside, 1) + np.diag(beside, -1))
    return np.maximum(nodes, 0.0), vectors[0] ** 2


class Nodes:
    """Nodes of the state, with the way back from moments ``E exp(-i k u) h_n(v) l_j(b)`` to masses on them."""

    def __init__(
        self,
        dynamics: int,
        positions: int,
        highest: float,
        velocities: int = 1,
        half_width: float = 9.0,
        bases: np.ndarray | None = None,
    ):
        self.dynamics, self.half_width = dynamics, half_width
        self.velocities = 1 if dynamics == OVERDAMPED else velocities
        self.spacing = 2.0 * half_width / positions
        self.x = -half_width + self.spacing * (np.arange(positions) + 0.5)
        self.k = np.pi / half_width * np.arange(int(highest * half_width / np.pi) + 1)
        v, weights = gauss_hermite(self.velocities)
        bases = np.zeros(1) if bases is None else bases
        self.shape = (positions, len(v), len(bases))
        self.u, self.v, self.b = (a.ravel() for a in np.meshgrid(self.x, v, bases, indexing="ij"))
        self.to_positions = np.exp(1j * np.outer(self.x, self.k)) * np.where(self.k == 0.0, 1.0, 2.0) / positions
        polynomials = np.array([p[0] for p in hermite(v[None], 0.0, self.velocities)])
        self.to_velocities = polynomials * weights
        self.low, self.high = bases.min() - 1e-9, bases.max() + 1e-9
        self._lagrange = np.linalg.inv(self._chebyshev(bases))

    @classmethod
    def of(cls, kernel: Kernel, drift: Drift, fine: bool = False) -> Nodes:
        """Return nodes that give distances to 1e-6, or ``fine`` ones, of 14 velocities, for orders of bias up to five.

        Parameters
        ----------
        kernel
            The method.
        drift
            Of the target; for the recycled scheme, the range of what its flow leaves of it.
        fine
            Only for one midpoint and a velocity; elsewhere nodes are as many as can be afforded, or as are of use.
        """
        if kernel.scheme == Scheme.RECYCLED:
            x = np.linspace(-9.0, 9.0, 2001)
            remainder = drift(x) + x
            middle, half = 0.5 * (remainder.max() + remainder.min()), 0.5 * (remainder.max() - remainder.min())
            return cls(kernel.dynamics, *COARSE, bases=middle + half * np.cos(np.pi * (np.arange(4) + 0.5) / 4))
        if kernel.dynamics == OVERDAMPED:
            return cls(OVERDAMPED, 121, 12.0 if kernel.option == 1 else 18.0)
        return cls(UNDERDAMPED, *(FINE if fine and kernel.option == 2 else COARSE))

    def _chebyshev(self, b: np.ndarray) -> np.ndarray:
        scaled = (2.0 * b - self.low - self.high) / (self.high - self.low)
        return np.polynomial.chebyshev.chebvander(scaled, self.shape[2] - 1)

    def lagrange(self, b: np.ndarray) -> np.ndarray:
        """Polynomials that are 1 at one of the bases and 0 at the others, along a new last axis."""
        return self._chebyshev(b) @ self._lagrange

    def masses(self, moments: np.ndarray) -> np.ndarray:
        """Return masses ``(node, from)`` of moments ``(k, n, j, from)``."""
        T = np.real(np.tensordot(self.to_positions, moments, 1))
        T = np.einsum("xnjs,nr->xrjs", T, self.to_velocities)
        return T.reshape(len(self.u), -1)

    def density(self, masses: np.ndarray) -> np.ndarray:
        """Density of the position on a finer grid, from masses on the nodes."""
        positions = masses if masses.size == len(self.x) else masses.reshape(self.shape).sum(axis=(1, 2))
        return resample(positions / self.spacing, REFINE * len(self.x))

    @property
    def fine(self) -> np.ndarray:
        """The finer grid."""
        return self.x[0] + self.spacing / REFINE * np.arange(REFINE * len(self.x))


def hermite(v: np.ndarray, variance: float, n: int) -> Iterator[np.ndarray]:
    """Yield means of Hermite polynomials (orthonormal under the standard normal) of normals about ``v``."""
    before, now = np.zeros_like(v), np.ones_like(v)
    for i in range(n):
        yield now
        before, now = now, (v * now - math.sqrt(i) * (1.0 - variance) * before) / math.sqrt(i + 1.0)


def noise_paths(dynamics: int, friction: float, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position and velocity of the noise path at increasing times, as vectors over the normals it is made of."""
    w = np.eye(2 * len(times))
    u, v, out, reached = np.zeros(len(w)), np.zeros(len(w)), [], 0.0
    for i, time in enumerate(times):
        gap = getattr(flows, NAMES[dynamics])(time - reached, friction)
        u, v = path(u, v, *noise(w[2 * i], w[2 * i + 1], gap), gap)
        out.append((u, v))
        reached = time
    return np.array([p[0] for p in out]), np.array([p[1] for p in out])


class Conditioned(NamedTuple):
    """The noise of a step on nodes of its leading components at the midpoints, and what is left of it at the end."""

    weights: np.ndarray
    at_midpoints: np.ndarray
    end_u: np.ndarray
    end_v: np.ndarray
    uu: float
    uv: float
    vv: float


def condition(dynamics: int, friction: float, times: np.ndarray, alpha: float, counts: tuple[int, ...]) -> Conditioned:
    """Condition the noise of a step on as many leading components of its midpoints as ``counts`` has, by quadrature."""
    u, v = noise_paths(dynamics, friction, np.append(times, alpha))
    values, vectors = np.linalg.eigh(u[:-1] @ u[:-1].T)
    rank = min(len(counts), int((values > 1e-14 * max(values[-1], 1e-300)).sum()))
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    directions = (vectors / np.sqrt(values)).T @ u[:-1]
    grids = [gauss_hermite(n) for n in counts[:rank]]
    xi = np.array(np.meshgrid(*(g[0] for g in grids), indexing="ij")).reshape(rank, -1) if rank else np.zeros((0, 1))
    weights = np.ones(1)
    for _, w in grids:
        weights = np.outer(weights, w).ravel()
    on_u, on_v = directions @ u[-1], directions @ v[-1]
    left = [a @ b - c @ d for a, b, c, d in zip((u[-1], u[-1], v[-1]), (u[-1], v[-1], v[-1]),
                                               (on_u, on_u, on_v), (on_u, on_v, on_v), strict=True)]  # fmt: skip
    return Conditioned(weights, (vectors * np.sqrt(values)) @ xi, on_u @ xi, on_v @ xi, *left)


def waves(k: np.ndarray, u: np.ndarray) -> np.ndarray:
    """``exp(-i k u)`` along a new first axis; frequencies are multiples of the second."""
    out = np.empty((len(k), *u.shape), complex)
    out[0], step = 1.0, np.exp(-1j * k[1] * u)
    for i in range(1, len(k)):
        np.multiply(out[i - 1], step, out=out[i])
    return out


def one_midpoint(nodes: Nodes, kernel: Kernel, drift: Drift, alpha: float, law: list, friction: float) -> np.ndarray:
    """Moments of a method with one midpoint; ``law`` lists its (probability, time, weight)."""
    dynamics, k = kernel.dynamics, nodes.k[:, None, None]
    flow, recycled = getattr(flows, NAMES[dynamics]), kernel.scheme == Scheme.RECYCLED
    u, v = nodes.u[:, None], nodes.v[:, None]
    b = nodes.b[:, None] if recycled else drift(u)
    base = 0.0 * b if kernel.scheme == Scheme.CONTINUOUS else b
    total = np.zeros((len(k), nodes.velocities, nodes.shape[2], len(u)), complex)
    for probability, time, (weight_u, weight_v) in law:
        seen = condition(dynamics, friction, np.array([time]), alpha, (16 if dynamics == OVERDAMPED else 12,))
        found = drift(interpolate(u, v, b, seen.at_midpoints[0], flow(time, friction)))
        change = found - base
        new_u, new_v = end(
            u, v, base, seen.end_u, seen.end_v, weight_u * change, weight_v * change, flow(alpha, friction)
        )
        wave = waves(nodes.k, new_u) * (np.exp(-0.5 * seen.uu * k**2) * (probability * seen.weights))
        lagrange = nodes.lagrange(found) if recycled else np.ones((1, 1, 1))
        # The wave tilts the velocity that is left by its covariance with the position.
        for n, polynomial in enumerate(hermite(new_v - 1j * seen.uv * k, seen.vv, nodes.velocities)):
            values = wave * polynomial
            for j in range(nodes.shape[2]):
                total[:, n, j] += (values * lagrange[..., j]).sum(axis=-1)
    return total


def path_by_cells(nodes: Nodes, drift: Drift, alpha: float, K: int, friction: float) -> np.ndarray:
    """Moments of Option 1, overdamped, left grid: backwards over the cells, as a function of the noise path so far."""
    x, flow = nodes.x, flows.overdamped
    whole, cell = flow(alpha, friction), flow(alpha / K, friction)
    # Fine enough for a cell's noise, and for a wave not to be taken for one that the step's noise lets pass.
    half, spacing = 7.0 * whole.n_uu, min(0.8 * cell.n_uu, 2.0 * np.pi / (nodes.k[-1] + 8.0 / whole.n_uu))
    m = np.linspace(-half, half, 2 * int(half / spacing) + 1)
    kernel = np.exp(-0.5 * ((m - m[:, None]) / cell.n_uu) ** 2)
    kernel = (kernel * (m[1] - m[0]) / (cell.n_uu * math.sqrt(2.0 * math.pi))).T.astype(complex)
    # The state at the end without corrections, and with it the wave of each frequency.
    b = drift(x)[:, None]
    wave = waves(nodes.k, end(x[:, None], 0.0, b, m, 0.0, 0.0, 0.0, whole)[0])
    for i in range(K - 1, -1, -1):
        y = interpolate(x[:, None], 0.0, b, m, flow(alpha * i / K, friction))
        weight, _ = cell_weight(flow(alpha * (K - 1 - i) / K, friction), cell, K)
        wave = (wave @ kernel) * (1.0 - 1.0 / K + waves(nodes.k, weight * (drift(y) - b)) / K)
    # A function of the position and of no noise yet.
    return wave[:, None, None, :, len(m) // 2]


def path_by_components(
    nodes: Nodes,
    drift: Drift,
    alpha: float,
    K: int,
    offset: float,
    friction: float,
    counts: tuple[int, ...] = (5, 3, 2, 2),
) -> np.ndarray:
    """Moments of Option 1, underdamped: given the path's leading components, marks are a product over the cells."""
    flow, N = flows.underdamped, nodes.velocities
    index, probabilities = uniform_on_cells(K, 5)
    seen = condition(UNDERDAMPED, friction, alpha * (index + offset) / K, alpha, counts)
    # Hermite polynomials by their generating function exp(s v - s^2 / 2), on a circle of s.
    circle = 0.8 * np.exp(2j * np.pi * np.arange(2 * N) / (2 * N))
    k, s = nodes.k[:, None, None, None], circle[:, None, None]
    scale = np.array([math.sqrt(math.factorial(n)) for n in range(N)]) / (2 * N)
    pick = scale[:, None] * circle ** -np.arange(N)[:, None]
    left = np.exp(-0.5 * seen.uu * k**2 - 1j * k * s * seen.uv - 0.5 * (1.0 - seen.vv) * s**2)
    total = np.empty((len(nodes.k), N, 1, len(nodes.u)), complex)
    for part in np.array_split(np.arange(len(nodes.u)), nodes.shape[0]):
        u, v = nodes.u[part, None], nodes.v[part, None]
        b = drift(u)
        new_u, new_v = end(u, v, b, seen.end_u, seen.end_v, 0.0, 0.0, flow(alpha, friction))
        value = np.exp(-1j * k * new_u + s * new_v) * left * seen.weights
        exponent = 0.0
        for i, probability, noise_u in zip(index, probabilities, seen.at_midpoints, strict=True):
            change = drift(interpolate(u, v, b, noise_u, flow(alpha * (i + offset) / K, friction))) - b
            w_u, w_v = cell_weight(flow(alpha * (K - 1 - i) / K, friction), flow(alpha / K, friction), K)
            marked = np.expm1((-1j * k * w_u + s * w_v) * change) / K
            exponent = exponent + probability * K * np.log1p(marked)
        found = (value * np.exp(exponent)).sum(axis=-1)
        total[:, :, 0, part] = np.einsum("nm,kms->kns", pick, found)
    return total


def moments(
    nodes: Nodes, kernel: Kernel, drift: Drift, alpha: float, K: int | None, friction: float = 1.0
) -> np.ndarray:
    """Moments ``(k, n, j, node)`` after a step from each node; ``K=None``: Option 2 with cells without bound."""
    dynamics, flow = kernel.dynamics, getattr(flows, NAMES[kernel.dynamics])
    if kernel.scheme == Scheme.RECYCLED:
        law = uniform_law(kernel, alpha, friction)
        return one_midpoint(nodes, kernel, lambda x: drift(x) + x, alpha, law, friction)
    if kernel.scheme == Scheme.CONTINUOUS or K is None:
        return one_midpoint(nodes, kernel, drift, alpha, uniform_law(kernel, alpha, friction), friction)
    if kernel.option == 1 and dynamics == OVERDAMPED:
        return path_by_cells(nodes, drift, alpha, K, friction)
    if kernel.option == 1:
        return path_by_components(nodes, drift, alpha, K, kernel.offset, friction)
    cell = flow(alpha / K, friction)
    law = [
        (p, alpha * (i + kernel.offset) / K, cell_weight(flow(alpha * (K - 1 - i) / K, friction), cell, K))
        for i, p in zip(*uniform_on_cells(K, 10), strict=True)
    ]
    return one_midpoint(nodes, kernel, drift, alpha, law, friction)


def uniform_law(kernel: Kernel, alpha: float, friction: float) -> list:
    """Probability, time and weight of a midpoint uniform over the step."""
    flow, out = getattr(flows, NAMES[kernel.dynamics]), []
    for node, weight in zip(*np.polynomial.legendre.leggauss(10), strict=True):
        time = 0.5 * alpha * (1.0 + node)
        rest = flow(alpha - time, friction)
        out.append((0.5 * weight, time, continuous_weight(rest, alpha, kernel.dynamics != OVERDAMPED)))
    return out


def operator(
    nodes: Nodes, kernel: Kernel, drift: Drift, alpha: float, K: int | None, friction: float = 1.0
) -> np.ndarray:
    """Matrix that takes masses on the nodes to those after a step; of the paper's uniform law only."""
    if kernel.power != 0.0:
        raise ValueError(f"kernel.power={kernel.power}: cells are taken to be equally likely here; give 0")
    return nodes.masses(moments(nodes, kernel, drift, alpha, K, friction))


def stationary(T: np.ndarray) -> np.ndarray:
    """Masses that a step keeps."""
    system, right = T - np.eye(len(T)), np.zeros(len(T))
    system[-1], right[-1] = 1.0, 1.0
    return np.linalg.solve(system, right)


def draws(nodes: Nodes, kernel: Kernel, alpha: float, friction: float = 1.0) -> np.ndarray:
    """Matrix that takes masses on the nodes to those of the position of the next draw; only the recycled scheme's.

    Its draws are its midpoints, those of all others the positions themselves.
    """
    flow, k = flows.harmonic, nodes.k[:, None]
    total = 0.0
    for probability, time, _ in uniform_law(kernel, alpha, friction):
        mean = interpolate(nodes.u, nodes.v, nodes.b, 0.0, flow(time, friction))
        at = noise_paths(kernel.dynamics, friction, np.array([time]))[0][0]
        total = total + probability * waves(nodes.k, mean) * np.exp(-0.5 * (at @ at) * k**2)
    return np.real(nodes.to_positions @ total)
