"""The tree that a run becomes: field by field that of ``pm.sample`` with the same step.  Nothing here is random."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.model.outputs import model_layout
from pmm_mcmc.model.result_tree import ResultTree

pytestmark = pytest.mark.pymc

# What is said of a run, and when: told by the caller.
TOLD = {"created_at": "2026-01-01T00:00:00+00:00", "sampling_time": 1.5, "tuning_steps": 40}
TEN = TOLD | {"tuning_steps": 10}
GROUPS = ("warmup_posterior", "posterior", "warmup_sample_stats", "sample_stats")
# Of the library that made it; all the rest is the same.
OWN = {"inference_library", "inference_library_version", "created_at", "sampling_time"}


# What a step says in its statistics, and a run in its attributes.
OF_STEPS = ["sampler", "sampler_dim_0"]


def build():
    with pm.Model(coords={"row": ["a", "b"], "column": [10, 20, 30]}) as model:
        x = pm.Data("x", np.arange(6.0).reshape(2, 3), dims=("row", "column"))
        k = pm.Data("k", 2.0)
        z = pm.Normal("z", dims=("row", "column"))
        scale = pm.HalfNormal("scale")
        pm.Deterministic("scaled", x * z * scale, dims=("row", "column"))
        pm.Deterministic("count", (z > 0).sum())
        pm.Potential("pull", -0.5 * z[0, 0] ** 2)
        pm.Normal("y", z.sum() * scale, k, observed=np.array([1.0, 2.0, 3.0]))
        pm.Normal("w", z[:, 0], 1.0, observed=np.array([1.0, np.nan]), dims="row")
    return model


@pytest.fixture(scope="module")
def run(sample):
    """A model and a run of PyMC's."""
    with pytest.warns(pm.exceptions.ImputationWarning):
        model = build()
    with model:
        dt = sample(pmm.PoissonULMC(K=8), draws=60, tune=40, chains=2, discard_tuned_samples=False)
    return model, dt


def layout_of(model):
    return model_layout(model, model.value_vars, model.initial_point(0))


def groups_of(dt, layout, names=GROUPS):
    """The arrays of a run as an engine hands them over: statistics, and values of the unconstrained draws."""
    groups = {}
    for prefix in ("warmup_", ""):
        data = dt[prefix + "sample_stats"].data_vars
        stats = {name: values.values for name, values in data.items() if name not in OF_STEPS}
        groups[prefix + "sample_stats"] = stats
        groups[prefix + "posterior"] = layout.values(stats["unconstrained"])
    return {name: groups[name] for name in names}


@pytest.fixture(scope="module")
def rebuilt(run):
    model, dt = run
    layout = layout_of(model)
    return layout.tree(groups_of(dt, layout), TOLD)


def compare(ours, theirs):
    """Hold a group against PyMC's: names, dims, coordinates, dtypes, values, attributes."""
    ours, theirs = ours.to_dataset(), theirs.to_dataset().drop_vars(OF_STEPS, errors="ignore")
    assert set(ours.data_vars) == set(theirs.data_vars)
    for name, right in theirs.data_vars.items():
        assert ours[name].dims == right.dims and ours[name].dtype == right.dtype, name
        np.testing.assert_allclose(ours[name].values, right.values, rtol=1e-11, atol=1e-13, err_msg=name)
    assert set(ours.coords) == set(theirs.coords)
    for name, right in theirs.coords.items():
        assert ours[name].dtype == right.dtype, name
        xr.testing.assert_identical(ours[name], right)
    assert list(ours.attrs) == list(theirs.attrs)
    assert {k: v for k, v in ours.attrs.items() if k not in OWN} == {
        k: v for k, v in theirs.attrs.items() if k not in OWN
    }


def test_groups_are_pymcs(run, rebuilt):
    _, dt = run
    assert list(rebuilt.children) == list(dt.children) and rebuilt.attrs == dt.attrs and rebuilt.name == dt.name
    for group in dt.children:
        compare(rebuilt[group], dt[group])
    for group in GROUPS[:2]:
        assert list(rebuilt[group].data_vars) == list(dt[group].data_vars)
    assert rebuilt["posterior"].attrs["inference_library"] == "pmm_mcmc"
    assert rebuilt["posterior"].attrs["inference_library_version"] == pmm.__version__


def test_nothing_that_differs_between_equal_runs_is_made_up(run):
    model, dt = run
    layout = layout_of(model)
    groups = groups_of(dt, layout)
    one, two = layout.tree(groups, {"seed": 3}), layout.tree(groups, {"seed": 3})
    xr.testing.assert_identical(one, two)
    for group in one.children:
        assert "created_at" not in one[group].attrs and "sampling_time" not in one[group].attrs
        assert ("seed" in one[group].attrs) == (group in GROUPS)


def test_more_chains_than_draws(run):
    model, _ = run
    layout = layout_of(model)
    position = np.random.default_rng(1).normal(size=(3000, 2, len(layout.names)))
    groups = {
        "posterior": layout.values(position),
        "sample_stats": {"lp": np.zeros((3000, 2), np.float32), "n_grad": np.ones((3000, 2), np.int32)},
    }
    made = layout.tree(groups, TOLD)
    assert made["posterior"]["scaled"].shape == (3000, 2, 2, 3)
    stats = made["sample_stats"]
    assert (stats["lp"].dtype, stats["n_grad"].dtype) == (np.float64, np.int64)


def test_gradients_keep_the_precision_of_the_engine():
    layout, single = ResultTree.of_vector(2), np.ones((1, 3, 2), np.float32)
    stats = {"gradient": single, "unconstrained": single, "flag": np.ones((1, 3), bool)}
    made = layout.tree({"sample_stats": stats}, {})["sample_stats"]
    assert [made[name].dtype for name in stats] == [np.float32, np.float32, bool]


def test_a_model_without_observations(sample):
    with pm.Model() as model:
        pm.Normal("x")
        dt = sample(pmm.PoissonULMC(K=8), draws=20, tune=10)
    layout = layout_of(model)
    made = layout.tree(groups_of({**dt, "warmup_sample_stats": dt["sample_stats"]}, layout, GROUPS[1::2]), TEN)
    assert list(made.children) == list(dt.children) == ["posterior", "sample_stats", "observed_data"]
    for group in dt.children:
        compare(made[group], dt[group])


def test_a_log_density_without_a_model():
    layout = ResultTree.of_vector(3)
    position = np.random.default_rng(2).normal(size=(4, 10, 3))
    made = layout.tree({"posterior": layout.values(position), "sample_stats": {"unconstrained": position}}, TOLD)
    assert layout.names == ["x[0]", "x[1]", "x[2]"] and list(made.children) == ["posterior", "sample_stats"]
    assert made["posterior"]["x"].dims == ("chain", "draw", "x_dim_0")
    assert made["posterior"].attrs["tuning_steps"] == 40
    np.testing.assert_array_equal(made["posterior"]["x"], position)


def test_coordinates_are_read_when_the_tree_is_made():
    with pm.Model(coords={"row": ["a", "b"]}) as model:
        pm.Data("rows", np.zeros(2), dims="row")
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=model["rows"], dims="row")
    layout = layout_of(model)
    with model:
        pm.set_data({"rows": np.ones(3)}, coords={"row": ["c", "d", "e"]})
    made = layout.tree({"posterior": layout.values(np.zeros((1, 2, 1)))}, {})
    assert list(made["observed_data"]["row"].values) == ["c", "d", "e"]
    np.testing.assert_array_equal(made["observed_data"]["y"], 1.0)
