"""The paper's main claim without Monte Carlo: where ``K`` grows, steps grow with the root of what LMC needs.

Laws of chains on a double well, not log-concave, are vectors on nodes (``tests/support/one_variable.py``), which are
tested first against closed forms.  Nothing here is random.  ``benchmarks/frozen/claims.txt`` has the claims in full.
"""

import math
from functools import cache

import numpy as np
import pytest
from one_variable import START, TARGETS, Chain, Target
from scipy.stats import norm
from transfer_operator import uniform_on_cells

from pmm_mcmc.langevin.gaussian_law import stationary_covariance, step_maps
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Kernel, Scheme

pytestmark = pytest.mark.quick

UNIT, WELL = Target("N(0, 1)", lambda x: 0.5 * x**2, lambda x: -x), TARGETS["double well"]
FRICTION, EPS = 2.0, (0.032, 0.008, 0.002)
KS = {"LMC": lambda a: 1, "K = 4": lambda a: 4, "K = 1 / alpha": lambda a: math.ceil(1 / a), "no bound": lambda a: None}


def cells(dynamics, option=2):
    return Kernel(Scheme.CELLS, dynamics, option, 0.0)


def gaussian_distance(mean, variance):
    """Total variation distance of a Gaussian from the standard normal, by quadrature."""
    x = np.linspace(-12.0, 12.0, 24001)
    return 0.5 * np.abs(norm.pdf(x, mean, math.sqrt(variance)) - norm.pdf(x)).sum() * (x[1] - x[0])


@pytest.mark.parametrize(("dynamics", "alpha"), [(OVERDAMPED, 0.03), (OVERDAMPED, 0.001), (UNDERDAMPED, 0.01)])
def test_steps_of_lmc_on_a_gaussian_are_right(dynamics, alpha):
    """LMC keeps Gaussians Gaussian: mean and covariance follow a linear recursion. 0.001 takes powers of the matrix."""
    (step,) = step_maps(cells(dynamics), alpha, FRICTION, 1)
    M, N = step[:, :2], step[:, 2:]
    mean, S = np.array([START[0], 0.0]), np.diag([START[1] ** 2, float(dynamics == UNDERDAMPED)])
    limit = stationary_covariance(cells(dynamics), alpha, FRICTION, 1)[0, 0]
    expected, n, distances = [], 0, (0.1, 0.03, 0.01, 0.003)
    for eps in distances:
        if gaussian_distance(0.0, limit) > eps:
            expected.append(None)
            continue
        while gaussian_distance(mean[0], S[0, 0]) > eps:
            mean, S, n = M @ mean, M @ S @ M.T + N @ N.T, n + 1
        expected.append(n)
    found = Chain(UNIT, cells(dynamics), alpha, 1, FRICTION).steps(distances)
    for n, exact in zip(found, expected, strict=True):
        assert n == exact or abs(n - exact) <= max(1.0, 0.005 * exact)


def test_sums_over_cells_are_exact_for_polynomials():
    for K, n in ((7, 10), (10, 10), (11, 10), (200, 10), (10_000, 5)):
        index, weights = uniform_on_cells(K, n)
        for power in range(2 * min(n, K)):
            exact = np.mean((np.arange(K) / K) ** power)
            assert abs(weights @ (index / K) ** power - exact) < 1e-12, (K, power)


def test_an_unstable_step_never_arrives():
    assert Chain(UNIT, cells(OVERDAMPED), 2.5, 1, FRICTION).steps((0.1, 0.01)) == [None, None]


@cache
def steps(dynamics, name, alpha, eps=EPS):
    return Chain(WELL, cells(dynamics), alpha, KS[name](alpha), FRICTION).steps(eps)


def best(dynamics, name):
    """Fewest steps to each distance over step sizes a factor of the root of 2 apart, and the step size."""
    found, worse, j = [(math.inf, 0.0)] * len(EPS), 0, -4 if dynamics == UNDERDAMPED else 0
    while worse < 4:
        alpha = 2.0 ** (-0.25 * j)
        for i, n in enumerate(steps(dynamics, name, alpha)):
            if n is not None and n < found[i][0]:
                found[i], worse = (n, alpha), 0
        worse += math.isfinite(found[-1][0])
        j += 2
    return found


def order(dynamics, counts):
    """Power of the distance in steps, without the logarithm that the diffusion itself needs to forget its start."""
    alpha = 2.0**-6 if dynamics == OVERDAMPED else 2.0**-3
    time = alpha * np.array(steps(dynamics, "no bound", alpha))
    return -np.polyfit(np.log(EPS), np.log(np.array(counts) / time), 1)[0]


@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED])
def test_quadratic_speed_up_where_K_grows_and_none_in_the_order_where_it_does_not(dynamics):
    for name, expected, within in (("LMC", 1.0, 0.05), ("K = 1 / alpha", 0.5, 0.06), ("K = 4", 1.0, 0.2)):
        assert abs(order(dynamics, [n for n, _ in best(dynamics, name)]) - expected) < within, name


@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED])
def test_steps_grow_as_the_corollaries_say_where_the_step_size_is_theirs(dynamics):
    for name, power in (("LMC", 2.0), ("K = 1 / alpha", 1.0)):
        power /= 2.0 if dynamics == UNDERDAMPED else 1.0
        # The largest constant with which every distance is reached.
        constant = min(alpha / eps**power for (_, alpha), eps in zip(best(dynamics, name), EPS, strict=True))
        counts = [steps(dynamics, name, constant * eps**power, EPS[: i + 1])[i] for i, eps in enumerate(EPS)]
        assert abs(order(dynamics, counts) - power) < 0.06, name


def test_option_1_keeps_a_larger_bias():
    first, second = (Chain(WELL, cells(OVERDAMPED, option), 0.1, 64, FRICTION).floor() for option in (1, 2))
    assert 2.0 < first / second < 4.0
