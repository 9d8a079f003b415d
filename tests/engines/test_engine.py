"""The compiled engine against the plain chain of ``reference.py`` on the same random stream, and its guard.

Random tests at fixed keys: |z| < 4.5 (7e-6 each) and p > 1e-6.
"""

import numpy as np
import pytest
from numba import cfunc
from one_chain import advanced, followed
from reference import RECOVER, SHORTEST, SHRINK, SUBSTEPS, Chain, engine, mean_gradients
from scipy.stats import kstest, norm

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Ensemble, TunedParameters, empty_state
from pmm_mcmc.langevin.methods import GHMC, HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.model.native import SIGNATURE

pytestmark = pytest.mark.quick

D = 4
KEY = np.array([2**63 + 12345, 678], dtype=np.uint64)
COORDINATES = Coordinates(np.array([0.3, -0.2, 0.0, 0.1]), np.array([0.7, 1.2, 0.9, 0.5]))
LEAVES = ("inside", "NaN lp", "NaN gradient", "inf gradient", "-inf lp", "+inf lp", "steep")


@cfunc(SIGNATURE)
def rough(x, gradient, table, n):
    # Coupled double wells; counts its calls in table[0], and beyond a wall does what table[1] says.
    table[0] += 1
    lp = 0.0
    for i in range(n):
        before, after = x[(i - 1) % n], x[(i + 1) % n]
        lp += 0.5 * x[i] ** 2 - 0.25 * x[i] ** 4 + 0.3 * np.sin(x[i] * before)
        gradient[i] = x[i] - x[i] ** 3 + 0.3 * (np.cos(x[i] * before) * before + np.cos(x[i] * after) * after)
    if table[1] == -1:
        return np.nan
    if x[0] > 0.8:
        if table[1] == 1:
            lp = np.nan
        elif table[1] == 2:
            gradient[n - 1] = np.nan
        elif table[1] == 3:
            gradient[0] = np.inf
        elif table[1] == 4:
            lp = -np.inf
        elif table[1] == 5:
            lp = np.inf
        elif table[1] == 6:
            lp -= 1e4 * (x[0] - 0.8) ** 2
            gradient[0] -= 2e4 * (x[0] - 0.8)
    return lp


def rough_numpy(x, mode=0):
    before, after = np.roll(x, 1), np.roll(x, -1)
    lp = np.sum(0.5 * x**2 - 0.25 * x**4 + 0.3 * np.sin(x * before))
    gradient = x - x**3 + 0.3 * (np.cos(x * before) * before + np.cos(x * after) * after)
    if x[0] > 0.8 and mode == 6:
        gradient[0] -= 2e4 * (x[0] - 0.8)
        return lp - 1e4 * (x[0] - 0.8) ** 2, gradient
    if x[0] > 0.8 and mode in (2, 3):
        gradient[{2: -1, 3: 0}[mode]] = {2: np.nan, 3: np.inf}[mode]
    return {1: np.nan, 4: -np.inf, 5: np.inf}.get(mode, lp) if x[0] > 0.8 else lp, gradient


def kernel_of(method, dynamics, **kwargs):
    return MethodArguments.checked(method, dynamics=dynamics, **kwargs).kernel


CELLS = {
    f"{dynamics}, option {option}, {grid}, K={K}": (
        kernel_of("PoissonULMC" if dynamics == "underdamped" else "PoissonOLMC", dynamics, option=option, grid=grid),
        K,
    )
    for dynamics in ("overdamped", "underdamped")
    for option in (1, 2)
    for grid in ("left", "centred")
    for K in (1, 2, 7)
}
IMPORTANCE = {
    "underdamped, importance, left, K=7": (kernel_of("PoissonULMC", "underdamped", midpoint="importance"), 7),
    "overdamped, importance, centred, K=2": (
        kernel_of("PoissonOLMC", "overdamped", midpoint="importance", grid="centred"),
        2,
    ),
}
OTHERS = {
    "OLMC": (kernel_of("OLMC", "overdamped"), 1),
    "ULMC": (kernel_of("ULMC", "underdamped"), 1),
    "RLMC overdamped": (kernel_of("RLMC", "overdamped"), 1),
    "RLMC underdamped": (kernel_of("RLMC", "underdamped"), 1),
    "recycled": (kernel_of("PoissonULMC", "underdamped", scheme="recycled"), 1),
    "recycled without the linear part": (Kernel(Scheme.RECYCLED, UNDERDAMPED, 2, 0.0), 1),
    "GHMC": (kernel_of("GHMC", "underdamped"), 1),
}
SCHEMES = {**CELLS, **IMPORTANCE, **OTHERS}
FEW = ["overdamped, option 1, left, K=7", "underdamped, option 2, centred, K=7", *OTHERS]


def start(kernel, mode=0):
    """Return an engine with a chain evaluated at its first point, and the tables that count its calls."""
    tables = np.array([[0, mode], [0, mode]])
    run = engine(kernel, D, rough, *tables)
    v = np.zeros(D) if kernel.dynamics == OVERDAMPED else np.array([0.4, -1.0, 0.2, 0.9])
    state = empty_state(np.array([0.6 if mode else -0.6, 0.5, 0.8, -1.1]), v)
    gradient = run.evaluate(COORDINATES, state)
    tables[:, 0] = 0
    return run, state, gradient, tables


def test_kernels_say_what_the_settings_say():
    assert SCHEMES["underdamped, option 1, centred, K=7"][0] == (Scheme.CELLS, UNDERDAMPED, 1, 0.5, 0.0)
    assert SCHEMES["OLMC"][0] == (Scheme.CELLS, OVERDAMPED, 2, 0.0, 0.0)
    assert SCHEMES["overdamped, importance, centred, K=2"][0] == (Scheme.CELLS, OVERDAMPED, 2, 0.5, 0.25)
    assert SCHEMES["RLMC underdamped"][0][:2] == (Scheme.CONTINUOUS, UNDERDAMPED)
    assert SCHEMES["recycled"][0][:2] == (Scheme.RECYCLED, HARMONIC)
    assert SCHEMES["GHMC"][0] == GHMC and GHMC[:2] == (Scheme.GHMC, HARMONIC)
    assert [name for name, (kernel, _) in SCHEMES.items() if kernel.adjusted] == ["GHMC"]


def limits_of(kernel, step, K):
    """Return by how much the energy may rise in a step and in a part of it, and how steep a step may be."""
    rises = (guard_threshold(kernel, length, 1.4, K, D) for length in (step, step / SUBSTEPS))
    return *rises, steepest_curvature(kernel, step, 1.4, K)


def compare_with_reference(name, mode, step_size, rows):
    kernel, K = SCHEMES[name]
    run, state, gradient, tables = start(kernel, mode)
    limits = limits_of(kernel, step_size, K)
    u, v = state[:D], state[D : 2 * D]
    chain = Chain(kernel, lambda x: rough_numpy(x, mode), u, v, step_size, 1.4, K, KEY, *COORDINATES[:2], limits)
    out = followed(run, TunedParameters(step_size, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), rows)
    for row in range(rows):
        chain.calls = chain.unstable = chain.refined = chain.model_failures = 0
        chain.advance()
        np.testing.assert_allclose(
            out.position[row], COORDINATES.centre + COORDINATES.scale * chain.evaluated, rtol=0.0, atol=1e-10
        )
        np.testing.assert_allclose(out.state[row, : 2 * D].reshape(2, D), chain.state, rtol=0.0, atol=1e-10)
        np.testing.assert_allclose(out.state[row, 2 * D : 3 * D], chain.b, rtol=0.0, atol=1e-9)
        assert abs(out.lp[row] - chain.lp) < 1e-9
        np.testing.assert_allclose(out.evaluation[row], rough_numpy(out.position[row], mode)[1], rtol=0.0, atol=1e-12)
        assert out.n_grad[row] == chain.calls
        assert (out.unstable[row], out.refined[row]) == (chain.unstable, chain.refined)
        assert out.model_failures[row] == chain.model_failures
        assert out.accept[row] == pytest.approx(chain.accept, rel=1e-9)
        assert out.state[row, 4 * D + 1] == pytest.approx(chain.last, rel=1e-9 if kernel.adjusted else 1e-14)
    assert out.n_grad.sum() == tables[:, 0].sum()
    return out, tables


@pytest.mark.parametrize("name", SCHEMES)
def test_engine_is_the_reference_chain(name):
    out, tables = compare_with_reference(name, 0, 0.15, 50)
    assert len(np.unique(out.position[:, 0])) > 30
    # The function without log density is for midpoints of the two-gradient schemes.
    kernel, K = SCHEMES[name]
    assert (tables[1, 0] > 0) == (not kernel.adjusted and (K > 1 or "RLMC" in name or "centred" in name))


@pytest.mark.parametrize("mode", range(1, len(LEAVES)), ids=LEAVES[1:])
@pytest.mark.parametrize("name", FEW)
def test_guard_is_the_reference_chain_s(name, mode):
    out, _ = compare_with_reference(name, mode, 0.3, 60)
    assert np.all(np.isfinite(out.state))
    if LEAVES[mode] != "steep":
        assert 0 < out.unstable.sum() < 50
    else:  # parts of a step may take what the whole cannot; those of adjusted methods are divergences
        assert out.unstable.sum() < 15 and out.unstable.sum() + out.refined.sum() > 0


@pytest.mark.parametrize("name", ["underdamped, option 2, left, K=7", "recycled", "RLMC overdamped"])
def test_a_rejected_step_restarts_at_the_last_known_point(name):
    kernel, K = SCHEMES[name]
    run, state, gradient, _ = start(kernel, mode=1)
    out = followed(run, TunedParameters(0.6, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), 4000)
    bad = np.flatnonzero(out.unstable[1:]) + 1
    assert 40 < bad.size < 3000
    u, v, b, evaluated = (out.state[:, i * D : (i + 1) * D] for i in range(4))
    factor = out.state[:, -1]
    np.testing.assert_array_equal(out.position[bad], out.position[bad - 1])
    np.testing.assert_array_equal(u[bad], evaluated[bad - 1])
    np.testing.assert_array_equal(b[bad], b[bad - 1])
    np.testing.assert_array_equal(factor[bad], np.maximum(SHORTEST, SHRINK * factor[bad - 1]))
    good = np.setdiff1d(np.arange(1, 4000), bad)
    recovered = np.minimum(1.0, RECOVER * factor[good - 1])
    # Less where the curvature is too large for the step.
    assert np.all(factor[good] <= recovered) and (factor[good] == recovered).mean() > 0.5
    assert factor.min() < 0.3 and factor.max() == 1.0
    assert SHRINK == 0.5 and 1.0 < RECOVER <= 1.1 and SHORTEST <= 2.0**-6
    if kernel.dynamics != OVERDAMPED:
        # Velocities after a rejection are standard normals that owe nothing to those before.
        assert kstest(v[bad].ravel(), norm.cdf).pvalue > 1e-6
        products = v[bad].ravel() * v[bad - 1].ravel()
        assert abs(products.sum()) / np.sqrt(np.sum(products**2)) < 4.5
        assert np.all(v[bad] != v[bad - 1])
    assert np.all(np.isfinite(out.position))
    for row in range(0, 4000, 97):
        lp, g = rough_numpy(out.position[row], 1)
        assert abs(lp - out.lp[row]) < 1e-12
        np.testing.assert_allclose(out.evaluation[row], g, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["ULMC", "recycled", "RLMC overdamped", "GHMC"])
def test_a_chain_that_finds_nothing_finite_stays_where_it_is(name):
    kernel, K = SCHEMES[name]
    run, state, gradient, tables = start(kernel)
    first = COORDINATES.centre + COORDINATES.scale * state[:D]
    tables[:, 1] = -1
    out = followed(run, TunedParameters(0.3, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), 50)
    np.testing.assert_array_equal(out.position, np.tile(first, (50, 1)))
    np.testing.assert_array_equal(out.unstable, 1)
    np.testing.assert_array_equal(out.accept, 0.0)
    assert np.all(np.isfinite(out.state))


@pytest.mark.parametrize("mode", range(1, 6), ids=LEAVES[1:6])
def test_a_start_that_is_not_finite_is_said_to_be(mode):
    run, state, _, _ = start(SCHEMES["ULMC"][0], mode)
    assert np.isfinite(state[4 * D])
    state[0] = 2.0
    run.evaluate(COORDINATES, state)
    assert np.isnan(state[4 * D])


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("name", FEW)
def test_draws_do_not_depend_on_the_chunks(name, mode):
    kernel, K = SCHEMES[name]
    setting = TunedParameters(0.3, K, 1.4, COORDINATES, 1)
    runs, ends = {}, {}
    for rows in (1, 7, 64):
        run, state, gradient, _ = start(kernel, mode)
        chunks, done = [], 0
        while done < 64:
            n = min(rows, 64 - done)
            # A chunk starts from the saved state alone.
            state, gradient = state.copy(), gradient.copy()
            chunks.append(advanced(run, setting, Ensemble(state, gradient, KEY, done), n))
            done += n
        runs[rows] = Chunk(*(np.concatenate(field) for field in zip(*chunks, strict=True)))
        ends[rows] = state.tobytes()
    for rows in (1, 7):
        assert [field.tobytes() for field in runs[rows]] == [field.tobytes() for field in runs[64]]
        assert ends[rows] == ends[64]
    run, state, gradient, _ = start(kernel, mode)
    thinned = advanced(run, setting, Ensemble(state, gradient, KEY), 16, thin=4)
    assert state.tobytes() == ends[64]
    assert thinned.position.tobytes() == np.ascontiguousarray(runs[64].position[3::4]).tobytes()
    assert thinned.evaluation.tobytes() == np.ascontiguousarray(runs[64].evaluation[3::4]).tobytes()
    np.testing.assert_array_equal(thinned.n_grad, runs[64].n_grad.reshape(16, 4).sum(axis=1))
    np.testing.assert_array_equal(thinned.unstable, runs[64].unstable.reshape(16, 4).sum(axis=1))
    np.testing.assert_array_equal(thinned.model_failures, runs[64].model_failures.reshape(16, 4).sum(axis=1))
    np.testing.assert_allclose(thinned.accept, runs[64].accept.reshape(16, 4).mean(axis=1), rtol=1e-15)


@pytest.mark.parametrize("name", FEW)
def test_change_of_coordinates(name):
    kernel, K = SCHEMES[name]
    run, state, gradient, _ = start(kernel)
    advanced(run, TunedParameters(0.2, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), 20)
    new = Coordinates(np.array([-1.0, 2.0, 0.3, 0.0]), np.array([2.0, 0.1, 1.0, 0.6]))
    chain = Ensemble(state, gradient, KEY)
    chain.change_coordinates(run, COORDINATES, new)
    moved = chain.state
    assert chain.evaluation is gradient
    for part in (slice(0, D), slice(3 * D, 4 * D)):
        there = new.centre + new.scale * moved[part]
        np.testing.assert_allclose(there, COORDINATES.centre + COORDINATES.scale * state[part], rtol=0.0, atol=1e-14)
    np.testing.assert_array_equal(moved[D : 2 * D], state[D : 2 * D])
    np.testing.assert_array_equal(moved[4 * D :], state[4 * D :])
    fresh = empty_state(moved[3 * D : 4 * D], moved[D : 2 * D])
    np.testing.assert_allclose(run.evaluate(new, fresh), gradient, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(moved[2 * D : 3 * D], fresh[2 * D : 3 * D], rtol=0.0, atol=1e-12)
    assert abs(fresh[4 * D] - moved[4 * D]) < 1e-12


@pytest.mark.parametrize("grid", ["left", "centred"])
@pytest.mark.parametrize("option", [1, 2, "importance"])
def test_mean_number_of_gradients(option, grid):
    chosen = {"midpoint": option} if option == "importance" else {"option": option}
    kernel, K = kernel_of("PoissonULMC", "underdamped", grid=grid, **chosen), 7
    run, state, gradient, _ = start(kernel)
    n_grad = advanced(run, TunedParameters(0.1, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), 20_000).n_grad
    if option != 1 and grid == "centred":
        assert np.all(n_grad == 2)
    else:
        z = (n_grad.mean() - mean_gradients(kernel, K)) / (n_grad.std() / np.sqrt(n_grad.size))
        assert abs(z) < 4.5


@pytest.mark.parametrize("name", ["recycled", "OLMC", "underdamped, option 2, left, K=7"])
def test_adjusted_draws_begin_at_the_last_one_at_rest(name):
    kernel, K = SCHEMES[name]
    run, state, gradient, tables = start(kernel)
    advanced(run, TunedParameters(0.3, K, 1.4, COORDINATES, 1), Ensemble(state, gradient, KEY), 20)
    calls = tables[:, 0].sum()
    chain = Ensemble(state, gradient, KEY)
    chain.rest_at_draws(kernel, GHMC)
    assert tables[:, 0].sum() == calls
    fresh = empty_state(state[3 * D : 4 * D].copy(), np.zeros(D))
    np.testing.assert_allclose(run.adjusted().evaluate(COORDINATES, fresh), gradient, rtol=1e-13)
    np.testing.assert_allclose(chain.state, fresh, rtol=0.0, atol=1e-13)


def test_dense_coordinates_run_the_same_chain_as_diagonal_ones():
    kernel, K = SCHEMES["recycled"]
    diagonal, dense = COORDINATES, Coordinates(COORDINATES.centre, np.diag(COORDINATES.scale))
    out = []
    for coordinates in (diagonal, dense):
        run, state, gradient, _ = start(kernel, 0)
        out.append(advanced(run, TunedParameters(0.3, K, 1.0, coordinates, 1), Ensemble(state, gradient, KEY), 40))
    np.testing.assert_allclose(out[0].position, out[1].position, rtol=0.0, atol=1e-11)


def test_states_in_any_order_of_memory_are_evaluated_in_place():
    run = engine(GHMC, D, rough)
    u = np.random.default_rng(3).normal(size=(3, 2, D))
    state = empty_state(u, np.zeros(D))
    evaluation = run.evaluate(COORDINATES, state)
    swapped = empty_state(u, np.zeros(D)).swapaxes(0, 1)
    np.testing.assert_array_equal(run.evaluate(COORDINATES, swapped), evaluation.swapaxes(0, 1))
    np.testing.assert_array_equal(swapped, state.swapaxes(0, 1))
    assert state[..., 4 * D].any()
