"""Poisson midpoint Langevin samplers for PyMC that say how far they may be trusted.

>>> import pymc as pm, pmm_mcmc as pmm
>>> with pm.Model():
...     x = pm.Normal("x")
...     dt = pm.sample(step=pmm.PoissonULMC(K=16), chains=2, draws=100, progressbar=False)
>>> dt["posterior"]["x"].shape
(2, 100)

Names are loaded when they are used, so that parts which need no PyMC do not import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    **dict.fromkeys(("MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"), "pmm_mcmc.steps"),
    **dict.fromkeys(("bias", "verdict"), "pmm_mcmc.diagnostics.bias"),
    "bias_probe": "pmm_mcmc.diagnostics.probe",
    "expectation": "pmm_mcmc.diagnostics.expectation",
    "summary": "pmm_mcmc.diagnostics.summary",
}

__all__ = [
    "MALA",
    "OLMC",
    "RLMC",
    "ULMC",
    "PoissonOLMC",
    "PoissonULMC",
    "__version__",
    "bias",
    "bias_probe",
    "expectation",
    "summary",
    "verdict",
]

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.bias import bias, verdict
    from pmm_mcmc.diagnostics.expectation import expectation
    from pmm_mcmc.diagnostics.probe import bias_probe
    from pmm_mcmc.diagnostics.summary import summary
    from pmm_mcmc.steps import MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
