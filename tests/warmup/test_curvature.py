"""Power iteration for the steepest curvature: on Gaussians, where it is an eigenvalue, and where gradients fail.

Fixed seeds; the margins are what the iterations leave, not chance.
"""

import numpy as np
import pytest
from numba import cfunc
from reference import engine
from warm_ups import warm_up

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.step_size import allowed_error, safe_step

pytestmark = pytest.mark.quick

POINTS, ITERATIONS = 8, 4


class Gaussian:
    """A rotated Gaussian of given precisions, with draws; counts the gradients that are asked for."""

    def __init__(self, precisions, n=50, seed=1):
        rng = np.random.default_rng(seed)
        d = len(precisions)
        rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
        self.hessian = (rotation * precisions) @ rotation.T
        self.position = (rng.normal(size=(n, d)) / np.sqrt(np.abs(precisions))) @ rotation.T
        self.gradient = -self.position @ self.hessian
        self.calls = 0

    def gradient_at(self, y):
        self.calls += 1
        return -self.hessian @ y


@pytest.mark.parametrize("d", [2, 10, 300])
@pytest.mark.parametrize(("steepest", "calls"), [(30.0, 1), (3.0, 3)])
def test_the_largest_eigenvalue_is_found(d, steepest, calls):
    target, local = Gaussian(np.r_[steepest, np.linspace(0.5, 1.5, d - 1)]), LocalCurvature()
    for _ in range(calls):
        found = local(target.position, target.gradient, target.gradient_at, False)
    assert found == pytest.approx(steepest, rel=1e-5)
    assert local.evaluations == target.calls == calls * POINTS * ITERATIONS


def test_it_goes_on_from_the_direction_found_last():
    # Too close to each other for one call.
    target, local = Gaussian(np.r_[1.1, np.ones(99)], n=8), LocalCurvature()
    found = [local(target.position, target.gradient, target.gradient_at, False) for _ in range(10)]
    assert np.all(np.diff(found) > -1e-6) and found[0] < 1.08
    assert found[-1] == pytest.approx(1.1, rel=1e-4)


@pytest.mark.parametrize(("precisions", "remainder", "expected"), [
    ([1.0, 0.4, 0.7], True, 0.6), ([4.0, 0.4, 0.7], True, 3.0), ([4.0, -9.0, 0.7], False, 9.0), ([1.0, 1.0], True, 0.0)
])  # fmt: skip
def test_the_remainder_is_what_the_linear_part_leaves(precisions, remainder, expected):
    target, local = Gaussian(np.array(precisions)), LocalCurvature()
    for _ in range(4):
        found = local(target.position, target.gradient, target.gradient_at, remainder)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_it_is_the_median_of_places_of_unequal_curvature():
    position = np.c_[np.arange(8.0), np.zeros(8)]

    def gradient_at(y):
        return -np.array([0.1 * (y[0] - round(y[0])), (1.0 + round(y[0])) ** 2 * y[1]])

    gradient = np.array([gradient_at(y) for y in position])
    gradient[0, 1] = 1.0  # something to start from along the second axis
    found = LocalCurvature()
    first = found(position, gradient, gradient_at, False)
    gradient[0, 1] = 0.0
    assert np.isfinite(first)
    assert found(position, gradient, gradient_at, False) == pytest.approx(20.5, rel=1e-3)  # between 16 and 25


def test_values_that_are_not_finite_are_left_out():
    target, local = Gaussian(np.r_[5.0, 1.0, 0.5]), LocalCurvature()

    def gradient_at(y):
        value = target.gradient_at(y)
        return value * np.nan if target.calls % 3 == 0 else value

    for _ in range(4):
        found = local(target.position, target.gradient, gradient_at, False)
        assert np.isfinite(found) and 0.0 <= found <= 5.0 * (1.0 + 1e-5)
    assert local.evaluations == target.calls
    # And it finds its way back where they are finite again.
    assert local(target.position, target.gradient, target.gradient_at, False) == pytest.approx(5.0, rel=1e-3)


def test_nothing_finite_is_no_curvature():
    target, local = Gaussian(np.ones(3)), LocalCurvature()
    assert local(target.position, target.gradient, lambda y: np.full(3, np.nan), False) == 0.0
    assert local(np.zeros((1, 3)), np.zeros((1, 3)), target.gradient_at, False) == pytest.approx(1.0, rel=1e-6)


# -- in a warm-up ------------------------------------------------------------------------------------------------------


@cfunc(SIGNATURE)
def one_steep_direction(x, gradient, table, n):
    # Unit curvature, but 6 along the diagonal, which no diagonal scale whitens; counts its calls.
    table[0] += 1
    along = 0.0
    for i in range(n):
        along += x[i] / np.sqrt(n)
    lp = -2.5 * along * along
    for i in range(n):
        lp -= 0.5 * x[i] * x[i]
        gradient[i] = -x[i] - 5.0 * along / np.sqrt(n)
    return lp


@pytest.mark.parametrize("options", [{}, {"scheme": "recycled"}], ids=["default", "recycled"])
@pytest.mark.parametrize("given", [True, False])
def test_a_warm_up_finds_the_steep_direction_and_counts_what_it_took(options, given):
    d, calls = 100, np.zeros(2, np.int64)
    scale = {"scaling": np.ones(d)} if given else {}
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped", **options, **scale)
    rng = np.random.default_rng(2)
    starts = rng.normal(size=(4, d))
    found = warm_up(engine(arguments.kernel, d, one_steep_direction, calls), arguments, starts, length=1000, rng=rng)
    assert found.warmup.n_grad > 0 and found.warmup.n_grad % (POINTS * ITERATIONS) == 0
    # Those of updates are shared out evenly, rounded up.
    assert 0 <= found.n_grad.sum() - calls[0] < len(starts)
    if given:
        expected = safe_step(arguments, found.tuned.friction, 5.0 if options else 6.0, allowed_error(0.05, d))
        assert found.tuned.step_size == pytest.approx(expected, rel=0.02)
