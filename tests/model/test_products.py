"""Products of matrices in compiled functions: their values, and that they are what is compiled."""

import logging

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import toposort
from pytensor.tensor.linalg.solvers.triangular import solve_triangular
from pytensor.tensor.math import Dot

from pmm_mcmc.model.functions import in_products, python_function
from pmm_mcmc.model.native import Product, means_something, numba_mode
from pmm_mcmc.model.pymc_density import log_density

pytestmark = pytest.mark.pymc


def ops_of(function):
    return [node.op for node in function.maker.fgraph.toposort()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 1), (1, 3, 5), (1, 3, 1)])
def test_a_product_is_that_of_numpy_for_each_layout(shape, dtype):
    rows, inner, columns = shape
    rng = np.random.default_rng(1)
    a = rng.normal(size=(2 * rows, inner)).astype(dtype)
    b = rng.normal(size=(columns, inner)).astype(dtype)
    x = pt.tensor("x", shape=(2 * rows, inner), dtype=dtype)
    y = pt.tensor("y", shape=(columns, inner), dtype=dtype)
    for left, plain in ((x[::2], a[::2]), (x[:rows], a[:rows]), (x[::-2], a[::-2])):
        f = pytensor.function([x, y], pt.dot(left, y.T), mode=numba_mode())
        assert [(op.row, op.column) for op in ops_of(f) if isinstance(op, Dot)] == [(rows == 1, columns == 1)]
        found = f(a, b)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, plain @ b.T, rtol=30 * np.finfo(dtype).eps, atol=30 * np.finfo(dtype).eps)


def test_other_dtypes_are_left_to_pytensor():
    x, y = pt.lmatrix("x"), pt.lmatrix("y")
    f = pytensor.function([x, y], pt.dot(x, y), mode=numba_mode())
    assert not any(isinstance(op, Product) for op in ops_of(f))
    np.testing.assert_array_equal(f(np.eye(2, dtype=int), [[1, 2], [3, 4]]), [[1, 2], [3, 4]])


def test_shapes_that_do_not_fit_raise():
    x, y = pt.matrix("x"), pt.matrix("y")
    f = pytensor.function([x, y], pt.dot(x, y), mode=numba_mode())
    with pytest.raises(ValueError):
        f(np.ones((2, 3)), np.ones((2, 3)))


def test_a_regression_is_compiled_with_it():
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        pm.Normal("y", np.random.default_rng(1).normal(size=(6, 3)) @ b, observed=np.zeros(6))
    density = log_density(model.value_vars, model, model.initial_point(0))
    ops = ops_of(density.function("joint").owner)
    assert sum(isinstance(op, Product) for op in ops) == 2 and not any(type(op) is Dot for op in ops)


def test_a_rewrite_that_fails_on_a_slice_is_silent_and_no_other(caplog):
    # If "Rewrite failure" is no longer in what plain PyMC logs, PyTensor is mended and means_something can go.
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk("x", init_dist=pm.Normal.dist(), steps=199)
        level = pm.Normal("level")
        pm.Normal("y", level + pt.cumsum(walk), observed=np.zeros(200))
    log = logging.getLogger("pytensor.graph.rewriting.basic")
    for each in list(log.filters):
        log.removeFilter(each)
    model.logp_dlogp_function(ravel_inputs=True)
    assert "merge_two_slices" in caplog.text
    caplog.clear()
    log.addFilter(means_something)
    model.logp_dlogp_function(ravel_inputs=True)
    assert caplog.text == ""
    try:
        raise OverflowError("another one")
    except OverflowError:
        log.error("Rewrite failure due to: another")
    assert "another" in caplog.text


def test_what_a_constant_triangular_factor_solves_is_a_product_unless_digits_would_be_lost():
    rng = np.random.default_rng(1)
    factor = np.tril(rng.normal(size=(4, 4))) + 3.0 * np.eye(4)
    steep = factor * np.logspace(0, -6, 4)
    b = pt.matrix("b", shape=(4, 4))
    shared = pytensor.shared(factor)
    for a, stays in [(factor, False), (factor[None], False), (steep, True), (0.0 * factor, True), (shared, True)]:
        for lower, b_ndim in [(True, 1), (False, 1), (True, 2), (False, 2)]:
            of = a if lower else pt.as_tensor(a).mT
            plain = solve_triangular(of, b, lower=lower, b_ndim=b_ndim)
            (product,) = in_products([plain], 1e4)
            assert any("SolveTriangular" in str(node.op) for node in toposort([product])) == stays
            if not stays:
                values = python_function([b], [plain, product])(rng.normal(size=(4, 4)))
                assert values[0].shape == values[1].shape
                np.testing.assert_allclose(*values, rtol=1e-10, atol=1e-12)
