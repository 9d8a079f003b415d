"""What a run that goes on recognises its model by: any change that draws could show is refused.  No chance here."""

import re

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.storage.checkpoint import decode, encode
from pmm_mcmc.run.storage.store import differences

pytestmark = pytest.mark.pymc

# What the model below says; one change of each kind, and the entry that shows it.
SAYS = {
    "mean": 0.0, "spread": pm.HalfNormal, "width": 2.0, "rows": 3, "name": "z", "dims": ("row", "column"),
    "transform": pm.distributions.transforms.log, "pull": 0.5, "swapped": False, "deterministic": 1.0, "link": pt.exp,
    "more": False, "labels": "row", "likelihood": pm.Normal, "hidden": 1.0, "x": 1.0, "y": 1.0, "shared": 1.0,
}  # fmt: skip
CHANGES = {
    "mean": (1e-6, "density"), "spread": (pm.HalfCauchy, "density"), "width": (2.00001, "density"),
    "rows": (4, "posterior/z"), "name": ("zz", "posterior/zz"), "dims": (("other", "column"), "posterior/z"),
    "transform": (pm.distributions.transforms.log_exp_m1, "density"), "pull": (0.25, "density"),
    "swapped": (True, "coordinates"), "deterministic": (2.0, "derived"), "link": (pt.softplus, "derived"),
    "more": (True, "posterior/again"), "labels": ("other", "posterior/part"), "likelihood": (pm.Laplace, "density"),
    "hidden": (2.0, "density"), "x": (1.001, "density"), "y": (1.001, "density"), "shared": (1.001, "density"),
}  # fmt: skip


def build(**changes):
    says = SAYS | changes
    rows = list(range(says["rows"]))
    with pm.Model(coords={"row": rows, "other": rows, "column": [1, 2]}) as model:
        data = pm.Data("x", np.array([says["x"], 2.0, 3.0]))
        offset = pytensor.shared(np.array(says["shared"]))
        scale = says["spread"]("scale", says["width"], transform=says["transform"])
        for name in ("b", "a") if says["swapped"] else ("a", "b"):
            pm.Normal(name)
        z = pm.Normal(says["name"], says["mean"], 1.0, dims=says["dims"])
        pm.Potential("pull", -says["pull"] * z[0, 0] ** 2)
        pm.Deterministic("twice", says["deterministic"] * says["link"](z).sum())
        pm.Deterministic("part", z[:, 0], dims=says["labels"])
        if says["more"]:
            pm.Deterministic("again", 2.0 * z)
        rate = says["hidden"]
        pm.CustomDist("custom", 1.0, logp=lambda value, mu: -rate * (value - mu) ** 2)
        says["likelihood"]("y", data.sum() + z.sum() + offset, scale, observed=np.full(3, says["y"]))
    return model


def identity(model, **options):
    return SamplingPlan.of(Request(model=model, backend="numba", **options)).identity


@pytest.fixture(scope="module")
def standing():
    return identity(build())


def test_a_model_built_again_is_the_same_also_from_a_store(standing):
    assert encode(identity(build())) == encode(standing)
    assert differences(decode(encode(standing)), standing) == ""


@pytest.mark.parametrize("what", CHANGES)
def test_another_model_or_other_data(standing, what):
    change, entry = CHANGES[what]
    said = differences(standing, identity(build(**{what: change})))
    assert re.search(rf"(^|; ){entry}: ", said), said


def test_another_machine_rounds_differently(standing):
    rng = np.random.default_rng(1)

    def rounded(entry):
        return entry * (1 + 1e-12 * rng.uniform(-1, 1, entry.shape)) if isinstance(entry, np.ndarray) else entry

    elsewhere = {name: rounded(entry) for name, entry in standing.items()}
    assert elsewhere["density"].tobytes() != standing["density"].tobytes()
    assert differences(standing, elsewhere) == ""


def test_a_density_without_values_there_is_still_itself():
    def wall(at):
        with pm.Model() as model:
            x = pm.Flat("x", shape=2)
            pm.Potential("wall", pt.switch(pt.gt(x[0], at), -((x**2).sum()), -np.inf))
        return model

    one = identity(wall(1.0))
    assert not np.isfinite(one["density"]).all()
    assert differences(one, identity(wall(1.0))) == "" != differences(one, identity(wall(-9.0)))


def test_it_is_the_density_of_the_data_that_are_set():
    model = build(x=5.0)
    before = identity(model)
    with model:
        pm.set_data({"x": np.array([1.0, 2.0, 3.0])})
    assert differences(identity(model), identity(build())) == "" != differences(before, identity(model))
