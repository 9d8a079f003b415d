r"""Scouts: climbs from far out at the end of a warm-up, which look for modes that no chain has visited.

Scouts start from draws of the prior and from points some standard deviations away from the chains, the best of a few
each, climb to a maximum of the log density in whitened coordinates, and are compared with the maxima that the chains
climb to.  The chains do not depend on them.  A maximum is another mode if the log density dips on the straight way to
each maximum of the chains, and short chains that start there mostly stay: their ends climb to no maximum of the chains.

The mass of a mode at :math:`\hat y` is Laplace's, :math:`p(\hat y)\,|{-\nabla^2 \log p(\hat y)}|^{-1/2}`; that of the
chains is Laplace's too or, where they have no strict maximum, that of a Gaussian with their mean log density.

Two kinds of mass have no maximum that a scout reaches: a broad slab around a spike, and a spike so narrow that no draw
met it (:mod:`pmm_mcmc.warmup.hidden_mass`).

Modes that chains visit are reported if their volumes differ: a step widens the narrower mode more, so its weight comes
out too small, and no identity within a mode shows that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.arguments import Block, TunedParameters
from pmm_mcmc.engines.contract import Engine, chains_of, empty_state, in_model_coordinates
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.langevin.lanczos import spectrum
from pmm_mcmc.langevin.methods import OVERDAMPED
from pmm_mcmc.warmup.climb import Climbers, along_coordinates
from pmm_mcmc.warmup.hidden_mass import follows_gradient, lowest_of_gaussian, mass_about, mass_around
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.whitened_map import WhitenedMap

__all__ = ["Search", "along_coordinates", "look_around", "others"]

# Numbers in the places of a look and in the states of one evaluation, at most: 16 MiB.
_NUMBERS = 2**21


def look_around(
    engine: Engine,
    tuned: TunedParameters,
    draws: Block,
    prior: np.ndarray,
    n_grad: int,
    rng: np.random.Generator,
    maxima: np.ndarray | None = None,
) -> tuple[OtherModes, np.ndarray, int]:
    """Return the other modes, their maxima ``(m, d)`` in the model's coordinates, and the gradients spent.

    Scouts spend at most two fifths of the warm-up's ``n_grad`` gradients.  They start from ``maxima`` and from
    ``prior`` draws ``(m, d)`` in the model's coordinates (either may be empty), with the newest ``draws`` and the final
    setting of the warm-up.
    """
    limit = int(min(THRESHOLDS.scout_share * n_grad, THRESHOLDS.most_of_scouts))
    search = Search(engine, tuned, limit, rng)
    if engine.d == 0 or limit < THRESHOLDS.scouts_together * THRESHOLDS.least_climb:
        return OtherModes(), search.other_maxima, 0
    return search.run(draws, prior, maxima), search.other_maxima, search.spent


class _Maximum(NamedTuple):
    y: np.ndarray
    lp: float
    gradient: np.ndarray
    scale: float


class Search:
    """A search with ``limit`` gradients, of which ``spent`` are spent, for ``other_maxima``, those of other modes."""

    def __init__(self, engine: Engine, tuned: TunedParameters, limit: int, rng: np.random.Generator):
        self._rng = rng
        self._engine = engine
        self._tuned = tuned
        self._map = WhitenedMap(engine, tuned.coordinates)
        self._limit = limit
        self.spent = 0
        self.other_maxima = np.empty((0, engine.d))
        self._places_seen = np.empty((0, engine.d)), np.empty(0)

    def run(self, draws: Block, prior: np.ndarray, maxima: np.ndarray | None = None) -> OtherModes:
        """Return the other modes."""
        d = self._engine.d
        x = in_model_coordinates(*(array.swapaxes(0, 1).reshape(-1, array.shape[2]) for array in draws[:2]))[0]
        x = self._map.around(x[-1], x)
        y, log_det = self._map.whiten(x)
        lp = draws.lp.T.ravel() + log_det
        chain_maxima = self._climb(y[-THRESHOLDS.homes :], y[-1], self._limit // 10)
        starts = self._starts(prior, max((home.lp for home in chain_maxima), default=0.0), d)
        if maxima is not None:
            starts = np.concatenate([self._map.whiten(maxima)[0], starts])
        ends: list[_Maximum] = []
        for start in range(0, len(starts), THRESHOLDS.scouts_together):
            group = starts[start : start + THRESHOLDS.scouts_together]
            limit = int(THRESHOLDS.climbing_share * self._limit) - self.spent
            if limit < len(group) * THRESHOLDS.least_climb:
                break
            ends += others(self._climb(group, y[-1], limit), ends)
        if not chain_maxima:
            return OtherModes()
        candidates = self._apart(ends, chain_maxima, y)
        if not candidates:
            hidden = self._hidden(chain_maxima, y, lp)
            return OtherModes(hidden) if hidden else self._unequal_modes(chain_maxima, x)
        chain_masses = [mass for mass in map(self._log_mass, chain_maxima) if np.isfinite(mass)]
        chain_mass = np.logaddexp.reduce(chain_masses) if chain_masses else np.mean(lp) + 0.5 * d
        masses = []
        for i, end in enumerate(candidates):
            mass = float(np.exp(min(self._log_mass(end) - chain_mass, 700.0)))
            way = 0.5 * np.sqrt(end.scale) / max(np.linalg.norm(end.y), 1e-300)
            is_one = mass > 0.1 * THRESHOLDS.mass and follows_gradient(self._value, end.y[None], way).all()
            masses.append(mass if is_one and self._stays(end, chain_maxima, len(candidates) - i) else 0.0)
        total = sum(masses)
        if not total:
            return OtherModes(0.0)
        self.other_maxima = self._map.place(
            np.stack([end.y for end, mass in zip(candidates, masses, strict=True) if mass])
        )
        return self._reported(candidates[int(np.argmax(masses))], total / (1.0 + total), x.mean(axis=0), x)

    def _reported(self, mode: _Maximum, mass: float, centre: np.ndarray, x: np.ndarray, visited: int = 0) -> OtherModes:
        """Return the report of a mode away from a centre, in standard deviations of draws ``x``."""
        position = self._map.place(mode.y)
        coordinate = int((np.abs(position - centre) / np.maximum(x.std(axis=0), 1e-300)).argmax())
        return OtherModes(mass, coordinate, float(position[coordinate]), visited)

    def _hidden(self, chain_maxima: list[_Maximum], y: np.ndarray, lp: np.ndarray) -> float:
        """Return the share of the mass that no draw has met around the chains or about their highest maximum."""
        d = y.shape[1]
        share = self._hidden_around_draws(y, lp)
        home = max(chain_maxima, key=lambda home: home.lp)
        if share or lp.max() >= lowest_of_gaussian(home.lp, d) or d > THRESHOLDS.exact_hessian:
            return share
        if self._left < d + THRESHOLDS.scouts:
            return 0.0
        z = self._rng.standard_normal((THRESHOLDS.scouts, d))
        return mass_about(home.y, home.lp, self._spectrum(home), z, lambda places: self._value(places)[0], y, lp)

    def _hidden_around_draws(self, y: np.ndarray, lp: np.ndarray) -> float:
        """Return the share of the mass around the draws, without the places whose log density is rounding."""
        places, heights = self._places_seen
        radius = np.sqrt((places**2).sum(axis=1))
        share = mass_around(places, heights, y, lp)
        while share and self._left >= THRESHOLDS.scouts:
            heaviest = np.argsort(-heights - y.shape[1] * np.log(radius))[: THRESHOLDS.scouts // 2]
            smooth = follows_gradient(self._value, places[heaviest], 0.01)
            if smooth.all():
                break
            heights[heaviest[~smooth]] = -np.inf
            share = mass_around(places, heights, y, lp)
        return share

    def _unequal_modes(self, chain_maxima: list[_Maximum], x: np.ndarray) -> OtherModes:
        """Report the heaviest mode that chains visit of another volume than their highest one.

        The error of a step depends on the width of a mode: the weights of modes of one volume are still right.
        """
        modes: list[_Maximum] = []
        each = min(self._engine.d, THRESHOLDS.exact_hessian) + THRESHOLDS.points_between
        for home in sorted(chain_maxima, key=lambda home: -home.lp):
            enough = self._left > (len(modes) + 1) * each
            if len(modes) < THRESHOLDS.most_modes and enough and not any(self._same(home, mode) for mode in modes):
                modes.append(home)
        if len(modes) < 2:
            return OtherModes(0.0)
        masses = np.array([self._log_mass(mode) for mode in modes])
        with np.errstate(invalid="ignore"):  # where there is no strict maximum
            volumes = masses - [mode.lp for mode in modes]
            weights = np.exp(masses - np.logaddexp.reduce(masses))
            other = (np.abs(volumes - volumes[0]) > np.log(THRESHOLDS.volumes)) & (weights > THRESHOLDS.mass)
        if not other.any() or not THRESHOLDS.mass < weights[0] < 1.0:
            return OtherModes(0.0)
        i = int(np.argmax(np.where(other, weights, 0.0)))
        return self._reported(modes[i], float(weights[i]), self._map.place(modes[0].y), x, 1)

    @property
    def _left(self) -> int:
        return self._limit - self.spent

    def _apart(self, ends: list[_Maximum], chain_maxima: list[_Maximum], y: np.ndarray) -> list[_Maximum]:
        """Return the highest ends that are in no mode of the chains; extend ``chain_maxima`` by those near them."""
        candidates: list[_Maximum] = []
        d = y.shape[1]
        lowest = max(home.lp for home in chain_maxima) - THRESHOLDS.lowest - THRESHOLDS.lowest_each * d
        for end in sorted(ends, key=lambda end: -end.lp):
            enough = self._left > 2 * min(d, THRESHOLDS.exact_hessian) + THRESHOLDS.least_climb
            if len(candidates) == THRESHOLDS.most_modes or end.lp < lowest or not enough:
                break
            if any(self._same(end, maximum) for maximum in (*chain_maxima, *candidates)):
                continue
            nearest = y[[np.argmin(((y - end.y) ** 2).sum(axis=1))]]
            near = self._climb(nearest, nearest[0], self._left // 3)
            chain_maxima += others(near, chain_maxima)
            if not any(self._same(end, home) for home in near):
                candidates.append(end)
        return candidates

    # -- starts and climbs -------------------------------------------------------------------------------------------

    def _starts(self, prior: np.ndarray, top: float, d: int) -> np.ndarray:
        """Return the starts of climbs.

        Among places at similar distance, the start is the one whose log density falls least below ``top`` for its
        squared distance.  Those furthest above their neighbours come first.  Up to a quarter of the places are draws of
        the prior; half of the others, or as many as there are, lie along the coordinates, where modes narrow in all of
        them can be met; and the remaining ones anywhere around.
        """
        count = min(int(THRESHOLDS.look_share * self._left), THRESHOLDS.looks, max(THRESHOLDS.scouts, _NUMBERS // d))
        with np.errstate(all="ignore"):
            from_prior = self._map.whiten(prior[: count // 4])[0] if len(prior) else np.empty((0, d))
        from_prior = from_prior[np.isfinite(from_prior).all(axis=1)]
        on_axes = along_coordinates(self._tuned.coordinates, 3 * (count - len(from_prior)) // 4, d, self._rng)
        radial = self._rng.standard_normal((count - len(from_prior) - len(on_axes), d))
        nearest = np.log(THRESHOLDS.nearest)
        span = (np.log(THRESHOLDS.furthest) - nearest) * (self._rng.permutation(len(radial)) + 0.5)
        widths = np.exp(nearest + span / max(1, len(radial)))
        radial *= (widths * np.sqrt(d) / np.linalg.norm(radial, axis=1))[:, None]
        y = np.concatenate([from_prior, on_axes, radial])
        order = np.argsort((y**2).sum(axis=1))
        y = y[order]
        lp = np.nan_to_num(self._value(y)[0], nan=-np.inf)
        drop = (top - lp) / np.maximum((y**2).sum(axis=1), 1e-300)
        random = order >= len(from_prior) + len(on_axes)
        self._places_seen = y[random], np.where(self._map.is_copy(y[random]), -np.inf, lp[random])
        groups = np.array_split(np.arange(count), min(count, THRESHOLDS.scouts))
        best = np.array([group[np.argmin(drop[group])] for group in groups])
        typical = np.array([np.median(drop[group]) for group in groups])
        with np.errstate(invalid="ignore"):
            return y[best[np.argsort(np.nan_to_num(drop[best] / typical, nan=1.0))]]

    def _value(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and gradients at whitened positions."""
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

    def _climb(self, start: np.ndarray, home: np.ndarray, limit: int) -> list[_Maximum]:
        """Return the maxima that climbs from the starts reach, with at most ``limit`` gradients."""
        ends = Climbers.climb(self._value, start, home, limit)
        y, lp, gradient = (array[ends.arrived] for array in (ends.position, ends.lp, ends.gradient))
        if self._map.has_copies and len(y):  # a sign or a turn does not make another mode
            y = self._map.nearest_copy(y)
            lp, gradient = self._value(y)
        return others(map(_Maximum, y, lp.tolist(), gradient, ends.scale[ends.arrived].tolist()), [])

    def _same(self, a: _Maximum, b: _Maximum) -> bool:
        """Return whether the log density does not dip between two maxima."""
        if _close(a, b):
            return True
        shares = np.linspace(0.0, 1.0, THRESHOLDS.points_between + 2)[1:-1, None]
        lp, _ = self._value(a.y + shares * (b.y - a.y))
        return bool(np.nan_to_num(lp, nan=-np.inf).min() > min(a.lp, b.lp) - THRESHOLDS.dip)

    # -- the mass of a maximum ---------------------------------------------------------------------------------------

    def _log_mass(self, end: _Maximum) -> float:
        """Return Laplace's log mass, up to a constant; -inf where the log density has no strict maximum."""
        if len(end.y) > THRESHOLDS.exact_hessian:
            return end.lp - 0.5 * self._log_det(end)
        values, vectors = self._spectrum(end)
        if not values[0] > THRESHOLDS.flattest * values[-1]:
            return -np.inf
        gain = 0.5 * float(((end.gradient @ vectors) ** 2 / values).sum())
        return end.lp + gain - 0.5 * float(np.log(values).sum()) if gain < 1.0 else -np.inf

    def _spectrum(self, end: _Maximum) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues and eigenvectors of the negative Hessian matrix; NaN where it is not finite."""
        hessian = self._curved(end, np.eye(len(end.y)))
        if not np.isfinite(hessian).all():
            return np.full(len(hessian), np.nan), hessian
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        return values, vectors

    def _curved(self, end: _Maximum, directions: np.ndarray) -> np.ndarray:
        """Return the negative Hessian matrix times directions ``(n, d)``, by differences of gradients."""
        h = 0.1 * np.sqrt(end.scale)
        return -(self._value(end.y + h * directions)[1] - end.gradient) / h

    def _log_det(self, end: _Maximum) -> float:
        """Return the log determinant of the negative Hessian matrix by Lanczos' method; inf where it is not positive.

        The directions that it starts from are the same at every maximum: their noise cancels in part in differences.
        """
        d = len(end.y)
        v = np.random.default_rng(d).choice([-1.0, 1.0], size=(2, d)) / np.sqrt(d)
        values, weights = spectrum(partial(self._curved, end), v, THRESHOLDS.lanczos_steps)
        if not np.isfinite(values).all() or (values[:, 0] <= THRESHOLDS.flattest * values[:, -1]).any():
            return np.inf
        return 0.5 * d * float((weights * np.log(values)).sum())

    def _stays(self, end: _Maximum, chain_maxima: list[_Maximum], share: int) -> bool:
        """Return whether short chains from a maximum mostly stay, with ``1 / share`` of the gradients left."""
        d = len(end.y)
        n = THRESHOLDS.short_chains
        climb = 2 * THRESHOLDS.least_climb
        until = self.spent + self._left // share - climb * n
        moving = self._engine.kernel.dynamics != OVERDAMPED
        state = empty_state(np.tile(end.y, (n, 1)), self._rng.standard_normal((n, d)) * moving)
        gradient = self._engine.evaluate(self._tuned.coordinates, state)
        keys = self._rng.integers(0, 2**64, size=(n, 2), dtype=np.uint64)
        self.spent += n

        def advanced(transition: int, rows: int) -> int:
            chains = Ensemble(state, gradient, keys, transition)
            return int(self._engine.advance(self._tuned, chains, rows).n_grad.sum())

        cost = advanced(0, 1)
        rows = int(np.clip((until - self.spent) // cost, 1, THRESHOLDS.longest_stay)) - 1
        self.spent += cost
        if rows:
            self.spent += advanced(1, rows)
        back = 0
        for y in chains_of(state).evaluated:
            reached = self._climb(y[None], end.y, climb)
            back += any(
                not _close(other, end) and any(self._same(other, home) for home in chain_maxima) for other in reached
            )
        return 2 * back <= n


def _close(a: _Maximum, b: _Maximum) -> bool:
    """Return whether two maxima are the same up to the precision of climbs."""
    return abs(a.lp - b.lp) < 0.2 and bool(np.sum((a.y - b.y) ** 2) < 0.25 * min(a.scale, b.scale, 1.0) * len(a.y))


def others(ends: Iterable[_Maximum], maxima: list[_Maximum]) -> list[_Maximum]:
    """Return those ends, each once, that are none of the maxima."""
    others: list[_Maximum] = []
    for end in ends:
        if not any(_close(end, maximum) for maximum in (*maxima, *others)):
            others.append(end)
    return others
