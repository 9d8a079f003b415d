"""Hashes of models and data: equal for equal models in any process, different for any difference.  No chance here."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pmm_mcmc.model import fingerprint
from pmm_mcmc.model.fingerprint import data_fingerprint, model_fingerprint

pytestmark = pytest.mark.pymc

# What the model below says, and one change of each kind.
SAYS = {
    "mean": 0.0,
    "spread": pm.HalfNormal,
    "width": 2.0,
    "rows": 3,
    "name": "z",
    "coordinate": "a",
    "dims": ("row", "column"),
    "transform": pm.distributions.transforms.log,
    "link": pt.exp,
    "pull": 0.5,
    "shape": 2,
    "order": False,
    "deterministic": 1.0,
    "more": False,
    "table": 1.0,
    "bounds": True,
    "likelihood": pm.Normal,
    "precision": "float64",
    "custom": 1.0,
    "closure": 1.0,
    "scan": 0.9,
    "steps": 4,
    "observed_shape": 3,
    "roles": 1,
    "labels": "row",
}
CHANGES = {
    "mean": 1e-12,
    "spread": pm.HalfCauchy,
    "width": np.nextafter(2.0, 3.0),
    "rows": 4,
    "name": "zz",
    "coordinate": "b",
    "dims": ("other", "column"),
    "transform": pm.distributions.transforms.Interval(0.0, None),
    "link": pt.softplus,
    "pull": 0.25,
    "shape": 1,
    "order": True,
    "deterministic": 2.0,
    "more": True,
    "table": 2.0,
    "bounds": False,
    "likelihood": pm.Laplace,
    "precision": "float32",
    "custom": 2.0,
    "closure": 2.0,
    "scan": 0.8,
    "steps": 5,
    "observed_shape": 4,
    "roles": -1,
    "labels": "other",
}


def build(x=1.0, y=1.0, shared=1.0, **changes):
    """A model of everything that is told apart; the first three arguments are data."""
    says = SAYS | changes
    rows = [says["coordinate"], *map(str, range(says["rows"] - 1))]
    coords = {"row": rows, "other": rows, "column": [1, 2]}
    table = np.arange(6.0).reshape(2, 3)
    table[1, 2] = says["table"]
    rate, power = says["custom"], says["closure"]
    with pm.Model(coords=coords, check_bounds=says["bounds"]) as model:
        data = pm.Data("x", np.array([x, 2.0, 3.0]))
        offset = pytensor.shared(np.array(shared))
        if not says["order"]:
            pm.Normal("first", dtype=says["precision"])
        scale = says["spread"]("scale", says["width"], transform=says["transform"])
        if says["order"]:
            pm.Normal("first", dtype=says["precision"])
        z = pm.Normal(says["name"], says["mean"], 1.0, dims=says["dims"])
        b = pm.Normal("b", shape=says["shape"])
        pm.Potential("pull", -says["pull"] * z[0, 0] ** 2)
        pm.Deterministic("twice", says["deterministic"] * says["link"](z).sum())
        one, two = (model["first"], pm.Normal("second"))[:: says["roles"]]
        pm.Potential("difference", -((one - 2.0 * two) ** 2))
        pm.Deterministic("part", z[:, 0], dims=says["labels"])
        if says["more"]:
            pm.Deterministic("again", 2.0 * z)
        pm.CustomDist("custom", 1.0, logp=lambda value, mu: -rate * (value - mu) ** 2)
        path = pytensor.scan(
            lambda a: a * says["scan"], outputs_info=[scale], n_steps=says["steps"], return_updates=False
        )
        pm.Deterministic("path", path)
        pm.Deterministic("python", foreign(power)(z[0]))
        mu = (pt.as_tensor(table) @ data).sum() + b.sum() + offset
        observed = np.full(says["observed_shape"], y)
        says["likelihood"]("y", mu, scale, observed=observed)
    return model


def foreign(power):
    """An operation of the user's own, with something of its surroundings."""

    def function(x):
        return np.asarray(x.sum() ** power)

    return pytensor.compile.ops.wrap_py(itypes=[pt.dvector], otypes=[pt.dscalar])(function)


def of_model(model):
    return model_fingerprint(model, model.value_vars)


@pytest.fixture(scope="module")
def standing():
    model = build()
    return of_model(model), data_fingerprint(model)


def test_a_model_built_again_is_the_same(standing):
    model = build()
    assert (of_model(model), data_fingerprint(model)) == standing
    assert all(len(digest) == 64 and int(digest, 16) >= 0 for digest in standing)
    # Whatever was done with it in between.
    model.compile_logp(mode="FAST_COMPILE")
    model.initial_point(1)
    assert (of_model(model), data_fingerprint(model)) == standing


@pytest.mark.parametrize("what", CHANGES)
def test_another_model(standing, what):
    assert of_model(build(**{what: CHANGES[what]})) != standing[0]


def test_every_kind_of_change_is_another(standing):
    assert set(CHANGES) == set(SAYS)


@pytest.mark.parametrize("what", ["x", "y", "shared"])
def test_other_data_of_the_same_model(standing, what):
    model = build(**{what: np.nextafter(1.0, 2.0)})
    assert of_model(model) == standing[0] and data_fingerprint(model) != standing[1]


def test_data_set_later(standing):
    model = build(x=5.0)
    with model:
        pm.set_data({"x": np.array([1.0, 2.0, 3.0])})
    assert (of_model(model), data_fingerprint(model)) == standing
    with model:
        pm.set_data({"x": np.array([1.0, 3.0, 2.0])})
    assert of_model(model) == standing[0] and data_fingerprint(model) != standing[1]


def test_order_of_the_flat_vector(standing):
    model = build()
    assert model_fingerprint(model, model.value_vars[::-1]) != standing[0]


def test_one_observation_more_or_none_in_place_of_one():
    def with_observed(values):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu"), 1.0, observed=values)
        return model

    models = [with_observed(np.array([1.0, 2.0])), with_observed(np.array([2.0, 1.0]))]
    with pytest.warns(pm.exceptions.ImputationWarning):
        models += [with_observed(np.array([1.0, np.nan])), with_observed(np.array([np.nan, 1.0]))]
    assert len({(of_model(model), data_fingerprint(model)) for model in models}) == 4


def test_a_prior_that_equals_a_datum_is_no_datum():
    def with_mean(mean):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu", mean), 1.0, observed=0.5)
        return of_model(model)

    assert with_mean(0.5) != with_mean(0.25)


# Models whose log densities PyMC derives, and objects that operations hold.
SCRIPT = """
import json, sys
import numpy as np
import pymc as pm, pytensor, pytensor.tensor as pt
from pmm_mcmc.model.fingerprint import data_fingerprint, model_fingerprint
sys.path.insert(0, {folder!r})
from test_fingerprint import build, derived
found = []
for make in (build, derived):
    model = make()
    found += [model_fingerprint(model, model.value_vars), data_fingerprint(model)]
print(json.dumps(found))
"""


def derived():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Censored("censored", pm.Normal.dist(0.0, scale), lower=-1.0, upper=1.0, observed=np.array([-1.0, 0.2]))
        pm.Truncated("truncated", pm.Normal.dist(0.0, 1.0), lower=-1.0, upper=1.0)
        pm.NormalMixture("mixture", w=[0.3, 0.7], mu=[0.0, 1.0], sigma=[1.0, 2.0])
        pm.CustomDist("made", 1.0, dist=lambda mu, size: pt.exp(pm.Normal.dist(mu, 1.0, size=size)))
        pm.AR("series", rho=[0.3, 0.2], sigma=1.0, init_dist=pm.Normal.dist(0.0, 1.0, shape=2), steps=10)
        pm.LKJCorr("correlation", n=3, eta=1.0)
        pm.Dirichlet("weights", np.ones(3))
        pm.Interpolated("spline", np.linspace(0.0, 1.0, 5), np.ones(5))
        pm.OrderedLogistic("grade", eta=0.0, cutpoints=[-1.0, 0.0, 1.0], observed=[0, 1, 2])
        pm.Potential("largest", pt.max(model["weights"]))
    return model


@pytest.mark.process
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_in_other_processes(run_script, monkeypatch, standing, seed, pytestconfig):
    monkeypatch.setenv("PYTHONHASHSEED", str(seed))
    found, errors = run_script(SCRIPT.format(folder=str(pytestconfig.rootpath / "tests" / "model")))
    assert found is not None, errors
    model = derived()
    assert found == [*standing, of_model(model), data_fingerprint(model)]


def test_objects_within_operations():
    hasher = fingerprint._Hasher({})

    class Thing:
        def __init__(self, value):
            self.value, self.itself = value, self

    def function(a, b=1):
        return {a, b, "c"}

    def other(a, b=1):
        return {a, b, "d"}

    different = [
        None, True, 1, 1.0, "1", b"1", -0.0, 0.0, (), [], {}, set(), (1, 2), [1, 2], {1: 2}, {2: 1}, {1, 2},
        np.float64(1.0), np.float32(1.0), np.array([1.0]), np.array([[1.0]]), np.array([1]), np.array(["a"]),
        np.array([1, "a"], dtype=object), np.array(["2001-01-01"], "M8[D]"), np.dtype("f4"), slice(1, 2), Ellipsis,
        Thing(1), Thing(2), function, other, lambda a: a, lambda a: a + 1, np.add, np.sum, Thing, np, str.upper,
    ]  # fmt: skip
    assert len({hasher.of(obj) for obj in different}) == len(different)
    assert hasher.of({"a": 1, "b": Thing(3)}) == hasher.of({"b": Thing(3), "a": 1})
    assert hasher.of(np.arange(6).reshape(2, 3).T) == hasher.of(np.ascontiguousarray(np.arange(6).reshape(2, 3).T))
