"""Swaps, barriers and ladders against Gaussians whose barrier is known.  Seeds are fixed; |z| < 4.5 (7e-6 each)."""

import numpy as np
import pytest

from pmm_mcmc.tempering.path import (
    barriers,
    equal_rejection,
    expected_rejections,
    pairs_for,
    step_of_ess,
    swap_log_ratio,
)


def values(betas, d, n, rng, ratio=10.0):
    """``l`` of independent draws of normals whose precision goes from 1 to ``ratio``, at each temperature."""
    precision = 1.0 + betas * (ratio - 1.0)
    return [-0.5 * (ratio - 1.0) / p * rng.chisquare(d, n) for p in precision]


def test_a_swap_is_accepted_by_the_ratio_of_both_densities():
    rng = np.random.default_rng(1)
    x, betas = rng.standard_normal((7, 3)), np.array([0.0, 0.3, 1.0])
    log_q, log_gamma = -0.1 * x**2, -3.0 * (x - 1.0) ** 2

    def joint(order):
        return sum((1.0 - b) * log_q[:, i] + b * log_gamma[:, i] for b, i in zip(betas, order, strict=True))

    ratio = swap_log_ratio(betas, log_gamma - log_q)
    np.testing.assert_allclose(ratio[:, 0], joint([1, 0, 2]) - joint([0, 1, 2]))
    np.testing.assert_allclose(ratio[:, 1], joint([0, 2, 1]) - joint([0, 1, 2]))


def test_a_draw_of_the_reference_outside_the_target_is_never_swapped():
    ratio = swap_log_ratio(np.array([0.0, 0.5, 1.0]), np.array([[-np.inf, -2.0, -1.0]]))
    assert ratio[0, 0] == -np.inf and np.isfinite(ratio[0, 1])


@pytest.mark.parametrize(("d", "known"), [(1, 0.73), (10, 2.83), (100, 9.17)])
def test_the_barrier_is_the_known_one_on_fine_and_on_coarse_ladders(d, known):
    rng = np.random.default_rng(d)
    first = np.linspace(0.0, 1.0, 60) ** 2
    fine = expected_rejections(first, values(first, d, 1500, rng))
    assert barriers(fine).sum() == pytest.approx(known, rel=0.02)
    betas = equal_rejection(first, fine, pairs_for(known))
    coarse = expected_rejections(betas, values(betas, d, 1500, rng))
    # As many rungs as are used: the sum of rejections is below the barrier, the sum of its parts is near.
    assert coarse.sum() < 0.97 * known
    assert barriers(coarse).sum() == pytest.approx(known, rel=0.05)
    assert np.ptp(coarse) < 0.05


def test_a_ladder_keeps_its_ends_and_rises_even_where_nothing_is_rejected():
    ladder = equal_rejection(np.array([0.0, 0.2, 0.6, 1.0]), np.array([0.4, 0.0, 0.0]), 5)
    assert ladder[0] == 0.0 and ladder[-1] == 1.0 and (np.diff(ladder) > 0.0).all()
    assert equal_rejection(np.array([0.0, 1.0]), np.zeros(1), 2) == pytest.approx([0.0, 0.5, 1.0])


def test_half_of_the_swaps_are_accepted_on_the_ladder_that_a_barrier_asks_for():
    assert [pairs_for(barrier) for barrier in (0.0, 0.7, 1.2, 5.0)] == [2, 2, 3, 10]


def test_steps_of_annealing_leave_the_share_that_is_asked_for():
    log_ratio = 30.0 * np.random.default_rng(4).standard_normal(4000)
    step = step_of_ess(log_ratio, 1.0, 0.5)
    weights = np.exp(step * log_ratio)
    assert weights.sum() ** 2 / (weights**2).sum() / 4000 == pytest.approx(0.5, abs=0.01)
    assert step_of_ess(1e-3 * log_ratio, 0.7, 0.5) == 0.7
    tiny = step_of_ess(1e9 * log_ratio, 1.0, 0.5)
    assert tiny == pytest.approx(1e-9 * step, rel=0.01)
