"""Whole warm-ups: chains pooled in an engine, a chain alone with its companions, models that are not finite everywhere.

Step sizes are compared as medians over ten seeds, or at every seed, with the margins that the tests name; other seeds
change such medians by a few per cent.
"""

import numpy as np
import pytest
from models import eight_schools
from numba import cfunc
from reference import engine, gaussian
from warm_ups import warm_up

import pmm_mcmc as pmm
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.block import past_transient
from pmm_mcmc.warmup.step_size import allowed_error, safe_step
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import Warming, learnt_from, shortest_block

pytestmark = pytest.mark.longest

SEEDS = range(5)
KINDS = {"paper": {"scheme": "paper"}, "recycled": {"scheme": "recycled"}}
every_kind = pytest.mark.parametrize("kind", KINDS)


def arguments_of(kind, **more):
    return MethodArguments.checked("PoissonULMC", dynamics="underdamped", **KINDS[kind], **more)


@cfunc(SIGNATURE)
def unequal(x, gradient, table, n):
    # A Gaussian whose standard deviations run from 0.2 to 4.5; counts its calls.
    table[0] += 1
    lp = 0.0
    for i in range(n):
        precision = np.exp(0.6 * ((7 * i) % 11 - 5.0))
        lp -= 0.5 * precision * x[i] * x[i]
        gradient[i] = -precision * x[i]
    return lp


def spread_of_unequal(d):
    return np.exp(-0.3 * ((7 * np.arange(d)) % 11 - 5.0))


@cfunc(SIGNATURE)
def walled(x, gradient, table, n):
    # A unit Gaussian that is not a number beyond table[1] tenths in the first coordinate.
    table[0] += 1
    lp = 0.0
    for i in range(n):
        lp -= 0.5 * x[i] * x[i]
        gradient[i] = -x[i]
    return np.nan if x[0] > 0.1 * table[1] else lp


def pooled(target, kind, seed, *, d, chains, table=None, length=1000, around=1.0):
    """Warm chains up together from starts of twice the spread."""
    arguments, rng = arguments_of(kind), np.random.default_rng(seed)
    starts = 2.0 * rng.normal(size=(chains, d)) * around
    if target is walled:
        starts[:, 0] = -np.abs(starts[:, 0])
    return warm_up(engine(arguments.kernel, d, target, table), arguments, starts, length=length, rng=rng)


# -- gradients ---------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("seed", SEEDS)
def test_pooled_chains_need_few_gradients_on_a_gaussian(kind, seed):
    calls = np.zeros(2, np.int64)
    found = pooled(unequal, kind, seed, d=100, chains=8, table=calls, around=spread_of_unequal(100))
    assert found.n_grad.max() <= (500 if kind == "paper" else 300)
    assert found.n_grad.sum() == calls[0]
    assert found.warmup.passed is True and found.warmup.frozen is not None and found.warmup.finished
    np.testing.assert_allclose(found.tuned.coordinates.scale, spread_of_unequal(100), rtol=1e-6)
    assert_step_of_theory(found, kind, 100)


def assert_step_of_theory(found, kind, d):
    """Hold the step size against that of a Gaussian of curvature one, or of no remainder."""
    expected = safe_step(arguments_of(kind), 1.0, 1.0 if kind == "paper" else 1e-3, allowed_error(0.05, d))
    np.testing.assert_allclose(found.tuned.step_size, expected, rtol=1e-6)


@every_kind
@pytest.mark.parametrize("d", [1, 29, 30, 100])
def test_a_unit_gaussian_without_rounding_is_no_trap(kind, d):
    # Position and gradient cancel exactly in every direction: there is nothing for a scale to find.
    found = pooled(gaussian, kind, 1, d=d, chains=4)
    np.testing.assert_allclose(found.tuned.coordinates.scale, 1.0, rtol=1e-6)
    assert_step_of_theory(found, kind, d)


# -- models that are not finite everywhere -----------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wall_does_not_collapse_the_step_of_pooled_chains(kind, seed):
    steps, rates = {}, {}
    for wall in (23, 10_000):
        found = pooled(walled, kind, seed, d=3, chains=8, table=np.array([0, wall]))
        steps[wall] = found.tuned.step_size
        chunk = found.ensemble.advance(
            engine(arguments_of(kind).kernel, 3, walled, np.array([0, wall])), found.tuned, 500
        )
        rates[wall] = (chunk.unstable > 0).mean()
    assert 0.002 < rates[23] < 0.05 and rates[10_000] == 0.0
    assert abs(steps[23] / steps[10_000] - 1.0) < 0.3, steps


# -- alone or pooled ---------------------------------------------------------------------------------------------------


@pytest.mark.pymc
@pytest.mark.statistical
def test_a_chain_alone_ends_near_the_pooled_setting(sample):
    """Medians over ten seeds of the step size: one chain of ``pm.sample`` against :func:`warm_up` of 16 chains."""
    alone, together = [], []
    with eight_schools() as model:
        step = pmm.PoissonULMC()
        initial = step.binding.flat(model.initial_point(0))
        for seed in range(10):
            dt = sample(step, draws=2, tune=1000, chains=1, seed=seed)
            alone.append(float(dt["sample_stats"]["step_size"].values[0, 0]))
            rng = np.random.default_rng(seed)
            starts = initial + rng.uniform(-1.0, 1.0, size=(16, len(initial)))
            together.append(warm_up(step.binding.engine, step.arguments, starts, length=1000, rng=rng).tuned.step_size)
    assert abs(np.median(alone) / np.median(together) - 1.0) < 0.2, (alone, together)


def test_a_start_that_is_not_finite_is_refused():
    arguments = arguments_of("paper")
    run = engine(arguments.kernel, 2, walled, table=np.array([0, 10], np.int64))
    starts = np.array([[0.0, 0.0], [2.0, 0.0]])
    with pytest.raises(ValueError, match=r"starts\[1\]: the log density or its gradient is not finite"):
        warm_up(run, arguments, starts, length=100, rng=np.random.default_rng(1))


@cfunc(SIGNATURE)
def necked(x, gradient, table, n):
    # A funnel: a standard normal x[0], and normals with standard deviation exp(x[0]).
    lp, precision = -0.5 * x[0] * x[0] - (n - 1) * x[0], np.exp(-2.0 * x[0])
    gradient[0] = -x[0] - (n - 1)
    for i in range(1, n):
        lp -= 0.5 * precision * x[i] * x[i]
        gradient[i] = -precision * x[i]
        gradient[0] += precision * x[i] * x[i]
    return lp


def test_a_chain_in_the_neck_of_a_posterior_does_not_draw_all_others_there():
    """There the density is higher by 80 nats for the same mass: chains were replaced by copies of that one."""
    chains, d, rng = THRESHOLDS.training_chains + 6, 33, np.random.default_rng(1)
    log_scale = np.r_[-2.5, rng.uniform(-0.5, 1.0, size=chains - 1)]
    starts = np.exp(log_scale)[:, None] * rng.normal(size=(chains, d))
    starts[:, 0] = log_scale
    arguments = arguments_of("recycled")
    run = engine(arguments.kernel, d, necked)
    warming = Warming.start(run, arguments, starts, 1000, rng)
    for _ in range(2):
        warming.block(run)
    at = warming.tuned.coordinates.place(warming.ensemble.state[:, :d])
    assert at[0, 0] < -1.0, "it is still there"
    assert (at[1:, 0] > -1.0).mean() > 0.9, "and the others are not"


# -- many chains -------------------------------------------------------------------------------------------------------


def test_blocks_hold_as_many_draws_of_many_chains_as_of_64():
    lengths = {chains: shortest_block(chains) for chains in (1, 8, 64, 100, 128, 1024, 100_000)}
    assert lengths == {1: 25, 8: 25, 64: 25, 100: 16, 128: 13, 1024: 2, 100_000: 2}
    for chains, rows in lengths.items():
        learning = learnt_from(chains, rows, 64)
        assert learning == chains if chains <= 100 else 1600 <= learning * rows < 1600 + rows
        assert learnt_from(chains, 25, 64) == min(chains, 64)
    assert learnt_from(1024, 2, 4) == 50, "in 16,384 coordinates and more"


def test_a_thousand_chains_know_scale_and_length_after_a_few_gradients():
    """Blocks of 25 transitions took a hundred gradients at short steps first."""
    chains, d, rng = 1024, 11, np.random.default_rng(1)
    sd, arguments = spread_of_unequal(d), arguments_of("recycled")
    run = engine(arguments.kernel, d, unequal, np.zeros(2, np.int64))
    starts = 10.0 * sd * rng.uniform(-1.0, 1.0, size=(chains, d)) + 5.0 * sd
    warming, seen = Warming.start(run, arguments, starts, 1000, rng), []
    while warming.n_grad.mean() < 24.0:
        warming.block(run, look=lambda which, chunk: seen.append(chunk.model_position))
        assert len(warming.warmup.blocks[-1].lp) == learnt_from(chains, seen[-1].shape[1], 64)
    b2 = ((np.concatenate(seen, axis=1) ** 2).mean(axis=0) / sd**2 - 1.0) ** 2 / 2.0
    assert b2[0].min() > 100.0 and b2[-4:].max() < 0.02, "chance makes 5 / 1024 of the largest"
    # The gradients of updates are shared by all chains: their number is right in all, and nearly the same for each.
    transitions = warming.ensemble.transition
    assert warming.n_grad.sum() == chains * (2 + transitions) + warming.warmup.n_grad and np.ptp(warming.n_grad) <= 1


def test_no_chain_is_replaced_before_it_has_had_the_time_to_arrive():
    chains, d, rng = 1024, 11, np.random.default_rng(1)
    sd, arguments = spread_of_unequal(d), arguments_of("recycled")
    run = engine(arguments.kernel, d, unequal, np.zeros(2, np.int64))
    # One chain in ten is at the mode, where the density is 20,000 nats higher.
    starts = sd * rng.normal(size=(chains, d))
    starts[:, 0] += np.where(np.arange(chains) % 10, 200.0 * sd[0], 0.0)
    warming = Warming.start(run, arguments, starts, 1000, rng)
    while warming.ensemble.transition < THRESHOLDS.first_block:
        before = warming.ensemble.transition
        warming.block(run)
        if warming.ensemble.transition < THRESHOLDS.first_block:
            assert len(np.unique(warming.ensemble.state[:, 0])) == chains, before


def test_of_thousands_of_chains_a_few_low_ones_do_not_condemn_the_rest():
    potential = np.random.default_rng(1).gamma(5.0, size=(1024, 2))
    potential[:10] -= 1000.0
    assert past_transient(potential, 10, np.zeros(1024)).all()
    potential[:32] -= 1000.0
    assert past_transient(potential, 10, np.zeros(1024)).sum() == 64, "one in 32 is a place to be"


def test_the_narrowness_of_few_transitions_condemns_no_chain_that_is_low_enough():
    rng = np.random.default_rng(1)
    potential, noise = rng.gamma(5.0, size=(200, 2)), 100.0 * rng.normal(size=200)
    assert past_transient(potential, 10, noise).all()
    longer = np.repeat(potential, THRESHOLDS.first_block, axis=1)
    assert past_transient(longer, 10, noise).mean() < 0.5


def test_a_short_block_after_longer_ones_is_learnt_from_as_many_chains():
    """A boundary, here that of the end of adaptation, cuts a block short."""
    arguments, rng = arguments_of("recycled"), np.random.default_rng(1)
    run = engine(arguments.kernel, 3, unequal, np.zeros(2, np.int64))
    warming = Warming.start(run, arguments, rng.normal(size=(90, 3)), 159, rng)
    rows, learning = [], []
    while not warming.finished:
        rows.append(warming.warmup.boundary - warming.warmup.done)
        warming.block(run)
        learning.append(len(warming.warmup.blocks[-1].lp) if warming.warmup.blocks else learning[-1])
    assert (np.diff(rows) < 0).any() and (np.diff(learning) <= 0).all() and learning[-1] < 90
