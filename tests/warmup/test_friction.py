"""The trial of frictions: when there is one, what it goes by, and the two numbers it is made of.

Blocks are made by hand as in ``test_schedule.py``; what is asserted is exact or has a margin of many standard errors.
"""

import numpy as np
import pytest
from test_schedule import PAPER, D, Driver, frozen_settings, underdamped

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.warmup.friction import FRICTIONS, largest_spread, slow_jumps
from pmm_mcmc.warmup.step_size import safe_step

WIDE = np.array([3.0, 1.0, 1.0])


def correlated_by_friction(correlation):
    """Make the first coordinate an autoregression whose correlation depends on the friction in force."""

    def change(x, warmup):
        rho = correlation[warmup.tuned.friction]
        for i in range(1, x.shape[1]):
            x[:, i, 0] = rho * x[:, i - 1, 0] + np.sqrt(1 - rho**2) * x[:, i, 0]
        return x

    return change


def friction_run(correlation, *, arguments=None, **options):
    arguments = underdamped(scaling=np.ones(D)) if arguments is None else arguments
    change = correlated_by_friction(correlation)
    return Driver(arguments, 1000, chains=4, sd=lambda done: WIDE, precision=WIDE**-2.0, change=change, **options).run()


@pytest.mark.parametrize("best", FRICTIONS)
def test_friction_is_chosen_by_the_jumps_along_slow_directions(best):
    driver = friction_run({friction: 0.2 if friction == best else 0.98 for friction in FRICTIONS})
    seen = [tuned.friction for tuned in driver.tuned]
    assert set(seen) == set(FRICTIONS) and seen[-1] == best
    assert {tuned.friction for tuned in frozen_settings(driver)} == {best}
    # Three blocks of 50 transitions, as soon as all else has settled, or at half time.
    trial = [b for b, friction in zip(driver.boundaries, seen, strict=True) if friction != 1.0]
    assert 130 + 50 <= trial[0] <= 500 + 50 and np.diff(driver.boundaries).tolist().count(50) >= 3
    for tuned in frozen_settings(driver):
        assert tuned.step_size == pytest.approx(
            safe_step(driver.warmup.arguments, best, driver.warmup._curvature, 0.05)
        )


def test_frictions_that_are_alike_leave_the_default():
    assert friction_run(dict.fromkeys(FRICTIONS, 0.9)).tuned[-1].friction == 1.0


def test_a_friction_whose_steps_fail_is_not_chosen():
    driver = None

    def failing(done):
        return 0.1 if driver.warmup.tuned.friction == 0.25 else 0.0

    options = {"sd": lambda done: WIDE, "precision": WIDE**-2.0}
    change = correlated_by_friction({1.0: 0.98, 0.5: 0.9, 0.25: 0.2})
    driver = Driver(underdamped(scaling=np.ones(D)), 1000, chains=4, failing=failing, change=change, **options)
    assert driver.run().tuned[-1].friction == 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        underdamped(scaling=np.ones(D), friction=0.8),
        MethodArguments.checked("OLMC", dynamics="overdamped", scaling=np.ones(D)),
    ],
    ids=["given", "overdamped"],
)
def test_a_friction_that_is_given_or_without_meaning_is_not_tried(arguments):
    driver = friction_run(dict.fromkeys((0.8, *FRICTIONS), 0.5), arguments=arguments)
    assert {tuned.friction for tuned in driver.tuned} == {arguments.friction or 1.0}


def test_without_a_slow_direction_there_is_no_trial():
    driver = Driver(PAPER, 1000, chains=4).run()
    assert {tuned.friction for tuned in driver.tuned} == {1.0}


# -- its numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [3, 40])
def test_the_largest_spread_is_seen_in_any_direction(d):
    rng = np.random.default_rng(1)
    direction = np.linalg.qr(rng.normal(size=(d, d)))[0][0]
    rows = rng.normal(size=(4000, d))
    assert largest_spread(rows) == pytest.approx(1.0, abs=0.05)
    wide = rows + np.outer(rows @ direction, 3.0 * direction)
    assert largest_spread(wide) == pytest.approx(4.0, rel=0.1)
    assert largest_spread(7.0 + wide) == pytest.approx(largest_spread(wide), rel=1e-9)
    # Of few draws in many coordinates chance alone must not look like a slow direction.
    assert largest_spread(rng.normal(size=(2 * d, d))) < 1.3


def test_jumps_are_counted_along_the_slow_directions_only():
    rng = np.random.default_rng(2)
    window = rng.normal(size=(4000, D)) * WIDE
    quick = rng.normal(size=(4, 400, D)) * WIDE
    still = quick * [0.0, 1.0, 1.0]
    assert slow_jumps(quick, window) == pytest.approx(2.0, rel=0.15)  # twice the variance between independent draws
    assert slow_jumps(still, window) < 1e-3
    assert slow_jumps(quick * [1.0, 0.0, 0.0], window) == pytest.approx(slow_jumps(quick, window), rel=0.01)
    # Fifteen transitions apart: what moves to and fro within them has not moved.
    oscillating = np.zeros((1, 301, D))
    oscillating[0, :, 0] = 3.0 * np.cos(2 * np.pi * np.arange(301) / 15)
    assert slow_jumps(oscillating, window) < 1e-3
