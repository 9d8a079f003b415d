"""One transition: the unrolled step against the sequential definition, and the proposal of the adjusted method.

Every identity holds for the noise and the midpoints at hand, to rounding; the seeds only choose the points.
"""

import numpy as np
import pytest
from covering import pairs
from reference import cell_midpoint, fine_times, flow, gather, sequential, unrolled

from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED
from pmm_mcmc.langevin.midpoints import cell_weight
from pmm_mcmc.langevin.transitions import (
    CLIMB,
    DIVERGENCE,
    FAR_BELOW,
    advanced_persistent,
    end,
    far_below,
    harmonic_log_ratio,
    interpolate,
    kick,
    noise,
    path,
    refreshed,
    renewal,
)

pytestmark = pytest.mark.quick

NAMES = {OVERDAMPED: "overdamped", UNDERDAMPED: "underdamped", HARMONIC: "harmonic"}
DRIFTS = {
    "double well": lambda x: x - x**3,
    "sine": lambda x: 2.0 * np.sin(3.0 * x),
    "coupled": lambda x: np.cos(np.roll(x, 1)) * x - np.sum(x) ** 2,
}
ALPHA, FRICTION, D = 0.4, 1.7, 3


def package_step(dynamics, K, cells, state, drift, gap_noise, offset, last=None):
    """Compose the package's own functions as an engine does; ``last`` is the paper's ``i_{N+1}``."""

    def at(h):
        return getattr(flows, NAMES[dynamics])(h, FRICTION)

    (u, v), (mu, mv, cu, cv) = state, np.zeros((4, state.shape[1]))
    b, reached = drift(u), 0.0
    for i in cells:
        time = ALPHA * (i + offset) / K
        mu, mv = path(mu, mv, *gap_noise(reached, time), at(time - reached))
        y = interpolate(u, v, b, mu, at(time))
        wu, wv = cell_weight(at(ALPHA * (K - 1 - i) / K), at(ALPHA / K), K)
        cu, cv = cu + wu * (drift(y) - b), cv + wv * (drift(y) - b)
        reached = time
    stop = ALPHA if last is None else ALPHA * last / K
    mu, mv = path(mu, mv, *gap_noise(reached, stop), at(stop - reached))
    return np.array(end(u, v, b, mu, mv, cu, cv, at(ALPHA)))


def patterns(K, option, rng):
    """Return marked cells to try: none, all and some at random, or each single one."""
    if option == 2:
        return [np.array([i]) for i in sorted({*range(min(K, 4)), K // 2, K - 1})]
    return [np.arange(0), np.arange(K), *(np.flatnonzero(rng.random(K) < p) for p in (1 / K, 0.3, 0.6))]


def problem(dynamics, K, centred, seed):
    rng = np.random.default_rng(seed)
    state = rng.standard_normal((2, D))
    if dynamics == OVERDAMPED:
        state[1] = 0.0
    times = fine_times(K, ALPHA, centred)
    z = rng.standard_normal((len(times) - 1, 2, D))
    return rng, state, z, lambda start, stop: gather(dynamics, FRICTION, times, z, start, stop)


@pytest.mark.parametrize(
    ("dynamics", "option", "grid", "K", "drift"),
    pairs(NAMES, (1, 2), ("left", "centred"), (1, 2, 3, 4, 16, 64), DRIFTS),
)
def test_unrolled_step_is_the_sequential_definition(dynamics, option, grid, K, drift):
    centred, b = grid == "centred", DRIFTS[drift]
    rng, state, z, gap_noise = problem(dynamics, K, centred, seed=K)
    for cells in patterns(K, option, rng):
        marks = np.isin(np.arange(K), cells)
        expected = sequential(dynamics, FRICTION, ALPHA, K, marks, state, b, z, centred)
        new = package_step(dynamics, K, cells, state, b, gap_noise, 0.5 * centred)
        np.testing.assert_allclose(new, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dynamics", NAMES)
def test_the_reference_s_unrolled_step_is_its_sequential_one(dynamics):
    K = 8
    rng, state, z, gap_noise = problem(dynamics, K, False, seed=5)
    b = DRIFTS["coupled"]
    for cells in patterns(K, 1, rng):
        weighted = [cell_midpoint(dynamics, FRICTION, ALPHA, K, i, 0.0) for i in cells]
        new, _ = unrolled(dynamics, FRICTION, ALPHA, weighted, state, b(state[0]), b, gap_noise)
        marks = np.isin(np.arange(K), cells)
        expected = sequential(dynamics, FRICTION, ALPHA, K, marks, state, b, z)
        np.testing.assert_allclose(new, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("K", [2, 4, 16])
@pytest.mark.parametrize("dynamics", NAMES)
def test_the_printed_last_index_is_wrong(dynamics, K):
    """Show that ``i_{N+1} = K - 1`` loses the noise of the last cell, a difference of the size of that noise."""
    _, state, z, gap_noise = problem(dynamics, K, False, seed=K)
    b = DRIFTS["double well"]
    expected = sequential(dynamics, FRICTION, ALPHA, K, np.zeros(K), state, b, z)
    for last, agrees in ((K, True), (K - 1, False)):
        new = package_step(dynamics, K, [], state, b, gap_noise, 0.0, last=last)
        difference = np.abs(new - expected).max()
        assert difference < 1e-12 if agrees else difference > 0.1, (last, difference)


def test_one_cell_is_plain_overdamped_langevin_exactly():
    rng = np.random.default_rng(1)
    u, w = rng.standard_normal((2, D))
    b = DRIFTS["coupled"](u)
    gap = flows.overdamped(ALPHA, FRICTION)
    zero = np.zeros(D)
    for cells in ([], [0]):  # the marked cell has its midpoint at the start, and corrects nothing
        new = package_step(
            OVERDAMPED, 1, cells, np.array([u, zero]), DRIFTS["coupled"],
            lambda start, stop: noise(zero, w, gap) if stop > start else (zero, zero), 0.0,
        )  # fmt: skip
        np.testing.assert_array_equal(new[0], u + ALPHA * b + np.sqrt(2.0 * ALPHA) * w)


def test_one_cell_is_the_exponential_integrator():
    """Compare with the closed forms of underdamped LMC as the paper prints them."""
    rng = np.random.default_rng(2)
    state, w = rng.standard_normal((2, D)), rng.standard_normal((2, D))
    b = DRIFTS["coupled"](state[0])
    decay = np.exp(-FRICTION * ALPHA)
    gap = noise(w[0], w[1], flows.underdamped(ALPHA, FRICTION))
    new = package_step(
        UNDERDAMPED, 1, [0], state, DRIFTS["coupled"],
        lambda start, stop: np.array(gap) if stop > start else np.zeros((2, D)), 0.0,
    )  # fmt: skip
    u = state[0] + (1 - decay) / FRICTION * state[1] + (ALPHA - (1 - decay) / FRICTION) / FRICTION * b + gap[0]
    v = decay * state[1] + (1 - decay) / FRICTION * b + gap[1]
    np.testing.assert_allclose(new, [u, v], rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("dynamics", NAMES)
def test_noise_has_the_covariance_of_the_flow(dynamics):
    for h in (1e-3, 0.1, 1.5):
        gap = getattr(flows, NAMES[dynamics])(h, FRICTION)
        root = np.column_stack([noise(1.0, 0.0, gap), noise(0.0, 1.0, gap)])
        np.testing.assert_allclose(root, flow(dynamics, h, FRICTION)[2], rtol=1e-12, atol=1e-15)


# -- the proposal of generalised HMC, and its test ---------------------------------------------------------------------


def potential(x):
    """Return a potential, quartic and coupled, that is far from a Gaussian's."""
    return np.sum(x**4) / 4.0 + np.sum(np.cos(x * np.roll(x, 1)))


def force(x):
    return -(x**3) + np.sin(x * np.roll(x, 1)) * np.roll(x, 1) + np.sin(x * np.roll(x, -1)) * np.roll(x, -1)


def proposal(u, v, step, force=force):
    """Compose the package's own functions as an engine does; return the end and the kinetic energy of both kicks."""
    kicked, first = kick(v, u + force(u), step)
    u_new, v_new = path(u, kicked, 0.0, 0.0, flows.harmonic(step, 0.0))
    v_new, second = kick(v_new, u_new + force(u_new), step)
    return u_new, v_new, first + second


def energy(u, v):
    return potential(u) + 0.5 * v @ v


def log_ratio(u, v, step):
    u_new, _, gained = proposal(u, v, step)
    return potential(u) - potential(u_new) + (harmonic_log_ratio(u, u_new) - gained).sum()


POINTS = np.random.default_rng(3).standard_normal((20, 2, D))


@pytest.mark.parametrize("step", [0.01, 0.3, 1.2])
def test_a_proposal_followed_by_a_flip_of_the_velocity_is_an_involution(step):
    for u, v in POINTS:
        u_new, v_new, gained = proposal(u, v, step)
        back, v_back, lost = proposal(u_new, -v_new, step)
        # Rounding grows with the force, cubic in the position.
        np.testing.assert_allclose([back, -v_back], [u, v], rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(lost, -gained, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("step", [0.01, 0.3, 1.2])
def test_a_proposal_preserves_volume(step):
    """Take the derivative by imaginary steps, which are exact to rounding."""
    for u, v in POINTS:
        columns = []
        for direction in 1e-30j * np.eye(2 * D):
            u_new, v_new, _ = proposal(u + direction[:D], v + direction[D:], step)
            columns.append(np.concatenate([u_new, v_new]).imag / 1e-30)
        assert abs(np.linalg.det(columns) - 1.0) < 1e-11


@pytest.mark.parametrize("step", [0.01, 0.3, 1.2])
def test_the_log_ratio_is_the_fall_of_the_whole_energy(step):
    for u, v in POINTS:
        u_new, v_new, _ = proposal(u, v, step)
        expected = energy(u, v) - energy(u_new, v_new)
        assert abs(log_ratio(u, v, step) - expected) < 1e-13 * (10.0 + abs(energy(u_new, v_new)))


def test_the_energy_error_of_a_step_is_of_its_third_order():
    for u, v in POINTS:
        scaled = [log_ratio(u, v, h) / h**3 for h in (0.004, 0.002, 0.001)]
        # The next order is seen: it halves with the step.
        first, second = scaled[0] - scaled[1], scaled[1] - scaled[2]
        assert abs(second) < 0.7 * abs(first) + 1e-5 * abs(scaled[2]), scaled
        assert abs(first) < 0.1 * abs(scaled[2]) + 0.1, scaled
    # One whole kick in place of two halves has an error of second order.
    errors = []
    for h in (2e-4, 1e-4):
        kicked, _ = kick(v, u + force(u), 2.0 * h)
        errors.append(energy(*path(u, kicked, 0.0, 0.0, flows.harmonic(h, 0.0))) - energy(u, v))
    assert 3.9 < errors[0] / errors[1] < 4.1


def test_on_a_gaussian_that_the_coordinates_whiten_a_proposal_is_a_rotation():
    for u, v in POINTS:
        u_new, v_new, gained = proposal(u, v, 1.9, force=lambda x: -x)
        np.testing.assert_array_equal(gained, 0.0)
        angle = np.cos(1.9) + 1j * np.sin(1.9)
        np.testing.assert_allclose(u_new + 1j * v_new, (u + 1j * v) / angle, rtol=0.0, atol=1e-14)
        fall = 0.5 * (u - u_new) * (u + u_new)
        np.testing.assert_array_equal(fall + harmonic_log_ratio(u, u_new), 0.0)


@pytest.mark.parametrize("retained", [0.0, 0.3, 0.99, 1.0])
def test_a_refreshed_velocity_has_the_normal_law(retained):
    """It is a rotation of the pair of the velocity and the fresh number, of which it keeps the share."""
    shares = retained, renewal(retained)
    row = np.array([refreshed(1.0, 0.0, *shares), refreshed(0.0, 1.0, *shares)])
    assert row[0] == retained and row @ row == pytest.approx(1.0, abs=1e-15)
    v, w = POINTS[0]
    np.testing.assert_allclose(refreshed(v, w, *shares), row[0] * v + row[1] * w, rtol=0.0, atol=1e-15)


def test_heights_move_round_their_interval_and_keep_the_uniform_law():
    numbers = (np.arange(2000) - 1000) / 1000.0
    advanced = advanced_persistent(numbers)
    # The points of the grid are mapped to its points, each once.
    np.testing.assert_allclose(np.sort(advanced), numbers, rtol=0.0, atol=1e-15)
    turned = (advanced - numbers - CLIMB + 1.0) % 2.0 - 1.0
    np.testing.assert_allclose(turned, 0.0, rtol=0.0, atol=1e-15)
    assert 0.0 < CLIMB < 1.0
    for dtype in (np.float64, np.float32):
        one = dtype(1.0)
        around = one - dtype(CLIMB) + np.arange(-4, 5).astype(dtype) * np.finfo(dtype).eps
        edges = np.concatenate([around, [-one, np.nextafter(one, -one), 0.0, np.nextafter(-one, one)]]).astype(dtype)
        found = advanced_persistent(edges)
        assert found.dtype == dtype and np.all((found >= -1.0) & (found < 1.0))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_accepted_height_leaves_its_interval(dtype):
    """What is below the ratio stays below 1 when it is divided by it: a chain with a 1 there would be at rest."""
    rng = np.random.default_rng(4)
    ratio = np.exp(rng.uniform(-20.0, 20.0, 200_000)).astype(dtype)
    ratio = np.concatenate([ratio, np.nextafter(dtype(2.0) ** np.arange(-20, 20).astype(dtype), dtype(0.0))])
    assert ratio.dtype == dtype
    assert np.all(np.nextafter(ratio, dtype(0.0)) / ratio < 1.0)


def test_what_is_far_below_a_height_is_below_it_by_a_margin():
    numbers, ratios = np.meshgrid(np.linspace(-1.0, 1.0, 41), np.concatenate([[0.0], np.geomspace(1e-6, 10.0, 60)]))
    below = far_below(ratios, numbers)
    assert FAR_BELOW > 1.0 and not (below & (np.abs(numbers) < ratios)).any()
    assert below[0].all(), "what is not finite has the ratio 0"
    # Heights divided by the ratio of a proposal lie as far above what is beyond it.
    np.testing.assert_array_equal(far_below(4.0 * ratios, 4.0 * numbers), below)
    np.testing.assert_array_equal(far_below(ratios, -numbers), below)
    assert pytest.approx(-10.0, abs=1e-3) == np.log(DIVERGENCE)
