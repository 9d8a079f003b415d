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

from pmm_mcmc._version import __version__


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
    **dict.fromkeys(("GHMC", "MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"), "pmm_mcmc.steps.methods"),
    "Jax": "pmm_mcmc.run.request",
    "LogDensity": "pmm_mcmc.model.user_density",
    "StopSampling": "pmm_mcmc.run.driver",
    "StoreError": "pmm_mcmc.run.storage",
    "expectation": "pmm_mcmc.diagnostics.summary",
    "extend": "pmm_mcmc.run.sample",
    "noncentring": "pmm_mcmc.diagnostics.summary",
    "open": "pmm_mcmc.run.storage",
    "refit": "pmm_mcmc.workbench.refit",
    "relabel": "pmm_mcmc.diagnostics.labels",
    "sample": "pmm_mcmc.run.sample",
    "sbc": "pmm_mcmc.workbench.sbc",
    "summary": "pmm_mcmc.diagnostics.summary",
    "temper": "pmm_mcmc.tempering.temper",
    "verdict": "pmm_mcmc.run.findings",
}
# Names that would hide Python's own in their modules.
# Names of the field for what has another one here.
_SYNONYMS = {
    "LMC": "OLMC, overdamped, or pmm.ULMC, with velocity",
    "ULA": "OLMC",
    "Langevin": "OLMC, overdamped, or pmm.ULMC, with velocity",
    "RMM": "RLMC",
    "PMM": "PoissonULMC, or pmm.PoissonOLMC, overdamped",
    "PoissonLMC": "PoissonOLMC, overdamped, or pmm.PoissonULMC, with velocity",
    "HMC": "GHMC, its generalised form",
}
_OTHERWISE = {"open": "open_store"}

__all__ = [
    "GHMC", "MALA", "OLMC", "RLMC", "ULMC", "Jax", "LogDensity", "PoissonOLMC", "PoissonULMC", "StopSampling",
    "StoreError", "__version__", "expectation", "extend", "noncentring", "open", "refit", "relabel", "sample",
    "sbc", "summary", "temper", "verdict",
]  # fmt: skip

if TYPE_CHECKING:
    from pmm_mcmc import workbench as workbench
    from pmm_mcmc.diagnostics.labels import relabel
    from pmm_mcmc.diagnostics.summary import expectation, noncentring, summary
    from pmm_mcmc.model.user_density import LogDensity
    from pmm_mcmc.run.driver import StopSampling
    from pmm_mcmc.run.findings import verdict
    from pmm_mcmc.run.request import Jax
    from pmm_mcmc.run.sample import extend, sample
    from pmm_mcmc.run.storage import StoreError
    from pmm_mcmc.run.storage import open_store as open
    from pmm_mcmc.steps.methods import GHMC, MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC
    from pmm_mcmc.tempering.temper import temper
    from pmm_mcmc.workbench.refit import refit
    from pmm_mcmc.workbench.sbc import sbc

if not TYPE_CHECKING:  # type checkers are to report a name that is not there

    def __getattr__(name: str) -> Any:
        if name == "workbench":
            return importlib.import_module("pmm_mcmc.workbench")
        if name in _NAMES:
            return getattr(importlib.import_module(_NAMES[name]), _OTHERWISE.get(name, name))
        meant = f"; {name} is pmm.{_SYNONYMS[name]}" if name in _SYNONYMS else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")


def __dir__() -> list[str]:
    return sorted([*__all__, "workbench"])
