"""The search for other modes, and for labels, from a plan and draws of any sampler."""

from __future__ import annotations

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
    search = _Search(plan, noncentring, coordinates)
    space = search.space(x)
    labelling = _Labelling(plan)
    labels = labelling.find(space, x)
    if labels:
        x = x[np.linspace(0, len(x) - 1, min(_LABELLED, len(x))).astype(int)]
        space = search.space(labelling.nearest(x), labelling)
    modes, _ = search_modes(space, draws_of_prior(plan, rng), rng)
    name = "" if modes.position is None else plan.layout.names[modes.coordinate]
    return {"modes": modes._replace(name=name)._asdict(), "labels": [list(label) for label in labels]}


class _Search:
    """The density of a plan, as a search takes it."""

    def __init__(self, plan: SamplingPlan, noncentring: np.ndarray | None, coordinates: Coordinates | None):
        self._engine = plan.engine
        self._noncentring = noncentring
        self._coordinates = coordinates

    def space(self, x: np.ndarray, labelling: _Labelling | None = None) -> SearchSpace:
        """Return the space of draws, in which other turns, signs of scales and labels are copies."""
        periods = self._engine.periods
        structure = self._engine.structure

        def copy(positions: np.ndarray) -> np.ndarray:
            positions = turned(positions, x[-1], periods)
            return positions if labelling is None else labelling.nearest(positions)

        has_copies = periods is not None or structure.signed.size or labelling is not None
        return SearchSpace(
            self._density,
            turned(x, x[-1], periods),
            to_z=lambda positions: structure.to_z(positions, self._noncentring)[0],
            to_x=lambda z: structure.to_x(z, self._noncentring),
            copy=copy if has_copies else None,
            coordinates=self._coordinates,
        )

    def _density(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = evaluated_at(self._engine.evaluate, z, self._noncentring)
        return lp, evaluation[:, : self._engine.d]


def _are_apart(space: SearchSpace, maximum: Ascents, place: np.ndarray) -> bool:
    """Return whether a maximum and the same with other labels, whitened ``(1, d)``, are two: the density dips between.

    Within one mode it does not, wherever the ascent has ended, as of components that are independent and alike.
    """
    if np.linalg.norm(place - maximum.position) <= _APART:
        return False
    lp, _ = space.density(0.5 * (place + maximum.position))
    return not lp[0] >= maximum.lp[0]


class _Labelling:
    """The labels of a plan's variables that may be exchanged, and positions in one labelling."""

    def __init__(self, plan: SamplingPlan):
        self._plan = plan
        self._labels: list[Exchange] = []
        self._pivot: dict[str, np.ndarray] = {}
        self._unconstraining: Unconstraining | None = None

    def find(self, space: SearchSpace, x: np.ndarray) -> list[Exchange]:
        """Return the exchanges that lead from the highest maximum near draws ``x`` to another place.

        Without two blocks along an axis, or variables of any sign, there are none to try.
        """
        plan = self._plan
        some = x[:: max(1, len(x) // 64)]
        lp, _ = density_at(plan.engine, some)
        if plan.attributes["precision"] != "float64" or not np.isfinite(lp).any():
            return []
        start = space.whiten(some[[np.nanargmax(lp)]])
        ends = Ascents.of(space.density, start, np.zeros(space.d), _ASCENT)
        maximum = space.place(ends.position)
        self._unconstraining = Unconstraining(plan)
        exchanges = exchanges_of(self._values(x[[0, -1]]), self._log_density)
        values = self._values(maximum)
        self._pivot = {name: array[0] for name, array in values.items()}
        places = [self._unconstraining.of_values(exchange.moved(values, 0)) for exchange in exchanges]
        self._labels = [
            one for one, place in zip(exchanges, places, strict=True) if _are_apart(space, ends, space.whiten(place))
        ]
        return self._labels

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Return positions ``(n, d)`` in the labelling nearest to that of the maximum."""
        assert self._unconstraining is not None
        values = self._values(x)
        nearest, _ = nearest_to(self._pivot, values, self._labels)
        other = np.zeros(len(x), bool)
        for name, array in nearest.items():
            other |= (array != values[name]).reshape(len(x), -1).any(axis=1)
        positions = np.array(x)
        positions[other] = self._unconstraining.of_values({name: array[other] for name, array in nearest.items()})
        return positions

    def _values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        assert self._unconstraining is not None
        values = self._plan.layout.values(x[None])
        return {name: values[name][0] for name in self._unconstraining.names}

    def _log_density(self, values: Values) -> np.ndarray:
        assert self._unconstraining is not None
        return density_at(self._plan.engine, self._unconstraining.of_values(values))[0]
