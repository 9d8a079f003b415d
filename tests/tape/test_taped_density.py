"""Runs on a tape: numba's values, gradients and draws to rounding, for current data, threads and stores alike."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from hierarchy_models import some_noncentring
from numba import njit
from sampling_runs import Stop, assert_same

import pmm_mcmc as pmm
from pmm_mcmc.model.pymc_density import choose_vars, log_density
from pmm_mcmc.tape import density as tape_density
from pmm_mcmc.tape import table
from pmm_mcmc.tape.density import TapedDensity

pytestmark = pytest.mark.pymc
RUN = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 3}


@njit
def evaluated(function, x, evaluation, addresses):
    """Call a C function of the engine's signature."""
    return function(x.ctypes, evaluation.ctypes, addresses.ctypes, len(x))


def evaluations(density, output, points, sites):
    """Return evaluations at points, with the values last."""
    function = density.function(output)
    addresses = density.table(output, sites)
    width = density.width if output == "joint" else density.d
    rows = []
    for x in points:
        evaluation = np.zeros(width)
        value = evaluated(function, x, evaluation, addresses)
        rows.append([*evaluation, value])
    return np.array(rows)


def density_of(model):
    return log_density(choose_vars(None, model), model, model.initial_point(0), {})


def compared(model, outputs=("joint",)):
    """Assert that tape and numba agree near the initial point."""
    density = density_of(model)
    tape = TapedDensity(density)
    rng = np.random.default_rng(1)
    point = model.initial_point(0)
    start = np.concatenate([np.ravel(point[var.name]) for var in model.value_vars]).astype(float)
    points = start + 0.3 * rng.normal(size=(20, density.d))
    sites = some_noncentring(density.structure, rng)
    for output in outputs:
        expected, mine = (evaluations(each, output, points, sites) for each in (density, tape))
        scale = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(axis=1, keepdims=True)
        last = slice(None) if output == "joint" else slice(-1)
        np.testing.assert_allclose((mine / scale)[:, last], (expected / scale)[:, last], rtol=1e-10, atol=1e-14)


def hierarchy():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, [15, 10, 16, 11, 9, 11, 10, 18], observed=[28.0, 8, -3, 7, -1, 1, 18, 12])
    return model


def correlated():
    group, x = np.divmod(np.arange(40), 8)
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 2, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        effect = mean + pm.Normal("z", 0, 1, shape=(5, 2)) @ chol.T
        pm.Normal("y", effect[group, 0] + effect[group, 1] * x, 1.0, observed=np.sin(np.arange(40.0)))
    return model


def mixture():
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10, shape=3, transform=ordered, initval=[-4.0, 0.0, 4.0])
        w = pm.Dirichlet("w", np.ones(3))
        pm.NormalMixture("y", w=w, mu=mu, sigma=1.0, observed=np.linspace(-6, 6, 30))
    return model


def process():
    x = np.linspace(0, 10, 15)[:, None]
    with pm.Model() as model:
        gp = pm.gp.Marginal(cov_func=pm.HalfNormal("eta", 5) ** 2 * pm.gp.cov.Matern52(1, pm.Gamma("length", 2, 1)))
        gp.marginal_likelihood("y", X=x, y=np.sin(x[:, 0]), sigma=pm.HalfNormal("sigma", 5))
    return model


def counts():
    with pm.Model() as model:
        b, alpha = pm.Normal("b", 0, 1, shape=2), pm.Exponential("alpha", 0.5)
        x = np.linspace(-1, 1, 20)
        pm.NegativeBinomial("y", mu=pm.math.exp(b[0] + b[1] * x), alpha=alpha, observed=np.arange(20) % 7)
        time = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(b[0]))
        pm.Censored("time", time, lower=None, upper=np.full(5, 2.0), observed=[0.1, 0.5, 1.0, 2.0, 2.0])
    return model


def walk():
    with pm.Model() as model:
        step = pm.Exponential("step", 10.0)
        volatility = pm.GaussianRandomWalk("volatility", sigma=step, init_dist=pm.Normal.dist(0, 10), shape=12)
        pm.StudentT("y", nu=5.0, mu=0.0, lam=pm.math.exp(-2.0 * volatility), observed=np.sin(np.arange(12.0)))
    return model


def slopes():
    with pm.Model() as model:
        L, _, _ = pm.LKJCholeskyCov("L", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
        b = pm.MvNormal("b", pm.Normal("m", shape=3), chol=L, shape=(4, 3))
        pm.Normal("y", b[:, None], 0.5, observed=np.sin(np.arange(60.0)).reshape(4, 5, 3))
    return model


def basis():
    with pm.Model() as model:
        X = pm.Data("X", np.linspace(-1.0, 1.0, 12)[:, None])
        gp = pm.gp.HSGP(m=[5], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ell", 3, 2)))
        pm.Normal("y", gp.prior("f", X=X), 0.5, observed=np.sin(np.arange(12.0)))
    return model


def truncated():
    with pm.Model() as model:
        a, b = pm.HalfNormal("a"), pm.HalfNormal("b")
        sticks = pt.extra_ops.cumprod(1.0 - pm.Beta("v", 1.0, 2.0, shape=4))
        pm.Truncated("y", pm.Beta.dist(a + 1.0, b + sticks.sum()), lower=0.1, observed=np.linspace(0.2, 0.9, 15))
    return model


def epidemic():
    with pm.Model() as model:
        rate, recovery, infected = pm.HalfNormal("rate"), pm.HalfNormal("recovery"), pm.HalfNormal("first", 10.0)
        susceptible, cases = 1000.0, []
        for _ in range(25):
            new = susceptible * (1.0 - pm.math.exp(-rate * infected / 1000.0))
            susceptible, infected = susceptible - new, infected + new - recovery * infected
            cases.append(new)
        pm.Poisson("y", pm.math.stack(cases) + 0.1, observed=np.arange(25) % 7)
    return model


@pytest.mark.parametrize("build", [hierarchy, correlated, mixture, process, counts, walk, slopes, basis, truncated])
def test_values_and_gradients_are_those_of_numba(build):
    compared(build(), ("joint", "gradient"))


def test_a_large_graph_is_that_of_pytensor():
    # Compared with PyTensor's own operations: numba would compile for a minute.
    model = epidemic()
    density = density_of(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape_density, "_LARGE", 0)
        large = TapedDensity(density)
    for z in np.random.default_rng(6).normal(0.0, 0.3, size=(3, density.d)):
        value, evaluation = large.by_pytensor(z)
        expected = TapedDensity(density).by_pytensor(z)
        np.testing.assert_allclose([value, *evaluation], [expected[0], *expected[1]], rtol=1e-9)


def test_an_operation_that_is_not_there_is_named_and_left_to_numba(caplog, monkeypatch):
    monkeypatch.delitem(table._CODES, "Softplus")  # without a function of NumPy
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("x"), observed=1)
    with caplog.at_level(logging.DEBUG, logger="pmm_mcmc"):
        tree = pmm.sample(2, tune=2, chains=1, model=model, backend="tape", **RUN)
    assert tree["posterior"].attrs["backend"] == "numba"
    assert "no interpreter (tape) runs Softplus" in caplog.text


def linear(y):
    with pm.Model() as model:
        data = pm.Data("data", y)
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        theta = pm.Normal("theta", mu, tau, shape=4)
        pm.Normal("y", theta[:, None], 1.0, observed=data)
    return model


@pytest.mark.parametrize("size", [3, 5])
def test_data_that_changed_are_read_again(size):
    rng = np.random.default_rng(2)
    model = linear(rng.normal(size=(4, 3)))
    density = density_of(model)
    tape = TapedDensity(density)
    with model:
        pm.set_data({"data": rng.normal(size=(4, size))})
    x = rng.normal(size=(1, density.d))
    sites = density.structure.initial_noncentring()
    expected, mine = (evaluations(each, "joint", x, sites) for each in (density, tape))
    np.testing.assert_allclose(mine, expected, rtol=1e-10)


def test_variables_that_other_steps_move_are_inputs():
    """Their values are read for each table; the tape stays."""
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        scale = pm.HalfNormal("scale", shape=2)
        x = pm.Normal("x", k, scale, shape=2)
    point = model.initial_point(0)
    density = log_density(choose_vars([x], model), model, point)
    tape = TapedDensity(density)
    before = tape.current()
    position = np.array([[0.3, -1.2]])
    for count, logarithm in ((2, [0.0, 1.0]), (7, [-1.0, 0.5])):
        for name, value in {"k": np.int64(count), "scale_log__": np.array(logarithm)}.items():
            density.others[name].set_value(np.asarray(value, dtype=density.others[name].dtype))
        expected, mine = (evaluations(each, "joint", position, None) for each in (density, tape))
        np.testing.assert_allclose(mine, expected, rtol=1e-12)
        np.testing.assert_allclose(mine[0, :2], (count - position[0]) / np.exp(2.0 * np.array(logarithm)), rtol=1e-12)
    assert tape.current() is before


@pytest.mark.parametrize("step", [None, pmm.PoissonULMC(K=4), pmm.PoissonOLMC(K=4)], ids=["default", "ulmc", "olmc"])
def test_draws_are_those_of_numba_to_rounding(step):
    model = linear(np.random.default_rng(4).normal(size=(4, 3)))
    options = dict(draws=10, tune=60, chains=4, model=model, step=step, **RUN)
    numba, tape = (pmm.sample(backend=backend, **options) for backend in ("numba", "tape"))
    assert tape["posterior"].attrs["backend"] == "tape"
    xr.testing.assert_allclose(numba["posterior"].to_dataset(), tape["posterior"].to_dataset(), rtol=1e-4, atol=1e-6)


def test_draws_do_not_depend_on_threads_or_interruptions(tmp_path):
    model = linear(np.random.default_rng(5).normal(size=(4, 3)))
    options = dict(draws=40, tune=100, chains=8, model=model, backend="tape", **RUN)
    one, four = (pmm.sample(cores=cores, **options) for cores in (1, 4))
    assert_same(one, four)
    pmm.sample(store=tmp_path / "a.zarr", callback=Stop(2), **options)
    resumed = pmm.sample(store=tmp_path / "a.zarr", resume=True, **options)
    for name in one["posterior"].data_vars:
        np.testing.assert_array_equal(resumed["posterior"][name], one["posterior"][name])


def test_a_ladder_runs_on_a_tape():
    with pm.Model() as model:
        z = pm.Normal("z", 0, 3)
        pm.Potential("modes", pm.math.log(pm.math.exp(-2 * (z - 2) ** 2) + pm.math.exp(-2 * (z + 2) ** 2)))
    options = dict(draws=5, tune=40, chains=16, model=model, **RUN)
    numba, tape = (pmm.temper(backend=backend, **options) for backend in ("numba", "tape"))
    np.testing.assert_allclose(tape["posterior"]["z"], numba["posterior"]["z"], rtol=1e-5)
