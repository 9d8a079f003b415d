"""One transition: the unrolled step against the sequential definition, and the detailed balance of adjusted methods.

Every identity holds for the noise and the midpoints at hand, to rounding; the seeds only choose the points.
"""

import numpy as np
import pytest
from reference import cell_midpoint, fine_times, flow, gather, sequential, unrolled
from scipy.stats import norm

from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED
from pmm_mcmc.langevin.midpoints import cell_weight
from pmm_mcmc.langevin.transitions import end, interpolate, kick, mala_log_ratio, malt_log_ratio, noise, path, refreshed

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


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("K", [1, 2, 3, 4, 16, 64])
@pytest.mark.parametrize("grid", ["left", "centred"])
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("dynamics", NAMES)
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


def log_density(x):
    return np.sum(0.5 * x**2 - 0.25 * x**4)


def log_flux(x, y, step, log_accept):
    """Return log density at ``x``, plus that of the proposal to ``y``, plus the log acceptance probability."""
    proposal = norm.logpdf(y, x + step * DRIFTS["double well"](x), np.sqrt(2.0 * step)).sum()
    return log_density(x) + proposal + min(0.0, log_accept)


def log_acceptance(x, y, step, with_ratio=True):
    b = DRIFTS["double well"]
    ratio = np.sum(mala_log_ratio(x, b(x), y, b(y), step)) if with_ratio else 0.0
    return log_density(y) - log_density(x) + ratio


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("d", [1, 4])
def test_mala_is_in_detailed_balance_with_its_target(step, d):
    rng = np.random.default_rng(3)
    worst_without = 0.0
    for _ in range(200):
        x = rng.standard_normal(d)
        y = x + step * DRIFTS["double well"](x) + np.sqrt(2.0 * step) * rng.standard_normal(d)
        there = log_flux(x, y, step, log_acceptance(x, y, step))
        back = log_flux(y, x, step, log_acceptance(y, x, step))
        assert abs(there - back) < 1e-12 * max(1.0, abs(there))
        there = log_flux(x, y, step, log_acceptance(x, y, step, with_ratio=False))
        back = log_flux(y, x, step, log_acceptance(y, x, step, with_ratio=False))
        worst_without = max(worst_without, abs(there - back))
    assert worst_without > 0.1


@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize("friction", [0.1, 1.7])
def test_trajectories_are_in_detailed_balance(K, friction):
    """Compare the log ratio with densities of the whole path and of its reversal, which keep volumes but for noise."""
    rng, step = np.random.default_rng(K), 0.6
    gap, kept = flows.harmonic(step, 0.0), np.exp(-friction * step)

    def potential(x):  # quartic, coupled
        return np.sum(x**4) / 4.0 + np.sum(np.cos(x * np.roll(x, 1)))

    def force(x):
        return -(x**3) + np.sin(x * np.roll(x, 1)) * np.roll(x, 1) + np.sin(x * np.roll(x, -1)) * np.roll(x, -1)

    def moved(before, after):  # log density of what friction makes of a velocity
        return norm.logpdf(after, kept * before, np.sqrt(1.0 - kept**2)).sum()

    for _ in range(20):
        u, v = rng.standard_normal((2, D))
        forward, backward, gained, first = norm.logpdf(v).sum(), 0.0, 0.0, u
        for _ in range(K):
            slowed = refreshed(v, rng.standard_normal(D), kept)
            forward, backward = forward + moved(v, slowed), backward + moved(-slowed, -v)
            kicked, gain = kick(slowed, force(u) + u, step)
            u_new, v_new = path(u, kicked, 0.0, 0.0, gap)
            back, _ = kick(-kick(v_new, force(u_new) + u_new, step)[0], force(u_new) + u_new, step)
            there, back = path(u_new, back, 0.0, 0.0, gap)
            np.testing.assert_allclose([there, kick(back, force(u) + u, step)[0]], [u, -slowed], atol=1e-13)
            u, (v, second) = u_new, kick(v_new, force(u_new) + u_new, step)
            gained = gained + gain + second
        backward += norm.logpdf(v).sum()
        found = potential(first) - potential(u) + malt_log_ratio(first, u, gained).sum()
        expected = potential(first) - potential(u) + backward - forward
        assert abs(found - expected) < 1e-8 * max(1.0, abs(expected), abs(forward), abs(backward))
