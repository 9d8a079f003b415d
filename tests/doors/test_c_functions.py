"""Densities that are C functions: called as they are, refused where they cannot be, and resumed in another process."""

import ctypes
import math

import numba
import numpy as np
import pytest
from c_libraries import at, library, needs_compiler
from numba import types
from pymc.exceptions import SamplingError

import pmm_mcmc as pmm

pytestmark = pytest.mark.quick

RUN = {"draws": 40, "tune": 200, "chains": 2, "random_seed": 1, "progressbar": False}
RUN["compute_convergence_checks"] = False
NUMBERS = types.CPointer(types.double)
SIGNATURE = types.intc(types.size_t, NUMBERS, NUMBERS, NUMBERS, types.voidptr)


@numba.cfunc(SIGNATURE)
def normal(n, x, gradient, value, data):
    value[0] = 0.0
    for i in range(n):
        gradient[i] = 2.0 - x[i]
        value[0] -= 0.5 * gradient[i] ** 2
    return 0


@needs_compiler
def test_c_and_numba_are_the_same_density():
    x, mean = np.array([0.3, -1.0, 2.5]), np.array([2.0])
    by_c = pmm.LogDensity.from_pointer(library("normal_density").normal, 3, mean)
    by_numba = pmm.LogDensity.from_pointer(normal, 3, thread_safe=True)
    value = -0.5 * ((x - 2.0) ** 2).sum()
    for density in (by_c, by_numba):
        assert at(density, x)[0] == pytest.approx(value, rel=1e-15)
        np.testing.assert_array_equal(at(density, x)[1], 2.0 - x)
    one, other = (pmm.sample(model=density, **RUN) for density in (by_c, by_numba))
    np.testing.assert_allclose(one["posterior"]["x"], other["posterior"]["x"], rtol=1e-9)
    assert one["posterior"].attrs["backend"] == "numba"


@needs_compiler
@pytest.mark.parametrize("data", [np.array([0.7]), (ctypes.c_double * 1)(0.7)], ids=["numpy", "ctypes"])
def test_data_reach_the_function_and_stay_alive(data):
    density = pmm.LogDensity.from_pointer(library("normal_density").normal, 2, data)
    address = data.ctypes.data if isinstance(data, np.ndarray) else ctypes.addressof(data)
    by_address = pmm.LogDensity.from_pointer(library("normal_density").normal, 2, address)
    pointer = pmm.LogDensity.from_pointer(library("normal_density").normal, 2, ctypes.c_void_p(address))
    for each in (density, by_address, pointer):
        np.testing.assert_allclose(at(each, [0.0, 1.0])[1], [0.7, -0.3])


@needs_compiler
def test_a_code_is_a_point_without_value_and_at_the_start_an_error():
    cut = pmm.LogDensity.from_pointer(library("normal_density").cut, 2)
    assert math.isnan(at(cut, [1.5, 0.0])[0]) and at(cut, [0.5, 0.0])[0] == -0.125
    dt = pmm.sample(model=cut, **RUN | {"draws": 300})
    assert float(dt["posterior"]["x"][..., 0].max()) <= 1.0 and int(dt["sample_stats"]["diverging"].sum()) > 0
    never = pmm.LogDensity.from_pointer(library("normal_density").never, 2)
    with pytest.raises(SamplingError, match=r"chain 0 starts .*the C function returned code 7. Give initvals="):
        pmm.sample(model=never, **RUN)
    with pytest.raises(SamplingError, match=r"chain 1 starts .*returned code 3"):
        pmm.sample(model=cut, initvals=np.array([[0.0, 0.0], [2.0, 0.0]]), **RUN)


def test_a_python_function_that_fails_has_no_value():
    """An error within a ctypes callback is printed and returns 0, as if all were well."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, *[ctypes.POINTER(ctypes.c_double)] * 3, ctypes.c_void_p)
    density = pmm.LogDensity.from_pointer(kind(lambda n, x, gradient, value, data: 0), 2)
    with pytest.raises(SamplingError, match=r"the value is nan; element 0 of the gradient is nan"):
        pmm.sample(model=density, **RUN)


@needs_compiler
def test_a_run_is_stored_resumed_and_continued(tmp_path):
    def density():
        return pmm.LogDensity.from_pointer(library("normal_density").normal, 2, np.array([1.0]))

    whole = pmm.sample(model=density(), **RUN)
    pmm.sample(model=density(), store=tmp_path / "run.zarr", **RUN | {"draws": 20})
    longer = pmm.sample(model=density(), store=tmp_path / "run.zarr", resume=True, **RUN)
    again = pmm.extend(pmm.sample(model=density(), **RUN | {"draws": 20}), 20, model=density(), progressbar=False)
    for other in (longer, again):
        np.testing.assert_array_equal(whole["posterior"]["x"], other["posterior"]["x"])
    with pytest.raises(pmm.StoreError):
        changed = pmm.LogDensity.from_pointer(library("normal_density").normal, 2, np.array([1.5]))
        pmm.sample(model=changed, store=tmp_path / "run.zarr", resume=True, **RUN)


@needs_compiler
def test_threads_only_where_they_are_declared():
    unsafe = pmm.LogDensity.from_pointer(normal, 2)
    with pytest.raises(ValueError, match="cores=2: the C function is not declared thread-safe"):
        pmm.sample(model=unsafe, cores=2, **RUN)
    safe = pmm.LogDensity.from_pointer(normal, 2, thread_safe=True)
    one, two = pmm.sample(model=unsafe, cores=1, **RUN), pmm.sample(model=safe, cores=2, **RUN)
    np.testing.assert_array_equal(one["posterior"]["x"], two["posterior"]["x"])


@numba.cfunc(types.double(types.double))
def of_another_signature(x):
    return x


@numba.njit
def without_an_address(x):
    return x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "address=0: must be the address of int f"),
        ((None, 2), "address=None: must be"),
        ((True, 2), "address=True: must be"),
        ((-5, 2), "address=-5: must be"),
        (("f", 2), "address='f': must be"),
        ((np.sum, 2), "must be the address of int f"),
        ((ctypes.CFUNCTYPE(ctypes.c_int)(), 2), "address=None: must be"),
        ((of_another_signature, 2), "has signature"),
        ((without_an_address, 2), "has no C address; use numba.cfunc"),
        ((normal, 0), "ndim=0: must be an integer of at least 1"),
        ((normal, 2.0), "ndim=2.0: must be"),
        ((normal, 2, "text"), "data='text': must be None"),
        ((normal, 2, -1), "data=-1: must be None"),
        ((normal, 2, np.zeros((4, 4))[:, 1]), "not C-contiguous"),
        ((normal, 2, np.array([None])), "Python objects"),
        ((normal, 2, None, "yes"), "thread_safe='yes': must be True or False"),
    ],
)
def test_what_is_no_c_function_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pmm.LogDensity.from_pointer(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "jax"}, "backend='jax': this LogDensity is a C function; use backend='numba' or 'auto'"),
        ({"step": pmm.PoissonULMC(reparametrise={"x": "noncentred"})}, "reparametrise="),
        ({"initvals": np.zeros(3)}, r"initvals has shape \(3,\)"),
        ({"initvals": {"x": np.zeros(2)}}, "the LogDensity has one vector and no names; must be an array of shape"),
        ({"initvals": "prior"}, r"initvals='prior': must be an array of shape \(2,\) or \(2, 2\)"),
    ],
)
def test_arguments_that_a_c_function_does_not_go_with(arguments, message):
    with pytest.raises(ValueError, match=message):
        pmm.sample(model=pmm.LogDensity.from_pointer(normal, 2), **RUN | arguments)
