"""Points down the necks of a map: where they are, what they tell of a map, and what it learns from them.

Exact laws and fixed seeds throughout.
"""

import numpy as np
from test_noncentring_learn import funnel

from pmm_mcmc.noncentring.learn import learn_map
from pmm_mcmc.noncentring.left import left_by
from pmm_mcmc.noncentring.neck import POINTS, below, left_below

N = 1600
CHAIN = np.tile(np.arange(8), N // 8)


def effects(rng, n=N):
    """Coordinates mu, log scale and six effects about mu."""
    mu, s = rng.normal(size=(2, n))
    x = np.column_stack([mu, s, mu[:, None] + np.exp(s)[:, None] * rng.normal(size=(n, 6))])
    return x, gradient(x)


def gradient(x):
    apart = x[:, 2:] - x[:, :1]
    pull = apart * np.exp(-2.0 * x[:, 1:2])
    return np.column_stack([pull.sum(axis=1) - x[:, 0], (pull * apart - 1.0).sum(axis=1) - x[:, 1], -pull])


def known(rng):
    learnt = learn_map(*effects(rng), CHAIN)
    assert learnt.after < 1e-12
    return learnt.map


def test_points_are_down_what_scales_the_sinks_and_straightened_as_the_draws_are():
    rng = np.random.default_rng(1)
    found, (x, _) = known(rng), effects(rng)
    points, neck = below(found, x)
    assert points.shape == (POINTS, 8) and (neck == 0).all()
    own = x[np.linspace(0, N - 1, POINTS).astype(int)]
    down = (own - points)[:, 1] / x[:, 1].std()
    assert (np.diff(down) > 0.0).all() and 0.4 < down[0] < 0.6 and 4.9 < down[-1] < 5.1
    np.testing.assert_array_equal(points[:, 0], own[:, 0])
    np.testing.assert_allclose(found.to_z(points)[:, 2:], found.to_z(own)[:, 2:], atol=1e-6)
    again, _ = below(found, x, turn=1)
    assert not np.isclose(again, points).all(axis=1).any()


def test_two_necks_are_gone_down_one_at_a_time():
    rng = np.random.default_rng(2)
    (x, g), (more, g_more) = funnel(rng, 5), funnel(rng, 4)
    x, g = np.concatenate([x, more], axis=1), np.concatenate([g, g_more], axis=1)
    points, neck = below(learn_map(x, g, CHAIN).map, x)
    own = x[np.linspace(0, N - 1, POINTS).astype(int)]
    moved = points[:, [0, 6]] != own[:, [0, 6]]
    np.testing.assert_array_equal(moved, np.column_stack([neck == 0, neck == 1]))
    assert (np.bincount(neck) == POINTS // 2).all()


def test_a_map_that_draws_call_good_is_seen_to_fail_below_them():
    rng = np.random.default_rng(3)
    found, (x, g) = known(rng), effects(rng)
    load = found.load.copy()
    load[found.source == 0] -= 0.05
    wrong = found._replace(load=load)
    z = wrong.to_z(x)
    residual = (z + wrong.pull_back(z, g))[:, found.sink] ** 2
    assert np.median(residual, axis=0).max() < 0.05
    left = []
    for which in (found, wrong):
        points, neck = below(which, x)
        left.append(left_below(which, points, gradient(points), neck))
    assert left[0] < 1e-9 and left[1] > 0.3
    nothing = np.empty((0, 8))
    assert left_below(found, nothing, nothing, np.zeros(0, int)) == 0.0


def test_gradients_down_the_neck_make_the_map_right_there():
    """What the effects' data say is in the gradients of the draws, and vanishes down the neck."""
    rng = np.random.default_rng(4)
    x, _ = effects(rng)
    precision = np.linspace(0.5, 2.0, 6)

    def with_data(at):
        slope = gradient(at)
        slope[:, 2:] -= precision * (at[:, 2:] - 0.3)
        return slope

    # A posterior's draws by importance: the effects' data know little.
    weight = np.exp(-0.5 * (precision * (x[:, 2:] - 0.3) ** 2).sum(axis=1))
    x = x[rng.choice(N, size=N, p=weight / weight.sum())] * (1.0 + 1e-9 * rng.normal(size=(N, 1)))
    asked = []

    def gradient_at(points):
        asked.append(len(points))
        return with_data(points)

    # Of gradients that are not exact each sink has a slope a little off.
    g = with_data(x)
    g[:, 2:] += 0.3 * rng.normal(size=(N, 6)) * np.exp(-x[:, 1:2])
    plain, deep = learn_map(x, g, CHAIN), learn_map(x, g, CHAIN, gradient_at=gradient_at)
    assert plain.n_grad == 0 and asked == [POINTS] and deep.n_grad == POINTS
    far = x.copy()
    far[:, 1] = -8.0
    far[:, 2:] = far[:, :1] + np.exp(-8.0) * rng.normal(size=(N, 6))
    wrong = [np.abs(np.log(found.map.to_z(far)[:, 2:].std(axis=0))).max() for found in (plain, deep)]
    assert wrong[1] < 0.8 * wrong[0]
    # A map that is kept takes none, and one that is judged as many again.
    kept = learn_map(x, g, CHAIN, deep.map, gradient_at=gradient_at)
    assert kept.map is deep.map and kept.n_grad == 0 and asked == [POINTS]
    left, spent = left_by(deep.map, x, with_data(x), gradient_at)
    assert 0.0 < left < 0.3 and spent == POINTS and asked == [POINTS, POINTS]


def test_what_is_left_down_one_neck_of_two_is_told():
    """The first funnel goes on as it began; in the second effects are pulled now more, now less, below the draws."""
    rng = np.random.default_rng(5)
    (x, g), (more, g_more) = funnel(rng, 5), funnel(rng, 4)
    lowest = np.quantile(more[:, 0], 0.1)

    def gradient_at(points):
        slope = np.zeros_like(points)
        for at, size in ((0, 5), (6, 4)):
            own = slice(at + 1, at + 1 + size)
            slope[:, own] = -points[:, own] * np.exp(-points[:, at : at + 1])
        low = np.flatnonzero(points[:, 6] < lowest)
        slope[low, 7:] *= np.where(np.arange(len(low)) % 2, 5.0, 0.2)[:, None]
        return slope

    x, g = np.concatenate([x, more], axis=1), np.concatenate([g, g_more], axis=1)
    learnt = learn_map(x, g, CHAIN, gradient_at=gradient_at)
    assert learnt.after < 1e-9
    plain, deep = (left_by(learnt.map, x, g, *more)[0] for more in ((), (gradient_at,)))
    assert plain < 0.1 and deep > 0.3


def test_a_neck_where_nothing_is_finite_says_nothing():
    rng = np.random.default_rng(6)
    x, g = effects(rng)

    def nowhere(points):
        return np.full(points.shape, np.nan)

    learnt = learn_map(x, g, CHAIN, gradient_at=nowhere)
    (left, _), below = left_by(learnt.map, x, g), left_by(learnt.map, x, g, nowhere)
    assert learnt.after < 1e-12 and below == (left, POINTS)
