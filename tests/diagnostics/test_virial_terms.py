"""The virial terms: expectation zero, ridge regression, which functions they are used for, and what is left.

The hierarchical model is a normal one with known noise: the posterior of its log scale alone is known by quadrature.
Its *biased* law, too, is exact: given the scale the effects are too wide by the factor by which a step too long
inflates a variance of theirs, and the scale has the marginal law of that joint density.

Statistical statements use independent replications: z-scores with |z| < 4.5 (some 1e-5 each), and counts that a
correct program leaves their bounds with once in 1e5.
"""

from dataclasses import replace

import numpy as np
import pytest
from results import estimated, z_of_mean
from scipy import stats

from pmm_mcmc.diagnostics import control_variates
from pmm_mcmc.diagnostics.control_variates import Corrected, Fold, Folds, _Fit, corrected, inverse_normal_matrix

pytestmark = pytest.mark.quick

Z, RARE = 4.5, 1e-5
NINETY_FIVE = stats.t.isf(0.025, 15)


class Hierarchy:
    """Effects ``N(0, exp(2 t))`` seen with noise; coordinates are ``t``, then the effects."""

    def __init__(self, effects, noise, prior_sd, widening):
        self.n, self.noise, self.prior_sd, self.widening = effects, noise, prior_sd, widening
        self.y = np.random.default_rng(0).normal(size=effects) * np.sqrt(1.0 + noise**2)
        self.t = np.linspace(-6.0 * prior_sd, 6.0 * prior_sd, 20_001)
        variance = np.exp(2.0 * self.t) + noise**2
        log = -0.5 * ((self.t / prior_sd) ** 2 + effects * np.log(variance) + np.sum(self.y**2) / variance)
        self.law = {
            "exact": np.exp(log - log.max()),
            "biased": np.exp(log - log.max()) * self.factor(self.t) ** (effects / 2),
        }
        self.truth, self.sd = self.moments("exact")
        self.bias = self.moments("biased")[0] - self.truth

    def precision(self, t):
        return np.exp(-2.0 * t) + 1.0 / self.noise**2

    def factor(self, t):
        """By how much effects of a given scale are too wide: the more, the narrower they are."""
        return 1.0 + self.widening * self.precision(t)

    def moments(self, law):
        weight = self.law[law] / self.law[law].sum()
        mean = weight @ self.t
        return mean, np.sqrt(weight @ (self.t - mean) ** 2)

    def draw(self, rng, shape, law):
        """Return independent draws and the gradients of the posterior's log density there."""
        cumulative = np.cumsum(self.law[law])
        t = np.interp(rng.random(shape), cumulative / cumulative[-1], self.t)[..., None]
        precision = self.precision(t)
        sd = np.sqrt((self.factor(t) if law == "biased" else 1.0) / precision)
        effect = self.y / self.noise**2 / precision + sd * rng.normal(size=(*shape, self.n))
        pull = np.sum(effect**2, axis=-1, keepdims=True) * np.exp(-2.0 * t) - self.n - t / self.prior_sd**2
        gradient = (self.y - effect) / self.noise**2 - effect * np.exp(-2.0 * t)
        return np.concatenate([t, effect], axis=-1), np.concatenate([pull, gradient], axis=-1)


# In the first nearly all of the log scale is explained, in the second two thirds of its error.
WELL, PARTLY = Hierarchy(16, 4.0, 0.4, 0.02), Hierarchy(10, 4.0, 0.5, 0.02)


def log_scale(model, law, runs, seed):
    """Return corrected estimates of the log scale's mean, over independent runs, as fields of arrays ``(runs,)``."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(runs):
        x, g = model.draw(rng, (4, 500), law)
        found.append(estimated(x[..., :1], x, g, np.array([0])))
    return Corrected(*(np.concatenate(field) for field in zip(*found, strict=True)))


def vary(monkeypatch, **thresholds):
    monkeypatch.setattr(control_variates, "THRESHOLDS", replace(control_variates.THRESHOLDS, **thresholds))


def without_virial_terms(monkeypatch):
    vary(monkeypatch, gain_of_virial=np.inf)


def virial_terms(x, g, fitted):
    return Fold(x, g, np.arange(len(x)), fitted).virial_terms()


# -- terms -------------------------------------------------------------------------------------------------------------


def correlated_gaussian(rng, n):
    root = np.array([[1.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0], [-1.0, 0.5, 0.1, 0.0], [0.0, 1.0, 1.0, 10.0]])
    z = rng.normal(size=(n, 4))
    return 5.0 + z @ root.T, -z @ np.linalg.inv(root)


def heavy_tailed(rng, n):
    x = rng.standard_t(3, size=(n, 4))
    return x, -4.0 * x / (3.0 + x**2)


EXACT = {
    "Gaussian": correlated_gaussian,
    "hierarchy": lambda rng, n: WELL.draw(rng, (n,), "exact"),
    "heavy tails": heavy_tailed,
}


@pytest.mark.statistical
@pytest.mark.parametrize("most", [300, 2])
@pytest.mark.parametrize("name", EXACT)
def test_terms_have_expectation_zero(monkeypatch, name, most):
    """Whatever the draws that the centre was taken from, one for each coordinate or summed."""
    vary(monkeypatch, virial_terms=most, draws_a_cubic_term=20)
    x, g = EXACT[name](np.random.default_rng(1), 40_000)
    x[:400] = 1.0 + 1.3 * x[:400]
    terms = virial_terms(x, g, 400)[400:]
    linear, cubic = (17, 0) if name == "hierarchy" else (4, 4)
    assert terms.shape == (39_600, min(linear, most) + cubic)
    z = z_of_mean(terms)
    assert np.all(z < Z), z


def test_sums_hold_every_coordinate_once():
    rng = np.random.default_rng(2)
    x, g = rng.normal(size=(800, 50)), rng.normal(size=(800, 50))
    each = (x - x[:400].mean(axis=0)) * g + 1.0
    found = virial_terms(x, g, 400)
    assert found.shape == (800, 20), "one for 20 draws"
    np.testing.assert_allclose(found.sum(axis=1), each.sum(axis=1), atol=1e-9)
    np.testing.assert_allclose(
        found[:, :3], np.stack([each[:, a : a + n].sum(axis=1) for a, n in ((0, 2), (2, 3), (5, 2))], axis=1)
    )
    np.testing.assert_allclose(virial_terms(x[:, :20], g[:, :20], 400), each[:, :20])
    assert virial_terms(x[:, :1], g[:, :1], 400).shape == (800, 0), "its own second term"


@pytest.mark.parametrize("bend", [0.3, 3.0])
def test_the_sd_of_a_function_bent_along_a_coordinate_is_known_and_so_is_its_bias(bend):
    """Its square is a fourth power: of draws of a normal law that are 3 % too wide it is 5 to 6 % too wide."""
    rng = np.random.default_rng(5)
    x = 1.03 * rng.normal(size=(4, 1000, 2))
    y = bend * (x[..., 0] ** 2 - 1.0) + x[..., 1]
    _, variance = corrected(y[..., None], Folds(x, -x), np.array([-1]))
    truth = 1.0 + 2.0 * bend**2
    assert variance.used[0] and abs(variance.value[0] / truth - 1.0) < 0.03
    assert abs(variance.bias[0] / truth - (y.var() / truth - 1.0)) < 0.03


# -- regression --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.005, 10.0])
def test_regression_is_least_squares_with_a_ridge_on_the_shared_terms(monkeypatch, ridge):
    """Written out with one matrix for each function; the ridge as rows of zeros to be fitted."""
    order = 3
    vary(monkeypatch, ridge=ridge)
    rng = np.random.default_rng(3)
    n, p, m = 200, 5, 7
    shared = rng.normal(size=(n, m)) @ rng.normal(size=(m, m)) * np.geomspace(1e-3, 1e3, m) + 3.0
    terms = rng.normal(size=(order, n, p)) + shared[:, :1] / shared[:, 0].std()
    values = 2.0 + terms.sum(axis=0) + shared @ rng.normal(size=(m, p)) / 1e3 + rng.normal(size=(n, p))
    h = shared - shared.mean(axis=0)
    own, more = _Fit(terms, h, inverse_normal_matrix(h)).of(values)[-1]
    assert own.shape == (order, p) and more.shape == (m, p)
    weight = np.sqrt(ridge * n) * shared.std(axis=0)
    for i in range(p):
        design = np.column_stack([np.ones(n), terms[:, :, i].T, shared])
        rows = np.column_stack([np.zeros((m, 1 + order)), np.diag(weight)])
        unit = np.abs(design).max(axis=0)
        expected = np.linalg.lstsq(np.vstack([design, rows]) / unit, np.r_[values[:, i], np.zeros(m)])[0] / unit
        np.testing.assert_allclose(own[:, i], expected[1 : 1 + order], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(more[:, i] * unit[1 + order :], (expected * unit)[1 + order :], rtol=1e-6, atol=1e-8)


def test_without_shared_terms_nothing_is_shared():
    rng = np.random.default_rng(4)
    terms, values = rng.normal(size=(3, 100, 3)), rng.normal(size=(100, 3))
    for own, more in _Fit(terms, np.zeros((100, 0)), np.zeros((0, 0))).of(values):
        assert more.shape == (0, 3)
        for i in range(3):
            design = np.column_stack([np.ones(100), terms[: len(own), :, i].T])
            np.testing.assert_allclose(own[:, i], np.linalg.lstsq(design, values[:, i])[0][1:], rtol=1e-9)


# -- for which functions -----------------------------------------------------------------------------------------------


def test_functions_that_have_no_use_of_them_are_as_without(monkeypatch):
    """To the bit: here nearly all effects.  The others are better off by the factor that is asked for."""
    x, g = WELL.draw(np.random.default_rng(5), (4, 500), "biased")
    f, own = np.concatenate([x, np.exp(x[..., :1])], axis=-1), np.r_[np.arange(17), -1]
    found = estimated(f, x, g, own)
    without_virial_terms(monkeypatch)
    plain = estimated(f, x, g, own)
    gain = (plain.unexplained / found.unexplained) ** 2
    same = gain == 1.0
    assert same.sum() > 12 and np.all(gain[~same] > 1.5) and np.all(gain[[0, 17]] > 10.0)
    for with_them, by_direction in zip(found, plain, strict=True):
        np.testing.assert_array_equal(with_them[..., same], by_direction[..., same])
    assert found.used[[0, 17]].all() and not plain.used[[0, 17]].any()


# -- a scale that moves with the spread of others ----------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("model", [WELL, PARTLY], ids=["well", "partly"])
def test_the_mean_of_a_log_scale_is_closer_to_the_truth(monkeypatch, model):
    """Of its bias of a fifth of a standard deviation less than a third is left, where there was nearly all."""
    found = log_scale(model, "biased", 40, seed=6)
    without_virial_terms(monkeypatch)
    plain = log_scale(model, "biased", 40, seed=6)
    assert -0.25 < model.bias / model.sd < -0.2
    assert abs(np.mean(found.plain) - model.truth - model.bias) < Z * np.std(found.plain) / np.sqrt(40)
    error, before = (np.sqrt(np.mean((each.value - model.truth) ** 2)) for each in (found, plain))
    assert np.mean(np.abs(found.value - model.truth) <= np.abs(plain.value - model.truth)) > 0.9
    assert abs(np.mean(found.value) - model.truth) < 0.33 * abs(np.mean(plain.value) - model.truth)
    assert error < 0.6 * before


@pytest.mark.statistical
@pytest.mark.parametrize(("model", "alone"), [(WELL, 0.8), (PARTLY, 0.95)], ids=["well", "partly"])
def test_measured_bias_and_what_is_left_cover_the_true_one(model, alone):
    """Where the noise of corrected means alone would cover the truth less often than ``alone``."""
    found = log_scale(model, "biased", 60, seed=7)
    used = found.used
    assert np.mean(used) > 0.8
    whole = np.abs(found.bias) / (1.0 - found.unexplained) + 2.0 * found.bias_se
    assert np.all(whole[used] > np.abs(model.bias)) and np.all(found.bias[used] < -2.0 * found.bias_se[used])
    assert np.all(whole[used] < 3.0 * np.abs(model.bias)), "and not by being far too large"
    off, noise = np.abs(found.value - model.truth), found.unexplained * found.plain_se
    inside = np.sum((off < NINETY_FIVE * found.se)[used])
    assert inside >= stats.binom.ppf(RARE, used.sum(), 0.95)
    assert np.mean((off < NINETY_FIVE * noise)[used]) < alone


@pytest.mark.statistical
@pytest.mark.parametrize("model", [WELL, PARTLY], ids=["well", "partly"])
def test_exact_draws_of_a_hierarchy_stay_unbiased(model):
    found = log_scale(model, "exact", 100, seed=8)
    assert np.mean(found.used) > 0.9 and np.median(found.unexplained**2) < 0.1
    assert z_of_mean(found.value - model.truth) < Z
    assert z_of_mean(found.bias[found.used]) < Z
    inside = np.sum(np.abs(found.value - model.truth) < NINETY_FIVE * found.se)
    assert inside >= stats.binom.ppf(RARE, 100, 0.95)


# -- what is left ------------------------------------------------------------------------------------------------------


def test_what_is_left_and_when_it_counts():
    """Functions that the terms explain in part, some of them off by more than two errors, some by less."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(4, 500, 24)) + np.repeat([0.0, 0.0, 0.12, 0.3], 6)
    f = x + np.linspace(0.1, 1.3, 24)[rng.permutation(24)] * rng.normal(size=x.shape)
    found = estimated(f, x, -x, np.full(24, -1))
    used, error = found.used, found.unexplained * found.plain_se
    sure = used & (np.abs(found.bias) > 2.0 * found.bias_se)
    assert sure.sum() > 4 and (used & ~sure).sum() > 4 and (~used).sum() > 4
    np.testing.assert_allclose(found.se[used & ~sure], error[used & ~sure], rtol=1e-12)
    np.testing.assert_array_equal(found.se[~used], found.plain_se[~used])
    beyond = np.abs(found.bias) - 2.0 * found.bias_se
    expected = np.sqrt(error**2 + (found.unexplained / (1.0 - found.unexplained) * beyond) ** 2)
    np.testing.assert_allclose(found.se[sure], expected[sure], rtol=1e-12)
    assert np.all(found.se[sure] > error[sure])
