"""Steps made outside a model, which know no variables, and the moment at which a step compiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymc as pm

__all__ = ["NoVariables", "StatsDtypes", "within_a_model"]


class NoVariables(list[Any]):
    """The variables of a step that was made outside a model: asking for them is the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return NoVariables, ()

    def __iter__(self) -> Iterator[Any]:
        raise ValueError(
            "this step was made outside a model and knows no variables: for pm.sample make it inside `with model:` or "
            "pass model=; pmm.sample takes it as it is"
        )


def within_a_model() -> bool:
    """Whether there is a model to make a step of."""
    try:
        pm.modelcontext(None)
    except TypeError:
        return False
    return True


class StatsDtypes:
    """What PyMC asks a step for in the parent process, before any chain starts: the moment to compile."""

    def __get__(self, step: Any, owner: Any = None) -> list[dict[str, Any]]:
        if step is None:
            return []
        if step._model is not None:
            _ = step._engine
        return step.__dict__["stats_dtypes"]

    def __set__(self, step: Any, value: list[dict[str, Any]]) -> None:
        step.__dict__["stats_dtypes"] = value
