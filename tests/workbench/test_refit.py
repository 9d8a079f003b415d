"""One model, many data."""

import logging

import numpy as np
import numpyro_models
import pymc as pm
import pytest
from stan_programs import REGRESSION

import pmm_mcmc as pmm
from pmm_mcmc.workbench import refit as module

QUIET = {"random_seed": 1, "cores": 1, "progressbar": False}


@pytest.fixture(scope="module")
def model():
    """A line through points; observations as constants, what they depend on as data."""
    with pm.Model() as model:
        x = pm.Data("x", np.arange(3.0))
        slope = pm.Normal("slope", 0, 10)
        pm.Deterministic("end", slope * x[-1])
        pm.Normal("y", slope * x, 1.0, observed=np.zeros(3))
    return model


def posterior(x, y):
    """Mean and standard deviation of the slope."""
    precision = 0.01 + np.dot(x, x)
    return np.dot(x, y) / precision, precision**-0.5


def test_each_fit_has_the_posterior_of_its_data(model):
    sets = [{"y": [0.0, 1.0, 2.0]}, {"y": [0, 5, 4], "x": [1.0, 1.0, 3.0]}, {}]
    with pytest.raises(ValueError, match=r"data_sets\[2\]=\{\}: must be a dict of data by name, of y, x"):
        pmm.refit(model, sets, **QUIET)
    dt = pmm.refit(model, sets[:2], **QUIET)
    for i, (x, y) in enumerate(((np.arange(3.0), [0.0, 1.0, 2.0]), ([1.0, 1.0, 3.0], [0, 5, 4]))):
        mean, sd = posterior(x, y)
        assert abs(dt["mean"]["slope"].values[i] - mean) < 0.2 * sd
        assert dt["sd"]["slope"].values[i] == pytest.approx(sd, rel=0.1)
        np.testing.assert_allclose(dt["mean"]["end"].values[i], x[-1] * dt["mean"]["slope"].values[i])
    assert (dt["fits"]["state"] == "trusted").all()
    assert dt["posterior"]["slope"].shape == (2, 4, 100)
    assert model["x"].get_value().tolist() == [0.0, 1.0, 2.0]


def test_data_may_grow():
    with pm.Model() as model:
        y = pm.Data("past", np.zeros(4))
        pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=y)
    numbers = np.random.default_rng(1).normal(3.0, 1.0, 40)
    dt = pmm.refit(model, [{"past": numbers[:n]} for n in (5, 40)], **QUIET)
    np.testing.assert_allclose(dt["sd"]["mu"], [5**-0.5, 40**-0.5], rtol=0.1)
    assert len(model["past"].get_value()) == 4


def test_one_compilation_serves_all_data(model, monkeypatch):
    from pmm_mcmc.run.plan import SamplingPlan

    plans = []
    monkeypatch.setattr(SamplingPlan, "of", classmethod(lambda cls, *a, f=SamplingPlan.of: plans.append(1) or f(*a)))
    pmm.refit(model, [{"y": [0.0, 1.0, float(i)]} for i in range(5)], **QUIET)
    assert len(plans) == 1


def test_a_fit_depends_on_seed_and_place_alone(model):
    sets = [{"y": [0.0, 1.0, float(i)]} for i in range(4)]
    of_all = pmm.refit(model, sets, **QUIET | {"cores": 2})
    of_two = pmm.refit(model, sets[:2], **QUIET)
    assert of_two["mean"]["slope"].values.tobytes() == of_all["mean"]["slope"].values[:2].tobytes()
    of_equal = pmm.refit(model, sets[:1] * 2, **QUIET)["mean"]["slope"].values
    assert of_equal[0] != of_equal[1]
    other = pmm.refit(model, sets[:2], **QUIET | {"random_seed": 2})
    assert not np.array_equal(other["mean"]["slope"], of_two["mean"]["slope"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"z": [1.0]}, r"data_sets\[1\]: 'z' is no data of the model, which has y, x"),
        (
            {"y": [1.0, 2.0]},
            r"data_sets\[1\]\['y'\] has shape \(2,\): must be \(3,\); data of other lengths need pm.Data",
        ),
        ({"y": ["a", "b", "c"]}, r"data_sets\[1\]\['y'\] is of type <U1: must be numbers of type float64"),
        ({"y": [0.0, np.nan, 1.0]}, r"data_sets\[1\]\['y'\]: has values that are not finite"),
        ([1.0], r"data_sets\[1\]=<list>: must be a dict"),
    ],
)
def test_bad_data_are_refused_before_anything_is_compiled(model, monkeypatch, data, message):
    monkeypatch.setattr("pmm_mcmc.run.plan.SamplingPlan.of", lambda *_: pytest.fail("compiled"))
    with pytest.raises(ValueError, match=message):
        pmm.refit(model, [{"y": [0.0, 1.0, 2.0]}, data], **QUIET)


def test_a_fit_that_fails_is_reported_and_stays(model, caplog):
    with caplog.at_level(logging.WARNING, "pmm_mcmc"):
        dt = pmm.refit(model, [{"y": [0.0, 1.0, 2.0]}, {"x": [0.0, 1.0]}], **QUIET)
    assert dt["fits"]["state"].values.tolist() == ["trusted", "failed"]
    assert "Fit 1 is failed" in caplog.text
    assert np.isnan(dt["mean"]["slope"].values[1])


def test_fits_that_start_from_a_result_have_the_posteriors_of_their_data(model, tmp_path):
    sets = [{"y": [0.0, 1.0, float(i)]} for i in range(4)] + [{"x": [0.0, 1e-4, 2e-4]}]
    of_all = pmm.sample(model=model, random_seed=2, progressbar=False)
    warm = pmm.refit(model, sets, start=of_all, store=tmp_path / "fits", **QUIET)
    cold = pmm.refit(model, sets, **QUIET)
    outcomes = warm["fits"]["start"].values.tolist()
    assert outcomes[0] == "fits" and outcomes[4] == "dropped" and {*outcomes[1:4]} <= {"fits", "refined"}
    assert "start" not in cold["fits"]
    for dt in (warm, cold):
        means = [posterior(np.arange(3.0), data["y"])[0] for data in sets[:4]]
        sd = posterior(np.arange(3.0), np.zeros(3))[1]
        np.testing.assert_allclose(dt["mean"]["slope"].values[:4], means, atol=0.2 * sd)
        np.testing.assert_allclose(dt["sd"]["slope"].values[4], 10.0, rtol=0.1)
    with pytest.raises(pmm.StoreError, match="another run's"):
        pmm.refit(model, sets, store=tmp_path / "fits", resume=True, **QUIET)


def test_a_start_fits_whatever_the_order_of_variables(monkeypatch):
    monkeypatch.setattr(module, "_ENDS", (250,))  # equally many draws
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 10)
    y = rng.normal(1.0 + rng.normal(0.0, 0.5, 20)[group], 1.0)
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 5)
        scale = pm.HalfNormal("scale", 1)
        effects = pm.Normal("effects", mean, scale, shape=20)
        pm.Normal("y", effects[group], pm.HalfNormal("sigma", 2), observed=y)
        dt = pmm.sample(random_seed=1, progressbar=False, step=pmm.PoissonULMC(steps_per_draw=1))
    sets = [{"y": y + rng.normal(0, 0.3, 200)} for _ in range(4)]
    step = pmm.PoissonULMC(steps_per_draw=1)
    warm = pmm.refit(model, sets, start=dt, step=step, **QUIET)["fits"]
    cold = pmm.refit(model, sets, step=step, **QUIET)["fits"]
    assert (warm["start"] == "fits").all()
    assert warm["gradients"].max() < cold["gradients"].min() - 80, "what a warm-up takes, of equally many draws"


def test_a_start_of_another_model_is_refused(model):
    with pm.Model():
        pm.Normal("intercept", shape=2)
        dt = pmm.sample(10, tune=200, progressbar=False)
    with pytest.raises(ValueError, match="start: is the result of other variables"):
        pmm.refit(model, [{"y": [0.0, 1.0, 2.0]}], start=dt, **QUIET)


def jax_density():
    return pmm.LogDensity.from_jax(lambda x: -0.5 * (x**2).sum(), 1)


def numpyro_density():
    return pmm.LogDensity.from_numpyro(numpyro_models.divorce, *numpyro_models.divorce_data())


def stan_density():
    return pmm.LogDensity.from_stan(REGRESSION)


@pytest.mark.parametrize("build", [jax_density, numpyro_density, stan_density, lambda: numpyro_models.divorce])
def test_what_holds_its_data_is_refused_with_the_loop_in_place_of_it(build):
    density = build()
    words = r"model=\w+\(\.\.\.\): must be a PyMC model.*make one for each data set.*pmm.sample\(model=..., start=dt\)"
    with pytest.raises(ValueError, match=words):
        pmm.refit(density, [{"y": [1.0]}])
    with pytest.raises(ValueError, match=words):
        pmm.sbc(density, 10)
