"""What the warm-up works with: scale, transient, curvature, steps per draw, and whole runs on a Gaussian.

Exact but for the autocorrelation of a simulated AR(1) chain, whose error is 7 standard deviations away from changing
the answer.
"""

import itertools
import tracemalloc

import numpy as np
import pymc as pm
import pytest
from scipy.signal import lfilter
from tuning_cases import BIAS_TARGET, RECYCLED, UNADJUSTED, settings_of

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates, diagonal_scale
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.warmup import block_checks, stein_identity
from pmm_mcmc.warmup.block import Block, narrowness, past_transient, replacements
from pmm_mcmc.warmup.curvature import LocalCurvature, curvature_bound, rare_curvature
from pmm_mcmc.warmup.stein_identity import steps_for_autocorrelation
from pmm_mcmc.warmup.step_size import allowed_error, midpoint_count, safe_step
from pmm_mcmc.warmup.thresholds import THRESHOLDS

pytestmark = pytest.mark.longest

# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("distance", [0.0, 30.0])
def test_scale_is_exact_on_an_uncorrelated_gaussian(n, distance):
    rng = np.random.default_rng(1)
    sd, mean = np.geomspace(1e-4, 1e4, 9), rng.normal(size=9) * 10
    position = mean + sd * (distance + rng.normal(size=(n, 9)))
    _, scale = diagonal_scale(position, (mean - position) / sd**2, np.full(9, 7.0))
    np.testing.assert_allclose(scale, sd, rtol=1e-10)


def test_centre_is_the_mean_where_it_has_been_surrounded():
    sd, mean = np.array([0.1, 1.0, 50.0]), np.array([3.0, -4.0, 0.5])
    position = mean + sd * np.array([[-1.0, 0.2, 3.0], [0.5, 0.9, 4.0], [0.1, -5.0, 9.0]])
    centre, _ = diagonal_scale(position, (mean - position) / sd**2, np.ones(3))
    np.testing.assert_allclose(centre[:2], mean[:2], rtol=1e-12)
    assert centre[2] == position[:, 2].min()  # not beyond what has been seen


def test_scale_of_a_coordinate_that_says_nothing_is_kept():
    position = np.array([[0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 3.0, 2.0]])
    gradient = np.array([[0.0, 2.0, 5.0, np.inf], [-4.0, 3.0, 5.0, 1.0]])
    previous = np.array([9.0, 8.0, 7.0, 6.0])
    centre, scale = diagonal_scale(position, gradient, previous)
    np.testing.assert_allclose(scale, [0.5, 8.0, 7.0, 6.0])
    np.testing.assert_allclose(centre, [0.0, 1.0, 2.0, 1.5])  # 0.5 + 0.25 * (-2) = 0


# -- transient ---------------------------------------------------------------------------------------------------------


def test_settled_leaves_the_transient_out():
    d = 8
    potential = np.concatenate([np.full(60, 1000.0), np.full(40, 3.0)])[None]
    threshold = 3.0 + d / 2 + 6 * np.sqrt(d / 2) + 5
    potential[0, [10, 11]] = threshold * (1 - 1e-12), threshold * (1 + 1e-12)
    kept = past_transient(potential, d)
    assert np.array_equal(np.flatnonzero(kept[0]), [10, *range(60, 100)])
    assert past_transient(np.array([[1e9, 1.0]]), 1).all(), "two rows are needed to fit anything"
    assert past_transient(np.array([[5.0]]), 3).tolist() == [[True]]


def test_of_several_chains_the_lowest_one_says_what_is_settled():
    potential = np.stack([np.full(40, 3.0), np.full(40, 500.0), np.linspace(900.0, 2.5, 40)])
    potential[0, 5] = np.inf
    kept = past_transient(potential, 1)
    assert np.array_equal(np.flatnonzero(~kept[0]), [5])
    assert not kept[1].any(), "a chain that is stuck elsewhere does not set the standard"
    assert kept[2, -1] and not kept[2, :-1].any()
    # Medians, not the least values: one lucky draw does not condemn the rest.
    potential[0, -1] = -1e6
    assert past_transient(potential, 1)[0, :-1].sum() == 38
    assert past_transient(np.where(np.arange(3)[:, None] == 1, np.nan, potential), 1)[0].sum() == 39


def test_the_neck_of_a_posterior_does_not_condemn_chains_outside():
    """A funnel: in its neck the density is higher for the same mass; chains that are there replaced all others."""
    rng, n, d = np.random.default_rng(1), 24, 33
    log_scale = np.array([-4.0, *np.linspace(-1.0, 1.0, 7)])[:, None]
    y = np.exp(log_scale)[..., None] * rng.normal(size=(8, n, d - 1))
    square = (y**2 * np.exp(-2.0 * log_scale[..., None])).sum(axis=-1)
    potential = 0.5 * square + (d - 1) * log_scale + 0.5 * log_scale**2
    of_scale = square - (d - 1) - log_scale
    gradient = np.concatenate([of_scale[..., None], -y * np.exp(-2.0 * log_scale[..., None])], axis=-1)
    unstable = np.zeros((8, n), int)
    assert (replacements(past_transient(potential, d), unstable) == 0).all(), (
        "by density alone the neck is all there is"
    )
    usable = past_transient(potential, d, narrowness(gradient, d))
    assert usable.all() and replacements(usable, unstable).tolist() == list(range(8))
    # A chain on its way down is steep and not narrow: that does not excuse it.
    potential[3] += np.linspace(2000.0, 1000.0, n)
    gradient[3] += 30.0
    assert replacements(past_transient(potential, d, narrowness(gradient, d)), unstable)[3] != 3


def test_narrowness_is_that_of_the_newest_quarter_and_of_the_sampled_coordinates():
    gradient = np.ones((2, 8, 3))
    gradient[0, -2:, 0], gradient[0, :-2, 1], gradient[:, :, 2] = 4.0, 1e9, 1e9
    np.testing.assert_allclose(narrowness(gradient, 2), [np.log(4.0), 0.0])
    gradient[1, -1, 0] = np.nan
    assert narrowness(gradient, 2)[1] == np.inf, "such a chain is in no region"
    assert np.isfinite(narrowness(np.zeros((1, 4, 2)), 2)).all(), "a coordinate without a gradient"
    beyond = narrowness(np.full((1, 4, 2), 1e200), 2)
    assert beyond == np.inf and past_transient(np.array([[-np.inf] * 4, [1.0] * 4]), 2, np.append(beyond, 0.0))[1].all()


def test_stuck_chains_are_replaced_by_healthy_ones():
    usable, unstable = np.ones((5, 20), bool), np.zeros((5, 20), int)
    assert replacements(usable, unstable).tolist() == [0, 1, 2, 3, 4]
    usable[1, 15:] = False  # nothing usable in the newest quarter
    usable[0, :15] = False  # just arrived
    unstable[3, :7] = 1  # 35 %
    unstable[4, :6] = 3  # 30 %, however often each
    assert replacements(usable, unstable).tolist() == [0, 0, 2, 2, 4]
    usable[:], unstable[:] = False, 1
    assert replacements(usable, unstable).tolist() == [0, 1, 2, 3, 4], "there is no healthy one"


# -- step size ---------------------------------------------------------------------------------------------------------


def symmetric_rows(d, n):
    """Positions in random order whose sample is symmetric in each coordinate, so that directions come out exactly."""
    rng = np.random.default_rng(3)
    quarter = rng.normal(size=(n, d))
    flips = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    rows = np.concatenate([quarter * np.where(np.arange(d) == 0, a, b) for a, b in flips])
    return rng.permutation(rows)


@pytest.mark.parametrize("stiff", [30.0, 1e4])
@pytest.mark.parametrize("remainder", [False, True])
def test_curvature_bound_sees_one_stiff_direction_exactly(stiff, remainder):
    d = 40
    rows = symmetric_rows(d, 50)
    rows[:, 0] /= np.sqrt(stiff)
    curvature = np.ones(d)
    curvature[0] = stiff
    rotation = np.linalg.qr(np.random.default_rng(4).normal(size=(d, d)))[0]
    position, gradient = rows @ rotation.T, -(rows * curvature) @ rotation.T
    found = curvature_bound(
        position[None], gradient[None], np.ones((1, len(rows)), bool), remainder=remainder, refines=False
    )
    np.testing.assert_allclose(found, stiff - remainder, rtol=1e-9)


def test_curvature_bound_is_not_fooled_by_rounding_where_little_moves():
    # An error e in the gradients changes a ratio by at most 2 e / |dy|, and only the larger half of the moves counts.
    rows, stiff, error = symmetric_rows(5, 200) / [np.sqrt(1e4), 1, 1, 1, 1], np.array([1e4, 1, 1, 1, 1]), 0.1
    noise = np.zeros_like(rows)
    noise[:, 0] = error * np.random.default_rng(5).choice([-1.0, 1.0], size=len(rows))
    found = curvature_bound(
        rows[None], (noise - rows * stiff)[None], np.ones((1, len(rows)), bool), remainder=False, refines=True
    )
    assert abs(found - 1e4) <= 2 * error / np.median(np.abs(np.diff(rows[:, 0]))) * (1 + 1e-3)


def bound(position, gradient, remainder=False):
    """Return the bound of one chain."""
    usable = np.ones((1, len(position)), bool)
    return curvature_bound(position[None], gradient[None], usable, remainder=remainder, refines=False)


def test_curvature_bound_of_an_isotropic_gaussian():
    rows = symmetric_rows(6, 20)
    np.testing.assert_allclose(bound(rows, -3.0 * rows), 3.0, rtol=1e-12)
    assert bound(rows, -rows, remainder=True) == 1e-3
    assert bound(rows[:1], -rows[:1]) == 1.0
    assert bound(np.zeros((5, 3)), np.ones((5, 3))) == 1.0


def test_curvature_bound_leaves_unusable_rows_out_and_compares_no_chain_with_another():
    rows, other = symmetric_rows(6, 20), 50.0 + symmetric_rows(6, 20)
    # Each chain sees curvature 2; between them the gradient jumps as if it were a thousand.
    position, gradient = np.stack([rows, other]), np.stack([-2.0 * rows, 1e5 - 2.0 * other])
    gradient[0, :30] *= 100.0
    for rows_of_other in (True, False):
        usable = np.stack([np.arange(80) >= 30, np.full(80, rows_of_other)])
        found = curvature_bound(position, gradient, usable, remainder=False, refines=True)
        np.testing.assert_allclose(found, 2.0, rtol=1e-9)


def test_rare_curvature_sees_rare_places_and_not_rare_directions():
    rng = np.random.default_rng(3)
    y, all_of_them = rng.normal(size=(2, 1000, 50)), np.ones((2, 1000), dtype=bool)
    assert rare_curvature(y, -3.0 * y, all_of_them, False, False) == pytest.approx(3.0, rel=1e-12)
    assert rare_curvature(y, -3.0 * y, all_of_them, True, False) == pytest.approx(2.0, rel=1e-12)
    direction = -y * np.r_[20.0, np.ones(49)]
    assert (
        rare_curvature(y, direction, all_of_them, False, False)
        < 15.0
        < curvature_bound(y, direction, all_of_them, False, False)
    )
    place = np.where(np.arange(1000)[None, :, None] == 500, -200.0, -1.0) * y
    assert rare_curvature(y, place, all_of_them, False, False) > 100.0
    # One draw in 500 need not be borne by steps that are taken in parts there.
    assert rare_curvature(y, place, all_of_them, False, True) == pytest.approx(1.0, rel=1e-12)
    often = np.where(np.arange(1000)[None, :, None] % 100 == 50, -200.0, -1.0) * y
    assert rare_curvature(y, often, all_of_them, False, True) > 100.0
    elsewhere = all_of_them & (np.arange(1000) != 500)
    assert rare_curvature(y, place, elsewhere, False, True) == pytest.approx(1.0, rel=1e-12)
    still = np.zeros((1, 10, 2))
    assert rare_curvature(still, still, np.ones((1, 10), dtype=bool), False, True) == 1.0


# -- steps per draw ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "expected"), [(0.3, 1), (0.6, 2), (0.9, 7), (0.95, 14), (-0.6, 1), (-0.9, 5)])
def test_steps_per_draw_of_an_autoregression(rho, expected):
    # rho^7 = 0.478 and rho^6 = 0.531 at 0.9: 0.02 from one half, where a chain of a million states errs by 0.003.  The
    # square has the autocorrelation rho^2k, at -0.9 above one half up to k = 3; the coordinate's own is 0.656 at 4.
    noise = np.random.default_rng(6).normal(size=(1_000_000, 1))
    assert steps_for_autocorrelation(lfilter([1.0], [1.0, -rho], noise, axis=0)[None]) == expected


def test_steps_per_draw_follow_the_slowest_coordinate():
    time = np.arange(10_000.0)
    quick, slow, still = np.cos(2.0 * time), np.cos(0.1 * time), np.full_like(time, 4.0)

    def steps(*columns):
        return steps_for_autocorrelation(np.stack(columns, axis=1)[None])

    assert steps(still, slow) == 11  # cos(1.1) < 1/2 < cos(1.0)
    assert steps(quick, still, slow) == 12  # at 11 the square of the quick one is back: cos(44) = 0.9998
    assert steps(quick) == 1
    assert steps(still) == 1
    assert steps(np.cos(0.001 * time)) == THRESHOLDS.most_steps_per_draw
    assert steps(np.arange(20.0)) == 5
    assert steps_for_autocorrelation(np.zeros((1, 100, 0))) == 1
    assert steps_for_autocorrelation(np.zeros((3, 0, 2))) == 1
    assert steps(np.arange(2.0)) == 1


def test_a_fall_that_comes_late_is_no_sign_of_coming_back():
    time = np.arange(2000.0)
    wave = np.cos(0.07 * time)[:, None]  # cos(1.05) < 1/2 < cos(0.98)
    assert steps_for_autocorrelation(wave[None]) == 15
    assert steps_for_autocorrelation(wave[None, :140]) in (14, 15, 16)  # an eighth is 17
    assert steps_for_autocorrelation(wave[None, :90]) == 22  # an eighth is 11: the largest, a quarter


def test_chains_that_have_not_met_yet_count_as_slow():
    noise = np.random.default_rng(6).normal(size=(2, 4000, 1))
    assert steps_for_autocorrelation(noise) == 1
    # Around means of their own the draws are as good as independent; around the common one they are not.
    assert steps_for_autocorrelation(noise + np.array([-3.0, 3.0])[:, None, None]) == THRESHOLDS.most_steps_per_draw


def test_autocorrelation_of_some_coordinates_at_a_time(monkeypatch):
    """The slowest coordinate decides, wherever it is, as it does with all together: here every other is a wave.

    A wave correlates by less than half from a lag on, and by more at a later one.
    """
    rng = np.random.default_rng(6)
    slow = lfilter([1.0], [1.0, -0.9], rng.normal(size=(2, 400)), axis=1)
    wave = np.sin(2 * np.pi * np.arange(400) / 9.0 + np.array([[0.3], [1.7]]))
    columns = [rng.normal(size=(2, 400)), wave, slow, wave + rng.normal(size=(2, 400)), np.ones((2, 400))]
    for order in itertools.permutations(range(5)):
        position = np.stack([columns[i] for i in order], axis=2)
        monkeypatch.setattr(stein_identity, "_TOGETHER", 2**20)
        expected = steps_for_autocorrelation(position)
        monkeypatch.setattr(stein_identity, "_TOGETHER", 800)
        assert steps_for_autocorrelation(position) == expected > 3


def test_autocorrelations_take_little_memory_beside_the_draws():
    """In 100,000 coordinates they took 3 GB, more than all draws of 64 chains."""
    position = np.random.default_rng(7).normal(size=(4, 60, 40_000))
    tracemalloc.start()
    try:
        assert steps_for_autocorrelation(position) == 1
        assert tracemalloc.get_traced_memory()[1] < position.nbytes + 2**24
    finally:
        tracemalloc.stop()


# -- whole runs --------------------------------------------------------------------------------------------------------

SCALES = np.geomspace(1e-4, 1e4, 9)


@pytest.fixture(scope="module")
def gaussian():
    with pm.Model() as model:
        pm.Normal("x", np.arange(9.0), SCALES, shape=9)
    return model


@pytest.mark.pymc
@pytest.mark.parametrize("case", [*UNADJUSTED, RECYCLED], ids=str)
def test_a_run_reaches_the_step_of_theory_on_any_scale(gaussian, sample, case):
    method, options = case
    arguments = {k: v for k, v in options.items() if k != "dynamics" or method == "RLMC"}
    if method == "PoissonULMC":
        arguments.setdefault("scheme", "paper")
    with gaussian:
        step = getattr(pmm, method)(**arguments)
        stats = sample(step, draws=20, tune=1000)["sample_stats"]
    arguments = settings_of(case)
    curvature = 1e-3 if "scheme" in options else 1.0  # whitened, all that is left is the remainder: none
    allowed = allowed_error(BIAS_TARGET, len(SCALES))
    expected = safe_step(arguments, 1.0, curvature, allowed)
    np.testing.assert_allclose(stats["step_size"].values, expected, rtol=1e-6)
    assert np.all(stats["K"].values == midpoint_count(arguments, expected, 1.0, curvature, allowed))
    np.testing.assert_allclose(step.chain.tuned.coordinates.scale, SCALES, rtol=1e-6)
    assert stats["unstable"].sum() == 0


@pytest.mark.pymc
def test_an_adjusted_step_is_the_longest_on_a_gaussian_of_any_scale(gaussian, sample):
    with gaussian:
        step = pmm.GHMC(steps_per_draw=1)
        found = sample(step, draws=200, tune=1000, chains=2)["sample_stats"]
    np.testing.assert_allclose(step.chain.tuned.coordinates.scale, SCALES, rtol=1e-6)
    assert np.all(found["step_size"].values == METHODS["GHMC"].largest_step)
    np.testing.assert_allclose(found["acceptance_rate"].values, 1.0, rtol=0.0, atol=1e-6)
    assert np.all(found["n_steps"].values[:, 1:] == 1) and not found["diverging"].any()


@pytest.mark.pymc
def test_an_adjusted_step_reaches_its_acceptance_rate(sample):
    with pm.Model():
        pm.StudentT("x", nu=10.0, mu=0.0, sigma=np.geomspace(0.1, 100.0, 9), shape=9)
        found = sample(pmm.GHMC(steps_per_draw=1), draws=2000, tune=2000, chains=4)["sample_stats"]
    # Of four chains that adapt together the one that accepts least has the wanted rate; blocks show it to 0.05.
    rates = found["acceptance_rate"].values.mean(axis=1)
    wanted = THRESHOLDS.adjusted_acceptance
    assert np.all((rates > wanted - 0.03) & (rates < wanted + 0.07)), rates
    steps = found["step_size"].values
    assert np.all(np.ptp(steps, axis=1) == 0.0) and 0.5 < steps.min() and steps.max() < 1.4


@pytest.mark.parametrize(
    ("method", "options", "in_parts"),
    [
        ("PoissonULMC", {}, True), ("PoissonULMC", {"scheme": "recycled"}, True), ("RLMC", {}, True),
        ("PoissonULMC", {"K": 1}, False), ("PoissonULMC", {"K": 1, "grid": "centred"}, True),
        ("ULMC", {}, False), ("GHMC", {}, False),
    ],
)  # fmt: skip
def test_only_what_sees_one_gradient_a_step_is_tuned_for_nearly_every_place(method, options, in_parts):
    arguments = MethodArguments.checked(method, **{"dynamics": "underdamped", **options})
    rng = np.random.default_rng(3)
    y, usable = rng.normal(size=(2, 1000, 50)), np.ones((2, 1000), dtype=bool)
    gradient = np.where(np.arange(1000)[None, :, None] == 500, -200.0, -1.0) * y
    unit, none = Coordinates(np.zeros(50), np.ones(50)), np.zeros((2, 1000), dtype=int)
    window = Block(y, gradient, none, none, none, none, none)
    for at in (None, lambda x: -x):
        found = block_checks.curvature(arguments, unit, window, usable, LocalCurvature(), at)
        assert (found < 2.0) == in_parts


def test_starts_where_the_density_overflows_give_a_short_step_and_an_honest_verdict():
    with pm.Model() as model:
        sd = pm.HalfStudentT("sd", nu=3, sigma=36.0)
        z = pm.Normal("z", shape=20)
        pm.Normal("y", 0, pm.math.exp(sd * z), observed=np.full(20, 100.0))
    result = pmm.sample(draws=20, tune=100, random_seed=1, progressbar=False, model=model)
    # No step is stable for the curvature that warm-up meets there, and one of 0 divided by itself.
    assert (result["equilibration"]["step_size"].values > 0.0).all()
    assert np.isfinite(result["posterior"]["z"].values).all()
    assert pmm.verdict(result).state == "not trusted"
