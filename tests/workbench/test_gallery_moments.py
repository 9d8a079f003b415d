"""Exact references of the gallery by second methods: exact draws, importance sampling, closed forms.

Draws are compared with the moments of the reference, and with the log density by Stein's identities
``E[d_i log p] = 0`` and ``E[x_i d_i log p] = -1``; the weights of modes with shares of draws. Importance sampling
starts from the log density alone. All are z-scores at fixed seeds, some 900 of them with |z| < 5.5: a false-alarm rate
of 900 * 4e-8 = 4e-5 for all. Other tolerances are for rounding or for quadrature.
"""

import jax
import numpy as np
import pytest
from scipy.special import iv, logsumexp

from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.targets import hierarchical, moments, potentials, regressions

LIMIT = 5.5
EXACT = [name for name in targets.list() if targets.get(name).reference.exact]
DRAWN = [name for name in targets.list() if targets.get(name).draw is not None]
MODAL = [name for name in DRAWN if targets.get(name).find_modes is not None]
# Squares of the funnel's other coordinates have no moments that draws could find.
JUDGED = {"funnel": slice(0, 1)}


def densities(target, x):
    """Log densities and gradients of a batch, compiled."""
    density = target.log_density()
    with jax.enable_x64(True):
        return tuple(np.asarray(a) for a in jax.jit(lambda q: density.batch(q, [], "float64"))(x))


def z(values, truth):
    """How many standard errors the mean of independent values lies from the truth, column by column."""
    return (values.mean(axis=0) - truth) / (values.std(axis=0) / np.sqrt(len(values)) + 1e-300)


def test_every_exact_reference_has_draws_to_check_it():
    assert set(EXACT) == set(DRAWN) and len(EXACT) == 12


@pytest.mark.statistical
@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_the_moments_of_the_reference(name):
    target, judged = targets.get(name), JUDGED.get(name, slice(None))
    known = target.reference
    x = target.sample(50_000, np.random.default_rng(10))[:, judged]
    second, variance = known.second_moment[judged], known.square_variance[judged]
    assert np.all(np.abs(z(x, known.mean[judged])) < LIMIT)
    assert np.all(np.abs(z(x**2, second)) < LIMIT)
    assert np.all(np.abs(z((x**2 - second) ** 2, variance)) < LIMIT)


@pytest.mark.statistical
@pytest.mark.parametrize("name", DRAWN)
def test_draws_follow_the_log_density(name):
    target = targets.get(name)
    x = target.sample(20_000, np.random.default_rng(11))
    _, gradient = densities(target, x)
    assert np.all(np.abs(z(gradient, 0.0)) < LIMIT)
    assert np.all(np.abs(z(x * gradient, -1.0)) < LIMIT)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MODAL)
def test_shares_of_draws_are_the_weights_of_the_modes(name):
    target = targets.get(name)
    modes, n = target.modes, 20_000 if name == "phi4_ring" else 200_000
    found = modes.label(target.sample(n, np.random.default_rng(12)))
    assert np.all(np.abs(z(found[:, None] == np.arange(len(modes.names)), modes.weights)) < LIMIT)


# -- importance sampling -----------------------------------------------------------------------------------------------


def from_wells(rng, n):
    a = 1.3 * rng.normal(size=(n, 1))
    x = np.concatenate([a, a + 0.6 * rng.normal(size=(n, 4))], axis=1)
    return x, -0.5 * (a[:, 0] / 1.3) ** 2 - 0.5 * (((x[:, 1:] - a) / 0.6) ** 2).sum(axis=1)


def from_lines(rng, n):
    centre, sd = np.array([0.0, 0.0, -0.5]), np.array([0.7, 0.9, 0.6])
    # Heavier tails than the posterior's: Student-t of five degrees of freedom.
    t = rng.standard_t(5, size=(n, 3))
    return centre + sd * t, -3 * np.log1p(t**2 / 5).sum(axis=1)


def from_schools_prior(rng, n, centred):
    mu, tau, effect = 5 * rng.normal(size=n), 5 * np.abs(rng.standard_cauchy(n)), rng.normal(size=(n, 8))
    rest = mu[:, None] + tau[:, None] * effect if centred else effect
    own = -0.5 * (effect**2).sum(axis=1) - (8 * np.log(tau) if centred else 0.0)
    # The density of log tau in place of tau.
    log_q = own - 0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + np.log(tau)
    return np.column_stack([mu, np.log(tau), rest]), log_q


PROPOSALS = {
    "double_well": from_wells,
    "student_t_regression": from_lines,
    "eight_schools": lambda rng, n: from_schools_prior(rng, n, False),
    "eight_schools_centred": lambda rng, n: from_schools_prior(rng, n, True),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", PROPOSALS)
def test_quadratures_against_importance_sampling(name):
    target = targets.get(name)
    x, log_q = PROPOSALS[name](np.random.default_rng(13), 300_000)
    log_weight = densities(target, x)[0] - log_q
    weight = np.exp(log_weight - logsumexp(log_weight))
    assert 1 / (weight**2).sum() > 5_000
    known = target.reference
    checks = [(x, known.mean), (x**2, known.second_moment), ((x**2 - known.second_moment) ** 2, known.square_variance)]
    if target.modes is not None:
        checks.append((target.modes.label(x)[:, None] == [[0, 1]], target.modes.weights))
    for values, truth in checks:
        error = np.sqrt(weight**2 @ (values - truth) ** 2)
        assert np.all(np.abs(weight @ values - truth) < LIMIT * error)


# -- quadratures by themselves -----------------------------------------------------------------------------------------


def test_quadratures_have_converged():
    for centred in (False, True):
        close(hierarchical.schools_reference(centred, 1001), hierarchical.schools_reference(centred), 1e-6)
    close(regressions.student_t_reference((120, 200, 50)), regressions.student_t_reference(), 2e-6)


def close(found, known, rtol):
    for field in ("mean", "second_moment", "square_variance"):
        np.testing.assert_allclose(getattr(found, field), getattr(known, field), rtol=rtol)


def test_ring_of_three_sites_is_the_integral_over_all_of_them():
    def log_transfer(a, b):
        return -((a - b) ** 2) - 0.3 * (a**4 + b**4) + 0.1 * (a + b)

    ring = moments.Ring(log_transfer, 3, -4.0, 4.0, 81)
    a, b, c = np.meshgrid(*[ring.nodes] * 3, indexing="ij")
    weight = np.exp(log_transfer(a, b) + log_transfer(b, c) + log_transfer(c, a))
    expected = [(weight * b**k).sum() / weight.sum() for k in (1, 2, 4)]
    np.testing.assert_allclose(ring.site.moments(), expected, rtol=1e-10)


@pytest.mark.statistical
def test_neighbours_on_the_ring_are_correlated_as_the_transfer_matrix_says():
    x = targets.get("phi4_ring").sample(20_000, np.random.default_rng(14))
    law = potentials.ring_law()
    for gap in (1, 5, 12, 23):
        there = law._power(gap) * law._power(law.sites - gap)
        expected = law.nodes @ there @ law.nodes / there.sum()
        assert abs(z((x * np.roll(x, gap, axis=1)).mean(axis=1), expected)) < LIMIT
    assert expected > 0.3


def test_rippled_moments_are_those_of_a_gaussian_and_its_draws_have_ripples():
    target = targets.get("rippled")
    np.testing.assert_allclose(target.reference.second_moment, 1.0, rtol=1e-10)
    np.testing.assert_allclose(target.reference.square_variance, 2.0, rtol=1e-10)
    x = target.sample(20_000, np.random.default_rng(17))
    # But for exp(-32), the wave of the ripples has the mean of von Mises' law.
    assert np.all(np.abs(z(np.cos(8 * x), iv(1, 0.5) / iv(0, 0.5))) < LIMIT)


def test_moments_of_banana_and_funnel_in_closed_form():
    # b = 3 (u^2 - 1) + e, with E (u^2 - 1)^2 = 2 and E (u^2 - 1)^4 = 60.
    banana = targets.get("banana").reference
    np.testing.assert_allclose(banana.second_moment, [100.0] * 5 + [19.0] * 5, rtol=1e-12)
    np.testing.assert_allclose(banana.square_variance, [2e4] * 5 + [81 * 60 + 6 * 18 + 3 - 19**2] * 5, rtol=1e-12)
    funnel = targets.get("funnel").reference
    y = moments.Grid.of(lambda y: -0.5 * (y / 3) ** 2, -40.0, 60.0, 4001)
    second, fourth = np.exp(y.nodes) @ y.weight, 3 * np.exp(2 * y.nodes) @ y.weight
    np.testing.assert_allclose(funnel.second_moment, [9.0] + [second] * 9, rtol=1e-10)
    np.testing.assert_allclose(funnel.square_variance, [162.0] + [fourth - second**2] * 9, rtol=1e-10)


def test_student_t_regression_has_two_modes_and_a_valley_between_them():
    slope = regressions.student_t_cube().marginal(1)
    rise = np.sign(np.diff(slope.weight[(slope.nodes > -1.5) & (slope.nodes < 1.5)]))
    assert np.sum((rise[:-1] > 0) & (rise[1:] < 0)) == 2
    up, down = slope.weight[slope.nodes > 0].max(), slope.weight[slope.nodes < 0].max()
    assert slope.weight[np.abs(slope.nodes) < 0.5].min() < 0.3 * min(up, down)
