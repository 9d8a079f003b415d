"""Moments of draws that are not kept, against the same draws kept: exact, to rounding."""

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.model.pymc_outputs import model_layout
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.moments import Moments


@pytest.fixture(scope="module")
def model():
    """A model with a layout: scalars, matrices, a transform, deterministics."""
    with pm.Model(coords={"row": ["a", "b"], "column": [1, 2, 3]}) as built:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z", dims=("row", "column"))
        pm.Deterministic("again", z[1])
        pm.Deterministic("square", z**2 * tau, dims=("row", "column"))
        pm.Deterministic("positive", (z > 0).sum())
        pm.Deterministic("constant", tau * 0.0 + 0.1)
        pm.Normal("y", z.sum(), 1.0, observed=1.0)
    return model_layout(built, list(built.value_vars), built.initial_point(0))


def statistics(position):
    """Statistics of draws ``(chain, n, d)`` as the host gives them."""
    shape = position.shape[:2]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return {
        "lp": -0.5 * (position**2).sum(axis=-1),
        "n_grad": 2 + numbers % 3,
        "n_grad_total": 100 + numbers,
        "unstable": numbers % 2,
        "model_failures": np.zeros(shape, np.int64),
        "gradient": -position,
        "unconstrained": position,
    }


def collected(posterior, stats, cuts=()):
    """Moments of arrays ``(chain, n, ...)``, taken in chunks."""
    n = stats["lp"].shape[1]
    moments = Moments(posterior)
    for begin, end in zip((0, *cuts), (*cuts, n), strict=True):
        parts = ({name: a[:, begin:end] for name, a in group.items()} for group in (posterior, stats))
        moments.add(dict(zip(("posterior", "sample_stats"), parts, strict=True)))
    return moments


@pytest.mark.pymc
def test_moments_are_those_of_kept_draws(model):
    x = 3.0 + np.random.default_rng(1).normal(size=(5, 40, len(model.names)))
    posterior, stats = model.values(x), statistics(x)
    tree = collected(posterior, stats, cuts=(1, 2, 17)).tree(model, {"sampler": "PoissonULMC"})
    kept = model.tree({"posterior": posterior}, {"sampler": "PoissonULMC"})
    for group, reduced in (
        ("posterior_mean", kept["posterior"].mean("draw")),
        ("posterior_sd", kept["posterior"].std("draw")),
    ):
        assert list(tree[group].data_vars) == list(reduced.data_vars)
        for name, values in reduced.data_vars.items():
            assert tree[group][name].dims == values.dims
            np.testing.assert_allclose(tree[group][name], values, rtol=1e-10, atol=1e-12)
        assert tree[group].attrs["sampler"] == "PoissonULMC"
    np.testing.assert_array_equal(tree["posterior_mean"]["row"], ["a", "b"])
    assert np.all(tree["posterior_sd"]["constant"] == 0.0) and np.all(tree["posterior_mean"]["constant"] == 0.1)
    assert float(tree["observed_data"]["y"]) == 1.0
    totals = tree["sample_stats_total"]
    for name in ("n_grad", "unstable", "model_failures"):
        np.testing.assert_array_equal(totals[name], stats[name].sum(axis=1))
    assert np.all(totals["draws"] == 40)
    np.testing.assert_allclose(totals["lp"], stats["lp"].mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(totals["n_grad_total"], stats["n_grad_total"][:, -1])
    assert set(tree.children) == {"posterior_mean", "posterior_sd", "sample_stats_total", "observed_data"}


def test_variance_far_from_zero_is_not_lost():
    x = 1e9 + np.random.default_rng(2).normal(size=(3, 1000, 2))
    moments = collected({"x": x}, statistics(x), range(10, 1000, 10))
    np.testing.assert_allclose(moments.scatter["x"] / 1000, (x - 1e9).var(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean["x"] + moments.origin["x"] - 1e9, (x - 1e9).mean(axis=1), atol=1e-6)


def test_values_that_are_not_finite_spoil_no_others():
    x = np.random.default_rng(4).normal(size=(4, 30, 2))
    bad = x.copy()
    bad[1, 7] = np.nan, np.inf
    bad[0, 0] = 0.0, np.nan
    moments = collected({"x": x, "bad": bad}, statistics(x), (5,))
    np.testing.assert_allclose(moments.mean["x"] + moments.origin["x"], x.mean(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean["bad"][2:] + moments.origin["bad"], x[2:].mean(axis=1), rtol=1e-10)
    assert np.isnan(moments.scatter["bad"][1]).all() and np.isnan(moments.scatter["bad"][0, 1])


def test_no_draws():
    x = np.random.default_rng(7).normal(size=(4, 50, 2))
    moments = Moments({"x": x})
    moments.add({"posterior": {"x": x[:, :0]}, "sample_stats": statistics(x[:, :0])})
    empty = moments.tree(ResultTree.of_vector(2), {})
    assert np.isnan(empty["posterior_mean"]["x"]).all() and int(empty["sample_stats_total"]["draws"][0]) == 0
    assert pmm.verdict(empty).sentence.startswith("Undecided: 4 x 0 draws are too few to judge")
    assert pmm.summary(empty).isna().all(axis=None)
