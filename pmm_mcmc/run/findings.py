"""The findings of a run beside its draws, attributes of its result: other modes, jumps, necks, the non-centring."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics import jumps, necks
from pmm_mcmc.diagnostics.endless import endless
from pmm_mcmc.diagnostics.noncentred import NONCENTRING, WORDS
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.diagnostics.reading import FINDINGS
from pmm_mcmc.engines.contract import chains_of, evaluated_at, in_model_coordinates
from pmm_mcmc.model.checks import flat_priors
from pmm_mcmc.model.hierarchy import family_of
from pmm_mcmc.run.mode_search import modes_and_labels
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.starts import check_near, density_at
from pmm_mcmc.run.state import Run

__all__ = ["attributes_of", "findings_of"]

_log = logging.getLogger("pmm_mcmc")

# Draws by which it is known where the chains are.
_DRAWS = 4000
# Draws beside which a check of the density may fail: it did beside 4 and 1 of 48 where chains had met it often.
_AROUND = 400
# Positions by which the degree of non-centring is reported.
_NEWEST = 1000


def attributes_of(plan: SamplingPlan, run: Run, draws: xr.DataArray | None, search: bool) -> dict[str, str]:
    """Return the attributes of a result; other modes, jumps and necks are searched for if ``search``.

    ``draws`` are its unconstrained positions ``(chain, draw, d)``, if there are any.
    """
    draws = None if draws is None or not draws.sizes["draw"] else draws
    searches: dict[str, Any] = {}
    if search and draws is not None:
        try:
            searches = _searches(plan, run, draws)
        except Exception:  # no error here may lose the draws
            _log.exception("Other modes, jumps and necks were not looked for, for an error in it; the draws are kept")
    if plan.model is not None:
        searches["free"] = [rv.name for rv in plan.model.free_RVs]
    return _noncentring_of(plan, run, draws) | findings_of(searches)


def findings_of(searches: dict[str, Any]) -> dict[str, str]:
    """Return the attribute with the outcomes of searches."""
    return {FINDINGS: json.dumps(searches)}


def _searches(plan: SamplingPlan, run: Run, draws: xr.DataArray) -> dict[str, Any]:
    """Return other modes, the largest jump of the log density between draws, and the necks beyond them."""
    engine = plan.engine
    double = plan.attributes["precision"] == "float64"
    some = _some_of(draws, jumps.DRAWS)
    size = jumps.largest_jump(some, lambda x: density_at(engine, x), 1e-10 if double else 1e-5)
    wall = jumps.has_wall(some, lambda x: density_at(engine, x))
    coordinates = run.tuned.coordinates
    variables = [name.partition("[")[0] for name in plan.layout.names]
    flat = {} if plan.model is None else {plan.model.rvs_to_values[rv].name: rv for rv in flat_priors(plan.model)}
    axes = np.flatnonzero(np.isin(variables, list(flat)))
    logarithms = np.isin(variables, [name for name, rv in flat.items() if family_of(rv) == "HalfFlatRV"])
    rng = np.random.default_rng(run.warming.ensemble.keys[0])
    noncentring = coordinates.density_parameters
    findings = modes_and_labels(plan, _some_of(draws, _DRAWS), noncentring, rng, coordinates)
    findings |= {"jump": size, "wall": wall}
    without_end = endless(some, axes, logarithms, lambda x: density_at(engine, x))
    if without_end >= 0:
        name, bracket, index = plan.layout.names[without_end].partition("[")
        findings["endless"] = flat[name].name + bracket + index
    if run.unstable.any():
        findings["check"] = check_near(plan, _some_of(draws, _AROUND))
    if not double:
        return findings
    some = _some_of(draws, necks.MOST_DRAWS) if engine.d <= necks.MOST_COORDINATES else some
    z, _ = engine.structure.to_z(some, coordinates.density_parameters)

    def density_of_z(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = evaluated_at(engine.evaluate, z, coordinates.density_parameters)
        return lp, evaluation[:, : engine.d]

    return findings | {"necks": necks.necks_beyond(z, coordinates, density_of_z)}


def _noncentring_of(plan: SamplingPlan, run: Run, draws: xr.DataArray | None) -> dict[str, str]:
    """Return the attributes that report what is non-centred, and to what degree."""
    structure = plan.engine.structure
    noncentring = run.tuned.coordinates.density_parameters
    if structure.is_identity or noncentring is None:
        return {}
    if draws is not None:
        newest = -(-_NEWEST // draws.sizes["chain"])
        x = draws[:_NEWEST, -newest:].values.reshape(-1, plan.engine.d)
    else:
        ensemble = run.warming.ensemble
        z = run.tuned.coordinates.place(chains_of(ensemble.state).evaluated[:_NEWEST])
        x, _ = in_model_coordinates(z, ensemble.evaluation[:_NEWEST])
    degree = {name: values.tolist() for name, values in structure.degree(x, noncentring).items()}
    return {NONCENTRING: json.dumps({"parameters": noncentring.tolist(), "degree": degree}), WORDS: structure.words}


def _some_of(draws: xr.DataArray, number: int) -> np.ndarray:
    """Return about ``number`` of the draws ``(chain, draw, d)``, from all of the chains and all of a run, as rows."""
    chains, rows = evenly_spaced(draws.sizes["chain"], draws.sizes["draw"], number)
    return np.asarray(draws.isel(chain=chains, draw=rows).values, dtype=float).reshape(-1, draws.shape[2])
