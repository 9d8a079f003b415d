"""The search, after the draws, for modes that no chain has visited.

1. The log density is evaluated at *candidates*: draws of the prior, and places at 2 to 32 standard deviations from the
   draws, along the coordinates of the model and in random directions.
2. *Ascents* to local maxima start from the best of them, and from the highest draws.
3. Each maximum has a region, whose mass is estimated (:mod:`pmm_mcmc.diagnostics.mode_mass`).  It is a mode that chains
   do not visit if a tenth or less of the draws are there that should be.

A broad slab around the draws, which has no maximum, shows in the density at the candidates.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.diagnostics.mode_mass import (
    Maximum,
    Weighed,
    chain_mass,
    distinct,
    follows_gradient,
    log_determinant,
    slab_mass,
    weighed,
)
from pmm_mcmc.diagnostics.other_modes import OtherModes
from pmm_mcmc.diagnostics.search_space import SearchSpace, lowest_falls
from pmm_mcmc.diagnostics.search_thresholds import SEARCH

__all__ = ["search_modes"]

# Dip of the log density above which two maxima are two modes.
_DIP = 0.2


def search_modes(
    space: SearchSpace,
    prior: np.ndarray,
    rng: np.random.Generator,
    limit: int = SEARCH.gradients,
    maxima: np.ndarray | None = None,
) -> tuple[OtherModes, np.ndarray]:
    """Return the modes that the draws of a ``space`` are not in, and their maxima ``(m, d)``, the model's positions.

    Draws of the ``prior`` ``(n, d)``, if there are any, are among the candidates; ascents start from ``maxima``
    ``(n, d)`` too.  About ``limit`` gradients are spent.
    """
    return _ModeSearch(space, limit, rng).run(prior, maxima)


class _ModeSearch:
    """A search with about ``limit`` gradients; positions ``y`` are whitened."""

    def __init__(self, space: SearchSpace, limit: int, rng: np.random.Generator):
        self._space = space
        self._limit = limit
        self._begun = space.spent
        self._rng = rng
        rows = np.unique(np.linspace(0, len(space.held_back) - 1, SEARCH.draws).astype(int))
        lp = space.lp(space.held_back[rows])
        self._some = space.held_back[rows[np.isfinite(lp)]]
        self._lp_of_some = lp[np.isfinite(lp)]
        self._log_chains = np.nan
        if len(self._some):
            places = rng.standard_normal((SEARCH.draws, space.d))
            self._log_chains = chain_mass(space.lp, space.draws, self._some, self._lp_of_some, places)
        self._random_places = np.empty((0, space.d)), np.empty(0)
        self._ascents = 0
        self._sides = 0

    @property
    def _left(self) -> int:
        return self._limit + self._begun - self._space.spent

    def run(self, prior: np.ndarray, maxima: np.ndarray | None) -> tuple[OtherModes, np.ndarray]:
        """Return the other modes and their maxima."""
        space = self._space
        nothing = np.empty((0, space.d))
        if not np.isfinite(self._log_chains):
            return self._outcome(np.nan, "the log density is not finite at the draws"), nothing
        starts = self._starts(prior)
        if maxima is not None:
            starts = np.concatenate([space.whiten(maxima), starts])
        reached: list[Maximum] = []
        for i in range(0, len(starts), SEARCH.ascents_together):
            group = starts[i : i + SEARCH.ascents_together]
            ends = reached and self._left < (1.0 - SEARCH.ascent_share) * self._limit
            if ends or self._left < len(group) * SEARCH.least_ascent:
                break
            self._ascents += len(group)
            reached += distinct(space.maxima(group, self._left), reached)
        if not reached:  # of many coordinates, or a density without a bound, one may be all that ends
            self._ascents += 1
            reached = space.maxima(starts[:1], SEARCH.gradients)
        if not reached:
            return self._outcome(np.nan, "no ascent ended within its gradients"), nothing
        regions, doubt = self._unvisited(reached)
        if not regions:
            return self._outcome(np.nan if doubt else self._slab_mass(), doubt), nothing
        total = np.logaddexp.reduce([region.log_mass for _, region in regions]) - self._log_chains
        regions.sort(key=lambda each: -each[1].log_mass)
        places = space.place(np.stack([maximum.y for maximum, _ in regions]))
        share = float(1.0 / (1.0 + np.exp(-min(total, 700.0))))
        return self._outcome(share, doubt, places[0]), places

    def _outcome(self, mass: float, undecided: str, position: np.ndarray | None = None) -> OtherModes:
        space = self._space
        counted = OtherModes(mass, None, -1, np.nan, "", undecided, self._ascents, self._sides, space.spent)
        if position is None:
            return counted
        low, middle, high = np.quantile(space.place(space.draws), [0.159, 0.5, 0.841], axis=0)
        offset = (position - middle) / np.maximum(0.5 * (high - low), 1e-300)
        furthest = int(np.argmax(np.abs(offset)))
        place = tuple(position.tolist())
        return counted._replace(position=place, coordinate=furthest, offset=float(offset[furthest]))

    # -- candidates and ascents --------------------------------------------------------------------------------------

    def _starts(self, prior: np.ndarray) -> np.ndarray:
        """Return the places ``(n, d)`` from which ascents start: the highest draws, and the best candidates.

        Among candidates at similar distance the best is the one whose log density falls least below that of the draws
        for its squared distance; those furthest above their neighbours come first.  Some lie along the coordinates,
        where modes narrow in all of them can be met, on both sides of 64 at most; up to a quarter of the others are
        draws of the prior, and the remaining ones lie in random directions.
        """
        space = self._space
        d = space.d
        rng = self._rng
        top = float(self._lp_of_some.max())
        count = min(int(SEARCH.candidate_share * self._limit), max(SEARCH.ascents, space.room))
        from_prior = space.whiten(prior[: count // 4])
        along_sides = space.along_coordinates(SEARCH.on_axes, rng)
        self._sides = len(along_sides)
        on_axes = along_sides.reshape(-1, d)
        self._limit += len(on_axes)
        random = rng.standard_normal((count - len(from_prior), d))
        nearest = np.log(SEARCH.nearest)
        span = (np.log(SEARCH.furthest) - nearest) * (rng.permutation(len(random)) + 0.5)
        random *= (np.exp(nearest + span / len(random)) * np.sqrt(d) / np.linalg.norm(random, axis=1))[:, None]
        y = np.concatenate([from_prior, on_axes, random])
        lp = space.lp(y)
        self._random_places = random, lp[-len(random) :]
        best, share_of_typical = lowest_falls(y, top - lp, SEARCH.ascents)
        highest = np.argsort(-self._lp_of_some)[: SEARCH.chain_ascents]
        return np.concatenate([self._some[highest], y[best[np.argsort(share_of_typical)]]])

    # -- which maxima are modes that no chain visits -------------------------------------------------------------------

    def _unvisited(self, reached: list[Maximum]) -> tuple[list[tuple[Maximum, Weighed]], str]:
        """Return the maxima in whose regions draws are missing, and why others are undecided, if any are."""
        regions: list[tuple[Maximum, Weighed]] = []
        doubt = ""
        for i, maximum in enumerate(sorted(reached, key=lambda each: -each.lp)[: SEARCH.most_modes]):
            if i and self._left < 0:
                break
            if any(region.contains(maximum.y[None])[0] for _, region in regions):
                continue
            region = self._weighed(maximum, reached)
            way = 0.5 * np.sqrt(maximum.scale) / max(np.linalg.norm(maximum.y), 1e-300)
            if not self._is_missed(maximum, region) or not follows_gradient(self._space.density, maximum.y, way, 1):
                continue
            if region.effective >= SEARCH.effective:
                regions.append((maximum, region))
            elif region.log_mass - self._log_chains > np.log(SEARCH.mass):
                doubt = "the mass of another mode is not known"
        return regions, doubt

    def _is_missed(self, maximum: Maximum, region: Weighed) -> bool:
        """Return whether draws are missing in a region; that of the chains' own maximum does not contain it."""
        ratio = float(np.exp(min(region.log_mass - self._log_chains, 700.0)))
        share = ratio / (1.0 + ratio)
        enough = region.visited > SEARCH.visited * share or share * len(self._space.draws) < SEARCH.expected
        return ratio >= 0.1 * SEARCH.mass and not enough and bool(region.contains(maximum.y[None])[0])

    def _weighed(self, maximum: Maximum, reached: list[Maximum]) -> Weighed:
        """Return the region of a maximum, as one of those ``reached``, with its mass.

        In many coordinates it is the half space beside the nearest one to the draws, with Laplace's mass over its, if
        the density dips between them: an ascent ends anywhere on a flat top.
        """
        space = self._space
        if space.d <= SEARCH.exact_hessian:
            return weighed(maximum, space.density, space.lp, self._log_chains, space.draws, self._rng)
        nearest = min(reached, key=lambda other: float((other.y**2).sum()))
        way = maximum.y - nearest.y

        def contains(y: np.ndarray) -> np.ndarray:
            return np.asarray((y - nearest.y) @ way > 0.5 * float(way @ way))

        log_ratio = -np.inf
        between = space.lp(nearest.y + np.linspace(0.1, 0.9, 9)[:, None] * way)
        if between.min() < min(maximum.lp, nearest.lp) - _DIP:
            masses = [each.lp - log_determinant(each, space.density) for each in (maximum, nearest)]
            log_ratio = masses[0] - masses[1] if np.isfinite(masses).all() else -np.inf
        return Weighed(log_ratio + self._log_chains, np.inf, float(contains(space.draws).mean()), contains)

    def _slab_mass(self) -> float:
        """Return the share of the mass in a slab around the draws, without candidates whose log density is rounding."""
        places, heights = self._random_places
        space = self._space
        weights = heights + 0.5 * space.d * np.log((places**2).sum(axis=1))
        while share := slab_mass(places, heights, space.draws, self._log_chains):
            heaviest = int(np.argmax(weights))
            if follows_gradient(space.density, places[heaviest]):
                break
            heights[heaviest] = weights[heaviest] = -np.inf
        return share
