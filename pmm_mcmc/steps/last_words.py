"""The verdict at the end of PyMC's ``pm.sample``.

This relies on ``pymc.sampling.mcmc`` calling its global ``run_convergence_checks(idata, model)`` once all chains are
finished.  ``tests/steps/test_last_words.py`` fails first if that moves.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType, warn_treedepth

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.diagnostics.breaks import DRAWS, breaks_between, looked_at
from pmm_mcmc.diagnostics.necks import DRAWS as FOR_NECKS
from pmm_mcmc.diagnostics.necks import MOST, Value, necks_beyond
from pmm_mcmc.diagnostics.reading import FINDINGS
from pmm_mcmc.diagnostics.verdict import last_words
from pmm_mcmc.model.log_density import log_density
from pmm_mcmc.model.outputs import python_function

__all__ = ["end_runs_with_the_verdict"]

_log = logging.getLogger("pmm_mcmc")

# Draws for each coordinate from which their covariance is taken.
_FOR_COVARIANCE = 10


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
    if stats is None or "n_grad_total" not in stats or "posterior" not in idata.children:
        return None
    idata["posterior"].attrs["adjusted"] = int("unstable" not in stats)
    _say_cost(stats.dataset)
    _look_beyond(idata, model)
    level, sentence = last_words(idata)
    warning = SamplerWarning(WarningType.CONVERGENCE, sentence, "info" if level == logging.INFO else "warn")
    return [warning, *warn_treedepth(idata)]


def _say_cost(stats: Any) -> None:
    """Say what the run cost: PyMC's workers cannot say at the end of the warm-up what the draws will cost."""
    each = stats["n_steps" if "n_steps" in stats else "n_grad"]
    if each.ndim != 2 or stats.sizes["draw"] < 2:
        return  # of several steps, or too few to tell
    # The first draw has the gradients that the end of the warm-up took.
    spent = float(each.isel(draw=slice(1, None)).mean()) * stats.sizes["draw"]
    warm_up = float(stats["n_grad_total"].isel(draw=-1).mean()) - spent
    thin = float(stats["steps_per_draw"].mean())
    draws = f"{stats.sizes['draw']} draws of {thin:.3g} step{'s' * (thin > 1)}"
    _log.info("Warm-up: %.0f gradients a chain; %s took %.0f", warm_up, draws, spent)


def _look_beyond(idata: Any, model: Any) -> None:
    """Note in a result whether the log density jumps between draws, and necks beyond them.

    The chains may have been in other processes.  So the log density is built here, in Python's mode, which is slow to
    evaluate but needs no compiler.
    """
    stats, vars = idata["sample_stats"].dataset, model.value_vars
    if "unconstrained" not in stats or stats["lp"].ndim != 2 or {*vars} != {*model.continuous_value_vars}:
        return
    try:
        point = model.initial_point(0)
        density = log_density(vars, model, point)
        flat, outputs = density.graph
        function = python_function([flat], outputs)
        chains, draws = looked_at(stats.sizes["chain"], stats.sizes["draw"], DRAWS)
        at = stats[["unconstrained", "lp"]].isel(chain=chains, draw=draws)
        x, lp = at["unconstrained"].values.reshape(-1, density.d), at["lp"].values.ravel()

        def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = [function(row.astype(flat.dtype)) for row in x]
            return np.array([one for one, _ in found], float), np.array([g for _, g in found], float).reshape(x.shape)

        if not np.allclose(both(x[:1])[0], lp[:1], rtol=1e-6, atol=1e-6):
            return  # other variables, or in another order
        findings: dict[str, Any] = {}
        if "model_failures" in stats:
            findings["breaks"] = breaks_between(x, both, bool(stats["model_failures"].sum() > 0))
        structure = log_density(vars, model, point, {}).structure if "noncentred" in stats else None
        findings |= _necks(stats, both, structure)
        idata["posterior"].attrs[FINDINGS] = json.dumps(findings)
    except Exception as error:
        _log.info("Jumps of the log density and necks were not looked for: %s", error)


def _necks(stats: Any, value: Value, structure: Structure | None) -> dict[str, Any]:
    """Return the finding of necks beyond the draws.

    Each chain has a non-centring of its own, in a process that may be gone: here one is learnt from draws of all.
    Coordinates that are non-centred themselves are not looked along.
    """
    draws = stats["unconstrained"].values
    own, d = np.ones(draws.shape[2], bool), draws.shape[2]
    if not 1 < d <= MOST or draws[..., 0].size < _FOR_COVARIANCE * d:
        return {}
    of_z, (chains, rows) = value, looked_at(len(draws), draws.shape[1], FOR_NECKS)
    if structure is not None:
        own = (stats["noncentred"].values == draws).all(axis=(0, 1))
        x, none = draws[np.ix_(chains, rows)].reshape(-1, d), structure.none()
        slope = value(x)[1]
        sites = structure.learn(x, slope, structure.pull_back(structure.to_z(x, none)[0], slope, none)[1], none)
        draws = structure.to_z(draws, sites)[0]

        def of_z(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x = structure.to_x(z, sites)
            lp, slope = value(x)
            return lp + structure.to_z(x, sites)[1], structure.pull_back(z, slope, sites)[1]

    flat = draws.reshape(-1, d)
    whitened = Coordinates(flat.mean(axis=0), np.linalg.cholesky(np.cov(flat.T)))
    return {"necks": necks_beyond(draws[np.ix_(chains, rows)].reshape(-1, d), whitened, of_z, own)}
