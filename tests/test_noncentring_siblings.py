"""Slopes that siblings share: given where draws do not tell another, kept apart where they do.

Draws have exact laws, so that a right fit leaves a loss of rounding errors.
"""

from dataclasses import replace

import numpy as np
import pytest

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.siblings import shared

N = 2000


def group(rng, slope, anchor, precision, n=N):
    """Draws of mu, log scale s and effects about mu with scales e^(slope s), known to be at anchor with a precision.

    Returns draws and gradients ``(d, n)``.
    """
    slope, anchor, precision = map(np.asarray, (slope, anchor, precision))
    mu, s = rng.normal(size=(2, n, 1))
    prior = np.exp(-2.0 * slope * s)
    total = prior + precision
    x = (prior * mu + precision * anchor) / total + rng.normal(size=total.shape) / np.sqrt(total)
    apart, pull = (x - mu) * prior, precision * (x - anchor)
    g_mu = apart.sum(axis=1, keepdims=True) - mu
    g_s = (slope * (apart * (x - mu) - 1.0)).sum(axis=1, keepdims=True) - s
    return np.hstack([mu, s, x]).T, np.hstack([g_mu, g_s, -apart - pull]).T


def halves(x, g):
    return (x[:, ::2].copy(), g[:, ::2].copy()), (x[:, 1::2].copy(), g[:, 1::2].copy())


def effects(m, *, location=True):
    """Linear sinks of s, with mu as the source of the location or without one."""
    by_location = np.zeros((m, 1), int) if location else np.full((m, 1), -1)
    return Sinks.start(np.arange(2, 2 + m), np.ones((m, 1), int), by_location, np.full((m, 1), 0.7))


def test_a_slope_that_draws_do_not_tell_is_that_of_the_siblings():
    """The last effect is bound by its data to where its scale is hardly seen: any slope fits next to as well."""
    precision = [0.7, 0.7, 0.7, 0.7, 1e5]
    fitted, held = halves(*group(np.random.default_rng(1), np.ones(5), np.zeros(5), precision))
    right = fit(effects(5).with_ceiling(np.array([0.5, 0.5, 0.5, 0.5, -5.7])), *fitted)
    assert right.loss.max() < 1e-6
    theta = right.theta.copy()
    theta[4, 1] = 0.4
    block = fit(replace(right, theta=theta), *fitted, fixed=np.arange(theta.shape[1]) == np.full((5, 1), 1))
    assert block.slope[4, 0] == 0.4 and block.losses(*held)[4] < 1e-2
    found = shared(block, fitted, held)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, rtol=1e-6)
    assert (found.losses(*held) <= np.maximum(1.02 * block.losses(*held), 1e-6)).all()


def test_a_slope_that_is_a_compromise_becomes_right_with_what_the_siblings_have():
    """Fitted without a ceiling and without mu the slope is too small; its siblings have both."""
    fitted, held = halves(*group(np.random.default_rng(2), np.ones(5), np.full(5, 0.4), np.full(5, 0.7)))
    right = fit(effects(5).with_ceiling(np.full(5, 0.5)), *fitted)
    poor = fit(effects(5, location=False), *fitted)
    both = zip(vars(right).values(), vars(poor).values(), strict=True)
    mixed = Sinks(*(np.concatenate([a[:4], b[4:]]) for a, b in both))
    assert abs(mixed.slope[4, 0] - 1.0) > 0.2 and not mixed.saturating[4]
    found = shared(mixed, fitted, held)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, rtol=1e-6)
    assert found.saturating.all() and (found.by_location == 0).any(axis=1).all()
    assert found.losses(*held)[4] < 1e-6


@pytest.mark.parametrize("apart", [0.5, 1.5])
def test_a_slope_that_is_another_is_kept(apart):
    slope = np.array([1.0, 1.0, 1.0, 1.0, apart])
    fitted, held = halves(*group(np.random.default_rng(3), slope, np.zeros(5), np.full(5, 0.1)))
    block = fit(effects(5).with_ceiling(np.full(5, 1.0)), *fitted)
    found = shared(block, fitted, held)
    np.testing.assert_allclose(found.slope[:, 0], slope, rtol=1e-5)


def test_few_siblings_have_nothing_in_common():
    fitted, held = halves(*group(np.random.default_rng(4), np.ones(3), np.zeros(3), [0.7, 0.7, 1e5]))
    block = fit(effects(3).with_ceiling(np.full(3, 0.5)), *fitted)
    theta = block.theta.copy()
    theta[2, 1] = 0.4
    block = replace(block, theta=theta)
    np.testing.assert_array_equal(shared(block, fitted, held).slope, block.slope)


def test_slopes_on_two_sources_are_shared_together():
    """What has been settled for the source of more sinks stays so while the next is looked at."""
    rng = np.random.default_rng(5)
    s, t = rng.normal(size=(2, N))
    z = rng.normal(size=(9, N))
    by_t = np.array([1.0] * 5 + [0.0] * 4)[:, None]
    scale = np.exp(s + by_t * t)
    x = np.vstack([s, t, scale * z])
    g = np.vstack([(z**2 - 1.0).sum(axis=0) - s, (by_t * (z**2 - 1.0)).sum(axis=0) - t, -z / scale])
    g[2:] += 0.02 * rng.normal(size=z.shape) / scale  # so that no fit is exact, and each its own
    fitted, held = halves(x, g)
    by_scale = np.column_stack([np.zeros(9, int), np.where(by_t[:, 0] > 0.0, 1, -1)])
    start = Sinks.start(np.arange(2, 11), by_scale, np.full((9, 1), -1), np.full((9, 2), 0.8))
    block = fit(start, *fitted)
    assert np.ptp(block.slope[:5], axis=0).min() > 1e-5
    found = shared(block, fitted, held)
    assert np.ptp(found.slope[:, 0]) == 0.0 and np.ptp(found.slope[:5, 1]) == 0.0


def test_what_is_fixed_stays():
    fitted, _ = halves(*group(np.random.default_rng(6), np.ones(4), np.zeros(4), np.full(4, 0.7)))
    start = effects(4).with_ceiling(np.full(4, 0.5))
    fixed = np.zeros(start.theta.shape, bool)
    fixed[1, 1] = True
    found = fit(start, *fitted, fixed=fixed)
    assert found.slope[1, 0] == 0.7
    np.testing.assert_allclose(np.delete(found.slope[:, 0], 1), 1.0, rtol=1e-6)
    assert found.loss[1] > 1e-4 > found.loss[[0, 2, 3]].max()
