"""``pmm.summary(kind="bias")`` and ``pmm.summary``: on results made by hand, and on runs of small models.

Comparisons of runs with exact values are z-scores with 15 degrees of freedom, |z| < 6.5: a false alarm in 1e5 for each
of some 60.
"""

from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
from results import gaussian, grid, tree
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.parameters import coordinate_of
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.warm_up import Warmup

Z = 6.5
METHODS = [pmm.PoissonULMC, pmm.PoissonOLMC, pmm.RLMC, pmm.ULMC, pmm.OLMC, pmm.GHMC]


# -- table and summary -------------------------------------------------------------------------------------------------


def test_bias_on_a_gaussian_is_what_was_put_in():
    x = grid(3, draws=2000) * [1.0, 1.2, 1.0] + [0.0, 0.0, 0.3]
    table = bias_table(gaussian(x))
    assert list(table.columns) == [
        "mean", "mcse", "mean_cv", "mcse_cv", "bias", "bias_se", "bias_sd_units",
        "sd", "sd_cv", "mcse_sd_cv", "bias_of_sd", "bias_of_sd_se", "unexplained",
    ]  # fmt: skip
    expected = {
        "mean": [0.0, 0.0, 0.3], "mean_cv": 0.0, "bias": [0.0, 0.0, 0.3], "bias_sd_units": [0.0, 0.0, 0.3],
        "sd": [1.0, 1.2, 1.0], "sd_cv": 1.0, "bias_of_sd": [0.0, 0.2, 0.0],
    }  # fmt: skip
    for column, values in expected.items():
        np.testing.assert_allclose(table[column], np.broadcast_to(values, 3), atol=1e-5, err_msg=column)
    assert np.all(table["mcse_cv"] < 1e-5) and np.all(table["mcse"] > 1e-3)
    assert np.all(table["unexplained"] < 1e-3)


def test_unexplained_is_the_part_of_the_error_that_is_left():
    """Of functions a fifth of whose variance is noise, and of noise alone; from 16 pieces it is known to a third."""
    x, noise = np.random.default_rng(5).normal(size=(2, 4, 2000, 40))
    dt = tree({"partly": x + 0.5 * noise, "noise": noise[..., 0]}, x, -x)
    table = bias_table(dt)
    found = table["unexplained"]
    partly = found.drop("noise")
    assert abs(partly.median() - np.sqrt(0.2)) < 0.13 and found["noise"] > 0.8
    measured = table["bias"].notna() & (table["bias"].abs() < 2.0 * table["bias_se"])
    assert measured.sum() > 20, "where no bias is beyond doubt, the error is the noise that is left"
    np.testing.assert_allclose(found[measured], (table["mcse_cv"] / table["mcse"])[measured])
    assert "unexplained" not in pmm.summary(dt)


def test_error_of_a_standard_deviation():
    """By the delta method, 1 / sqrt(2 N) of independent draws where the correction leaves no noise."""
    x = np.random.default_rng(3).normal(size=(1, 4000, 50))
    table = bias_table(tree({"x": x}, x, -x))
    ratio = np.sqrt(np.mean(table["bias_of_sd_se"] ** 2) * 2 * 4000)
    assert abs(ratio - 1.0) < Z / np.sqrt(2 * 50 * 15)
    assert np.all(np.abs(table["bias_of_sd"]) < Z * table["bias_of_sd_se"])


def test_labels_are_those_of_arviz():
    x = grid(7)
    posterior = {"z": x[..., :6].reshape(4, 600, 2, 3), "a": x[..., 6], "total": x.sum(axis=-1)}
    dims = {"z": ["side", "year"]}
    dt = tree(posterior, x, -x, coords={"side": ["left", "right"], "year": [2010, 2020, 2030]}, dims=dims)
    table = bias_table(dt)
    assert list(table.index) == list(az.summary(dt).index)
    assert "z[right, 2030]" in table.index
    np.testing.assert_allclose(table["mean"], [0.0] * 8, atol=1e-12)
    np.testing.assert_allclose(table.loc["total", "sd_cv"], np.sqrt(7), rtol=1e-5)
    assert list(pmm.summary(dt, ["total", "a"], kind="bias").index) == ["total", "a"]


def test_coordinates_are_recognised_by_all_their_values():
    x = grid(2)
    x[0, 0] = 1.0, 0.5
    dt = tree({"clipped": np.maximum(x[..., 0], 0.0), "x": x, "half": x[..., 0] / 2}, x, -x)
    run = read(dt)
    ((_, values),) = run.parameters.slabs()
    assert coordinate_of(values, x).tolist() == [-1, 0, 1, -1]


def test_all_columns_of_the_summary_are_those_of_arviz_and_more():
    x = grid(3) + np.array([0.0, 0.0, 0.05])
    spent = np.arange(1, 601) * np.array([2, 3, 2, 3])[:, None]
    dt = gaussian(x, n_grad_total=spent)
    table, plain, biases = pmm.summary(dt, kind="all"), az.summary(dt, round_to="none"), bias_table(dt)
    more = ["mean_cv", "mcse_cv", "bias", "bias_se"]
    assert list(table.columns) == [*plain.columns, *more, "ess_per_grad"]
    np.testing.assert_array_equal(table[plain.columns], plain)
    np.testing.assert_array_equal(table[more], biases[more])
    np.testing.assert_allclose(table["ess_per_grad"], plain["ess_bulk"] / 6000)
    assert table.attrs["verdict"] == pmm.verdict(dt).sentence
    assert "eti89_lb" not in pmm.summary(dt, kind="diagnostics") and "ess_bulk" not in pmm.summary(dt, kind="stats")


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.pymc
@pytest.mark.statistical
def test_bias_of_a_step_far_too_long_is_the_exact_one(sample):
    kernel = MethodArguments.checked("PoissonULMC", dynamics="underdamped").kernel
    exact = np.sqrt(1.0 + variance_error(kernel, 1.5, 1.0, 32)) - 1.0
    assert exact > 0.05
    with pm.Model():
        pm.Normal("x", 5.0, 10.0, shape=4)
        step = pmm.PoissonULMC(
            step_size=1.5, K=32, grid="left", friction=1.0, scaling=np.full(4, 10.0), steps_per_draw=4
        )
        dt = sample(step, draws=8000, chains=4)
    table = bias_table(dt)
    z = (table["bias_of_sd"] / 10.0 - exact) / (table["bias_of_sd_se"] / 10.0)
    assert np.all(np.abs(z) < Z), z
    assert np.all(table["bias_of_sd"] > Z * table["bias_of_sd_se"])
    assert np.all(np.abs(table["bias"]) < Z * table["bias_se"])  # the mean has none
    np.testing.assert_allclose(table["sd_cv"], 10.0, rtol=1e-5)
    np.testing.assert_allclose(table["mean_cv"], 5.0, atol=1e-4)
    found = pmm.verdict(dt)
    assert found.state == "not trusted" and "E[x dF/dx] of x[" in found.sentence


@pytest.mark.pymc
@pytest.mark.statistical
@pytest.mark.parametrize("method", [pmm.PoissonULMC, pmm.GHMC])
def test_a_tuned_run_is_trusted_on_transformed_parameters_too(sample, method):
    """HalfNormal, Dirichlet and deterministics, with known means and standard deviations."""
    with pm.Model():
        pm.HalfNormal("s", 3.0)
        p = pm.Dirichlet("p", np.array([4.0, 5.0, 6.0]))
        x = pm.Normal("x")
        pm.Deterministic("e", pm.math.exp(x / 2))
        pm.Deterministic("odds", p[0] / p[1])
        dt = sample(method(), draws=3000, tune=1000, chains=4)
    table = pmm.summary(dt)
    assert table.attrs["verdict"].startswith("Trusted: "), table.attrs["verdict"]
    known = {
        "s": stats.halfnorm(scale=3.0),
        **{f"p[{i}]": stats.beta(a, 15 - a) for i, a in enumerate((4, 5, 6))},
        "x": stats.norm(),
        "e": stats.lognorm(0.5),
        "odds": stats.betaprime(4, 5),
    }
    assert set(table.index) == set(known)
    biases = bias_table(dt)
    for name, law in known.items():
        row = biases.loc[name]
        assert abs(row["mean_cv"] - law.mean()) < Z * row["mcse_cv"] + 1e-6, name
        assert abs(row["sd_cv"] - law.std()) < Z * row["mcse_sd_cv"] + 1e-6, name
    gain = (biases["mcse_cv"] / biases["mcse"]) ** 2
    assert np.all(gain[["p[0]", "p[1]", "p[2]", "x", "e"]] < 0.1), gain
    gain = (biases["mcse_sd_cv"] / biases["bias_of_sd_se"]) ** 2
    assert np.all(gain[["p[0]", "p[1]", "p[2]", "x", "e"]] < 0.5), gain


# -- the bias that a step makes likely ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "given"), [("PoissonULMC", 0.3), ("PoissonULMC", "auto"), ("GHMC", 0.3)])
def test_the_curvature_is_measured_for_a_given_step_too(method, given):
    precision = np.array([20.0, *np.ones(9)])
    x = np.random.default_rng(1).normal(size=(4, 30, 10)) / np.sqrt(precision)
    arguments = MethodArguments.checked(method, dynamics="underdamped", step_size=given, scaling=np.ones(10))
    warmup = Warmup.start(arguments, 30, x[:, 0], -precision * x[:, 0])
    none = np.zeros((4, 30), dtype=int)
    warmup.observe(Block(x, -precision * x, -0.5 * (precision * x**2).sum(axis=2), none, none, none, np.ones((4, 30))))
    warmup.stop()
    tuned = warmup.update(SimpleNamespace(gradient_at=lambda x, density_parameters: -precision * x))
    assert warmup.n_grad == (0 if method == "GHMC" else 32)
    assert tuned.step_size == given or given == "auto"


def test_truth_values_are_summarised_as_numbers():
    x = grid(2)
    table = pmm.summary(tree({"x": x, "positive": x[..., 0] > 0.0}, x, -x))
    assert table.loc["positive", "mean_cv"] == pytest.approx(float((x[..., 0] > 0.0).mean()), abs=0.05)
    assert pmm.summary(tree({"positive": x[..., 0] > 0.0}, x, -x), kind="all").loc["positive", "eti89_ub"] == 1.0
