"""Corrected expectations of functions: rows, labels, values against exact ones, and what is refused.

The statistical statements are |z| < 5.3 with the 15 and more degrees of freedom of the standard errors: for the two
functions and two chains of seeds here a false alarm in 1e3 at 15, in 1e5 at 31; the seeds are fixed.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table

pytestmark = pytest.mark.pymc


@pytest.fixture(scope="module")
def dt(sample):
    with pm.Model(coords={"place": ["here", "there", "beyond"]}):
        pm.Normal("a", 1.0, 0.5)
        pm.Normal("b", 0.0, 0.4)
        pm.Normal("x", np.arange(3.0), dims="place")
        pm.HalfNormal("s")
        step = pmm.PoissonULMC(step_size=0.5, K=64, scaling=[0.5, 0.4, 1.0, 1.0, 1.0, 1.0], steps_per_draw=4)
        return sample(step, draws=1000, tune=200, chains=4)


def identity(p):
    return p


def test_parameters_themselves_are_the_table_of_the_bias(dt):
    expected, found = bias_table(dt), pmm.expectation(dt, identity)
    assert list(found.index) == list(expected.index) and list(found.columns) == list(expected.columns)
    # Coordinates are told by their values; and each variable is decided upon by itself.
    alone = pmm.expectation(dt, lambda p: {"x": p["x"]})
    pd.testing.assert_frame_equal(alone, found.loc[alone.index])


def exact():
    """E of a exp(b), of the square of a, and of cos(x), under the prior above."""
    return {
        "product": 1.0 * np.exp(0.5 * 0.4**2),
        "square": 1.0 + 0.25,
        "cosine[here]": np.exp(-0.5),
        "cosine[beyond]": np.exp(-0.5) * np.cos(2.0),
    }


@pytest.mark.statistical
def test_nonlinear_functions_against_exact_values(dt):
    found = pmm.expectation(
        dt, lambda p: {"product": p["a"] * np.exp(p["b"]), "square": p["a"] ** 2, "cosine": np.cos(p["x"])}
    )
    assert list(found.index) == ["product", "square", "cosine[here]", "cosine[there]", "cosine[beyond]"]
    for name, truth in exact().items():
        row = found.loc[name]
        assert abs(row["mean_cv"] - truth) < 5.3 * row["mcse_cv"] + 1e-12, name
        assert row["mcse_cv"] <= row["mcse"]
    # The product of two coordinates has no direction of its own: half of its variance is explained.  The square does.
    assert found["mcse_cv"]["square"] < 0.05 * found["mcse"]["square"]
    assert found["mcse_cv"]["product"] < 0.7 * found["mcse"]["product"]
    assert abs(found["mean_cv"]["square"] - 1.25) < 2e-3


def test_linear_functions_are_exact_and_follow_the_bias(dt):
    found = pmm.expectation(dt, lambda p: {"line": 2.0 - 4.0 * p["a"], "total": p["x"].sum("place") + p["a"]})
    np.testing.assert_allclose(found["mean_cv"], [-2.0, 4.0], atol=1e-3)
    np.testing.assert_allclose(found["sd_cv"], [2.0, np.sqrt(3.25)], rtol=1e-3)
    np.testing.assert_allclose(found["bias"], found["mean"] - found["mean_cv"], rtol=1e-9)


def named(p):
    return p["a"] * p["x"]


class Callable:
    def __call__(self, p):
        return p["a"]


def test_labels(dt):
    assert list(pmm.expectation(dt, named).index) == ["named[here]", "named[there]", "named[beyond]"]
    # An operation keeps the name of its operand, which it no longer is.
    assert list(pmm.expectation(dt, lambda p: p["a"] ** 2).index) == ["value"]
    assert list(pmm.expectation(dt, Callable()).index) == ["value"]
    dataset = pmm.expectation(dt, lambda p: xr.Dataset({"two": 2.0 * p["x"], "one": p["a"]}))
    assert list(dataset.index) == ["two[here]", "two[there]", "two[beyond]", "one"]


def test_shapes_that_differ_and_selections_do_not_disturb_each_other(dt):
    found = pmm.expectation(
        dt,
        lambda p: {
            "first": p["x"].isel(place=[0, 1]),
            "last": p["x"].isel(place=[1, 2]),
            "one": p["x"].sel(place="there"),
            "turned": p["x"].transpose("place", "draw", "chain"),
            "outer": p["x"] * p["x"].rename(place="other"),
        },
    )
    assert len(found) == 2 + 2 + 1 + 3 + 9
    bias = bias_table(dt)
    for label, same in (
        ("first[there]", "there"),
        ("last[beyond]", "beyond"),
        ("one", "there"),
        ("turned[here]", "here"),
    ):
        np.testing.assert_allclose(found.loc[label, "mean_cv"], bias.loc[f"x[{same}]", "mean_cv"], atol=1e-4)
    assert abs(found["mean_cv"]["outer[beyond, there]"] - 2.0) < 5.3 * found["mcse_cv"]["outer[beyond, there]"]


def test_jumps_and_constants(dt):
    found = pmm.expectation(
        dt, lambda p: {"above": p["a"] > 1.0, "fixed": 0 * p["a"] + 7, "broken": p["b"].where(p["b"] > 0.0)}
    )
    assert found["bias"]["fixed"] == found["bias_se"]["fixed"] == 0.0 and np.isnan(found["bias_sd_units"]["fixed"])
    assert found["mean"]["fixed"] == found["mean_cv"]["fixed"] == 7.0
    assert found["mean"]["above"] == pytest.approx((dt["posterior"]["a"] > 1.0).mean().item(), rel=1e-12)
    assert not np.isfinite(found["mean_cv"]["broken"]) and np.isnan(found["bias"]["broken"])


@pytest.mark.parametrize("function", ["a", None, 3.0])
def test_refuses_what_is_not_callable(dt, function):
    with pytest.raises(TypeError, match=r"function=.*: must be callable"):
        pmm.expectation(dt, function)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda p: p["a"].values, TypeError, "function returned ndarray for 'value': must return a DataArray"),
        (lambda p: None, TypeError, "function returned NoneType for 'value': "),
        (lambda p: {}, TypeError, "function returned nothing in a dict: "),
        (lambda p: {"m": 3.0}, TypeError, "function returned float for 'm'"),
        (lambda p: p["a"].mean(), ValueError, r"returned {} for 'value': .* in the order of 'chain', not a mean"),
        (lambda p: {"m": p["a"].mean("draw")}, ValueError, r"returned {'chain': 4} for 'm': .* 'draw', not a mean"),
        (lambda p: p["a"].isel(draw=slice(0, 10)), ValueError, "'draw': 10} for 'value': must .*1000"),
        (
            lambda p: p["a"].isel(chain=[1, 0, 2, 3]),
            ValueError,
            "in the order of 'chain'",
        ),
        (lambda p: p["a"] * 1j, TypeError, "dtype complex128 for 'value': must be real numbers"),
        (lambda p: p["a"].astype(str), TypeError, "must be real numbers"),
        (lambda p: p["missing"], KeyError, "missing"),
    ],
)
def test_refuses_what_has_no_value_at_each_draw(dt, function, error, message):
    with pytest.raises(error, match=message):
        pmm.expectation(dt, function)


def test_refuses_results_without_gradients_before_the_function_is_called(dt):
    def never(p):
        raise AssertionError("called")

    without = dt.copy()
    without["sample_stats"] = dt["sample_stats"].dataset.drop_vars("gradient")
    with pytest.raises(ValueError, match="the result holds no gradients"):
        pmm.expectation(without, never)
    with pytest.raises(ValueError, match="too few for a corrected estimate"):
        pmm.expectation(dt.isel(draw=slice(0, 4), chain=slice(0, 2)), never)
