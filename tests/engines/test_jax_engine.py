"""The JAX engine: the numba engine's chains on its random numbers, and the same draws however they are computed.

Tolerances are for rounding; nothing here is left to chance.
"""

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_chains import (
    ROUGH,
    Calls,
    follow,
    gaussian_engine,
    keys_of,
    numba_chains,
    replay,
    rough_engine,
    rough_starts,
    unit,
)
from test_engine import COORDINATES, FEW, LEAVES, SCHEMES, D
from warm_ups import warm_up

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Ensemble, TunedParameters, empty_state
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.model.user_density import LogDensity

pytestmark = pytest.mark.longest

STEPS, CHAINS = 60, 5
ON_JAX = [name for name in SCHEMES if "option 1" not in name]


# -- the chains of the numba engine ------------------------------------------------------------------------------------


def compare_with_numba(name, mode, step, tolerance=0.0):
    kernel, K = SCHEMES[name]
    keys = keys_of(CHAINS)
    state, gradient, chunks = numba_chains(name, mode, step, keys, STEPS, tolerance)
    draws = replay(kernel, K, keys, 0, STEPS)
    for i, chunk in enumerate([] if kernel.adjusted else chunks):
        # After a failure the numba engine goes on in its stream, from where the failure was found.
        draws.velocities[:, i] = np.where(chunk.unstable[:, None] > 0, chunk.state[:, D : 2 * D], np.nan)
    chains, counts = follow(name, mode, step, state, gradient, draws, tolerance=tolerance)
    # A steep wall multiplies what rounding leaves, in each part of a step.
    close = {"rtol": 1e-5, "atol": 1e-5} if LEAVES[mode] == "steep" else {"rtol": 1e-11, "atol": 1e-10}
    for i, chunk in enumerate(chunks):
        expected = [*np.split(chunk.state, [D, 2 * D, 3 * D, 4 * D, 4 * D + 1], axis=1)]
        expected.insert(4, chunk.evaluation)
        for found, value in zip(chains, expected, strict=True):
            np.testing.assert_allclose(found[:, i], value, **close)
        np.testing.assert_allclose(counts.accept[:, i], chunk.accept, rtol=1e-9, atol=1e-12)
        for field in ("n_grad", "unstable", "refined", "model_failures"):
            np.testing.assert_array_equal(getattr(counts, field)[:, i], getattr(chunk, field))
    return np.array([chunk.unstable + chunk.refined for chunk in chunks])


@pytest.mark.parametrize("name", ON_JAX)
def test_chains_are_those_of_the_numba_engine(name):
    compare_with_numba(name, 0, 0.15)


@pytest.mark.parametrize("mode", range(1, len(LEAVES)), ids=LEAVES[1:])
@pytest.mark.parametrize("name", [name for name in FEW if name in ON_JAX])
def test_failures_are_those_of_the_numba_engine(name, mode):
    failed = compare_with_numba(name, mode, 0.3)
    assert 0 < failed.sum() < 0.9 * failed.size
    assert (failed.any(axis=0) & ~failed.all(axis=0)).any(), "chains fail one by one"


# Most steps find the wall too steep, whatever the energy.
@pytest.mark.parametrize("name", ["recycled"])
def test_far_out_they_may_rise_as_far(name):
    strict, loose = (compare_with_numba(name, LEAVES.index("steep"), 0.6, tolerance) for tolerance in (0.0, 0.9))
    assert loose.sum() < strict.sum()


def test_a_step_of_one_cell_takes_one_gradient():
    kernel, K = SCHEMES["OLMC"]
    draws = replay(kernel, K, keys_of(CHAINS), 0, STEPS)
    state, gradient, _ = numba_chains("OLMC", 0, 0.1, keys_of(CHAINS), 1)
    calls = Calls()
    _, counts = follow("OLMC", 0, 0.1, state, gradient, draws, calls=calls)
    assert calls == [CHAINS] * STEPS
    np.testing.assert_array_equal(counts.n_grad, 1)


# -- the same draws, however they are computed -------------------------------------------------------------------------


def tuned(name, step=0.3, **kwargs):
    values = {"step_size": step, "K": SCHEMES[name][1], "friction": 1.4, "coordinates": COORDINATES, **kwargs}
    return TunedParameters(**values, steps_per_draw=1)


def run_in_chunks(run, name, rows, chains=33, total=200):
    """Return all draws, the last state and the last gradient, with failures beyond the wall."""
    ROUGH.mode[...] = 0
    state, gradient = rough_starts(run, chains, mode=1)
    ROUGH.mode[...] = 1
    chunks, keys = [], keys_of(chains)
    for first in range(0, total, rows):
        n = min(rows, total - first)
        state, gradient = state.copy(), gradient.copy()
        chunks.append(run.advance(tuned(name), Ensemble(state, gradient, keys, first), n))
    ROUGH.mode[...] = 0
    return Chunk(*(np.concatenate(field, axis=1) for field in zip(*chunks, strict=True))), state, gradient


def as_bytes(chunk, *more):
    return [np.ascontiguousarray(a).tobytes() for a in (*chunk[:7], *more)]


SPREAD = "underdamped, option 2, left, K=7"


@pytest.mark.parametrize("name", [SPREAD, "recycled"])
def test_draws_do_not_depend_on_the_chunks(name):
    run = rough_engine(name, 33)
    assert run.group == 4
    whole = run_in_chunks(run, name, 200)
    assert 0.02 < whole[0].unstable.mean() < 0.9
    for rows in (1, 7, 64):
        assert as_bytes(*run_in_chunks(run, name, rows)) == as_bytes(*whole)
    state, gradient = rough_starts(run, 33, mode=1)
    ROUGH.mode[...] = 1
    thinned = run.advance(tuned(name), Ensemble(state, gradient, keys_of(33)), 100, thin=2)
    ROUGH.mode[...] = 0
    assert [state.tobytes(), gradient.tobytes()] == as_bytes(*whole)[-2:]
    for field in ("position", "evaluation", "lp"):
        np.testing.assert_array_equal(getattr(thinned, field), getattr(whole[0], field)[:, 1::2])
    for field in ("n_grad", "unstable", "refined", "model_failures"):
        np.testing.assert_array_equal(getattr(thinned, field), getattr(whole[0], field).reshape(33, 100, 2).sum(axis=2))
    np.testing.assert_allclose(thinned.accept, whole[0].accept.reshape(33, 100, 2).mean(axis=2), rtol=1e-15)
    assert run.traces == 2


DATA = np.arange(5.0)
ELSEWHERE = """
import json, sys
sys.path[:0] = {tests!r}
import test_jax_engine as t
from jax_chains import rough_engine
run = rough_engine(t.SPREAD, 33, devices=8)
print(json.dumps([len(run.devices), t.digest(t.run_in_chunks(run, t.SPREAD, 64))]))
"""


def digest(found):
    return hashlib.sha256(b"".join(as_bytes(*found))).hexdigest()


@pytest.fixture
def elsewhere(run_script, monkeypatch):
    """Return what a process with eight devices finds."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    here = os.path.dirname(__file__)
    found, error = run_script(
        ELSEWHERE.format(tests=[here, os.path.join(here, "../support"), os.path.join(here, "../../benchmarks/common")])
    )
    assert found is not None, error
    return found


@pytest.mark.process
def test_eight_devices_in_another_process_find_the_same(elsewhere):
    devices, found = elsewhere
    assert devices == 8
    # The last group has one chain and three copies to fill it up: on one device of itself, on eight of another one.
    run = rough_engine(SPREAD, 33)
    assert digest(run_in_chunks(run, SPREAD, 64)) == found


MODELS = """
import hashlib, json, sys
import numpy as np
import pymc as pm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.engines.contract import Ensemble, TunedParameters
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request

def hierarchy(rng):
    theta = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), shape=8)
    pm.Normal("y", theta, 10.0, observed=10 * rng.normal(size=8))

def regression(rng):
    x = rng.normal(size=(70, 5))
    pm.Bernoulli("y", logit_p=x @ pm.Normal("b", 0.0, 1.0, shape=5), observed=rng.integers(0, 2, 70))

def process(rng):
    covariance = pm.gp.cov.ExpQuad(1, pm.InverseGamma("scale", 5.0, 1.0))
    noise = pm.HalfNormal("noise", 1.0)
    x = np.linspace(0, 1, 9)[:, None]
    pm.gp.Marginal(cov_func=covariance).marginal_likelihood("y", x, rng.normal(size=9), noise)

jax_engine._GROUP_CPU = 64
digests = []
for make in (hierarchy, regression, process):
    with pm.Model() as model:
        make(np.random.default_rng(1))
    engine = SamplingPlan.of(Request(model=model, chains=128, backend="jax")).adjusted_engine
    noncentring = None if engine.structure.is_identity else engine.structure.initial_noncentring()
    coordinates = Coordinates(np.zeros(engine.d), np.full(engine.d, 0.5), noncentring)
    z = 0.3 * np.random.default_rng(2).normal(size=(128, engine.d))
    ensemble = Ensemble.start(engine, coordinates, z, np.random.default_rng(3))
    chunk = ensemble.advance(engine, TunedParameters(0.4, 1, 1.0, coordinates, 1), 6, thin=4)
    digests.append(hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in chunk)).hexdigest())
    assert 0.2 < chunk.accept.mean() and engine.group == 64
print(json.dumps([len(engine.devices), digests]))
"""


@pytest.mark.process
@pytest.mark.pymc
def test_models_of_pymc_have_the_same_draws_on_eight_devices_as_on_one(run_script, monkeypatch):
    """Of groups of 64: XLA divides the loops of others by the devices, and rounds otherwise at their ends."""
    one, error = run_script(MODELS)
    assert one is not None, error
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    eight, error = run_script(MODELS)
    assert (one[0], eight) == (1, [8, one[1]]), error


# A run in a process of its own: its draws, what its last line says of programs, and who may write to their folder.
RUN = """
import hashlib, json, logging, os, sys
import jax.numpy as jnp
import pytensor
import pmm_mcmc as pmm
lines = []
logging.getLogger("pmm_mcmc").addHandler(handler := logging.Handler())
handler.emit = lambda record: lines.append(record.getMessage())
density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)
dt = pmm.sample(20, model=density, chains=8, random_seed=1, compute_convergence_checks=False)
draws = hashlib.sha256(dt["posterior"]["x"].values.tobytes()).hexdigest()
folder = pytensor.config.compiledir / "jax"
(line,) = [line for line in lines if line.startswith("Sampling 8 chains took")]
mode = oct(os.stat(folder).st_mode & 0o777) if folder.exists() else None
print(json.dumps([draws, line.partition("; ")[2].replace(str(folder), "FOLDER"), mode]))
"""


@pytest.mark.process
def test_a_second_process_finds_the_programs_of_the_first(run_script, monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_ENABLE_COMPILATION_CACHE")
    flags = f"base_compiledir={tmp_path / 'compiled'}"
    (first, *told), (second, *told_again) = (run_script(RUN, flags)[0] for _ in range(2))
    assert first == second
    assert told == ["0 programs were compiled before, in FOLDER", told_again[1]]
    assert told_again[0] == "2 programs were compiled before, in FOLDER"
    assert told[1] in ("0o700", "0o755")

    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(elsewhere))
    third, words, _ = run_script(RUN, flags)[0]
    assert (third, words) == (first, f"0 programs were compiled before, in {elsewhere}")
    assert list(elsewhere.iterdir())
    assert gaussian_engine(SCHEMES["OLMC"][0], D, 3).loaded_programs() == "", "switched off in this process"


def test_one_compiled_function_serves_every_setting():
    kernel = MethodArguments.checked("PoissonULMC", dynamics="underdamped").kernel
    d, chains = 40, 512
    run = gaussian_engine(kernel, d, chains)
    rng = np.random.default_rng(5)
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped")
    warmed = warm_up(run, arguments, rng.normal(size=(64, d)), length=100, rng=rng)
    root = np.linalg.qr(rng.normal(size=(d, d)))[0]
    scales = [
        unit(d),
        Coordinates(np.full(d, 0.1), np.linspace(0.9, 1.1, d)),
        Coordinates.low_rank(np.zeros(d), np.ones(d), np.array([0.8, 1.2, 1.1]), root[:, :3]),
        Coordinates.low_rank(np.zeros(d), np.ones(d), np.full(13, 1.1), root[:, :13]),
        Coordinates(np.zeros(d), root),
    ]
    ensemble, old = warmed.ensemble, warmed.tuned.coordinates
    for i, new in enumerate(scales):
        ensemble.change_coordinates(run, old, new)
        old = new
        setting = TunedParameters(0.1 * (i + 1), 2 ** (2 * i), 1.0 + i, new, 1)
        chunk = ensemble.advance(run, setting, (1, 70, 3, 2, 2)[i], thin=i + 1, tolerance=0.1 * i)
        # The log density found in these coordinates is that of the draw.
        np.testing.assert_allclose(chunk.lp, -0.5 * np.sum(chunk.position**2, axis=2), rtol=1e-12)
        np.testing.assert_allclose(chunk.evaluation, -chunk.position, rtol=0.0, atol=1e-12)
        assert chunk.unstable.sum() == 0
    assert run.traces == 3, "one for a look at a group, one at a few positions, one for a chunk"


def test_gradients_at_a_few_positions_are_those_of_a_group():
    density = LogDensity.from_jax(lambda x: -0.5 * jnp.sum((x - DATA[:D]) ** 2) - jax.nn.logsumexp(x), D)
    run = JaxEngine(SCHEMES["OLMC"][0], density, 600)
    assert (run.group, run.few) == (200, 8)
    shapes, evaluate = [], run._evaluate
    run._evaluate = lambda *given: shapes.append(given[2].shape) or evaluate(*given)
    at = np.random.default_rng(1).normal(size=(9, D))
    whole = run.gradient_at(at)
    np.testing.assert_allclose(run.gradient_at(at[:8]), whole[:8], rtol=1e-13)
    np.testing.assert_allclose(run.gradient_at(at[8]), whole[8], rtol=1e-13)
    assert shapes == [(200, D), (8, D), (8, D)]


# -- precision ---------------------------------------------------------------------------------------------------------


def test_precision_is_the_engine_s_and_not_the_user_s():
    seen, chunks = [], {}

    def fn(x):
        seen.append(x.dtype)
        return -0.5 * jnp.sum((x - DATA[:D]) ** 2) - jax.nn.logsumexp(x)

    density = LogDensity.from_jax(fn, D)
    for precision, dtype in (("float64", np.float64), ("mixed", np.float32), ("float32", np.float32)):
        run = JaxEngine(SCHEMES["OLMC"][0], density, 3, precision)
        seen.clear()
        for x64 in (False, True):
            with jax.enable_x64(x64):
                state = empty_state(np.linspace(-1.0, 1.0, 3 * D).reshape(3, D), np.zeros((3, D)))
                gradient = run.evaluate(COORDINATES, state)
                chunks[precision, x64] = run.advance(tuned("OLMC", 0.1), Ensemble(state, gradient, keys_of(3)), 20)
                assert (jnp.zeros(1).dtype == np.float64) == x64
        assert run.traces == 2
        assert set(seen) == {np.dtype(dtype)}
        assert as_bytes(chunks[precision, False]) == as_bytes(chunks[precision, True])
    double, mixed, single = (chunks[precision, False] for precision in ("float64", "mixed", "float32"))
    assert {a.dtype for a in single[:4]} == {np.dtype(float)}
    assert np.all(single.position == single.position.astype(np.float32))
    assert np.mean(mixed.position == mixed.position.astype(np.float32)) < 0.01
    # The same random numbers, gradients in single precision; the log density as exact as these.
    assert 0.0 < np.abs(mixed.position - double.position).max() < 1e-5
    assert 0.0 < np.abs(mixed.lp - double.lp).max() < 1e-4


def test_single_precision_is_close_to_double():
    name, K = "underdamped, option 2, left, K=7", 7
    keys = keys_of(CHAINS)
    state, gradient, _ = numba_chains(name, 0, 0.15, keys, 1)
    draws = replay(SCHEMES[name][0], K, keys, 0, 10)
    double, _ = follow(name, 0, 0.15, state, gradient, draws)
    single, _ = follow(name, 0, 0.15, state, gradient, draws, dtype=np.float32)
    for field in ("u", "v", "b", "evaluation", "lp"):
        a, b = getattr(single, field), getattr(double, field)
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0.0, atol=1e-4)


def test_no_positions_are_no_calls():
    run = gaussian_engine(SCHEMES["OLMC"][0], D, 3)
    assert run.gradient_at(np.empty((0, D))).shape == (0, D)


def test_too_many_transitions_are_refused():
    run = rough_engine(SPREAD, 33)
    state, gradient = rough_starts(run, 3)
    run.advance(tuned(SPREAD), Ensemble(state, gradient, keys_of(3), 2**31 - 21), 5, thin=4)
    with pytest.raises(ValueError, match=r"2147483648 transitions of a chain: at most 2147483647"):
        run.advance(tuned(SPREAD), Ensemble(state, gradient, keys_of(3), 2**31 - 20), 5, thin=4)
