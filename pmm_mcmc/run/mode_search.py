"""The search for other modes, and for labels, from a plan and draws of any sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.labels import Exchange, Values, exchanges_of, nearest_to
from pmm_mcmc.diagnostics.mode_search import search_modes
from pmm_mcmc.diagnostics.search_space import SearchSpace, turned
from pmm_mcmc.engines.contract import evaluated_at
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.positions import Unconstraining
from pmm_mcmc.run.starts import density_at, draws_of_prior
from pmm_mcmc.warmup.ascent import Ascents

__all__ = ["modes_and_labels"]

# Draws by which it is known where the chains are, where each is relabelled.
_LABELLED = 1000
# Whitened distance of a maximum from that with other labels, above which these matter: ascents are .2 sd exact.
_APART = 0.5
# Gradients of the ascent from the highest draw.
_ASCENT = 60


def modes_and_labels(
    plan: SamplingPlan,
    x: np.ndarray,
    noncentring: np.ndarray | None,
    rng: np.random.Generator,
    coordinates: Coordinates | None = None,
) -> dict[str, Any]:
    """Return the findings: modes that draws ``x`` ``(n, d)``, the model's positions, are not in, and labels.

    ``noncentring`` and ``coordinates`` are those of the chains, if they are known.  A mode whose labels are others than
    those of the draws is none.
    """
    space = _space(plan, x, noncentring, coordinates)
    labelling = _Labelling(plan, space, x)
    if labelling.labels:
        x = x[np.linspace(0, len(x) - 1, min(_LABELLED, len(x))).astype(int)]
        space = _space(plan, labelling.nearest(x), noncentring, coordinates, labelling)
    modes, _ = search_modes(space, draws_of_prior(plan, rng), rng)
    name = "" if modes.position is None else plan.layout.names[modes.coordinate]
    return {"modes": modes._replace(name=name)._asdict(), "labels": labelling.labels}


def _space(
    plan: SamplingPlan,
    x: np.ndarray,
    noncentring: np.ndarray | None,
    coordinates: Coordinates | None,
    labelling: _Labelling | None = None,
) -> SearchSpace:
    """Return the space of draws, in which other turns, signs of scales and labels are copies."""
    engine = plan.engine
    structure = engine.structure

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = evaluated_at(engine.evaluate, z, noncentring)
        return lp, evaluation[:, : engine.d]

    def copy(positions: np.ndarray) -> np.ndarray:
        positions = turned(positions, x[-1], engine.periods)
        return positions if labelling is None else labelling.nearest(positions)

    has_copies = engine.periods is not None or structure.signed.size or labelling is not None
    return SearchSpace(
        density,
        turned(x, x[-1], engine.periods),
        to_z=lambda positions: structure.to_z(positions, noncentring)[0],
        to_x=lambda z: structure.to_x(z, noncentring),
        copy=copy if has_copies else None,
        coordinates=coordinates,
    )


class _Labelling:
    """The ``labels`` of a plan's variables that may be exchanged, and positions in one labelling.

    They lead from the highest maximum near draws ``x`` of a space to another place.
    """

    def __init__(self, plan: SamplingPlan, space: SearchSpace, x: np.ndarray):
        self._engine = plan.engine
        self._unconstraining = Unconstraining(plan)
        self.labels: Sequence[Exchange] = []
        if plan.attributes["precision"] != "float64":
            return
        some = space.draws[:: max(1, len(x) // 64)]
        start = some[[np.argmax(space.lp(some))]]
        maximum = Ascents.of(space.density, start, np.zeros(space.d), _ASCENT)
        place = space.place(maximum.position)
        self._pivot = self._unconstraining.values_at(place)
        # At the maximum too: far from what is narrow, that does not show whether it is symmetric.
        some_values = self._unconstraining.values_at(np.concatenate([x[[0, -1]], place]))
        exchanges = exchanges_of(some_values, self._log_density)
        self.labels = [one for one in exchanges if self._matters(one, space, maximum)]

    def _matters(self, exchange: Exchange, space: SearchSpace, maximum: Ascents) -> bool:
        """Return whether a maximum and the same with other labels are two: the density dips between.

        Within one mode it does not, wherever the ascent has ended, as of components that are independent and alike.
        """
        moved = space.whiten(self._unconstraining.of_values(exchange.moved(self._pivot, 0)))
        if np.linalg.norm(moved - maximum.position) <= _APART:
            return False
        between, _ = space.density(0.5 * (moved + maximum.position))
        return not between[0] >= maximum.lp[0]

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Return positions ``(n, d)`` in the labelling nearest to that of the maximum."""
        values = self._unconstraining.values_at(x)
        nearest, _ = nearest_to({name: array[0] for name, array in self._pivot.items()}, values, self.labels)
        other = np.zeros(len(x), bool)
        for name, array in nearest.items():
            other |= (array != values[name]).reshape(len(x), -1).any(axis=1)
        positions = np.array(x)
        positions[other] = self._unconstraining.of_values({name: array[other] for name, array in nearest.items()})
        return positions

    def _log_density(self, values: Values) -> np.ndarray:
        return density_at(self._engine, self._unconstraining.of_values(values))[0]
