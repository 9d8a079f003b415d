"""Findings about a run that has its draws: modes, breaks and necks in one attribute; and its non-centring."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.breaks import DRAWS as FOR_BREAKS
from pmm_mcmc.diagnostics.breaks import breaks_between, looked_at
from pmm_mcmc.diagnostics.necks import DRAWS as FOR_NECKS
from pmm_mcmc.diagnostics.necks import MOST, necks_beyond
from pmm_mcmc.diagnostics.noncentred import NONCENTRING, WORDS
from pmm_mcmc.diagnostics.reading import FINDINGS
from pmm_mcmc.engines.contract import chains_of, evaluated_at, in_model_coordinates
from pmm_mcmc.run.phases import Run
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.starts import density_at
from pmm_mcmc.warmup.other_modes import OtherModes

__all__ = ["attributes_of", "modes_of", "noted"]

_log = logging.getLogger("pmm_mcmc")

# Positions by which the degree of non-centring is reported.
_NEWEST = 1000


def attributes_of(plan: SamplingPlan, run: Run, tree: Any, search: bool) -> dict[str, str]:
    """Return the attributes of a result that state findings about its run; ``search`` for breaks and necks."""
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree else None
    edges = {}
    if search:
        try:
            edges = _edges_of(plan, run, stats)
        except Exception:  # no error here may lose the draws
            _log.exception("Jumps and necks were not looked for, for an error in it; the draws are kept")
    return _noncentring_of(plan, run, stats) | noted(modes_of(run.warming.other_modes), edges)


def noted(*findings: dict[str, Any]) -> dict[str, str]:
    """Return the attribute of a result that has these findings."""
    return {FINDINGS: json.dumps({name: value for finding in findings for name, value in finding.items()})}


def modes_of(other_modes: OtherModes) -> dict[str, Any]:
    """Return the finding of modes beside those of the chains."""
    return {"modes": other_modes.statistics}


def _edges_of(plan: SamplingPlan, run: Run, stats: xr.Dataset | None) -> dict[str, Any]:
    """Return the findings of breaks of the log density between draws, and of necks beyond them."""
    if stats is None or "unconstrained" not in stats or not stats.sizes["draw"]:
        return {}
    rounding = {} if plan.attributes["precision"] == "float64" else {"rounding": 1e-5}
    failures = int(stats["diverging" if plan.adjusted else "model_failures"].sum()) > 0
    x = _positions_at(stats["unconstrained"], FOR_BREAKS)
    breaks = breaks_between(x, lambda x: density_at(plan.engine, x), failures, **rounding)
    if rounding:
        return {"breaks": breaks}
    engine = plan.engine
    coordinates = run.tuned.coordinates
    x = _positions_at(stats["unconstrained"], FOR_NECKS) if engine.d <= MOST else x
    z, _ = engine.structure.to_z(x, coordinates.density_parameters)

    def value(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = evaluated_at(engine.evaluate, z, coordinates.density_parameters)
        return lp, evaluation[:, : engine.d]

    return {"breaks": breaks, "necks": necks_beyond(z, coordinates, value)}


def _noncentring_of(plan: SamplingPlan, run: Run, stats: xr.Dataset | None) -> dict[str, str]:
    """Return the attributes that report what is non-centred, and to what degree."""
    structure = plan.engine.structure
    noncentring = run.tuned.coordinates.density_parameters
    if structure.is_identity or noncentring is None:
        return {}
    if stats is not None and "unconstrained" in stats and stats.sizes["draw"]:
        newest = -(-_NEWEST // stats.sizes["chain"])
        x = stats["unconstrained"][:_NEWEST, -newest:].values.reshape(-1, plan.engine.d)
    else:
        ensemble = run.warming.ensemble
        z = run.tuned.coordinates.place(chains_of(ensemble.state).evaluated[:_NEWEST])
        x, _ = in_model_coordinates(z, ensemble.evaluation[:_NEWEST])
    degree = {name: values.tolist() for name, values in structure.degree(x, noncentring).items()}
    return {NONCENTRING: json.dumps({"parameters": noncentring.tolist(), "degree": degree}), WORDS: structure.words}


def _positions_at(draws: xr.DataArray, number: int) -> np.ndarray:
    """Return about so many positions ``(n, d)`` from all of a run ``(chain, draw, d)``."""
    chains, rows = looked_at(draws.sizes["chain"], draws.sizes["draw"], number)
    return np.asarray(draws.isel(chain=chains, draw=rows).values, dtype=float).reshape(-1, draws.shape[2])
