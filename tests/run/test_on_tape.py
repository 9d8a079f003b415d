"""Default runs begin on a tape, and go on compiled from a transition that follows from their arguments."""

import logging
import signal

import numpy as np
import pymc as pm
import pytest
from sampling_runs import Stop, assert_same

import pmm_mcmc as pmm
from pmm_mcmc.engines import taped_engine
from pmm_mcmc.tape import table
from pmm_mcmc.tape.density import TapedDensity

pytestmark = pytest.mark.pymc
CHAINS = 4
RUN = {"draws": 40, "tune": 100, "chains": CHAINS, "random_seed": 3, "progressbar": False}
RUN |= {"compute_convergence_checks": False}
# A transition in the warm-up, in the equilibration, and among the draws of each run of schools().
SWITCHES = (40, 90, 185)


def schools(y=(28.0, 8, -3, 7, -1, 1, 18, 12)):
    with pm.Model() as model:
        data = pm.Data("data", np.array(y))
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, 12.0, observed=data)
    return model


@pytest.fixture
def switch_at(monkeypatch):
    """Let compiled code take over at a transition."""

    def at(transition):
        monkeypatch.setattr(taped_engine, "_SHARE", 1.0)
        monkeypatch.setattr(taped_engine, "_gradient", lambda tape: 1.0 / CHAINS)
        monkeypatch.setattr(taped_engine, "_compilation", lambda tape: float(transition))

    return at


def test_a_default_run_of_a_small_model_compiles_no_log_density(caplog, capsys, monkeypatch):
    def refuse(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(taped_engine.PyTensorDensity, "function", refuse)
    with caplog.at_level(logging.INFO, logger="pmm_mcmc"):
        tree = pmm.sample(model=schools(), **RUN | {"progressbar": True})
    assert tree["posterior"].attrs["backend"].startswith("tape, numba from transition ")
    assert "ompil" not in caplog.text
    assert "ompiling the log density" not in capsys.readouterr().out


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_run_goes_on_compiled_to_the_same_bytes_however_it_is_cut(switch, switch_at, tmp_path, caplog):
    switch_at(switch)
    model = schools()
    options = RUN | {"model": model}
    with caplog.at_level(logging.DEBUG, logger="pmm_mcmc"):
        one = pmm.sample(cores=1, **options)
        assert_same(pmm.sample(cores=4, **options), one)
    assert caplog.text.count("Numba compiles the log density for the draws that are left") == 1, "once a process"
    assert_same(pmm.sample(blocking=False, **options).wait(), one)
    assert_same(pmm.extend(pmm.sample(**options | {"draws": 7}), 33, model=model), one)
    for chunks in (1, 3, 6):
        path = tmp_path / f"{chunks}.zarr"
        pmm.sample(store=path, callback=Stop(chunks), **options)
        resumed = pmm.sample(store=path, resume=True, **options)
        for name in one["posterior"].data_vars:
            np.testing.assert_array_equal(resumed["posterior"][name], one["posterior"][name])


def test_compiled_code_takes_over_at_the_transition_and_not_before(switch_at):
    model = schools()
    tape = pmm.sample(backend="tape", model=model, **RUN)["posterior"]["theta"].values
    first = tape.shape[1] - (210 - 185)
    switch_at(185)
    after = pmm.sample(model=model, **RUN)["posterior"]["theta"].values
    np.testing.assert_array_equal(after[:, :first], tape[:, :first])
    np.testing.assert_allclose(after, tape, rtol=1e-6)
    assert not np.array_equal(after[:, first:], tape[:, first:])


@pytest.mark.parametrize("switch", [20, 80], ids=["block", "draws"])
def test_a_run_from_a_former_setting_goes_on_compiled(switch, switch_at):
    model = schools()
    former = pmm.sample(model=model, **RUN | {"tune": 400})
    options = RUN | {"model": model, "start": former, "random_seed": 4}
    tape = pmm.sample(backend="tape", **options)
    switch_at(switch)
    one = pmm.sample(cores=1, **options)
    assert_same(pmm.sample(cores=4, **options), one)
    assert one["posterior"].attrs["start"] == tape["posterior"].attrs["start"] == "fits"
    theta, of_tape = (tree["posterior"]["theta"].values for tree in (one, tape))
    np.testing.assert_allclose(theta, of_tape, rtol=1e-6)
    changed = (theta != of_tape).any(axis=(0, 2))
    assert changed[-1] and changed[0] == (switch == 20)


def test_a_run_of_as_many_draws_as_it_needs_goes_on_compiled(switch_at):
    options = RUN | {"model": schools(), "draws": "auto", "tune": 400}
    tape = pmm.sample(backend="tape", **options)
    switch_at(400)
    one = pmm.sample(cores=1, **options)
    assert_same(pmm.sample(cores=4, **options), one)
    theta, of_tape = (tree["posterior"]["theta"].values for tree in (one, tape))
    assert theta.shape == of_tape.shape
    np.testing.assert_allclose(theta, of_tape, rtol=1e-4)
    changed = (theta != of_tape).any(axis=(0, 2))
    assert changed[-1] and not changed[0]


@pytest.mark.parametrize("switch", SWITCHES)
def test_ctrl_c_while_it_compiles_keeps_the_draws(switch, switch_at, monkeypatch):
    switch_at(switch)
    model = schools()
    whole = pmm.sample(backend="tape", model=model, **RUN)

    def interrupted(engine):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("compiled on")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(taped_engine.TapedEngine, "compile", interrupted)
    tree = pmm.sample(model=model, **RUN)
    drawn = tree["posterior"].sizes["draw"]
    assert (drawn > 0) == (switch == SWITCHES[-1])
    np.testing.assert_array_equal(tree["posterior"]["mu"], whole["posterior"]["mu"][:, :drawn])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("switch", SWITCHES)
def test_ctrl_c_that_compilers_swallow_stops_the_run_once_they_end(switch, switch_at, monkeypatch):
    switch_at(switch)
    model = schools()
    whole = pmm.sample(backend="tape", model=model, **RUN)
    compile_all = taped_engine.TapedEngine.compile

    def swallowed(engine):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            compile_all(engine)

    monkeypatch.setattr(taped_engine.TapedEngine, "compile", swallowed)
    tree = pmm.sample(model=model, **RUN)
    drawn = tree["posterior"].sizes["draw"]
    assert (drawn > 0) == (switch == SWITCHES[-1])
    # Those of a chunk that compiled code has begun differ in the last bits.
    np.testing.assert_allclose(tree["posterior"]["mu"], whole["posterior"]["mu"][:, :drawn], rtol=1e-6)


def backend_of(model, caplog):
    """Return the backend of a short run, and its log."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="pmm_mcmc"):
        tree = pmm.sample(model=model, **RUN | {"draws": 2, "tune": 2})
    return tree["posterior"].attrs["backend"], caplog.text


def test_a_tape_that_is_wrong_or_fails_leaves_the_model_to_numba(caplog, monkeypatch):
    with pm.Model() as model:
        pm.Normal("x")
        data = pm.Data("data", np.ones(3))
        pm.Normal("y", 0.0, 1.0 + data.sum(), observed=1.0)
    assert backend_of(model, caplog)[0].startswith("tape")
    monkeypatch.setattr(TapedDensity, "_built", lambda self: [][0])
    with model:
        pm.set_data({"data": np.ones(4)})
    backend, log = backend_of(model, caplog)
    assert backend == "numba" and "(tape) runs it (IndexError" in log
    monkeypatch.undo()
    monkeypatch.setitem(table._SCALARS, "Sqr", lambda builder, dtype, x: x)
    with pm.Model() as model:
        pm.Normal("x")
    backend, log = backend_of(model, caplog)
    assert backend == "numba" and "(tape) runs it to the values of PyTensor" in log


def test_the_transition_follows_from_the_data_and_the_chains_alone():
    def switch(y, chains):
        tree = pmm.sample(model=schools(y), **RUN | {"draws": 2, "tune": 2, "chains": chains})
        return int(tree["posterior"].attrs["backend"].rpartition(" ")[2])

    one = switch(np.zeros(8), 4)
    assert switch(np.ones(8), 4) == one > 10_000
    assert switch(np.zeros(8), 8) == -(-one // 2)
    assert switch(np.zeros((400, 8)), 4) < one / 2
