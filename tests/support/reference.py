"""The method again, plainly and slowly, from the paper (as corrected): what the tests hold the package against.

Nothing here uses the package's formulas.  A state is an array ``(2, d)`` of position and velocity (which stays
zero in the overdamped dynamics); flows come from matrix exponentials and quadrature.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import cfunc
from scipy.linalg import expm

from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.numba_shared import Functions
from pmm_mcmc.langevin import transitions
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Scheme
from pmm_mcmc.langevin.midpoints import inverse_probability
from pmm_mcmc.model.native import SIGNATURE

# Choices of the engine, not formulas.  After a failure: the part of the step that is kept, what comes back with every
# transition, and the least; the parts in which a step is taken again, and how often; the part of a step before which no
# curvature is taken from a midpoint, and the least cosine that tells one.
SHRINK, RECOVER, SHORTEST = transitions.SHRINK, transitions.RECOVER, transitions.SHORTEST
SUBSTEPS, MOST_REFINEMENTS = transitions.SUBSTEPS, transitions.MOST_REFINEMENTS
EARLIEST, LEAST_COSINE = transitions.EARLIEST, transitions.LEAST_COSINE
# By how much the number of an adjusted chain moves on; how far below it proposals are refined; the ratio below which
# the last one counts as a divergence.
CLIMB, FAR_BELOW, DIVERGENCE = transitions.CLIMB, transitions.FAR_BELOW, transitions.DIVERGENCE
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


def covariance(dynamics, h, friction):
    """Return the covariance of the noise over a time ``h``."""
    root = flow(dynamics, h, friction)[2]
    return root @ root.T


def bridge(dynamics, friction, length, ahead, known, near, far):
    """Return noise over a ``length`` of a path whose noise over all that is ``ahead`` is ``known``, and what is left.

    By the formula for a Gaussian conditioned on a sum of which it is a part; ``near`` and ``far`` are draws of the two.
    """
    A = flow(dynamics, ahead - length, friction)[0]
    whole = A @ covariance(dynamics, length, friction) @ A.T + covariance(dynamics, ahead - length, friction)
    gain = covariance(dynamics, length, friction) @ A.T @ np.linalg.pinv(whole)
    noise = near + gain @ (known - A @ near - far)
    return noise, known - A @ noise


def stream(key, transition, part=0):
    """Return NumPy's own generator, started as ``engines/numba_shared.py`` says; parts of a step have their own."""
    bits = np.random.SFC64()
    first = int(key[0]) ^ (part * 0x9E3779B97F4A7C15 % 2**64)
    words = np.array([first, key[1], transition, 1], dtype=np.uint64)
    bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
    bits.random_raw(12)
    return np.random.Generator(bits)


class Chain:
    """A chain of any method on the random stream of the compiled engine; ``target(x)`` is ``(lp, gradient)``.

    A step in which the energy rises by more than a threshold, or along which the curvature is above a limit, is taken
    again in parts; ``limits`` are the threshold of a step, that of a part, and the curvature for a step.
    ``model_failures`` are rejections where something was not finite, though ``|y|^2 / 2`` had not risen by more than
    the threshold.

    An adjusted chain has the number of its tests, ``persistent``, None at rest; unstable are its divergences.
    """

    def __init__(self, kernel, target, u, v, alpha, friction, K, key, centre, scale, limits):
        self.kernel, self.target, self.limits = kernel, target, limits
        self.alpha, self.friction, self.K, self.key = alpha, friction, K, key
        self.centre, self.scale = centre, scale
        self.shrink, self.persistent, self.calls, self.t = 1.0, None, 0, 0
        self.state = np.array([u, v])
        self.evaluated = np.array(u)
        self.lp, self.b = self.evaluate(u)
        self.calls = self.unstable = self.refined = self.model_failures = 0
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

    def is_steep(self, base, evaluated, midpoints, step, steepest):
        """Whether the curvature between the evaluated and a midpoint is above a limit."""
        stiffness = 1.0 if self.kernel.dynamics == HARMONIC else 0.0
        for time, (y, _, b) in midpoints:
            if time > EARLIEST * step:
                way = y - evaluated
                rise = stiffness * way - (b - base)
                ratio = np.linalg.norm(rise) / np.linalg.norm(way)
                cosine = rise @ way / (np.linalg.norm(rise) * np.linalg.norm(way))
                if (ratio / max(cosine, LEAST_COSINE) if cosine > 0.0 else ratio) - stiffness > steepest:
                    return True
        return False

    def step(self, rng, step, begin, threshold, steepest, path):
        """Take one step from ``begin``; return where it ends, or ``None`` and whether the model is to blame.

        ``path`` is the time to the end of the path and the noise over it; or empty.  After the step they are those of
        the path beyond or, if it was empty, of the step.
        """
        scheme, dynamics = self.kernel.scheme, self.kernel.dynamics
        state, evaluated, lp, base = begin
        d, moments, seen, gathered = state.shape[1], [], [], np.zeros_like(state)
        ahead, known = path[:2] if path else (0.0, None)

        def normal():
            if dynamics == OVERDAMPED:
                return np.array([np.zeros(d), rng.standard_normal(d)])
            return rng.standard_normal((2, d))

        def gap_noise(start, stop):
            nonlocal gathered, known, ahead
            noise = flow(dynamics, stop - start, self.friction)[2] @ normal()
            if known is not None and ahead - stop + start < 1e-9:
                noise = known
            elif known is not None:
                far = flow(dynamics, ahead - stop + start, self.friction)[2] @ normal()
                noise, known = bridge(dynamics, self.friction, stop - start, ahead, known, noise, far)
                ahead -= stop - start
            gathered = flow(dynamics, stop - start, self.friction)[0] @ gathered + noise
            return noise

        def noted():
            for time, weight in self.times(rng, step):
                moments.append(time)
                yield time, weight

        def drift(y):
            seen.append((y, *self.evaluate(y)))
            return seen[-1][2]

        times = noted()
        new, midpoints = unrolled(
            dynamics, self.friction, step, times, state, base, drift, gap_noise, keep_base=scheme != Scheme.CONTINUOUS
        )
        if new is None:  # where the path leads to all the same
            reached = moments[-1]
            for time, _ in times:
                gap_noise(reached, time)
                reached = time
            gap_noise(reached, step)
        path[:] = [ahead, known] if path else [step, gathered]
        near = lambda place: np.sum(place**2 - state[0] ** 2) / 2 <= threshold  # noqa: E731
        if new is None:
            return None, near(seen[-1][0])
        found = seen[-1] if scheme == Scheme.RECYCLED else (new[0], *self.evaluate(new[0]))
        if found[2] is None:
            return None, near(new[0])
        potential, kinetic = -lp, new[1]
        if scheme == Scheme.RECYCLED:
            # The log density at the start of the step, from that at the evaluated and its gradient.
            ahead_of, kinetic = state[0] - evaluated, midpoints[-1][1]
            slope = (evaluated if dynamics == HARMONIC else 0.0) - base
            potential += np.sum(ahead_of * slope + 0.5 * ahead_of**2)
        rise = -found[1] - potential + 0.5 * np.sum(kinetic**2 - state[1] ** 2)
        steep = self.is_steep(base, evaluated, zip(moments, seen, strict=True), step, steepest)
        if not np.all(np.isfinite(new)) or not rise <= threshold or steep:
            return None, False
        return (new, *found), False

    def proposal(self, begin, parts):
        """Return where ``parts`` steps of half kicks around a rotation end, and the ratio of densities there."""
        u, v, lp, b = begin
        h, energy = self.alpha / parts, 0.5 * v @ v - lp
        rotation = np.array([[np.cos(h), np.sin(h)], [-np.sin(h), np.cos(h)]])
        for _ in range(parts):
            u, v = rotation @ np.array([u, v + 0.5 * h * b])
            lp, b = self.evaluate(u)
            if b is None:
                return None, 0.0
            v = v + 0.5 * h * b
        return (u, v, lp, b), np.exp(min(energy - 0.5 * v @ v + lp, 700.0))

    def ghmc(self, rng):
        """Refresh the velocity, and test proposals of 1, 4 and 16 parts as long as they lie far below the slice."""
        h, d = self.alpha, self.state.shape[1]
        u, v = self.state
        if self.persistent is None:
            self.persistent = 2.0 * rng.random() - 1.0
            v = rng.standard_normal(d)
        retained = np.exp(-self.friction * h)
        v = retained * v + np.sqrt(1.0 - retained**2) * rng.standard_normal(d)
        self.persistent += CLIMB
        if self.persistent >= 1.0:
            self.persistent -= 2.0
        s, good, ratios, tried = abs(self.persistent), False, [], []
        for level in range(MOST_REFINEMENTS + 1):
            end, ratio = self.proposal((u, v, self.lp, self.b), SUBSTEPS**level)
            ratios.append(ratio)
            if s < ratio:
                back = end[0], -end[1], *end[2:]
                good = all(s >= FAR_BELOW * ratio * self.proposal(back, parts)[1] for parts in tried)
                break
            if s < FAR_BELOW * ratio:
                break
            tried.append(SUBSTEPS**level)
        finer = good and len(ratios) > 1
        self.refined += finer
        self.unstable += not good and ratios[-1] < DIVERGENCE
        self.accept = 1.0 if finer else min(1.0, ratios[0])
        if good:
            self.persistent /= ratio
            u, v, self.lp, self.b = end
            self.state, self.evaluated = np.array([u, v]), u
        else:
            self.state = np.array([u, -v])

    @property
    def last(self):
        """The last number of the state of a chain."""
        if not self.kernel.adjusted:
            return self.shrink
        return 1.0 if self.persistent is None else self.persistent

    def advance(self):
        """Make one transition."""
        dynamics, rng, d = self.kernel.dynamics, stream(self.key, self.t), self.state.shape[1]
        self.t += 1
        step = self.alpha * self.shrink
        if self.kernel.adjusted:
            return self.ghmc(rng)

        threshold, of_part, steepest = self.limits
        steepest = steepest / self.shrink ** (1 if dynamics == OVERDAMPED else 2)
        begin, path = (self.state, self.evaluated, self.lp, self.b), []
        found, by_model = self.step(rng, step, begin, threshold, steepest, path)
        parts = 1
        while found is None and parts < SUBSTEPS**MOST_REFINEMENTS:
            parts *= SUBSTEPS
            left, found, steepest = list(path), begin, steepest * SUBSTEPS ** (1 if dynamics == OVERDAMPED else 2)
            for i in range(parts):
                rng = stream(self.key, self.t - 1, parts + i)
                found, by_model = self.step(rng, step / parts, found, of_part, steepest, left)
                if found is None:
                    break
        if found is not None:
            self.refined += parts > 1
            self.state, self.evaluated, self.lp, self.b = found
            self.shrink = min(1.0, RECOVER * self.shrink)
            self.accept = 1.0
            return
        self.model_failures += by_model
        velocity = rng.standard_normal(d) if dynamics != OVERDAMPED else np.zeros(d)
        self.state = np.array([self.evaluated, velocity])
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
    return NumbaEngine(kernel, d, Functions(target, lambda noncentring: joint, target, lambda noncentring: alone))


def mean_gradients(kernel, K):
    """Return the expected gradients of a step of the two-gradient schemes.

    They are one at the end of the step and one in each marked cell, of which there is one on average.  On the left grid
    a marked first cell needs none of its own: its drift is known.
    """
    return 2.0 if kernel.offset else 2.0 - 1.0 / inverse_probability(0.0, K, kernel.power)
