"""Runs with a Gaussian block integrated out: draws of all variables, as of a model as written, by every way.

Two z-scores of a mean at 4.5 are the only random assertions: a false alarm in 150,000.
"""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.model.gaussian_block import gaussian_names

pytestmark = pytest.mark.pymc
RNG = np.random.default_rng(5)
FIRST = RNG.integers(5, size=60)
SECOND = np.where(RNG.random(60) < 0.2, RNG.integers(5, size=60), FIRST)
Y = RNG.normal(size=60) + 0.4 * FIRST
BLOCK = {"level": "integrated", "first": "integrated", "second": "integrated"}


def crossed():
    with pm.Model(coords={"group": list("abcde")}) as model:
        level = pm.Normal("level", 0, np.float64(5.0))
        first = pm.Normal("first", 0, pm.HalfNormal("sd1"), dims="group")
        second = pm.Normal("second", 0, pm.HalfNormal("sd2"), dims="group")
        pm.Deterministic("both", first + second, dims="group")
        noise = pm.HalfNormal("noise")
        pm.Normal("y", level + first[FIRST] + second[SECOND], noise, observed=Y)
    return model


@pytest.fixture(scope="module")
def model():
    return crossed()


def run(model, draws=200, **options):
    options = {"reparametrise": BLOCK, "random_seed": 3, "compute_convergence_checks": False, **options}
    return pmm.sample(draws, model=model, progressbar=False, **options)


@pytest.fixture(scope="module")
def dt(model):
    return run(model, 400)


def test_the_result_has_every_variable_in_its_place(model, dt):
    posterior = dt["posterior"]
    assert list(posterior) == ["level", "first", "second", "sd1", "sd2", "noise", "both"]
    assert posterior["first"].dims == ("chain", "draw", "group")
    xr.testing.assert_allclose(posterior["both"], posterior["first"] + posterior["second"])
    assert dt["sample_stats"]["unconstrained"].shape[-1] == 3


def test_lp_is_that_of_the_model_as_written(model, dt):
    draw = dt["posterior"].isel(chain=1, draw=7)
    scales = {f"{name}_log__": np.log(draw[name].values) for name in ("sd1", "sd2", "noise")}
    point = {**{name: draw[name].values for name in BLOCK}, **scales}
    assert dt["sample_stats"]["lp"].values[1, 7] == pytest.approx(float(model.compile_logp()(point)), abs=1e-8)


def test_means_are_those_of_the_model_as_written(model, dt):
    written = run(model, 400, reparametrise={"level": "centred"})
    both = [each["posterior"]["level"].values for each in (dt, written)]
    errors = [draws.std() / np.sqrt(100) for draws in both]  # fewer effective draws than either has
    assert abs(both[0].mean() - both[1].mean()) < 4.5 * np.hypot(*errors)


def test_draws_of_the_block_are_independent_given_the_rest(dt):
    """The lag-one autocorrelation of standardised residuals of the sum that data do not see is that of noise."""
    unseen = dt["posterior"]["first"].values[..., 0] - dt["posterior"]["first"].values[..., 1]
    deviations = unseen - unseen.mean()
    lag = (deviations[:, 1:] * deviations[:, :-1]).mean() / (deviations**2).mean()
    assert abs(lag) < 0.3


def test_a_run_that_is_extended_or_stored_has_the_same_bytes(model, dt, tmp_path):
    extended = pmm.extend(run(model, 150), 250, model=model, progressbar=False, compute_convergence_checks=False)
    stored = run(model, 400, store=tmp_path / "run.zarr")
    for other in (extended, stored):
        for group in ("posterior", "sample_stats"):
            xr.testing.assert_identical(dt[group].to_dataset().drop_attrs(), other[group].to_dataset().drop_attrs())


def test_a_former_run_is_a_start(model, dt):
    again = run(model, 50, start=dt)
    assert again["posterior"].attrs["start"] == "fits"


def test_initial_values_of_the_block_have_no_effect(model, dt):
    given = {"sd1": 0.5, "sd2": 0.5, "noise": 1.0, "level": 0.0}
    runs = [run(model, 20, initvals=values) for values in (given, {**given, "level": 3.0})]
    np.testing.assert_array_equal(runs[0]["posterior"]["first"], runs[1]["posterior"]["first"])
    with pytest.raises(ValueError, match="first"):
        run(model, initvals={"first": np.zeros(3)})


def test_unadjusted_draws_and_jax_have_the_same_law(model, dt):
    for options in (
        {"step": pmm.PoissonULMC(K=16, reparametrise=BLOCK), "reparametrise": "auto", "backend": "tape"},
        {"backend": "jax"},
    ):
        other = run(model, 400, **options)
        both = [each["posterior"]["level"].values for each in (dt, other)]
        errors = [draws.std() / np.sqrt(100) for draws in both]
        assert abs(both[0].mean() - both[1].mean()) < 4.5 * np.hypot(*errors)


def test_the_verdict_and_what_pymc_computes_of_the_result_work(model, dt):
    assert pmm.verdict(dt).state == pmm.verdict(dt, model=model).state == "trusted"
    with model:
        pm.compute_log_likelihood(dt, progressbar=False)
        pm.sample_posterior_predictive(dt, progressbar=False, random_seed=1)
    assert {"mean_cv", "mcse_cv"} <= set(pmm.summary(dt).columns)


REFUSED = {
    "a step beside it": (lambda model: run(model, step=pmm.GHMC()), "beside step=: give it to the step"),
    "pm.sample": (
        lambda model: pm.sample(step=pmm.GHMC(reparametrise=BLOCK), model=model, progressbar=False),
        r"first, level, second cannot be integrated out by pm.sample.*call pmm.sample\(step=...\)",
    ),
    "a ladder": (
        lambda model: pmm.temper(model=model, step=pmm.GHMC(reparametrise=BLOCK)),
        "a ladder samples all variables.*leave reparametrise out",
    ),
    "all of it": (
        lambda model: run(model, reparametrise=dict.fromkeys(("sd1", "level"), "integrated")),
        "sd1 is not normal, but HalfNormal",
    ),
    "a name": (
        lambda model: run(model, reparametrise={"third": "integrated"}),
        "third is not a free variable of the model, which has level",
    ),
    "single precision": (
        lambda model: run(model, backend=pmm.Jax(precision="float32"), adjusted=False),
        "single precision.*leave precision=",
    ),
    "a log density": (
        lambda model: run(pmm.LogDensity.from_jax(lambda x: -(x**2).sum() / 2, 2)),
        "cannot be integrated out of a LogDensity",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_compilation(case, model):
    call, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        call(model)


def test_a_model_without_any_scale_to_sample_is_refused():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", shape=2), 1.0, observed=np.ones(2))
    with pytest.raises(ValueError, match="nothing would be left to sample"):
        run(model, reparametrise={"b": "integrated"})


def test_the_largest_block_of_a_model_is_found(model):
    assert set(gaussian_names(model, model.initial_point(0))) == set(BLOCK)
    with pm.Model() as product:  # of two normal variables, of which the longer one is taken
        x = pm.Normal("x", pm.Normal("mean"), pm.HalfNormal("spread"), shape=6)
        pm.Normal("y", pm.Normal("slope") * x, pm.HalfNormal("noise"), observed=np.ones(6))
    assert set(gaussian_names(product, product.initial_point(0))) == {"x", "mean"}
    with pm.Model() as counts:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, pm.HalfNormal("s"), shape=3)), observed=[1, 2, 3])
    assert gaussian_names(counts, counts.initial_point(0)) == []
