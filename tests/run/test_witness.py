"""The witness: what it measures against biases that are known, what it costs, and what a verdict makes of it.

Random tests at fixed seeds: |z| < 4.5 for each parameter (7e-6).
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numba import cfunc
from reference import engine
from sampling_runs import QUIET, run

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.exact import with_witness
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import empty_state
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.langevin.methods import TRAJECTORIES
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.run.witness import changes
from pmm_mcmc.run.witness_trajectories import Ends, expected_shadow, follow

pytest_plugins = ["sampling_fixtures"]


@cfunc(SIGNATURE)
def of_these_coordinates(x, gradient, table, n):
    lp = 0.0
    for i in range(n):
        centre, scale = (1.0, -2.0, 0.0, 0.5)[i], (0.5, 2.0, 1.0, 1.5)[i]
        lp -= 0.5 * ((x[i] - centre) / scale) ** 2
        gradient[i] = -(x[i] - centre) / scale**2
    return lp


@pytest.fixture(scope="module")
def normal():
    with pm.Model() as model:
        pm.Normal("x", [0.0, 3.0], [1.0, 5.0])
    return model


def test_a_known_bias_is_measured_for_a_fifth_of_the_gradients(normal):
    step = pmm.OLMC(step_size=0.3, scaling=[1.0, 5.0])
    off = np.sqrt(1.0 + variance_error(step.arguments.kernel, 0.3, 1.0, 1)) - 1.0
    dt = run(normal, "numba", step, draws=2000, chains=8)
    found = pmm.witness(dt, model=normal, random_seed=1)
    spent = dt["sample_stats"]["n_grad_total"].values[:, -1].sum()
    assert 0.15 * spent < found.gradients <= 0.21 * spent
    table = found.table
    assert list(table.index) == ["x[0]", "x[1]"]
    # In sds of the draws, which are too large; a variance that is off by e is taken for a bias of e / 2 of the sd.
    expected = 0.5 * (1.0 - 1.0 / (1.0 + off) ** 2)
    assert np.all(np.abs(table["bias_of_sd"] - expected) < 4.5 * table["bias_of_sd_se"])
    assert np.all(table["bias_of_sd"] > 3.0 * table["bias_of_sd_se"]) and expected > 0.06
    assert np.all(np.abs(table["bias"]) < 4.5 * table["bias_se"])
    assert found.sentence.startswith("Biased: the sd of x")


def test_its_errors_are_those_that_it_states(schools):
    """Runs whose bias is far below the error: z-scores of unit variance, with 20 runs of 19 parameters."""
    z = []
    for seed in range(20):
        dt = run(schools, "numba", pmm.PoissonULMC(target_bias=0.01), draws=200, tune=400, random_seed=seed)
        table = pmm.witness(dt, model=schools, random_seed=seed).table
        z.append(np.r_[table["bias"] / table["bias_se"], table["bias_of_sd"] / table["bias_of_sd_se"]])
    assert 0.7 < np.std(z) < 1.15
    assert np.mean(np.abs(z) > 1.96) < 0.08


@pytest.mark.parametrize("way", ["PyMC", "store", "density", "without non-centring"])
def test_results_of_every_kind_have_a_witness(way, schools, well, tmp_path):
    model = well if way == "density" else schools
    if way == "PyMC":
        with schools:
            dt = pm.sample(100, tune=200, chains=2, cores=1, step=pmm.PoissonULMC(), random_seed=1, **QUIET)
    elif way == "store":
        run(schools, "numba", store=tmp_path / "a", draws=60)
        dt = pmm.open(tmp_path / "a")
    else:
        step = pmm.PoissonULMC(reparametrise=False) if way == "without non-centring" else None
        dt = run(model, step=step, draws=60)
    with pytest.raises(ValueError, match="gradients=50: too few") as raised:
        pmm.witness(dt, model=model, gradients=50)
    need = int(str(raised.value).split("give gradients=")[1].split()[0])
    found = pmm.witness(dt, model=model, gradients=3 * need, random_seed=2)
    again = pmm.witness(dt, model=model, gradients=3 * need, random_seed=2)
    assert found.table.equals(again.table) and np.isfinite(found.table.to_numpy()).all()
    assert found.gradients <= 3 * need + 40
    assert pmm.verdict(dt, witness=found).state in ("trusted", "undecided", "not trusted")


def test_a_wrong_model_or_result_is_refused(schools, normal):
    dt = run(normal, "numba", draws=50)
    with pm.Model() as other:
        pm.Normal("x", [0.0, 3.0], [1.0, 7.0])
    for model, words in ((schools, "has 10 coordinates, and the result 2"), (other, "log density is not that")):
        with pytest.raises(ValueError, match=words):
            pmm.witness(dt, model=model)
    with pytest.raises(ValueError, match="gradients=0"):
        pmm.witness(dt, model=normal, gradients=0)
    without = run(normal, "numba", pmm.PoissonULMC(keep_gradients=False), draws=50)
    with pytest.raises(ValueError, match="keep_gradients=True"):
        pmm.witness(without, model=normal)
    with pytest.raises(TypeError, match=r"pmm_mcmc\.witness"):
        pmm.verdict(dt, witness=True)
    theirs = pmm.witness(run(schools, "numba", draws=60), model=schools)
    with pytest.raises(ValueError, match="give the witness of this result"):
        pmm.verdict(dt, witness=theirs)


def test_changes_are_exact_where_trajectories_are_linear():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((4, 500, 1))
    rows = np.arange(0, 500, 5)
    keep, truth = 0.3, -0.2
    after = truth + keep * (values[:, rows] - truth)  # towards the true mean, without noise
    none = np.zeros_like(after)
    table = changes(values, rows, Ends(after, none[..., :1] + 1.0, none + values.mean(), none, none))
    bias = (values.mean() - truth) / values.std()
    np.testing.assert_allclose(table.loc[0, ["bias", "kept"]], [bias, keep], rtol=1e-9)
    assert table.loc[0, "bias_se"] > 0.9 / np.sqrt(values.size)


def test_what_noise_alone_does_is_taken_off_and_both_outcomes_count():
    rng = np.random.default_rng(4)
    values = rng.standard_normal((4, 500, 1))
    rows, truth, keep = np.arange(0, 500, 5), -0.2, 0.3
    x = values[:, rows]
    noise = rng.standard_normal(x.shape)
    accept = np.full(x.shape, 0.8)
    moved = truth + keep * (x - truth) + noise  # the mean of the noise is known to be zero
    table = changes(values, rows, Ends(moved, accept, values.mean() + noise, np.zeros_like(x), np.ones_like(x)))
    kept = 0.8 * keep + 0.2
    np.testing.assert_allclose(table["kept"], kept, rtol=1e-9)
    np.testing.assert_allclose(table["bias"], (values.mean() - truth) / values.std(), rtol=1e-9)
    # Of the deviation of the run's own mean alone is there an error.
    assert table.loc[0, "bias_se"] < 1.2 / np.sqrt(values.size)


def test_shadows_are_the_trajectories_of_a_gaussian_and_have_the_expectation_that_is_taken_off():
    n, rng = 4000, np.random.default_rng(8)
    coordinates = Coordinates(np.array([1.0, -2.0, 0.0, 0.5]), np.array([0.5, 2.0, 1.0, 1.5]))
    run = engine(TRAJECTORIES, 4, of_these_coordinates)
    tuned = TunedParameters(0.7, 3, 0.3, coordinates, 1)
    state = empty_state(rng.standard_normal((n, 4)), np.zeros((n, 4)))
    run.evaluate(coordinates, state)
    found = follow(run, tuned, state, rng)
    np.testing.assert_allclose(found.accept, 1.0, rtol=1e-10)
    np.testing.assert_allclose(found.x, coordinates.place(found.shadow), atol=1e-10)
    mean = np.array([0.3, 0.0, -0.2, 1.0])
    expected = expected_shadow(lambda y: y, tuned, state[:, :4], mean, rng)
    for power, value in zip((1, 2), expected, strict=True):
        apart = (found.shadow - mean) ** power - value
        assert np.all(np.abs(apart.mean(axis=0)) < 4.5 * apart.std(axis=0) / np.sqrt(n))
        # A control variate: what is left of the noise is that of the trajectory alone.
        assert np.all(np.abs(np.mean(apart * state[:, :4], axis=0)) < 4.5 * apart.std(axis=0) / np.sqrt(n))


def test_it_takes_the_place_of_what_gradients_cannot_measure():
    nan, labels = np.nan, ["a", "b"]
    measured = Measured(
        labels, np.array([0.01, nan]), np.array([0.01, nan]), np.array([0.0, 1.0]), np.array([nan, nan]),
        np.array([nan, nan]), np.array([True, True]), np.array([0.01, 0.02]), np.array([nan, nan]),
    )  # fmt: skip
    columns = ("bias", "bias_se", "bias_of_sd", "bias_of_sd_se")
    rows = {"b": (-0.05, 0.02, 0.01, 0.01), "a": (0.3, 0.02, 0.0, 0.01)}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns))
    together, alone = with_witness(measured, table)
    np.testing.assert_allclose(together.of_mean, [0.01, 0.05])
    np.testing.assert_allclose(together.error, [0.01, 0.045])
    np.testing.assert_allclose(together.of_sd, [0.0, 0.01])
    np.testing.assert_allclose(alone.of_mean, [0.3, 0.05])
    assert not alone.ruled_out and together.ruled_out
