"""The trial that chooses a device, with made-up accelerators and made-up seconds."""

import logging
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run import devices
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.storage.recovery import stored_identity

CPU = jax.local_devices(backend="cpu")


def density():
    return pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3)


@pytest.fixture
def accelerator(monkeypatch):
    """Make JAX's default device a GPU that takes some seconds, beside a CPU that takes others: ``accelerator(2, 3)``.

    It computes on the CPU.
    """
    trials = []

    def make(gpu, cpu):
        seconds = {"gpu": gpu, "cpu": cpu}
        fake = SimpleNamespace(platform="gpu")
        monkeypatch.setattr(jax, "local_devices", lambda backend=None: CPU if backend == "cpu" else [fake])
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

        def trial(density, precision, n, device):
            trials.append((precision, n, device.platform))
            return device

        monkeypatch.setattr(devices, "_trial", trial)
        monkeypatch.setattr(devices, "_seconds", lambda device: seconds[device.platform])
        return trials

    return make


def test_where_there_is_no_accelerator_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(devices, "_trial", None)
    assert devices.faster_device(density(), "float64", 10) == "auto"


def test_a_density_that_is_non_centred_is_tried_too():
    """More is said of it than a gradient: the trial of a hierarchical model failed on a machine with an accelerator."""
    sinks = slice(1, 3), lambda x: 0.0, lambda x: jnp.exp(x[0])
    hierarchy = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3, children={"sinks": sinks}).noncentred({})
    assert devices._seconds(devices._trial(hierarchy, "float64", 2, CPU[0])) > 0.0


@pytest.mark.parametrize(("gpu", "cpu", "chosen"), [(1.0, 3.0, "auto"), (3.0, 1.0, "cpu"), (1.0, 0.9, "auto")])
def test_the_cpu_is_chosen_where_it_is_clearly_faster(accelerator, caplog, gpu, cpu, chosen):
    trials = accelerator(16e-3 * gpu, 16e-3 * cpu)
    one = density()
    with caplog.at_level(logging.INFO, "pmm_mcmc"):
        assert [devices.faster_device(one, "mixed", 10_000) for _ in range(2)] == [chosen] * 2
    assert trials == [("mixed", 4096, "gpu"), ("mixed", 4096, "cpu")], "it is tried once"
    (message,) = caplog.messages
    name = "cpu" if chosen == "cpu" else "gpu"
    times = f"{gpu:.2g} ms on the gpu and {cpu:.2g} ms on the CPU"
    assert message.startswith(f"device: {name}, since gradients of 4096 chains take {times}")


def test_several_processes_do_not_try(accelerator, monkeypatch):
    trials = accelerator(3.0, 1.0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert devices.faster_device(density(), "float64", 10) == "auto" and not trials


def test_a_trial_takes_gradients_on_the_device_asked_for(monkeypatch):
    calls = []
    one = density()
    real = one.batch

    def batch(x, shared, precision):
        calls.append((x.shape, x.dtype.name))
        return real(x, shared, precision)

    monkeypatch.setattr(one, "batch", batch)
    for precision, dtype in (("float64", "float64"), ("float32", "float32")):
        call = devices._trial(one, precision, 5, CPU[0])
        out = call()
        assert out.shape == (5, 3) and out.devices() == {CPU[0]} and calls[-1] == ((5, 3), dtype)
        traced = len(calls)
        assert devices._seconds(call) > 0 and len(calls) == traced, "what is timed is compiled"


@pytest.mark.pymc
def test_a_model_goes_to_numba_where_the_cpu_wins(accelerator):
    accelerator(3.0, 1.0)
    with pm.Model() as model:
        pm.Normal("x", shape=2)

    def chosen(**options):
        plan = SamplingPlan.of(Request(model=model, chains=8, **options))
        return plan.identity["backend"], plan.identity["device"]

    assert chosen() == ("numba", "cpu")
    assert chosen(backend="jax") == chosen(precision="mixed", adjusted=False) == ("jax", "cpu")


def test_a_run_goes_on_where_it_began_without_another_trial(accelerator, tmp_path, monkeypatch):
    options = {"tune": 60, "chains": 8, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    with monkeypatch.context() as patch:
        patch.setattr(devices, "faster_device", lambda *_: "cpu")
        pmm.sample(model=density(), draws=10, store=tmp_path / "run", **options)
    assert stored_identity(tmp_path / "run")["device"] == "cpu"
    trials = accelerator(1.0, 3.0)
    tree = pmm.sample(model=density(), draws=20, store=tmp_path / "run", resume=True, **options)
    assert tree["posterior"].sizes["draw"] == 20 and not trials
