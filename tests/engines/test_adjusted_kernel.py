"""Generalised HMC in both engines: the map of position, velocity and number is exact, and its law is the target's.

With friction 0 a transition of a chain that is not at rest is a map without noise.  It leaves the law of position,
velocity and persistent number invariant, without a rejected share, if followed by a flip of the velocity it is its own
inverse and if it stretches volumes by the inverse ratio of the densities; both hold to rounding.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6), p > 1e-6 for each law.
"""

import numpy as np
import pytest
from jax_chains import ROUGH, gaussian_engine, keys_of
from numba import cfunc
from reference import engine, gaussian
from scipy.stats import kstest
from test_engine import COORDINATES, LEAVES, D, rough, rough_numpy

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.langevin.methods import GHMC
from pmm_mcmc.langevin.transitions import CLIMB, DIVERGENCE, FAR_BELOW
from pmm_mcmc.model.jax_density import JaxDensity
from pmm_mcmc.model.native import SIGNATURE

POINTS = 6
CHAINS = POINTS * (1 + 2 * (2 * D + 1))
every_backend = pytest.mark.parametrize("backend", ["numba", "jax"])


@pytest.fixture(scope="module")
def engines():
    """Return the engine of a backend on the rough density, which does as ``mode`` says beyond the wall."""
    of_jax = JaxEngine(GHMC, ROUGH.density, CHAINS)

    def engine_of(backend, mode=0):
        ROUGH.mode[...] = mode
        return of_jax if backend == "jax" else engine(GHMC, D, rough, np.array([0, mode]))

    yield engine_of
    ROUGH.mode[...] = 0


def chains_at(run, u, v, persistent, coordinates=COORDINATES):
    """Return evaluated states and their gradients."""
    state = empty_state(u, v)
    gradient = run.evaluate(coordinates, state)
    state[:, -1] = persistent
    return state, gradient


def pushed(run, u, v, persistent, step, friction=0.0):
    """Return states before and after a transition, and the chunk."""
    before, gradient = chains_at(run, u, v, persistent)
    after = before.copy()
    setting = TunedParameters(step, 1, friction, COORDINATES, 1)
    out = run.advance(setting, Ensemble(after, gradient, keys_of(len(u)), 3), 1)
    return before, after, out


def points(seed, chains=CHAINS):
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, chains, D))
    return u, v, rng.uniform(-1.0, 1.0, chains)


def climbed(persistent, climb=CLIMB):
    persistent = persistent + climb
    return np.where(persistent >= 1.0, persistent - 2.0, np.where(persistent < -1.0, persistent + 2.0, persistent))


def log_joint(state):
    """Return the log density of position and velocity."""
    return state[:, 4 * D] - 0.5 * np.sum(state[:, D : 2 * D] ** 2, axis=1)


@every_backend
def test_an_accepted_proposal_keeps_the_height_under_the_density_and_a_rejected_one_turns_round(engines, backend):
    before, after, out = pushed(engines(backend), *points(1), step=0.8)
    tested, persistent, accept = climbed(before[:, -1]), after[:, -1], out.accept[:, 0]
    moved = np.any(after[:, :D] != before[:, :D], axis=1)
    assert 20 < (~moved).sum() < 80
    np.testing.assert_array_equal(moved, np.abs(tested) < accept)
    under, under_new = (np.log(np.abs(s)) + log_joint(x) for s, x in ((tested, before), (persistent, after)))
    np.testing.assert_allclose(under_new[moved], under[moved], rtol=0.0, atol=1e-11)
    np.testing.assert_array_equal(np.sign(persistent), np.sign(tested))
    assert np.all(np.abs(persistent) < 1.0)
    expected = before[~moved].copy()
    expected[:, D : 2 * D] *= -1.0
    np.testing.assert_array_equal(after[~moved, : 4 * D + 1], expected[:, : 4 * D + 1])
    np.testing.assert_allclose(persistent[~moved], tested[~moved], rtol=0.0, atol=1e-15)


@every_backend
@pytest.mark.parametrize("step", [0.1, 0.5, 1.2])
@pytest.mark.parametrize("mode", [0, LEAVES.index("steep")], ids=["smooth", "steep"])
def test_a_transition_followed_by_a_flip_is_its_own_inverse(engines, backend, step, mode):
    run, refined = engines(backend, mode), 0
    for seed in range(20, 32):
        u, v, persistent = points(seed)
        u[:, 0] = -np.abs(u[:, 0])  # on the good side of the wall
        _, after, out = pushed(run, u, v, persistent, step)
        u_new, v_new = after[:, :D], after[:, D : 2 * D]
        _, back, out_back = pushed(run, u_new, -v_new, climbed(after[:, -1], -CLIMB), step)
        expected = np.column_stack([u, -v, climbed(persistent)])
        # The wall of the steep one multiplies what rounding leaves.
        close = 1e-5 if mode else 1e-8
        found = np.column_stack([back[:, : 2 * D], back[:, -1]])
        exact = np.abs(after[:, -1]) > 1e-6  # a number smaller than that is rounded where it climbs
        np.testing.assert_allclose(found[exact], expected[exact], rtol=close, atol=close)
        np.testing.assert_array_equal(out_back.refined[exact], out.refined[exact])
        assert exact.mean() > 0.9
        refined += out.refined.sum()
    assert (refined > 30) == (step > 0.1)


@every_backend
def test_a_transition_stretches_volumes_by_the_inverse_ratio_of_the_densities(engines, backend):
    """Take the derivative by central differences, of errors of 1e-8."""
    width, size, kinds = 1e-5, 2 * D + 1, []
    for seed in range(10):
        u, v, persistent = points(10 + seed, POINTS)
        at = np.column_stack([u, v, persistent])
        ways = width * np.vstack([np.zeros(size), np.eye(size), -np.eye(size)])
        around = (at[:, None] + ways).reshape(CHAINS, size)
        before, after, out = pushed(engines(backend), around[:, :D], around[:, D : 2 * D], around[:, -1], 0.8)
        moved = np.any(after[:, :D] != before[:, :D], axis=1).reshape(POINTS, -1) + out.refined.reshape(POINTS, -1)
        mapped = np.column_stack([after[:, : 2 * D], after[:, -1]]).reshape(POINTS, -1, size)
        ratio = np.exp(log_joint(before) - log_joint(after)).reshape(POINTS, -1)[:, 0]
        for point in range(POINTS):
            if moved[point].min() == moved[point].max():  # else the edge between both is too near
                there = mapped[point, 1:].reshape(2, size, size)
                volume = np.linalg.det((there[0] - there[1]) / (2.0 * width))
                assert abs(abs(volume) / ratio[point] - 1.0) < 1e-5
                kinds.append(moved[point, 0])
    # Rejected proposals, accepted ones, and accepted ones that were refined.
    assert min(kinds.count(kind) for kind in range(3)) >= 2 and len(kinds) > 20


@every_backend
def test_a_chain_at_rest_draws_number_and_velocity_and_others_beside_it_do_not(engines, backend):
    run = engines(backend)
    u, v, persistent = points(4)
    rest = np.arange(CHAINS) % 3 == 0
    _, moving, _ = pushed(run, u, v, persistent, 0.3, friction=0.7)
    _, resting, _ = pushed(run, u, v, 1.0, 0.3, friction=0.7)
    _, mixed, _ = pushed(run, u, v, np.where(rest, 1.0, persistent), 0.3, friction=0.7)
    np.testing.assert_array_equal(mixed, np.where(rest[:, None], resting, moving))
    _, others, _ = pushed(run, u, 0.0 * v + 7.0, 1.0, 0.3, friction=0.7)
    np.testing.assert_array_equal(others, resting)
    assert np.all(np.abs(resting[:, -1]) < 1.0) and len(np.unique(resting[:, -1])) == CHAINS
    assert not np.any(moving == resting, axis=0)[D : 2 * D].any()


def plain_log_ratio(u, v, step, mode):
    """Return the log ratio of a proposal, by the whole energy; NaN where a value is not finite."""

    def at(y):
        lp, gradient = rough_numpy(COORDINATES.centre + COORDINATES.scale * y, mode)
        return lp, COORDINATES.scale * gradient + y

    lp, b = at(u)
    v_new = v + 0.5 * step * b
    u_new = np.cos(step) * u + np.sin(step) * v_new
    lp_new, b_new = at(u_new)
    v_new = np.cos(step) * v_new - np.sin(step) * u + 0.5 * step * b_new
    found = lp_new - lp + 0.5 * (v @ v - v_new @ v_new)
    return found if np.isfinite(lp_new) and np.all(np.isfinite(v_new)) else np.nan


@every_backend
@pytest.mark.parametrize("mode", range(len(LEAVES)), ids=LEAVES)
def test_divergences_are_counted_and_what_is_not_finite_is_never_accepted(engines, backend, mode):
    u, v, persistent = points(5)
    u[:, 0] = -np.abs(u[:, 0])
    step = 0.9
    run = engines(backend, mode)
    before, after, out = pushed(run, u, v, persistent, step)
    ratio = np.array([plain_log_ratio(*row, step, mode) for row in zip(u, v, strict=True)])
    lost, low = np.isnan(ratio), ratio < np.log(DIVERGENCE)
    assert (lost.sum() > 5) == (1 <= mode <= 5) and low.sum() > 5
    moved = np.any(after[:, :D] != before[:, :D], axis=1)
    refined, unstable = out.refined[:, 0] > 0, out.unstable[:, 0] > 0
    first = np.where(lost, 0.0, np.exp(np.minimum(ratio, 0.0)))
    np.testing.assert_allclose(out.accept[:, 0], np.where(refined, 1.0, first), rtol=1e-9)
    # A first proposal that is as bad as that is a divergence, unless a shorter one is better.
    assert np.all((lost | low)[unstable]) and not moved[unstable].any()
    np.testing.assert_array_equal(moved[lost | low], refined[lost | low])
    np.testing.assert_array_equal(out.model_failures[:, 0], 0)
    wanted = np.abs(climbed(persistent)) >= FAR_BELOW * np.where(lost, 0.0, np.exp(np.minimum(ratio, 700.0)))
    np.testing.assert_array_equal(out.n_grad[:, 0] > 1, wanted)
    assert refined.sum() > 3 and not np.any(refined & ~wanted)
    assert np.all(np.isfinite(after)) and np.all(np.isfinite(out.lp)) and np.all(np.isfinite(out.evaluation))


@every_backend
def test_a_chain_in_a_place_too_steep_for_any_proposal_diverges(engines, backend):
    u, v, persistent = points(7)
    u = 40.0 * np.sign(u)  # the force there is 6e4
    before, after, out = pushed(engines(backend), u, v, persistent, 1.2)
    np.testing.assert_array_equal(out.unstable, 1)
    np.testing.assert_array_equal(out.refined, 0)
    np.testing.assert_array_equal(after[:, :D], before[:, :D])
    np.testing.assert_array_equal(after[:, D : 2 * D], -before[:, D : 2 * D])


@every_backend
@pytest.mark.parametrize("mode", range(1, 6), ids=LEAVES[1:6])
def test_chains_stay_where_values_are_finite(engines, backend, mode):
    u, v, _ = points(6)
    u[:, 0] = -np.abs(u[:, 0])
    run = engines(backend, mode)
    state, gradient = chains_at(run, u, v, 1.0)
    out = run.advance(TunedParameters(0.4, 1, 0.5, COORDINATES, 1), Ensemble(state, gradient, keys_of(CHAINS)), 100)
    assert out.position[:, :, 0].max() < 0.8 and out.unstable.sum() > CHAINS
    assert np.all(np.isfinite(state)) and np.all(np.isfinite(out.lp)) and np.all(np.isfinite(out.evaluation))
    assert (np.diff(out.position[:, :, 0], axis=1) != 0.0).mean(axis=1).min() > 0.2, "no chain is stuck"


@every_backend
@pytest.mark.parametrize("step", [0.2, 1.7])
def test_on_a_gaussian_that_the_coordinates_whiten_every_proposal_is_accepted(backend, step):
    """With the linear part in the flow there is nothing to correct, however long the step: the numbers only climb."""
    run = gaussian_engine(GHMC, D, 3) if backend == "jax" else engine(GHMC, D, gaussian)
    unit = Coordinates(np.zeros(D), np.ones(D))
    u = np.array([[3.0, -1.0, 0.2, 8.0], [0.1, 0.2, 0.3, 0.4], [-30.0, 20.0, 0.0, 1.0]])
    persistent = np.array([0.5, -0.999, 0.999])
    state, gradient = chains_at(run, u, u[::-1] / 10.0, persistent, unit)
    out = run.advance(TunedParameters(step, 1, 0.5, unit, 1), Ensemble(state, gradient, keys_of(3)), 40)
    np.testing.assert_allclose(out.accept, 1.0, rtol=0.0, atol=2e-12)
    for _ in range(40):
        persistent = climbed(persistent)
    np.testing.assert_allclose(state[:, -1], persistent, rtol=0.0, atol=1e-10)
    assert out.unstable.sum() == 0


# -- the law -----------------------------------------------------------------------------------------------------------


@cfunc(SIGNATURE)
def bent(x, gradient, table, n):
    # x[0] and what x[1] is beyond a parabola are standard normals.
    miss = 2.0 * (x[1] - 0.5 * x[0] ** 2)
    gradient[0], gradient[1] = -x[0] + 2.0 * miss * x[0], -2.0 * miss
    return -0.5 * x[0] ** 2 - 0.5 * miss**2


def bent_jax(x):
    return -0.5 * x[0] ** 2 - 0.5 * (2.0 * (x[1] - 0.5 * x[0] ** 2)) ** 2


def straightened(x):
    """Return what are independent standard normals under the law of ``bent``, ``(..., 2)``."""
    return np.stack([x[..., 0], 2.0 * (x[..., 1] - 0.5 * x[..., 0] ** 2)], axis=-1)


def z_of(values, expected):
    return (values.mean(axis=0) - expected) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))


@pytest.mark.statistical
@pytest.mark.parametrize("step", [0.45, 1.1])
@pytest.mark.parametrize("precision", ["numba", "float64", "mixed", "float32"])
def test_chains_that_begin_in_the_target_stay_there(precision, step):
    """Begin with exact draws of a bent law at rest: position, velocity and number have their laws ever after."""
    chains, rows, coordinates = 4000, 60, Coordinates(np.array([0.3, 0.4]), np.array([0.9, 0.6]))
    if precision == "numba":
        run = engine(GHMC, 2, bent)
    else:
        run = JaxEngine(GHMC, JaxDensity.of_function(bent_jax, 2), chains, precision)
    e = np.random.default_rng(8).standard_normal((chains, 2))
    x = np.column_stack([e[:, 0], 0.5 * e[:, 1] + 0.5 * e[:, 0] ** 2])
    state, gradient = chains_at(run, coordinates.whiten(x), np.zeros((chains, 2)), 1.0, coordinates)
    setting = TunedParameters(step, 1, 0.5, coordinates, 1)
    out = run.advance(setting, Ensemble(state, gradient, keys_of(chains)), rows)
    often = out.refined.mean()
    assert (0.003 < often < 0.01 and out.n_grad.mean() < 1.2) if step < 1.0 else often > 0.05, often

    e = straightened(out.position)
    for power, expected in ((1, 0.0), (2, 1.0), (4, 3.0)):
        assert np.abs(z_of((e**power).mean(axis=1), expected)).max() < 4.5, power
    assert abs(z_of((e[..., 0] * e[..., 1]).mean(axis=1), 0.0)) < 4.5
    assert abs(z_of((e[..., 0] ** 2 * e[..., 1]).mean(axis=1), 0.0)) < 4.5
    # Position, velocity and persistent number at the end, and that they are independent.
    last, v, persistent = e[:, -1], state[:, 2:4], state[:, -1]
    for j in range(2):
        assert kstest(last[:, j], "norm").pvalue > 1e-6
        assert kstest(v[:, j], "norm").pvalue > 1e-6
    assert kstest(persistent, "uniform", args=(-1.0, 2.0)).pvalue > 1e-6
    every = np.column_stack([last, v, np.sqrt(3.0) * persistent])
    every = np.column_stack([every, every**2 - (every**2).mean(axis=0)])
    for i in range(every.shape[1]):
        for j in range(i):
            if i != j + 5:
                assert abs(z_of(every[:, i] * every[:, j], 0.0)) < 4.5, (i, j)
