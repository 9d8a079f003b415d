"""Tools that use the samplers: comparisons, reports, targets with known answers, and one model for many data sets.

>>> import pmm_mcmc as pmm
>>> pmm.workbench.targets.get("banana").ndim
10

The samplers do not import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Comparison", "compare", "report"]

if TYPE_CHECKING:
    from pmm_mcmc.workbench import targets as targets
    from pmm_mcmc.workbench.comparison import Comparison, compare
    from pmm_mcmc.workbench.page import report

_NAMES = {
    "Comparison": "pmm_mcmc.workbench.comparison",
    "compare": "pmm_mcmc.workbench.comparison",
    "report": "pmm_mcmc.workbench.page",
}

if not TYPE_CHECKING:  # type checkers are to report a name that is not there

    def __getattr__(name: str) -> Any:
        if name == "targets":
            return importlib.import_module("pmm_mcmc.workbench.targets")
        if name in _NAMES:
            return getattr(importlib.import_module(_NAMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "targets"])
