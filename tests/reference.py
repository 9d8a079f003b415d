"""The method again, plainly and slowly, from the paper (as corrected): what the tests hold the package against.

Nothing here uses the package's formulas.  A state is an array ``(2, d)`` of position and velocity (which stays
zero in the overdamped dynamics); flows come from matrix exponentials and quadrature.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import cfunc
from scipy.linalg import expm

from pmm_mcmc import transitions
from pmm_mcmc.engines.numba_engine import SIGNATURE, NumbaEngine
from pmm_mcmc.methods import HARMONIC, OVERDAMPED, Scheme

# Choices of the engine, not formulas.  After a failure: the part of the step that is kept, what comes back with every
# transition, and the least; and the part of a step before which no curvature is taken from a midpoint.
SHRINK, RECOVER, SHORTEST = transitions.SHRINK, transitions.RECOVER, transitions.SHORTEST
TELLING = transitions.TELLING
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


def sde(dynamics, friction):
    """Matrices of ``dX = (J X + e b) dt + sqrt(D) dB``."""
    if dynamics == OVERDAMPED:
        return np.zeros((2, 2)), np.array([1.0, 0.0]), np.diag([2.0, 0.0])
    stiffness = 1.0 if dynamics == HARMONIC else 0.0
    J = np.array([[0.0, 1.0], [-stiffness, -friction]])
    return J, np.array([0.0, 1.0]), np.diag([0.0, 2.0 * friction])


@lru_cache(maxsize=100_000)
def flow(dynamics, h, friction):
    """Return ``A``, ``G`` and a root of ``Gamma^2`` (acting on two normals, the velocity's first) over a time ``h``."""
    if h <= 0.0:
        return np.eye(2), np.zeros(2), np.zeros((2, 2))
    J, e, D = sde(dynamics, friction)
    inside = expm(0.5 * h * (1.0 + _NODES)[:, None, None] * J)
    weights = 0.5 * h * _WEIGHTS
    G = np.einsum("q,qij,j->i", weights, inside, e)
    covariance = np.einsum("q,qij,jk,qlk->il", weights, inside, D, inside)
    root = np.zeros((2, 2))
    if dynamics == OVERDAMPED:
        root[0, 1] = np.sqrt(covariance[0, 0])
    else:
        root[1, 0] = np.sqrt(covariance[1, 1])
        root[0, 0] = covariance[0, 1] / root[1, 0]
        root[0, 1] = np.sqrt(covariance[0, 0] - root[0, 0] ** 2)
    return expm(h * J), G, root


def fine_times(K, alpha, centred):
    """Return the ends of the cells in which the fine noise comes: half cells on the centred grid."""
    fine = K * (2 if centred else 1)
    return alpha * np.arange(fine + 1) / fine


def gather(dynamics, friction, times, z, start, stop):
    """Return the noise of the path between two of the fine times: the sum over its cells of ``A Gamma z``."""
    total = np.zeros_like(z[0])
    for left, right, normals in zip(times[:-1], times[1:], z, strict=True):
        if left > start - 1e-12 and right < stop + 1e-12:
            root = flow(dynamics, times[1], friction)[2]
            total = total + flow(dynamics, stop - right, friction)[0] @ root @ normals
    return total


def sequential(dynamics, friction, alpha, K, marks, state, drift, z, centred=False):
    """Follow equation (stoc_approx), one cell after the other, with the fine noise ``z`` of shape ``(cells, 2, d)``."""
    times = fine_times(K, alpha, centred)
    A, G, _ = flow(dynamics, alpha / K, friction)
    b = drift(state[0])
    x = state
    for i in range(K):
        left, right = alpha * i / K, alpha * (i + 1) / K
        midpoint = 0.5 * (left + right) if centred else left
        at, gt, _ = flow(dynamics, midpoint, friction)
        path = gather(dynamics, friction, times, z, 0.0, midpoint)
        interpolated = (at @ state + np.outer(gt, b) + path)[0]
        refined = b + K * marks[i] * (drift(interpolated) - b)
        x = A @ x + np.outer(G, refined) + gather(dynamics, friction, times, z, left, right)
    return x


def unrolled(dynamics, friction, alpha, weighted_times, state, base, drift, gap_noise, keep_base=True):
    """Take steps 1 to 5 of the algorithm with given midpoints.

    ``weighted_times`` yields ``(time, weight)`` in order, ``gap_noise(start, stop)`` the noise of the path between two
    times.  Returns the new state and the midpoints, position and velocity; without ``keep_base`` the drift at the
    midpoint replaces ``base``.
    """
    path, reached = np.zeros_like(state), 0.0
    correction = np.zeros_like(state)
    midpoints = []
    for time, weight in weighted_times:
        path = flow(dynamics, time - reached, friction)[0] @ path + gap_noise(reached, time)
        at, gt, _ = flow(dynamics, time, friction)
        midpoints.append(at @ state + np.outer(gt, base) + path)
        value = drift(midpoints[-1][0])
        if value is None:
            return None, midpoints
        correction = correction + np.outer(weight, value - base if keep_base else value)
        reached = time
    path = flow(dynamics, alpha - reached, friction)[0] @ path + gap_noise(reached, alpha)
    A, G, _ = flow(dynamics, alpha, friction)
    return A @ state + np.outer(G, base if keep_base else 0.0 * base) + path + correction, midpoints


def cell_law(K, power):
    """Return the probability of each cell to be the one that is marked."""
    edges = (np.arange(K + 1) / K) ** (1.0 + power)
    return edges[1:] - edges[:-1]


def cell_midpoint(dynamics, friction, alpha, K, i, offset, power=0.0):
    """Return time and weight ``A_{(K-1-i) alpha/K} G_{alpha/K} / q_i`` of the marked cell ``i``."""
    rest, G = flow(dynamics, alpha * (K - 1 - i) / K, friction)[0], flow(dynamics, alpha / K, friction)[1]
    return alpha * (i + offset) / K, rest @ G / cell_law(K, power)[i]


def uniform_midpoint(dynamics, friction, alpha, time):
    """Return time and weight ``alpha A_{alpha - time} e`` of a midpoint of the continuous law."""
    return time, alpha * flow(dynamics, alpha - time, friction)[0] @ sde(dynamics, friction)[1]


def stream(key, transition):
    """Return NumPy's own generator, started as :mod:`pmm_mcmc.engines.random` says."""
    bits = np.random.SFC64()
    words = np.array([key[0], key[1], transition, 1], dtype=np.uint64)
    bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
    bits.random_raw(12)
    return np.random.Generator(bits)


class Chain:
    """A chain of any method on the random stream of the compiled engine; ``target(x)`` is ``(lp, gradient)``.

    A step in which the energy rises by more than ``threshold`` is rejected; one along which the curvature was above
    ``steepest`` makes the next ones shorter.  ``model_failures`` are rejections where something was not finite, though
    ``|y|^2 / 2`` had not risen by more than the threshold.
    """

    def __init__(self, kernel, target, u, v, alpha, friction, K, key, centre, scale, threshold, steepest):
        self.kernel, self.target = kernel, target
        self.threshold, self.steepest = threshold, steepest
        self.alpha, self.friction, self.K, self.key = alpha, friction, K, key
        self.centre, self.scale = centre, scale
        self.shrink, self.calls, self.t = 1.0, 0, 0
        self.state = np.array([u, v])
        self.anchor = np.array(u)
        self.lp, self.b = self.evaluate(u)
        self.calls = self.unstable = self.model_failures = 0
        self.accept = 1.0

    def evaluate(self, y):
        """Return log density and drift in whitened coordinates; the drift is None where anything is not finite."""
        self.calls += 1
        with np.errstate(all="ignore"):
            lp, gradient = self.target(self.centre + self.scale * y)
        if not (np.isfinite(lp) and np.all(np.isfinite(gradient))):
            return np.nan, None
        return lp, self.scale * gradient + (y if self.kernel.dynamics == HARMONIC else 0.0)

    def times(self, rng, step):
        """Draw midpoints with their weights, one after the other."""
        scheme, dynamics, option, offset, power = self.kernel
        if scheme in (Scheme.CONTINUOUS, Scheme.RECYCLED):
            yield uniform_midpoint(dynamics, self.friction, step, step * rng.random())
            return
        cell = -1
        while True:
            if option == 2:
                cell = int(np.sum(np.cumsum(cell_law(self.K, power))[:-1] <= rng.random()))
            elif self.K == 1:
                rng.random()
                cell += 1
            else:  # the number of cells to the next marked one is geometric
                cell += 1 + int(np.log1p(-rng.random()) / np.log1p(-1.0 / self.K))
            if cell >= self.K:
                return
            # A midpoint at the start corrects nothing and takes no noise.
            if cell + offset > 0.0:
                yield cell_midpoint(dynamics, self.friction, step, self.K, cell, offset, power)
            if option == 2:
                return

    def longest(self, midpoints, step):
        """Return the part of a step that the curvatures between the anchor and the midpoints allow."""
        curvatures = [
            np.linalg.norm(b - self.b) / np.linalg.norm(y - self.anchor)
            for time, (y, _, b) in midpoints
            if time > TELLING * step
        ]
        ratio = self.steepest / max(curvatures, default=self.steepest)
        return min(1.0, ratio if self.kernel.dynamics == OVERDAMPED else np.sqrt(ratio))

    def blame(self, place):
        """Put a failure down to the model where a place that is not finite is one that a good step may reach."""
        if place is not None and np.sum(place**2 - self.state[0] ** 2) / 2 <= self.threshold:
            self.model_failures += 1

    def mala(self, rng, step, d):
        proposal = self.state[0] + step * self.b + np.sqrt(2.0 * step) * rng.standard_normal(d)
        lp, b = self.evaluate(proposal)
        if b is None:
            self.unstable += 1
            self.model_failures += 1
            self.accept = 0.0
            return
        forward = np.sum((proposal - self.state[0] - step * self.b) ** 2) / (4.0 * step)
        backward = np.sum((self.state[0] - proposal - step * b) ** 2) / (4.0 * step)
        ratio = lp - backward - self.lp + forward
        if np.isnan(ratio):
            self.unstable += 1
            self.model_failures += 1
            self.accept = 0.0
            return
        self.accept = min(1.0, np.exp(min(ratio, 0.0)))
        if np.log1p(-rng.random()) < ratio:
            self.state, self.anchor, self.lp, self.b = np.array([proposal, 0.0 * proposal]), proposal, lp, b

    def advance(self):
        """Make one transition."""
        scheme, dynamics = self.kernel.scheme, self.kernel.dynamics
        rng, d = stream(self.key, self.t), self.state.shape[1]
        self.t += 1
        step = self.alpha * self.shrink
        if scheme == Scheme.MALA:
            return self.mala(rng, step, d)

        def gap_noise(start, stop):
            root = flow(dynamics, stop - start, self.friction)[2]
            if dynamics == OVERDAMPED:
                return root @ np.array([np.zeros(d), rng.standard_normal(d)])
            return root @ rng.standard_normal((2, d))

        seen, moments = [], []

        def noted():
            for time, weight in self.times(rng, step):
                moments.append(time)
                yield time, weight

        def drift(y):
            seen.append((y, *self.evaluate(y)))
            return seen[-1][2]

        new, midpoints = unrolled(
            dynamics, self.friction, step, noted(), self.state, self.b, drift, gap_noise,
            keep_base=scheme != Scheme.CONTINUOUS,
        )  # fmt: skip
        if new is not None:
            anchor, lp, b = seen[-1] if scheme == Scheme.RECYCLED else (new[0], *self.evaluate(new[0]))
            potential, kinetic = -self.lp, new[1]
            if scheme == Scheme.RECYCLED:
                # The log density at the start of the step, from that at the anchor and its gradient.
                ahead, kinetic = self.state[0] - self.anchor, midpoints[-1][1]
                slope = (self.anchor if dynamics == HARMONIC else 0.0) - self.b
                potential += np.sum(ahead * slope + 0.5 * ahead**2)
            rise = -lp - potential + 0.5 * np.sum(kinetic**2 - self.state[1] ** 2)
            if b is not None and np.all(np.isfinite(new)) and rise <= self.threshold:
                longest = self.longest(zip(moments, seen, strict=True), step)
                self.state, self.anchor, self.lp, self.b = new, anchor, lp, b
                self.shrink = max(SHORTEST, min(longest, RECOVER * self.shrink))
                self.accept = 1.0
                return
            self.blame(new[0] if b is None else None)
        else:
            self.blame(seen[-1][0])
        velocity = rng.standard_normal(d) if dynamics != OVERDAMPED else np.zeros(d)
        self.state = np.array([self.anchor, velocity])
        self.unstable += 1
        self.accept = 0.0
        self.shrink = max(SHORTEST, SHRINK * self.shrink)


@cfunc(SIGNATURE)
def gaussian(x, gradient, table, n):
    """Evaluate the unit Gaussian; other curvatures come from the scale of the coordinates."""
    lp = 0.0
    for i in range(n):
        lp -= 0.5 * x[i] * x[i]
        gradient[i] = -x[i]
    return lp


def engine(kernel, d, target, table=None, gradient_table=None):
    """Return an engine for a compiled target, with the tables of integers it reads."""
    joint = np.zeros(2, np.int64) if table is None else table
    alone = joint if gradient_table is None else gradient_table
    return NumbaEngine(kernel, d, target, target, lambda: joint, lambda: alone)
