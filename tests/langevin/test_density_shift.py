"""The shift of draws between places of unequal curvature: in closed form, and beyond the steps that are stable."""

import numpy as np
import pytest

from pmm_mcmc.langevin.gaussian_law import density_shift, variance_error
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme

EULER = Kernel(Scheme.CELLS, OVERDAMPED, 2, 0.0)
RECYCLED = Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0)


def test_of_langevin_monte_carlo_it_is_a_logarithm():
    """The variance is off by 1 / (1 - h c / 2) - 1, whose integral over log c is -log(1 - h c / 2)."""
    h, c = 0.2, np.array([0.05, 0.5, 1.0, 2.0, 4.0])
    exact = -0.5 * np.log((1.0 - h * c / 2.0) / (1.0 - h / 2.0))
    np.testing.assert_allclose(density_shift(EULER, h, 1.0, 1, c), exact, rtol=0.01, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "h", "K"),
    [(RECYCLED, 0.8, 1), (Kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.0), 0.5, 16), (EULER, 0.2, 1)],
)
def test_its_slope_is_half_the_error_of_the_variance(kernel, h, K):
    c = np.array([0.3, 1.0, 2.0, 3.0])
    up, down = (density_shift(kernel, h, 1.0, K, c * np.exp(side)) for side in (0.05, -0.05))
    error = np.array([variance_error(kernel, h, 1.0, K, one) for one in c])
    np.testing.assert_allclose((up - down) / 0.1, 0.5 * error, atol=0.1 * np.abs(error).max())


def test_beyond_the_steepest_place_the_variance_counts_as_twice_what_it_is():
    far = density_shift(RECYCLED, 1.0, 1.0, 1, np.array([1e3, 1e4]))
    assert far[1] - far[0] == pytest.approx(0.5 * np.log(10.0), rel=1e-9)


def test_a_curvature_that_is_flat_or_negative_is_that_of_the_flattest():
    flat = density_shift(RECYCLED, 1.0, 1.0, 1, np.array([-3.0, 0.0, 1.0 / 64.0]))
    assert np.ptp(flat) == 0.0
