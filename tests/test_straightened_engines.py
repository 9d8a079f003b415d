"""Both engines in the coordinates of a map of funnels: the chains of the straightened density, exactly.

Tolerances are for rounding; nothing here is left to chance.
"""

import jax
import numpy as np
import pytest
from jax_chains import ROUGH, keys_of, rough_engine, rough_starts
from reference import Chain, engine
from test_engine import COORDINATES, FEW, SCHEMES, D, limits_of, rough, rough_numpy

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.contract import change_coordinates, empty_state
from pmm_mcmc.engines.jax_coordinates import JaxCoordinates
from pmm_mcmc.methods import HARMONIC, OVERDAMPED
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.tuning.setting import Tuned

# Two levels: 1 is a sink of 0, saturating; 3, saturating with an anchor that both shift, and 2 are sinks of both.
FUNNELS = FunnelMap(
    np.array([1, 3, 2]), np.array([0, 1, 3, 4]), np.array([0, 0, 1, 1]),
    np.array([0.4, -0.3, 0.2, 0.5]), np.array([0.3, 0.0, -0.6, 0.2]), np.array([0.2, -0.7, 0.4, 0.0]),
    np.array([-0.1, 0.2, 0.1]), np.array([0.2, -0.1, 0.3]), np.array([0.6, 0.3, np.inf]), np.array([0.1, -0.2, 0.0]),
).checked(D)  # fmt: skip
BENT = COORDINATES._replace(funnels=FUNNELS)
ROOT = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0] * np.array([0.7, 1.2, 0.9, 0.5])
OTHER = FUNNELS._replace(slope=FUNNELS.slope + 0.1, location=FUNNELS.location - 0.2)
KINDS = {
    "diagonal": COORDINATES,
    "diagonal, funnels": BENT,
    "matrix, funnels": Coordinates(COORDINATES.centre, ROOT, FUNNELS),
    "matrix, other funnels": Coordinates(0.5 * COORDINATES.centre, ROOT, OTHER),
}
KEY = np.array([2**63 + 12345, 678], dtype=np.uint64)
SETTING = Tuned(0.15, 7, 1.4, BENT, 1)


def straightened(z):
    """Return log density and gradient of the straightened coordinates."""
    lp, gradient = rough_numpy(FUNNELS.to_x(z))
    return lp + FUNNELS.log_det(z), FUNNELS.pull_back(z, gradient)


def numba_engine(name):
    return engine(SCHEMES[name][0], D, rough, *np.zeros((2, 2), np.int64))


@pytest.mark.parametrize("name", FEW)
def test_the_cpu_engine_is_the_chain_of_the_straightened_density(name):
    kernel, K = SCHEMES[name]
    run, step = numba_engine(name), 0.15
    state = empty_state(np.array([-0.6, 0.5, 0.8, -1.1]), np.full(D, 0.3) * (kernel.dynamics != OVERDAMPED))
    gradient = run.evaluate(BENT, state)
    limits = limits_of(kernel, step, K)
    chain = Chain(kernel, straightened, state[:D], state[D : 2 * D], step, 1.4, K, KEY, *COORDINATES[:2], limits)
    out = run.run(SETTING._replace(K=K), state, gradient, KEY, 0, 50, 1)
    for row in range(50):
        chain.calls = 0
        chain.advance()
        z = COORDINATES.place(chain.anchor)
        np.testing.assert_allclose(out.position[row], FUNNELS.to_x(z), rtol=0.0, atol=1e-10)
        np.testing.assert_allclose(out.gradient[row], rough_numpy(FUNNELS.to_x(z))[1], rtol=0.0, atol=1e-9)
        np.testing.assert_allclose(out.state[row, : 2 * D].reshape(2, D), chain.state, rtol=0.0, atol=1e-10)
        np.testing.assert_allclose(out.state[row, 2 * D : 3 * D], chain.b, rtol=0.0, atol=1e-9)
        assert out.lp[row] == pytest.approx(rough_numpy(FUNNELS.to_x(z))[0], abs=1e-9)
        assert out.n_grad[row] == chain.calls
    assert len(np.unique(out.position[:, 0])) > 30


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_coordinates_on_jax_are_the_same(kind, dtype):
    coordinates, exact = KINDS[kind], np.dtype(dtype) == np.float64
    y, g = np.random.default_rng(2).normal(size=(2, 7, D)).astype(dtype)
    with jax.enable_x64(exact):
        x, log_det, pull_back = JaxCoordinates.of(coordinates, np.dtype(dtype)).place_and_back(y)
        slope = pull_back(g)
    assert x.dtype == log_det.dtype == slope.dtype == dtype
    close = {"rtol": 0.0, "atol": 1e-12 if exact else 2e-5}
    np.testing.assert_allclose(x, coordinates.place(y), **close)
    np.testing.assert_allclose(log_det, coordinates.log_det(y), **close)
    np.testing.assert_allclose(slope, coordinates.pull_back(g, y), **close)


@pytest.mark.parametrize("old", KINDS)
@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("name", ["recycled", "underdamped, option 2, centred, K=7"])
def test_a_change_of_coordinates_is_an_evaluation_saved(name, old, new):
    run, (old, new) = numba_engine(name), (KINDS[old], KINDS[new])
    state, gradient = rough_starts(run, 3, coordinates=old)
    changed = change_coordinates(state, gradient, old, new, run.kernel)
    np.testing.assert_allclose(new.place(changed[:, :D]), old.place(state[:, :D]), rtol=0.0, atol=1e-12)
    anew = changed.copy()
    np.testing.assert_allclose(run.evaluate(new, anew), gradient, rtol=0.0, atol=1e-11)
    np.testing.assert_allclose(changed, anew, rtol=0.0, atol=1e-10)
    assert run.kernel.dynamics in (HARMONIC, 1)


@pytest.mark.parametrize("backend", ["numba", "jax"])
@pytest.mark.parametrize("name", ["recycled", "underdamped, option 2, centred, K=7"])
def test_draws_do_not_depend_on_the_chunks(backend, name):
    run = rough_engine(name, 3) if backend == "jax" else numba_engine(name)
    assert ROUGH.mode == 0
    start, slope = rough_starts(run, 3, coordinates=BENT)
    found = []
    for chunks in ([12], [1, 4, 7]):
        state, gradient, parts, first = start.copy(), slope.copy(), [], 0
        for rows in chunks:
            parts.append(run.advance(SETTING, state, gradient, keys_of(3), first, rows))
            first += rows
        found.append([np.concatenate(part, axis=1) for part in list(zip(*parts, strict=True))[:-1]] + [state])
    for whole, pieces in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, pieces)
    x = found[0][0]
    lp, gradient = zip(*(rough_numpy(at) for at in x.reshape(-1, D)), strict=True)
    np.testing.assert_allclose(found[0][1].reshape(-1, D), gradient, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(found[0][2].ravel(), lp, rtol=0.0, atol=1e-9)
