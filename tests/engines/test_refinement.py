"""Steps that are taken again in parts: the law of their noise, where it leads to, and what it does to the draws.

z-scores of known means at fixed seeds: |z| < 4.5, a false alarm in 1e5 for each.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from numba import cfunc
from one_chain import advanced, followed
from reference import covariance, engine, flow, gaussian
from scipy.special import gamma
from test_stability import METHODS, automatic, quartic

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines import contract
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.langevin.transitions import MOST_REFINEMENTS, SUBSTEPS, bridged, build_gain, build_limits, noise, path
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.model.user_density import LogDensity

KEY = np.array([123, 456], dtype=np.uint64)
every_method = pytest.mark.parametrize("name", METHODS)
every_dynamics = pytest.mark.parametrize(
    ("dynamics", "flow_of"),
    [(OVERDAMPED, flows.overdamped), (UNDERDAMPED, flows.underdamped), (HARMONIC, flows.harmonic)],
    ids=["overdamped", "underdamped", "harmonic"],
)
gain = build_gain(np.where)


# -- the noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.statistical
@every_dynamics
@pytest.mark.parametrize("friction", [0.3, 2.0])
def test_a_bridged_path_has_the_law_of_a_path_and_the_end_that_is_known(dynamics, flow_of, friction):
    n, times, end = 100_000, [0.05, 0.5, 0.55, 1.2], 1.3
    rng = np.random.default_rng(5)

    def draw(time):
        w = rng.standard_normal((2, n))
        return noise(w[0] * (dynamics != OVERDAMPED), w[1], flow_of(time, friction))

    known = draw(end)
    mu, mv, left, reached, seen = 0.0, 0.0, known, 0.0, []
    for time in [*times, end]:
        gap, rest = flow_of(time - reached, friction), flow_of(end - time, friction)
        found = left
        if time < end:
            taken = gain(gap, rest, flow_of(end - reached, friction))
            *found, u, v = bridged(*draw(time - reached), *draw(end - time), *left, rest, taken)
            left = u, v
        mu, mv = path(mu, mv, *found, gap)
        seen.append(np.array([mu, mv]))
        reached = time
    np.testing.assert_allclose(seen[-1], known, atol=1e-12)
    for i, (time, one) in enumerate(zip(times, seen, strict=False)):
        for later, other in zip([*times, end][i:], seen[i:], strict=True):
            expected = flow(dynamics, later - time, friction)[0] @ covariance(dynamics, time, friction)
            products = other[:, None] * one[None]
            off = products.mean(axis=2) - expected
            assert np.all(np.abs(off) <= 4.5 * products.std(axis=2) / np.sqrt(n) + 1e-15), (time, later)


@every_dynamics
def test_a_gap_without_a_rest_takes_all_of_the_surprise(dynamics, flow_of):
    whole, nothing = flow_of(0.7, 1.3), flow_of(0.0, 1.3)
    expected = [1.0, 0.0, 0.0, 1.0] if dynamics != OVERDAMPED else [1.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(gain(whole, nothing, whole), expected, atol=1e-12)


# -- where it leads to -------------------------------------------------------------------------------------------------


@cfunc(SIGNATURE)
def flat(x, gradient, table, n):
    for i in range(n):
        gradient[i] = 0.0
    return 0.0


def limited(patch, step, whole_fails):
    """Let steps of this length fail, or none; parts are good."""
    threshold = lambda kernel, length, *_: -np.inf if whole_fails and length == step else np.inf  # noqa: E731
    patch.setattr(contract, "guard_threshold", threshold)
    patch.setattr(contract, "steepest_curvature", lambda *_: np.inf)


@every_method
def test_without_a_force_parts_lead_where_the_whole_step_does(monkeypatch, name):
    # Nor with the harmonic one that the flow holds.
    kernel, step, K = automatic(name)
    d, target = 3, gaussian if kernel.dynamics == HARMONIC else flat
    rng, roomy = np.random.default_rng(2), Coordinates(np.zeros(d), np.ones(d))
    start = empty_state(rng.normal(size=d), rng.normal(size=d) * (kernel.dynamics != OVERDAMPED))

    def run():
        state = start.copy()
        gradient = engine(kernel, d, target).evaluate(roomy, state)
        return followed(
            engine(kernel, d, target), TunedParameters(step, K, 1.0, roomy, 1), Ensemble(state, gradient, KEY), 20
        )

    limited(monkeypatch, step, False)
    whole = run()
    assert whole.refined.sum() == 0
    limited(monkeypatch, step, True)
    parts = run()
    assert np.all(parts.refined == 1) and parts.unstable.sum() == 0 and parts.n_grad.sum() > 3 * whole.n_grad.sum()
    np.testing.assert_allclose(parts.state[:, : 2 * d], whole.state[:, : 2 * d], atol=1e-10)
    assert np.abs(whole.position[-1] - whole.position[0]).max() > 0.3


@pytest.mark.parametrize("name", ["PoissonOLMC", "recycled"])
def test_so_they_do_on_jax_in_batches_of_few_chains(monkeypatch, name):
    kernel, step, K = automatic(name)
    chains, d = 40, 3
    density = LogDensity.from_jax(
        (lambda x: -0.5 * jnp.sum(x * x)) if kernel.dynamics == HARMONIC else (lambda x: 0.0 * jnp.sum(x)), d
    )
    rng, roomy = np.random.default_rng(2), Coordinates(np.zeros(d), np.ones(d))
    u, v = rng.normal(size=(2, chains, d))
    keys = np.column_stack([np.full(chains, 9), np.arange(chains)]).astype(np.uint64)
    run = JaxEngine(kernel, density, chains)

    def advance():
        state = empty_state(u, v * (kernel.dynamics != OVERDAMPED))
        gradient = run.evaluate(roomy, state)
        return run.advance(TunedParameters(step, K, 1.0, roomy, 1), Ensemble(state, gradient, keys), 8), state

    limited(monkeypatch, step, False)
    whole, whole_state = advance()
    limited(monkeypatch, step, True)
    parts, state = advance()
    assert whole.refined.sum() == 0 and np.all(parts.refined == 1) and parts.unstable.sum() == 0
    np.testing.assert_allclose(state[:, : 2 * d], whole_state[:, : 2 * d], atol=1e-10)
    assert parts.n_grad.sum() > 3 * whole.n_grad.sum()


# -- what it does to the draws -----------------------------------------------------------------------------------------


@every_method
def test_parts_are_short_enough_for_what_the_whole_is_too_long_for(name):
    kernel, step, K = automatic(name)
    limit = build_limits(np, np.where).limit
    for parts in (SUBSTEPS, SUBSTEPS**MOST_REFINEMENTS):
        exact = steepest_curvature(kernel, step / parts, 1.0, K)
        # Longer steps lose some of their stability to the friction.
        assert (
            limit(steepest_curvature(kernel, step, 1.0, K), float(parts), kernel.dynamics != OVERDAMPED) > 0.4 * exact
        )


@every_method
def test_what_warm_up_finds_a_step_for_is_taken_whole(name):
    """The step for a curvature of 1 (of the remainder, recycled) bears that, and a third more."""
    kernel, step, K = automatic(name)
    assert steepest_curvature(kernel, step, 1.0, K) > 4.0 / 3.0


@pytest.mark.parametrize(
    ("curvatures", "expected"),
    [([3.0, 3.0, 3.0], 3.0), ([100.0] + 30 * [1.0], 100.0), ([-4.0, -4.0], 4.0), ([6.0, -5.0], 30.0)],
    ids=["even", "one steep", "against", "both"],
)
def test_the_curvature_is_that_of_the_steep_directions(curvatures, expected):
    way = np.ones(len(curvatures))
    rise = np.array(curvatures) * way
    found = build_limits(np, np.where).curvature(rise @ rise, way @ way, rise @ way, 0.0)
    assert 0.75 * expected <= found <= expected + 1e-12
    assert build_limits(np, np.where).curvature(rise @ rise, way @ way, rise @ way, 1.0) == pytest.approx(found - 1.0)


def test_no_way_has_no_curvature():
    assert build_limits(np, np.where).curvature(0.0, 0.0, 0.0, 0.0) == 0.0


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["PoissonOLMC", "PoissonULMC", "centred", "recycled", "RLMC underdamped"])
def test_a_long_step_in_parts_has_nearly_the_law_of_the_target(monkeypatch, name):
    # exp(-x^4) with a step that its flanks do not bear: whole, its variance is 11 to 64 % too large.
    kernel, _, K = automatic(name)
    step = {"PoissonOLMC": 0.35, "RLMC underdamped": 0.6}.get(name, 0.7)
    exact = gamma(0.75) / gamma(0.25)

    def second_moment():
        d = 20
        roomy = Coordinates(np.zeros(d), np.ones(d))
        rng = np.random.default_rng(1)
        means, refined = [], 0
        for chain in range(8):
            state = empty_state(0.3 * rng.normal(size=d), rng.normal(size=d) * (kernel.dynamics != OVERDAMPED))
            run = engine(kernel, d, quartic)
            gradient = run.evaluate(roomy, state)
            key = np.array([7, chain], dtype=np.uint64)
            out = advanced(run, TunedParameters(step, K, 1.0, roomy, 1), Ensemble(state, gradient, key), 4000)
            means.append((out.position[200:] ** 2).mean())
            refined += out.refined.sum()
        return np.mean(means) / exact - 1.0, np.std(means, ddof=1) / np.sqrt(8) / exact, refined / 32_000

    off, error, refined = second_moment()
    assert refined > 0.9
    assert abs(off) < 0.02 + 4.5 * error
    monkeypatch.setattr(contract, "steepest_curvature", lambda *_: np.inf)
    monkeypatch.setattr(contract, "guard_threshold", lambda *x: 4.0 * guard_threshold(*x))
    worse, _, _ = second_moment()
    assert worse > 0.1
