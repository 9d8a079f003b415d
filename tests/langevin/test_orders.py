"""Orders of the bias in the step size, as data: by quadrature on a double well, by exact laws on Gaussians.

Nothing here is random.  The double well is ``F(x) = x^2 / 2 - log cosh(1.5 x)``, a mixture of two unit Gaussians at
-1.5 and 1.5: not log-concave, smooth, with ``E x^2 = 1 + 1.5^2``.  The stationary law of a step is found as a vector of
masses on nodes (``transfer_operator.py``).  On the Gaussian the same quadrature gives the exact laws, which is tested
first.
"""

import numpy as np
import pytest
from one_variable import TARGETS, WELL
from transfer_operator import Nodes, draws, operator, stationary

from pmm_mcmc.langevin.gaussian_law import stationary_covariance, variance_error
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme

pytestmark = [pytest.mark.quick, pytest.mark.longest]

FRICTION = 1.0
double_well = TARGETS["double well"].drift


def second_moment(method, drift, alpha, K):
    """``E x^2`` of the draws of a method, by quadrature."""
    nodes = Nodes.of(method, double_well, fine=True)
    law = stationary(operator(nodes, method, drift, alpha, K, FRICTION))
    if method.scheme == Scheme.RECYCLED:
        return draws(nodes, method, alpha, FRICTION) @ law @ nodes.x**2
    return law @ nodes.u**2


def kernel(scheme, dynamics, option=2, offset=0.0):
    return Kernel(scheme, dynamics, option, offset)


# (kernel, K, error allowed); Option 1 underdamped keeps four components of its noise path, exact for K up to 5
QUADRATURE = [
    (kernel(Scheme.CELLS, OVERDAMPED), 3, 1e-10),
    (kernel(Scheme.CELLS, OVERDAMPED), 40, 1e-10),
    (kernel(Scheme.CELLS, OVERDAMPED, 2, 0.5), 3, 1e-10),
    (kernel(Scheme.CELLS, OVERDAMPED), None, 1e-10),
    (kernel(Scheme.CONTINUOUS, OVERDAMPED), 1, 1e-10),
    (kernel(Scheme.CELLS, OVERDAMPED, 1), 3, 1e-9),
    (kernel(Scheme.CELLS, UNDERDAMPED), 3, 1e-10),
    (kernel(Scheme.CELLS, UNDERDAMPED), 40, 1e-10),
    (kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.5), 3, 1e-10),
    (kernel(Scheme.CELLS, UNDERDAMPED), None, 1e-10),
    (kernel(Scheme.CONTINUOUS, UNDERDAMPED), 1, 1e-10),
    (kernel(Scheme.CELLS, UNDERDAMPED, 1), 3, 1e-6),
    (kernel(Scheme.CELLS, UNDERDAMPED, 1, 0.5), 12, 1e-6),
    (kernel(Scheme.RECYCLED, HARMONIC), 1, 1e-7),
]


@pytest.mark.parametrize(("method", "K", "allowed"), QUADRATURE)
def test_quadrature_gives_the_exact_laws_of_the_gaussian(method, K, allowed):
    # The recycled scheme is exact at curvature 1, where nothing is left to its midpoints.
    curvature = 0.5 if method.scheme == Scheme.RECYCLED else 1.0
    exact = stationary_covariance(method, 0.4, FRICTION, K, curvature)
    of_draws = 2 if method.scheme == Scheme.RECYCLED else 0
    found = second_moment(method, lambda x: -curvature * x, 0.4, K)
    assert abs(found - exact[of_draws, of_draws]) < allowed


POISSON, CENTRED, FIRST = (kernel(Scheme.CELLS, OVERDAMPED, *rest) for rest in ((), (2, 0.5), (1,)))
KINETIC = kernel(Scheme.CELLS, UNDERDAMPED)
SMALL, MEDIUM, LARGE = (0.01, 0.005, 0.0025), (0.05, 0.025, 0.0125), (0.4, 0.2, 0.1)
# (method, kernel, K of alpha, step sizes, order) of E x^2 on the double well
DOUBLE_WELL = [
    ("LMC", POISSON, lambda a: 1, SMALL, 1),
    ("Option 2, K = 4", POISSON, lambda a: 4, SMALL, 1),
    ("Option 2, K = 1 / (2 alpha)", POISSON, lambda a: round(0.5 / a), MEDIUM, 2),
    ("Option 2, centred, K = 4", CENTRED, lambda a: 4, SMALL, 2),
    ("Option 1, K = 1 / (2 alpha)", FIRST, lambda a: round(0.5 / a), MEDIUM, 2),
    # Order 3 on Gaussians, where the terms in alpha^2 cancel; 2 in general.
    ("RLMC", kernel(Scheme.CONTINUOUS, OVERDAMPED), lambda a: 1, SMALL, 2),
    ("ULMC", KINETIC, lambda a: 1, (0.1, 0.05), 1),
    ("underdamped, Option 2, K = 4", KINETIC, lambda a: 4, (0.1, 0.05), 1),
    ("underdamped, Option 2, K = 1.6 / alpha", KINETIC, lambda a: round(1.6 / a), LARGE, 2),
    ("underdamped, Option 2, K without bound", KINETIC, lambda a: None, LARGE, 5),
    ("underdamped RLMC", kernel(Scheme.CONTINUOUS, UNDERDAMPED), lambda a: 1, (0.2, 0.1), 3),
]


@pytest.mark.parametrize(("method", "K", "alphas", "order"), [row[1:] for row in DOUBLE_WELL], ids=[row[0] for row in DOUBLE_WELL])  # noqa: E501  # fmt: skip
def test_order_on_the_double_well(method, K, alphas, order):
    errors = [abs(second_moment(method, double_well, alpha, K(alpha)) - (1.0 + WELL**2)) for alpha in alphas]
    slope = np.polyfit(np.log(alphas), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.15, (slope, errors)


def test_fixed_K_divides_the_bias_of_lmc():
    """Check that the left grid keeps the bias of LMC divided by K."""
    for method, alpha in ((POISSON, 0.002), (KINETIC, 0.05)):
        plain, four = (second_moment(method, double_well, alpha, K) - (1.0 + WELL**2) for K in (1, 4))
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
