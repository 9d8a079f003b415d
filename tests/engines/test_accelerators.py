"""What the JAX engine does on accelerators, tried on a CPU: fewer bytes, other groups, programs for other platforms."""

import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from jax import export
from jax_chains import keys_of

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.engines.contract import Chunk, Ensemble, Parameters, TunedParameters
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.langevin.methods import GHMC
from pmm_mcmc.model.jax_density import JaxDensity
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request

pytestmark = pytest.mark.longest
D = 3


def density():
    return JaxDensity.of_function(lambda x: -0.5 * jnp.sum(x * x) - 0.1 * jnp.sum(x**4), D)


def accelerator(memory, kind="NVIDIA H100"):
    """Return a device that tells its memory and computes nothing."""
    return SimpleNamespace(platform="gpu", device_kind=kind, memory_stats=lambda: {"bytes_limit": memory})


@pytest.mark.parametrize("scale", [np.linspace(0.5, 2.0, D), np.tril(np.ones((D, D)))], ids=["diagonal", "matrix"])
def test_draws_are_those_of_a_cpu_and_little_more_than_them_is_fetched(scale, monkeypatch):
    chains, rows = 40, 21
    coordinates = Coordinates(np.arange(D, dtype=float), scale)
    chunks, fetched, wanted = [], 0, 0
    fetch = jax_engine._fetch

    def counted(transfers):
        nonlocal fetched, wanted
        fetched += sum(array.nbytes for _, array in transfers)
        wanted += sum(target.nbytes for target, _ in transfers)
        fetch(transfers)

    monkeypatch.setattr(jax_engine, "_fetch", counted)
    for accelerated in (False, True):
        engine = JaxEngine(GHMC, density(), chains)
        engine.accelerated = accelerated
        z = np.random.default_rng(1).normal(size=(chains, D))
        ensemble = Ensemble.start(engine, coordinates, z, np.random.default_rng(2))
        fetched = wanted = 0
        chunks.append(ensemble.advance(engine, TunedParameters(0.4, 1, 1.0, coordinates, 1), rows))
    for name, of_cpu, of_accelerator in zip(Chunk._fields, *chunks, strict=True):
        np.testing.assert_allclose(of_accelerator, of_cpu, rtol=1e-9, atol=1e-12, err_msg=name)
    assert wanted <= fetched <= 1.25 * wanted


def test_a_device_has_one_group_that_fits_its_memory():
    bytes_of_a_draw = 8 * (2 * D + 7)
    for chains, devices, memory, groups in (
        (16_384, 1, 2**36, 1), (16_384, 4, 2**36, 4), (300, 4, 2**36, 2), (16_384, 1, 16_384 * bytes_of_a_draw * 20, 4),
    ):  # fmt: skip
        engine = JaxEngine(GHMC, density(), chains, devices=[accelerator(memory)] * devices)
        assert engine.group == chains // groups
        assert engine.capacity * engine.group * bytes_of_a_draw <= memory / jax_engine._CALLS_IN_MEMORY


def test_rows_of_data_count_for_a_group():
    rows = np.ones((50_000, D))
    regression = JaxDensity.of_function(lambda x: -0.5 * jnp.sum((rows @ x) ** 2), D)
    memory = 2**33
    engine = JaxEngine(GHMC, regression, 16_384, devices=[accelerator(memory)])
    assert 256 < engine.group < 16_384
    assert 3 * 8 * len(rows) * engine.group <= memory / jax_engine._GROUPS_IN_MEMORY


def test_calls_are_graphs_on_nvidia_s_alone_and_can_be_switched_off(monkeypatch):
    options = jax_engine._compiler_options
    assert "WHILE" in options(accelerator(1))["xla_gpu_enable_command_buffer"]
    assert options(accelerator(1))["xla_gpu_autotune_level"] == 0  # or products would be those of a clock
    assert options(accelerator(1, "AMD Instinct MI300X")) == options(jax.devices("cpu")[0]) == {}
    monkeypatch.setenv("PMM_MCMC_CUDA_GRAPHS", "0")
    assert "xla_gpu_enable_command_buffer" not in options(accelerator(1))


def hierarchy():
    theta = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), shape=8)
    pm.Normal("y", theta, 10.0, observed=np.arange(8.0))


def known():
    pm.MvNormal("x", np.zeros(3), np.eye(3) + 0.1)


def process():
    kernel = pm.gp.cov.ExpQuad(1, pm.InverseGamma("scale", 5.0, 1.0))
    pm.gp.Marginal(cov_func=kernel).marginal_likelihood("y", X=np.linspace(0, 1, 9)[:, None], y=np.zeros(9), sigma=1.0)


def path():
    rho = pm.Uniform("rho", -1.0, 1.0)
    steps = pm.AR("x", rho=[rho], sigma=1.0, init_dist=pm.Normal.dist(0.0, 1.0), steps=9)
    pm.Normal("y", steps, 0.1, observed=np.zeros(10))


@pytest.mark.parametrize(
    "make, precision, step, calls",
    [
        (hierarchy, "float64", None, set()), (hierarchy, "float32", None, set()),
        (hierarchy, "mixed", pmm.PoissonULMC(K=16), set()), (process, "float64", None, {"cusolver_potrf_ffi"}),
        (path, "float32", pmm.PoissonOLMC(K=16), set()), (known, "float64", None, set()),
    ],
)  # fmt: skip
def test_programs_lower_for_every_platform(make, precision, step, calls):
    """CUDA, ROCm and TPU, without any of them; of a library, a factorisation is called that parameters change.

    Each kernel, precision, scheme and kind of loop is in one of them: 168 programs of all pairs lowered, too.
    """
    with pm.Model() as model:
        make()
    adjusted = precision == "float64"
    request = Request(
        model=model, chains=8, backend="jax", device="cpu", precision=precision, adjusted=adjusted, step=step
    )  # fmt: skip
    engine = SamplingPlan.of(request).engine
    for one in (engine, engine.adjusted())[: 1 + adjusted]:
        d = one.d
        state = np.zeros((one.group, 4 * d + 2), one.dtype)
        setting = (
            Parameters(*(one.dtype.type(1.0) for _ in Parameters._fields)),
            JaxCoordinates.of(Coordinates(np.zeros(d), np.ones(d)), one.dtype, False),
            one._density.shared(precision, one.structure.initial_noncentring()),
        )
        keys = np.ascontiguousarray(keys_of(one.group)).view(np.uint32).reshape(-1, 2, 2)
        arrays = state, np.zeros((one.group, one.width), one.dtype), keys
        with one._precisely():
            exported = export.export(one._chunk, platforms=["cuda"])(setting, arrays, (np.int32(0),) * 3)
            export.export(one._chunk, platforms=["rocm", "tpu"])(setting, arrays, (np.int32(0),) * 3)
        text = exported.mlir_module()
        assert set(re.findall(r"custom_call @([\w.$]+)", text)) == calls
        assert ("f64" in text) == (precision != "float32")


@pytest.mark.pymc
def test_what_a_gpu_is_asked_first_runs_on_a_cpu(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import accelerator

    call = ["eight_schools", "K=16, float32", "", 16]
    row = accelerator.first_row(*call)
    assert all(row[key] > 0.0 for key in accelerator.FIRST_KEYS)
    assert accelerator.line(call, row).split()[-4:] == [f"{row[key]:.1f}" for key in accelerator.FIRST_KEYS]
