"""One chain as PyMC advances it: tuned parameters, state, warm-up, and draws that are computed ahead."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, chains_of, empty_state
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.langevin.methods import Scheme
from pmm_mcmc.model.initial_points import box_widths
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.schedule import Warmup
from pmm_mcmc.warmup.step_size import fixed_setting
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warming import FEWEST, Warming

__all__ = ["Chain", "NotFiniteError"]

# Draws are computed ahead, since a call of the engine costs some 30 microseconds, but few enough that the progress bar
# and Ctrl-C respond.
MOST_DRAWS_AHEAD = 256
SECONDS_AHEAD = 0.05
# The first preconditioner and curvature come from _PROBES points within _PROBE_WIDTH of the start.
_PROBES = 8
_PROBE_WIDTH = 0.1


class NotFiniteError(Exception):
    """The log density or its gradient is not finite at the position of the chain."""


class _Surroundings:
    """Points around a position at which log density and gradient are finite; counts the evaluations."""

    def __init__(self, engine: NumbaEngine, position: np.ndarray, rng: np.random.Generator):
        self.density_parameters = engine.structure.initial_noncentring()
        self.evaluations = 0
        self._engine = engine
        self._position = position
        self._rng = rng

    def to_z(self, x: np.ndarray) -> np.ndarray:
        """Return the non-centred coordinates of positions."""
        return self._engine.structure.to_z(x, self.density_parameters)[0]

    def point(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a position with its gradient; None if that is not finite."""
        self.evaluations += 1
        gradient = self._engine.gradient_at(self.to_z(x), self.density_parameters)
        return None if np.isnan(gradient).any() else (x, gradient)

    def draw(self, width: float) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a uniform point within a width, or a smaller one where none is finite; None if there is none."""
        for box in box_widths(lambda: self.point(self._position) is not None):
            offset = box * width * self._rng.uniform(-1.0, 1.0, size=len(self._position))
            point = self.point(self._position + offset)
            if point is not None:
                return point
        return None


@dataclass(kw_only=True)
class Chain(Warming):
    """A chain with all that it needs to continue bit for bit.

    Row 0 of the ensemble is this chain after the last draw that PyMC took; in warm-up the others are, until the setting
    is frozen, its companions after their last block.
    """

    arguments: MethodArguments
    n_tune: int  # draws in warm-up, and after it
    n_draws: int
    position: np.ndarray  # (d,): the last draw handed out, in the model's coordinates
    iteration: int = 0  # draws handed out
    transition: int = 0  # transitions for them
    reported: int = 0  # gradients reported with them
    unstable: int = 0  # transitions rejected in this phase
    row: int = 0  # draws handed out from the current chunk
    _chunk: Chunk | None = None  # draws computed ahead
    _rows_ahead: int = 1  # draws of the next chunk, at most
    _blocks: list[Block] = field(default_factory=list)  # draws of the current block of warm-up

    @classmethod
    def begin(
        cls, arguments: MethodArguments, engine: NumbaEngine, position: np.ndarray, *, jitter: bool, moves_all: bool,
        lengths: tuple[int, int], rng: np.random.Generator,
    ) -> Chain:  # fmt: skip
        """Start at a position or, with ``jitter``, uniformly within one unit of it, as PyMC does for NUTS.

        ``lengths`` are the numbers of draws in warm-up and after it.  Raises NotFiniteError if the log density or its
        gradient is not finite there.
        """
        n_tune, n_draws = lengths
        d = len(position)
        key = rng.integers(0, 2**64, size=2, dtype=np.uint64)
        around = _Surroundings(engine, position, rng)
        first_point = around.draw(1.0) if jitter else None
        if first_point is None:
            first_point = around.point(position)
        if first_point is None:
            raise NotFiniteError
        start, _ = first_point
        warmup = None
        companion_points = []
        if n_tune == 0:
            tuned = fixed_setting(arguments, around.to_z(start), around.density_parameters)
        else:
            n_companions = (FEWEST - 1) * moves_all
            drawn = [around.draw(1.0 if jitter else _PROBE_WIDTH) for _ in range(n_companions)]
            companion_points = [point for point in drawn if point]
            probes = [around.point(x) for x in start + _PROBE_WIDTH * rng.uniform(-1.0, 1.0, size=(_PROBES, d))]
            points = [first_point, *(point for point in probes if point), *companion_points]
            positions, slopes = (np.array(column) for column in zip(*points, strict=True))
            warmup = Warmup.start(
                arguments,
                n_tune,
                around.to_z(positions),
                slopes,
                density_parameters=around.density_parameters,
                least=max(THRESHOLDS.least_adapted, int(THRESHOLDS.least_adapted_share * n_tune)),
            )
            tuned = warmup.tuned
        companion_starts = around.to_z(np.array([x for x, _ in companion_points]).reshape(len(companion_points), d))
        companions = Ensemble.start(engine, tuned.coordinates, companion_starts, rng)
        velocity = rng.standard_normal(d) * (arguments.dynamics == "underdamped")
        state = empty_state(tuned.coordinates.whiten(around.to_z(start)), velocity)[None]
        evaluation = engine.evaluate(tuned.coordinates, state)
        ensemble = Ensemble(
            np.concatenate([state, companions.state]),
            np.concatenate([evaluation, companions.evaluation]),
            np.concatenate([key[None], companions.keys]),
        )
        n_grad = np.ones(len(ensemble.keys), int)
        n_grad[0] += around.evaluations
        return cls(
            ensemble, tuned, warmup, n_grad, arguments=arguments, n_tune=n_tune, n_draws=n_draws, position=start
        )  # fmt: skip

    @property
    def thin(self) -> int:
        """Current number of transitions for each draw."""
        return self.tuned.steps_per_draw if self.warmup is None else 1

    @property
    def latest(self) -> np.ndarray:
        """The last draw handed out."""
        return self._chunk.model_position[self.row - 1] if self._chunk is not None and self.row else self.position

    @property
    def _unreported_gradients(self) -> int:
        """Number of gradients spent that no draw has reported yet."""
        return int(self.n_grad.sum()) - self.reported

    def rewind(self) -> None:
        """Rewind the chain to the last draw that PyMC took; later draws are recomputed, with identical values."""
        if self._chunk is None:
            return
        if self.row:
            if self.warmup is not None:
                self._blocks.append(_as_block(self._chunk, slice(self.row)))
            row = self.row - 1
            self.ensemble.state[0] = self._chunk.state[row]
            self.ensemble.evaluation[0] = self._chunk.evaluation[row]
            self.position = self._chunk.model_position[row].copy()
            self.transition += self.row * self.thin
            spent_by_draws = int(self._chunk.n_grad[: self.row].sum())
            self.n_grad[0] += spent_by_draws - self._unreported_gradients
            self.reported += spent_by_draws
            self.unstable += int(self._chunk.unstable[: self.row].sum())
        self._chunk = None
        self.row = 0

    def stop_tuning(self, engine: NumbaEngine) -> None:
        """End the warm-up, early or not.

        A step size that failed its last check is shrunk and checked again, with transitions beyond the ``n_tune``
        requested ones.
        """
        self.rewind()
        if self.warmup is not None and self._collected < self.warmup.length - self.warmup.done:
            self._close_block(engine, stop=True)
        self._close_full_block(engine)
        while self.warmup is not None:
            rows = self.warmup.boundary - self.warmup.done
            ensemble = self.ensemble
            chunk = self._advance(engine, ensemble.state[0], ensemble.evaluation[0], rows, 1)
            self.transition += rows
            self.n_grad[0] += chunk.n_grad.sum()
            self._blocks.append(_as_block(chunk, slice(None)))
            self._close_block(engine)

    def relocate(self, engine: NumbaEngine, position: np.ndarray | None) -> None:
        """Evaluate again, at another position or because the other variables of the model have changed.

        Raises NotFiniteError if the log density or its gradient is not finite there.
        """
        self.rewind()
        ensemble = self.ensemble
        state = ensemble.state[0].copy()
        coordinates = self.tuned.coordinates
        if position is not None:
            z, _ = engine.structure.to_z(position, coordinates.density_parameters)
            state[: engine.d] = coordinates.whiten(z)
            self.position = position
        gradient = engine.evaluate(coordinates, state)
        self.n_grad[0] += 1
        if np.isnan(chains_of(state).lp[0]):
            raise NotFiniteError
        ensemble.state[0] = state
        ensemble.evaluation[0] = gradient

    def look_ahead(self, engine: NumbaEngine, moves_all: bool) -> Chunk:
        """Return the next draws.

        There is one draw at a time if other step methods move variables, too (not ``moves_all``).
        """
        self.rewind()
        self._close_full_block(engine)
        left = self.n_tune + self.n_draws - self.iteration
        rows = min(self._rows_ahead, left) if moves_all and left > 0 else 1
        if self.warmup is not None:
            rows = min(rows, self.warmup.boundary - self.warmup.done - self._collected)
        ensemble = self.ensemble
        state = ensemble.state[0].copy()
        began = time.perf_counter()
        chunk = self._advance(engine, state, ensemble.evaluation[0].copy(), rows, self.thin)
        if not moves_all and engine.kernel.scheme == Scheme.RECYCLED:
            self._draw_at_end_point(engine, state, chunk)
        seconds = max((time.perf_counter() - began) / rows, 1e-9)
        self._rows_ahead = int(np.clip(SECONDS_AHEAD / seconds, 1, min(MOST_DRAWS_AHEAD, 4 * self._rows_ahead)))
        chunk.n_grad[0] += self._unreported_gradients
        self._chunk = chunk
        return chunk

    def _advance(self, engine: NumbaEngine, state: np.ndarray, gradient: np.ndarray, rows: int, thin: int) -> Chunk:
        chain = Ensemble(state, gradient, self.ensemble.keys[0], self.transition)
        tolerance = 0.0 if self.warmup is None else self.warmup.tolerance
        return engine.run(self.tuned, chain, rows, thin=thin, tolerance=tolerance)

    @property
    def _collected(self) -> int:
        """Number of draws collected for the current block of warm-up."""
        return sum(block.lp.shape[1] for block in self._blocks)

    def _draw_at_end_point(self, engine: NumbaEngine, state: np.ndarray, chunk: Chunk) -> None:
        """Move the chunk's one draw from the last midpoint to the chain's position, where other step methods go on."""
        coordinates = self.tuned.coordinates
        gradient = engine.evaluate(coordinates, state)
        chunk.n_grad[0] += 1
        chain = chains_of(state)
        if np.isnan(chain.lp[0]):
            # No finite density there: back to the midpoint, with a fresh velocity, as the engine does.
            last = chains_of(chunk.state[0])
            last.u[:] = coordinates.whiten(chunk.position[0])
            last.v[:] = np.random.default_rng([*self.ensemble.keys[0], self.transition]).standard_normal(len(last.v))
            chunk.unstable[0] += 1
            return
        chunk.state[0] = state
        chunk.evaluation[0] = gradient
        chunk.lp[0] = chain.lp[0]
        chunk.position[0] = coordinates.place(chain.u)

    def _close_full_block(self, engine: NumbaEngine) -> None:
        """Close the block of warm-up if it is complete."""
        if self.warmup is not None and self.warmup.done + self._collected >= self.warmup.boundary:
            self._close_block(engine)

    def _close_block(self, engine: NumbaEngine, stop: bool = False) -> None:
        """Pass the collected draws to warm-up, with those of the companions, and take over its tuned parameters."""
        warmup = self.warmup
        assert warmup is not None
        old = self.tuned.coordinates
        if not self._blocks:  # stopped before the block had any draws
            self.tuned = warmup.finish()
        else:
            block = Block(*(np.concatenate(arrays, axis=1) for arrays in zip(*self._blocks, strict=True)))
            self._blocks = []
            if len(self.n_grad) > 1:
                companions = self.ensemble.subset(slice(1, None))
                chunk = companions.advance(engine, self.tuned, block.lp.shape[1], tolerance=warmup.tolerance)
                self.n_grad[1:] += chunk.n_grad.sum(axis=1)
                block = Block(*(np.concatenate(arrays) for arrays in zip(block, Block.of(chunk), strict=True)))
            self.ensemble.transition = self.transition
            self.close(engine, block, stop=stop)
        for chains in (slice(0, 1), slice(1, None)):  # rounding of the chain must not depend on its companions
            ensemble = self.ensemble.subset(chains)
            ensemble.change_coordinates(engine, old, self.tuned.coordinates)
            self.ensemble.state[chains] = ensemble.state
            self.ensemble.evaluation[chains] = ensemble.evaluation
        if warmup.finished or warmup.frozen is not None:
            self.ensemble = self.ensemble.subset(slice(0, 1))
            self.n_grad = self.n_grad.sum(keepdims=True)
        if warmup.finished:
            self.warmup = None
            self.unstable = 0


def _as_block(chunk: Chunk, rows: slice) -> Block:
    """Return copies of some draws of one chain's chunk."""
    return Block(*(values[rows].copy()[None] for values in Block.of(chunk)))
