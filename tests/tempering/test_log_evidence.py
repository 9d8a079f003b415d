"""Log evidence from independent draws of Gaussians whose evidence is known.  Seeds are fixed; |z| < 4.5 (7e-6 each)."""

import numpy as np
import pytest

from pmm_mcmc.tempering.ladder import LadderSums, jackknife
from pmm_mcmc.tempering.path import equal_rejection, expected_rejections

D, RATIO, TRUE = 10, 10.0, -5.0 * np.log(10.0)


def log_ratios(betas, shape, rng):
    """``l`` of independent draws of normals whose precision goes from 1 to 10."""
    precision = 1.0 + betas * (RATIO - 1.0)
    return -0.5 * (RATIO - 1.0) / precision * rng.chisquare(D, (*shape, len(betas)))


@pytest.fixture(scope="module")
def betas():
    first = np.linspace(0.0, 1.0, 40) ** 2
    rejections = expected_rejections(first, list(log_ratios(first, (800,), np.random.default_rng(0)).T))
    return equal_rejection(first, rejections, 6)


def sums_of(betas, units, n, rng):
    sums = LadderSums.start(betas, log_ratios(betas, (200,), rng), units)
    sums.add(np.arange(units), log_ratios(betas, (n, units), rng))
    return sums


@pytest.mark.parametrize("which", ["bennett", "forward", "backward"])
def test_estimates_are_right_within_their_errors_and_the_errors_are_right(betas, which):
    rng, found = np.random.default_rng(1), []
    for _ in range(150):
        evidence = sums_of(betas, 20, 100, rng).evidence()
        found.append((getattr(evidence, which), getattr(evidence, f"{which}_se")))
    value, error = np.array(found).T
    z = (value - TRUE) / error
    # The mean of 150 runs, which sees any bias that matters beside an error; their spread, to its own error.
    assert abs(value.mean() - TRUE) < 4.5 * value.std() / np.sqrt(len(value)) + 0.1 * value.std()
    assert abs(np.log(z.std())) < 4.5 / np.sqrt(2 * len(z))
    assert (np.abs(z) < 3.0).mean() > 0.95


def test_bennetts_error_is_the_smallest(betas):
    evidence = sums_of(betas, 50, 200, np.random.default_rng(2)).evidence()
    assert evidence.bennett_se < min(evidence.forward_se, evidence.backward_se)
    assert evidence.gap == pytest.approx(evidence.forward - evidence.backward)
    assert abs(evidence.gap) < 4.5 * evidence.gap_se


def test_sums_do_not_depend_on_how_draws_come_in(betas):
    rng = np.random.default_rng(4)
    start, values = log_ratios(betas, (50,), rng), log_ratios(betas, (30, 4), rng)
    at_once, in_parts = (LadderSums.start(betas, start, 4) for _ in range(2))
    at_once.add(np.arange(4), values)
    for row in values:
        in_parts.add(np.arange(4), row[None])
    np.testing.assert_allclose(at_once.evidence(), in_parts.evidence(), rtol=1e-10)


def test_draws_where_the_target_is_nought_count_as_nought(betas):
    rng = np.random.default_rng(5)
    values = log_ratios(betas, (400, 20), rng)
    outside = rng.random((400, 20)) < 0.3
    values[..., 0][outside] = -np.inf
    sums = LadderSums.start(betas, values[:, 0], 20)
    sums.add(np.arange(20), values)
    evidence = sums.evidence()
    for which in ("bennett", "forward"):
        error = 4.5 * getattr(evidence, f"{which}_se")
        assert abs(getattr(evidence, which) - TRUE - np.log1p(-outside.mean())) < error


def test_a_draw_far_out_in_a_tail_of_the_prior_does_not_spoil_the_evidence(betas):
    rng = np.random.default_rng(8)
    start, values = log_ratios(betas, (200,), rng), log_ratios(betas, (100, 20), rng)
    start[3, 0] = -1e20
    sums = LadderSums.start(betas, start, 20)
    sums.add(np.arange(20), values)
    evidence = sums.evidence()
    assert abs(evidence.bennett - TRUE) < 4.5 * evidence.bennett_se < 1.0


def test_intervals_of_few_copies_are_as_long_as_student_has_them(betas):
    rng, inside = np.random.default_rng(7), []
    for _ in range(400):
        evidence = sums_of(betas, 4, 100, rng).evidence()
        inside.append(abs(evidence.forward - TRUE) < 1.96 * evidence.forward_se)
    # 0.88 without Student's quantile; the share's own error is .011.
    assert np.mean(inside) > 0.95 - 4.5 * 0.011 and np.mean(inside) < 0.95 + 3.0 * 0.011


def test_the_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(6).standard_normal(30)
    left_out = (x.sum() - x) / 29
    assert jackknife(left_out) == pytest.approx(x.std(ddof=1) / np.sqrt(30))
    assert np.isnan(jackknife(left_out[:1]))
