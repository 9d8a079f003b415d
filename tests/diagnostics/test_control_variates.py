"""Stein-corrected expectations and the Stein identity, against exact moments of known targets.

Exact statements are checked to rounding or to the damping of the scale.  Statistical ones use independent
replications: z-scores of their mean with |z| < 4.5 (some 1e-5 each), and counts within the central binomial interval
that a correct program leaves once in 1e5.
"""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from covering import pairs
from results import estimated, moments, z_of_mean
from scipy import special, stats

from pmm_mcmc.coordinates.affine import affine_scale, diagonal_scale
from pmm_mcmc.diagnostics import control_variates, parameters
from pmm_mcmc.diagnostics.control_variates import Fold, Folds, corrected, own_terms
from pmm_mcmc.diagnostics.reading import Run, table_of
from pmm_mcmc.warmup.stein_identity import standard_error, stein_identity

Z, RARE = 4.5, 1e-5


def rotated(d, condition, rng):
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return (q * np.geomspace(1.0, condition, d)) @ q.T


def gaussian_gradient(x, mean, covariance):
    return -np.linalg.solve(covariance, (x - mean).reshape(-1, len(mean)).T).T.reshape(x.shape)


def whitened_error(root, centre, mean, covariance):
    """Largest error of a fitted covariance and centre, in units of the true ones."""
    lower = np.linalg.cholesky(covariance)
    ratio = np.linalg.solve(lower, np.linalg.solve(lower, root @ root.T).T)
    return max(np.abs(ratio - np.eye(len(mean))).max(), np.abs(np.linalg.solve(lower, centre - mean)).max())


def within(count, n, probability):
    return stats.binom.ppf(RARE / 2, n, probability) <= count <= stats.binom.isf(RARE / 2, n, probability)


# name: exact draws, gradient of the log density, mean, variance
TARGETS = {
    "logistic": (lambda rng, s: rng.logistic(size=s), lambda x: -np.tanh(x / 2), 0.0, np.pi**2 / 3),
    "student": (lambda rng, s: rng.standard_t(8, size=s), lambda x: -9 * x / (8 + x * x), 0.0, 8 / 6),
    "gumbel": (lambda rng, s: rng.gumbel(size=s), lambda x: np.exp(-x) - 1, np.euler_gamma, np.pi**2 / 6),
    "log gamma": (
        lambda rng, s: np.log(rng.gamma(4, size=s)),
        lambda x: 4 - np.exp(x),
        special.digamma(4),
        special.polygamma(1, 4),
    ),
}


# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "surplus", "distance"), pairs((1, 2, 5, 20), (1, 2, 50), (0.0, 10.0)))
def test_affine_scale_is_exact_on_a_rotated_gaussian(d, surplus, distance):
    rng = np.random.default_rng(d)
    covariance, mean = rotated(d, 1e3, rng), 10 * rng.normal(size=d)
    x = mean + distance * rng.normal(size=d) + rng.normal(size=(d + surplus, d))
    centre, root = affine_scale(x, gaussian_gradient(x, mean, covariance), dense=True, damping=0.0)
    assert whitened_error(root, centre, mean, covariance) < 1e-5


def test_damping_is_an_error_of_first_order():
    rng = np.random.default_rng(1)
    covariance, mean = rotated(10, 1e3, rng), rng.normal(size=10)
    x = mean + 2.0 * rng.normal(size=(200, 10)) @ np.linalg.cholesky(covariance).T
    g = gaussian_gradient(x, mean, covariance)
    errors = [
        whitened_error(*affine_scale(x, g, dense=True, damping=damping)[::-1], mean, covariance)
        for damping in (1e-4, 1e-3)
    ]
    assert 9.5 < errors[1] / errors[0] < 10.5
    assert errors[1] < 1e-3


def test_diagonal_form_is_the_diagonal_scale():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(9, 6)) * np.geomspace(1e-3, 1e3, 6)
    g = rng.normal(size=(9, 6)) / np.geomspace(1e-2, 1e2, 6)
    assert np.array_equal(affine_scale(x, g, dense=False)[1], diagonal_scale(x, g, np.ones(6))[1])
    sd, mean = np.geomspace(1e-3, 1e3, 6), rng.normal(size=6)
    far = mean + sd * (50.0 + rng.normal(size=(2, 6)))
    centre, root = affine_scale(far, (mean - far) / sd**2, dense=False)
    np.testing.assert_allclose(root, sd, rtol=1e-9)
    np.testing.assert_allclose((centre - mean) / sd, 0.0, atol=1e-7)


# -- corrected expectations: what is exact -----------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 2, 4])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_means_and_second_moments_of_any_gaussian_are_exact(d, chains):
    """From draws of another Gaussian: shifted, too wide and with other correlations."""
    rng = np.random.default_rng(10 * d + chains)
    covariance, mean = rotated(d, 1e3, rng), 10 * rng.normal(size=d)
    wrong = np.linalg.cholesky(covariance) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d))
    x = mean + wrong @ np.full(d, 0.3) + rng.normal(size=(chains, 400 // chains, d)) @ wrong.T
    g = gaussian_gradient(x, mean, covariance)
    J = np.vstack([np.eye(d), rng.normal(size=(3, d))])
    f, truth, variance = x @ J.T, J @ mean, np.einsum("ij,jk,ik->i", J, covariance, J)
    own = np.r_[np.arange(d), [-1] * 3]
    for known in (own, None):
        first, second = moments(f, x, g, known)
        assert first.used.all() and second.used.all()
        np.testing.assert_allclose((first.value - truth) / np.sqrt(variance), 0.0, atol=3e-5)
        np.testing.assert_allclose(second.value / variance, 1.0, atol=3e-5)
    np.testing.assert_allclose(first.plain, f.mean(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_allclose(first.bias, first.plain - first.value, rtol=0, atol=1e-9)
    assert np.all(np.abs(first.plain - truth)[:d] > 1e-3)


@pytest.mark.parametrize("chains", [1, 3])
def test_many_coordinates_are_exact_where_they_are_uncorrelated(chains):
    rng = np.random.default_rng(chains)
    d = 310
    sd, mean = np.geomspace(1e-3, 1e3, d), rng.normal(size=d)
    x = mean + sd * (0.5 + 1.4 * rng.normal(size=(chains, 60, d)))
    g = (mean - x) / sd**2
    for own in (np.arange(d), None):
        first, second = moments(x, x, g, own)
        np.testing.assert_allclose((first.value - mean) / sd, 0.0, atol=1e-9)
        np.testing.assert_allclose(second.value / sd**2, 1.0, atol=1e-9)


@pytest.mark.parametrize("chains", [1, 3])
def test_what_gradients_do_not_explain_has_the_plain_mean(chains):
    rng = np.random.default_rng(8)
    x = 5.0 + rng.normal(size=(chains, 320, 2))
    values = np.concatenate([x, rng.normal(size=x.shape)], axis=-1)  # the latter are not explained
    found = estimated(values, x, 5.0 - x)
    assert found.used.tolist() == [True, True, False, False]
    np.testing.assert_allclose(found.value[:2], 5.0, rtol=1e-10)
    np.testing.assert_allclose(found.value[2:], values[..., 2:].mean(axis=(0, 1)), atol=0.02)


def test_units_and_origin_do_not_matter():
    rng = np.random.default_rng(3)
    draw, gradient, _, _ = TARGETS["logistic"]
    mix = np.eye(4) + 0.4 * rng.normal(size=(4, 4))
    y = draw(rng, (4, 200, 4))
    x, g = y @ mix.T, gradient(y) @ np.linalg.inv(mix)
    f = np.concatenate([x, np.exp(0.2 * x[..., :2])], axis=-1)
    own = np.array([0, 1, 2, 3, -1, -1])
    unit, origin = np.array([1e-6, 1e6, 1.0, 1e3]), np.array([1e-6, -3e6, 5.0, 0.0])
    f_unit, f_origin = np.r_[unit, 1e-6, 1e6], np.r_[origin, 1e-6, -1e6]
    for known in (own, None):
        plain = estimated(f, x, g, known)
        scaled = estimated(f * f_unit + f_origin, x * unit + origin, g / unit, known)
        assert np.array_equal(plain.used, scaled.used) and plain.used.all()
        np.testing.assert_allclose((scaled.value - f_origin) / f_unit, plain.value, rtol=0, atol=1e-7)
        for name in ("se", "bias", "bias_se", "plain_se"):
            np.testing.assert_allclose(getattr(scaled, name) / f_unit, getattr(plain, name), rtol=1e-5, atol=1e-8)


def test_constants_and_values_that_are_not_finite_spoil_nothing():
    rng = np.random.default_rng(4)
    x = rng.logistic(size=(4, 100, 2))
    g = -np.tanh(x / 2)
    alone = estimated(x, x, g)
    bad = np.stack([np.full((4, 100), 0.1), *(x[..., 0].copy() for _ in range(2))], axis=-1)
    bad[1, 7, 1:] = np.nan, np.inf
    found = estimated(np.concatenate([x, bad], axis=-1), x, g)
    for mine, theirs in zip(found, alone, strict=True):
        np.testing.assert_array_equal(mine[..., :2], theirs)
    assert found.value[2] == found.plain[2] == 0.1 and found.se[2] == found.bias[2] == found.bias_se[2] == 0.0
    assert not found.used[3:].any()
    fields = (found.value, found.se, found.bias, found.bias_se, found.unexplained)
    assert all(np.isnan(array[3:]).all() for array in fields)


def test_a_coordinate_that_does_not_move_is_no_obstacle():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 100, 3))
    x[..., 1] = 0.5
    found = estimated(x, x, -x, np.arange(3))
    np.testing.assert_allclose(found.value[[0, 2]], 0.0, atol=1e-5)
    assert found.value[1] == 0.5


# -- corrected expectations: what is true on average -------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("name", TARGETS)
def test_terms_have_expectation_zero(name):
    """Whatever they were fitted to: here draws that are shifted and too wide, in correlated coordinates."""
    rng = np.random.default_rng(6)
    draw, gradient, _, _ = TARGETS[name]
    mix = np.array([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [-1.0, 0.5, 1.5]])
    y = draw(rng, (40_000, 3))
    y[:200] = 1.0 + 1.3 * y[:200]
    x, g = y @ mix.T, gradient(y) @ np.linalg.inv(mix)
    functions = np.column_stack([x, np.exp(0.2 * x[:, 0]), x[:, 0] * x[:, 1]])
    fold = Fold(x, g, np.arange(len(x)), 200)
    directions = fold.directions(functions[:200], np.array([0, 1, -1, -1, -1]))
    terms = np.stack(own_terms(*fold.along(directions)))[:, 200:]
    assert terms.shape == (3, 39_800, 5)
    z = z_of_mean(terms.transpose(1, 0, 2))
    assert np.all(z < Z), z


@pytest.mark.statistical
@pytest.mark.parametrize(("chains", "draws"), [(4, 100), (1, 400), (2, 200)])
@pytest.mark.parametrize("name", ["logistic", "log gamma"])
def test_errors_follow_a_t_distribution(name, chains, draws):
    """Of corrected means and of biases, with as many degrees of freedom as there are pieces less one."""
    rng = np.random.default_rng(7)
    draw, gradient, mean, _ = TARGETS[name]
    limit, errors, biases = stats.t.isf(0.025, 15), [], []
    for _ in range(125):
        x = draw(rng, (chains, draws, 4))
        found = estimated(x, x, gradient(x), np.arange(4))
        assert found.used.all()
        errors.append((found.value - mean) / found.se)
        biases.append(found.bias / found.bias_se)  # these draws have none
    for z in (np.array(errors), np.array(biases)):
        # The larger of two standard errors is taken: a little more than nominal is covered.
        assert within(np.sum(np.abs(z) < limit), z.size, 0.96), np.mean(np.abs(z) < limit)


@pytest.mark.statistical
def test_error_of_the_bias_is_its_standard_deviation():
    """Of functions a quarter of whose variance the terms cannot explain: not the error of the raw mean."""
    rng = np.random.default_rng(14)
    bias, error = [], []
    for _ in range(120):
        x = rng.normal(size=(1, 400, 16))
        found = estimated(x + np.sqrt(1 / 3) * rng.normal(size=x.shape), x, -x, np.arange(16))
        bias.append(found.bias[found.used])
        error.append(found.bias_se[found.used])
    bias, error = np.concatenate(bias), np.concatenate(error)
    assert len(bias) > 1500
    assert abs(np.std(bias) / np.sqrt(np.mean(error**2)) - 1.0) < Z / np.sqrt(2 * len(bias))


def test_raw_is_favoured_where_most_functions_are_not_explained():
    rng = np.random.default_rng(26)
    x = rng.normal(size=(4, 500, 1))
    # Good enough for the first rule, not for the stricter second one.
    partly = x + 0.9 * rng.normal(size=x.shape)
    alone = estimated(partly, x, -x)
    assert 0.4 < alone.unexplained[0] ** 2 < 0.5 and alone.used[0]
    noise = rng.normal(size=(4, 500, 9))
    among = estimated(np.concatenate([partly, noise], axis=-1), x, -x)
    assert 0.4 < among.unexplained[0] ** 2 < 0.5 and not among.used.any()


@pytest.mark.statistical
def test_many_coordinates_are_not_overfitted():
    """A function that the terms cannot explain, in nearly as many coordinates as there are draws to fit them."""
    rng = np.random.default_rng(8)
    z, kept = [], []
    for _ in range(300):
        x = rng.normal(size=(4, 30, 28))
        f = np.cos(3.0 * x[..., :2].sum(axis=-1, keepdims=True))
        found = estimated(f, x, -x)
        z.append((found.value - np.exp(-9.0)) / found.se)
        kept.append(~found.used)
    assert within(np.sum(np.abs(z) < stats.t.isf(0.025, 15)), len(z), 0.96)
    assert np.mean(kept) > 0.95
    assert np.isnan(found.bias[0]) and found.value == found.plain


def mixture(rng, shape, apart, weight, stay):
    """Draws of two unit Gaussians that change mode with probability ``1 - stay``; gradients; mean and variance."""
    chains, draws, d = shape
    mode = np.empty(shape, dtype=bool)
    mode[:, 0] = rng.random((chains, d)) < weight
    for i in range(1, draws):
        mode[:, i] = np.where(rng.random((chains, d)) < stay, mode[:, i - 1], rng.random((chains, d)) < weight)
    x = rng.normal(size=shape) + np.where(mode, apart / 2, -apart / 2)
    upper = special.expit(apart * x + np.log(weight / (1 - weight)))
    mean = (weight - 0.5) * apart
    return x, upper * apart - apart / 2 - x, mean, 1.0 + apart**2 / 4 - mean**2


@pytest.mark.statistical
@pytest.mark.parametrize(("apart", "stay", "chains"), pairs((3.0, 4.0, 7.0), (0.0, 0.95), (1, 4)))
def test_correction_does_no_harm_between_modes(apart, stay, chains):
    """Root mean square errors over 30 replications of 4 coordinates, at most 1.5 times the raw ones."""
    rng = np.random.default_rng(9)
    raw, corrected = [], []
    for _ in range(30):
        x, g, mean, variance = mixture(rng, (chains, 600 // chains, 4), apart, 0.7, stay)
        first, second = moments(x, x, g, np.arange(4))
        truth = np.array([[mean], [variance]])
        raw.append(np.array([first.plain, second.plain]) - truth)
        corrected.append(np.array([first.value, second.value]) - truth)
    raw, corrected = (np.sqrt(np.mean(np.square(e), axis=(0, 2))) for e in (raw, corrected))
    assert np.all(corrected < 1.5 * raw), corrected / raw


@pytest.mark.statistical
def test_functions_of_the_parameters():
    """Transformed and nonlinear functions of a correlated Gaussian: less than a third of the raw error, and honest."""
    rng = np.random.default_rng(10)
    lower = np.array([[1.0, 0.0], [0.8, 0.6]])
    inverse = np.linalg.inv(lower @ lower.T)
    truth = np.array([np.exp(0.125), 0.5, np.exp(0.18), special.ndtr(0.0)])
    z, raw, corrected = [], [], []
    for _ in range(200):
        x = rng.normal(size=(4, 150, 2)) @ lower.T
        a, b = x[..., 0], x[..., 1]
        s = np.exp(a / 2)
        f = np.stack([s, special.expit(a + b), np.exp((a + b) / np.sqrt(10)), special.ndtr(2 * b)], axis=-1)
        found = estimated(f, x, -x @ inverse)
        z.append((found.value - truth) / found.se)
        raw.append(found.plain - truth)
        corrected.append(found.value - truth)
    assert np.all(np.std(corrected, axis=0) < np.std(raw, axis=0) / 3)
    assert np.all(z_of_mean(corrected) < Z)
    inside = (np.abs(z) < stats.t.isf(0.025, 15)).sum(axis=0)
    assert all(within(count, len(z), 0.95) for count in inside), inside


# -- standard errors and the identity ----------------------------------------------------------------------------------


def test_the_standard_error_takes_the_larger_of_pieces_and_chains():
    rng = np.random.default_rng(11)
    values = rng.normal(size=(4, 160, 2))
    pieces = values.reshape(16, 40, 2).mean(axis=1).std(axis=0, ddof=1) / 4
    chains = values.mean(axis=1).std(axis=0, ddof=1) / 2
    np.testing.assert_allclose(standard_error(values), np.maximum(pieces, chains), rtol=1e-12)
    apart = values + np.arange(4.0)[:, None, None]
    np.testing.assert_allclose(standard_error(apart), apart.mean(axis=1).std(axis=0, ddof=1) / 2, rtol=1e-12)
    np.testing.assert_allclose(
        standard_error(values[:1]), values[0].reshape(16, 10, 2).mean(axis=1).std(axis=0, ddof=1) / 4
    )


def test_identity_measures_the_error_of_the_variance():
    """On a Gaussian the excess is the relative error of the variance of the draws, whatever their mean."""
    rng = np.random.default_rng(12)
    sd = np.array([1e-4, 1.0, 1e4])
    x = sd * (7.0 + np.sqrt(1.3) * rng.normal(size=(3, 400, 3)))
    excess, z, mean_square, _ = stein_identity(x, -x / sd**2)
    np.testing.assert_allclose(excess, x.var(axis=(0, 1)) / sd**2 - 1.0, rtol=1e-9)
    assert np.all(np.abs(excess - 0.3) / (excess / z) < Z) and np.all(z > 3.0)
    assert 0.02 < mean_square < 0.08  # 0.3 ** 2 / 2
    assert np.isnan(stein_identity(x[:1], -x[:1] / sd**2).mean_square)


@pytest.mark.statistical
def test_identity_is_honest_on_exact_draws():
    rng = np.random.default_rng(13)
    draw, gradient, _, _ = TARGETS["logistic"]
    z, squares, biased = [], [], []
    for _ in range(300):
        x = draw(rng, (4, 200, 3))
        _, score, mean_square, _ = stein_identity(x, gradient(x))
        z.append(score)
        squares.append(mean_square)
        y = np.sqrt(1.2) * rng.normal(size=(4, 200, 3))
        biased.append(stein_identity(y, -y).mean_square)
    assert within(np.sum(np.abs(z) < stats.t.isf(0.025, 15)), np.size(z), 0.96)
    assert z_of_mean(squares) < Z
    # The mean is estimated too: of the excess, 1.2 / N is lost.
    assert z_of_mean(np.array(biased) - 0.5 * (0.2 - 1.2 / 800) ** 2) < Z


@pytest.mark.statistical
def test_many_chains_are_left_out_in_groups_and_few_draws_fitted(monkeypatch):
    """Groups and thinned fits are as good as one chain at a time: the same estimates within a tenth of an error."""
    rng = np.random.default_rng(8)
    x = 0.1 + 1.05 * rng.normal(size=(48, 100, 2))
    found = {}
    for folds, fitted in ((48, 10**9), (16, 100_000), (16, 600)):
        varied = replace(control_variates.THRESHOLDS, folds=folds, fitted_draws=fitted)
        monkeypatch.setattr(control_variates, "THRESHOLDS", varied)
        made = Folds(x, -x)
        assert len(made.members) == folds and max(fold.fitted for fold, _ in made.members) <= fitted
        found[folds, fitted] = corrected(np.exp(0.3 * x), made, np.full(2, -1))[0]
    one = found[48, 10**9]
    assert np.all(np.abs(one.bias) > 4.5 * one.bias_se)
    for other in found.values():
        np.testing.assert_allclose(other.value, one.value, atol=0.1 * one.plain_se.max())
        assert np.all(other.se < 0.3 * one.plain_se)
    np.testing.assert_allclose(found[16, 100_000].se, one.se, rtol=0.3)


# -- folds -------------------------------------------------------------------------------------------------------------


def many_coordinates(rng):
    """Draws of 310 coordinates, and functions of which some are coordinates, some near one, and one is a constant."""
    x = rng.normal(size=(4, 60, 310)) * np.geomspace(0.1, 10.0, 310)
    near = np.exp(0.3 * x[..., [300, 2, 150]] / x[..., [300, 2, 150]].std()) + 0.01 * x[..., [1, 2, 3]]
    return x, -x / np.geomspace(0.01, 100.0, 310), np.concatenate([x[..., ::100], near, np.ones((4, 60, 1))], axis=-1)


def test_positions_are_copied_some_coordinates_at_a_time(monkeypatch):
    """A few coordinates at a time, or all: the same estimates."""
    x, g, f = many_coordinates(np.random.default_rng(40))
    own = np.array([0, 100, 200, 300, -1, -1, -1, -1])
    expected, _ = corrected(f, Folds(x, g), own)
    for copied in (240 * 7, 1, 2**20):
        monkeypatch.setattr(control_variates, "_COPIED", copied)
        parts = Folds(x, g)
        flat = f.reshape(-1, f.shape[2])
        for fold, _ in parts.members:
            assert fold.directions(flat[fold.rows[: fold.fitted]], own)[4:7].tolist() == [300, 2, 150]
        for mine, theirs in zip(corrected(f, parts, own)[0], expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-13)


def test_folds_are_made_once_for_all_parameters(monkeypatch):
    """However many slabs the parameters are read in; it was once for each, so that time grew with the square of d."""
    x, g, f = many_coordinates(np.random.default_rng(41))
    posterior = xr.Dataset({f"f{i}": (("chain", "draw"), f[..., i]) for i in range(f.shape[2])})
    run = Run(posterior, {}, position=x, gradient=g, sampled_position=x)
    monkeypatch.setattr(parameters, "SLAB", 8 * 4 * 60 * 2)
    assert len(list(run.parameters.slabs())) == 4
    fits, inverses = [], []
    scale, inverse = control_variates.affine_scale, control_variates.inverse_normal_matrix
    monkeypatch.setattr(control_variates, "affine_scale", lambda *a, **k: fits.append(a) or scale(*a, **k))
    monkeypatch.setattr(control_variates, "inverse_normal_matrix", lambda h: inverses.append(h) or inverse(h))
    table = table_of(run)
    assert len(fits) == len(inverses) == 4, "one for each chain that is left out"
    np.testing.assert_allclose(table["mean_cv"].iloc[:4], 0.0, atol=1e-9)
