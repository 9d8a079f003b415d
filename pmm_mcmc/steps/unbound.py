"""Steps made outside a model, which learn their variables from PyMC's asking, and the moment at which a step compiles.

What is relied on of ``pm.sample`` beside its documentation: that it is a function ``sample`` of
``pymc.sampling.mcmc`` with locals ``model``, ``progressbar`` and ``quiet``, and that it asks its steps for ``vars``,
then for ``stats_dtypes``, in the parent process.  ``tests/steps/test_unbound.py`` fails first if one of them moves.
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
    """Whether there is a model to make a step of."""
    return _model_of_context() is not None


def _model_of_context() -> pm.Model | None:
    try:
        return pm.modelcontext(None)
    except TypeError:
        return None


def _asked_by_pymc() -> dict[str, Any]:
    """Return the locals of the ``pm.sample`` that is running, if there is one."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "sample" and frame.f_globals.get("__name__") == "pymc.sampling.mcmc":
            return frame.f_locals
        frame = frame.f_back  # type: ignore[assignment]
    return {}


class Variables:
    """The variables of a step: one made outside a model binds itself to the model in which it is asked for them.

    It does so anew for each model, and where a model has got other variables since.
    """

    def __get__(self, step: Any, owner: Any = None) -> list[Any]:
        if step is None:
            return []
        if step.free:
            model = _asked_by_pymc().get("model") or _model_of_context()
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
    """What PyMC asks a step for in the parent process, before any chain starts: the moment to compile."""

    def __get__(self, step: Any, owner: Any = None) -> list[dict[str, Any]]:
        if step is None:
            return []
        names = ", ".join(step._model.values_to_rvs[var].name for var in step.vars)
        if step._compiled is None:
            call = _asked_by_pymc()
            show = bool(call.get("progressbar", False)) and not call.get("quiet", False)
            with Heartbeat(show) as heartbeat:
                heartbeat.say(f"{step.arguments.words}: [{names}], compiling")
                structure = step._engine.structure
            if show and structure is not None:
                _log.info(structure.words)
        return step.__dict__["stats_dtypes"]

    def __set__(self, step: Any, value: list[dict[str, Any]]) -> None:
        step.__dict__["stats_dtypes"] = value
