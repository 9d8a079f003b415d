"""The laws of the midpoints and their weights.

The only random test is a chi-square with p > 1e-6 (the false-alarm rate), at a fixed seed.
"""

import itertools

import numpy as np
import pytest
from reference import cell_midpoint, uniform_midpoint
from scipy.stats import chi2

from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED
from pmm_mcmc.langevin.midpoints import (
    IMPORTANCE_POWER,
    cell_weight,
    continuous_weight,
    inverse_probability,
    next_cell,
    one_cell,
)

pytestmark = pytest.mark.quick

NAMES = {OVERDAMPED: "overdamped", UNDERDAMPED: "underdamped", HARMONIC: "harmonic"}
ALMOST_ONE = 1.0 - 2.0**-53


@pytest.mark.parametrize("K", [1, 2, 3, 7, 16, 1000])
def test_option_2_marks_every_cell_with_the_same_probability(K):
    uniforms = (np.arange(20 * K) + 0.5) / (20 * K)
    cells = [int(one_cell(u, K, 0.0)) for u in uniforms]
    np.testing.assert_array_equal(np.bincount(cells, minlength=K), np.full(K, 20))
    assert one_cell(0.0, K, 0.0) == 0
    assert one_cell(ALMOST_ONE, K, 0.0) == K - 1
    assert inverse_probability(3.0, K, 0.0) == K


@pytest.mark.parametrize("K", [1, 2, 3, 7, 16, 1000])
def test_the_importance_law_marks_cells_as_often_as_its_weight_says(K):
    cell = np.arange(float(K))
    probability = 1.0 / inverse_probability(cell, K, IMPORTANCE_POWER)
    assert abs(probability.sum() - 1.0) < 1e-12
    # Cell i is what numbers between these lead to; the last one ends at 1.
    begin = (cell / K) ** (1.0 + IMPORTANCE_POWER)
    np.testing.assert_allclose(np.diff(np.append(begin, 1.0)), probability, rtol=1e-9, atol=0.0)
    for i in range(K):
        assert one_cell(begin[i] + 1e-9 * probability[i], K, IMPORTANCE_POWER) == i
        assert one_cell(begin[i] + (1.0 - 1e-9) * probability[i], K, IMPORTANCE_POWER) == i
    assert one_cell(0.0, K, IMPORTANCE_POWER) == 0
    assert one_cell(ALMOST_ONE, K, IMPORTANCE_POWER) == K - 1


@pytest.mark.parametrize("K", [2, 3, 16, 64])
@pytest.mark.parametrize("cell", [-1, 0, 5])
def test_option_1_gaps_are_geometric(K, cell):
    for gap in range(1, K):
        # P(gap > g) = (1 - 1/K)^g
        boundary = -np.expm1(gap * np.log1p(-1.0 / K))
        assert next_cell(cell, boundary * (1.0 - 1e-9), K) == cell + gap
        assert next_cell(cell, boundary * (1.0 + 1e-9), K) == cell + gap + 1
    assert next_cell(cell, 0.0, K) == cell + 1
    assert next_cell(cell, ALMOST_ONE, K) >= K


def test_option_1_with_one_cell_marks_it_for_certain():
    for u in (0.0, 0.5, ALMOST_ONE):
        assert next_cell(-1, u, 1) == 0
        assert next_cell(0, u, 1) >= 1


def test_option_1_marks_cells_independently():
    K, steps = 4, 40_000
    rng = np.random.default_rng(20240711)
    patterns = np.zeros((2,) * K)
    for _ in range(steps):
        marks = [0] * K
        cell = next_cell(-1, rng.random(), K)
        while cell < K:
            marks[int(cell)] = 1
            cell = next_cell(cell, rng.random(), K)
        patterns[tuple(marks)] += 1
    expected = np.zeros_like(patterns)
    for marks in itertools.product((0, 1), repeat=K):
        expected[marks] = steps * np.prod([1.0 / K if mark else 1.0 - 1.0 / K for mark in marks])
    statistic = np.sum((patterns - expected) ** 2 / expected)
    assert chi2.sf(statistic, patterns.size - 1) > 1e-6


@pytest.mark.parametrize("dynamics", NAMES)
@pytest.mark.parametrize("K", [1, 2, 5, 64])
def test_weight_of_a_cell_is_the_paper_s(dynamics, K):
    alpha, friction = 0.8, 1.3
    flow = getattr(flows, NAMES[dynamics])
    for i in range(K):
        weight = cell_weight(flow(alpha * (K - 1 - i) / K, friction), flow(alpha / K, friction), K)
        np.testing.assert_allclose(weight, cell_midpoint(dynamics, friction, alpha, K, i, 0.0)[1], rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("dynamics", NAMES)
def test_continuous_weight_is_the_limit_of_the_cells(dynamics):
    alpha, friction, time = 0.8, 1.3, 0.3
    flow = getattr(flows, NAMES[dynamics])
    weight = continuous_weight(flow(alpha - time, friction), alpha, dynamics != OVERDAMPED)
    np.testing.assert_allclose(weight, uniform_midpoint(dynamics, friction, alpha, time)[1], rtol=0.0, atol=1e-14)
    errors = []
    for K in (1000, 2000):  # the cell centred at `time`: the error falls with K^2
        i = time * K / alpha - 0.5
        cell = cell_weight(flow(alpha * (K - 1 - i) / K, friction), flow(alpha / K, friction), K)
        errors.append(np.abs(np.subtract(cell, weight)).max())
    assert errors[1] < 1e-6
    assert dynamics == OVERDAMPED or abs(errors[0] / errors[1] - 4.0) < 0.1
