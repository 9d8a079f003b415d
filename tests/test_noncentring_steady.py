"""Locations that do not follow what scales their sink: freed of it where draws allow, kept where it is so.

Draws have exact laws, so that a right fit leaves a loss of rounding errors.
"""

from dataclasses import replace

import numpy as np
from test_noncentring_siblings import effects, group, halves

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.steady import steady


def loaded(right, load, fitted):
    """Return fitted sinks whose locations follow the scale's source, with a load that is given; the rest is fitted."""
    wider = right.adding(np.ones(len(right.sink), int))
    column = 2 + wider.by_scale.shape[1] + wider.by_location.shape[1] - 1
    theta = wider.theta.copy()
    theta[:, column] = load
    fixed = np.arange(theta.shape[1]) == np.full((len(theta), 1), column)
    return fit(replace(wider, theta=theta), *fitted, fixed=fixed)


def test_a_load_of_no_use_is_taken_away():
    fitted, held = halves(*group(np.random.default_rng(1), np.ones(4), np.zeros(4), np.full(4, 0.7)))
    right = fit(effects(4).with_ceiling(np.full(4, 0.5)), *fitted)
    assert right.loss.max() < 1e-6
    block = loaded(right, [0.0, 0.02, -0.05, 0.1], fitted)
    assert (block.losses(*held)[1:] > 1e-5).all()
    found = steady(block, fitted, held)
    assert not (found.by_location == 1).any()
    # Slopes stay as they were fitted with it, a little off.
    np.testing.assert_array_equal(found.slope, block.slope)
    np.testing.assert_allclose(found.load[:, 0], right.load[:, 0], atol=5e-3)
    assert (found.losses(*held) <= np.maximum(0.1 * block.losses(*held), 1e-6)).all()


def test_a_linear_sink_that_leans_on_it_saturates_instead():
    """Data pull effects to 0.4 where their scale is large: without a ceiling that looks like a load on the scale."""
    fitted, held = halves(*group(np.random.default_rng(2), np.ones(4), np.full(4, 0.4), np.full(4, 0.7)))
    linear = fit(effects(4).adding(np.ones(4, int)), *fitted)
    assert (np.abs(linear.load[:, 1]) > 0.02).all() and not linear.saturating.any()
    found = steady(linear, fitted, held)
    assert found.saturating.all() and not (found.by_location == 1).any()
    assert (found.losses(*held) < linear.losses(*held)).all()
    # Slopes are not its business: those of the linear fit are kept.
    np.testing.assert_array_equal(found.slope, linear.slope)


def test_a_location_that_does_follow_the_scale_is_kept():
    rng = np.random.default_rng(3)
    s = rng.normal(size=4000)
    # x = 0.5 s + exp(s) z, exactly.
    z = rng.normal(size=(3, 4000))
    x = 0.5 * s + np.exp(s) * z
    g = -z * np.exp(-s)
    g_s = (z**2 - 1.0 + 0.5 * z * np.exp(-s)).sum(axis=0) - s
    fitted, held = halves(np.vstack([np.zeros(4000), s, x]), np.vstack([np.zeros(4000), g_s, g]))
    sinks = Sinks.start(np.arange(2, 5), np.ones((3, 1), int), np.ones((3, 1), int), np.full((3, 1), 0.7))
    block = fit(sinks, *fitted)
    np.testing.assert_allclose(block.load[:, 0], 0.5, atol=1e-5)
    found = steady(block, fitted, held)
    assert (found.by_location == 1).all() and not found.saturating.any()
    np.testing.assert_array_equal(found.theta, block.theta)


def test_sinks_without_such_a_load_are_left_alone():
    fitted, held = halves(*group(np.random.default_rng(4), np.ones(3), np.zeros(3), np.full(3, 0.7)))
    block = fit(effects(3).with_ceiling(np.full(3, 0.5)), *fitted)
    found = steady(block, fitted, held)
    np.testing.assert_array_equal(found.theta, block.theta)
    np.testing.assert_array_equal(found.by_location, block.by_location)
