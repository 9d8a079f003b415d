"""Orders of the bias in the step size, as data: by quadrature on a double well, by exact laws on Gaussians.

Nothing here is random.  The double well is ``F(x) = x^2 / 2 - log cosh(1.5 x)``, a mixture of two unit Gaussians at
-1.5 and 1.5: not log-concave, smooth, with ``E x^2 = 1 + 1.5^2``.  The stationary law of a step is found as a vector of
masses on nodes: a uniform grid in position (trigonometric, hence spectrally accurate) times Gauss-Hermite nodes in
velocity.  The step itself is the package's own arithmetic on all nodes at once; only the last noise is integrated in
closed form.  On the Gaussian the same quadrature gives the exact laws to 1e-8, which is tested first.
"""

import math

import numpy as np
import pytest

from pmm_mcmc.coefficients import flows
from pmm_mcmc.gaussian import stationary_covariance, variance_error
from pmm_mcmc.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.midpoints import cell_weight, continuous_weight
from pmm_mcmc.transitions import end, interpolate, noise, path

WELL = 1.5
FRICTION = 1.0
NAMES = {OVERDAMPED: "overdamped", UNDERDAMPED: "underdamped"}
HALF_WIDTH = 9.0


def double_well(x):
    return -x + WELL * np.tanh(WELL * x)


def unit_gaussian(x):
    return -x


def gauss_hermite(n):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


def hermite(v, n):
    """Return the first ``n`` Hermite polynomials, orthonormal under the standard normal."""
    out = [np.ones_like(v), v]
    for i in range(1, n - 1):
        out.append((v * out[i] - math.sqrt(i) * out[i - 1]) / math.sqrt(i + 1))
    return np.array(out[:n])


class Nodes:
    """Nodes of position and velocity, with the way back from moments ``E exp(-i k u) h_n(v)`` to masses on them."""

    def __init__(self, dynamics):
        # The overdamped law is that of one variable, and affords more of everything.
        positions, highest, self.velocities = (121, 18.0, 1) if dynamics == OVERDAMPED else (81, 9.0, 14)
        spacing = 2.0 * HALF_WIDTH / positions
        self.x = -HALF_WIDTH + spacing * (np.arange(positions) + 0.5)
        self.k = np.pi / HALF_WIDTH * np.arange(int(highest * HALF_WIDTH / np.pi) + 1)
        v, weights = gauss_hermite(self.velocities)
        self.u, self.v = np.repeat(self.x, len(v)), np.tile(v, positions)
        self.to_positions = np.exp(1j * np.outer(self.x, self.k)) * np.where(self.k == 0.0, 1.0, 2.0) / positions
        self.to_velocities = hermite(v, self.velocities) * weights

    def second_moment(self, moments):
        """Return ``E u^2`` of the stationary law, from the moments ``(k, n, node)`` after a step from each node."""
        T = np.real(np.einsum("jk,kns->jns", self.to_positions, moments))
        T = np.einsum("jns,nr->jrs", T, self.to_velocities).reshape(len(self.u), -1)
        system = T - np.eye(len(self.u))
        system[-1], right = 1.0, np.zeros(len(self.u))
        right[-1] = 1.0
        return np.linalg.solve(system, right) @ self.u**2


def one_midpoint(dynamics, drift, alpha, law, keep_base):
    """Return ``E u^2`` of a method with one midpoint; ``law`` lists its (probability, time, weight)."""
    flow = getattr(flows, NAMES[dynamics])
    nodes = Nodes(dynamics)
    k, u, v = nodes.k, nodes.u[:, None], nodes.v[:, None]
    b = drift(u)
    base = b if keep_base else 0.0 * b
    w = np.eye(4)
    total = 0.0
    for probability, time, (weight_u, weight_v) in law:
        # The noise as vectors over the normals it is made of: of the midpoint's position, of the end's state.
        gap, rest = flow(time, FRICTION), flow(alpha - time, FRICTION)
        mid_u, mid_v = path(0.0, 0.0, *noise(w[0], w[1], gap), gap)
        end_u, end_v = path(mid_u, mid_v, *noise(w[2], w[3], rest), rest)
        size = np.sqrt(mid_u @ mid_u)
        xi, xi_weights = gauss_hermite(12 if dynamics == UNDERDAMPED else 16) if size else (np.zeros(1), np.ones(1))
        direction = mid_u / size if size else mid_u
        on_u, on_v = end_u @ direction, end_v @ direction
        uu, uv, vv = end_u @ end_u - on_u**2, end_u @ end_v - on_u * on_v, end_v @ end_v - on_v**2
        correction = drift(interpolate(u, v, b, size * xi, flow(time, FRICTION))) - base
        state = end(
            u, v, base, on_u * xi, on_v * xi, weight_u * correction, weight_v * correction, flow(alpha, FRICTION)
        )
        # What is left of the noise at the end, given that of the midpoint.
        eta, eta_weights = gauss_hermite(10) if vv > 0.0 else (np.zeros(1), np.ones(1))
        root = np.sqrt(vv) if vv > 0.0 else 1.0
        new_u = (state[0][:, :, None] + uv / root * eta).reshape(len(u), -1)
        new_v = (state[1][:, :, None] + root * eta * np.ones_like(xi)[:, None]).reshape(len(u), -1)
        weights = probability * np.outer(xi_weights, eta_weights).ravel()
        waves = np.exp(-1j * np.multiply.outer(k, new_u)) * np.exp(-0.5 * k**2 * (uu - (uv / root) ** 2))[:, None, None]
        polynomials = hermite(new_v, nodes.velocities) * weights
        total = total + np.matmul(waves.transpose(1, 0, 2), polynomials.transpose(1, 2, 0)).transpose(1, 2, 0)
    return nodes.second_moment(total)


def cells(dynamics, drift, alpha, K, offset=0.0):
    """Option 2."""
    flow = getattr(flows, NAMES[dynamics])
    cell = flow(alpha / K, FRICTION)
    law = [
        (1.0 / K, alpha * (i + offset) / K, cell_weight(flow(alpha * (K - 1 - i) / K, FRICTION), cell, K))
        for i in range(K)
    ]
    return one_midpoint(dynamics, drift, alpha, law, True)


def continuous(dynamics, drift, alpha, keep_base):
    """Option 2 with cells without bound, or the randomised midpoint method."""
    flow = getattr(flows, NAMES[dynamics])
    law = []
    for node, weight in zip(*np.polynomial.legendre.leggauss(10), strict=True):
        time = 0.5 * alpha * (1.0 + node)
        law.append(
            (0.5 * weight, time, continuous_weight(flow(alpha - time, FRICTION), alpha, dynamics == UNDERDAMPED))
        )
    return one_midpoint(dynamics, drift, alpha, law, keep_base)


def independent_cells(drift, alpha, K):
    """Option 1, overdamped, left grid: backwards over the cells, as a function of the noise path so far."""
    nodes = Nodes(OVERDAMPED)
    x, k = nodes.x, nodes.k[nodes.k < 12.0]
    nodes.to_positions = nodes.to_positions[:, : len(k)]
    whole, cell = flows.overdamped(alpha, FRICTION), flows.overdamped(alpha / K, FRICTION)
    half = 7.0 * whole.n_uu
    m = np.linspace(-half, half, 2 * int(half / (0.8 * cell.n_uu)) + 1)
    kernel = np.exp(-0.5 * ((m - m[:, None]) / cell.n_uu) ** 2)
    # The state at the end without corrections, and with it the wave of each frequency.
    b = drift(x)[:, None]
    ends, _ = end(x[:, None], 0.0, b, m, 0.0, 0.0, 0.0, whole)
    wave = np.exp(-1j * np.multiply.outer(k, ends))
    kernel = (kernel * (m[1] - m[0]) / (cell.n_uu * math.sqrt(2.0 * math.pi))).T.astype(complex)
    for i in range(K - 1, -1, -1):
        time = alpha * i / K
        y = interpolate(x[:, None], 0.0, b, m, flows.overdamped(time, FRICTION))
        weight, _ = cell_weight(flows.overdamped(alpha * (K - 1 - i) / K, FRICTION), cell, K)
        marked = np.exp(-1j * np.multiply.outer(k, weight * (drift(y) - b)))
        wave = (wave @ kernel) * (1.0 - 1.0 / K + marked / K)
    # A function of the position and of no noise yet.
    return nodes.second_moment(wave[:, :, len(m) // 2][:, None, :])


def kernel(scheme, dynamics, option=2, offset=0.0):
    return Kernel(scheme, dynamics, option, offset)


@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED])
def test_quadrature_gives_the_exact_laws_of_the_gaussian(dynamics):
    found = {
        kernel(Scheme.CELLS, dynamics): cells(dynamics, unit_gaussian, 0.4, 3),
        kernel(Scheme.CELLS, dynamics, 2, 0.5): cells(dynamics, unit_gaussian, 0.4, 3, 0.5),
        kernel(Scheme.CONTINUOUS, dynamics): continuous(dynamics, unit_gaussian, 0.4, False),
    }
    if dynamics == OVERDAMPED:
        found[kernel(Scheme.CELLS, dynamics, 1)] = independent_cells(unit_gaussian, 0.4, 3)
    for method, value in found.items():
        assert abs(value - stationary_covariance(method, 0.4, FRICTION, 3)[0, 0]) < 1e-8, method
    without_bound = continuous(dynamics, unit_gaussian, 0.4, True)
    exact = stationary_covariance(kernel(Scheme.CELLS, dynamics), 0.4, FRICTION, None)[0, 0]
    assert abs(without_bound - exact) < 1e-8


SMALL, MEDIUM, LARGE = (0.01, 0.005, 0.0025), (0.05, 0.025, 0.0125), (0.4, 0.2, 0.1)
# (method, function of alpha to E x^2 on the double well, step sizes, order)
DOUBLE_WELL = [
    ("LMC", lambda a: cells(OVERDAMPED, double_well, a, 1), SMALL, 1),
    ("Option 2, K = 4", lambda a: cells(OVERDAMPED, double_well, a, 4), SMALL, 1),
    ("Option 2, K = 1 / (2 alpha)", lambda a: cells(OVERDAMPED, double_well, a, round(0.5 / a)), MEDIUM, 2),
    ("Option 2, centred, K = 4", lambda a: cells(OVERDAMPED, double_well, a, 4, 0.5), SMALL, 2),
    ("Option 1, K = 1 / (2 alpha)", lambda a: independent_cells(double_well, a, round(0.5 / a)), MEDIUM, 2),
    # Order 3 on Gaussians, where the terms in alpha^2 cancel; 2 in general.
    ("RLMC", lambda a: continuous(OVERDAMPED, double_well, a, False), SMALL, 2),
    ("ULMC", lambda a: cells(UNDERDAMPED, double_well, a, 1), (0.1, 0.05), 1),
    ("underdamped, Option 2, K = 4", lambda a: cells(UNDERDAMPED, double_well, a, 4), (0.1, 0.05), 1),
    ("underdamped, Option 2, K = 1.6 / alpha", lambda a: cells(UNDERDAMPED, double_well, a, round(1.6 / a)), LARGE, 2),
    ("underdamped, Option 2, K without bound", lambda a: continuous(UNDERDAMPED, double_well, a, True), LARGE, 5),
    ("underdamped RLMC", lambda a: continuous(UNDERDAMPED, double_well, a, False), (0.2, 0.1), 3),
]


@pytest.mark.parametrize(("second_moment", "alphas", "order"), [row[1:] for row in DOUBLE_WELL], ids=[row[0] for row in DOUBLE_WELL])  # noqa: E501  # fmt: skip
def test_order_on_the_double_well(second_moment, alphas, order):
    errors = [abs(second_moment(alpha) - (1.0 + WELL**2)) for alpha in alphas]
    slope = np.polyfit(np.log(alphas), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.15, (slope, errors)


def test_fixed_K_divides_the_bias_of_lmc():
    """Check that the left grid keeps the bias of LMC divided by K."""
    for dynamics, alpha in ((OVERDAMPED, 0.002), (UNDERDAMPED, 0.05)):
        plain, four = (cells(dynamics, double_well, alpha, K) - (1.0 + WELL**2) for K in (1, 4))
        assert abs(4.0 * four / plain - 1.0) < 0.05


def growing(alpha):
    return round(1.0 / alpha)


STEPS = (0.1, 0.05, 0.025)
# (kernel, K of alpha, curvature, order); the terms in alpha^2 of the overdamped continuous law cancel on Gaussians
GAUSSIAN = [
    (kernel(Scheme.CELLS, OVERDAMPED), lambda a: 1, 1.0, 1),
    (kernel(Scheme.CELLS, OVERDAMPED), lambda a: 4, 1.0, 1),
    (kernel(Scheme.CELLS, OVERDAMPED), growing, 1.0, 2),
    (kernel(Scheme.CELLS, OVERDAMPED, 1), growing, 1.0, 2),
    (kernel(Scheme.CELLS, OVERDAMPED, 1, 0.5), growing, 1.0, 2),
    (kernel(Scheme.CELLS, OVERDAMPED), lambda a: None, 1.0, 3),
    (kernel(Scheme.CELLS, OVERDAMPED, 2, 0.5), lambda a: 4, 1.0, 3),
    (kernel(Scheme.CONTINUOUS, OVERDAMPED), lambda a: 1, 1.0, 3),
    (kernel(Scheme.CELLS, UNDERDAMPED), lambda a: 1, 1.0, 1),
    (kernel(Scheme.CELLS, UNDERDAMPED), lambda a: 4, 1.0, 1),
    (kernel(Scheme.CELLS, UNDERDAMPED), growing, 1.0, 2),
    (kernel(Scheme.CELLS, UNDERDAMPED, 1), growing, 1.0, 2),
    (kernel(Scheme.CELLS, UNDERDAMPED, 1, 0.5), growing, 1.0, 3),
    # The midpoint rule over four cells leaves a term in alpha^3 that falls with K^2; with more cells it goes away.
    (kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.5), lambda a: 4, 1.0, 3),
    (kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.5), growing, 1.0, 5),
    (kernel(Scheme.CELLS, UNDERDAMPED), lambda a: None, 1.0, 5),
    (kernel(Scheme.CONTINUOUS, UNDERDAMPED), lambda a: 1, 1.0, 3),
    (kernel(Scheme.RECYCLED, UNDERDAMPED), lambda a: 1, 1.0, 3),
    (kernel(Scheme.RECYCLED, HARMONIC), lambda a: 1, 0.5, 3),
]


@pytest.mark.parametrize(("method", "K", "curvature", "order"), GAUSSIAN)
def test_order_on_the_gaussian(method, K, curvature, order):
    # The recycled schemes reach their order later: terms in alpha^3 and alpha^4 of opposite signs.
    alphas = np.array(STEPS) * (0.1 if method.scheme == Scheme.RECYCLED else 1.0)
    errors = [abs(variance_error(method, alpha, FRICTION, K(alpha), curvature)) for alpha in alphas]
    slope = np.polyfit(np.log(alphas), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.15, (slope, errors)
