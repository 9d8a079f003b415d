"""The acceptance set (``benchmarks/common/targets.py``): densities, layouts and references belong together.

Exact moments are compared with a quadrature of the models' own log densities, to rounding; those of eight schools, a
quadrature themselves, with importance sampling from the prior: |z| < 5.5 for each of 40 moments, a false-alarm rate of
40 * 4e-8 = 2e-6.
"""

import json
from functools import cache

import make_references
import numpy as np
import pymc as pm
import pytensor
import pytest
import targets
import xarray as xr
from models import lkj
from pymc.pytensorf import join_nonshared_inputs
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph
from targets import TARGETS, reference

from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.workbench.targets import gallery

# Interpreted: sixteen models are evaluated at a handful of points, and compiling would take minutes.
PYTHON = Mode(linker="py", optimizer="fast_compile")
STORED = json.loads(targets.PATH.read_text())


@cache
def flat_density(name, build=None):
    """Log density with gradient on the flat vector, the same for many points at once, and the initial point."""
    model = (build or TARGETS[name].build)()
    start = model.initial_point()
    values = model.continuous_value_vars
    (logp,), flat = join_nonshared_inputs(point=start, outputs=[model.logp()], inputs=values)
    many = pytensor.tensor.matrix("many")
    batch = vectorize_graph(logp, {flat: many})
    return (
        pytensor.function([flat], [logp, pytensor.grad(logp, flat)], mode=PYTHON),
        pytensor.function([many], batch, mode=PYTHON),
        np.concatenate([np.ravel(start[v.name]) for v in values]),
        flat_layout(values, start),
    )


@pytest.mark.parametrize("name", TARGETS)
def test_density_and_gradient_are_finite_and_of_the_length_of_the_reference(name):
    density, _, start, layout = flat_density(name)
    value, gradient = density(start)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    known = reference(name)
    for field in vars(known).values():
        assert field.shape == gradient.shape == (sum(size for _, _, size, _ in layout),)
    np.testing.assert_allclose(known.variance_of_x, known.second - known.mean**2, rtol=1e-4)
    assert np.all(known.variance_of_square > 0)


def quadrature(batch, chart, log_jacobian, d, axes, nodes):
    """Moments 1, 2 and 4 of all coordinates, where the density factorises in the chart's coordinates.

    ``axes`` are the chart's coordinates to integrate over, ``nodes`` their equidistant nodes; the others stay at 0.
    """
    grid = np.meshgrid(*nodes, indexing="ij")
    u = np.zeros((grid[0].size, d))
    for axis, values in zip(axes, grid, strict=True):
        u[:, axis] = values.ravel()
    x = chart(u)
    log_weight = batch(x) + log_jacobian(u)
    weight = np.exp(log_weight - log_weight.max())
    return np.stack([weight @ x**k for k in (1, 2, 4)]) / weight.sum()


def bent(curve, straight):
    """Chart of pairs (a, curve(a) + e): unit Jacobian."""
    return lambda u: np.concatenate([u[:, :straight], curve(u[:, :straight]) + u[:, straight:]], axis=1)


def flat_chart(u):
    return u


def no_jacobian(u):
    return 0.0


def funnel_chart(u):
    return np.concatenate([u[:, :1], np.exp(u[:, :1] / 2) * u[:, 1:]], axis=1)


CHARTS = {
    "banana": (bent(lambda a: 0.03 * (a**2 - 100), 5), no_jacobian, (2, 7), (-90, 90), (-9, 9)),
    "rosenbrock36": (bent(np.square, 18), no_jacobian, (3, 21), (-12, 14), (-3, 3)),
    "funnel10": (funnel_chart, lambda u: 4.5 * u[:, 0], (0, 4), (-36, 60), (-12, 12)),
    "mixture20": (flat_chart, no_jacobian, (0, 5), (-11, 13), (-10, 10)),
}


@pytest.mark.parametrize("name", CHARTS)
def test_exact_moments_against_quadrature_of_the_density(name):
    _, batch, start, _ = flat_density(name)
    chart, log_jacobian, axes, *ranges = CHARTS[name]
    nodes = [np.linspace(low, high, 301) for low, high in ranges]
    first, second, fourth = quadrature(batch, chart, log_jacobian, len(start), axes, nodes)[:, list(axes)]
    known = reference(name)
    scale = np.sqrt(known.second[list(axes)])
    np.testing.assert_allclose(first / scale, known.mean[list(axes)] / scale, atol=1e-9)
    np.testing.assert_allclose(second, known.second[list(axes)], rtol=1e-9)
    np.testing.assert_allclose(fourth - second**2, known.variance_of_square[list(axes)], rtol=1e-8)


@pytest.mark.parametrize("name", ["gaussian100", "gaussian1000", "rotated100"])
def test_gaussian_moments_are_those_of_the_inverse_of_the_precision(name):
    density, _, start, _ = flat_density(name)
    known, d = reference(name), len(start)
    assert np.all(known.mean == 0) and np.all(density(np.zeros(d))[1] == 0)
    some = np.arange(0, d, d // 100)
    if name == "rotated100":
        precision = -np.stack([density(unit)[1] for unit in np.eye(d)])
        covariance = np.linalg.inv(precision)
        assert np.linalg.cond(covariance) == pytest.approx(1000, rel=1e-6)
        # Far from diagonal: a diagonal scale cannot whiten it.
        correlation = covariance / np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))
        assert np.linalg.cond(correlation) > 100
        variance = covariance.diagonal()
    else:
        gradient = density(np.ones(d))[1]
        variance = -1 / gradient
        assert variance[0] == pytest.approx(0.01) and variance[-1] == pytest.approx(100)
    np.testing.assert_allclose(known.second[some], variance[some], rtol=1e-9)
    np.testing.assert_allclose(known.variance_of_square, 2 * known.second**2, rtol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("centred", [False, True])
def test_eight_schools_against_importance_sampling_from_the_prior(centred):
    rng, n = np.random.default_rng(8), 500_000
    mu, tau, z = 5 * rng.normal(size=n), 5 * np.abs(rng.standard_cauchy(n)), rng.normal(size=(n, 8))
    theta = mu[:, None] + tau[:, None] * z
    log_weight = -0.5 * (((gallery.EFFECT - theta) / gallery.ERROR) ** 2).sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    x = np.column_stack([mu, np.log(tau), theta if centred else z])
    known = reference("eight_schools_centred" if centred else "eight_schools")
    for values, truth, variance in (
        (x, known.mean, known.variance_of_x),
        (x**2, known.second, known.variance_of_square),
    ):
        error = np.sqrt((weight**2) @ (values - truth) ** 2)
        assert np.all(np.abs(weight @ values - truth) < 5.5 * error)
        assert np.all(error < 0.01 * np.sqrt(variance))
        np.testing.assert_allclose(weight @ (values - truth) ** 2, variance, rtol=0.1)


@pytest.mark.parametrize("centred", [False, True])
def test_eight_schools_density_is_that_of_the_quadrature(centred):
    # Prior and likelihood by hand, the Jacobian of log tau included.
    name = "eight_schools_centred" if centred else "eight_schools"
    _, batch, start, layout = flat_density(name)
    assert [entry[0] for entry in layout] == ["mu", "tau_log__", "theta" if centred else "z"]
    x = start + np.random.default_rng(9).normal(size=(5, 10))
    mu, log_tau, rest = x[:, 0], x[:, 1], x[:, 2:]
    tau = np.exp(log_tau)
    theta = rest if centred else mu[:, None] + tau[:, None] * rest
    z = (rest - mu[:, None]) / tau[:, None] if centred else rest
    by_hand = (
        -0.5 * (mu / 5) ** 2
        - np.log1p((tau / 5) ** 2)
        + log_tau
        - 0.5 * (z**2).sum(axis=1)
        - (8 * log_tau if centred else 0)
        - 0.5 * (((gallery.EFFECT - theta) / gallery.ERROR) ** 2).sum(axis=1)
    )
    np.testing.assert_allclose(np.diff(batch(x)), np.diff(by_hand), rtol=1e-9)


def test_phi4_is_the_action_of_the_lattice_and_not_log_concave():
    density, *_ = flat_density("phi4")
    field = np.random.default_rng(4).normal(size=(8, 8))
    action = 0.0
    for i in range(8):
        for j in range(8):
            bonds = (field[i, j] - field[(i + 1) % 8, j]) ** 2 + (field[i, j] - field[i, (j + 1) % 8]) ** 2
            action += bonds - 4.0 * field[i, j] ** 2 + 6.008 * field[i, j] ** 4
    assert float(density(field.ravel())[0]) == pytest.approx(-action, rel=1e-12)
    uniform = np.full(64, 0.01)
    assert uniform @ density(uniform)[1] > 0
    known = reference("phi4")
    assert np.all(known.mean == 0) and np.ptp(known.second) == 0


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9])
def test_autoregression_is_its_recursion(n):
    z = np.random.default_rng(n).normal(size=n)
    h = [z[0] / np.sqrt(1 - 0.9**2)]
    for t in range(1, n):
        h.append(0.9 * h[-1] + z[t])
    found = targets._autoregression(pytensor.tensor.as_tensor(z), 0.9, 0.3, 1.5).eval(mode=PYTHON)
    np.testing.assert_allclose(found, 1.5 + 0.3 * np.array(h), rtol=1e-12)


def test_the_twin_of_the_latent_autoregression_has_the_same_posterior():
    _, batch, start, layout = flat_density("latent_ar")
    _, twin_batch, *_ = flat_density("latent_ar twin", TARGETS["latent_ar"].twin)
    assert [entry[0] for entry in layout] == ["mu", "rho_logodds__", "s_log__", "x"]
    u = np.random.default_rng(12).normal(size=(4, len(start))) * 0.5
    x, log_jacobian = u.copy(), np.empty(4)
    for row, (mu, logodds, log_s) in enumerate(u[:, :3]):
        rho, n = 1 / (1 + np.exp(-logodds)), targets.LATENT_LENGTH
        x[row, 3] = u[row, 3] / np.sqrt(1 - rho**2)
        for t in range(4, 3 + n):
            x[row, t] = rho * x[row, t - 1] + u[row, t]
        x[row, 3:] = mu + np.exp(log_s) * x[row, 3:]
        log_jacobian[row] = n * log_s - 0.5 * np.log(1 - rho**2)
    np.testing.assert_allclose(batch(x) + log_jacobian, twin_batch(u), rtol=1e-10)


def test_stored_references_are_those_without_exact_moments_and_their_runs_converged():
    assert set(STORED) == {name for name, target in TARGETS.items() if target.exact is None}
    for name, entry in STORED.items():
        settings, known = entry["settings"], reference(name)
        assert settings["largest_r_hat"] < 1.002 and settings["smallest_ess"] > 10_000, name
        assert np.all(known.se_second < 0.01 * np.sqrt(known.variance_of_square)), name
        assert np.all(known.se_second > 0), name


@pytest.mark.parametrize("name", STORED)
def test_a_stored_reference_was_made_with_the_model_as_it_is(name):
    density, known = flat_density(name)[0], reference(name)
    # Probabilities saturate there in the logistic regression: rewrites of the graph round differently.
    value = STORED[name]["settings"]["log_density_one_sd_up"]
    assert float(density(known.mean + np.sqrt(known.variance_of_x))[0]) == pytest.approx(value, rel=1e-6)


@pytest.mark.pymc
def test_draws_are_put_back_on_the_flat_unconstrained_vector():
    model = lkj()
    with model:
        pm.HalfNormal("scale", shape=2)
        pm.Dirichlet("weights", np.ones(3))
    x, parts, begin = np.random.default_rng(3).normal(size=(2, 3, 13)), {}, 0
    layout = flat_layout(model.continuous_value_vars, model.initial_point())
    for value, (_, shape, size, _) in zip(model.continuous_value_vars, layout, strict=True):
        variable = model.values_to_rvs[value]
        transform, values = model.rvs_to_transforms[variable], x[..., begin : begin + size].reshape(2, 3, *shape)
        if transform is not None:
            values = transform.backward(pytensor.tensor.as_tensor(values), *variable.owner.inputs).eval(mode=PYTHON)
        inner = [f"{variable.name} {i}" for i in range(values.ndim - 2)]
        parts[variable.name], begin = (("chain", "draw", *inner), values), begin + size
    assert begin == 13 and {"cov", "mu", "scale", "weights"} == set(parts)
    flat = make_references.flat_draws(model, {"posterior": xr.DataTree(xr.Dataset(parts))})
    np.testing.assert_allclose(flat, x, rtol=1e-12, atol=1e-12)
