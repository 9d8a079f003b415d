"""By how much a step shifts the weights of modes of unequal width: the estimate against quadrature in one dimension."""

import numpy as np
import pytest
from transfer_operator import Nodes, draws, operator, stationary

from pmm_mcmc.langevin.gaussian_law import log_mass_shift, variance_error
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme

LMC, ULMC = (Kernel(Scheme.CELLS, dynamics, 2, 0.0) for dynamics in (OVERDAMPED, UNDERDAMPED))
RLMC, DEFAULT = Kernel(Scheme.CONTINUOUS, UNDERDAMPED, 2, 0.0), Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0)
OVERLAPPING, APART = ((-1.0, 1.1), (1.2, 0.6)), ((-1.5, 1.0), (1.5, 0.5))


def shares(x, wells):
    """Return the share of each of two normals of equal weight in the density."""
    logs = np.array([-0.5 * ((x - centre) / sd) ** 2 - np.log(sd) for centre, sd in wells])
    return np.exp(logs - np.logaddexp(*logs))


def shifted(kernel, step, wells, K=1):
    """Return by how much the log odds of the second well are off, in the stationary law of the draws."""

    def drift(x):
        return sum(-s * (x - centre) / sd**2 for s, (centre, sd) in zip(shares(x, wells), wells, strict=True))

    nodes = Nodes.of(kernel, drift, fine=True)
    law = stationary(operator(nodes, kernel, drift, step, K, 1.0))
    if kernel.scheme == Scheme.RECYCLED:
        weight = (draws(nodes, kernel, step, 1.0) @ law) @ shares(nodes.x, wells)[1]
    else:
        weight = law @ shares(nodes.u, wells)[1]
    return np.log(weight / (1.0 - weight))


def predicted(kernel, step, wells, K=1):
    wide, narrow = log_mass_shift(kernel, step, 1.0, K, np.array([sd**-2.0 for _, sd in wells]))
    return narrow - wide


@pytest.mark.parametrize("step", [0.02, 0.1])
def test_the_shift_of_overdamped_weights_is_known_in_first_order(step):
    assert shifted(LMC, step, OVERLAPPING) == pytest.approx(predicted(LMC, step, OVERLAPPING), rel=0.05)
    assert predicted(LMC, step, OVERLAPPING) < 0.0, "the narrow well is too light, although it is too wide"
    if step == 0.02:
        assert shifted(LMC, step, APART) == pytest.approx(predicted(LMC, step, APART), rel=0.2)


@pytest.mark.parametrize(
    ("kernel", "step", "K"), [(LMC, 0.2, 4), (ULMC, 0.05, 1), (ULMC, 0.2, 1), (ULMC, 0.2, 4), (RLMC, 0.4, 1)]
)
def test_of_other_methods_it_is_estimated(kernel, step, K):
    assert 0.9 < shifted(kernel, step, OVERLAPPING, K) / predicted(kernel, step, OVERLAPPING, K) < 1.4
    # Between wells far apart the law of the velocity on the way counts, too.
    assert 1.0 < shifted(kernel, step, APART, K) / predicted(kernel, step, APART, K) < 5.5


@pytest.mark.parametrize("step", [0.2, 0.4])
@pytest.mark.parametrize("wells", [OVERLAPPING, APART])
def test_the_default_method_hardly_shifts_weights(step, wells):
    assert abs(shifted(DEFAULT, step, wells)) < 0.01 and abs(predicted(DEFAULT, step, wells)) < 0.01


def test_shifts_of_a_euler_step_in_closed_form():
    """Its variance is 1 / (l (1 - l h / 2)), where that is at most twice too large."""
    h, curvatures = 0.1, np.array([0.01, 1.0, 4.0, 9.9])
    exact = 0.5 * np.log((1.0 - 0.5 * h * curvatures) / (1.0 - 0.5 * h))
    np.testing.assert_allclose(log_mass_shift(LMC, h, 1.0, 1, curvatures), exact, rtol=5e-3, atol=1e-9)
    assert variance_error(LMC, h, 1.0, 1, 100.0) == np.inf
    # From curvature 10 on, errors count as 1.
    beyond = 0.5 * np.log(0.5 / (1.0 - 0.5 * h)) - 0.5 * np.log(100.0 / 10.0)
    assert log_mass_shift(LMC, h, 1.0, 1, np.array([100.0]))[0] == pytest.approx(beyond, rel=0.02)
