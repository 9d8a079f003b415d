"""The warm-up of a posterior that may have funnels: they are looked for in its draws, and straightened if found.

The schedule of :mod:`pmm_mcmc.tuning.schedule` works in straightened coordinates and knows nothing of them.  A map is
learnt from draws and gradients that it has taken anyway (:mod:`pmm_mcmc.noncentring.learn`), and the schedule begins
anew in the map's coordinates; what the chains then see of the funnel's neck teaches the next map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pmm_mcmc.methods import Settings
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.learn import Learnt, learn_map
from pmm_mcmc.noncentring.left import left_by
from pmm_mcmc.tuning.schedule import Warmup
from pmm_mcmc.tuning.setting import Block, Tuned

__all__ = ["Straightening"]

# Transitions before the first search, and more for each coordinate; between two, at most, and in parts of the warm-up;
# the part of the first that is left out.
_FIRST, _FIRST_EACH, _BETWEEN, _PART, _TRANSIENT = 150, 0.25, 250, 0.3, 0.25
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 4
# Divergence from a Gaussian per coordinate: below the first there is nothing more to learn; above the second chains are
# in so narrow a place that what twice could not be learnt may be seen yet.
_STRAIGHT, _FAR = 0.1, 1.0
_LEAST_LEFT = 150  # transitions, for the schedule to begin anew
_LEAST_ADAPTED, _ADAPTED = 130, 0.3
# Chains that a map is learnt from, and the numbers of their positions in a transition.
_TEACHERS, _NUMBERS = 16, 8000
_SEEN = 512  # draws from which the schedule begins anew
_JUDGED = 3000  # draws by which what a map leaves is judged, the newest


@dataclass
class Straightening:
    """Adapt chains over at most ``length`` transitions of each: what :class:`pmm_mcmc.tuning.schedule.Warmup` offers.

    Attributes
    ----------
    warmup
        The schedule in force.
    funnels
        The map whose coordinates it works in, or ``None``.
    least
        Transitions before which the first schedule does not freeze the setting.
    names
        Of the coordinates, for the report.
    searching
        Whether another search may come.
    learnt
        What the last search found.
    rounds
        Searches made.
    """

    warmup: Warmup
    funnels: FunnelMap | None
    least: int
    names: tuple[str, ...]
    searching: bool
    learnt: Learnt | None = None
    rounds: int = 0
    _before: int = 0
    _spent: int = 0
    _left: float = math.nan
    _searched: int = 0
    _positions: list[np.ndarray] = field(default_factory=list)
    _gradients: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        settings: Settings,
        length: int,
        position: np.ndarray,
        gradient: np.ndarray,
        least: int = _LEAST_ADAPTED,
        names: tuple[str, ...] = (),
        alone: bool = True,
    ) -> Straightening:
        """Begin from positions and gradients ``(n, d)``: see :meth:`pmm_mcmc.tuning.schedule.Warmup.start`.

        Not ``alone``, that is among other step methods, the log density changes between draws, and nothing is learnt.
        """
        funnels = settings.funnels
        search = settings.reparametrise == "auto" and settings.scaling is None and alone
        if funnels is not None:
            position, gradient = _straightened(funnels, position, gradient)
        warmup = Warmup.start(settings, length, position, gradient, least)
        return cls(warmup, funnels, least, names, search)

    # -- what the schedule offers ------------------------------------------------------------------------------------

    @property
    def tuned(self) -> Tuned:
        """The setting in force."""
        tuned = self.warmup.tuned
        return tuned._replace(coordinates=tuned.coordinates._replace(funnels=self.funnels), funnel_left=self._left)

    @property
    def length(self) -> int:
        """Transitions there are."""
        return self._before + self.warmup.length

    @property
    def done(self) -> int:
        """Transitions observed."""
        return self._before + self.warmup.done

    @property
    def boundary(self) -> int:
        """Where the block in hand ends."""
        return self._before + self.warmup.boundary

    @property
    def frozen(self) -> int | None:
        """Transition from which the setting has only been checked, or ``None``."""
        return None if self.warmup.frozen is None else self._before + self.warmup.frozen

    @property
    def clean(self) -> bool | None:
        """Whether the last check found nothing; ``None`` before the first."""
        return self.warmup.clean

    @property
    def source(self) -> np.ndarray:
        """After :meth:`update`: the chain that each chain has to go on from."""
        return self.warmup.source

    @property
    def finished(self) -> bool:
        """Whether the setting is final."""
        return self.warmup.finished

    @property
    def ready(self) -> bool:
        """Whether the setting has been frozen and found good."""
        return self.warmup.ready

    @property
    def tolerance(self) -> float:
        """Share of the kinetic energies by which the energy may rise in a step beyond the guard's threshold."""
        return self.warmup.tolerance

    @property
    def n_grad(self) -> int:
        """Gradients that updates have taken by themselves, for all chains."""
        return self._spent + self.warmup.n_grad

    def log_det(self, position: np.ndarray) -> np.ndarray | float:
        """Return what the log density of the schedule's coordinates has beyond the model's, at its ``(..., d)``."""
        return 0.0 if self.funnels is None else self.funnels.log_det(self.funnels.to_z(position))

    def observe(self, block: Block) -> None:
        """Take note of the draws of all chains over the block in hand, in the coordinates of the model."""
        if self.searching or self.funnels is not None:
            d = block.position.shape[2]
            teachers = max(2, min(_TEACHERS, _NUMBERS // max(d, 1)))
            position, gradient = block.position[:teachers], block.gradient[:teachers]
            if self._positions and len(position) != len(self._positions[0]):
                # A chain that goes on alone.
                self._positions, self._gradients = [], []
            self._positions.append(position)
            self._gradients.append(gradient)
            if not self.searching:
                self._keep_newest()
        if self.funnels is not None:
            z, gradient = _straightened(self.funnels, block.position, block.gradient)
            block = block._replace(position=z, gradient=gradient, lp=block.lp + self.funnels.log_det(z))
        self.warmup.observe(block)

    def stop(self) -> None:
        """End here: the next :meth:`update` is the last."""
        self.warmup.stop()

    def update(self, gradient_at: Callable[[np.ndarray], np.ndarray] | None = None) -> Tuned:
        """Close the block; return the setting for the next one: see :meth:`pmm_mcmc.tuning.schedule.Warmup.update`."""
        own = gradient_at
        if gradient_at is not None and self.funnels is not None:
            own = _of_straightened(self.funnels, gradient_at)
        self.warmup.update(own)
        if self.searching:
            self._search(gradient_at)
        if self.finished and self.funnels is not None:
            self._judge(self.funnels, gradient_at)
        if not self.searching and (self.funnels is None or self.finished):
            self._positions, self._gradients = [], []
        return self.tuned

    # -- searching ---------------------------------------------------------------------------------------------------

    def _search(self, gradient_at: Callable[[np.ndarray], np.ndarray] | None) -> None:
        """Look for funnels where it is time to."""
        warmup = self.warmup
        first = _FIRST + _FIRST_EACH * len(warmup.tuned.coordinates.centre)
        between = min(_BETWEEN if self.rounds else first, int(_PART * (self.length - self._searched)))
        if warmup.length - warmup.done < _LEAST_LEFT:
            self._end()
        elif self.done - self._searched >= between or warmup.frozen is not None:
            self._learn(gradient_at)

    def _learn(self, gradient_at: Callable[[np.ndarray], np.ndarray] | None) -> None:
        if self.rounds == 0:
            first = sum(part.shape[1] for part in self._positions)
            self._keep(slice(int(_TRANSIENT * first), None))
        else:
            self._keep(slice(None))
        (x,), (g,) = self._positions, self._gradients
        chains, n, _ = x.shape
        old = self.funnels
        learnt = learn_map(
            _in_order(x), _in_order(g), np.tile(np.arange(chains), n), old, self.names or None, gradient_at
        )
        self._spent += learnt.n_grad
        self.learnt, self.rounds, self._searched = learnt, self.rounds + 1, self.done
        left = _STRAIGHT if self.rounds < _FEWEST_ROUNDS else _FAR
        hopeless = old is None and learnt.map is None and not learnt.before > left
        straight = learnt.map is not None and learnt.after < _STRAIGHT and self.rounds >= _FEWEST_ROUNDS
        if hopeless or straight or self.rounds >= _MOST_ROUNDS:
            self._end()
        if learnt.map is not old:
            self._begin_anew(learnt.map, x[:, -_SEEN // chains :], g[:, -_SEEN // chains :])
        elif self.warmup.frozen is not None:
            self._end()

    def _judge(self, funnels: FunnelMap, gradient_at: Callable[[np.ndarray], np.ndarray] | None) -> None:
        """Look at what the map in force leaves, in the newest draws and below them."""
        if not self._positions:
            return
        self._keep_newest()
        (x,), (g,) = self._positions, self._gradients
        self._left, spent = left_by(funnels, _in_order(x), _in_order(g), gradient_at)
        self._spent += spent

    def _begin_anew(self, funnels: FunnelMap | None, x: np.ndarray, g: np.ndarray) -> None:
        old = self.warmup
        left, d = old.length - old.done, x.shape[2]
        z, gradient = x.reshape(-1, d), g.reshape(-1, d)
        if funnels is not None:
            z, gradient = _straightened(funnels, z, gradient)
        good = np.isfinite(z).all(axis=1) & np.isfinite(gradient).all(axis=1)
        # The newest first: the schedule's centre.
        z, gradient = z[good][::-1], gradient[good][::-1]
        self._spent, self._before, self.funnels = self._spent + old.n_grad, self._before + old.done, funnels
        least = min(self.least, max(_LEAST_ADAPTED, int(_ADAPTED * left)))
        self.warmup = Warmup.start(old.settings, left, z, gradient, least)
        # Chains that were to be left behind still are.
        self.warmup.source = old.source

    def _keep(self, which: slice) -> None:
        """Put the draws together, and leave some out."""
        self._positions = [np.concatenate(self._positions, axis=1)[:, which]]
        self._gradients = [np.concatenate(self._gradients, axis=1)[:, which]]

    def _keep_newest(self) -> None:
        self._keep(slice(-math.ceil(_JUDGED / len(self._positions[0])), None))

    def _end(self) -> None:
        self.searching = False

    @property
    def words(self) -> str:
        """What was straightened and what it brought; empty where nothing was."""
        return str(self.learnt) if self.learnt is not None and self.learnt.map is not None else ""


def _in_order(draws: np.ndarray) -> np.ndarray:
    """Return draws ``(chain, draw, d)`` in the order of time, the chains side by side: ``(n, d)``."""
    return draws.swapaxes(0, 1).reshape(-1, draws.shape[2])


def _straightened(funnels: FunnelMap, x: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        z = funnels.to_z(x)
        return z, funnels.pull_back(z, gradient)


def _of_straightened(funnels: FunnelMap, gradient_at: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the gradient as a function of straightened positions."""

    def straightened(z: np.ndarray) -> np.ndarray:
        return funnels.pull_back(z, gradient_at(funnels.to_x(z)))

    return straightened
