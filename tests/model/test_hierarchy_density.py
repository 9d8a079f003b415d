"""The log density in non-centred coordinates is the model's with the Jacobian: for every family, by differences.

The graphs are evaluated by PyTensor's Python linker; that numba and JAX compute the same is seen on a few of them.
"""

import numpy as np
import pymc as pm
import pytensor
import pytest
from hierarchy_models import BUILD, build, densities, eight_schools, some_noncentring, two_scales

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Ensemble, empty_state
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.hierarchy import law_of
from pmm_mcmc.model.jax_density import JaxDensity

pytestmark = [
    pytest.mark.longest,
    pytest.mark.pymc,
    pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning"),
]


def python(density):
    """Return the function of ``z`` to log density and all that is said beside it."""
    flat, outputs = density.graph
    return pytensor.function([flat], outputs, mode="FAST_COMPILE", on_unused_input="ignore")


def differences(f, z, size):
    """Return the matrix of central differences of ``f`` at ``z``."""
    out = np.empty((size, z.size))
    for i in range(z.size):
        step = 1e-6 * (1.0 + abs(z[i]))
        up, down = z.copy(), z.copy()
        up[i] += step
        down[i] -= step
        out[:, i] = (f(up) - f(down)) / (2 * step)
    return out


@pytest.mark.parametrize("name", BUILD)
def test_the_density_is_the_models_with_the_jacobian(name):
    model = build(name)
    plain, mapped, start = densities(model)
    structure, d = mapped.structure, start.size
    assert mapped.width == 3 * d + 1
    of_x, of_z = python(plain), python(mapped)
    rng = np.random.default_rng(1)
    for trial in range(3):
        x = start + 0.7 * rng.normal(size=d)
        noncentring = some_noncentring(structure, rng, none=trial == 0)
        mapped.density_parameters.set_value(noncentring)
        z, log_det = structure.to_z(x, noncentring)
        if trial == 2:  # the other sign of some scales
            z[structure.signed] *= rng.choice([-1.0, 1.0], size=len(structure.signed))
        lp, said = of_z(z)
        slope, at, gradient, said_log_det = said[:d], said[d : 2 * d], said[2 * d : 3 * d], said[3 * d]
        model_lp, model_gradient = of_x(at)
        # Where the scale is 0.1 or less, what is divided by it has fewer digits.
        np.testing.assert_allclose(lp - said_log_det, model_lp, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(gradient, model_gradient, rtol=1e-8, atol=1e-8)
        jacobian = differences(lambda z: of_z(z)[1][d : 2 * d], z, d)
        assert np.linalg.slogdet(jacobian)[1] == pytest.approx(said_log_det, rel=1e-5, abs=1e-5)
        by_differences = differences(lambda z: of_z(z)[0], z, 1)[0]
        np.testing.assert_allclose(slope, by_differences, rtol=2e-5, atol=2e-5 * np.abs(slope).max())
        # What the host computes of many positions at a time.
        there, pulled = structure.pull_back(z[None], gradient[None], noncentring)
        np.testing.assert_allclose(there[0], at, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(pulled[0], slope, rtol=1e-7, atol=1e-7 * (1 + np.abs(slope).max()))
        if trial < 2:
            np.testing.assert_allclose(at, x, rtol=1e-7, atol=1e-7)
            assert log_det == pytest.approx(said_log_det, rel=1e-7, abs=1e-7)
        folded, folded_slope = structure.folded(z, slope)
        np.testing.assert_allclose(structure.to_x(folded[None], noncentring)[0], at, rtol=1e-9, atol=1e-9)
        lp_there, said_there = of_z(folded)
        assert lp_there == pytest.approx(lp, rel=1e-9)
        np.testing.assert_allclose(said_there[:d], folded_slope, rtol=1e-7, atol=1e-7 * (1 + np.abs(slope).max()))


@pytest.mark.parametrize(
    "name", ["eight schools", "nested", "lkj", "lkj of three", "correlations", "two scales", "by hand"]
)
def test_the_density_is_smooth_where_a_scale_changes_its_sign(name):
    model = {"eight schools": eight_schools, "two scales": two_scales}.get(name, lambda: build(name))()
    _, mapped, start = densities(model)
    structure, of_z, rng, d = mapped.structure, python(mapped), np.random.default_rng(6), start.size
    assert structure.signed.size
    noncentring = some_noncentring(structure, rng)
    mapped.density_parameters.set_value(noncentring)
    for which in structure.signed:
        z, _ = structure.to_z(start + 0.5 * rng.normal(size=d), noncentring)
        # Both limits at 0, extrapolated: nearer, PyMC's density of the factor has lost its digits.
        limits = []
        for sign in (1.0, -1.0):
            near, far = z.copy(), z.copy()
            near[which], far[which] = sign * 1e-3, sign * 2e-3
            (lp, said), (lp_far, said_far) = of_z(near), of_z(far)
            limits.append((2 * lp - lp_far, 2 * said[:d] - said_far[:d]))
        (lp, slope), (lp_across, slope_across) = limits
        scale = 1.0 + np.abs(slope).max()
        assert lp_across == pytest.approx(lp, abs=1e-3 * scale)
        # But for the kink of an exponential prior.
        kink = np.arange(d) == (which if name == "two scales" else d)
        np.testing.assert_allclose(slope_across[~kink], slope[~kink], atol=1e-2 * scale)


def test_judged_coordinates_have_the_density_of_the_logarithm():
    model = eight_schools()
    _, mapped, start = densities(model)
    structure, of_z, rng = mapped.structure, python(mapped), np.random.default_rng(2)
    noncentring = some_noncentring(structure, rng)
    mapped.density_parameters.set_value(noncentring)
    z, _ = structure.to_z(start + rng.normal(size=start.size), noncentring)

    def unjudged(q):
        """Return ``z`` of ``q``: a scale is ``c sinh v`` with ``log c`` the last of the noncentring."""
        z = q.copy()
        z[..., structure.signed] = np.arcsinh(np.exp(q[..., structure.signed] - noncentring[-1]))
        return z

    def lp_of_q(q):
        z = unjudged(q)
        u = q[structure.signed]
        dz_du = np.exp(u) / np.sqrt(np.exp(2 * u) + np.exp(2 * noncentring[-1]))
        return of_z(z)[0] + np.log(dz_du).sum()

    q, slope = structure.diagnostic_coordinates(z, of_z(z)[1][: start.size], noncentring)
    np.testing.assert_allclose(unjudged(q), z, rtol=1e-12)
    np.testing.assert_allclose(slope, differences(lp_of_q, q, 1)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["eight schools", "cov", "walks"])
def test_numba_and_jax_say_the_same(name):
    model = eight_schools() if name == "eight schools" else build(name)
    _, mapped, start = densities(model)
    rng, d = np.random.default_rng(3), start.size
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled")
    jax_density = JaxDensity.from_model(mapped)
    engines = [NumbaEngine.of(arguments, mapped)]
    engines += [JaxEngine(arguments.kernel, jax_density, 4, precision) for precision in ("float64", "float32")]
    noncentring = some_noncentring(mapped.structure, rng)
    z, _ = mapped.structure.to_z(start + 0.3 * rng.normal(size=(4, d)), noncentring)
    coordinates = Coordinates(np.zeros(d), np.ones(d), noncentring)
    said = []
    for engine in engines:
        state = empty_state(z, np.zeros_like(z))
        said.append((engine.evaluate(coordinates, state), state[:, 4 * d].copy()))
    f = python(mapped)
    mapped.density_parameters.set_value(noncentring)
    exact = [f(row) for row in z]
    for (found, lp), tolerance in zip(said, (1e-10, 1e-10, 2e-3), strict=True):
        np.testing.assert_allclose(lp, [float(e[0]) for e in exact], rtol=tolerance)
        scale = np.abs([e[1] for e in exact]).max()
        np.testing.assert_allclose(found, [e[1] for e in exact], rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("scheme", ["paper", "recycled"])
def test_another_noncentring_is_an_evaluation_saved(scheme):
    model = eight_schools()
    _, mapped, start = densities(model)
    structure, rng, d = mapped.structure, np.random.default_rng(5), start.size
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme=scheme)
    engine = NumbaEngine.of(arguments, mapped)
    old, new = (
        Coordinates(rng.normal(size=d), rng.uniform(0.5, 2.0, d), some_noncentring(structure, rng)) for _ in range(2)
    )
    z, _ = structure.to_z(start + 0.5 * rng.normal(size=(3, d)), old.density_parameters)
    state = empty_state(old.whiten(z), rng.normal(size=(3, d)))
    said = engine.evaluate(old, state)
    chains = Ensemble(state, said, np.zeros((3, 2), np.uint64))
    chains.change_coordinates(engine, old, new)
    moved, found = chains.state, chains.evaluation
    fresh = empty_state(moved[:, :d], moved[:, d : 2 * d])
    np.testing.assert_allclose(found, engine.evaluate(new, fresh), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved, fresh, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[:, d : 2 * d], said[:, d : 2 * d], rtol=1e-12)


def test_locations_of_a_long_walk_are_no_bytes(caplog):
    # PyTensor stores a drift that is written as an integer in a byte, and prints a traceback for each sum beyond it.
    with pm.Model():
        walk = pm.GaussianRandomWalk("x", mu=1, init_dist=pm.Normal.dist(0, 1), steps=199)
    law = law_of(walk, None, (200,))
    np.testing.assert_array_equal(pytensor.function([], law.location)(), np.arange(200.0))
    assert "Rewrite failure" not in caplog.text


def test_no_positions_have_no_places():
    """As a mode search without new starts asks for them."""
    structure = densities(eight_schools())[1].structure
    assert structure.to_x(np.empty((0, structure.d)), structure.initial_noncentring()).shape == (0, structure.d)
