"""What is noted of a run at its end: what looks at the density around its draws found, and its non-centring."""

from __future__ import annotations

import json

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.breaks import ATTRIBUTE, DRAWS, breaks_between
from pmm_mcmc.diagnostics.modes import ATTRIBUTE as MODES
from pmm_mcmc.diagnostics.necks import ATTRIBUTE as NECKS
from pmm_mcmc.diagnostics.necks import DRAWS as FOR_NECKS
from pmm_mcmc.diagnostics.necks import necks_beyond
from pmm_mcmc.diagnostics.noncentred import SITES, WORDS
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import empty_state, model_side
from pmm_mcmc.run.driver import Driver, Run
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.starts import density_at

__all__ = ["noted_edges", "noted_modes", "noted_noncentring"]


def noted_edges(plan: SamplingPlan, driver: Driver) -> dict[str, str]:
    """Return the attributes that report breaks of the log density between draws and necks beyond them."""
    if "gradient" not in plan.statistics or not driver.seen(DRAWS):
        return {}
    rounding = {} if plan.attributes["precision"] == "float64" else {"rounding": 1e-5}
    x, failures = np.array(driver.seen(DRAWS)), driver.failures > 0
    found = {ATTRIBUTE: breaks_between(x, lambda x: density_at(plan.engine, x), failures, **rounding)}
    if rounding:
        return found
    engine, coordinates, x = plan.engine, driver.run.tuned.coordinates, np.array(driver.seen(FOR_NECKS) or x)
    plain, z = Coordinates(np.zeros(engine.d), np.ones(engine.d), coordinates.sites), x
    if engine.structure is not None:
        assert coordinates.sites is not None
        z = engine.structure.to_z(x, coordinates.sites)[0]

    def value(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state = empty_state(z, np.zeros(engine.d))
        return state[:, 4 * engine.d], engine.evaluate(plain, state)[:, : engine.d]

    found[NECKS] = necks_beyond(z, coordinates, value)
    return found


def noted_modes(tuned: TunedParameters) -> dict[str, str]:
    """Return the attribute that reports modes beside those of the chains."""
    return {MODES: json.dumps(tuned.other_modes.statistics)}


def noted_noncentring(driver: Driver) -> dict[str, str]:
    """Return the attributes that report what is non-centred, and to what degree."""
    structure, sites = driver.plan.engine.structure, driver.run.tuned.coordinates.sites
    if structure is None or sites is None:
        return {}
    x = driver.newest if len(driver.newest) else model_side(*_evaluated(driver.run))[0]
    degree = {name: values.tolist() for name, values in structure.degree(x, sites).items()}
    return {SITES: json.dumps({"sites": sites.tolist(), "degree": degree}), WORDS: structure.words}


def _evaluated(run: Run) -> tuple[np.ndarray, np.ndarray]:
    ensemble = run.warming.ensemble
    d = ensemble.state.shape[1] // 4
    return run.tuned.coordinates.place(ensemble.state[:, 3 * d : 4 * d]), ensemble.gradient
