"""Distances of a comparison: exact values, Stein's identity, and floors that hold.

Statistical tests are at fixed seeds.  False-alarm rates: the floor of the Wasserstein distance, 1e-4 (binomial, at
twice the nominal rate, for the quantile itself is of 30 repeats); the floor of the Stein discrepancy, 1e-5 (z-score).
"""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from pmm_mcmc.workbench.comparison.distances import (
    floored_wasserstein,
    sliced_wasserstein,
    spaced,
    stein_discrepancy,
    stein_kernel,
)


def test_sliced_wasserstein_of_a_shift_is_its_projection():
    rng = np.random.default_rng(2)
    x, shift = rng.normal(size=(200, 4)), np.array([0.3, -1.0, 0.0, 2.0])
    directions = rng.normal(size=(7, 4))
    expected = np.mean(np.abs(directions @ shift))
    assert sliced_wasserstein(x, x + shift, directions) == pytest.approx(expected, rel=1e-10)
    assert sliced_wasserstein(x, x[::-1], directions) == pytest.approx(0.0, abs=1e-14)


def score_of_mixture(x):
    """Score of .7 N(-1, 1) + .3 N(1.5, 1)."""
    a, b = 0.7 * norm.pdf(x, -1), 0.3 * norm.pdf(x, 1.5)
    return -(a * (x + 1) + b * (x - 1.5)) / (a + b)


def test_stein_kernel_has_expectation_zero_under_the_posterior():
    y = 0.4

    def integrand(x):
        kernel = stein_kernel(np.array([[x], [y]]), score_of_mixture(np.array([[x], [y]])))
        return kernel[0, 1] * (0.7 * norm.pdf(x, -1) + 0.3 * norm.pdf(x, 1.5))

    value, _ = quad(integrand, -12, 12, epsabs=1e-11)
    assert abs(value) < 1e-9


def test_stein_kernel_is_its_definition_in_several_dimensions():
    rng = np.random.default_rng(3)
    x, score = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))

    def k(a, b):
        return (1.0 + np.sum((a - b) ** 2)) ** -0.5

    h, unit = 1e-4, np.eye(3)
    by_x = np.array([(k(x[0] + h * e, x[1]) - k(x[0] - h * e, x[1])) / (2 * h) for e in unit])
    mixed = sum(
        (
            k(x[0] + h * e, x[1] + h * e)
            - k(x[0] + h * e, x[1] - h * e)
            - k(x[0] - h * e, x[1] + h * e)
            + k(x[0] - h * e, x[1] - h * e)
        )
        / (4 * h * h)
        for e in unit
    )
    expected = score[0] @ score[1] * k(*x) - score[0] @ by_x + score[1] @ by_x + mixed
    kernel = stein_kernel(x, score)
    assert kernel[0, 1] == pytest.approx(expected, abs=1e-6)
    assert kernel[1, 0] == pytest.approx(kernel[0, 1], rel=1e-12)
    assert kernel[0, 0] == pytest.approx(score[0] @ score[0] + 3.0, rel=1e-12)


def test_spaced_draws_cover_the_run():
    draws = np.arange(20.0).reshape(2, 10, 1)
    assert spaced(draws, 20).ravel().tolist() == list(range(20))
    kept = spaced(draws, 5).ravel()
    assert kept[0] == 0 and kept[-1] == 19 and len(kept) == 5


@pytest.mark.statistical
def test_exact_draws_stay_below_the_floor_and_wrong_ones_do_not():
    rng = np.random.default_rng(4)
    above, wrong, repeats = 0, [], 15
    for _ in range(repeats):
        reference, draws = rng.normal(size=(1000, 3)), rng.normal(size=(2, 100, 3))
        found = floored_wasserstein(draws, reference, 200.0, rng)
        above += found.value > found.floor
        wrong.append(floored_wasserstein(draws + 0.4, reference, 200.0, rng))
    assert above <= binom.ppf(1 - 1e-4, repeats, 0.10)
    assert all(found.value > found.floor for found in wrong)


def test_fewer_effective_draws_raise_the_floor():
    rng = np.random.default_rng(5)
    reference, draws = rng.normal(size=(2000, 2)), rng.normal(size=(1, 500, 2))
    few, many = (floored_wasserstein(draws, reference, n, np.random.default_rng(1)) for n in (20.0, 500.0))
    assert few.value == many.value
    assert few.floor > 2 * many.floor


@pytest.mark.statistical
def test_stein_floor_is_what_exact_draws_show():
    rng = np.random.default_rng(6)
    ratios = []
    for _ in range(200):
        draws = rng.normal(size=(2, 50, 3))
        found = stein_discrepancy(draws, -draws, 100.0)
        ratios.append((found.value / found.floor) ** 2)
    z = (np.mean(ratios) - 1.0) / (np.std(ratios, ddof=1) / np.sqrt(len(ratios)))
    assert abs(z) < norm.isf(0.5e-5)


def test_stein_discrepancy_sees_wrong_scale_and_needs_no_reference():
    draws = np.random.default_rng(7).normal(size=(4, 500, 2))
    right = stein_discrepancy(draws, -draws, 2000.0)
    wrong = stein_discrepancy(1.3 * draws, -1.3 * draws, 2000.0)
    assert right.value < 1.5 * right.floor
    assert wrong.value > 2.0 * wrong.floor
