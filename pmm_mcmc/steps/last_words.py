"""The verdict at the end of PyMC's ``pm.sample``.

This relies on ``pymc.sampling.mcmc`` calling its global ``run_convergence_checks(idata, model)`` once all chains are
finished.  ``tests/steps/test_last_words.py`` fails first if that moves.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType, warn_treedepth

from pmm_mcmc.diagnostics.breaks import ATTRIBUTE, breaks_between, looked_at
from pmm_mcmc.diagnostics.verdict import last_words
from pmm_mcmc.model.log_density import log_density
from pmm_mcmc.model.outputs import python_function

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
            found = _last_words(idata, model)
        except Exception:
            _log.exception("No verdict on this run, for an error in it; the draws are kept")
            found = None
        return original(idata, model) if found is None else found

    checks.of_pymc = original  # type: ignore[attr-defined]
    module.run_convergence_checks = checks


def _last_words(idata: Any, model: Any) -> list[SamplerWarning] | None:
    """Return the warnings for a run with a step of this package; ``None`` for any other run."""
    stats = idata.children.get("sample_stats") if hasattr(idata, "children") else None
    if stats is None or not {"n_grad_total", "unstable"} <= set(stats.data_vars) or "posterior" not in idata.children:
        return None
    _look_for_breaks(idata, model)
    level, sentence = last_words(idata)
    warning = SamplerWarning(WarningType.CONVERGENCE, sentence, "info" if level == logging.INFO else "warn")
    return [warning, *warn_treedepth(idata)]


def _look_for_breaks(idata: Any, model: Any) -> None:
    """Note in a result whether the log density jumps between draws.

    The chains may have been in other processes.  So the log density is built here, in Python's mode, which is slow to
    evaluate but needs no compiler.
    """
    stats, vars = idata["sample_stats"].dataset, model.value_vars
    if "unconstrained" not in stats or stats["lp"].ndim != 2 or {*vars} != {*model.continuous_value_vars}:
        return
    try:
        density = log_density(vars, model, model.initial_point(0))
        flat, outputs = density.graph
        function = python_function([flat], outputs)
        chains, draws = looked_at(stats.sizes["chain"], stats.sizes["draw"])
        at = stats[["unconstrained", "lp"]].isel(chain=chains, draw=draws)
        x, lp = at["unconstrained"].values.reshape(-1, density.d), at["lp"].values.ravel()

        def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = [function(row.astype(flat.dtype)) for row in x]
            return np.array([one for one, _ in found], float), np.array([g for _, g in found], float).reshape(x.shape)

        if not np.allclose(both(x[:1])[0], lp[:1], rtol=1e-6, atol=1e-6):
            return  # other variables, or in another order
        found = breaks_between(x, both, bool(stats["model_failures"].sum() > 0))
    except Exception as error:
        _log.info("Jumps of the log density were not looked for: %s", error)
        return
    idata["posterior"].attrs[ATTRIBUTE] = found
