"""The search, after the draws, for modes that no chain has visited.

1. The log density is evaluated at *candidates*: draws of the prior, and places at 2 to 32 standard deviations from the
   draws, along the coordinates of the model and in random directions.
2. *Ascents* to local maxima start from the best of them, and from the highest draws.
3. Each maximum has a region, whose mass is estimated (:mod:`pmm_mcmc.diagnostics.mode_mass`).  It is a mode that chains
   do not visit if a tenth or less of the draws are there that should be.

A broad slab around the draws, which has no maximum, shows in the density at the candidates.

The search goes on in coordinates in which the draws have unit covariance.  Several positions may stand for the same
parameters: by signs of scales, turns of angles, or labels that may be exchanged.  Of these *copies* draws have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics import mode_mass
from pmm_mcmc.diagnostics.thresholds import SEARCH
from pmm_mcmc.warmup.ascent import Ascents, Density


class OtherModes(NamedTuple):
    """The modes beside those that the chains visit.

    Attributes
    ----------
    mass
        Share of the posterior in other modes, as estimated; 0 if there are none, NaN if there was no search.
    position : (d,), optional
        The heaviest one, in the model's coordinates; None if there is none, or if the mass has no maximum of its own.
    coordinate, offset
        The coordinate in which it is furthest away, and by how many standard deviations of the draws.
    name
        The name of that coordinate.
    undecided
        Why the search has no answer; empty if it has one.
    """

    mass: float = math.nan
    position: tuple[float, ...] | None = None
    coordinate: int = -1
    offset: float = math.nan
    name: str = ""
    undecided: str = ""

    @classmethod
    def of(cls, attribute: Mapping[str, Any]) -> OtherModes:
        """Read them from the attribute of a result, which is empty if there was no search."""
        return cls(**{name: attribute[name] for name in cls._fields if name in attribute})

    @property
    def ratio(self) -> float:
        """Mass of other modes over that of the chains."""
        return self.mass / max(1.0 - self.mass, 1e-300)


# Dip of the log density above which two maxima are two modes.
DIP = 0.2


class ModeSearch:
    """A search for modes that the draws of a ``space`` are not in; positions ``y`` are whitened."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator):
        self._space = space
        self._limit = SEARCH.gradients
        self._begun = space.spent
        self._rng = rng
        rows = np.unique(np.linspace(0, len(space.held_back) - 1, SEARCH.draws).astype(int))
        lp = space.lp(space.held_back[rows])
        self._some = space.held_back[rows[np.isfinite(lp)]]
        self._lp_of_some = lp[np.isfinite(lp)]
        self._log_chains = np.nan
        if len(self._some):
            places = rng.standard_normal((SEARCH.draws, space.d))
            self._log_chains = mode_mass.chain_mass(space.lp, space.draws, self._some, self._lp_of_some, places)
        self._random_places = np.empty((0, space.d)), np.empty(0)

    @property
    def _left(self) -> int:
        return self._limit + self._begun - self._space.spent

    def run(self, prior: np.ndarray, maxima: np.ndarray | None = None) -> tuple[OtherModes, np.ndarray]:
        """Return the other modes, and their maxima ``(m, d)``, the model's positions.

        Draws of the ``prior`` ``(n, d)``, if there are any, are among the candidates; ascents start from ``maxima``
        ``(n, d)`` too.
        """
        space = self._space
        nothing = np.empty((0, space.d))
        if not np.isfinite(self._log_chains):
            return self._outcome(np.nan, "the log density is not finite at the draws"), nothing
        starts = self._starts(prior)
        if maxima is not None:
            starts = np.concatenate([space.whiten(maxima), starts])
        reached: list[mode_mass.Maximum] = []
        for i in range(0, len(starts), SEARCH.ascents_together):
            group = starts[i : i + SEARCH.ascents_together]
            ends = reached and self._left < (1.0 - SEARCH.ascent_share) * self._limit
            if ends or self._left < len(group) * SEARCH.least_ascent:
                break
            reached += mode_mass.distinct(self._space.maxima(group, self._left), reached)
        if not reached:  # of many coordinates, or a density without a bound, one may be all that ends
            reached = self._space.maxima(starts[:1], SEARCH.gradients)
        if not reached:
            return self._outcome(np.nan, "no ascent ended within its gradients"), nothing
        regions, doubt = self._unvisited(reached)
        if not regions:
            return self._outcome(np.nan if doubt else self._slab_mass(), doubt), nothing
        total = np.logaddexp.reduce([region.log_mass for _, region in regions])
        regions.sort(key=lambda each: -each[1].log_mass)
        places = space.place(np.stack([maximum.y for maximum, _ in regions]))
        return self._outcome(self._share(total), doubt, places[0]), places

    def _share(self, log_mass: float) -> float:
        """Return the share of a mass in itself and that of the chains."""
        return float(1.0 / (1.0 + np.exp(-np.clip(log_mass - self._log_chains, -700.0, 700.0))))

    def _outcome(self, mass: float, undecided: str, position: np.ndarray | None = None) -> OtherModes:
        space = self._space
        if position is None:
            return OtherModes(mass, undecided=undecided)
        low, middle, high = np.quantile(space.place(space.draws), [0.159, 0.5, 0.841], axis=0)
        offset = (position - middle) / np.maximum(0.5 * (high - low), 1e-300)
        furthest = int(np.argmax(np.abs(offset)))
        place = tuple(position.tolist())
        return OtherModes(mass, place, furthest, float(offset[furthest]), undecided=undecided)

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
        count = min(int(SEARCH.candidate_share * self._limit), max(SEARCH.ascents, space.room))
        from_prior = space.whiten(prior[: count // 4])
        on_axes = space.along_coordinates(SEARCH.on_axes, rng).reshape(-1, d)
        self._limit += len(on_axes)
        random = rng.standard_normal((count - len(from_prior), d))
        nearest = np.log(SEARCH.nearest)
        span = (np.log(SEARCH.furthest) - nearest) * (rng.permutation(len(random)) + 0.5)
        random *= (np.exp(nearest + span / len(random)) * np.sqrt(d) / np.linalg.norm(random, axis=1))[:, None]
        y = np.concatenate([from_prior, on_axes, random])
        lp = space.lp(y)
        self._random_places = random, lp[-len(random) :]
        best = lowest_falls(y, self._lp_of_some.max() - lp, SEARCH.ascents)
        highest = np.argsort(-self._lp_of_some)[: SEARCH.chain_ascents]
        return np.concatenate([self._some[highest], y[best]])

    # -- which maxima are modes that no chain visits -------------------------------------------------------------------

    def _unvisited(
        self, reached: list[mode_mass.Maximum]
    ) -> tuple[list[tuple[mode_mass.Maximum, mode_mass.Region]], str]:
        """Return the maxima in whose regions draws are missing, and why others are undecided, if any are."""
        regions: list[tuple[mode_mass.Maximum, mode_mass.Region]] = []
        doubt = ""
        for i, maximum in enumerate(sorted(reached, key=lambda each: -each.lp)[: SEARCH.most_modes]):
            if i and self._left < 0:
                break
            if any(region.contains(maximum.y[None])[0] for _, region in regions):
                continue
            region = self._region(maximum, reached)
            way = 0.5 * np.sqrt(maximum.scale) / max(np.linalg.norm(maximum.y), 1e-300)
            share = self._share(region.log_mass)
            enough = region.visited > SEARCH.visited * share or share * len(self._space.draws) < SEARCH.expected
            if share < 0.1 * SEARCH.mass or enough or not region.contains(maximum.y[None])[0]:
                continue  # that of the chains' own maximum does not contain it
            if not mode_mass.follows_gradient(self._space.density, maximum.y, way, 1):
                continue
            if region.effective >= SEARCH.effective:
                regions.append((maximum, region))
            elif region.log_mass - self._log_chains > np.log(SEARCH.mass):
                doubt = "the mass of another mode is not known"
        return regions, doubt

    def _region(self, maximum: mode_mass.Maximum, reached: list[mode_mass.Maximum]) -> mode_mass.Region:
        """Return the region of a maximum, as one of those ``reached``, with its mass.

        In many coordinates it is the half space beside the nearest one to the draws, with Laplace's mass over its, if
        the density dips between them: an ascent ends anywhere on a flat top.
        """
        space = self._space
        if space.d <= SEARCH.exact_hessian:
            gaussian = mode_mass.gaussian_about(maximum, space.density, space.lp, self._rng)
            return mode_mass.weighed(*gaussian, maximum.y, space.lp, self._log_chains, space.draws, self._rng)
        nearest = min(reached, key=lambda other: float((other.y**2).sum()))
        way = maximum.y - nearest.y

        def contains(y: np.ndarray) -> np.ndarray:
            return np.asarray((y - nearest.y) @ way > 0.5 * float(way @ way))

        log_ratio = -np.inf
        between = space.lp(nearest.y + np.linspace(0.1, 0.9, 9)[:, None] * way)
        if between.min() < min(maximum.lp, nearest.lp) - DIP:
            masses = [each.lp - mode_mass.half_log_determinant(each, space.density) for each in (maximum, nearest)]
            log_ratio = masses[0] - masses[1] if np.isfinite(masses).all() else -np.inf
        return mode_mass.Region(log_ratio + self._log_chains, np.inf, float(contains(space.draws).mean()), contains)

    def _slab_mass(self) -> float:
        """Return the share of the mass in a slab around the draws, which has no maximum; 0 if it is small.

        Candidates where the log density is rounding do not count.
        """
        places, lp = self._random_places
        log_masses = mode_mass.slab_log_masses(places, lp, self._space.draws)
        least = self._log_chains + np.log(SEARCH.hidden_mass)
        while (log_mass := np.logaddexp.reduce(log_masses) - np.log(len(lp))) > least:
            heaviest = int(np.argmax(log_masses))
            if mode_mass.follows_gradient(self._space.density, places[heaviest]):
                return self._share(log_mass)
            log_masses[heaviest] = -np.inf
        return 0.0


# A map of positions ``(n, d)``.
Map = Callable[[np.ndarray], np.ndarray]
# Numbers in the places that are held at once, at most: 16 MiB.
_NUMBERS = 2**21
# Draws for each coordinate, at least, by which a full covariance is known.
_DRAWS_A_COORDINATE = 10


def turned(x: np.ndarray, centre: np.ndarray, periods: np.ndarray | None) -> np.ndarray:
    """Return positions ``(n, d)`` with their angles, which have ``periods``, within half a turn of ``centre``."""
    if periods is None:
        return x
    return np.asarray(x - periods * np.round((x - centre) / np.where(periods > 0.0, periods, np.inf)))


class SearchSpace:
    """Whitened coordinates of draws ``x`` ``(n, d)``, with the density of positions ``z``.

    ``to_z`` and ``to_x`` are the maps between the model's coordinates and those of the density, ``copy`` is that to the
    copy which draws have, None without any.  Every other draw makes the coordinates, and the others are ``held_back``.
    The number of evaluations is ``spent``.
    """

    def __init__(
        self,
        density: Density,
        x: np.ndarray,
        to_z: Map = np.asarray,
        to_x: Map = np.asarray,
        copy: Map | None = None,
        coordinates: Coordinates | None = None,
    ):
        self._density = density
        self._to_z = to_z
        self._to_x = to_x
        self._copy = copy
        z = to_z(x)
        self.coordinates = _whitening(z[::2] if len(z) > 1 else z, coordinates)
        self.draws = self.coordinates.whiten(z)
        self.held_back = self.draws[1::2] if len(z) > 1 else self.draws
        self.spent = 0

    @property
    def d(self) -> int:
        """Number of coordinates."""
        return self.draws.shape[1]

    @property
    def room(self) -> int:
        """Number of places that may be held at once."""
        return max(1, _NUMBERS // self.d)

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Return whitened positions of those of the model's whose are finite."""
        with np.errstate(all="ignore"):
            y = self.coordinates.whiten(self._to_z(x))
        return y[np.isfinite(y).all(axis=1)]

    def place(self, y: np.ndarray) -> np.ndarray:
        """Return the model's positions of whitened ones."""
        return self._to_x(self.coordinates.place(y))

    def density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and gradients at whitened positions, NaN where they are not finite."""
        self.spent += len(y)
        with np.errstate(all="ignore"):
            lp, slope = self._density(self.coordinates.place(y))
            gradient = self.coordinates.pull_back(slope)
        return np.where(np.isfinite(gradient).all(axis=1) & np.isfinite(lp), lp, np.nan), gradient

    def lp(self, y: np.ndarray) -> np.ndarray:
        """Return log densities, minus infinity at copies, and where they are not finite."""
        lp = np.nan_to_num(self.density(y)[0], nan=-np.inf)
        if self._copy is None:
            return lp
        with np.errstate(invalid="ignore"):
            return np.where((np.abs(self.own_copy(y) - y) < 0.1).all(axis=1), lp, -np.inf)

    def along_coordinates(self, limit: int, rng: np.random.Generator) -> np.ndarray:
        """Return up to ``limit`` whitened places ``(sides, n, d)`` on both sides of 0 along the density's coordinates.

        Their distances grow evenly.
        """
        d = self.d
        steps = int(np.log(SEARCH.furthest / SEARCH.nearest) / np.log(SEARCH.spacing))
        sides = rng.permutation(2 * d)[: min(limit, max(self.room, steps)) // steps]
        axes = np.zeros((len(sides), d))
        axes[np.arange(len(sides)), sides // 2] = 1 - 2 * (sides % 2)
        axes = self.coordinates._replace(centre=np.zeros(d)).whiten(axes)
        lengths = np.linalg.norm(axes, axis=1, keepdims=True)
        has_length = lengths[:, 0] > 0.0  # scales may be beyond what a double holds
        axes = axes[has_length] / lengths[has_length]
        distances = SEARCH.nearest * SEARCH.spacing ** (np.arange(steps) + rng.uniform(size=(len(axes), 1)))
        return np.asarray(distances[:, :, None] * axes[:, None, :])

    def maxima(self, start: np.ndarray, limit: int) -> list[mode_mass.Maximum]:
        """Return the maxima that ascents from whitened starts ``(n, d)`` reach, with at most ``limit`` gradients."""
        with np.errstate(over="ignore", invalid="ignore"):  # a density without a bound
            ends = Ascents.of(self.density, start, np.zeros(self.d), limit)
        y, lp, gradient = (array[ends.arrived] for array in (ends.position, ends.lp, ends.gradient))
        copies = self.own_copy(y)
        if copies is not y:  # a sign, a turn or labels do not make another mode
            y = copies
            lp, gradient = self.density(y)
        maxima = map(mode_mass.Maximum, y, lp.tolist(), gradient, ends.scale[ends.arrived].tolist())
        return mode_mass.distinct([maximum for maximum in maxima if np.isfinite(maximum.lp)], [])

    def own_copy(self, y: np.ndarray) -> np.ndarray:
        """Return of each whitened position ``(n, d)`` the copy that draws would have."""
        if self._copy is None or not len(y):
            return y
        with np.errstate(all="ignore"):  # far out there may be no finite one
            return self.coordinates.whiten(self._to_z(self._copy(self.place(y))))


def lowest_falls(offset: np.ndarray, fall: np.ndarray, count: int) -> np.ndarray:
    """Return, of up to ``count`` groups of places by distance, the number of the best one, the most unusual first.

    The best is that with the least ``fall`` of the log density for its squared ``offset`` ``(n, d)``; how unusual it is
    its share of the median in its group says.
    """
    square = (offset**2).sum(axis=1)
    slope = fall / np.maximum(square, 1e-300)
    groups = np.array_split(np.argsort(square), max(1, min(count, len(square))))
    best = np.array([group[np.argmin(slope[group])] for group in groups if len(group)], int)
    typical = np.array([np.median(slope[group]) for group in groups if len(group)])
    with np.errstate(invalid="ignore"):
        return best[np.argsort(np.nan_to_num(slope[best] / typical, nan=1.0))]


def _whitening(z: np.ndarray, coordinates: Coordinates | None) -> Coordinates:
    """Return coordinates in which draws ``z`` ``(n, d)`` have about unit covariance, or those given if too few."""
    n, d = z.shape
    centre = z.mean(axis=0)
    if d <= SEARCH.exact_hessian and n >= _DRAWS_A_COORDINATE * d:
        try:
            root = np.linalg.cholesky(np.cov(z.T).reshape(d, d))
        except np.linalg.LinAlgError:
            root = np.zeros((d, d))
        if (np.diag(root) > 0.0).all() and np.isfinite(root).all():
            return Coordinates(centre, root if d > 1 else root[0])
    if coordinates is not None:
        return coordinates._replace(centre=centre, density_parameters=None)
    return Coordinates(centre, np.maximum(z.std(axis=0), 1e-300))
