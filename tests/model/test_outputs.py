"""Values of flat draws: those that PyMC's own trace would hold, with JAX and without.  Nothing here is random."""

import tracemalloc

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py
from pytensor.graph.op import HasInnerGraph
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise
from result_models import (
    CASES,
    STARTS,
    compare,
    data_and_deterministics,
    known,
    layout_of,
    lengths_that_can_change,
    missing_values,
    positions,
    scan,
    shapes,
    trace_of,
)

from pmm_mcmc.model import outputs
from pmm_mcmc.model.outputs import _same_in_any_place

pytestmark = pytest.mark.pymc

both = pytest.mark.parametrize("backend", ["numba", "jax"])


@both
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_trace(case, backend):
    model = known(case)
    position = positions(model)
    layout = layout_of(model, backend)
    compare(layout.values(position), trace_of(model, position))
    without_jax = outputs._Loop if case == "scan" else outputs._Vectorised
    way = outputs._Jax if backend == "jax" else without_jax
    assert isinstance(layout.values.of_block, way), "another way was taken"


@both
def test_order_of_the_flat_vector(backend):
    model = known("transforms")
    vars = [model.value_vars[i] for i in (4, 0, 6, 2, 1, 7, 5, 3)]
    position = positions(model)
    layout = layout_of(model, backend, vars)
    compare(layout.values(position), trace_of(model, position, vars))
    assert layout.names[:5] == [
        *(f"simplex_simplex__[{i}, {j}]" for i in range(2) for j in range(2)),
        "uniform_interval__",
    ]
    assert layout.names[-3:] == [f"ordered_ordered__[{i}]" for i in range(3)]


@both
def test_no_draws_and_any_number_of_them(backend):
    model = data_and_deterministics()
    layout = layout_of(model, backend)
    rows = layout.values.rows
    whole = layout.values(positions(model, 3, rows // 3 + 5))
    none = layout.values(positions(model, 7, 0))
    for name, values in whole.items():
        assert none[name].shape == (7, 0, *values.shape[2:]) and none[name].dtype == values.dtype
    assert layout.values(np.zeros((0, 0, 6)))["z"].shape == (0, 0, 2, 3)
    compare(layout.values(positions(model, 1, 1)), trace_of(model, positions(model, 1, 1)))


@both
@pytest.mark.parametrize("case", ["transforms", "data_and_deterministics"])
def test_a_draw_does_not_depend_on_its_company(case, backend):
    # To the bit: chunks of any length and chains in any batches make the same result.
    model = known(case)
    layout = layout_of(model, backend)
    position = positions(model, 5, layout.values.rows // 4)
    whole = layout.values(position)
    shuffle = np.random.default_rng(2).permutation(position.shape[0] * position.shape[1])
    mixed = layout.values(position.reshape(1, -1, position.shape[2])[:, shuffle])
    parts = [layout.values(position[:, cut]) for cut in (slice(0, 1), slice(1, 8), slice(8, None))]
    for name, values in whole.items():
        flat = values.reshape(1, -1, *values.shape[2:])
        assert flat[:, shuffle].tobytes() == mixed[name].tobytes(), name
        assert np.concatenate([part[name] for part in parts], axis=1).tobytes() == values.tobytes(), name


@both
def test_matrix_products_do_not_depend_on_their_company(backend):
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=25)
        pm.Deterministic("mu", pm.Data("X", rng.normal(size=(301, 25))) @ slope)
        pm.Deterministic("square", slope.reshape((5, 5)) @ slope.reshape((5, 5)).T)
    layout = layout_of(model, backend)
    position = positions(model, 1, 2 * layout.values.rows - 3)
    shuffle = rng.permutation(position.shape[1])
    whole, mixed = layout.values(position), layout.values(position[:, shuffle])
    for name, values in whole.items():
        assert values[:, shuffle].tobytes() == mixed[name].tobytes(), name


def test_a_processor_whose_products_depend_on_the_row_is_found_out():
    """Some libraries for matrix products treat the last rows of a block otherwise than the first."""

    def alike(block):
        return [block**2, np.ones(len(block))]

    def by_row(block):
        return [block**2 * np.where(np.arange(len(block)) < 7, 1.0, 1.0 + 2.0**-52)[:, None], np.ones(len(block))]

    start = np.linspace(-1.0, 1.0, 5)
    assert _same_in_any_place(alike, start, 8)
    assert not _same_in_any_place(by_row, start, 8)


def test_jax_traces_once():
    model = data_and_deterministics()
    layout = layout_of(model, "jax")
    for chains, draws in ((4, 1), (4, 7), (2, 1500), (3, 0)):
        layout.values(positions(model, chains, draws))
    assert layout.values.traces == 1
    again = layout_of(model, "jax")
    again.values(positions(model))
    assert again.values.traces == 1, "a second run on the model compiles anew"


@both
def test_data_changed_between_two_runs(backend):
    model = data_and_deterministics()
    layout, position = layout_of(model, backend), positions(model)
    before = layout.values(position)
    with model:
        pm.set_data({"x": np.ones((2, 3)), "k": -1.0})
    after = layout.values(position)
    compare(after, trace_of(model, position))
    assert not np.allclose(before["scaled"], after["scaled"]) and layout.values.traces <= 1


@both
def test_data_that_change_a_shape(backend):
    model = lengths_that_can_change()
    assert layout_of(model, backend).values(positions(model))["repeated"].shape == (3, 4, 5, 3)
    model.dim_lengths["long"].set_value(np.array(2))
    assert layout_of(model, backend).values(positions(model))["repeated"].shape == (3, 4, 2, 3)
    model.set_dim("row", 6, coord_values=range(6))
    del STARTS[model]
    assert layout_of(model, backend).values(positions(model))["repeated"].shape == (3, 4, 2, 6)


def test_variables_added_to_the_model_later():
    model = shapes()
    assert "later" not in layout_of(model, "numba").values(positions(model))
    with model:
        pm.Deterministic("later", model["cube"].sum())
    compare(layout_of(model, "numba").values(positions(model)), trace_of(model, positions(model)))


# -- ways to compute ---------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_or_called_number_by_number_without_jax():
    layout = layout_of(known("data_and_deterministics"), "numba")
    for node in layout.values.of_block._function.maker.fgraph.apply_nodes:
        assert not isinstance(node.op, HasInnerGraph), f"{node.op} is compiled"
        if isinstance(node.op, Elemwise):
            scalar_op = node.op.scalar_op
            assert getattr(scalar_op, "nfunc_spec", None) or isinstance(scalar_op, Cast), f"{scalar_op} has no ufunc"


def factors():
    with pm.Model() as model:
        x = pm.Normal("x", shape=(2, 3))
        pm.Deterministic("roots", pt.linalg.cholesky(x[:, :, None] * x[:, None, :] + 4.0 * np.eye(3)))
    return model


@pytest.mark.parametrize("make", [scan, factors])
def test_loops_over_more_than_draws_are_compiled(make):
    assert isinstance(layout_of(make(), "numba").values.of_block, outputs._Loop)


@wrap_py(itypes=[pt.dvector], otypes=[pt.dscalar])
def foreign(x):
    return np.array(np.sort(x)[1] ** 2)


@both
def test_operations_that_only_python_knows(backend):
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        pm.Deterministic("middle", foreign(x))
    layout, position = layout_of(model, backend), positions(model)
    np.testing.assert_allclose(layout.values(position)["middle"], np.sort(position, axis=-1)[..., 1] ** 2)
    assert isinstance(layout.values.of_block, outputs._Vectorised)


def test_operations_that_are_vectorised_wrongly_are_noticed(monkeypatch):
    right = outputs._Vectorised.__call__
    monkeypatch.setattr(outputs._Vectorised, "__call__", lambda self, block: [v[::-1] for v in right(self, block)])
    model = missing_values()
    layout, position = layout_of(model, "numba"), positions(model)
    assert isinstance(layout.values.of_block, outputs._Loop)
    compare(layout.values(position), trace_of(model, position))


def test_memory_is_bounded_by_what_a_draw_takes():
    with pm.Model() as model:
        x = pm.Normal("x", shape=400)
        pm.Deterministic("total", pt.exp(pt.outer(x, x)).sum())
    layout = layout_of(model, "numba")
    assert layout.values.rows <= 4
    position = 0.1 * positions(model, 4, 64)
    tracemalloc.start()
    try:
        layout.values(position)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * outputs._MOST_BYTES  # all at once: 256 x 400 x 400 numbers, 330 MB


# -- errors ------------------------------------------------------------------------------------------------------------


def test_deterministics_that_are_random_are_refused():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("noise", x + pm.Normal.dist(0.0, 1.0))
    with pytest.raises(ValueError, match=r"noise is random.*sample_posterior_predictive"):
        layout_of(model, "numba")


# -- other processes, and what may move --------------------------------------------------------------------------------

SCRIPT = """
import json, sys, warnings
import numpy as np
sys.modules["jax"] = None  # as if it were not installed
import pymc as pm, pytensor, pytensor.tensor as pt
from pmm_mcmc.model.outputs import model_layout

with pm.Model() as model:
    x = pm.HalfNormal("x", shape=3)
    pm.Deterministic("y", pt.log(x) / 3)
    pm.Deterministic("n", (x > 1).sum())
    pm.Normal("z", x.sum(), 1, observed=np.ones(2))
position = np.random.default_rng(1).normal(size=(2, 5, 3))
plain = model_layout(model, model.value_vars, model.initial_point(0), "numba")
one = plain.values(position)
assert sys.modules["jax"] is None
del sys.modules["jax"]
import jax
assert not jax.config.jax_enable_x64
fast = model_layout(model, model.value_vars, model.initial_point(0), "jax")
assert not jax.config.jax_enable_x64
two = fast.values(position)
assert not jax.config.jax_enable_x64 and jax.numpy.ones(1).dtype == "float32"
jax.config.update("jax_enable_x64", True)
fast.values(position)
assert jax.config.jax_enable_x64
rounding = 30 * np.finfo(pytensor.config.floatX).eps
close = {name: bool(np.allclose(one[name], two[name], rtol=rounding, atol=rounding)) for name in one}
dtypes = {name: [str(one[name].dtype), str(two[name].dtype)] for name in one}
exact = bool(np.allclose(one["x"], np.exp(position), rtol=rounding))
print(json.dumps([close, dtypes, exact]))
"""


@pytest.mark.process
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_without_jax_and_with_its_settings_left_alone(run_script, precision):
    found, errors = run_script(SCRIPT, f"floatX={precision}")
    assert found is not None, errors
    close, dtypes, exact = found
    assert exact and all(close.values()), close
    assert dtypes == {name: ["int64" if name == "n" else precision] * 2 for name in ("x", "y", "n")}


PREFERRED = """
import json
import jax, numpy as np, pymc as pm
from pmm_mcmc.model.outputs import model_layout

processor, other = jax.devices()
jax.config.update("jax_default_device", other)
with pm.Model() as model:
    pm.Deterministic("y", pm.Normal("x", shape=3) + pm.Data("data", np.ones(3)))
layout = model_layout(model, model.value_vars, model.initial_point(0), "jax")
sums = layout.values(np.zeros((1, 2, 3)))["y"].sum()
where = [data.devices() == {processor} for data in layout.values.of_block._on_device]
print(json.dumps([sums, where]))
"""


@pytest.mark.process
def test_derived_values_are_computed_on_the_processor_whatever_jax_prefers(run_script, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    found, errors = run_script(PREFERRED)
    assert found == [6.0, [True]], errors


def test_derived_values_need_no_processor(monkeypatch):
    import jax

    def refused(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", refused)
    model = data_and_deterministics()
    position = positions(model)
    compare(layout_of(model, "jax").values(position), trace_of(model, position))


def test_rewrites_relied_on_are_known():
    database = pytensor.compile.optdb
    for where, name in (
        ("canonicalize", "local_check_parameter_to_ninf_switch"),
        ("canonicalize", "local_remove_check_parameter"),
    ):
        assert name in database[where]._names, f"pymc's rewrite {name} has moved: draws out of range would be refused"
    for tag in ("compile_inner_graph", "inline_ofg_expansion", "canonicalize", "stabilize", "py_only"):
        assert database.__db__[tag], f"pytensor's tag {tag} is gone"
    assert database["stabilize"].__db__["symbolic_op_recognition"], "pytensor's tag symbolic_op_recognition is gone"


def test_attributes_relied_on_are_where_they_were():
    x = pt.vector("x")
    function = outputs.python_function([x], [pt.exp(x)], keep=True)
    function(np.ones(3))
    held = [cell[0] for variable, cell in function.vm.storage_map.items() if variable.owner is not None]
    assert [np.shape(value) for value in held] == [(3,)], "pytensor's Python linker keeps its values elsewhere"
    compiled = pytensor.function([x], [pt.exp(x)], mode="JAX")
    (value,) = jax.jit(compiled.vm.jit_fn)(np.ones(3, np.float32))
    assert value.shape == (3,), "pytensor's JAX linker keeps its function elsewhere"


@pytest.mark.parametrize("n", [31, 32, 100])
def test_sums_and_products_have_any_number_of_terms(n):
    # NumPy's functions take 32 operands, and a model of 32 variables is a sum of 32 log densities.
    x = pt.vector("x", shape=(n,))
    terms = [pt.exp(x[i] / n) for i in range(n)]
    at = np.linspace(-1.0, 2.0, n)
    total, product = outputs.python_function([x], [pt.add(*terms), pt.mul(*terms)])(at)
    np.testing.assert_allclose([total, product], [np.exp(at / n).sum(), np.exp((at / n).sum())], rtol=1e-13)
