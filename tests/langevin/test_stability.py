"""The energy guard: how often it is wrong, what it stops, and whom it blames.

Frequencies are z-scores of binomial counts: a bound is broken beyond 4.5 standard errors (3.4e-6 each, one-sided).
What share of the failures is put down to the model or to the step is held against 95 and 5 per cent at fixed seeds.
"""

import numpy as np
import pytest
from covering import pairs
from numba import cfunc
from one_chain import advanced
from reference import engine, gaussian

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines import contract
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.langevin import stability
from pmm_mcmc.langevin.gaussian_law import step_maps
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.step_size import midpoint_count, safe_step

KEY = np.array([123, 456], dtype=np.uint64)
METHODS = {
    "PoissonOLMC": ("PoissonOLMC", {"dynamics": "overdamped"}),
    "PoissonULMC": ("PoissonULMC", {"dynamics": "underdamped"}),
    "option 1": ("PoissonULMC", {"dynamics": "underdamped", "option": 1}),
    "centred": ("PoissonULMC", {"dynamics": "underdamped", "grid": "centred"}),
    "recycled": ("PoissonULMC", {"dynamics": "underdamped", "scheme": "recycled"}),
    "OLMC": ("OLMC", {"dynamics": "overdamped"}),
    "ULMC": ("ULMC", {"dynamics": "underdamped"}),
    "RLMC overdamped": ("RLMC", {"dynamics": "overdamped"}),
    "RLMC underdamped": ("RLMC", {"dynamics": "underdamped"}),
}
every_method = pytest.mark.parametrize("name", METHODS)


def settings_of(name):
    method, options = METHODS[name]
    return MethodArguments.checked(method, **options)


def automatic(name):
    """Return kernel, step size and K on a unit Gaussian."""
    arguments = settings_of(name)
    step = safe_step(arguments, 1.0, 1.0, arguments.target_bias)
    return arguments.kernel, step, midpoint_count(arguments, step, 1.0, 1.0, arguments.target_bias)


def exact_threshold(kernel, step, K, d):
    """Return the threshold of exactly this step, not remembered, as the module's constants stand."""
    return stability._threshold.__wrapped__(kernel, step, 1.0, K, d)


# -- how often it is wrong ---------------------------------------------------------------------------------------------


@pytest.mark.statistical
@every_method
@pytest.mark.parametrize(("d", "level"), [(1, 1e-3), (10, 1e-3), (100, 1e-2)])
def test_false_alarms_are_as_rare_as_claimed(monkeypatch, name, d, level):
    kernel, step, K = automatic(name)
    monkeypatch.setattr(stability, "FALSE_ALARM", level)
    for constant, value in (("_ALLOWANCE", 0.0), ("_MARGIN", 1.0), ("_MARGIN_OF_RLMC", 1.0)):
        monkeypatch.setattr(stability, constant, value)
    K = min(K, 8)
    threshold = exact_threshold(kernel, step, K, d)
    maps = np.array(step_maps(kernel, step, 1.0, K))
    moves = np.random.default_rng(d).standard_normal((1_000_000, maps.shape[2]))
    moving = 1 if kernel.dynamics == OVERDAMPED else 2
    before = 0.5 * (moves[:, :moving] ** 2).sum(axis=1)
    n = len(moves) // d
    alarms = [
        ((0.5 * ((moves @ one[:moving].T) ** 2).sum(axis=1) - before).reshape(n, d).sum(axis=1) > threshold).sum()
        for one in maps
    ]
    assert (max(alarms) - n * level) / np.sqrt(n * level) < 4.5, max(alarms) / n
    # Chernoff's bound is not far from the truth, so the threshold is not far above what is needed.
    assert max(alarms) > n * level / 100


def roomy(d):
    return Coordinates(np.zeros(d), np.ones(d))


@every_method
@pytest.mark.parametrize("d", [1, 30, 3000])
def test_it_is_silent_in_a_run_on_a_gaussian(name, d):
    # All coordinates share a step's midpoint, and the midpoints before it: their energies move together.
    kernel, step, K = automatic(name)
    rng = np.random.default_rng(d)
    state = empty_state(rng.normal(size=d), rng.normal(size=d) * (kernel.dynamics != OVERDAMPED))
    run = engine(kernel, d, gaussian)
    gradient = run.evaluate(roomy(d), state)
    out = advanced(run, TunedParameters(step, K, 1.0, roomy(d), 1), Ensemble(state, gradient, KEY), 100, thin=30)
    assert out.unstable.sum() == 0 and out.model_failures.sum() == 0


# -- what it stops -----------------------------------------------------------------------------------------------------


@every_method
def test_the_threshold_grows_with_dimension_and_step(name):
    kernel, step, K = automatic(name)
    by_dimension = [guard_threshold(kernel, step, 1.0, K, d) for d in (1, 2, 5, 10, 30, 100, 300, 1000, 3000)]
    assert np.all(np.diff(by_dimension) > 0) and np.all(np.isfinite(by_dimension))
    by_step = [guard_threshold(kernel, s * step, 1.0, K, 10) for s in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 1.5)]
    assert np.all(np.diff(by_step) > 0)
    # Of a step of no length only the allowance is left; of a usual one, far less than the old 20 and more.
    assert 5.0 < guard_threshold(kernel, 1e-8, 1.0, K, 10) < 5.1


@every_method
def test_the_threshold_is_remembered_to_two_per_cent_upwards(name):
    kernel, step, K = automatic(name)
    for factor in (0.5, 0.503, 0.507, 1.0):
        found = guard_threshold(kernel, factor * step, 1.0, K, 20)
        exact = exact_threshold(kernel, factor * step, min(K, 8), 20)
        above = exact_threshold(kernel, 1.0201 * factor * step, min(K, 8), 20)
        assert exact <= found <= above


def test_there_is_none_where_nothing_can_run_away():
    assert guard_threshold(GHMC, 0.3, 1.0, 1, 10) == np.inf
    assert steepest_curvature(GHMC, 0.3, 1.0, 1) == np.inf
    assert guard_threshold(settings_of("PoissonULMC").kernel, 0.3, 1.0, 16, 0) == np.inf


@cfunc(SIGNATURE)
def quartic(x, gradient, table, n):
    lp = 0.0
    for i in range(n):
        lp -= x[i] ** 4
        gradient[i] = -4.0 * x[i] ** 3
    return lp


def run_on(target, name, step, *, d, rows, start=0.5, scale=1.0, tables=None):
    """Run a chain from a point on the diagonal; return its chunk."""
    kernel, _, K = automatic(name)
    run = engine(kernel, d, target, tables)
    rng = np.random.default_rng(1)
    coordinates = Coordinates(np.zeros(d), np.full(d, scale))
    state = empty_state(np.full(d, start / scale), rng.normal(size=d) * (kernel.dynamics != OVERDAMPED))
    gradient = run.evaluate(coordinates, state)
    return advanced(run, TunedParameters(step, K, 1.0, coordinates, 1), Ensemble(state, gradient, KEY), rows)


@every_method
def test_a_runaway_is_caught(monkeypatch, name):
    def run():
        out = run_on(quartic, name, 1.2, d=2, rows=1, start=5.0)
        return out.unstable[0], out.refined[0], out.lp[0], out.position[0]

    monkeypatch.setattr(contract, "steepest_curvature", lambda *_: np.inf)  # the energy is enough
    unstable, refined, lp, position = run()
    assert unstable + refined == 1 and lp > -1300.0
    if unstable:
        np.testing.assert_array_equal(position, 5.0)
    monkeypatch.setattr(contract, "guard_threshold", lambda *_: np.inf)
    unstable, refined, lp, _ = run()
    assert unstable == refined == 0 and lp < -1e5, "without the guard the step is taken"


# -- whom it blames ----------------------------------------------------------------------------------------------------


@cfunc(SIGNATURE)
def walled(x, gradient, table, n):
    # A unit Gaussian, not finite beyond table[0] tenths in the first coordinate: minus infinity, or NaN with table[1].
    lp = 0.0
    for i in range(n):
        lp -= 0.5 * x[i] * x[i]
        gradient[i] = -x[i]
    if x[0] > 0.1 * table[0]:
        return np.nan if table[1] else -np.inf
    return lp


@cfunc(SIGNATURE)
def bursting(x, gradient, table, n):
    # exp(x^2) grows so fast that steps of usual length end where it is not finite, far beyond any draw.
    lp = 0.0
    for i in range(n):
        lp -= np.exp(x[i] * x[i])
        gradient[i] = -2.0 * x[i] * np.exp(x[i] * x[i])
    return lp


def blamed(out):
    """Share of the failures that is put down to the model."""
    assert np.all((out.model_failures >= 0) & (out.model_failures <= out.unstable))
    return out.model_failures.sum() / out.unstable.sum()


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "d", "wall", "value"), pairs(METHODS, (1, 5), (10, 23), ("-inf", "NaN")))
def test_failures_at_a_wall_are_put_down_to_the_model(name, d, wall, value):
    table = np.array([wall, value == "NaN"], dtype=np.int64)
    rows = 20_000 if wall == 10 else 100_000
    out = run_on(walled, name, automatic(name)[1], d=d, rows=rows, start=0.0, tables=table)
    assert out.unstable.sum() > 40
    assert blamed(out) >= 0.95, blamed(out)


@pytest.mark.statistical
@every_method
@pytest.mark.parametrize(
    ("target", "step"), [(quartic, 5.0), (quartic, 20.0), (bursting, 5.0)], ids=["quartic", "quartic 20", "bursting"]
)
def test_failures_of_a_step_that_is_too_large_are_put_down_to_the_step(name, target, step):
    # Few, since steps are taken in parts where the density is steep.
    out = run_on(target, name, step, d=3, rows=30_000)
    assert out.unstable.sum() > 20
    assert blamed(out) <= 0.05, blamed(out)


@pytest.mark.statistical
@every_method
def test_failures_on_a_gaussian_that_is_too_stiff_are_put_down_to_the_step(name):
    out = run_on(gaussian, name, 10.0 * automatic(name)[1], d=3, rows=10_000, scale=10.0)
    assert out.unstable.sum() > 30
    assert blamed(out) == 0.0
