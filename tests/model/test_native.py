"""Compiled pytensor functions as C functions: values, gradients, data, failures.  Nothing here is random."""

import ctypes
import gc

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from llvmlite.binding import Linkage
from pytensor.compile.mode import Mode
from pytensor.raise_op import Assert

import pmm_mcmc as pmm
from pmm_mcmc.engines import numba_engine as loop
from pmm_mcmc.model import native, pytensor_density
from pmm_mcmc.model.pymc_density import build_log_density

pytestmark = pytest.mark.pymc

DOUBLES = ctypes.POINTER(ctypes.c_double)
LONGS = ctypes.POINTER(ctypes.c_int64)
INTERPRETED = Mode(linker="py", optimizer="fast_compile")
RNG = np.random.default_rng(20)


def call(density, which, x):
    """Value and gradient from the C function, called as the engine calls it."""
    function, table = density.function(which), density.table(which)
    x, gradient = np.asarray(x, dtype=float), np.full(density.d, -7.0)
    value = function.ctypes(
        x.ctypes.data_as(DOUBLES), gradient.ctypes.data_as(DOUBLES), table.ctypes.data_as(LONGS), len(x)
    )
    return value, gradient


def density_of(model, vars=None):
    return build_log_density(vars or model.continuous_value_vars, model, model.initial_point(0))


def as_point(model, x):
    point, begin = model.initial_point(0), 0
    for var in model.continuous_value_vars:
        size = point[var.name].size
        point[var.name] = np.reshape(x[begin : begin + size], point[var.name].shape)
        begin += size
    return point


def glm_with_data():
    """A regression whose data have 0, 1 and 2 dimensions, of floats, integers and booleans."""
    with pm.Model(coords={"row": range(6), "column": range(3)}) as model:
        X = pm.Data("X", RNG.normal(size=(6, 3)), dims=("row", "column"))
        offset = pm.Data("offset", RNG.normal(size=6), dims="row")
        counts = pm.Data("counts", np.arange(6), dims="row")
        group = pm.Data("group", np.array([0, 1, 1, 0, 1, 0]), dims="row")
        switch = pm.Data("switch", np.array([True, False, True, True, False, True]), dims="row")
        width, power = pm.Data("width", 1.5), pm.Data("power", 3)
        b = pm.Normal("b", 0.0, width, shape=3)
        a = pm.Normal("a", 0.1 * power, 1.0, shape=2)
        rate = pm.math.exp(X @ b + a[group] + offset * switch)
        pm.Poisson("y", rate, observed=counts, dims="row")
    return model


def transforms():
    with pm.Model() as model:
        pm.HalfNormal("scale", 2.0)
        pm.Uniform("part", -1.0, 3.0, shape=(2, 2))
        pm.Dirichlet("simplex", np.ones(3))
        pm.Normal("nothing", shape=0)
        pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    return model


MODELS = {"glm": glm_with_data, "transforms": transforms}


@pytest.fixture(scope="module")
def compiled():
    """Each model with its density and PyMC's own compiled functions for it (by the interpreter: another path)."""
    known = {}

    def get(name):
        if name not in known:
            model = MODELS[name]()
            reference = model.compile_fn([model.logp(), model.dlogp()], mode=INTERPRETED, on_unused_input="ignore")
            known[name] = model, density_of(model), reference
        return known[name]

    return get


def agrees(density, reference, point, x):
    logp, dlogp = reference(point)
    value, gradient = call(density, "joint", x)
    nothing, alone = call(density, "gradient", x)
    np.testing.assert_allclose(value, logp, rtol=1e-12)
    np.testing.assert_allclose(gradient, dlogp, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(alone, gradient, rtol=1e-11, atol=1e-12)
    assert nothing == 0.0


@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_are_those_of_the_model(compiled, name):
    model, density, reference = compiled(name)
    for x in RNG.normal(size=(5, density.d)):
        agrees(density, reference, as_point(model, x), x)


def test_new_data_are_seen_without_compiling_again(compiled, monkeypatch):
    model, density, reference = compiled("glm")
    functions = [density.function(which) for which in ("joint", "gradient")]
    monkeypatch.setattr(pytensor_density, "compile", lambda *args, **options: pytest.fail("compiled again"))
    x = RNG.normal(size=density.d)
    before = call(density, "joint", x)[0]
    with model:
        pm.set_data({"width": 0.7, "power": -2})
    agrees(density, reference, as_point(model, x), x)
    longer = {
        "X": RNG.normal(size=(9, 3)),
        "offset": np.zeros(9),
        "counts": np.arange(9)[::-1],
        "group": np.ones(9, int),
        "switch": np.zeros(9, bool),
    }
    with model:
        pm.set_data(longer, coords={"row": range(9)})
    agrees(density, reference, as_point(model, x), x)
    assert call(density, "joint", x)[0] != before
    assert functions == [density.function(which) for which in ("joint", "gradient")]


def test_data_in_fortran_order_stay_alive(sample):
    columns = RNG.normal(size=(400, 12))
    with pm.Model():
        X = pm.Data("X", columns)
        pm.Normal("y", X @ pm.Normal("b", shape=12), observed=np.zeros(400))
        step = pmm.OLMC(step_size=1e-4)
        expected = sample(step, tune=0)["posterior"]["b"]
        pm.set_data({"X": np.asfortranarray(columns)})
        found = sample(step, tune=0)["posterior"]["b"]
    step.binding.engine.compile()
    # A run asks for two tables: what the first points to must not be freed by the second.
    first, second = step.binding.density.table("joint"), step.binding.density.table("joint")
    rubbish = [np.full(columns.shape, 7.0) for _ in range(20)]
    for table in (first, second):
        held = ctypes.string_at(int(table[0]), columns.nbytes)
        assert held == np.ascontiguousarray(columns).tobytes(), "the copy of the data has been freed"
    assert np.array_equal(expected, found) and len(rubbish) == 20


def test_parameters_of_single_precision_live_as_long_as_the_table():
    # They are copies, which a table with other parameters, or the one of the gradient alone, must not free.
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        pm.Normal("x", 0.0, pm.HalfNormal("scale"), shape=200)
        density = build_log_density(model.continuous_value_vars, model, model.initial_point(0), noncentring={})
        density.function("joint")
        every = [np.full(density.structure.n_parameters, i, dtype=float) for i in range(20)]
        tables = [density.table("joint", noncentring) for noncentring in every]
    shared = density._functions["joint"].shared
    at = next(i for i, variable in enumerate(shared) if variable is density.density_parameters)
    entry = sum(1 + variable.get_value(borrow=True).ndim for variable in shared[:at])
    for noncentring, table in zip(every, tables, strict=True):
        held = ctypes.string_at(int(table[entry]), 4 * len(noncentring))
        assert held == noncentring.astype(np.float32).tobytes()


def test_other_variables_enter_as_shared_values():
    with pm.Model() as model:
        z = pm.Poisson("z", 3.0)
        w = pm.Normal("w", z, 1.0)
        x = pm.Normal("x", w * z, 1.0)
    density = density_of(model, [model.rvs_to_values[x]])
    assert set(density.others) == {"z", "w"} and density.d == 1
    reference = model.compile_fn([model.logp(), model.dlogp([x])], mode=INTERPRETED)
    for z_value, w_value in ((0, 0.4), (5, -2.0)):
        density.others["z"].set_value(np.array(z_value))
        density.others["w"].set_value(np.array(w_value))
        value, gradient = call(density, "joint", [1.3])
        logp, dlogp = reference({"z": z_value, "w": w_value, "x": 1.3})
        np.testing.assert_allclose([value, *gradient], [logp, *dlogp], rtol=1e-12)


def raising_assert(x):
    return Assert("x must stay below one")(x, pt.lt(x[0], 1.0)).sum()


def raising_cholesky(x):
    return pt.linalg.cholesky(pt.stack([pt.stack([1.0, x[0]]), pt.stack([x[0], 1.0])]))[1, 1]


@pytest.mark.parametrize("operation", [raising_assert, raising_cholesky])
def test_an_exception_in_the_graph_is_nan_and_sampling_survives_it(operation, sample):
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("raises", -(operation(x) ** 2))
        density = density_of(model)
        for which in ("joint", "gradient"):
            assert np.isfinite(call(density, which, [0.5, 0.1])[0])
            for _ in range(3):
                value, gradient = call(density, which, [1.5, 0.1])
                assert np.isnan(value) or np.isnan(gradient).any(), which
            value, gradient = call(density, which, [0.5, 0.1])
            assert np.isfinite(value) and np.all(np.isfinite(gradient))
        step = pmm.PoissonULMC(K=4, step_size=0.7, scaling=[1.0, 1.0])
        stats = sample(step, tune=0, draws=300, seed=3)
    assert stats["sample_stats"]["unstable"].sum() > 0
    draws = stats["posterior"]["x"].values
    assert np.all(np.isfinite(draws)) and draws[..., 0].max() < 1.0


def test_machine_code_lives_as_long_as_its_function():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    density = density_of(model)
    function, table = density.function("joint"), density.table("joint")
    x, gradient = np.array([1.0, 2.0]), np.empty(2)
    arguments = (x.ctypes.data_as(DOUBLES), gradient.ctypes.data_as(DOUBLES), table.ctypes.data_as(LONGS), 2)
    before = function.ctypes(*arguments)
    assert function.owner.vm.jit_fn is not None
    del density, model
    gc.collect()
    assert function.ctypes(*arguments) == before


def test_compiled_once_for_each_model_and_choice_of_variables(monkeypatch):
    compile, calls = pytensor_density.compile, []
    monkeypatch.setattr(
        pytensor_density, "compile", lambda *args, **options: calls.append(1) or compile(*args, **options)
    )
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        step = pmm.PoissonULMC(K=4, step_size=0.3)
        assert len(calls) == 0, "nothing is compiled before a run is about to begin"
        assert step.stats_dtypes  # PyMC asks for this before it starts chains, in the parent process
        assert len(calls) == 0, "they begin on the tape"
        for each in (step, pmm.RLMC(step_size=0.1), pmm.ULMC(), pmm.GHMC(vars=[x])):
            each.binding.engine.compile()
            assert len(calls) == 2
        pm.Potential("late", -(x**4).sum())
        step = pmm.ULMC(step_size=0.3)
        step.binding.engine.compile()
    assert len(calls) == 3
    np.testing.assert_allclose(
        call(step.binding.density, "joint", [1.0, 2.0])[0],
        model.compile_logp()({"x": np.array([1.0, 2.0])}),
        rtol=1e-13,
    )


def test_float32_values_and_gradients():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        X, n = pm.Data("X", RNG.normal(size=(6, 3))), pm.Data("n", np.arange(6))
        b = pm.Normal("b", 0.0, pm.Data("width", 1.5), shape=3)
        pm.Poisson("y", pm.math.exp(X @ b), observed=n)
        assert model["b"].dtype == "float32"
        density = density_of(model)
        reference = model.compile_fn([model.logp(), model.dlogp()], mode=INTERPRETED)
        errors = []
        for x in RNG.normal(size=(5, 3)):
            logp, dlogp = reference({"b": x.astype("float32")})
            for which, value in (("joint", logp), ("gradient", 0.0)):
                found, gradient = call(density, which, x)
                expected = np.array([value, *dlogp])
                errors.append(np.abs([found, *gradient] - expected).max() / np.abs(expected).max())
    # A sum of a dozen terms, each rounded to 24 bits, in another order.
    assert max(errors) < 12 * 2.0**-23
    assert max(errors) > 0.0, "float64 has crept in: the values agree beyond single precision"


def test_the_key_of_the_loop_s_cache_on_disk_is_the_same_in_every_process():
    """A compiled function in a closure has a pickle of its own in each process: the loop would be compiled anew."""
    for function in (loop.evaluate, loop.run):
        assert [type(cell.cell_contents) for cell in function.py_func.__closure__] == [str]


def test_special_functions_have_finite_gradients():
    """Their machine code is elsewhere: a density that is loaded apart from it has none."""
    with pm.Model() as model:
        pm.NegativeBinomial("y", mu=pm.math.exp(pm.Normal("a")), alpha=pm.Exponential("alpha"), observed=[1, 4, 2])
        density = density_of(model)
        reference = model.compile_fn(model.dlogp(), mode=INTERPRETED)(
            {"a": np.array(0.3), "alpha_log__": np.array(0.2)}
        )
    np.testing.assert_allclose(call(density, "joint", [0.3, 0.2])[1], reference, rtol=1e-12)


def test_machine_code_calls_copies_of_its_own():
    """Others would be those of the function that the process compiled or loaded first, which round otherwise."""
    x = pt.vector("x", shape=(3,))
    with pytensor.config.change_flags(numba__cache=False):
        function = pytensor.function([x], [x.sum(), pt.cumsum(x)], mode="NUMBA")
        native.native_function(function, np.dtype(float), [], has_value=True, width=3)
    (overload,) = function.vm.jit_fn.overloads.values()
    linkages = {each.linkage for each in overload.library._final_module.functions if not each.is_declaration}
    assert linkages == {Linkage.external, Linkage.private}
