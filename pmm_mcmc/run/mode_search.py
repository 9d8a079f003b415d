"""The search for other modes from a plan and draws of any sampler (:mod:`pmm_mcmc.diagnostics.mode_search`)."""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_search import search_modes
from pmm_mcmc.diagnostics.other_modes import OtherModes
from pmm_mcmc.diagnostics.search_space import SearchSpace, turned
from pmm_mcmc.engines.contract import evaluated_at
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.starts import draws_of_prior

__all__ = ["modes_beside"]


def modes_beside(
    plan: SamplingPlan,
    x: np.ndarray,
    noncentring: np.ndarray | None,
    rng: np.random.Generator,
    coordinates: Coordinates | None = None,
) -> OtherModes:
    """Return the modes that draws ``x`` ``(n, d)``, the model's positions, are not in.

    ``noncentring`` and ``coordinates`` are those of the chains, if they are known.
    """
    engine = plan.engine
    structure = engine.structure
    periods = engine.periods

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = evaluated_at(engine.evaluate, z, noncentring)
        return lp, evaluation[:, : engine.d]

    def copy(positions: np.ndarray) -> np.ndarray:
        return turned(positions, x[-1], periods)

    space = SearchSpace(
        density,
        turned(x, x[-1], periods),
        to_z=lambda positions: structure.to_z(positions, noncentring)[0],
        to_x=lambda z: structure.to_x(z, noncentring),
        copy=copy if periods is not None or structure.signed.size else None,
        coordinates=coordinates,
    )
    modes, _ = search_modes(space, draws_of_prior(plan, rng), rng)
    return modes._replace(name="" if modes.position is None else plan.layout.names[modes.coordinate])
