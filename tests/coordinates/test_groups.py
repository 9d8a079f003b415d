"""Groups with a covariance against dense linear algebra: map, determinant and adjoint, by every backend."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

from pmm_mcmc.coordinates.groups import noncentred_groups

# One element, few, and one vector.
SIZES = [(4, 1), (3, 2), (2, 5), (1, 12)]
MODES = ("FAST_COMPILE", "NUMBA", "JAX")


@pytest.fixture(autouse=True)
def double_precision():
    """Whatever tests before these have left JAX with."""
    import jax

    with jax.enable_x64(True):
        yield


def inputs(G, K, seed=1):
    rng = np.random.default_rng(seed)
    L = np.tril(rng.normal(size=(K, K)), -1) + np.diag(np.exp(rng.normal(size=K)))
    root = rng.normal(size=(G, K, K))
    return [rng.normal(size=(G, K)), L, rng.normal(size=(G, K)), root @ root.swapaxes(1, 2), rng.normal(size=(G, K))]


def dense(xp, mu, L, a, H, z):
    """The definition: mean and Cholesky factor of ``x`` under the prior and what stands for the rest."""
    x, log_det = [], 0.0
    for m, s, S, e in zip(mu, a, H, z, strict=True):
        covariance = xp.linalg.inv(xp.linalg.inv(L @ L.T) + S)
        root = xp.linalg.cholesky(covariance)
        x.append(m + covariance @ (s - S @ m) + root @ e)
        log_det = log_det + xp.log(xp.diagonal(root)).sum()
    return xp.stack(x), log_det


def cost_of(xp, x, log_det):
    return (x**3).sum() / 3.0 + xp.sin(x).sum() + 1.7 * log_det


@pytest.fixture(scope="module")
def compiled():
    """``x``, ``log_det`` and the gradients of a function of both, in each mode."""
    symbols = [pt.tensor(shape=(None,) * ndim, dtype="float64") for ndim in (2, 2, 2, 3, 2)]
    x, log_det = noncentred_groups(*symbols)
    wrt = [symbols[i] for i in (0, 1, 4)]
    outputs = [x, log_det, *pytensor.grad(cost_of(pt, x, log_det), wrt)]
    return {mode: pytensor.function(symbols, outputs, mode=mode) for mode in MODES}


@pytest.mark.parametrize(("G", "K"), SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_the_map_and_its_gradients_are_those_of_dense_algebra(compiled, mode, G, K):
    import jax

    values = inputs(G, K)
    x, log_det, *gradients = compiled[mode](*values)
    expected = dense(np, *values)
    np.testing.assert_allclose(x, expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_det, expected[1], rtol=1e-9, atol=1e-9)
    slope = jax.grad(lambda values: cost_of(jax.numpy, *dense(jax.numpy, *values)))(values)
    for got, want, lower in zip(gradients, (slope[0], np.tril(slope[1]), slope[4]), (0, 1, 0), strict=True):
        np.testing.assert_allclose(np.tril(got) if lower else got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_both_ends_are_exact(compiled, mode):
    """Nothing is divided by the scale: the non-centred form where it vanishes, the centred one where it is wide."""
    mu, L, a, H, z = inputs(3, 2)
    H += 0.1 * np.eye(2)
    none = np.zeros_like(H)
    np.testing.assert_allclose(compiled[mode](mu, L, np.zeros_like(a), none, z)[0], mu + z @ L.T, rtol=1e-12)
    x = compiled[mode](mu, 1e-30 * L, a, H, z)[0]
    np.testing.assert_allclose(x, mu, rtol=1e-12)
    x = compiled[mode](mu, 1e12 * np.eye(2), a, H, np.zeros_like(z))[0]
    np.testing.assert_allclose(x, np.linalg.solve(H, a[..., None])[..., 0], rtol=1e-6)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_vectorised_graphs_do_each_row(mode):
    values = inputs(3, 2)
    z, L = pt.matrix("z"), pt.matrix("L")
    outputs = list(noncentred_groups(values[0], L, values[2], values[3], z))
    outputs += pytensor.grad(cost_of(pt, *outputs), [L, z])
    many_z, many_L = pt.tensor3("many z"), pt.tensor3("many L")
    f = pytensor.function([many_L, many_z], vectorize_graph(outputs, {z: many_z, L: many_L}), mode=mode)
    one = pytensor.function([L, z], outputs, mode="FAST_COMPILE")
    scaled = np.stack([values[1], 0.5 * values[1]])
    rows = f(scaled, np.stack([values[4], -values[4]]))
    for i, at in enumerate((values[4], -values[4])):
        for row, alone in zip(rows, one(scaled[i], at), strict=True):
            np.testing.assert_allclose(row[i], alone, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_in_float32(mode):
    values = inputs(3, 2)
    z = pt.matrix("z", dtype="float32")
    x, log_det = noncentred_groups(*values[:4], z)
    slope = pytensor.grad(cost_of(pt, x, log_det), z)
    assert (x.dtype, log_det.dtype, slope.dtype) == ("float32",) * 3
    found = pytensor.function([z], [x, log_det], mode=mode)(values[4].astype("float32"))
    for got, want in zip(found, dense(np, *values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
