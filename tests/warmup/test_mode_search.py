"""Scouts: what they find, what they leave alone, what they spend.

Seeds are fixed; what is found at each of five is missed at another once in a hundred times at most.
"""

import numpy as np
import pymc as pm
import pytest
from numba import cfunc
from reference import engine

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.initial_points import prior_draws
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.ascent import Ascents
from pmm_mcmc.warmup.mode_search import ModeSearch
from pmm_mcmc.warmup.search_thresholds import SEARCH
from pmm_mcmc.warmup.warming import Warming

SEEDS = range(5)


@cfunc(SIGNATURE)
def two_modes(x, gradient, table, n):
    # A unit Gaussian, and another of weight table[2] per cent at table[1] in the last coordinate, whose width is
    # table[3] tenths in every table[4]-th coordinate, the second one included, and 1 in the others; counts its calls.
    table[0] += 1
    weight, width = 0.01 * table[2], 0.1 * table[3]
    own, other = np.log(1.0 - weight), np.log(weight)
    for i in range(n):
        sd = width if (i + 1) % table[4] == 0 else 1.0
        away = x[i] - (table[1] if i == n - 1 else 0.0)
        own -= 0.5 * x[i] * x[i]
        other -= 0.5 * away * away / (sd * sd) + np.log(sd)
    lp = max(own, other) + np.log1p(np.exp(-abs(own - other)))
    share = np.exp(other - lp)
    for i in range(n):
        sd = width if (i + 1) % table[4] == 0 else 1.0
        away = x[i] - (table[1] if i == n - 1 else 0.0)
        gradient[i] = -(1.0 - share) * x[i] - share * away / (sd * sd)
    return lp


@cfunc(SIGNATURE)
def heavy(x, gradient, table, n):
    # Student's t with 2 degrees of freedom in each coordinate.
    lp = 0.0
    for i in range(n):
        lp -= 1.5 * np.log1p(0.5 * x[i] * x[i])
        gradient[i] = -1.5 * x[i] / (1.0 + 0.5 * x[i] * x[i])
    return lp


@cfunc(SIGNATURE)
def funnel(x, gradient, table, n):
    # Neal's funnel, whose density grows without bound into the neck.
    gradient[0] = -x[0] / 9.0 - 0.5 * (n - 1)
    lp = -0.5 * x[0] * x[0] / 9.0 - 0.5 * (n - 1) * x[0]
    for i in range(1, n):
        lp -= 0.5 * x[i] * x[i] * np.exp(-x[0])
        gradient[i] = -x[i] * np.exp(-x[0])
        gradient[0] += 0.5 * x[i] * x[i] * np.exp(-x[0])
    return lp


@cfunc(SIGNATURE)
def valley(x, gradient, table, n):
    # A bent valley with ripples of 0.3 nats along it: many maxima, one mode.
    bend = x[1] - 0.3 * x[0] * x[0]
    gradient[0] = -x[0] / 9.0 + 0.6 * x[0] * bend - 0.9 * np.sin(3.0 * x[0])
    gradient[1] = -bend
    return -0.5 * x[0] * x[0] / 9.0 - 0.5 * bend * bend + 0.3 * np.cos(3.0 * x[0])


@cfunc(SIGNATURE)
def lower(x, gradient, table, n):
    # Two modes, of which the one at 10 is lower by table[1] nats.
    lp, other = 0.0, x[0] > 5.0
    for i in range(n):
        away = x[i] - (10.0 if i == 0 and other else 0.0)
        lp -= 0.5 * away * away
        gradient[i] = -away
    return lp - (table[1] if other else 0.0)


def table_of(apart=10, per_cent=30, tenths=10, every=2):
    return np.array([0, apart, per_cent, tenths, every])


def warmed(target, seed, d, table=None, prior=None, chains=4, method="PoissonULMC", length=1000, search=True):
    dynamics = "overdamped" if method == "OLMC" else "underdamped"
    arguments, rng = MethodArguments.checked(method, dynamics=dynamics), np.random.default_rng(seed)
    run = engine(arguments.kernel, d, target, table)
    starts = rng.uniform(-1.0, 1.0, size=(chains, d))
    warming = Warming.start(run, arguments, starts, length, rng)
    if search:
        warming.prior = np.empty((0, d)) if prior is None else prior
    while not warming.finished:
        warming.block(run)
    return warming


def found(*args, **kwargs):
    return warmed(*args, **kwargs).other_modes


# -- ascents ---------------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(("d", "per_cent"), [(1, 50), (3, 30), (10, 5)])
def test_a_mode_ten_sd_away_is_found_and_weighed(seed, d, per_cent):
    modes = found(two_modes, seed, d, table_of(10, per_cent))
    assert modes.mass == pytest.approx(per_cent / 100, rel=0.05)
    assert modes.coordinate == d - 1 and modes.position == pytest.approx(10.0, abs=0.3)


@pytest.mark.parametrize("tenths", [5, 20])
def test_modes_of_unequal_widths_are_weighed_by_their_volumes(tenths):
    # Draws of a prior that know of the mode.
    prior = np.random.default_rng(1).standard_normal((12, 4)) * 0.5 + np.array([0.0, 0.0, 0.0, 10.0])
    assert found(two_modes, 1, 4, table_of(10, 30, tenths), prior).mass == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("d", "apart", "tenths"), [(3, 8, 4), (4, 8, 3), (6, 12, 5), (8, 12, 2)])
def test_a_mode_narrow_in_all_coordinates_is_found_along_one(d, apart, tenths, seed):
    """Its basin is a ball of a radius of about its width over the chains' times its distance."""
    modes = found(two_modes, seed, d, table_of(apart, 40, tenths, 1))
    assert modes.mass == pytest.approx(0.4, rel=0.05)
    assert modes.coordinate == d - 1 and modes.position == pytest.approx(apart, abs=0.3)


def test_volumes_by_lanczos_where_there_are_many_coordinates():
    d = SEARCH.exact_hessian + 10
    modes = found(two_modes, 1, d, table_of(20, 30, 20), np.eye(d)[[-1] * 12] * 20.0)
    # Two directions of random signs: the log determinant is exact but for what the signs leave.
    assert np.log(modes.mass / (1.0 - modes.mass)) == pytest.approx(np.log(0.3 / 0.7), abs=0.5)


def test_every_dynamics_has_a_search():
    for method in ("OLMC", "ULMC", "GHMC"):
        assert found(two_modes, 1, 2, table_of(10, 30), method=method).mass == pytest.approx(0.3, rel=0.05)


# -- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("target", "d"), [(heavy, 1), (heavy, 4), (funnel, 5), (valley, 2)])
def test_one_mode_is_one(target, d, seed):
    prior = 10.0 * np.random.default_rng(seed).standard_normal((12, d))
    assert not found(target, seed, d, prior=prior).mass > 0.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [0, 2, 4])
def test_modes_that_chains_reach_are_not_other_ones(seed, apart):
    assert found(two_modes, seed, 2, table_of(apart, 50)).mass == 0.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [4, 10])
def test_short_chains_leave_a_mode_that_is_near(seed, apart):
    table = table_of(apart, 5)
    tuned = TunedParameters(1.0, 1, 1.0, Coordinates(np.zeros(1), np.ones(1)), 1)
    kernel = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled").kernel
    search = ModeSearch(engine(kernel, 1, two_modes, table), tuned, 500, np.random.default_rng(seed))
    chain_maxima, [other] = (search._ascend(np.array([[at]]), np.zeros(1), 50) for at in (0.0, float(apart)))
    assert search._chains_stay(other, chain_maxima, 1) == (apart == 10)


def test_modes_without_mass_are_not_mentioned():
    prior = np.eye(2)[[0] * 12] * 10.0
    assert found(lower, 1, 2, np.array([0, 5]), prior).mass == pytest.approx(np.exp(-5.0), rel=0.1)
    assert found(lower, 1, 2, np.array([0, 8]), prior).mass == 0.0


# -- what it takes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [0, 10])
def test_the_search_is_counted_spends_two_fifths_at_most_and_leaves_the_chains_alone(seed, apart):
    calls, calls_without = table_of(apart), table_of(apart)
    one, other = warmed(two_modes, seed, 3, calls), warmed(two_modes, seed, 3, calls_without, search=False)
    assert np.isnan(other.other_modes.mass) and one.prior is None
    np.testing.assert_array_equal(one.ensemble.state, other.ensemble.state)
    np.testing.assert_array_equal(one.ensemble.keys, other.ensemble.keys)
    spent = calls[0] - calls_without[0]
    assert 16 <= spent <= SEARCH.search_share * other.n_grad.sum()
    assert 0 <= one.n_grad.sum() - other.n_grad.sum() - spent < 4


def test_a_warm_up_too_short_for_a_search_has_none():
    assert np.isnan(found(two_modes, 1, 2, table_of(), chains=1, length=30).mass)


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
