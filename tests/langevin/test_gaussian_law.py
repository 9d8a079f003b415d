"""Exact stationary laws on Gaussians: of ``gaussian.py`` against brute force, and of the engine against those.

Each z-score is a mean over 400 independent chains against its exact value, bias included, so that there is nothing to
allow for: |z| < 4.5, a false alarm in 1e5 for each (Student's t with 399 degrees of freedom).
"""

import itertools

import numpy as np
import pytest
from covering import pairs
from reference import cell_law, engine, fine_times, flow, gaussian, sde, sequential, uniform_midpoint, unrolled

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.langevin.gaussian_law import stationary_covariance, variance_error
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import IMPORTANCE_POWER

pytestmark = pytest.mark.quick


def cells(dynamics, option=2, grid="left", power=0.0):
    return Kernel(Scheme.CELLS, dynamics, option, {"left": 0.0, "centred": 0.5}[grid], power)


def continuous(dynamics):
    return Kernel(Scheme.CONTINUOUS, dynamics, 2, 0.0)


RECYCLED, RECYCLED_PLAIN = (Kernel(Scheme.RECYCLED, dynamics, 2, 0.0) for dynamics in (HARMONIC, UNDERDAMPED))


def cell_maps(kernel, alpha, friction, K, curvature):
    """Return (probability, matrix) for every pattern of marks: one coordinate for each input of the step."""
    centred = kernel.offset > 0.0
    fine = len(fine_times(K, alpha, centred)) - 1
    inputs = np.eye(2 + 2 * fine)
    z = inputs[2:].reshape(fine, 2, -1)
    maps = []
    for marks in itertools.product((0, 1), repeat=K):
        count = sum(marks)
        if kernel.option == 1:
            probability = (1.0 / K) ** count * (1.0 - 1.0 / K) ** (K - count)
        else:
            probability = float(cell_law(K, kernel.power) @ marks) if count == 1 else 0.0
            marks = np.array(marks) / (K * max(probability, 1e-300))
        if probability:
            args = (inputs[:2], lambda x: -curvature * x, z, centred)
            maps.append((probability, sequential(kernel.dynamics, friction, alpha, K, marks, *args)))
    return maps


def uniform_midpoint_maps(kernel, alpha, friction, curvature):
    """Return (weight, matrix) at the nodes of a quadrature over the midpoint."""
    dynamics, recycled = kernel.dynamics, kernel.scheme == Scheme.RECYCLED
    n = 3 if recycled else 2
    slope = curvature + sde(dynamics, friction)[0][1, 0]  # what the flow leaves of it
    inputs = np.eye(n + 4)
    maps = []
    for node, weight in zip(*np.polynomial.legendre.leggauss(32), strict=True):
        time = 0.5 * alpha * (1.0 + node)

        def gap_noise(start, stop, time=time):
            normals = inputs[n : n + 2] if stop == time else inputs[n + 2 :]
            return flow(dynamics, stop - start, friction)[2] @ normals

        new, midpoints = unrolled(
            dynamics, friction, alpha, [uniform_midpoint(dynamics, friction, alpha, time)], inputs[:2],
            -slope * inputs[2 if recycled else 0], lambda x: -slope * x, gap_noise, keep_base=recycled,
        )  # fmt: skip
        maps.append((0.5 * weight, np.vstack([new, midpoints[0][:1]]) if recycled else new))
    return maps


def brute_force(kernel, alpha, friction, K, curvature):
    """Follow the second moments from step to step until they stand still; None where they explode."""
    if kernel.scheme == Scheme.CELLS:
        maps = cell_maps(kernel, alpha, friction, K, curvature)
    else:
        maps = uniform_midpoint_maps(kernel, alpha, friction, curvature)
    p, maps = np.array([weight for weight, _ in maps]), np.array([matrix for _, matrix in maps])
    n = maps.shape[1]
    noise = np.einsum("p,pij,pkj->ik", p, maps[:, :, n:], maps[:, :, n:])
    S = np.zeros((n, n))
    for _ in range(20_000):
        old, S = S, np.sum(p[:, None, None] * (maps[:, :, :n] @ S @ maps[:, :, :n].transpose(0, 2, 1)), axis=0) + noise
        if not np.all(np.abs(S) < 1e9):
            return None
        if np.abs(S - old).max() < 1e-15 * np.abs(S).max():
            break
    return S


LAWS = (1,), (2,), (2, IMPORTANCE_POWER)  # option, and the power of the law of midpoints
EVERY = [
    *((cells(dynamics, law[0], grid, *law[1:]), K) for dynamics, law, grid, K in
      pairs((OVERDAMPED, UNDERDAMPED), LAWS, ("left", "centred"), (1, 2, 4))),
    (continuous(OVERDAMPED), 1), (continuous(UNDERDAMPED), 1), (RECYCLED, 1), (RECYCLED_PLAIN, 1),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "K"), EVERY)
def test_covariance_is_that_of_the_moment_recursion(kernel, K):
    for alpha, friction, curvature in ((0.4, 0.7, 1.0), (0.8, 2.0, 0.3), (0.6, 1.0, 1.8)):
        expected = brute_force(kernel, alpha, friction, K, curvature)
        found = stationary_covariance(kernel, alpha, friction, K, curvature)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED])
@pytest.mark.parametrize("power", [0.0, IMPORTANCE_POWER])
def test_many_cells_approach_the_continuous_law(dynamics, power):
    """Check the limit of Option 2 for many cells, and that the centred grid is already there."""
    limit = stationary_covariance(cells(dynamics, power=power), 0.6, 1.3, None)
    found = [stationary_covariance(cells(dynamics, power=power), 0.6, 1.3, K) for K in (50, 100)]
    errors = [np.abs(covariance - limit).max() for covariance in found]
    assert 1.9 < errors[0] / errors[1] < 2.1
    centred = stationary_covariance(cells(dynamics, 2, "centred", power), 0.6, 1.3, 100)
    assert np.abs(centred - limit).max() < 0.01 * errors[1]


@pytest.mark.parametrize(("dynamics", "alpha", "uniform", "late"), [
    (UNDERDAMPED, 1.0, "+.0150", "-.0038"), (UNDERDAMPED, 1.4, "+.074", "+.018"),
    (UNDERDAMPED, 0.2, "+.0000", "-.0002"),
    (OVERDAMPED, 0.2, "+.0016", "-.0007"), (OVERDAMPED, 0.5, "+.034", "+.012"), (OVERDAMPED, 0.7, "+.117", "+.058"),
])  # fmt: skip
def test_the_importance_law_takes_variance_away(dynamics, alpha, uniform, late):
    """The table of the documentation: relative errors of the variance for many cells, friction 1."""
    for power, text in ((0.0, uniform), (IMPORTANCE_POWER, late)):
        digits = len(text.split(".")[1])
        assert abs(variance_error(cells(dynamics, power=power), alpha, 1.0, None) - float(text)) <= 0.5 * 10.0**-digits


@pytest.mark.parametrize(("dynamics", "alpha", "order"), [(OVERDAMPED, 0.01, 2), (UNDERDAMPED, 0.1, 3)])
def test_order_of_the_importance_law(dynamics, alpha, order):
    """Centred, as the left grid adds a term of order 1 over K."""
    kernel = cells(dynamics, 2, "centred", IMPORTANCE_POWER)
    errors = [abs(variance_error(kernel, a, 1.0, 16)) for a in (alpha, alpha / 2.0)]
    assert abs(np.log2(errors[0] / errors[1]) - order) < 0.05


# Relative errors of the variance, unit curvature: (alpha, method, digits as printed in the tables of the notes).
TABLE = [
    *((alpha, 1.0, cells(OVERDAMPED), 1, text) for alpha, text in ((0.05, ".0256"), (0.2, ".111"), (0.5, ".333"), (1.0, "1.00"))),  # noqa: E501
    *((alpha, 1.0, cells(OVERDAMPED, 1), 16, text) for alpha, text in ((0.05, ".0024"), (0.2, ".0233"), (0.5, ".192"), (1.0, "2.24"))),  # noqa: E501
    *((alpha, 1.0, cells(OVERDAMPED), 4, text) for alpha, text in ((0.05, ".0065"), (0.2, ".0308"), (0.5, ".119"), (1.0, ".60"))),  # noqa: E501
    *((alpha, 1.0, cells(OVERDAMPED), 16, text) for alpha, text in ((0.05, ".0017"), (0.2, ".0091"), (0.5, ".056"), (1.0, ".52"))),  # noqa: E501
    *((alpha, 1.0, continuous(OVERDAMPED), 1, text) for alpha, text in ((0.05, ".00002"), (0.2, ".0016"), (0.5, ".034"), (1.0, ".50"))),  # noqa: E501
    *((alpha, 1.0, cells(OVERDAMPED), None, text) for alpha, text in ((0.05, ".00002"), (0.2, ".0016"), (0.5, ".034"), (1.0, ".50"))),  # noqa: E501
    *((alpha, 2.0, cells(UNDERDAMPED), 1, text) for alpha, text in ((0.2, ".052"), (0.5, ".140"), (1.0, ".308"), (2.0, ".773"))),  # noqa: E501
    *((alpha, 2.0, cells(UNDERDAMPED, 1), 16, text) for alpha, text in ((0.2, ".0035"), (0.5, ".0137"), (1.0, ".061"), (2.0, ".480"))),  # noqa: E501
    # The notes print .0086 at 0.5; the exact value is .008546.
    *((alpha, 2.0, cells(UNDERDAMPED), 16, text) for alpha, text in ((0.2, ".0032"), (0.5, ".0085"), (1.0, ".023"), (2.0, ".119"))),  # noqa: E501
    *((alpha, 2.0, cells(UNDERDAMPED), None, text) for alpha, text in ((0.2, ".00000"), (0.5, ".0002"), (1.0, ".0046"), (2.0, ".074"))),  # noqa: E501
    *((alpha, 2.0, continuous(UNDERDAMPED), 1, text) for alpha, text in ((0.2, ".0002"), (0.5, ".0026"), (1.0, ".0205"), (2.0, ".167"))),  # noqa: E501
]  # fmt: skip


def test_tables_of_the_notes():
    for alpha, friction, kernel, K, text in TABLE:
        digits = len(text.split(".")[1])
        error = variance_error(kernel, alpha, friction, K)
        assert abs(error - float(text)) <= 0.5 * 10.0**-digits, (kernel, alpha, friction, K)


def largest_stable_step(kernel, friction=1.0, K=1):
    stable, unstable = 0.1, 8.0
    while unstable - stable > 1e-9:
        middle = 0.5 * (stable + unstable)
        if np.isinf(variance_error(kernel, middle, friction, K)):
            unstable = middle
        else:
            stable = middle
    return stable


@pytest.mark.parametrize(
    ("kernel", "friction", "K", "low", "high"),
    [
        (cells(OVERDAMPED), 1.0, 1, 2.0 - 1e-8, 2.0),
        (cells(OVERDAMPED), 1.0, 16, 1.55, 1.65),
        (cells(OVERDAMPED), 1.0, None, 1.55, 1.65),
        # 1.28 is the root of (1 - a + 15 a^2 / 32)^2 + a^4 (15 / 256) (1240 / 256) = 1; the notes print 1.27.
        (cells(OVERDAMPED, 1), 1.0, 16, 1.28 - 1e-6, 1.28 + 1e-6),
        (RECYCLED_PLAIN, 0.25, 1, 1.345, 1.355),
        (RECYCLED_PLAIN, 0.5, 1, 1.48, 1.50),
        (RECYCLED_PLAIN, 1.0, 1, 1.73, 1.745),
        (RECYCLED_PLAIN, 2.0, 1, 2.33, 2.345),
    ],
)
def test_stability_in_second_moments(kernel, friction, K, low, high):
    limit = largest_stable_step(kernel, friction, K)
    assert low <= limit <= high
    if K is not None and (kernel.scheme != Scheme.CELLS or K == 1):
        assert brute_force(kernel, 0.99 * limit, friction, K, 1.0) is not None
        assert brute_force(kernel, 1.01 * limit, friction, K, 1.0) is None


@pytest.mark.parametrize("friction", [0.25, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_recycled_is_exact_on_the_unit_gaussian(alpha, friction):
    covariance = stationary_covariance(RECYCLED, alpha, friction, None)
    np.testing.assert_allclose(np.diag(covariance), 1.0, rtol=0.0, atol=1e-12)
    assert abs(covariance[0, 1]) < 1e-12


D, CHAINS, STEPS = 40, 400, 400
CURVATURES = np.repeat([1.0, 0.4], D // 2)
CHAINED = [
    *((cells(OVERDAMPED, option, grid), 0.5, 1.0, K) for option, grid, K in
      ((2, "left", 1), (1, "left", 8), (1, "centred", 8), (2, "left", 2), (2, "centred", 2), (2, "left", 16))),
    (cells(OVERDAMPED, power=IMPORTANCE_POWER), 0.5, 1.0, 2), (cells(UNDERDAMPED, power=IMPORTANCE_POWER), 0.9, 0.6, 2),
    (cells(UNDERDAMPED, 2, "centred", IMPORTANCE_POWER), 1.4, 0.6, 16),
    (continuous(OVERDAMPED), 0.5, 1.0, 1),
    *((cells(UNDERDAMPED, option, grid), 0.9, friction, K) for friction in (0.6, 2.0) for option, grid, K in
      ((2, "left", 1), (1, "left", 8), (1, "centred", 8), (2, "left", 2), (2, "centred", 2), (2, "left", 16))),
    *((continuous(UNDERDAMPED), 0.9, friction, 1) for friction in (0.6, 2.0)),
    *((RECYCLED, 1.2, friction, 1) for friction in (1.0, 2.0)),
    (RECYCLED_PLAIN, 0.9, 0.6, 1),
]  # fmt: skip


def chain_moments(kernel, alpha, friction, K, exact):
    """Return second moments of ``CHAINS`` chains ``(chain, curvature, n, n)``, averaged over time and coordinates.

    The second moments obey a linear recursion, so that chains that start with the stationary ones keep them, whatever
    their law.  Coordinates share the midpoints and are not independent of each other; chains are.
    """
    n = len(exact[0])
    run = engine(kernel, D, gaussian)
    coordinates = Coordinates(np.zeros(D), np.sqrt(CURVATURES))
    rng = np.random.default_rng(97)
    # The overdamped covariance has a row of zeros.
    roots = [np.linalg.cholesky(S[:1, :1]) if kernel.dynamics == OVERDAMPED else np.linalg.cholesky(S) for S in exact]
    states = np.zeros((CHAINS, 4 * D + 2))
    gradients = np.empty((CHAINS, D))
    for chain in range(CHAINS):
        first = np.zeros((n, D))
        for half, root in enumerate(roots):
            part = slice(half * D // 2, (half + 1) * D // 2)
            first[: len(root), part] = root @ rng.standard_normal((len(root), D // 2))
        states[chain] = empty_state(first[-1] if n == 3 else first[0], first[1])
        gradients[chain] = run.evaluate(coordinates, states[chain])
        states[chain, :D] = first[0]
    keys = np.column_stack([np.full(CHAINS, 5), np.arange(CHAINS)]).astype(np.uint64)
    setting = TunedParameters(alpha, K, friction, coordinates, 1)
    moments = np.zeros((CHAINS, 2, n, n))
    for step in range(STEPS):  # the chains side by side, whose states are looked at after each step
        chunk = run.advance(setting, Ensemble(states, gradients, keys, step), 1)
        assert chunk.unstable.sum() == 0
        x = np.stack([states[:, :D], states[:, D : 2 * D], states[:, 3 * D : 4 * D]][:n], axis=1)
        for half in range(2):
            y = x[..., half * D // 2 : (half + 1) * D // 2]
            moments[:, half] += y @ y.transpose(0, 2, 1) / (STEPS * D // 2)
    return moments


@pytest.mark.statistical
@pytest.mark.parametrize(("kernel", "alpha", "friction", "K"), CHAINED)
def test_engine_has_the_exact_law(kernel, alpha, friction, K):
    exact = [stationary_covariance(kernel, alpha, friction, K, c) for c in CURVATURES[:: D // 2]]
    moments = chain_moments(kernel, alpha, friction, K, exact)
    error = moments.std(axis=0, ddof=1) / np.sqrt(CHAINS)
    assert error[:, 0, 0].max() < 0.01 * exact[1][0, 0]
    used = error > 0.0
    assert used.sum() == (2 if kernel.dynamics == OVERDAMPED else error.size)
    z = (moments.mean(axis=0) - exact)[used] / error[used]
    assert np.abs(z).max() < 4.5
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        # These laws are biased enough for the test to tell them from the target's.
        assert abs(exact[0][0, 0] - 1.0) / error[0, 0, 0] > 9.0
