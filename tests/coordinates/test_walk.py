"""Walks and autoregressions against dense linear algebra: map, Jacobian, inverse and adjoint, by every backend."""

import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pmm_mcmc.coordinates.walk import WalkMap, noncentred_walk, rows_to_z

NAMES = ("rho", "v", "mu", "a", "h", "z")
MODES = ("FAST_COMPILE", "NUMBA", "JAX")
# Orders and lengths: a single element, as many as the order, fewer and more.
CASES = [(p, n) for p in (1, 2, 3) for n in sorted({1, p, 7})]


@pytest.fixture(autouse=True)
def double_precision():
    """Whatever tests before these have left JAX with."""
    import jax

    with jax.enable_x64(True):
        yield


def inputs(p, n, seed=1):
    rng = np.random.default_rng(seed)
    rho, m, a, z = 0.6 * rng.normal(size=p), rng.normal(size=n), rng.normal(size=n), rng.normal(size=n)
    return [rho, np.exp(rng.normal(size=n)), m, a, np.exp(rng.normal(size=n)), z]


def operator(xp, rho, n):
    """``A``: innovations from deviations."""
    return xp.eye(n) - sum(rho[k - 1] * xp.eye(n, k=-k) for k in range(1, len(rho) + 1))


def dense(xp, rho, v, m, a, h, z):
    """The definition, with the upper factor of the precision from a Cholesky factor of the reversed matrix."""
    A = operator(xp, rho, len(v))
    P = A.T @ (A / v[:, None]) + xp.diag(h)
    R = xp.linalg.cholesky(P[::-1, ::-1])[::-1, ::-1]
    return m + xp.linalg.solve(P, a - h * m) + xp.linalg.solve(R.T, z), -xp.log(xp.diag(R)).sum()


def cost_of(xp, x, log_det):
    return (x**3).sum() / 3.0 + xp.sin(x).sum() + 1.7 * log_det


@pytest.fixture(scope="module")
def compiled():
    """``x``, ``log_det`` and all gradients of a function of both, in each mode."""
    symbols = [pt.vector(name, dtype="float64") for name in NAMES]
    x, log_det = noncentred_walk(*symbols)
    outputs = [x, log_det, *pytensor.grad(cost_of(pt, x, log_det), symbols)]
    return {mode: pytensor.function(symbols, outputs, mode=mode) for mode in MODES}


@pytest.mark.parametrize(("p", "n"), CASES)
@pytest.mark.parametrize("mode", MODES)
def test_the_map_and_its_gradients_are_those_of_dense_algebra(compiled, mode, p, n):
    import jax

    values = inputs(p, n)
    x, log_det, *gradients = compiled[mode](*values)
    expected = dense(np, *values)
    np.testing.assert_allclose(x, expected[0], atol=1e-10)
    np.testing.assert_allclose(log_det, expected[1], atol=1e-10)
    slope = jax.grad(lambda values: cost_of(jax.numpy, *dense(jax.numpy, *values)))(values)
    for name, got, want in zip(NAMES, gradients, slope, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("p", "n"), CASES)
def test_gradients_agree_with_differences_and_the_determinant_with_the_jacobian(compiled, p, n):
    run, values, step = compiled["FAST_COMPILE"], inputs(p, n), 1e-5
    _, log_det, *gradients = run(*values)
    jacobian = np.empty((n, n))
    for which, gradient in enumerate(gradients):
        for i in range(len(gradient)):
            ends = []
            for sign in (1.0, -1.0):
                moved = [value.copy() for value in values]
                moved[which][i] += sign * step
                ends.append(run(*moved)[:2])
            slope = (cost_of(np, *ends[0]) - cost_of(np, *ends[1])) / (2.0 * step)
            np.testing.assert_allclose(gradient[i], slope, rtol=1e-6, atol=1e-7, err_msg=NAMES[which])
            if NAMES[which] == "z":
                jacobian[:, i] = (ends[0][0] - ends[1][0]) / (2.0 * step)
    np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], log_det, atol=1e-7)


@pytest.mark.parametrize(("p", "n"), CASES)
def test_undoing_returns_z_and_the_determinant(p, n):
    *prior, z = inputs(p, n)
    x, log_det = dense(np, *prior, z)
    found = rows_to_z(*prior, x)
    np.testing.assert_allclose(found[0], z, atol=1e-10)
    np.testing.assert_allclose(found[1], log_det, atol=1e-10)
    rows = rows_to_z(*prior, np.stack([x, dense(np, *prior, -z)[0]]))
    np.testing.assert_allclose(rows[0], np.stack([z, -z]), atol=1e-10)
    np.testing.assert_allclose(rows[1], [log_det, log_det], atol=1e-10)
    assert rows_to_z(*prior, np.zeros((0, n)))[0].shape == (0, n)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_without_data_it_is_the_prior_drawn_forward(compiled, p):
    rho, v, m, _, _, z = inputs(p, 7)
    none = np.zeros(7)
    L = np.linalg.solve(operator(np, rho, 7), np.diag(np.sqrt(v)))
    for mode in MODES:
        x, log_det = compiled[mode](rho, v, m, none, none, z)[:2]
        np.testing.assert_allclose(x, m + L @ z, atol=1e-12)
        np.testing.assert_allclose(log_det, 0.5 * np.log(v).sum(), atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_both_ends_are_exact(compiled, mode, p):
    rho, _, m, a, h, z = inputs(p, 7)
    inverse = np.linalg.inv(operator(np, rho, 7))
    small = np.full(7, 1e-30)
    x, log_det, *gradients = compiled[mode](rho, small, 0.0 * m, a, h, z)
    np.testing.assert_allclose(x / 1e-15, inverse @ z, rtol=1e-12)
    np.testing.assert_allclose(log_det, 3.5 * np.log(1e-30), rtol=1e-12)
    # By log v, at x = 0 where the cost has slope 1.
    np.testing.assert_allclose(small * gradients[1], 0.85, rtol=1e-12)
    np.testing.assert_allclose(gradients[5] / 1e-15, inverse.T @ np.ones(7), rtol=1e-12)
    large = np.full(7, 1e10)
    x, log_det, *gradients = compiled[mode](rho, large, m, a, h, z)
    np.testing.assert_allclose(x, a / h + z / np.sqrt(h), rtol=1e-7)
    np.testing.assert_allclose(log_det, -0.5 * np.log(h).sum(), rtol=1e-7)
    assert np.abs(large * gradients[1]).max() < 1e-7


@pytest.mark.parametrize("mode", MODES)
def test_a_walk_of_tiny_steps_from_a_wide_start_keeps_its_level(compiled, mode):
    """A Cholesky factor from the first element on loses the level, 1e-22 of its first entry, in rounding."""
    n = 50
    _, _, m, a, h, z = inputs(1, n)
    v = np.r_[100.0, np.full(n - 1, 1e-20)]
    x, log_det, *gradients = compiled[mode](np.ones(1), v, m, a, h, z)
    tau = 1.0 / (0.01 + h.sum())
    level = tau * (a - h * m).sum() + np.sqrt(tau) * z[0]
    np.testing.assert_allclose(x - m, level, atol=1e-8)
    np.testing.assert_allclose(log_det, 0.5 * np.log(tau) + 0.5 * np.log(v[1:]).sum(), rtol=1e-12)
    slope = (x**2 + np.cos(x)).sum()
    by_log_v = slope * (tau * tau * (a - h * m).sum() + 0.5 * tau * np.sqrt(tau) * z[0]) + 0.85 * tau
    np.testing.assert_allclose(gradients[1][0] * 100.0, by_log_v / 100.0, rtol=1e-8)


def batch():
    """Arguments of which ``v`` and ``z`` differ from row to row."""
    rows = [inputs(2, 7, seed) for seed in range(3)]
    rho, _, m, a, h, _ = rows[0]
    return [rho, np.stack([row[1] for row in rows]), m, a, h, np.stack([row[5] for row in rows])]


@pytest.mark.parametrize("mode", MODES)
def test_vectorised_graphs_do_each_row(compiled, mode):
    symbols = [pt.vector(name, dtype="float64") for name in NAMES]
    x, log_det = noncentred_walk(*symbols)
    outputs = [x, log_det, *pytensor.grad(cost_of(pt, x, log_det), symbols)]
    V, Z = pt.matrix("V", dtype="float64"), pt.matrix("Z", dtype="float64")
    batched = vectorize_graph(outputs, {symbols[1]: V, symbols[5]: Z})
    values = batch()
    found = pytensor.function([symbols[0], V, *symbols[2:5], Z], batched, mode=mode)(*values)
    for i in range(3):
        own = [value[i] if value.ndim == 2 else value for value in values]
        for got, want in zip(found, compiled["FAST_COMPILE"](*own), strict=True):
            np.testing.assert_allclose(got[i], want, atol=1e-10)


def test_leading_axes_are_batches():
    rho, v, m, a, h, z = batch()
    given = pt.vector("rho", dtype="float64")
    parts = noncentred_walk(given, v, m, a, h, z)
    slope = pytensor.grad(cost_of(pt, *(part.sum(axis=0) for part in parts)), given)
    x, log_det, slope = pytensor.function([given], [*parts, slope], mode="FAST_COMPILE")(rho)

    def rows(rho):
        return [np.array(part) for part in zip(*(dense(np, rho, v[i], m, a, h, z[i]) for i in range(3)), strict=True)]

    np.testing.assert_allclose(x, rows(rho)[0], atol=1e-10)
    np.testing.assert_allclose(log_det, rows(rho)[1], atol=1e-10)
    ends = [
        [cost_of(np, *(part.sum(axis=0) for part in rows(rho + s * step))) for s in (1, -1)]
        for step in 1e-5 * np.eye(2)
    ]
    np.testing.assert_allclose(slope, [(up - down) / 2e-5 for up, down in ends], rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_in_float32(mode):
    symbols = [pt.vector(name, dtype="float32") for name in NAMES]
    x, log_det = noncentred_walk([0.5, 0.2], *symbols[1:])
    gradients = pytensor.grad(cost_of(pt, x, log_det), symbols[1:])
    run = pytensor.function(symbols[1:], [x, log_det, *gradients], mode=mode)
    values = [value.astype("float32") for value in inputs(2, 7)[1:]]
    found = [np.asarray(value) for value in run(*values)]
    assert {value.dtype.name for value in found} == {"float32"}
    wide = [np.array([0.5, 0.2]), *(value.astype(float) for value in values)]
    np.testing.assert_allclose(found[0], dense(np, *wide)[0], atol=1e-5)
    np.testing.assert_allclose(found[1], dense(np, *wide)[1], atol=1e-5)
    # Where precisions do not fit into float32.
    tiny = run(np.full(7, 1e-30, "float32"), *values[1:])
    np.testing.assert_allclose(tiny[0], values[1], rtol=1e-6)
    assert all(np.isfinite(value).all() for value in tiny)


def test_jit_and_vmap_of_what_jax_runs():
    import jax

    rows = [np.stack(parts) for parts in zip(*(inputs(3, 7, seed) for seed in range(4)), strict=True)]
    x, log_det = jax.jit(jax.vmap(WalkMap().perform_jax))(*rows)
    for i in range(4):
        expected = dense(np, *(row[i] for row in rows))
        np.testing.assert_allclose(x[i], expected[0], atol=1e-10)
        np.testing.assert_allclose(log_det[i], expected[1], atol=1e-10)


def test_a_model_like_graph_compiles_in_seconds():
    log_sigma, phi, z = pt.scalar("log_sigma"), pt.scalar("phi"), pt.vector("z", shape=(120,))
    y, h = np.random.default_rng(3).normal(size=120), np.ones(120)
    v = pt.exp(2.0 * log_sigma) * pt.concatenate([1.0 / (1.0 - phi[None] ** 2), pt.ones(119)])
    x, log_det = noncentred_walk(phi[None], v, pt.zeros(120), 0.0 * h, h, z)
    w = pt.concatenate([x[:1], x[1:] - phi * x[:-1]]) / pt.sqrt(v)
    density = -0.5 * (w**2).sum() - 0.5 * pt.log(v).sum() - 0.5 * (y**2 * pt.exp(-x) + x).sum() + log_det
    parts = [log_sigma, phi, z]
    start = time.perf_counter()
    run = pytensor.function(parts, [density, *pytensor.grad(density, parts)], mode="NUMBA")
    point = [np.array(-0.5), np.array(0.9), np.random.default_rng(4).normal(size=120)]
    _, *gradient = run(*point)
    print(f"compiled in {time.perf_counter() - start:.1f} s")
    for i in range(2):
        ends = [run(*(p + s * 1e-5 * (i == j) for j, p in enumerate(point)))[0] for s in (1.0, -1.0)]
        np.testing.assert_allclose(gradient[i], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_compiled_graphs_are_kept_on_disk_by_the_text_of_the_kernels(monkeypatch):
    node = noncentred_walk(*(pt.vector() for _ in NAMES))[0].owner
    key = numba_funcify_and_cache_key(node.op, node=node)[1]
    assert key is not None and key == numba_funcify_and_cache_key(WalkMap(), node=node)[1]
    monkeypatch.setattr(WalkMap, "version", 1)
    assert key != numba_funcify_and_cache_key(node.op, node=node)[1]


@pytest.mark.process
def test_jax_is_imported_where_it_is_used_only(run_script):
    found, error = run_script(
        "import sys, json, pytensor, pytensor.tensor as pt\n"
        "from pmm_mcmc.coordinates.walk import noncentred_walk\n"
        "x = noncentred_walk(pt.ones(1), *(pt.ones(3) for _ in range(5)))[0]\n"
        "before = 'jax' in sys.modules\n"
        "print(json.dumps([before, x.eval(mode='JAX').tolist()]))\n"
    )
    assert found is not None, error
    assert found[0] is False
    np.testing.assert_allclose(found[1], dense(np, *(np.ones(n) for n in (1, 3, 3, 3, 3, 3)))[0])


def test_second_derivatives_are_refused():
    symbols = [pt.vector(name) for name in NAMES]
    slope = pytensor.grad(noncentred_walk(*symbols)[0].sum(), symbols[1])
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        pytensor.grad(slope.sum(), symbols[1])
