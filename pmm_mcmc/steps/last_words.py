"""The verdict at the end of PyMC's ``pm.sample``.

This relies on ``pymc.sampling.mcmc`` calling its global ``run_convergence_checks(idata, model)`` once all chains are
finished.  ``tests/steps/test_last_words.py`` fails first if that moves.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

from pymc.stats.convergence import SamplerWarning, WarningType, warn_treedepth

from pmm_mcmc.diagnostics.verdict import last_words

__all__ = ["end_runs_with_the_verdict"]

_log = logging.getLogger("pmm_mcmc")


def end_runs_with_the_verdict() -> None:
    """Let ``pm.sample`` end with the verdict, in place of PyMC's own checks, where a step of this package sampled.

    PyMC has no hook for step methods once all chains are finished.  It then calls one global function of one of its
    modules, and logs and stores the warnings that it returns; this replaces that function.  Runs without a step of this
    package get PyMC's own checks.
    """
    module: Any = importlib.import_module("pymc.sampling.mcmc")
    original = module.run_convergence_checks
    if hasattr(original, "of_pymc"):
        return

    @functools.wraps(original)
    def checks(idata: Any, model: Any) -> list[SamplerWarning]:
        try:
            found = _last_words(idata)
        except Exception:
            _log.exception("No verdict on this run, for an error in it; the draws are kept")
            found = None
        return original(idata, model) if found is None else found

    checks.of_pymc = original  # type: ignore[attr-defined]
    module.run_convergence_checks = checks


def _last_words(idata: Any) -> list[SamplerWarning] | None:
    """Return the warnings for a run with a step of this package; ``None`` for any other run."""
    stats = idata.children.get("sample_stats") if hasattr(idata, "children") else None
    if stats is None or not {"n_grad_total", "unstable"} <= set(stats.data_vars) or "posterior" not in idata.children:
        return None
    level, sentence = last_words(idata)
    warning = SamplerWarning(WarningType.CONVERGENCE, sentence, "info" if level == logging.INFO else "warn")
    return [warning, *warn_treedepth(idata)]
