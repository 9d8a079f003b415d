"""A remedy for arguments without a name beyond those that a function takes."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from pmm_mcmc.model.density import LogDensity
from pmm_mcmc.steps.base import LangevinStep

__all__ = ["others_by_name"]


def others_by_name[**Arguments, Result](function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have a function say which name an argument without one should have had."""
    parameters = inspect.signature(function).parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*values: Arguments.args, **others: Arguments.kwargs) -> Result:
        if len(values) > len(positional):
            value = values[len(positional)]
            name = _name_of(value)
            example = f"such as {name}" if name.partition("=")[0] in named else f"which are {', '.join(named)}"
            raise TypeError(
                f"pmm.{function.__name__}(..., {_shown(value)}): takes {' and '.join(positional)} alone without a "
                f"name; give the other arguments by name, {example}"
            )
        return function(*values, **others)

    return checked


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 30 and "\n" not in text and "<" not in text else f"<{type(value).__name__}>"


def _name_of(value: Any) -> str:
    """Return the argument that a value looks like, with it; nothing if there is none."""
    if isinstance(value, LogDensity) or type(value).__name__ == "Model":
        return "model=model"
    if isinstance(value, LangevinStep):
        return f"step=pmm.{type(value).__name__}(...)"
    if isinstance(value, str | os.PathLike):
        return f"store={os.fspath(value)!r}"
    return f"tune={value}" if isinstance(value, int) else ""
