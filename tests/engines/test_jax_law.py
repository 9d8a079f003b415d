"""The JAX engine's random numbers and coordinates, and the exact laws that its chains have with them.

As in ``test_gaussian_law.py`` each z-score is a mean over independent chains against its exact value, bias included:
|z| < 4.5, a false alarm in 1e5 for each (Student's t with 511 degrees of freedom), and p > 1e-6 for other statistics.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_chains import gaussian_engine, keys_of, unit
from reference import mean_gradients
from scipy.stats import binom, kstest, norm
from test_gaussian_law import CHAINED, RECYCLED, cells, continuous

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.engines.jax_shared import END, MIDPOINT, Keyed, words_of
from pmm_mcmc.langevin.gaussian_law import stationary_covariance
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Scheme
from pmm_mcmc.langevin.midpoints import IMPORTANCE_POWER

pytestmark = pytest.mark.longest

# -- random numbers ----------------------------------------------------------------------------------------------------


@cache
def _drawn(slots, has_velocity, d, dtype):
    def one(keys, number):
        draws = Keyed(words_of(keys), number, d, np.dtype(dtype), has_velocity)
        uniforms, *normals = zip(*draws.take(*slots), strict=True)
        normals = [jnp.stack(w, axis=1) for w in normals]
        return jnp.concatenate(uniforms, axis=1), jnp.stack(normals, axis=2), draws.velocity()

    return jax.jit(lambda keys, numbers: jax.lax.map(lambda number: one(keys, number), numbers))


def drawn(keys, numbers, slots, *, has_velocity=True, d=4, dtype=np.float64):
    """Return uniforms ``(transition, chain, slot)``, normals ``(.., slot, 2, d)`` and velocities ``(.., d)``."""
    with jax.enable_x64(dtype == np.float64):
        words = jnp.asarray(np.ascontiguousarray(keys).view(np.uint32).reshape(-1, 2, 2))
        found = _drawn(slots, has_velocity, d, dtype)(words, jnp.asarray(numbers, jnp.int32))
        return [np.asarray(a) for a in found]


@pytest.mark.statistical
@pytest.mark.parametrize(("has_velocity", "d"), [(True, 4), (False, 7)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_random_numbers_are_independent(dtype, has_velocity, d):
    slots = (END, MIDPOINT, 3, 19)
    uniforms, normals, velocity = drawn(keys_of(100), np.arange(60), slots, has_velocity=has_velocity, d=d, dtype=dtype)
    assert {a.dtype for a in (uniforms, normals, velocity)} == {np.dtype(dtype)}
    assert uniforms.min() >= 0.0 and uniforms.max() < 1.0
    normals = normals[:, :, :, 0 if has_velocity else 1 :].reshape(*normals.shape[:2], -1)
    assert normals.shape[2] == len(slots) * (1 + has_velocity) * d
    every = np.concatenate([normals.ravel(), velocity.ravel()])
    if dtype == np.float64:
        assert len(np.unique(uniforms)) == uniforms.size and len(np.unique(every)) == every.size
    assert kstest(uniforms.ravel().astype(float), "uniform").pvalue > 1e-6
    assert kstest(every.astype(float), "norm").pvalue > 1e-6
    # Numbers by (transition, chain, what), and how large they are: each against its neighbours along every axis.
    table = np.concatenate([(uniforms - 0.5) * np.sqrt(12.0), normals, velocity], axis=2).astype(float)
    for values in (table, np.abs(table) - np.abs(table).mean(axis=(0, 1))):
        for axis in range(3):
            ahead = np.moveaxis(values, axis, 0)
            for lag in (1, 2, 4, 8):
                product = ahead[lag:] * ahead[:-lag]
                assert abs(product.sum()) / np.sqrt(np.sum(product**2)) < 4.5
        correlation = np.corrcoef(values.reshape(-1, values.shape[2]), rowvar=False)
        upper = correlation[np.triu_indices_from(correlation, 1)] * np.sqrt(values.shape[0] * values.shape[1])
        # The largest of 820 at most: p > 1e-6 for all together.
        assert np.abs(upper).max() < 6.1
        assert abs(np.sum(upper**2) - upper.size) / np.sqrt(2.0 * upper.size) < 4.5


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normals_have_the_tails_and_the_moments_of_the_law(dtype):
    _, normals, _ = drawn(keys_of(500), np.arange(100), (END, MIDPOINT), d=20, dtype=dtype)
    n, w = normals.size, normals.ravel().astype(float)
    assert n == 4_000_000
    for far in (0.0, 1e-3, 0.5, 1.0, 2.0, 3.0, 4.0, 4.5):
        for side in (w, -w):
            count, p = np.sum(side > far), norm.sf(far)
            assert 2.0 * min(binom.cdf(count, n, p), binom.sf(count - 1, n, p)) > 1e-6
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(w**power) - mean) / np.sqrt(variance / n) < 4.5


def test_random_numbers_depend_on_seed_chain_and_transition_alone():
    keys = keys_of(12)
    every = drawn(keys, [3, 5], (END, 5))
    others = [11, 0, 7, 7, 7, 1, 2, 2, 3, 11, 6, 0]
    for found, expected in zip(drawn(keys[others], [5, 2**31 - 1], (END, 5)), every, strict=True):
        np.testing.assert_array_equal(found[0], expected[1, others])
        assert np.all(found[1] != expected[1, others])
    # Nor on what is drawn with them.
    for found, expected in zip(drawn(keys, [3, 5], (5,))[:2], every, strict=False):
        np.testing.assert_array_equal(found, expected[:, :, 1:])
    # Every part of the key counts.
    for word, bit in ((0, 0), (0, 31), (0, 63), (1, 0), (1, 31), (1, 32), (1, 63)):
        other = keys.copy()
        other[:, word] ^= np.uint64(1 << bit)
        assert all(np.all(a != b) for a, b in zip(drawn(other, [3, 5], (END, 5)), every, strict=True))
    # Where there is no velocity, the second normals alone are drawn.
    _, normals, _ = drawn(keys, [3, 5], (END,), has_velocity=False)
    np.testing.assert_array_equal(normals[:, :, :, 0], 0.0)
    assert np.all(normals[:, :, :, 1] != 0.0)


def made_of(first, second, dtype):
    """Return fractions of ``first``, and normals made of pairs of whole numbers."""
    with jax.enable_x64(dtype == np.float64):
        draws = Keyed(None, None, 1, np.dtype(dtype), True)
        pairs = draws._pairs(jnp.asarray(np.concatenate([first, second])))
        return np.asarray(draws._fraction(jnp.asarray(first))), *(np.asarray(w) for w in pairs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_ends_of_the_random_numbers(dtype):
    bits = {np.float64: np.uint64, np.float32: np.uint32}[dtype]
    ends = np.array([0, np.iinfo(bits).max], bits)
    middle = bits(1) << bits(np.iinfo(bits).bits - 1)
    fraction, *_ = made_of(ends, ends, dtype)
    np.testing.assert_array_equal(fraction, np.array([0.0, 1.0 - 0.5 * np.finfo(dtype).eps], dtype))
    furthest = {np.float64: 9.4, np.float32: 6.7}[dtype]
    for second in (0, middle, np.iinfo(bits).max):
        _, a, b = made_of(ends, np.full(2, second, bits), dtype)
        radius = np.hypot(a, b)
        assert furthest < radius[0] < furthest + 0.1 and 0.0 <= radius[1] < 1e-3
        # Half of a quarter of a turn and none.
        assert (abs(a[0]) > furthest) == (second == middle)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_pairs_of_normals_are_points_at_every_angle(dtype):
    bits = {np.float64: np.uint64, np.float32: np.uint32}[dtype]
    rng, size, all_of_them = np.random.default_rng(8), 20_000, 2.0 ** np.iinfo(bits).bits
    # Points in order of the angle, each on both halves of the circle.
    across = (np.arange(size // 2) + 0.5) / (size // 2)
    second = np.repeat((across * all_of_them).astype(bits) & ~bits(1), 2)
    second[1::2] += bits(1)
    first = rng.integers(np.iinfo(bits).max, size=size, dtype=bits)
    _, a, b = made_of(first, second, dtype)
    eps = np.finfo(dtype).eps
    square = a.astype(float) ** 2 + b.astype(float) ** 2
    np.testing.assert_allclose(square, -2.0 * np.log((first + 0.5) / all_of_them), rtol=16.0 * eps, atol=4.0 * eps)
    angle = np.pi * (across - 0.5)
    np.testing.assert_allclose(np.arctan2(b, a)[::2], angle, rtol=0.0, atol=8.0 * eps)
    np.testing.assert_allclose(np.arctan2(b, -a)[1::2], angle, rtol=0.0, atol=8.0 * eps)


# -- coordinates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "k"),
    [(1, 0), (3, 0), (4, 1), (60, 0), (60, 20), (300, 100), (301, 0), (301, 20), (301, 100), (1, None), (60, None)],
)
def test_coordinates_are_the_same_map(d, k):
    rng = np.random.default_rng(d)
    centre, scale = rng.normal(size=d), rng.uniform(0.2, 3.0, d)
    root = np.linalg.qr(rng.normal(size=(d, d)))[0]
    if k is None:
        coordinates = Coordinates(centre, root * scale[:, None])
    else:
        coordinates = Coordinates.low_rank(centre, scale, rng.uniform(0.2, 3.0, k), root[:, :k])
    y = rng.normal(size=(7, d))
    with jax.enable_x64(True):
        found = JaxCoordinates.of(coordinates, np.dtype(float))
        np.testing.assert_allclose(found.place(y), coordinates.place(y), rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(found.pull_back(y), coordinates.pull_back(y), rtol=0.0, atol=1e-12)
    shapes = jax.tree.map(np.shape, found)
    assert shapes == jax.tree.map(np.shape, JaxCoordinates.of(unit(d), np.dtype(float))), "one shape for every kind"


# -- Gaussians ---------------------------------------------------------------------------------------------------------

D, CHAINS, LOOKS, BETWEEN = 20, 512, 25, 4
CURVATURES = np.repeat([1.0, 0.4], D // 2)


def chain_moments(kernel, alpha, friction, K, exact, precision):
    """Return second moments ``(chain, curvature, n, n)`` and mean gradients a step ``(chain,)``.

    Chains start with the stationary second moments and keep them: see ``test_gaussian_law.chain_moments``.
    """
    n = len(exact[0])
    run = gaussian_engine(kernel, D, CHAINS, precision)
    coordinates = Coordinates(np.zeros(D), np.sqrt(CURVATURES))
    rng = np.random.default_rng(98)
    first = np.zeros((n, CHAINS, D))
    for half, S in enumerate(exact):
        root = np.linalg.cholesky(S[:1, :1] if kernel.dynamics == OVERDAMPED else S)
        part = slice(half * D // 2, (half + 1) * D // 2)
        first[: len(root), :, part] = np.einsum("ij,jcd->icd", root, rng.standard_normal((len(root), CHAINS, D // 2)))
    state = empty_state(first[-1] if n == 3 else first[0], first[1])
    gradient = run.evaluate(coordinates, state)
    state[:, :D] = first[0]
    moments, n_grad = np.zeros((CHAINS, 2, n, n)), np.zeros(CHAINS)
    for look in range(LOOKS):
        out = run.advance(
            TunedParameters(alpha, K, friction, coordinates, 1),
            Ensemble(state, gradient, keys_of(CHAINS), look * BETWEEN),
            1,
            thin=BETWEEN,
        )
        assert out.unstable.sum() == 0
        n_grad += out.n_grad[:, 0] / (LOOKS * BETWEEN)
        x = np.stack([state[:, :D], state[:, D : 2 * D], state[:, 3 * D : 4 * D]][:n], axis=1)
        halves = x.reshape(CHAINS, n, 2, D // 2)
        moments += np.einsum("cihd,cjhd->chij", halves, halves) / (LOOKS * D // 2)
    return moments, n_grad


def compare_with_law(kernel, alpha, friction, K, precision="float64"):
    exact = [stationary_covariance(kernel, alpha, friction, K, c) for c in CURVATURES[:: D // 2]]
    moments, n_grad = chain_moments(kernel, alpha, friction, K, exact, precision)
    error = moments.std(axis=0, ddof=1) / np.sqrt(CHAINS)
    assert error[:, 0, 0].max() < 0.012 * exact[1][0, 0]
    used = error > 0.0
    assert used.sum() == (2 if kernel.dynamics == OVERDAMPED else error.size)
    z = (moments.mean(axis=0) - exact)[used] / error[used]
    assert np.abs(z).max() < 4.5, z
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        # These laws are biased enough for the test to tell them from the target's.
        assert abs(exact[0][0, 0] - 1.0) / error[0, 0, 0] > 4.5
    expected = 1.0 if kernel.scheme == Scheme.RECYCLED else 2.0
    if kernel.scheme == Scheme.CELLS:
        expected = mean_gradients(kernel, K)
    if n_grad.std() > 0.0:
        assert abs(n_grad.mean() - expected) / (n_grad.std(ddof=1) / np.sqrt(CHAINS)) < 4.5
    else:
        assert np.all(np.abs(n_grad - expected) < 1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize(("kernel", "alpha", "friction", "K"), [case for case in CHAINED if case[0].option == 2])
def test_engine_has_the_exact_law(kernel, alpha, friction, K):
    compare_with_law(kernel, alpha, friction, K)


@pytest.mark.statistical
@pytest.mark.parametrize("precision", ["float32", "mixed"])
@pytest.mark.parametrize(
    ("kernel", "alpha", "K"),
    [
        (cells(UNDERDAMPED), 0.9, 2),
        (cells(UNDERDAMPED, power=IMPORTANCE_POWER), 0.9, 2),
        (RECYCLED, 1.2, 1),
        (continuous(OVERDAMPED), 0.5, 1),
    ],
    ids=["PoissonULMC", "importance", "recycled", "RLMC overdamped"],
)
def test_it_has_it_in_every_precision(kernel, alpha, K, precision):
    compare_with_law(kernel, alpha, 1.0, K, precision)
