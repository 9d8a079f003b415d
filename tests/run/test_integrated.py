"""Runs with a Gaussian block integrated out: draws of all variables, as of a model as written, by every way.

Z-scores at 4.5 are the only random assertions: a false alarm of one in 150,000.
"""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.model.functions import python_function
from pmm_mcmc.model.gaussian_block import gaussian_names, integrated_model

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


def without_averages(dt):
    return xr.DataTree.from_dict(
        {"posterior": dt["posterior"].dataset, "sample_stats": dt["sample_stats"].dataset.drop_vars("block_mean")}
    )


def test_averages_over_a_draw_and_its_mirror_image_are_means_given_the_rest(model, dt):
    block = integrated_model(model, model.initial_point(0), list(BLOCK))
    stats = dt["sample_stats"].dataset.isel(chain=1, draw=7)
    scales = [np.asarray(value) for value in stats["unconstrained"].values]
    precision, right = python_function(block.rest.value_vars, [block.precision, block.right])(*scales)
    average = stats["block_mean"].values
    np.testing.assert_allclose(average[:11], np.linalg.solve(precision, right), atol=1e-8)
    np.testing.assert_allclose(average[11:], average[1:6] + average[6:11], atol=1e-12)  # of ``both``


def test_corrected_means_are_of_means_given_the_rest(dt):
    """Errors of means of the block are smaller, whatever is affine in it."""
    table, plain = (pmm.summary(each, kind="bias", round_to="none") for each in (dt, without_averages(dt)))
    block = ["level", "first[a]", "second[b]", "both[c]"]
    assert (table.loc[block, "mcse_cv"] < 0.8 * plain.loc[block, "mcse_cv"]).all()
    errors = np.hypot(table["mcse_cv"], plain["mcse_cv"])
    assert (np.abs(table["mean_cv"] - plain["mean_cv"]) < 4.5 * errors + 1e-12).all()
    assert (np.abs(table["sd_cv"] - plain["sd_cv"]) < 4.5 * np.hypot(table["mcse_sd_cv"], plain["mcse_sd_cv"])).all()
    np.testing.assert_allclose(table[["mean", "sd"]], plain[["mean", "sd"]], rtol=1e-9)
    sums = [pmm.expectation(each, lambda p: p["first"].sum("group")) for each in (dt, without_averages(dt))]
    assert sums[0]["mcse_cv"].item() < 0.8 * sums[1]["mcse_cv"].item()
    squares = [pmm.expectation(each, lambda p: p["level"] ** 2) for each in (dt, without_averages(dt))]
    difference = squares[0]["mean_cv"].item() - squares[1]["mean_cv"].item()
    assert abs(difference) < 4.5 * np.hypot(*(each["mcse_cv"].item() for each in squares))


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
