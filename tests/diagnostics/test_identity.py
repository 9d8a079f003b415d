"""The Stein identity as a check of convergence: its standard error, its false alarms, and what it must refuse.

False alarms are counted at fixed seeds: a right rate goes above the bounds here once in 1e5.
"""

import numpy as np
import pytest
from results import tree
from scipy import stats

from pmm_mcmc.diagnostics.checks import identity
from pmm_mcmc.diagnostics.control_variates import fails, identity_of, whitened_identity
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.warmup.stein_identity import batch_means, between_pieces, degrees_of_freedom

RARE = 1e-5


def autoregressive(rng, correlation, chains, draws, d):
    """Return normal draws whose neighbours have a correlation."""
    x = rng.normal(size=(chains, draws, d))
    for i in range(1, draws):
        x[:, i] = correlation * x[:, i - 1] + np.sqrt(1.0 - correlation**2) * x[:, i]
    return x


def exact(x, gradient):
    """Return the result of an adjusted kernel, as it is read."""
    dt = tree({"x": x}, x, gradient)
    dt["posterior"].attrs["adjusted"] = 1
    return read(dt)


@pytest.mark.statistical
@pytest.mark.parametrize("correlation", [-0.9, -0.5, 0.0, 0.5])
def test_antithetic_draws_are_refused_by_chance_alone(correlation):
    """Ten coordinates and as many whitened ones: one of a hundred runs by each."""
    rng = np.random.default_rng(31)
    runs, refused = 200, 0
    for _ in range(runs):
        x = autoregressive(rng, correlation, 4, 1000, 10)
        refused += bool(identity(exact(x, -x)))
    assert refused <= stats.binom.isf(RARE, runs, 0.02), refused


@pytest.mark.statistical
@pytest.mark.parametrize("correlation", [0.0, -0.7])
def test_collinear_coordinates_are_refused_by_chance_alone(correlation):
    """As in a regression on raw data: variances of products are up to 1,000 times those of whitened coordinates."""
    rng = np.random.default_rng(32)
    covariance = 0.001 * np.eye(5) + 0.999
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    runs, refused = 300, 0
    for _ in range(runs):
        x = autoregressive(rng, correlation, 4, 500, 5) @ root.T
        refused += bool(identity(exact(x, -x @ precision)))
    assert refused <= stats.binom.isf(RARE, runs, 0.02), refused


def test_whitening_sees_what_collinear_coordinates_hide():
    rng = np.random.default_rng(33)
    covariance = 0.001 * np.eye(5) + 0.999
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    y = rng.normal(size=(4, 1000, 5))
    values, vectors = np.linalg.eigh(covariance)
    x = y @ (vectors * np.sqrt(values * np.array([1.35, 1.0, 1.0, 1.0, 1.0]))).T
    run = exact(x, -x @ precision)
    degrees = run.identity_degrees
    assert not fails(run.identity, degrees).any() and fails(run.whitened_identity, degrees).any()
    reason = identity(run)
    assert reason.words.startswith("E[y dF/dy] of the whitened coordinate y most like x[")
    assert root.shape == (5, 5)


def test_the_error_is_the_larger_of_two():
    """Between 64 batches of all chains and from autocorrelations."""
    rng = np.random.default_rng(34)
    x = autoregressive(rng, 0.9, 4, 1000, 20)
    away = x - x.mean(axis=(0, 1))
    w = away * away - 1.0
    batches = between_pieces(batch_means(w, 64), 4)
    correlated = convergence(w).mcse
    assert (batches > correlated).any() and (batches < correlated).any()
    np.testing.assert_allclose(
        identity_of(x, -x).z, w.mean(axis=(0, 1)) / np.maximum(batches, correlated), rtol=1e-8, atol=1e-10
    )
    assert degrees_of_freedom(4, 1000, 64) == 63


def cross(rng, shape, wide=8.0, narrow=0.5):
    """Return draws of two crossed bars, of one where ``entered`` is false, and the density's gradient."""
    along = rng.random(shape) < 0.5
    sd = np.where(along[..., None], [wide, narrow], [narrow, wide])
    return sd * rng.normal(size=(*shape, 2))


def cross_gradient(x, wide=8.0, narrow=0.5):
    bars = np.array([[wide, narrow], [narrow, wide]])
    logs = -0.5 * ((x[..., None, :] / bars) ** 2).sum(axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return -(weights[..., None] * x[..., None, :] / bars**2).sum(axis=-2)


def test_a_cross_whose_arms_no_chain_has_entered_is_refused():
    rng = np.random.default_rng(35)
    x = cross(rng, (4, 4000))
    assert identity(exact(x[:, :1000], cross_gradient(x[:, :1000]))) is None, "draws of all arms"
    centre = x[np.abs(x).max(axis=-1) < 3.0][:4000].reshape(4, 1000, 2)
    reason = identity(exact(centre, cross_gradient(centre)))
    assert reason.state == "not trusted" and "arm or a tail" in reason.remedy


def test_a_tail_that_no_chain_has_entered_is_refused():
    """The logarithm of a Gamma variable of shape .05, whose left tail is exponential with a scale of 20."""
    rng = np.random.default_rng(36)
    u = np.log(rng.gamma(1.05, size=(4, 5000, 2))) + np.log(rng.random((4, 5000, 2))) / 0.05
    gradient = 0.05 - np.exp(u)
    assert identity(exact(u[:, :1000], gradient[:, :1000])) is None
    flat = u.reshape(-1, 2)
    near = flat[(flat > -12.0).all(axis=1)][:2000].reshape(4, -1, 2)
    reason = identity(exact(near, 0.05 - np.exp(near)))
    assert reason.value < 0.9 and reason.state == "not trusted"


def test_there_is_no_whitening_of_few_draws_or_of_what_stands_still():
    x = np.random.default_rng(37).normal(size=(4, 5, 8))
    assert whitened_identity(x, -x) is None, "24 draws of 8 coordinates would be needed"
    x = np.random.default_rng(37).normal(size=(4, 50, 3))
    assert whitened_identity(x, -x) is not None
    x[..., 1] = 0.5
    assert whitened_identity(x, -x) is None
