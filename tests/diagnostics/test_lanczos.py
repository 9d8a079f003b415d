"""Lanczos' method: exact for polynomials, and for every function after as many products as there are dimensions."""

import numpy as np
import pytest

from pmm_mcmc.diagnostics.mode_mass import spectrum


def matrices(n, d, seed=3):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, d, d))
    signs = rng.choice([-1.0, 1.0], size=(n, d)) / np.sqrt(d)
    return root @ root.transpose(0, 2, 1) / d + np.eye(d), signs


def quadratic(A, v, f):
    values, vectors = np.linalg.eigh(A)
    return ((vectors.transpose(0, 2, 1) @ v[..., None])[..., 0] ** 2 * f(values)).sum(axis=1)


def products(A):
    return lambda v: np.einsum("nij,nj->ni", A, v)


@pytest.mark.parametrize(("f", "steps"), [(np.square, 2), (lambda x: x**5, 3), (lambda x: x**7, 4), (np.log, 6)])
def test_a_function_of_a_matrix_is_integrated(f, steps):
    A, v = matrices(7, 6)
    values, weights = spectrum(products(A), v, steps)
    np.testing.assert_allclose((weights * f(values)).sum(axis=1), quadratic(A, v, f), rtol=1e-8)


def test_it_ends_where_products_find_nothing_new():
    called = []

    def product(v):
        called.append(len(v))
        return 3.0 * v

    values, weights = spectrum(product, matrices(5, 9)[1], 6)
    assert called == [5]
    np.testing.assert_allclose((weights * values).sum(axis=1), 3.0)


def test_a_product_that_is_not_finite_spoils_its_own_row_alone():
    A, v = matrices(3, 4)
    A[1, 0, 0] = np.inf
    with np.errstate(all="ignore"):
        values, _ = spectrum(products(A), v, 3)
    assert np.isnan(values[1]).all()
    assert np.isfinite(values[[0, 2]]).all()
