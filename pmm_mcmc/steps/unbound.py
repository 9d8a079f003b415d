"""Descriptors that bind a step created outside a model when PyMC reads its variables, and compile it in time.

They rely on undocumented properties of ``pm.sample``: it is the function ``sample`` of ``pymc.sampling.mcmc``, has the
locals ``model``, ``progressbar`` and ``quiet``, and in the parent process reads the attributes ``vars`` and then
``stats_dtypes`` of its steps.  ``tests/steps/test_unbound.py`` fails first if one of these moves.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import pymc as pm

from pmm_mcmc.model.heartbeat import Heartbeat

__all__ = ["StatsDtypes", "Variables", "within_a_model"]

_log = logging.getLogger("pmm_mcmc")


def within_a_model() -> bool:
    """Return whether there is a model in context."""
    return _model_of_context() is not None


def _model_of_context() -> pm.Model | None:
    try:
        return pm.modelcontext(None)
    except TypeError:
        return None


def _pymc_call() -> dict[str, Any]:
    """Return the locals of the running ``pm.sample``, or an empty dict."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "sample" and frame.f_globals.get("__name__") == "pymc.sampling.mcmc":
            return frame.f_locals
        frame = frame.f_back  # type: ignore[assignment]
    return {}


class Variables:
    """The attribute ``vars`` of a step; when it is read, a step created outside a model binds itself to the model.

    It binds itself again for another model, and after variables were added to its model.
    """

    def __get__(self, step: Any, owner: Any = None) -> list[Any]:
        if step is None:
            return []
        if step.free:
            model = _pymc_call().get("model") or _model_of_context()
            if model is not None and (step._model is not model or step._value_vars != list(model.value_vars)):
                step._bind(model, None)
            if step._model is None:
                raise ValueError(
                    "this step was made outside a model and knows no variables yet: sample within `with model:`, make "
                    "the step there, or pass model="
                )
        return step.__dict__["vars"]

    def __set__(self, step: Any, value: list[Any]) -> None:
        step.__dict__["vars"] = value


class StatsDtypes:
    """The attribute ``stats_dtypes`` of a step; when it is read, the step compiles.

    Why here: PyMC reads it in the parent process before any chain starts.  Without it each worker process would compile
    for itself, and nothing would show that the first draw waits for that.
    """

    def __get__(self, step: Any, owner: Any = None) -> list[dict[str, Any]]:
        if step is None:
            return []
        names = ", ".join(step._model.values_to_rvs[var].name for var in step.vars)
        if step._compiled is None:
            call = _pymc_call()
            show = bool(call.get("progressbar", False)) and not call.get("quiet", False)
            with Heartbeat(show) as heartbeat:
                heartbeat.say(f"{step.arguments.words}: [{names}], compiling")
                structure = step._engine.structure
            if show and structure is not None:
                _log.info(structure.words)
        return step.__dict__["stats_dtypes"]

    def __set__(self, step: Any, value: list[dict[str, Any]]) -> None:
        step.__dict__["stats_dtypes"] = value
