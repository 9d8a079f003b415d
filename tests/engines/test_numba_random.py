"""The keyed random numbers: bit for bit those of NumPy, and well distributed across keys.

Random tests at fixed keys: p > 1e-6 for each test statistic, |z| < 4.9 (1e-6) for counts.
"""

import numpy as np
import pytest
from reference import stream
from scipy.stats import chi2, kstest, norm

from pmm_mcmc.engines.numba_shared import fill_normals, start_stream, uniform

pytestmark = pytest.mark.quick

KEYS = [(0, 0, 0), (1, 2, 3), (2**64 - 1, 2**63, 2**40), (0x9E3779B97F4A7C15, 17, 2**64 - 1)]


def begin(key0, key1, transition):
    state = np.empty(4, np.uint64)
    start_stream(state, np.uint64(key0), np.uint64(key1), np.uint64(transition))
    return state


def normals(key, n):
    out = np.empty(n)
    fill_normals(begin(*key), out)
    return out


@pytest.mark.parametrize("key", KEYS)
def test_uniforms_are_numpy_s_bit_for_bit(key):
    state, rng = begin(*key), stream(key[:2], key[2])
    assert [uniform(state) for _ in range(10_000)] == rng.random(10_000).tolist()


@pytest.mark.parametrize("key", KEYS)
def test_normals_are_numpy_s_to_the_last_digits_of_the_tables(key):
    np.testing.assert_allclose(normals(key, 1_000_000), stream(key[:2], key[2]).standard_normal(1_000_000), rtol=1e-13)


def test_uniforms_and_normals_share_one_stream():
    state, rng = begin(5, 6, 7), stream((5, 6), 7)
    out = np.empty(97)
    for _ in range(300):  # long enough to pass through the wedges and the tail of the ziggurat
        assert uniform(state) == rng.random()
        fill_normals(state, out)
        np.testing.assert_allclose(out, rng.standard_normal(97), rtol=1e-13)
        # The state itself, too: nothing drawn and thrown away.
        np.testing.assert_array_equal(state, rng.bit_generator.state["state"]["state"])


def test_distributions():
    x = normals((11, 12, 13), 2_000_000)
    assert kstest(x, norm.cdf).pvalue > 1e-6
    state = begin(14, 15, 16)
    assert kstest([uniform(state) for _ in range(200_000)], "uniform").pvalue > 1e-6
    # Beyond 3.654 the ziggurat draws from its tail.
    for threshold in (1.0, 3.0, 3.6541528853610088, 4.0, 4.5):
        for side in (x > threshold, x < -threshold):
            p = norm.sf(threshold)
            assert abs(side.sum() - p * x.size) / np.sqrt(p * (1 - p) * x.size) < 4.9, threshold
    for power, mean, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(np.mean(x**power) - mean) / np.sqrt(variance / x.size) < 4.9, power


@pytest.mark.parametrize("neighbour", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, -1)])
def test_neighbouring_streams_are_uncorrelated(neighbour):
    """Correlate the first normals (and their squares) of streams whose keys differ by one in a word."""
    rows, draws = 30_000, 12
    x, y = np.empty((2, rows, draws))
    for t in range(rows):
        key = (20, 30, t + 1)
        fill_normals(begin(*key), x[t])
        fill_normals(begin(*np.add(key, neighbour)), y[t])
    for a, b in ((x, y), ((x**2 - 1) / np.sqrt(2), (y**2 - 1) / np.sqrt(2))):
        z = a.T @ b / np.sqrt(rows)
        assert chi2.sf(np.sum(z**2), z.size) > 1e-6
