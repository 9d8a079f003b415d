"""The flows A_h, G_h, Gamma_h against 50-digit values, and the scaling relations.  Nothing here is random."""

import warnings

import mpmath
import numba
import numpy as np
import pytest

from pmm_mcmc.engines import numba_shared
from pmm_mcmc.langevin.flows import Flow, build_flows, flows, select

pytestmark = pytest.mark.quick

NAMES = ("overdamped", "underdamped", "harmonic")
# For the harmonic flow: under-damped, close to critical on both sides, critical, over-damped.
FRICTIONS = (0.05, 0.5, 1.0, 1.99, 2.0 - 1e-9, 2.0, 2.0 + 1e-6, 2.01, 5.0, 50.0)
SCALED_TIMES = np.concatenate([np.geomspace(1e-8, 50.0, 18), 0.5 * (1.0 + np.array([-1e-12, 0.0, 1e-12]))])


def exact(name, h, friction):
    """Return all entries at 50 digits: exponentials of the generators of the mean and of the second moments."""
    with mpmath.workdps(60):
        h, friction = mpmath.mpf(float(h)), mpmath.mpf(float(friction))
        if name == "overdamped":
            zero = mpmath.mpf(0)
            return Flow(mpmath.mpf(1), zero, zero, zero, h, zero, zero, zero, mpmath.sqrt(2 * h))
        k = 1 if name == "harmonic" else 0
        mean = mpmath.expm(h * mpmath.matrix([[0, 1, 0], [-k, -friction, 1], [0, 0, 0]]))
        second = mpmath.expm(
            h * mpmath.matrix([[0, 2, 0, 0], [-k, -friction, 1, 0], [0, -2 * k, -2 * friction, 2 * friction], [0] * 4])
        )
        uu, uv, vv = second[0, 3], second[1, 3], second[2, 3]
        n_vv = mpmath.sqrt(vv)
        n_uv = uv / n_vv
        A = (mean[0, 0], mean[0, 1], mean[1, 0], mean[1, 1])
        return Flow(*A, mean[0, 2], mean[1, 2], n_vv, n_uv, mpmath.sqrt(uu - n_uv**2))


def errors(name, h, friction):
    """Return the relative and absolute error of each entry (where the entry is 0, both are the absolute one)."""
    computed = getattr(flows, name)(h, friction)
    with mpmath.workdps(60):
        pairs = zip(computed, exact(name, h, friction), strict=True)
        absolute = [(abs(mpmath.mpf(float(a)) - b), abs(b)) for a, b in pairs]
        return np.array([[float(e / s) if s else float(e), float(e)] for e, s in absolute])


def harmonic_times(friction):
    """Return times over the whole range, both sides of the end of the series and of the critical limit."""
    ends = [0.5 / max(1.0, friction)]
    discriminant = abs(1.0 - 0.25 * friction**2)
    if discriminant:
        ends.append(0.1 / np.sqrt(discriminant))
    sides = np.outer(ends, [1.0 - 1e-12, 1.0, 1.0 + 1e-12]).ravel()
    return np.concatenate([SCALED_TIMES / friction, sides])


@pytest.mark.parametrize("friction", [1e-3, 0.25, 1.0, 2.0, 50.0])
@pytest.mark.parametrize("name", ["overdamped", "underdamped"])
def test_every_entry_to_twelve_digits(name, friction):
    for h in SCALED_TIMES / friction:
        assert errors(name, h, friction)[:, 0].max() < 1e-12, (h, friction)


@pytest.mark.parametrize("friction", FRICTIONS)
def test_harmonic_entries(friction):
    """Find twelve digits of every entry below the end of the series, twelve decimals beyond it.

    Beyond it entries cross zero (``cos h``) or decay below what rounding leaves of a unit (``1 - a_uu``), so that
    relative precision is not to be had.  Position and velocity have standard deviation 1 under this flow's own law,
    hence an absolute error of 1e-12 is one of 1e-12 in units of what is sampled.
    """
    for h in harmonic_times(friction):
        relative, absolute = errors("harmonic", h, friction).T
        assert absolute.max() < 1e-12, (h, friction)
        if h * max(1.0, friction) < 0.5:
            assert relative.max() < 1e-12, (h, friction)


@pytest.mark.parametrize("name", ["underdamped", "harmonic"])
def test_the_reference_values_are_the_integrals(name):
    """Compare ``G`` and ``Gamma^2`` with the integrals of ``A`` by quadrature, to 20 digits."""
    h, friction = 0.75, 1.5
    value = exact(name, h, friction)
    with mpmath.workdps(30):
        k = 1 if name == "harmonic" else 0
        J = mpmath.matrix([[0, 1], [-k, -mpmath.mpf(friction)]])
        column = [lambda s, i=i: mpmath.expm(s * J)[i, 1] for i in (0, 1)]
        covariance = [
            lambda s, i=i, j=j: 2 * friction * column[i](s) * column[j](s) for i, j in ((0, 0), (0, 1), (1, 1))
        ]
        integrals = [mpmath.quad(f, [0, h], maxdegree=5) for f in (*column, *covariance)]
        found = (value.g_u, value.g_v, value.n_uv**2 + value.n_uu**2, value.n_uv * value.n_vv, value.n_vv**2)
        assert max(abs(a - b) for a, b in zip(found, integrals, strict=True)) < mpmath.mpf(10) ** -20


def matrices(flow):
    a = np.array([[flow.a_uu, flow.a_uv], [flow.a_vu, flow.a_vv]])
    root = np.array([[flow.n_uv, flow.n_uu], [flow.n_vv, 0.0]])
    return a, np.array([flow.g_u, flow.g_v]), root @ root.T


@pytest.mark.parametrize("friction", [0.25, 1.0, 2.0, 2.0 + 1e-6, 7.0])
@pytest.mark.parametrize("name", NAMES)
def test_scaling_relations(name, friction):
    flow = getattr(flows, name)
    for g in (1e-6, 1e-3, 0.1, 0.4, 1.3, 4.0):
        for h in (1e-5, 0.02, 0.3, 0.9, 2.5):
            (a_g, g_g, s_g), (a_h, g_h, s_h) = matrices(flow(g, friction)), matrices(flow(h, friction))
            a, c, s = matrices(flow(g + h, friction))
            np.testing.assert_allclose(a_g @ a_h, a, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(a_h @ g_g + g_h, c, rtol=1e-12, atol=0.0)
            np.testing.assert_allclose(a_h @ s_g @ a_h.T + s_h, s, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("where", [np.where, select])
@pytest.mark.parametrize("name", NAMES)
def test_no_time_is_the_identity_without_noise(name, where):
    flow = getattr(build_flows(np, where), name)
    h = np.zeros(3) if where is np.where else 0.0
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for friction in FRICTIONS:
            values = np.array([np.broadcast_to(entry, 3) for entry in flow(h, friction)]).T
            identity = Flow(1, 0, 0, 0 if name == "overdamped" else 1, 0, 0, 0, 0, 0)
            np.testing.assert_array_equal(values, np.tile(identity, (3, 1)))


@pytest.mark.parametrize("name", NAMES)
def test_no_warning_over_the_whole_range(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for friction in FRICTIONS:
            values = np.array(getattr(flows, name)(np.append(0.0, harmonic_times(friction)), friction))
            assert np.all(np.isfinite(values))


@pytest.mark.parametrize("name", NAMES)
def test_scalars_arrays_and_compiled_code_agree(name):
    inner = getattr(numba_shared, "_" + name)  # which has no way in from Python
    compiled = numba.njit(lambda time, friction: inner(time, friction))
    scalar = getattr(build_flows(np, select), name)
    for friction in FRICTIONS:
        h = harmonic_times(friction)
        h = h[h < 100.0]
        array = np.array(getattr(flows, name)(h, friction))
        for column, time in zip(array.T, h, strict=True):
            # The exponentials of a vector and of a number differ in the last digit, which 1 - a_uu^2 enlarges.
            np.testing.assert_allclose(scalar(time, friction), column, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(compiled(time, friction), column, rtol=1e-12, atol=1e-13)


def test_overdamped_flow_is_the_paper_s():
    assert flows.overdamped(0.3, 1.0) == (1.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0, np.sqrt(0.6))
