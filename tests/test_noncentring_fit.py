"""Fits of sinks and the search for pairs, on densities with a known answer; draws from anywhere, gradients exact.

Where a conditional law is in the family the fit is exact, so tolerances are those of rounding.  What independent draws
do not show is found with a false-alarm rate below 1e-6 for each pair: correlations above .2 of 2,000 draws.
"""

import numpy as np
import pytest

from pmm_mcmc.noncentring.blocks import _continued, as_map, divergence, find_block, pulled_back
from pmm_mcmc.noncentring.fit import Sinks, anchor_scores, fit, location_scores, scale_effect_scores
from pmm_mcmc.noncentring.gauss_newton import KAPPA, _linearised, _solve
from pmm_mcmc.noncentring.pairs import Draws, best_kind, find_pairs, scale_scores, scale_share
from pmm_mcmc.noncentring.sources import anchored, pruned

N = 2000


def draws_of(x, g):
    """Return draws ``(n, d)`` as the search takes them, in the units they have."""
    n = len(x)
    halves = np.arange(n // 2), np.arange(n // 2, n)
    split = int(0.6 * n)
    return Draws(np.ascontiguousarray(x.T), np.ascontiguousarray(g.T), np.arange(split), np.arange(split, n), halves)


def schools(rng, precision=0.7, n=N):
    """Coordinates mu, log tau and four effects with a likelihood of this precision about 0.4, at any draws."""
    x = rng.normal(size=(n, 6))
    mu, t, effect = x[:, 0], x[:, 1], x[:, 2:]
    x[:, 2:] = effect = mu[:, None] + effect * np.exp(t)[:, None]
    apart = (effect - mu[:, None]) * np.exp(-2 * t)[:, None]
    g = np.empty_like(x)
    g[:, 2:] = -apart - precision * (effect - 0.4)
    g[:, 0] = apart.sum(axis=1) - mu
    g[:, 1] = (apart * (effect - mu[:, None]) - 1).sum(axis=1) - t
    return x, g


def slopes(rng, precision=0.7, n=N):
    """Exact draws of mu, log tau, four intercepts and four slopes, with data 0.4 about 0.8 intercept + slope."""
    mu, t = rng.normal(size=(2, 40 * n, 1))
    spread = 0.64 + np.exp(2 * t) + 1 / precision
    weight = (np.exp(-2 * (0.4 - mu) ** 2 / spread) / spread**2)[:, 0]
    chosen = rng.choice(40 * n, n, p=weight / weight.sum())
    mu, t, spread = mu[chosen], t[chosen], spread[chosen]
    a, b, noise = rng.normal(size=(3, n, 4))
    b = mu + np.exp(t) * b
    miss = (0.4 - 0.8 * a - b - noise / np.sqrt(precision)) / spread
    a, b = a + 0.8 * miss, b + np.exp(2 * t) * miss
    apart, pull = (b - mu) * np.exp(-2 * t), precision * (b + 0.8 * a - 0.4)
    g_mu, g_t = apart.sum(axis=1, keepdims=True) - mu, (apart * (b - mu) - 1).sum(axis=1, keepdims=True) - t
    return np.column_stack([mu, t, a, b]), np.column_stack([g_mu, g_t, -a - 0.8 * pull, -apart - pull])


def anchored_slopes(slope=0.5):
    start = Sinks.start(np.arange(6, 10), np.ones((4, 1), int), np.zeros((4, 1), int), np.full((4, 1), slope))
    return start.adding_anchor(np.arange(2, 6))


def effects(load=True, slope=0.5):
    by_location = np.zeros((4, 1), int) if load else np.zeros((4, 0), int)
    return Sinks.start(np.arange(2, 6), np.ones((4, 1), int), by_location, np.full((4, 1), slope))


def test_a_saturating_sink_is_fitted_exactly_wherever_the_draws_are():
    x, g = schools(np.random.default_rng(1))
    found = fit(effects().with_ceiling(np.full(4, 0.5)), x.T, g.T)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.load[:, 0], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.theta[:, -2], -0.5 * np.log(0.7), atol=1e-9)
    np.testing.assert_allclose(found.theta[:, -1], 0.4, atol=1e-8)
    assert found.loss.max() < 1e-16


def test_an_anchor_that_follows_another_effect_is_fitted_exactly():
    x, g = slopes(np.random.default_rng(15))
    found = fit(anchored_slopes().with_ceiling(np.full(4, 0.5)), x.T, g.T)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.load[:, 0], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.anchor_load[:, 0], -0.8, rtol=1e-8)
    np.testing.assert_allclose(found.theta[:, -2], -0.5 * np.log(0.7), atol=1e-8)
    np.testing.assert_allclose(found.theta[:, -1], 0.4, atol=1e-8)
    assert found.loss.max() < 1e-16
    learnt = as_map(found)
    z, g_z = found.straighten(x.T, g.T)
    np.testing.assert_allclose(learnt.to_z(x).T[6:], z, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(learnt.pull_back(learnt.to_z(x), g).T[6:], g_z, rtol=1e-12, atol=1e-12)
    # Without: far from it, and at a slope that is too small.
    plain = Sinks.start(np.arange(6, 10), np.ones((4, 1), int), np.column_stack([np.zeros(4, int), range(2, 6)]), 0.5)
    plain = fit(plain.with_ceiling(np.full(4, 0.5)), x.T, g.T)
    assert plain.loss.min() > 0.01


def test_a_ceiling_begins_with_the_location_as_its_anchor():
    x, g = slopes(np.random.default_rng(16))
    linear = fit(anchored_slopes().adding(np.arange(2, 6)), x.T, g.T)
    assert np.abs(linear.load).min() > 0.02
    shift, *_ = linear.evaluate(x.T)
    begun, _, w, apart = linear.adding_anchor(np.zeros(4, int)).with_ceiling(linear.theta[:, 0]).evaluate(x.T)
    np.testing.assert_allclose(begun, shift, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(apart, 0.0, atol=1e-9)
    assert w.min() < 0.3
    # Of a linear sink an anchor is of no effect, and the map has none.
    found = as_map(linear)
    np.testing.assert_array_equal(found.anchor_load, 0.0)
    np.testing.assert_array_equal(as_map(anchored_slopes()).source, np.tile([0, 1], 4))


def test_columns_that_no_sink_needs_are_left_out():
    x, g = slopes(np.random.default_rng(17))
    start, none = anchored_slopes().with_ceiling(np.full(4, 0.5)), np.full(4, -1)
    wide = start.adding(none).adding_anchor(none).adding_scale(none)
    wide = wide.adding(np.array([-1, 3, -1, 5])).adding(np.array([2, -1, 4, -1])).adding_anchor(np.array([0, 0, -1, 0]))
    wide = fit(wide, x.T, g.T, 3)
    packed = wide.packed()
    assert (packed.by_scale.shape[1], packed.by_location.shape[1], packed.by_anchor.shape[1]) == (1, 2, 2)
    for one, other in zip(packed.straighten(x.T, g.T), wide.straighten(x.T, g.T), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_linear_sink_is_fitted_exactly_from_far_away():
    x, g = schools(np.random.default_rng(2), precision=0.0)
    found = fit(effects(slope=-0.3), x.T + 0.0, g.T)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.load[:, 0], 1.0, rtol=1e-9)
    assert not found.saturating.any() and found.loss.max() < 1e-16


@pytest.mark.parametrize("ceiling", [0.3, np.inf])
@pytest.mark.parametrize("fixed", [(), (0, 3)])
def test_the_steps_know_the_derivatives_of_the_residuals(ceiling, fixed):
    """Of one draw the loss is K^2 log(1 + r^2 / K^2), its half gradient w r r' and the Hessian w r' r'^T."""
    x, g = schools(np.random.default_rng(13), n=20)
    theta = np.array([0.1, 0.7, -0.2, 0.4, 0.3, ceiling, 0.2])
    source, active = np.array([-1, 1, -1, 0, 3, -1, -1]), np.array([p for p in range(7) if p not in fixed])
    if ceiling == np.inf:
        active = active[active < 5]

    def at(values, draw):
        own, n = slice(draw, draw + 1), len(active) + 1
        work = np.empty((5, 1)), np.empty((8, 1)), np.empty((8, 1))
        columns = np.ascontiguousarray(x[own].T)
        loss, slopes = _linearised(values, active, source, 1, 4, x[own, 2], g[own, 2], columns, *work)
        assert slopes.shape == (n, n)
        return loss, slopes

    for draw in range(20):
        loss, slopes = at(theta, draw)
        found = Sinks(
            np.array([2]), np.array([[1]]), np.array([[0]]), np.array([[3]]), theta[None], np.zeros(1)
        ).losses(x[draw : draw + 1].T, g[draw : draw + 1].T)
        assert loss == pytest.approx(found[0], rel=1e-12)
        weighted = KAPPA**2 * np.expm1(loss / KAPPA**2) / (1.0 + np.expm1(loss / KAPPA**2))
        assert slopes[-1, -1] == pytest.approx(weighted, rel=1e-9)
        half = []
        for p in active:
            ends = [at(theta + move * np.eye(7)[p], draw)[0] for move in (1e-6, -1e-6)]
            half.append((ends[0] - ends[1]) / 4e-6)
        np.testing.assert_allclose(slopes[:-1, -1], half, rtol=1e-5, atol=1e-7)
        hessian = np.outer(slopes[:-1, -1], slopes[:-1, -1]) / weighted
        np.testing.assert_allclose(slopes[:-1, :-1], hessian, rtol=1e-9, atol=1e-12)


def test_a_damped_step_solves_its_equations():
    rng = np.random.default_rng(15)
    root = rng.normal(size=(6, 9))
    slopes = root @ root.T
    hessian, gradient = slopes[:5, :5], slopes[:5, 5]
    step = np.empty(5)
    _solve(slopes, 0.3, np.empty((7, 7)), step)
    damped = hessian + np.diag(0.3 * np.diag(hessian) + 1e-10 * np.diag(hessian).max())
    np.testing.assert_allclose(damped @ step, -gradient, rtol=1e-10)
    # What has no effect, or one that is not finite, stays where it is.
    slopes[2] = slopes[:, 2] = 0.0
    _solve(slopes, 0.3, np.empty((7, 7)), step)
    assert step[2] == 0.0 and (step[[0, 1, 3, 4]] != 0.0).all()
    _solve(np.full((6, 6), np.nan), 0.3, np.empty((7, 7)), step)
    assert (step == 0.0).all()


def test_a_few_gradients_that_are_wrong_do_not_decide():
    x, g = schools(np.random.default_rng(3))
    g[::50] *= 1e6
    found = fit(effects().with_ceiling(np.full(4, 0.5)), x.T, g.T)
    np.testing.assert_allclose(found.slope[:, 0], 1.0, atol=0.02)
    np.testing.assert_allclose(found.load[:, 0], 1.0, atol=0.02)


def test_sinks_are_fitted_each_by_itself():
    x, g = schools(np.random.default_rng(4))
    g[:, 2] += np.sin(3 * x[:, 2])
    together = fit(effects().with_ceiling(np.full(4, 0.5)), x.T, g.T)
    assert together.loss[0] > 1e-3 and together.loss[1:].max() < 1e-16
    alone = fit(effects().take(np.array([0])).with_ceiling(np.full(1, 0.5)), x.T, g.T)
    np.testing.assert_allclose(alone.theta[0], together.theta[0], rtol=1e-6)


def test_a_ceiling_is_taken_only_where_it_wins():
    for precision, expected in ((0.7, True), (0.0, False)):
        x, g = schools(np.random.default_rng(5), precision)
        draws = draws_of(x, g)
        found = best_kind(effects(), draws, *draws.at(draws.fitted))
        assert (found.saturating == expected).all()


def test_what_is_missing_calls_for_itself():
    x, g = schools(np.random.default_rng(6))
    no_location = fit(effects(load=False).with_ceiling(np.full(4, 0.5)), x.T, g.T)
    calls = np.abs(location_scores(no_location, x.T, g.T))
    calls[:, 2:] = 0.0
    assert (calls.argmax(axis=1) == 0).all() and calls[:, 0].min() > 0.3
    no_scale = Sinks.start(np.arange(2, 6), np.full((4, 1), -1), np.zeros((4, 1), int), np.zeros((4, 1)))
    calls = np.abs(scale_effect_scores(fit(no_scale, x.T, g.T), x.T, g.T))
    assert (calls.argmax(axis=1) == 1).all() and calls[:, 1].min() > 0.3


def test_an_anchor_that_is_missing_calls_for_itself_where_there_is_a_ceiling():
    x, g = slopes(np.random.default_rng(18))
    without = Sinks.start(np.arange(6, 10), np.ones((4, 1), int), np.zeros((4, 1), int), np.full((4, 1), 0.5))
    without = fit(without.with_ceiling(np.full(4, 0.5)), x.T, g.T)
    calls = np.abs(anchor_scores(without, x.T, g.T))
    calls[:, 6:] = 0.0
    np.testing.assert_array_equal(calls.argmax(axis=1), np.arange(2, 6))
    assert calls.max(axis=1).min() > 0.3
    np.testing.assert_array_equal(anchor_scores(fit(anchored_slopes(), x.T, g.T), x.T, g.T), 0.0)


def test_scores_point_at_the_source_with_the_sign_of_its_slope():
    x, g = schools(np.random.default_rng(7))
    assert scale_scores(x.T, g.T)[2:, 1].min() > 0.4
    flipped = np.array([1, -1, 1, 1, 1, 1])
    assert scale_scores((x * flipped).T, (g * flipped).T)[2:, 1].max() < -0.4


def test_pairs_are_found_with_their_slopes_and_no_others():
    x, g = schools(np.random.default_rng(8))
    everything = np.ones(6, bool)
    pairs = find_pairs(draws_of(x, g), everything, everything)
    assert {(i, j) for i, j in zip(pairs.sink.tolist(), pairs.source.tolist(), strict=True) if i > 1} == {
        (i, 1) for i in range(2, 6)
    }
    assert (pairs.slope > 0.1).all()
    only = find_pairs(draws_of(x, g), np.arange(6) == 3, everything)
    assert only.sink.tolist() == [3]


@pytest.mark.parametrize("rotated", [False, True])
def test_gaussians_have_no_pairs(rotated):
    rng = np.random.default_rng(9)
    root = rng.normal(size=(20, 20)) + 4 * np.eye(20) if rotated else np.eye(20)
    x = rng.normal(size=(N, 20)) @ root.T
    g = -x @ np.linalg.inv(root @ root.T)
    everything = np.ones(20, bool)
    assert not len(find_pairs(draws_of(x, g), everything, everything).sink)


def test_a_shift_that_bends_is_no_scale_that_follows():
    rng = np.random.default_rng(10)
    a = rng.normal(size=N)
    x = np.column_stack([a, np.tanh(a) + 0.2 * rng.normal(size=N)])
    g_b = -25 * (x[:, 1] - np.tanh(a))
    g = np.column_stack([-a - g_b / np.cosh(a) ** 2, g_b])
    start = Sinks.start(np.array([1]), np.array([[0]]), np.array([[0]]), np.array([[0.5]]))
    found = fit(fit(start, x.T, g.T).with_ceiling(np.zeros(1)), x.T, g.T)
    assert scale_share(found, x.T, g.T)[0] > 0.8
    pairs = find_pairs(draws_of(x, g), np.ones(2, bool), np.ones(2, bool), least=0.0)
    assert not (pairs.clear & (pairs.sink == 1)).any()
    x, g = schools(np.random.default_rng(11))
    found = fit(effects().with_ceiling(np.full(4, 0.5)), x.T, g.T)
    assert scale_share(found, x.T, g.T)[0].max() < 1e-10


def test_a_level_is_found_whole_with_the_shift_that_its_sinks_share():
    x, g = schools(np.random.default_rng(12), precision=0.0)
    draws = draws_of(x, g)
    block = find_block(draws, np.ones(6, bool))
    assert block.sink.tolist() == [2, 3, 4, 5]
    found = as_map(block)
    assert sorted(set(found.source.tolist())) == [0, 1]
    np.testing.assert_allclose(found.slope[found.source == 1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.load[found.source == 0], 1.0, rtol=1e-6)
    free = np.ones(6, bool)
    nothing = block.take(np.zeros(4, bool))
    assert divergence(block, draws, free) < 0.3 * divergence(nothing, draws, free)
    left = pulled_back(block, draws)
    np.testing.assert_array_equal(left.x, draws.x)
    # What is left to the sources is their prior, and to the sinks a unit Gaussian.
    np.testing.assert_allclose(left.g[:2], -x.T[:2], atol=1e-6)
    np.testing.assert_allclose(left.g[2:], -found.to_z(x).T[2:], atol=1e-6)


@pytest.mark.parametrize("seed", [19, 20])
def test_a_level_is_found_whole_with_anchors_that_follow_their_own_effects(seed):
    x, g = slopes(np.random.default_rng(seed))
    draws = draws_of(x, g)
    block = find_block(draws, np.ones(10, bool))
    assert block.sink.tolist() == [6, 7, 8, 9] and block.saturating.all()
    found = as_map(block)
    by_sink = [slice(found.start[k], found.start[k + 1]) for k in range(4)]
    assert [found.source[own].tolist() for own in by_sink] == [[0, 1, 2 + k] for k in range(4)]
    np.testing.assert_allclose(found.slope.reshape(4, 3), [[0.0, 1.0, 0.0]] * 4, atol=1e-6)
    np.testing.assert_allclose(found.load.reshape(4, 3), [[1.0, 0.0, 0.0]] * 4, atol=1e-6)
    np.testing.assert_allclose(found.anchor_load.reshape(4, 3), [[0.0, 0.0, -0.8]] * 4, atol=1e-6)


def test_known_sinks_keep_the_sources_of_their_anchors():
    start = Sinks.start(np.array([3, 6, 8]), np.ones((3, 1), int), np.ones((3, 1), int), np.ones((3, 1)))
    found = _continued(start, anchored_slopes().take(np.array([0, 2, 3])))
    np.testing.assert_array_equal(found.by_anchor, [[-1], [2], [4]])
    np.testing.assert_array_equal(found.by_location, [[1, -1], [1, 0], [1, 0]])


@pytest.mark.parametrize("kind", ["adding_anchor", "adding"])
def test_what_known_sinks_follow_becomes_no_sink_of_their_level(kind):
    """Effect 2 is scaled as the others are; where it shifts a sink that is known, it stays as it is."""
    x, g = schools(np.random.default_rng(24))
    known = Sinks.start(np.array([5]), np.array([[1]]), np.array([[0]]), np.array([[1.0]]))
    known = getattr(known, kind)(np.array([2])).with_ceiling(np.array([0.5]))
    block = find_block(draws_of(x, g), np.ones(6, bool), known)
    assert block.sink.tolist() == [3, 4, 5]
    as_map(block).checked(6)


@pytest.mark.parametrize("called", [False, True])
def test_an_anchor_follows_what_shifts_the_location_or_is_called_for(called):
    x, g = slopes(np.random.default_rng(22))
    draws, allowed = draws_of(x, g), np.full((4, 10), called)
    allowed[:, 6:] = False
    start = Sinks.start(np.arange(6, 10), np.ones((4, 1), int), np.zeros((4, 1), int), np.full((4, 1), 0.5))
    start = start.with_ceiling(np.full(4, 0.5)) if called else start.adding(np.arange(2, 6))
    start = fit(start, *draws.at(draws.fitted))
    found = as_map(fit(anchored(start, draws, allowed), x.T, g.T))
    np.testing.assert_allclose(found.slope[found.source == 1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.anchor_load[np.isin(found.source, range(2, 6))], -0.8, rtol=1e-6)


def test_of_known_sinks_only_anchors_are_pruned():
    x, g = slopes(np.random.default_rng(23))
    draws, start = draws_of(x, g), anchored_slopes().adding(np.arange(2, 6)).adding_anchor(np.zeros(4, int))
    block = fit(start.with_ceiling(np.full(4, 0.5)), *draws.at(draws.fitted))
    for known, kept in ((block, (2, 1)), (None, (1, 1))):
        found = pruned(block, draws, known).packed()
        assert (found.by_location.shape[1], found.by_anchor.shape[1]) == kept
        np.testing.assert_array_equal(found.by_anchor[:, 0], np.arange(2, 6))


def test_anchors_do_not_follow_what_they_need_not():
    x, g = schools(np.random.default_rng(21))
    block = find_block(draws_of(x, g), np.ones(6, bool))
    assert block.saturating.all()
    np.testing.assert_array_equal(as_map(block).anchor_load, 0.0)
