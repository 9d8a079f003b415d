"""Walks and effects deep in a neck: structure that only the fit of several sinks together tells.

Draws have exact laws, so that a right map leaves a divergence of rounding errors, also where no draw is.
"""

import numpy as np
import pytest

from pmm_mcmc.noncentring.fit import Sinks, fit
from pmm_mcmc.noncentring.learn import _draws, learn_map
from pmm_mcmc.noncentring.sources import ROWS, with_mean

N = 1600
CHAIN = np.tile(np.arange(8), N // 8)


def walk(rng, length, rho, s=None):
    """Coordinates mu, log scale and a stationary autoregression about mu, with gradients."""
    mu, s = 0.3 * rng.normal(size=N), 0.6 * rng.normal(size=N) - 1.0 if s is None else np.full(N, s)
    z = rng.normal(size=(N, length))
    start = 1.0 / np.sqrt(1.0 - rho**2)
    h = np.empty((N, length))
    h[:, 0] = start * z[:, 0]
    for t in range(1, length):
        h[:, t] = rho * h[:, t - 1] + z[:, t]
    weight = np.ones(length)
    weight[0] = 1.0 / start
    pull = -z * weight
    pull[:, :-1] += rho * z[:, 1:]
    g_h = pull * np.exp(-s)[:, None]
    g_s = (z**2 - 1.0).sum(axis=1) - (s + 1.0) / 0.36
    return np.column_stack([mu, s, mu[:, None] + np.exp(s)[:, None] * h]), np.column_stack(
        [-mu / 0.09 - g_h.sum(axis=1), g_s, g_h]
    )


@pytest.mark.parametrize("rho", [0.6, 0.95])
def test_a_walk_is_straightened_level_by_level_and_right_far_down(rho):
    learnt = learn_map(*walk(np.random.default_rng(1), 40, rho), CHAIN)
    found = learnt.map
    assert found is not None and len(set(found.sink) & set(range(2, 42))) >= 39
    assert learnt.after < 0.05 * learnt.before
    assert 2 < len(found.levels()) <= 8
    np.testing.assert_allclose(np.add.reduceat(found.load, found.start[:-1]), 1.0, atol=1e-6)
    # Far below the draws the straightened coordinates are as they are among them.
    deep, g = walk(np.random.default_rng(2), 40, rho, s=-9.0)
    z = found.to_z(deep)
    residual = (z + found.pull_back(z, g))[:, found.sink]
    assert np.median(residual**2, axis=0).max() < 2.0
    assert 0.5 < z[:, found.sink].std(axis=0).min() and z[:, found.sink].std(axis=0).max() < 2.0


def deep_effects(rng, m=8):
    """Effects about mu, from chains on their way down a neck: most differ by much less than mu varies."""
    mu, s = 3.0 * rng.normal(size=N), rng.permutation(np.linspace(-9.0, 0.0, N))
    z = rng.normal(size=(N, m))
    pull = -z * np.exp(-s)[:, None]
    g_s = (z**2 - 1.0).sum(axis=1)
    x = np.column_stack([mu, s, mu[:, None] + np.exp(s)[:, None] * z])
    return x, np.column_stack([-mu / 9.0 - pull.sum(axis=1), g_s, pull])


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_effects_deep_in_a_neck_are_told_from_their_mean(seed):
    x, g = deep_effects(np.random.default_rng(seed))
    assert np.abs(np.corrcoef(x.T)[0, 2:]).min() > 0.98
    found = learn_map(x, g, CHAIN).map
    assert len(found.sink) >= 8 and set(found.source[found.slope != 0.0]) == {1}
    z = found.to_z(x)
    residual = (z + found.pull_back(z, g))[:, found.sink]
    # One of the effects may be taken for their mean: what the others differ from it by has the scale too.
    assert np.median(residual**2, axis=0).max() < 2.0
    np.testing.assert_allclose(np.add.reduceat(found.load, found.start[:-1]), 1.0, atol=1e-9)


def test_a_mean_that_is_not_called_for_is_found_by_its_fit():
    """Deep in a neck effects and mean call for each other alike, and residuals are beyond what counts in full."""
    x, g = deep_effects(np.random.default_rng(2))
    draws = _draws(x, g, CHAIN, np.median(x, axis=0), x.std(axis=0))
    m = 6
    start = Sinks.start(2 + np.arange(m), np.ones((m, 1), int), np.ones((m, 1), int), np.full((m, 1), 2.0))
    block = fit(start, *draws.at(draws.fitted, ROWS))
    assert block.loss.min() > 1.0
    found = with_mean(block, draws, np.ones(10, bool))
    assert (found.by_location == 0).any(axis=1).all(), "neither of the two other effects, but their mean"
    assert found.losses(*draws.at(draws.held)).max() < 1e-3
    # What is close to a Gaussian, or has it, is left alone.
    np.testing.assert_array_equal(with_mean(found, draws, np.ones(10, bool)).by_location, found.by_location)
