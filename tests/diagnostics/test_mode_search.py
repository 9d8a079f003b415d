"""The search for other modes: what it finds, what it leaves alone, what it spends; seeds are fixed."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pmm_mcmc.diagnostics import mode_search
from pmm_mcmc.diagnostics.mode_search import ModeSearch, SearchSpace
from pmm_mcmc.diagnostics.thresholds import SEARCH
from pmm_mcmc.model.initial_points import prior_draws
from pmm_mcmc.warmup.ascent import Ascents

SEEDS = range(5)


def gaussians(*parts):
    """Log density and gradient of a mixture of Gaussians: weights, centres and widths."""

    def density(x):
        logs = np.stack([
            np.log(weight) - 0.5 * (((x - centre) / width) ** 2).sum(axis=1) - x.shape[1] * np.log(width)
            for weight, centre, width in parts
        ])  # fmt: skip
        lp = np.logaddexp.reduce(logs)
        shares = np.exp(logs - lp)[..., None]
        return lp, -sum(
            share * (x - centre) / width**2 for share, (_, centre, width) in zip(shares, parts, strict=True)
        )

    return density


def heavy(x):
    """Student's t with 2 degrees of freedom in each coordinate."""
    return -1.5 * np.log1p(0.5 * x**2).sum(axis=1), -1.5 * x / (1.0 + 0.5 * x**2)


def funnel(x):
    """Neal's funnel, whose density grows without bound into the neck."""
    v, rest = x[:, 0], x[:, 1:]
    pull = 0.5 * (rest**2).sum(axis=1) * np.exp(-v)
    lp = -0.5 * v**2 / 9.0 - 0.5 * rest.shape[1] * v - pull
    return lp, np.column_stack([-v / 9.0 - 0.5 * rest.shape[1] + pull, -rest * np.exp(-v)[:, None]])


def ring(x):
    """A ring with five flat maxima along it."""
    r = np.sqrt((x**2).sum(axis=1))
    angle = np.arctan2(x[:, 1], x[:, 0])
    along = np.stack([-x[:, 1], x[:, 0]], axis=1) / r[:, None] ** 2
    lp = -50.0 * (r - 1.0) ** 2 + 0.2 * np.cos(5.0 * angle)
    return lp, -100.0 * ((r - 1.0) / r)[:, None] * x - np.sin(5.0 * angle)[:, None] * along


def draws_of(name, n, rng):
    """Independent draws of these."""
    if name == "heavy":
        return rng.standard_t(2.0, size=(n, 3))
    if name == "funnel":
        v = 3.0 * rng.standard_normal(n)
        return np.column_stack([v, np.exp(0.5 * v)[:, None] * rng.standard_normal((n, 4))])
    angle = rng.uniform(0.0, 2.0 * np.pi, 3 * n)
    angle = angle[rng.random(3 * n) < np.exp(0.2 * np.cos(5.0 * angle) - 0.2)][:n]
    r = 1.0 + 0.1 * rng.standard_normal(len(angle))
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


def found(density, x, seed, prior=None, limit=SEARCH.gradients, **options):
    """What a search beside draws ``x`` finds."""
    prior = np.empty((0, x.shape[1])) if prior is None else prior
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mode_search, "SEARCH", replace(SEARCH, gradients=limit))
        return ModeSearch(SearchSpace(density, x), np.random.default_rng(seed)).run(prior, **options)[0]


def normals(seed, d, n=2000):
    return np.random.default_rng([seed, d]).standard_normal((n, d))


def steep(y):
    curvature = np.geomspace(0.1, 30.0, y.shape[1])
    return -0.5 * (curvature * y**2).sum(axis=1), -curvature * y


def test_ascents_arrive_and_do_not_depend_on_each_other():
    start = 20.0 * np.random.default_rng(1).standard_normal((6, 5))
    together = Ascents.of(steep, start, np.zeros(5), 10_000)
    assert together.arrived.all() and np.all(together.lp > -0.1)
    alone = [Ascents.of(steep, one[None], np.zeros(5), 10_000) for one in start]
    np.testing.assert_allclose(np.concatenate([each.position for each in alone]), together.position, atol=1e-9)
    assert together.spent == sum(each.spent for each in alone) < 40 * len(start)


def test_ascents_stop_where_gradients_are_spent():
    start = 20.0 * np.random.default_rng(1).standard_normal((6, 5))
    cut = Ascents.of(steep, start, np.zeros(5), 30)
    assert cut.spent <= 30 and not cut.arrived.all()


def test_a_start_that_is_not_finite_is_moved_towards_the_centre():
    def walled(y):
        lp, gradient = steep(y)
        return np.where(np.abs(y).max(axis=1) < 3.0, lp, np.nan), gradient

    ends = Ascents.of(walled, np.array([[10.0, 10.0], [1.0, 1.0], [1e9, 0.0]]), np.zeros(2), 1000)
    assert ends.arrived.tolist() == [True, True, False] and np.isfinite(ends.position).all()


# -- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("d", "apart", "share"), [(1, 10, 0.5), (3, 5, 0.1), (10, 10, 0.05), (50, 5, 0.1)])
def test_a_mode_on_an_axis_is_found_and_weighed(d, apart, share, seed):
    """Both tails of one Gaussian pass at 5 sd in each coordinate alone."""
    far = apart * np.eye(d)[-1]
    modes = found(gaussians((1.0 - share, np.zeros(d), 1.0), (share, far, 1.0)), normals(seed, d), seed)
    assert modes.mass == pytest.approx(share, rel=0.4) and not modes.undecided
    assert modes.coordinate == d - 1 and modes.position[-1] == pytest.approx(apart, abs=0.5)
    assert modes.offset == pytest.approx(apart, rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("d", [2, 10])
def test_a_low_wide_mode_with_half_of_the_mass_is_found(d, seed):
    modes = found(gaussians((0.5, np.zeros(d), 1.0), (0.5, np.full(d, 15.0), 5.0)), normals(seed, d), seed)
    assert modes.mass == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mode_below_one_sd_off_in_each_of_many_coordinates_is_found(seed):
    d = 100
    far = np.full(d, 0.8)
    prior = far + 0.3 * normals(seed, d, 12)
    modes = found(gaussians((0.5, np.zeros(d), 1.0), (0.5, far, 1.0)), normals(seed, d), seed, prior)
    assert modes.mass == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_in_many_coordinates_is_found(seed):
    d = 50
    modes = found(gaussians((0.5, np.zeros(d), 1.0), (0.5, np.zeros(d), 0.1)), normals(seed, d), seed)
    assert modes.mass == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mode_that_is_no_gaussian_is_weighed_by_places(seed):
    """A product of Laplace densities, whose cusp has no curvature."""
    d, far = 3, 20.0

    def density(x):
        own, _ = gaussians((1.0, np.zeros(d), 1.0))(x)
        other = -np.abs(x - far).sum(axis=1) - d * np.log(2.0) + 0.5 * d * np.log(2.0 * np.pi)
        lp = np.logaddexp(own, other)
        share = np.exp(other - lp)[:, None]
        return lp, -(1.0 - share) * x - share * np.sign(x - far)

    prior = far + normals(seed, d, 12)
    modes = found(density, normals(seed, d), seed, prior)
    assert modes.mass == pytest.approx(0.5, abs=0.25) or modes.undecided == "the mass of another mode is not known"


@pytest.mark.parametrize("width", [0.8, 1.0])
def test_volumes_by_lanczos_where_there_are_many_coordinates(width):
    d = SEARCH.exact_hessian + 10
    far = 20.0 * np.eye(d)[-1]
    density = gaussians((0.7, np.zeros(d), 1.0), (0.3, far, width))
    modes = found(density, normals(1, d), 1, np.tile(far, (12, 1)), limit=4000)
    assert np.log(modes.mass / (1.0 - modes.mass)) == pytest.approx(np.log(0.3 / 0.7), abs=0.5)


# -- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("density", [heavy, funnel, ring], ids=lambda function: function.__name__)
def test_one_mode_is_one(density, seed):
    x = draws_of(density.__name__, 4000, np.random.default_rng(seed))
    modes = found(density, x, seed, prior=10.0 * normals(seed, x.shape[1], 12))
    assert modes.mass == 0.0 and not modes.undecided


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [0.0, 2.0, 4.0, 8.0])
def test_modes_that_draws_are_in_are_not_other_ones(apart, seed):
    x = normals(seed, 2)
    x[::2] += apart
    assert found(gaussians((0.5, np.zeros(2), 1.0), (0.5, np.full(2, apart), 1.0)), x, seed).mass == 0.0


def test_a_flat_top_of_many_coordinates_is_one_mode():
    """Ascents end anywhere on it, where the volumes by curvature differ by hundreds of nats."""
    d = SEARCH.exact_hessian + 50

    def density(at):
        t, rest = at[:, 0], at[:, 1:]
        narrow = np.exp(-(t - 30.0) / 10.0)
        square = (rest**2).sum(axis=1)
        lp = -0.5 * np.maximum(20.0 - t, 0.0) ** 2 - 0.5 * np.maximum(t - 40.0, 0.0) ** 2 - 0.5 * narrow * square
        along = np.maximum(20.0 - t, 0.0) - np.maximum(t - 40.0, 0.0) + 0.05 * narrow * square
        return lp, np.column_stack([along, -narrow[:, None] * rest])

    maxima = np.zeros((2, d))
    maxima[:, 0] = 20.5, 39.5
    modes = found(density, normals(1, d), 1, maxima=maxima)
    assert modes.mass == 0.0 and not modes.undecided


def test_one_ascent_goes_on_where_none_has_ended():
    d = 100
    curvature = np.geomspace(1.0, 1e6, d)
    x = normals(1, d) / np.sqrt(curvature)
    turn = np.linalg.qr(normals(2, d, d))[0]

    def density(at):
        y = at @ turn
        return -0.5 * (curvature * y**2).sum(axis=1), -(curvature * y) @ turn.T

    few = x[:300] @ turn.T  # too few for a covariance
    modes = found(density, few, 1, limit=450)
    assert modes.mass == 0.0 and not modes.undecided


def test_modes_without_mass_are_not_mentioned():
    far = np.full(2, 10.0)
    for share, said in ((0.005, True), (0.0003, False)):
        density = gaussians((1.0 - share, np.zeros(2), 1.0), (share, far, 1.0))
        assert (found(density, normals(1, 2), 1, np.tile(far, (12, 1))).mass > 0.0) == said


@pytest.mark.parametrize("seed", SEEDS)
def test_a_density_that_is_highest_at_a_wall_has_an_answer(seed):
    """No ascent ends at a maximum; every one ends at the wall."""
    x = np.random.default_rng(seed).exponential(size=(2000, 2))

    def density(at):
        inside = (at > 0.0).all(axis=1)
        return np.where(inside, -at.sum(axis=1), -np.inf), -np.ones(at.shape)

    modes = found(density, x, seed)
    assert modes.mass == 0.0 and not modes.undecided


def test_no_answer_is_undecided():
    """Ascents that end nowhere."""
    slopes = found(lambda x: (x[:, 0], np.eye(2)[[0] * len(x)]), normals(1, 2), 1)
    assert np.isnan(slopes.mass) and slopes.undecided
    nowhere = found(lambda x: (np.full(len(x), np.nan), np.zeros(x.shape)), normals(1, 2), 1)
    assert np.isnan(nowhere.mass) and nowhere.undecided == "the log density is not finite at the draws"


@pytest.mark.parametrize("d", [1, 20, 200])
def test_gradients_are_counted_and_limited(d):
    calls = []
    one = gaussians((1.0, np.zeros(d), 1.0))
    space = SearchSpace(lambda x: calls.append(len(x)) or one(x), normals(1, d, 3000))
    ModeSearch(space, np.random.default_rng(1)).run(np.empty((0, d)))
    assert space.spent == sum(calls) <= SEARCH.gradients + SEARCH.on_axes


# -- draws of the prior ----------------------------------------------------------------------------------------------


def test_draws_of_the_prior_are_those_of_the_unconstrained_model():
    with pm.Model() as model:
        pm.Normal("a", 5.0, 0.1, initval=0.0)  # where chains start says nothing of the prior
        pm.Exponential("b", 1.0, shape=2)
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    draws = prior_draws(model, model.value_vars, np.array([1, 2]))
    assert draws.shape == (24, 3) and np.unique(draws).size == 72
    assert np.all(np.abs(draws[:, 0] - 5.0) < 0.5) and np.any(draws[:, 1] < 0.0)
    np.testing.assert_array_equal(draws, prior_draws(model, model.value_vars, np.array([1, 2])))
    with model:
        pm.Flat("c")
    starts = prior_draws(model, model.value_vars, np.array([1, 2]))
    assert starts.shape == (24, 4) and 1.5 < np.abs(starts).max() <= 2.0
