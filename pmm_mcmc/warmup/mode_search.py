"""The search, at the end of a warm-up, for modes that no chain has visited.

The chains do not depend on it.

1. The log density is evaluated at *candidates*: draws of the prior, and places at 2 to 32 standard deviations from the
   chains, along the coordinates of the model and in random directions.
2. *Ascents* to local maxima start from the best of them, and from the newest draws of the chains.
3. A maximum is another mode if the log density dips on the straight way from it to every maximum of the chains, and
   short chains that start there mostly stay: ascents from their ends reach no maximum of the chains.
4. Its mass, and that of the chains, is Laplace's (:mod:`pmm_mcmc.warmup.maxima`).

Two kinds of mass have no maximum that an ascent reaches: a broad slab around a spike, and a spike so narrow that no
draw met it.  They are estimated from the candidates (:mod:`pmm_mcmc.warmup.hidden_mass`).

A run that starts from a former one has a short search in place of this: :func:`leads_elsewhere`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.contract import Engine, TunedParameters, chains_of, empty_state, in_model_coordinates
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.langevin.methods import OVERDAMPED
from pmm_mcmc.warmup.ascent import Ascents
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.hidden_mass import follows_gradient, lowest_typical_lp, slab_mass, spike_mass
from pmm_mcmc.warmup.maxima import Maximum, are_close, are_one_mode, distinct, hessian_spectrum, log_mass
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.search_thresholds import SEARCH
from pmm_mcmc.warmup.whitened_map import WhitenedMap, along_coordinates

__all__ = ["ModeSearch", "SearchOutcome", "leads_elsewhere", "search_modes"]

# Numbers in the candidates and in the states of one evaluation, at most: 16 MiB.
_NUMBERS = 2**21
# Ascents of a short search, at most.
_SHORT = 4


class SearchOutcome(NamedTuple):
    """The outcome of a search: what is reported of other modes."""

    other_modes: OtherModes
    maxima: np.ndarray  # (m, d): those of other modes, in the model's coordinates
    n_grad: int  # gradients spent


def search_modes(
    engine: Engine,
    tuned: TunedParameters,
    draws: Block,
    prior: np.ndarray,
    n_grad: int,
    rng: np.random.Generator,
    maxima: np.ndarray | None = None,
) -> SearchOutcome:
    """Return the outcome of a search.

    ``draws`` are the newest of the chains, ``tuned`` is the final setting of the warm-up, and ``n_grad`` are its
    gradients, of which the search spends two fifths at most.  Draws of the ``prior`` ``(n, d)`` in the model's
    coordinates, if there are any, are among the candidates; ascents start from ``maxima`` ``(n, d)`` too.
    """
    limit = int(min(SEARCH.search_share * n_grad, SEARCH.most_gradients))
    search = ModeSearch(engine, tuned, limit, rng)
    if engine.d == 0 or limit < SEARCH.ascents_together * SEARCH.least_ascent:
        return search.outcome(OtherModes())
    return search.outcome(search.run(draws, prior, maxima))


def leads_elsewhere(
    engine: Engine, tuned: TunedParameters, draws: Block, starts: np.ndarray, rng: np.random.Generator
) -> tuple[bool, int]:
    """Return whether ascents lead to a mode in which no draw is, and the gradients spent.

    They begin at some of the ``starts`` ``(n, d)`` in the model's coordinates.
    """
    search = ModeSearch(engine, tuned, SEARCH.gradients_elsewhere * max(len(draws.lp), 4), rng)
    return search.leads_elsewhere(draws, starts), search.spent


class ModeSearch:
    """A search with ``limit`` gradients, of which ``spent`` are spent, for ``other_maxima``, those of other modes.

    Positions ``y`` are whitened; the log densities ``lp`` are those of ``y`` up to one constant.
    """

    def __init__(self, engine: Engine, tuned: TunedParameters, limit: int, rng: np.random.Generator):
        self._rng = rng
        self._engine = engine
        self._tuned = tuned
        self._map = WhitenedMap(engine, tuned.coordinates)
        self._limit = limit
        self.spent = 0
        self.other_maxima = np.empty((0, engine.d))
        self._random_candidates = np.empty((0, engine.d)), np.empty(0)

    @property
    def _left(self) -> int:
        return self._limit - self.spent

    def outcome(self, other_modes: OtherModes) -> SearchOutcome:
        """Return what the search has led to."""
        return SearchOutcome(other_modes, self.other_maxima, self.spent)

    def run(self, draws: Block, prior: np.ndarray, maxima: np.ndarray | None = None) -> OtherModes:
        """Return the other modes; NaN if no ascent from the chains reaches a maximum."""
        x, y, log_det = self._rows(draws)
        lp = draws.lp.T.ravel() + log_det
        chain_maxima = self._ascend(y[-SEARCH.chain_ascents :], y[-1], self._limit // 10)
        starts = self._starts(prior, max((maximum.lp for maximum in chain_maxima), default=0.0))
        if maxima is not None:
            starts = np.concatenate([self._map.whiten(maxima)[0], starts])
        reached: list[Maximum] = []
        for i in range(0, len(starts), SEARCH.ascents_together):
            group = starts[i : i + SEARCH.ascents_together]
            limit = int(SEARCH.ascent_share * self._limit) - self.spent
            if limit < len(group) * SEARCH.least_ascent:
                break
            reached += distinct(self._ascend(group, y[-1], limit), reached)
        if not chain_maxima:
            return OtherModes()
        others = self._apart(reached, chain_maxima, y)
        masses = self._masses(others, chain_maxima, lp) if others else []
        modes = [other for other, mass in zip(others, masses, strict=True) if mass]
        if not others:
            return OtherModes(self._hidden_mass(chain_maxima, y, lp))
        if not modes:
            return OtherModes(0.0)
        self.other_maxima = self._map.place(np.stack([mode.y for mode in modes]))
        total = sum(masses)
        position = self._map.place(others[int(np.argmax(masses))].y)
        offset = np.abs(position - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-300)
        coordinate = int(offset.argmax())
        return OtherModes(total / (1.0 + total), coordinate, float(position[coordinate]))

    def leads_elsewhere(self, draws: Block, starts: np.ndarray) -> bool:
        """Return whether an ascent from ``starts`` ends in a mode in which no draw is."""
        _, y, _ = self._rows(draws)
        chain_maxima = self._ascend(y[-1:], y[-1], self._limit // 4)
        with np.errstate(all="ignore"):
            places = self._map.whiten(starts)[0]
        places = _far_apart(places[np.isfinite(places).all(axis=1)], y.mean(axis=0))
        lowest = _lowest(chain_maxima, y.shape[1])
        for maximum in distinct(self._ascend(places, y[-1], self._left), chain_maxima):
            if maximum.lp < lowest:
                continue
            chain_maxima += distinct(self._near(maximum, y, self._left), chain_maxima)
            if not any(are_one_mode(maximum, other, self._density) for other in chain_maxima):
                return True
        return False

    def _rows(self, draws: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return draws as rows: positions of the model, whitened ones, and log determinants of the non-centring."""
        x, _ = in_model_coordinates(*(array.swapaxes(0, 1).reshape(-1, array.shape[2]) for array in draws[:2]))
        x = self._map.around(x[-1], x)
        return x, *self._map.whiten(x)

    # -- candidates and ascents --------------------------------------------------------------------------------------

    def _starts(self, prior: np.ndarray, top: float) -> np.ndarray:
        """Return the candidates ``(n, d)`` from which ascents start.

        Among candidates at similar distance it is the one whose log density falls least below ``top`` for its squared
        distance; those furthest above their neighbours come first.  Up to a quarter are draws of the prior; half of the
        others, or as many as there are, lie along the coordinates, where modes narrow in all of them can be met; and
        the remaining ones in random directions.
        """
        d = self._engine.d
        count = min(int(SEARCH.candidate_share * self._left), SEARCH.candidates, max(SEARCH.ascents, _NUMBERS // d))
        with np.errstate(all="ignore"):
            from_prior = self._map.whiten(prior[: count // 4])[0] if len(prior) else np.empty((0, d))
        from_prior = from_prior[np.isfinite(from_prior).all(axis=1)]
        on_axes = along_coordinates(self._tuned.coordinates, 3 * (count - len(from_prior)) // 4, d, self._rng)
        random = self._rng.standard_normal((count - len(from_prior) - len(on_axes), d))
        nearest = np.log(SEARCH.nearest)
        span = (np.log(SEARCH.furthest) - nearest) * (self._rng.permutation(len(random)) + 0.5)
        widths = np.exp(nearest + span / max(1, len(random)))
        random *= (widths * np.sqrt(d) / np.linalg.norm(random, axis=1))[:, None]
        y = np.concatenate([from_prior, on_axes, random])
        order = np.argsort((y**2).sum(axis=1))
        y = y[order]
        lp = np.nan_to_num(self._density(y)[0], nan=-np.inf)
        fall = (top - lp) / np.maximum((y**2).sum(axis=1), 1e-300)
        is_random = order >= len(from_prior) + len(on_axes)
        lp_of_random = np.where(self._map.is_copy(y[is_random]), -np.inf, lp[is_random])
        self._random_candidates = y[is_random], lp_of_random
        groups = np.array_split(np.arange(count), min(count, SEARCH.ascents))
        best = np.array([group[np.argmin(fall[group])] for group in groups])
        typical = np.array([np.median(fall[group]) for group in groups])
        with np.errstate(invalid="ignore"):
            return y[best[np.argsort(np.nan_to_num(fall[best] / typical, nan=1.0))]]

    def _density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and gradients at whitened positions, NaN where they are not finite."""
        d = y.shape[1]
        coordinates = self._tuned.coordinates
        lp = np.empty(len(y))
        gradient = np.empty(y.shape)
        size = max(1, _NUMBERS // (4 * d))
        for i in range(0, len(y), size):
            rows = slice(i, i + size)
            state = empty_state(y[rows], np.zeros(d))
            with np.errstate(all="ignore"):
                gradient[rows] = coordinates.pull_back(self._engine.evaluate(coordinates, state)[:, :d])
            lp[rows] = chains_of(state).lp[:, 0]
        self.spent += len(y)
        return np.where(np.isfinite(gradient).all(axis=1), lp, np.nan), gradient

    def _ascend(self, start: np.ndarray, centre: np.ndarray, limit: int) -> list[Maximum]:
        """Return the maxima that ascents from the starts reach, with at most ``limit`` gradients."""
        ends = Ascents.of(self._density, start, centre, limit)
        y, lp, gradient = (array[ends.arrived] for array in (ends.position, ends.lp, ends.gradient))
        if self._map.has_copies and len(y):  # a sign or a turn does not make another mode
            y = self._map.nearest_copy(y)
            lp, gradient = self._density(y)
        return distinct(map(Maximum, y, lp.tolist(), gradient, ends.scale[ends.arrived].tolist()), [])

    def _near(self, maximum: Maximum, y: np.ndarray, limit: int) -> list[Maximum]:
        """Return the maximum that an ascent from the draw nearest to another maximum reaches, if it reaches one."""
        nearest_draw = y[[np.argmin(((y - maximum.y) ** 2).sum(axis=1))]]
        return self._ascend(nearest_draw, nearest_draw[0], limit)

    # -- which maxima are other modes --------------------------------------------------------------------------------

    def _apart(self, reached: list[Maximum], chain_maxima: list[Maximum], y: np.ndarray) -> list[Maximum]:
        """Return the highest maxima that are in no mode of the chains; extend ``chain_maxima`` by those near them."""
        others: list[Maximum] = []
        d = y.shape[1]
        lowest = _lowest(chain_maxima, d)
        for maximum in sorted(reached, key=lambda maximum: -maximum.lp):
            enough = self._left > 2 * min(d, SEARCH.exact_hessian) + SEARCH.least_ascent
            if len(others) == SEARCH.most_modes or maximum.lp < lowest or not enough:
                break
            if any(are_one_mode(maximum, other, self._density) for other in (*chain_maxima, *others)):
                continue
            near = self._near(maximum, y, self._left // 3)
            chain_maxima += distinct(near, chain_maxima)
            if not any(are_one_mode(maximum, other, self._density) for other in near):
                others.append(maximum)
        return others

    def _masses(self, others: list[Maximum], chain_maxima: list[Maximum], lp: np.ndarray) -> list[float]:
        """Return the mass of each mode over that of the chains; 0 of a maximum that is none."""
        chain_masses = [mass for one in chain_maxima if np.isfinite(mass := log_mass(one, self._density))]
        # Without a strict maximum it is that of a Gaussian with the mean log density of the draws.
        chain_mass = np.logaddexp.reduce(chain_masses) if chain_masses else np.mean(lp) + 0.5 * self._engine.d
        masses = []
        for i, other in enumerate(others):
            mass = float(np.exp(min(log_mass(other, self._density) - chain_mass, 700.0)))
            way = 0.5 * np.sqrt(other.scale) / max(np.linalg.norm(other.y), 1e-300)
            is_mode = mass > 0.1 * SEARCH.mass and follows_gradient(self._density, other.y[None], way).all()
            masses.append(mass if is_mode and self._chains_stay(other, chain_maxima, len(others) - i) else 0.0)
        return masses

    def _chains_stay(self, maximum: Maximum, chain_maxima: list[Maximum], share: int) -> bool:
        """Return whether short chains from a maximum mostly stay, with ``1 / share`` of the gradients left."""
        d = len(maximum.y)
        n = SEARCH.short_chains
        for_ascent = 2 * SEARCH.least_ascent
        limit = self.spent + self._left // share - for_ascent * n
        moving = self._engine.kernel.dynamics != OVERDAMPED
        state = empty_state(np.tile(maximum.y, (n, 1)), self._rng.standard_normal((n, d)) * moving)
        gradient = self._engine.evaluate(self._tuned.coordinates, state)
        keys = self._rng.integers(0, 2**64, size=(n, 2), dtype=np.uint64)
        self.spent += n

        def advanced(transition: int, rows: int) -> int:
            chains = Ensemble(state, gradient, keys, transition)
            return int(self._engine.advance(self._tuned, chains, rows).n_grad.sum())

        cost = advanced(0, 1)
        rows = int(np.clip((limit - self.spent) // cost, 1, SEARCH.longest_stay)) - 1
        self.spent += cost
        if rows:
            self.spent += advanced(1, rows)
        returned = 0
        for y in chains_of(state).evaluated:
            returned += any(
                not are_close(end, maximum) and any(are_one_mode(end, other, self._density) for other in chain_maxima)
                for end in self._ascend(y[None], maximum.y, for_ascent)
            )
        return 2 * returned <= n

    # -- mass without a maximum --------------------------------------------------------------------------------------

    def _hidden_mass(self, chain_maxima: list[Maximum], y: np.ndarray, lp: np.ndarray) -> float:
        """Return the share of the mass in a slab around the chains or, without one, in a spike at their maximum."""
        d = y.shape[1]
        share = self._slab_mass(y, lp)
        highest = max(chain_maxima, key=lambda maximum: maximum.lp)
        if share or lp.max() >= lowest_typical_lp(highest.lp, d) or d > SEARCH.exact_hessian:
            return share
        if self._left < d + SEARCH.ascents:
            return 0.0
        z = self._rng.standard_normal((SEARCH.ascents, d))
        curvatures = hessian_spectrum(highest, self._density)
        return spike_mass(highest.y, highest.lp, curvatures, z, lambda places: self._density(places)[0], y, lp)

    def _slab_mass(self, y: np.ndarray, lp: np.ndarray) -> float:
        """Return the share of the mass in a slab around the draws, without candidates whose log density is rounding."""
        places, heights = self._random_candidates
        radius = np.sqrt((places**2).sum(axis=1))
        share = slab_mass(places, heights, y, lp)
        while share and self._left >= SEARCH.ascents:
            heaviest = np.argsort(-heights - y.shape[1] * np.log(radius))[: SEARCH.ascents // 2]
            smooth = follows_gradient(self._density, places[heaviest], 0.01)
            if smooth.all():
                break
            heights[heaviest[~smooth]] = -np.inf
            share = slab_mass(places, heights, y, lp)
        return share


def _lowest(chain_maxima: list[Maximum], d: int) -> float:
    """Return the log density below which a maximum has too little mass to matter beside those of the chains."""
    highest = max((maximum.lp for maximum in chain_maxima), default=np.inf)
    return highest - SEARCH.lowest - SEARCH.lowest_each * d


def _far_apart(places: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return places that are furthest from ``centre`` and from each other, of the nearest three quarters."""
    distance = np.linalg.norm(places - centre, axis=1)
    order = np.argsort(distance)[: -(-3 * len(places) // 4)]
    places = places[order]
    distance = distance[order]
    chosen: list[int] = []
    while len(chosen) < min(_SHORT, len(places)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return places[chosen]
