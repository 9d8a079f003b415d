"""Locations as weighted means: where it is so to rounding, beyond what draws tell; where it is not so, left alone.

Draws have exact laws and seeds are fixed.  Noise in the gradients stands for data that know a little of each effect.
"""

import numpy as np
import pytest
from test_noncentring_siblings import halves

from pmm_mcmc.noncentring.blocks import as_map, common_means
from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.means import as_means

N = 3000


def effects(rng, weights, noise=0.1, constant=0.0):
    """Draws of as many means as weights have columns, a log scale, and effects about the weighted means.

    Returns the units, and draws and gradients ``(d, n)`` in them.
    """
    weights = np.asarray(weights, float)
    k, m = weights.shape[1], len(weights)
    mean, s = rng.normal(size=(k, N)), rng.normal(size=(1, N)) - 1.0
    z = rng.normal(size=(m, N))
    x = np.vstack([mean, s, weights @ mean + constant + np.exp(s) * z])
    g = np.zeros_like(x)
    g[k + 1 :] = -(z + noise * rng.normal(size=z.shape)) * np.exp(-s)
    centre, scale = rng.normal(size=len(x)), np.exp(rng.normal(size=len(x)))
    return (centre, scale), ((x - centre[:, None]) / scale[:, None], g * scale[:, None])


def fitted_block(columns, weights):
    """Sinks with all means as sources, and without those of no weight."""
    weights = np.asarray(weights, float)
    k, m = weights.shape[1], len(weights)
    by_location = np.where(weights != 0.0, np.arange(k), -1)
    start = Sinks.start(k + 1 + np.arange(m), np.full((m, 1), k), by_location, np.full((m, 1), 0.7))
    return fit(start, *columns)


def in_the_model(block, units):
    """Return sums of loads and constants in the model's coordinates."""
    found = as_map(block).rescaled(*units)
    return np.add.reduceat(found.load, found.start[:-1]), found.location


@pytest.mark.parametrize("seed", [1, 2])
def test_loads_sum_to_one_and_there_is_no_constant(seed):
    weights = [[1.0, 0.0], [0.5, 0.5], [0.3, 0.7], [0.8, 0.2], [1.2, -0.2]]
    units, draws = effects(np.random.default_rng(seed), weights)
    fitted, held = halves(*draws)
    block = fitted_block(fitted, weights)
    sums, constants = in_the_model(block, units)
    assert np.abs(sums - 1.0).min() > 1e-5 and np.abs(constants).min() > 1e-5, "draws alone do not tell so closely"
    found = as_means(block, *units, fitted, held)
    sums, constants = in_the_model(found, units)
    np.testing.assert_allclose(sums, 1.0, atol=1e-12)
    np.testing.assert_allclose(constants, 0.0, atol=1e-12)
    np.testing.assert_array_equal(found.slope, block.slope)
    own = as_map(found).rescaled(*units).load
    right = np.array([row[row != 0.0] for row in np.array(weights)], dtype=object)
    np.testing.assert_allclose(own[own != 0.0][: 1 + 2 * 4], np.concatenate(right), atol=0.02)


def test_what_does_not_sum_to_one_is_left_alone():
    weights = np.array([[0.5, 0.0], [0.3, 0.3], [0.0, -1.0], [1.0, 1.0]])
    units, draws = effects(np.random.default_rng(3), weights)
    fitted, held = halves(*draws)
    block = fitted_block(fitted, weights)
    found = as_means(block, *units, fitted, held)
    np.testing.assert_allclose(found.losses(*held), block.losses(*held), rtol=1e-12)
    np.testing.assert_allclose(in_the_model(found, units)[0], weights.sum(axis=1), atol=0.02)


def test_a_constant_that_draws_ask_for_is_kept():
    weights = [[0.5, 0.5], [0.2, 0.8], [0.6, 0.4]]
    units, draws = effects(np.random.default_rng(4), weights, constant=1.0)
    fitted, held = halves(*draws)
    found = as_means(fitted_block(fitted, weights), *units, fitted, held)
    sums, constants = in_the_model(found, units)
    np.testing.assert_allclose(sums, 1.0, atol=1e-12)
    np.testing.assert_allclose(constants, 1.0, atol=0.05)


def test_the_common_mean_is_given_to_those_that_lack_it():
    weights = np.array([[1.0, 0.0, 0.0]] * 4 + [[0.1, 0.9, 0.0], [0.15, 0.0, 0.85]])
    units, draws = effects(np.random.default_rng(5), weights)
    fitted, held = halves(*draws)
    lacking = weights.copy()
    lacking[4:, 0] = 0.0
    found = as_means(fitted_block(fitted, lacking), *units, fitted, held)
    assert (found.by_location == 0).any(axis=1).all()
    sums, constants = in_the_model(found, units)
    np.testing.assert_allclose(sums, 1.0, atol=1e-12)
    np.testing.assert_allclose(constants, 0.0, atol=1e-12)


def test_an_exact_fit_and_sinks_without_sources_stay():
    weights = [[0.9, 0.0], [0.5, 0.4]]
    units, draws = effects(np.random.default_rng(6), weights, noise=0.0)
    fitted, held = halves(*draws)
    exact = fitted_block(fitted, weights)
    assert exact.loss.max() < 1e-12
    np.testing.assert_allclose(as_means(exact, *units, fitted, held).losses(*held), 0.0, atol=1e-12)
    none = fitted_block(fitted, np.zeros((2, 2)))
    assert as_means(none, *units, fitted, held) is none


def test_a_mean_of_many_is_no_sink_of_what_scales_them():
    """Of twelve effects of the source 1, nine follow 0 and three follow 2; those of source 3 are another matter."""
    own = Sinks.start(np.arange(4, 16), np.ones((12, 1), int), np.array([[0]] * 9 + [[2]] * 3), np.ones((12, 1)))
    other = Sinks.start(np.arange(16, 19), np.full((3, 1), 3), np.zeros((3, 1), int), np.ones((3, 1)))
    barred = common_means([own, other], 20)
    assert barred[0, 1] and barred.sum() == 1
