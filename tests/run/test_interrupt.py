"""Ctrl-C during compilation: one line, and ``KeyboardInterrupt`` without the frames of compilers."""

import signal
import traceback

import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run.plan import SamplingPlan


@pytest.fixture(autouse=True)
def default_handler():
    """A background process of a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed():
    signal.raise_signal(signal.SIGINT)


def swallowed():
    """Press Ctrl-C where the exception is lost, as in the callbacks of compiled code."""
    try:
        pressed()
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("press", [pressed, swallowed])
@pytest.mark.parametrize("sampler", [pmm.sample, pmm.temper])
def test_it_ends_the_call_with_one_line(press, sampler, monkeypatch, caplog):
    plan_of = SamplingPlan.of

    def interrupted(*arguments):
        press()
        return plan_of(*arguments)

    monkeypatch.setattr(SamplingPlan, "of", interrupted)
    with pm.Model() as model:
        pm.Normal("x")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised:
        sampler(10, model=model, progressbar=False)
    shown = "".join(traceback.format_exception(raised.value))
    assert "press()" not in shown and "plan_of" not in shown
    assert [record.message for record in caplog.records] == ["Stopped during compilation: there are no new draws"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_user_stays(monkeypatch):
    def note(number, frame):
        raise RuntimeError("of the user")

    monkeypatch.setattr(SamplingPlan, "of", lambda *arguments: pressed())
    before = signal.signal(signal.SIGINT, note)
    try:
        with pm.Model(), pytest.raises(RuntimeError, match="of the user"):
            pm.Normal("x")
            pmm.sample(10, progressbar=False)
        assert signal.getsignal(signal.SIGINT) is note
    finally:
        signal.signal(signal.SIGINT, before)
