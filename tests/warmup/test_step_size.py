"""The automatic step and its midpoints, against the exact law on Gaussians: nothing is random."""

import numpy as np
import pytest
from tuning_cases import BIAS_TARGET, RECYCLED, UNADJUSTED, settings_of

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.warmup import step_size
from pmm_mcmc.warmup.step_size import (
    allowed_error,
    fixed_setting,
    follows_curvature,
    longest_step,
    midpoint_count,
    safe_step,
    step_for_acceptance,
)
from pmm_mcmc.warmup.thresholds import THRESHOLDS

pytestmark = pytest.mark.quick

CURVATURES = 1.05 ** np.arange(-120.0, 241.0, 24.0)  # friction / sqrt(L) is then on the grid of remembered steps


@pytest.mark.parametrize("case", [*UNADJUSTED, RECYCLED], ids=str)
def test_safe_step_falls_with_curvature_and_respects_the_largest(case):
    arguments = settings_of(case)
    steps = [safe_step(arguments, 1.0, L, arguments.target_bias) for L in CURVATURES]
    assert np.all(np.diff(steps) <= 1e-12 * np.array(steps[1:])) and steps[0] > 3 * steps[-1] > 0
    assert max(steps) <= METHODS[case[0]].largest_step
    np.testing.assert_allclose(
        safe_step(arguments, 1.0, 1e-8, arguments.target_bias), METHODS[case[0]].largest_step, rtol=1e-6
    )


@pytest.mark.parametrize("case", UNADJUSTED, ids=str)
def test_safe_step_has_the_bias_that_is_allowed_and_no_less(case):
    arguments = settings_of(case)
    K = arguments.fixed_K or (32 if arguments.option == 1 else None)
    checked = 0
    for L in CURVATURES:
        step = safe_step(arguments, 1.0, L, arguments.target_bias)
        assert abs(variance_error(arguments.kernel, step, 1.0, K, L)) <= BIAS_TARGET * (1 + 1e-9)
        if step < METHODS[case[0]].largest_step:
            assert abs(variance_error(arguments.kernel, 1.001 * step, 1.0, K, L)) > BIAS_TARGET
            checked += 1
    assert checked >= 8


def test_safe_step_of_the_recycled_scheme_holds_at_both_ends_of_the_curvature():
    arguments = settings_of(RECYCLED)
    for slope in CURVATURES:
        step = safe_step(arguments, 1.0, slope, arguments.target_bias)

        def worst(step, slope=slope):
            ends = (1.0 + slope, max(1.0 - slope, 1.0 / (1.0 + slope)))
            return max(abs(variance_error(arguments.kernel, step, 1.0, 1, end)) for end in ends)

        assert worst(step) <= BIAS_TARGET
        assert step > 1.499 or worst(1.001 * step) > BIAS_TARGET


# At friction 2.5 the error at half the longest step tried is small by cancellation, those of shorter ones are not.
@pytest.mark.parametrize("friction", [0.25, 1.0, 2.0, 2.5])
@pytest.mark.parametrize("target", [0.001, 0.002, 0.014, 0.05])
@pytest.mark.parametrize("method", ["PoissonULMC", "PoissonOLMC"])
def test_safe_step_of_the_importance_law_holds_in_all_flatter_directions(method, target, friction):
    dynamics = "underdamped" if method == "PoissonULMC" else "overdamped"
    arguments = MethodArguments.checked(method, dynamics=dynamics, midpoint="importance")
    step = safe_step(arguments, friction, 1.0, target)
    for curvature in np.geomspace(0.01, 1.0, 40):
        assert abs(variance_error(arguments.kernel, step, friction, None, curvature)) <= 1.03 * target
    if step < METHODS[method].largest_step:
        longer = [abs(variance_error(arguments.kernel, a * step, friction, None)) for a in (1.001, 1.02, 1.1)]
        assert max(longer) > target
    if target > 0.01 and friction >= 1.0:
        plain = safe_step(MethodArguments.checked(method, dynamics=dynamics), friction, 1.0, target)
        assert step > 1.2 * plain or step == METHODS[method].largest_step


def test_many_coordinates_are_allowed_less_each():
    assert [allowed_error(0.04, d) for d in (0, 1, 8)] == [0.04] * 3
    np.testing.assert_allclose([allowed_error(0.04, d) for d in (32, 800)], [0.02, 0.004], rtol=1e-12)


@pytest.mark.parametrize("target", [0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("case", [*UNADJUSTED, RECYCLED], ids=str)
def test_the_variance_error_is_the_target(case, target):
    arguments = settings_of(case, target_bias=target)
    K = arguments.fixed_K or (32 if arguments.option == 1 else None)
    step = safe_step(arguments, 1.0, 1.0, arguments.target_bias)
    ends = (2.0, 0.5) if case is RECYCLED else (1.0,)  # a remainder of slope 1, up or down
    errors = [abs(variance_error(arguments.kernel, step, 1.0, K, end)) for end in ends]
    if step < METHODS[case[0]].largest_step or target <= 0.05:
        np.testing.assert_allclose(max(errors), target, rtol=1e-4)
    assert max(errors) <= target
    assert step == safe_step(settings_of(case), 1.0, 1.0, target)


@pytest.mark.parametrize(
    ("friction", "target", "curvature"), [(0.394, 0.0305, 9.17), (0.331, 0.0274, 8.26), (0.825, 0.00408, 15.3)]
)
def test_of_several_steps_with_the_target_error_the_longest_is_that_of_bisection(friction, target, curvature):
    """The error crosses the target several times: SciPy's root alone is half as long, or twice."""
    kernel = settings_of(RECYCLED).kernel
    ends = 1.0 + curvature, 1.0 / (1.0 + curvature)
    limit = METHODS["PoissonULMC"].largest_step
    low, high = 0.0, limit
    for _ in range(30):
        middle = 0.5 * (low + high)
        errors = [abs(variance_error(kernel, middle, friction, 1, end)) for end in ends]
        low, high = (middle, high) if max(errors) <= target else (low, middle)
    assert step_size._largest_step(kernel, friction, 1, limit, ends, target) == pytest.approx(low, rel=1e-6)


@pytest.mark.parametrize("case", [*UNADJUSTED, RECYCLED], ids=str)
def test_no_step_is_stable_on_a_slope_that_overflows_and_none_is_an_error(case):
    steps = [safe_step(settings_of(case), 1.0, curvature, 0.05) for curvature in (1e6, 1e15, 1e30, 1e100)]
    assert np.all(np.diff(steps) <= 0.0) and 0.0 <= steps[-1] < 1e-12


@pytest.mark.parametrize("target", [0.01, 0.2])
def test_the_longest_step_of_a_setting_has_the_target_of_its_method(target):
    arguments = settings_of(UNADJUSTED[0], target_bias=target)
    tuned = TunedParameters(0.1, 1, 1.0, Coordinates(np.zeros(2), np.ones(2)), 1)
    assert longest_step(arguments, tuned, 3.0) == safe_step(arguments, 1.0, 3.0, target)


@pytest.mark.parametrize("target", [0.005, 0.05, 0.2])
@pytest.mark.parametrize("case", UNADJUSTED, ids=str)
def test_automatic_midpoints_take_a_small_part_of_the_budget(case, target):
    arguments = settings_of(case, target_bias=target)
    for L in (0.3, 1.0, 20.0):
        step = safe_step(arguments, 1.0, L, arguments.target_bias)
        K = midpoint_count(arguments, step, 1.0, L, arguments.target_bias)
        if arguments.fixed_K is not None:
            assert K == arguments.fixed_K
        elif arguments.grid == "centred":
            assert K == 16
        else:
            floor = variance_error(arguments.kernel, step, 1.0, 1, L)
            assert K in 2 ** np.arange(4, 13)
            assert K == 4096 or floor / K <= 0.1 * target
            assert K == 16 or floor / (K / 2) > 0.1 * target
        # The law with this K: what is allowed, and a tenth for the grid, whose part falls as 1 / K.
        if K <= 256:
            assert abs(variance_error(arguments.kernel, step, 1.0, K, L)) < 1.1 * target
        elif arguments.option == 2:
            of_256, of_many = (variance_error(arguments.kernel, step, 1.0, k, L) for k in (256, None))
            assert (of_256 - of_many) * 256 / K < 0.1 * target


def test_midpoints_end_at_4096():
    arguments = settings_of(UNADJUSTED[3], target_bias=1e-4)
    assert midpoint_count(arguments, 1.2, 1.0, 1.0, arguments.target_bias) == 4096


@pytest.mark.parametrize("case", UNADJUSTED, ids=str)
@pytest.mark.parametrize("step", [1e-12, 1e-9, 1e-6, 1e-3])
def test_tiny_given_steps_need_few_midpoints(case, step):
    arguments = settings_of(case, step_size=step)
    expected = arguments.fixed_K or 16
    assert fixed_setting(arguments, np.zeros(2)).K == expected


# -- the step of an adjusted method ------------------------------------------------------------------------------------


def test_an_adjusted_step_follows_the_third_root_of_the_share_of_rejected_steps():
    rejected = 1.0 - THRESHOLDS.adjusted_acceptance
    assert step_for_acceptance(0.4, 1.0 - rejected) == pytest.approx(0.4, rel=1e-12)
    assert step_for_acceptance(0.4, 0.574, method="MALA") == pytest.approx(0.4, rel=1e-12)
    for factor in (0.6, 0.9, 1.1, 1.2):
        found = step_for_acceptance(0.4, 1.0 - rejected / factor**3)
        assert found == pytest.approx(0.4 * factor, rel=1e-12)
        # And the step that it finds is kept where the energy error is of third order.
        assert step_for_acceptance(found, 1.0 - rejected) == pytest.approx(found, rel=1e-12)
    assert step_for_acceptance(0.4, 0.0) == pytest.approx(0.4 * max(rejected ** (1.0 / 3.0), 0.5), rel=1e-12)
    assert step_for_acceptance(0.4, 1.0) == pytest.approx(0.4 * THRESHOLDS.most_lengthening, rel=1e-12)
    longest = METHODS["GHMC"].largest_step
    assert step_for_acceptance(longest, 1.0) == longest
    steps = [step_for_acceptance(0.4, accept) for accept in np.linspace(0.0, 1.0, 101)]
    assert np.all(np.diff(steps) >= 0.0)


def test_an_adjusted_method_has_no_bias_and_no_safe_step():
    arguments = MethodArguments.checked("GHMC", dynamics="underdamped")
    assert not follows_curvature(arguments)
    with pytest.raises(ValueError, match="acceptance rate"):
        safe_step(arguments, 1.0, 1.0, arguments.target_bias)
