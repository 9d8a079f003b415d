"""Models of every kind that a result can come from, and what PyMC's own trace would hold of flat draws."""

import warnings
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.vm import VMLinker

from pmm_mcmc.model.outputs import model_layout

# PyMC's rewrites, and nothing compiled.
INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    RewriteDatabaseQuery(include=["fast_run", "py_only"], exclude=["fusion", "inplace", "BlasOpt"]),
)
ROUNDING = {"rtol": 1e-11, "atol": 1e-13}


def transforms():
    with pm.Model() as model:
        pm.Uniform("uniform", -1.0, 3.0)
        pm.Beta("beta", 2.0, 3.0, shape=2)
        pm.HalfNormal("half", 2.0)
        ordered = pm.distributions.transforms.ordered
        pm.Normal("ordered", shape=3, transform=ordered, initval=np.array([-1.0, 0.0, 1.0]))
        pm.Dirichlet("simplex", np.array([[2.0, 3.0, 4.0], [1.0, 1.0, 1.0]]))
        pm.ZeroSumNormal("zero_sum", 1.5, shape=4)
        pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Gamma.dist(5.0, 2.0))
        pm.VonMises("angle", 0.0, 1.0)
    return model


def data_and_deterministics():
    with pm.Model(coords={"row": ["a", "b"], "column": [1, 2, 3]}) as model:
        x = pm.Data("x", np.arange(6.0).reshape(2, 3), dims=("row", "column"))
        k = pm.Data("k", 2.0)
        z = pm.Normal("z", dims=("row", "column"))
        pm.Potential("pull", -0.5 * (z[1, 2] - 1.0) ** 2)
        pm.Deterministic("scaled", x * z * k, dims=("row", "column"))
        pm.Deterministic("of_data", x.sum(axis=0))
        pm.Deterministic("count", (z > 0).sum())
        pm.Deterministic("flag", z[0] > 0)
        pm.Deterministic("softplus", pt.softplus(300.0 * z))
        pm.Deterministic("log1mexp", pt.log1mexp(-pt.exp(20.0 * z)))
        pm.Deterministic("log_of_sigmoid", pt.log(pt.sigmoid(400.0 * z)))
        pm.Deterministic("clipped", pt.clip(z, -0.5, 0.5))
        pm.Deterministic("weights", pm.math.softmax(z, axis=1))
        pm.Deterministic("evidence", pm.math.logsumexp(z, axis=1))
        pm.Deterministic("cumulative", pt.cumsum(z, axis=1)[:, ::-1])
        pm.Deterministic("single", pt.cast(z, "float32"))
        pm.Deterministic("solved", pt.linalg.cholesky(z @ z.T + 3.0 * pt.eye(2)))
        pm.Normal("y", (x @ z.T).sum(axis=1), 1.0, observed=np.array([1.0, 2.0]), dims="row")
    return model


def missing_values():
    with pm.Model() as model, pytest.warns(pm.exceptions.ImputationWarning):
        mu = pm.HalfNormal("mu", 2.0)
        pm.Normal("y", mu, 1.0, observed=np.array([0.7, np.nan, 1.9, np.nan]))
    return model


def shapes():
    with pm.Model() as model:
        pm.Normal("nothing", shape=(0, 2))
        pm.HalfNormal("scalar")
        pm.Normal("cube", shape=(2, 1, 3))
        pm.Deterministic("none", pt.exp(model["nothing"]).sum(axis=1))
    return model


def several_precisions():
    with pm.Model() as model:
        x = pm.Normal("x", shape=2, dtype="float32")
        y = pm.HalfNormal("y")
        pm.Deterministic("product", x * y)
    return model


def lengths_that_can_change():
    with pm.Model(coords={"row": range(3)}) as model:
        model.add_coord("long", length=pytensor.shared(np.array(5), name="long"))
        x = pm.Normal("x", dims="row")
        pm.Deterministic("repeated", pt.ones(model.dim_lengths["long"])[:, None] * x, dims=("long", "row"))
    return model


def scan():
    with pm.Model() as model:
        x, rate = pm.Normal("x"), pm.Uniform("rate", -1.0, 1.0)
        path = pytensor.scan(
            lambda last, r: r * last, outputs_info=[x], non_sequences=[rate], n_steps=6, return_updates=False
        )
        pm.Deterministic("path", path)
    return model


def named_dimensions():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of being experimental
        import pymc.dims as pmd
    with pm.Model(coords={"row": ["a", "b"], "column": [1, 2, 3]}) as model:
        z, scale = pmd.Normal("z", dims=("row", "column")), pmd.HalfNormal("scale", dims="row")
        pmd.Deterministic("total", (z * scale).sum("row"))
    return model


CASES = {
    function.__name__: function
    for function in (
        transforms,
        data_and_deterministics,
        missing_values,
        shapes,
        several_precisions,
        lengths_that_can_change,
        scan,
        named_dimensions,
    )
}


def vectors():
    """Several vectors at each draw, with a covariance of its own: a small matrix to solve for each."""
    with pm.Model() as model:
        x, z = pm.Normal("x", shape=2), pm.Normal("z", shape=(2, 2))
        chol = pt.linalg.cholesky(z @ z.T + 3.0 * pt.eye(2))
        pm.MvNormal("y", x, chol=chol, observed=np.array([[0.3, 0.1], [1.0, -1.0], [0.0, 2.0]]))
    return model


STARTS = WeakKeyDictionary()


def start_of(model):
    """An initial point, which PyMC compiles anew each time it is asked for one."""
    return STARTS[model] if model in STARTS else STARTS.setdefault(model, model.initial_point(0))


@cache
def known(case):
    """A model that several tests look at and none changes."""
    return CASES[case]()


def positions(model, chains=3, draws=4, seed=1):
    d = sum(np.size(value) for value in start_of(model).values())
    return np.random.default_rng(seed).normal(size=(chains, draws, d))


def as_point(model, vars, flat):
    point, begin, start = {}, 0, start_of(model)
    for var in vars:
        size = start[var.name].size
        point[var.name] = flat[begin : begin + size].reshape(start[var.name].shape).astype(var.dtype)
        begin += size
    return point


def trace_of(model, position, vars=None):
    """What PyMC's trace holds of the same unconstrained points, without the transformed variables."""
    vars = vars or model.value_vars
    outputs = [var for var in model.unobserved_value_vars if not var.name.endswith("__")]
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=INTERPRETED, on_unused_input="ignore")
    rows = [[function(as_point(model, vars, x)) for x in chain] for chain in position]
    return {
        var.name: np.array([[np.asarray(values[i]) for values in chain] for chain in rows])
        for i, var in enumerate(outputs)
    }


def layout_of(model, backend, vars=None):
    return model_layout(model, vars or model.value_vars, start_of(model), backend)


def compare(values, expected, **tolerance):
    assert list(values) == list(expected)
    for name, right in expected.items():
        assert values[name].shape == right.shape and values[name].dtype == right.dtype, name
        exact = values[name].dtype.kind in "bi"
        close = {"rtol": 1e-5, "atol": 1e-6} if right.dtype == np.float32 else {**ROUNDING, **tolerance}
        np.testing.assert_allclose(values[name], right, **({"rtol": 0} if exact else close), err_msg=name)
