"""``pmm.Sampler``: the interface of pymc#8358, and a warning for each argument that is not honoured."""

import importlib
import inspect
import sys
import types

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run import sampler as module

RUN = {"draws": 30, "tune": 200, "chains": 2, "random_seed": 1, "progressbar": False}
# The method of the abstract class in pymc#8358, as of autumn 2026.
THEIRS = (
    "model", "draws", "tune", "chains", "cores", "initvals", "random_seed", "progressbar", "quiet",
    "discard_tuned_samples", "keep_warning_stat", "var_names", "idata_kwargs", "compute_convergence_checks",
    "compile_kwargs",
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    with pm.Model() as built:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.array([0.5, 1.0]))
    return built


def test_the_method_has_the_arguments_of_pymc():
    parameters = inspect.signature(pmm.Sampler.sample_from_init).parameters
    assert tuple(parameters)[1:] == THEIRS
    assert {p.kind for p in list(parameters.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(p.default is inspect.Parameter.empty for p in parameters.values())


def test_it_is_a_subclass_of_pymc_s_where_there_is_one(monkeypatch):
    base = type("Sampler", (), {})
    package, inner = types.ModuleType("pymc.sampling.samplers"), types.ModuleType("pymc.sampling.samplers.base")
    inner.Sampler = base
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, inner.__name__, inner)
    try:
        assert issubclass(importlib.reload(module).Sampler, base)
    finally:
        monkeypatch.undo()
        importlib.reload(module)


def test_it_draws_what_pmm_sample_draws(model):
    step = pmm.PoissonULMC(K=4)
    ours = pmm.sample(step, model=model, log_likelihood=True, **RUN)
    theirs = pmm.Sampler(step).sample(model=model, idata_kwargs={"log_likelihood": True}, **RUN)
    np.testing.assert_array_equal(ours["posterior"]["mu"], theirs["posterior"]["mu"])
    np.testing.assert_array_equal(ours["log_likelihood"]["y"], theirs["log_likelihood"]["y"])
    with model:
        inside = pmm.Sampler(step).sample(discard_tuned_samples=False, **RUN)
    np.testing.assert_array_equal(ours["posterior"]["mu"], inside["posterior"]["mu"])
    assert "warmup_posterior" in inside.children


def test_defaults_are_those_of_pymc_and_quiet_says_nothing(model, caplog, capsys):
    dt = pmm.Sampler().sample(model=model, quiet=True)
    assert dt["posterior"]["mu"].shape == (4, 1000)
    assert not caplog.records and capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep_warning_stat": True}, "keep_warning_stat=True is not honoured"),
        ({"compile_kwargs": {"mode": "FAST_COMPILE"}}, "compile_kwargs={'mode': 'FAST_COMPILE'} is not honoured"),
        ({"idata_kwargs": {"dims": {}}}, "idata_kwargs={'dims': {}} is not honoured"),
        ({"idata_kwargs": {"log_likelihood": ["y"]}}, r"log_likelihood': \['y'\]} is not honoured"),
    ],
)
def test_what_is_not_honoured_is_warned_of(model, given, message):
    with pytest.warns(UserWarning, match=message):
        pmm.Sampler().sample(model=model, **RUN | given)


def test_cores_are_not_honoured_on_jax(model, monkeypatch):
    seen = {}
    monkeypatch.setattr(module, "sample", lambda *args, **given: seen.update(given))
    with pytest.warns(UserWarning, match="cores=2 is not honoured by pmm.Sampler: JAX chooses its threads"):
        pmm.Sampler(backend="jax").sample(model=model, cores=2)
    assert seen["cores"] is None and seen["backend"] == "jax"
    pmm.Sampler().sample(model=model, cores=2)
    assert seen["cores"] == 2


def test_what_is_no_argument_is_refused(model):
    with pytest.raises(TypeError, match=r"nuts_sampler is no argument of pmm.Sampler.sample, which takes model, draws"):
        pmm.Sampler().sample(model=model, nuts_sampler="nutpie")
    with pytest.raises(TypeError, match="No model on context stack"):
        pmm.Sampler().sample(**RUN)
    with pytest.raises(ValueError, match="backend='cuda': must be"):
        pmm.Sampler(backend="cuda").sample(model=model, **RUN)
