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
import logging
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


class _ToStandardError(logging.StreamHandler):
    """Writes to what ``sys.stderr`` is at the time: above a bar that is being drawn, if there is one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


# As PyMC does with its own logger: scripts and notebooks that set up no logging see what a run says of itself.
if not logging.root.handlers:
    _log = logging.getLogger("pmm_mcmc")
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        _log.addHandler(_ToStandardError())

_NAMES = {
    **dict.fromkeys(("MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"), "pmm_mcmc.steps"),
    **dict.fromkeys(("bias", "verdict"), "pmm_mcmc.diagnostics.bias"),
    "bias_probe": "pmm_mcmc.diagnostics.probe",
    **dict.fromkeys(("Comparison", "compare"), "pmm_mcmc.comparison"),
    "expectation": "pmm_mcmc.diagnostics.expectation",
    "noncentring": "pmm_mcmc.diagnostics.noncentred",
    "summary": "pmm_mcmc.diagnostics.summary",
    "nested_r_hat": "pmm_mcmc.diagnostics.nested",
    "to_html": "pmm_mcmc.report",
    **dict.fromkeys(("Drawn", "StopSampling", "sample"), "pmm_mcmc.sampling"),
    "LogDensity": "pmm_mcmc.jax_density",
    "open": "pmm_mcmc.storage",
    "StoreError": "pmm_mcmc.storage",
}
# Names that would hide Python's own in their modules.
_OTHERWISE = {"open": "open_store"}

__all__ = [
    "MALA",
    "OLMC",
    "RLMC",
    "ULMC",
    "Comparison",
    "Drawn",
    "LogDensity",
    "PoissonOLMC",
    "PoissonULMC",
    "StopSampling",
    "StoreError",
    "__version__",
    "bias",
    "bias_probe",
    "compare",
    "expectation",
    "nested_r_hat",
    "noncentring",
    "open",
    "sample",
    "summary",
    "to_html",
    "verdict",
]

if TYPE_CHECKING:
    from pmm_mcmc import targets as targets
    from pmm_mcmc.comparison import Comparison, compare
    from pmm_mcmc.diagnostics.bias import bias, verdict
    from pmm_mcmc.diagnostics.expectation import expectation
    from pmm_mcmc.diagnostics.nested import nested_r_hat
    from pmm_mcmc.diagnostics.noncentred import noncentring
    from pmm_mcmc.diagnostics.probe import bias_probe
    from pmm_mcmc.diagnostics.summary import summary
    from pmm_mcmc.jax_density import LogDensity
    from pmm_mcmc.report import to_html
    from pmm_mcmc.sampling import Drawn, StopSampling, sample
    from pmm_mcmc.steps import MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC
    from pmm_mcmc.storage import StoreError
    from pmm_mcmc.storage import open_store as open


def __getattr__(name: str) -> Any:
    if name == "targets":
        return importlib.import_module("pmm_mcmc.targets")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), _OTHERWISE.get(name, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "targets"])
