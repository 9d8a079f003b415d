"""Learning the map from exact draws: what hierarchies need is found, what needs nothing is left alone.

Draws are independent, seeds fixed.  Where the family holds the answer it must be found to rounding; a refusal is
checked on two seeds each; the margin of the divergence (a ratio of 0.5) keeps the false-alarm rate below 1e-6.
"""

import numpy as np
import pytest
from test_noncentring_fit import slopes

from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.learn import _levels, learn_map
from pmm_mcmc.noncentring.left import left_by
from pmm_mcmc.noncentring.words import describe

N = 1600
CHAIN = np.tile(np.arange(8), N // 8)


def funnel(rng, sinks=9, n=N, sd=3.0):
    y = sd * rng.normal(size=n)
    x = np.exp(y / 2)[:, None] * rng.normal(size=(n, sinks))
    square = x**2 * np.exp(-y)[:, None]
    g_y = -y / sd**2 + 0.5 * (square - 1).sum(axis=1)
    return np.column_stack([y, x]), np.column_stack([g_y, -x * np.exp(-y)[:, None]])


def three_levels(rng, groups=6, each=4):
    """Coordinates mu, log tau, log omega, the groups and what is in them: ``b ~ N(a, omega)``, ``a ~ N(mu, tau)``."""
    mu, t, w = rng.normal(size=(3, N))
    w -= 1.0
    a = mu[:, None] + np.exp(t)[:, None] * rng.normal(size=(N, groups))
    b = a[:, :, None] + np.exp(w)[:, None, None] * rng.normal(size=(N, groups, each))
    pull_a = (a - mu[:, None]) * np.exp(-2 * t)[:, None]
    pull_b = (b - a[:, :, None]) * np.exp(-2 * w)[:, None, None]
    g_t = (pull_a * (a - mu[:, None]) - 1).sum(axis=1) - t
    g_w = (pull_b * (b - a[:, :, None]) - 1).sum(axis=(1, 2)) - (w + 1)
    x = np.column_stack([mu, t, w, a, b.reshape(N, -1)])
    g = [pull_a.sum(axis=1) - mu, g_t, g_w, pull_b.sum(axis=2) - pull_a, -pull_b.reshape(N, -1)]
    return x, np.column_stack(g)


def two_groups(rng):
    """Two funnels with scales of their own, and ten coordinates that have nothing to do with them."""
    one, two, rest = funnel(rng, 5), funnel(rng, 5), rng.normal(size=(N, 10))
    return np.concatenate([one[0], two[0], rest], axis=1), np.concatenate([one[1], two[1], -rest], axis=1)


def horseshoe_prior(rng):
    """Eight log local scales, one log global scale, eight effects with the sum of both as their log scale."""
    local, common = rng.normal(size=(N, 8)), rng.normal(size=(N, 1))
    effect = np.exp(local + common) * rng.normal(size=(N, 8))
    square = effect**2 * np.exp(-2 * (local + common)) - 1
    x = np.concatenate([local, common, effect], axis=1)
    g = [square - local, square.sum(axis=1, keepdims=True) - common, -effect * np.exp(-2 * (local + common))]
    return x, np.concatenate(g, axis=1)


def rosenbrock(rng):
    a = 1 + rng.normal(size=(N, 18))
    b = a**2 + np.sqrt(0.1) * rng.normal(size=(N, 18))
    g_b = -10 * (b - a**2)
    return np.concatenate([a, b], axis=1), np.concatenate([1 - a - 2 * a * g_b, g_b], axis=1)


def mixture(rng):
    x = rng.normal(size=(N, 20))
    x[:, 0] += np.where(rng.random(N) < 0.7, -1.2, 2.8)
    low, high = 0.7 * np.exp(-0.5 * (x[:, 0] + 1.2) ** 2), 0.3 * np.exp(-0.5 * (x[:, 0] - 2.8) ** 2)
    g = -x
    g[:, 0] = -(low * (x[:, 0] + 1.2) + high * (x[:, 0] - 2.8)) / (low + high)
    return x, g


def rotated(rng):
    root = np.random.default_rng(0).normal(size=(40, 40)) + 3 * np.eye(40)
    x = rng.normal(size=(N, 40)) @ root.T
    return x, -x @ np.linalg.inv(root @ root.T)


def log_gamma(rng):
    x = np.log(rng.gamma(3.0, size=(N, 12)))
    return x, 3.0 - np.exp(x)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_funnel_is_straightened_exactly(seed):
    learnt = learn_map(*funnel(np.random.default_rng(seed)), CHAIN)
    assert learnt.map is not None and learnt.map.kinds == ("linear",) * 9
    np.testing.assert_allclose(learnt.map.slope, 0.5, rtol=1e-9)
    np.testing.assert_array_equal(learnt.map.source, 0)
    assert learnt.after < 1e-12 < 1.0 < learnt.before
    assert str(learnt).startswith("x[1..9] scale with x[0]: straightened")


def test_siblings_have_one_slope():
    """Of gradients that are not exact each sink would have one of its own."""
    rng = np.random.default_rng(15)
    x, g = funnel(rng)
    g[:, 1:] += 0.02 * rng.normal(size=(N, 9)) * np.exp(-0.5 * x[:, :1])
    found = learn_map(x, g, CHAIN).map
    assert len(found.slope) == 9 and np.ptp(found.slope) == 0.0
    np.testing.assert_allclose(found.slope, 0.5, atol=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_funnel_that_hardly_narrows_is_left_alone(seed):
    learnt = learn_map(*funnel(np.random.default_rng(seed), sd=0.25), CHAIN)
    assert learnt.map is None and 0.01 < learnt.before < 0.1
    assert str(learnt) == "no funnel found"
    # A little more of it, and it is worth the while.
    assert learn_map(*funnel(np.random.default_rng(seed), sd=0.6), CHAIN).map is not None


@pytest.mark.parametrize("seed", [1, 2])
def test_a_small_funnel_among_many_other_coordinates_is_not_diluted(seed):
    rng = np.random.default_rng(seed)
    (x, g), rest = funnel(rng, 5, sd=1.0), rng.normal(size=(N, 144))
    learnt = learn_map(np.concatenate([x, rest], axis=1), np.concatenate([g, -rest], axis=1), CHAIN)
    assert learnt.before < 0.1, "per coordinate it is little"
    assert sorted(learnt.map.sink.tolist()) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(learnt.map.slope, 0.5, rtol=1e-6)


def test_three_levels_are_two_turns_of_two():
    x, g = three_levels(np.random.default_rng(4))
    learnt = learn_map(x, g, CHAIN)
    found = learnt.map
    assert sorted(found.sink.tolist()) == list(range(3, 33))
    assert learnt.after < 1e-8
    by_sink = {i: found.source[found.start[k] : found.start[k + 1]].tolist() for k, i in enumerate(found.sink.tolist())}
    assert all(by_sink[3 + k] == [0, 1] for k in range(6))
    assert all(by_sink[9 + k] == [2, 3 + k // 4] for k in range(24))
    np.testing.assert_allclose(found.slope[found.slope != 0.0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.load[found.slope == 0.0], 1.0, rtol=1e-6)


def test_groups_with_scales_of_their_own():
    learnt = learn_map(*two_groups(np.random.default_rng(5)), CHAIN)
    assert sorted(learnt.map.sink.tolist()) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert learnt.after < 1e-8


@pytest.mark.parametrize("seed", [13, 14])
def test_slopes_bound_by_data_that_tell_them_given_the_intercepts(seed):
    x, g = slopes(np.random.default_rng(seed), n=N)
    names = ["mu", "log tau", *(f"{name}[{k}]" for name in ("a", "b") for k in range(4))]
    learnt = learn_map(x, g, CHAIN, names=names)
    found = learnt.map
    own = [dict(zip(found.source[at], found.anchor_load[at], strict=True)) for at in ranges(found)]
    below = {6 + k: {2 + k: pytest.approx(-0.8, abs=1e-6)} for k in range(4)}
    assert {i: {j: e for j, e in row.items() if e != 0.0} for i, row in zip(found.sink, own, strict=True)} == below
    np.testing.assert_allclose(found.slope[found.source == 1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.load[found.source == 0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.anchor, 0.4, rtol=1e-6)
    assert learnt.found == ("b[0..3] scale with log tau and shift with mu, a[0..3]",)
    # What was known keeps them, and is found again from them.
    (level,) = _levels(found, np.median(x, axis=0), x.std(axis=0))
    np.testing.assert_array_equal(level.by_anchor, np.arange(2, 6)[:, None])
    again = learn_map(x, g, CHAIN, previous=found)
    np.testing.assert_array_equal(again.map.sink, found.sink)
    np.testing.assert_allclose(again.map.anchor_load, found.anchor_load, rtol=1e-6)


def ranges(found):
    return [slice(*found.start[k : k + 2]) for k in range(len(found.sink))]


def test_a_sink_may_have_two_scales():
    learnt = learn_map(*horseshoe_prior(np.random.default_rng(6)), CHAIN)
    assert sorted(learnt.map.sink.tolist()) == list(range(9, 17))
    assert learnt.after < 1e-8
    np.testing.assert_allclose(learnt.map.slope, 1.0, rtol=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("target", [rosenbrock, mixture, rotated, log_gamma])
def test_what_needs_nothing_is_left_alone(target, seed):
    learnt = learn_map(*target(np.random.default_rng(seed)), CHAIN)
    assert learnt.map is None
    assert "left alone" in str(learnt) or str(learnt) == "no funnel found"


def test_one_chain_alone_and_numbers_of_single_precision():
    x, g = funnel(np.random.default_rng(7))
    learnt = learn_map(x.astype(np.float32), g.astype(np.float32), np.zeros(N, int))
    np.testing.assert_allclose(learnt.map.slope, 0.5, rtol=1e-5)


def test_rows_that_are_not_finite_or_stand_still_do_not_count():
    x, g = funnel(np.random.default_rng(8))
    x[5], g[17] = np.nan, np.inf
    x[800:808], g[800:808] = x[792:800], g[792:800]
    learnt = learn_map(x, g, CHAIN)
    np.testing.assert_allclose(learnt.map.slope, 0.5, rtol=1e-9)


def test_names_are_used():
    names = ["log tau", *(f"theta[{i}]" for i in range(9))]
    learnt = learn_map(*funnel(np.random.default_rng(9)), CHAIN, names=names)
    assert learnt.found == ("theta[0..8] scale with log tau",)


def test_what_was_found_before_is_kept_and_added_to():
    x, g = funnel(np.random.default_rng(10))
    whole = learn_map(x, g, CHAIN).map
    part = FunnelMap(*(p[:3] for p in whole))._replace(start=whole.start[:4])
    learnt = learn_map(x, g, CHAIN, previous=part)
    assert set(part.sink.tolist()) < set(learnt.map.sink.tolist()) == set(whole.sink.tolist())
    # Draws that hardly show the funnel do not take it back.
    narrow = np.abs(x[:, 0]) < 0.8
    again = learn_map(x[narrow], g[narrow], CHAIN[narrow], previous=whole)
    assert again.found == ("x[1..9] scale with x[0]",)


@pytest.mark.parametrize("seed", [102, 110, 119])
def test_a_map_that_leaves_much_is_looked_for_anew(seed):
    """In these draws one of a group's children is at first taken for their parent, which tells as much."""
    x, g = three_levels(np.random.default_rng(seed))
    found = learn_map(x, g, CHAIN)
    assert len(found.map.sink) == 30 and found.after < 1e-8


def test_a_map_that_does_better_is_not_given_up():
    x, g = three_levels(np.random.default_rng(11))
    best = learn_map(x, g, CHAIN).map
    again = learn_map(x, g, CHAIN, previous=best)
    assert again.map is best and again.after < 1e-8


def test_a_map_is_given_up_for_one_that_leaves_less():
    """What the new one takes away, over all coordinates, must be .05: warm-up begins anew with it."""
    x, g = funnel(np.random.default_rng(14))
    best = learn_map(x, g, CHAIN).map
    for slope, kept in ((0.4999, True), (0.4, False)):
        rough = best._replace(slope=np.full_like(best.slope, slope))
        again = learn_map(x, g, CHAIN, previous=rough)
        assert (again.map is rough) == kept
        assert kept or np.allclose(again.map.slope, 0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        (np.zeros((5, 2)), np.zeros((5, 3)), np.zeros(5)),
        (np.zeros((5, 2)), np.zeros((5, 2)), np.zeros(4)),
        (np.zeros(5), np.zeros(5), np.zeros(5)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments):
    with pytest.raises(ValueError, match="do not fit together"):
        learn_map(*arguments)


def test_too_few_draws_teach_nothing():
    x, g = funnel(np.random.default_rng(12), n=64)
    assert learn_map(x, g, CHAIN[:64]).map is None
    assert learn_map(x[:, :1], g[:, :1], CHAIN[:64]).map is None


def test_runs_of_indices_are_named_together():
    nothing, far = np.zeros(4), np.full(4, np.inf)
    found = FunnelMap(
        np.arange(1, 5), np.arange(5), np.zeros(4, int), np.ones(4), nothing, nothing, nothing, nothing, far, nothing
    )
    named = describe(found.checked(5), ["log tau", "b[0, 0]", "b[0, 1]", "b[0, 2]", "b[1, 2]"])
    assert named == ("b[0, 0..2], b[1, 2] scale with log tau",)


def test_what_shifts_through_the_anchor_is_named():
    one = np.ones(1)
    found = FunnelMap(
        np.array([2]), np.array([0, 2]), np.array([0, 1]), np.array([1.0, 0.0]), np.zeros(2), np.array([0.0, 0.5]),
        one, one, one, one,
    ).checked(3)  # fmt: skip
    assert describe(found, ["log tau", "a", "b"]) == ("b scales with log tau and shifts with a",)


def test_what_a_map_leaves_is_told_of_the_coordinate_where_it_is_most():
    rng = np.random.default_rng(5)
    (x, g), bent = funnel(rng), rng.logistic(size=(N, 1))
    x, g = np.hstack([x, bent]), np.hstack([g, -np.tanh(bent / 2)])
    learnt = learn_map(x, g, CHAIN)
    # The funnel becomes a Gaussian, and all that is left is of the logistic coordinate.
    assert learnt.map is not None
    worst, spent = left_by(learnt.map, x, g)
    assert worst == pytest.approx(11 * learnt.after, rel=0.05) and spent == 0
    # On its own scale 2 (sqrt(Var x Var g) - 1), with Var x = pi^2 / 3 and Var g = 1/3, less the trimmed tails.
    assert 0.5 < worst / (2.0 * (np.pi / 3.0 - 1.0)) < 1.2
    assert np.isnan(left_by(learnt.map, x[:99], g[:99])[0])


def test_chains_that_arrive_late_are_not_taken_for_a_funnel():
    """One coordinate was elsewhere and narrow until a while ago: its older draws have another scale."""
    rng = np.random.default_rng(25)
    x, g = funnel(rng)
    late = rng.normal(size=(N, 1))
    before = np.arange(N) < 0.55 * N
    late[before] = -40.0 + 1e-2 * late[before]
    slope = np.where(before[:, None], -1e4 * (late + 40.0), -late)
    x, g = np.hstack([x, late]), np.hstack([g, slope])
    learnt = learn_map(x, g, CHAIN)
    assert learnt.map is not None and learnt.after < 0.02
    assert left_by(learnt.map, x, g)[0] < 0.1
