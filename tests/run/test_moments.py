"""Moments of draws that are not kept, against the same draws kept: exact, to rounding."""

from dataclasses import fields

import numpy as np
import pymc as pm
import pytest
from moment_trees import collected, low_rank, statistics, whitened

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.comoments import combined
from pmm_mcmc.diagnostics.moments_summary import moments_summary
from pmm_mcmc.model.pymc_outputs import model_layout
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.moments import Moments
from pmm_mcmc.run.storage.codec import decode, encode


@pytest.fixture(scope="module")
def model():
    """A model with a layout: scalars, matrices, a transform, deterministics that are and are not coordinates."""
    with pm.Model(coords={"row": ["a", "b"], "column": [1, 2, 3]}) as built:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z", dims=("row", "column"))
        pm.Deterministic("again", z[1])
        pm.Deterministic("square", z**2 * tau, dims=("row", "column"))
        pm.Deterministic("positive", (z > 0).sum())
        pm.Deterministic("constant", tau * 0.0 + 0.1)
        pm.Normal("y", z.sum(), 1.0, observed=1.0)
    return model_layout(built, list(built.value_vars), built.initial_point(0))


def draws_of(layout, chains, n, seed=1):
    rng = np.random.default_rng(seed)
    x = 3.0 + rng.normal(size=(chains, n, len(layout.names)))
    return layout.values(x), statistics(x, -np.tanh(x - 3.0))


@pytest.mark.pymc
def test_moments_are_those_of_kept_draws(model):
    posterior, stats = draws_of(model, 5, 40)
    coordinates = Coordinates(np.full(7, 2.0), np.full(7, 1.5))
    tree = collected(posterior, stats, coordinates, cuts=(1, 2, 17)).tree(model, {"sampler": "PoissonULMC"})
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
    assert np.all(totals["transitions"] == 80) and np.all(totals["draws"] == 40)
    np.testing.assert_allclose(totals["lp"], stats["lp"].mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(totals["n_grad_total"], stats["n_grad_total"][:, -1])


@pytest.mark.pymc
def test_which_values_are_coordinates_is_told_by_the_draws(model):
    posterior, stats = draws_of(model, 3, 20)
    # Equal in the first draws, and not in a later one.
    posterior = posterior | {"square": posterior["square"].copy()}
    posterior["square"][:, :, 0] = posterior["z"][:, :, 0]
    posterior["square"][2, 15, 0, 1] += 1e-9
    moments = collected(posterior, stats, Coordinates(np.zeros(7), np.ones(7)), cuts=(10,))
    own = dict(zip(model.tree({"posterior": posterior}, {})["posterior"].data_vars, [None] * 9, strict=False))
    begin = 0
    for name, values in posterior.items():
        size = int(np.prod(values.shape[2:], dtype=int))
        own[name] = moments.own[begin : begin + size].tolist()
        begin += size
    at = {name: j for j, name in enumerate(model.names)}
    z = [at[f"z[{i}, {j}]"] for i in range(2) for j in range(3)]
    assert own["z"] == z and own["again"] == z[3:] and own["square"] == [z[0], -1, z[2], -1, -1, -1]
    assert own["tau"] == own["positive"] == own["constant"] == [-1]
    table = moments_summary(moments.tree(model, {}))
    own_rows = table["mean_corrected"].notna()
    assert own_rows["z[a, 1]"] and own_rows["again[2]"] and not own_rows["tau"] and not own_rows["square[a, 2]"]
    np.testing.assert_array_equal(table.loc["again[2]"].to_numpy(), table.loc["z[b, 3]"].to_numpy())


def test_result_does_not_depend_on_the_cuts():
    rng = np.random.default_rng(1)
    coordinates, _ = whitened(4, rng)
    x = coordinates.place(rng.standard_t(5, size=(70, 60, 4)))
    whole, parts = (collected({"x": x}, statistics(x, -np.tanh(x)), coordinates, cuts) for cuts in ((), (1, 2, 9, 40)))
    for field in fields(Moments):
        a, b = getattr(whole, field.name), getattr(parts, field.name)
        if isinstance(a, np.ndarray):
            # Of the size of what is summed: some co-moments are small differences.
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(a).max(initial=1e-300))
        elif isinstance(a, dict):
            assert all(np.allclose(a[name], b[name], rtol=1e-12) for name in a) and a.keys() == b.keys()
    one, two = (moments_summary(m.tree(ResultTree.of_vector(4), {})) for m in (whole, parts))
    np.testing.assert_allclose(one, two, rtol=1e-7)


def test_variance_far_from_zero_is_not_lost():
    rng = np.random.default_rng(2)
    x = 1e9 + rng.normal(size=(3, 1000, 2))
    moments = collected({"x": x}, statistics(x, 1e9 - x), Coordinates(np.full(2, 1e9), np.ones(2)), range(10, 1000, 10))
    np.testing.assert_allclose(moments.scatter / 1000, (x - 1e9).var(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean + moments.origin - 1e9, (x - 1e9).mean(axis=1), atol=1e-6)


def test_combined_is_the_moments_of_all():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 50)) + 5.0
    parts = [x[:, :1], x[:, 1:20], x[:, 20:]]
    pairs = (np.array([0, 0, 2]), np.array([0, 1, 1]))
    scatter = [
        [((p[a] - p[a].mean()) * (p[b] - p[b].mean())).sum() for p in parts] for a, b in zip(*pairs, strict=True)
    ]
    mean = np.array([p.mean(axis=1) for p in parts]).T
    found, total = combined(np.array([1, 19, 30]), mean, np.array(scatter), pairs)
    np.testing.assert_allclose(found, x.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(total, 50 * np.cov(x, bias=True)[pairs], rtol=1e-13)


def test_values_that_are_not_finite_spoil_no_others():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 30, 2))
    bad = x.copy()
    bad[1, 7], bad[0, 0] = (np.nan, np.inf), (0.0, np.nan)
    moments = collected({"x": x, "bad": bad}, statistics(x, -x), Coordinates(np.zeros(2), np.ones(2)), (5,))
    np.testing.assert_allclose(moments.mean[:, :2] + moments.origin[:2], x.mean(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean[2:, 2:] + moments.origin[2:], x[2:].mean(axis=1), rtol=1e-10)
    assert np.isnan(moments.scatter[1, 2:]).all() and np.isnan(moments.scatter[0, 3]) and moments.own[2:].max() == -1


@pytest.mark.parametrize("chains", [1, 6, 64, 150])
def test_memory_does_not_grow_with_draws(chains):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(chains, 300, 3))
    coordinates = Coordinates(np.zeros(3), np.ones(3))
    moments = Moments.start({"x": x}, 3, chains, coordinates)
    before = moments.nbytes
    for begin in range(0, 300, 100):
        part = x[:, begin : begin + 100]
        moments.add({"posterior": {"x": part}, "sample_stats": statistics(part, -part)})
        size = len(encode(moments))
        assert moments.nbytes == before
        assert size < before + 100 * chains + 3000
    assert before <= 8 * 3 * (2 * chains + 27 * 64 + 3)


@pytest.mark.parametrize("form", ["diagonal", "dense", "low rank"])
def test_goes_on_from_its_bytes_to_the_same_bytes(form):
    rng = np.random.default_rng(6)
    coordinates = {
        "diagonal": Coordinates(np.zeros(6), np.full(6, 2.0)),
        "dense": whitened(6, rng)[0],
        "low rank": low_rank(6, rng),
    }[form]
    x = rng.normal(size=(5, 40, 6))
    first = collected({"x": x[:, :10]}, statistics(x[:, :10], -x[:, :10]), coordinates)
    second = decode(encode(first), (Moments, Coordinates))
    assert encode(second) == encode(first)
    for moments in (first, second):
        moments.add({"posterior": {"x": x[:, 10:]}, "sample_stats": statistics(x[:, 10:], -x[:, 10:])})
    assert encode(second) == encode(first)
    fresh = Moments.start({"x": x}, 6, 5, coordinates)
    assert encode(decode(encode(fresh), (Moments, Coordinates))) == encode(fresh)


def test_no_draws_and_no_gradients():
    x = np.random.default_rng(7).normal(size=(4, 50, 2))
    stats = {name: a for name, a in statistics(x, -x).items() if name not in ("gradient", "unconstrained")}
    moments = Moments.start({"x": x}, 2, 4, None)
    empty = moments.tree(ResultTree.of_vector(2), {})
    assert np.isnan(empty["posterior_mean"]["x"]).all() and int(empty["sample_stats_total"]["draws"][0]) == 0
    with pytest.raises(ValueError, match="4 x 0 draws are too few"):
        moments_summary(empty)
    moments.add({"posterior": {"x": x}, "sample_stats": stats})
    tree = moments.tree(ResultTree.of_vector(2), {})
    table = moments_summary(tree)
    assert "stein" not in tree.children and table["bias"].isna().all() and table["mean_corrected"].isna().all()
    assert "could not be measured, for the result holds no gradients" in pmm.verdict(tree).sentence
