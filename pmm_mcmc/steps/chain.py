"""One chain as PyMC advances it: tuned parameters, state, warm-up, and draws that are computed ahead."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import Block, MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import Chunk, change_coordinates, empty_state
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.langevin.methods import Scheme
from pmm_mcmc.model.initial_points import box_widths
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.noncentring import NoncentringWarmup
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.scouts import look_around
from pmm_mcmc.warmup.step_size import fixed_setting

__all__ = ["Chain", "NotFiniteError"]

# A call of the engine costs some 30 microseconds.  Draws are computed ahead to make that negligible, but few enough
# that the progress bar and Ctrl-C respond.  Their values do not depend on it.
MOST_DRAWS_AHEAD, SECONDS_AHEAD = 256, 0.05
# Points around the start, within this distance, that the first preconditioner and curvature are found from.
_PROBES, _PROBE_WIDTH = 8, 0.1
# Chains of its own that a chain of PyMC, alone in its process, is tuned together with until the setting is frozen: four
# in all, whose setting is as near to that of many chains as that of more (benchmarks/frozen/tuning.txt).
_WARMUP_CHAINS = 4


class NotFiniteError(Exception):
    """The log density or its gradient is not finite at the position of the chain."""


@dataclass
class Chain:
    """A chain with all that it needs to continue bit for bit.

    Attributes
    ----------
    n_tune, n_draws : int
        Numbers of draws in warm-up and after it.
    key : (2,) uint64
        Random key of the chain.
    iteration, row, transition : int
        Draws handed out in all; those of the current chunk; transitions made for the draws handed out.
    n_grad, unstable, pending : int
        Gradients spent for these draws; transitions rejected in this phase; gradients not yet counted for a draw.
    tuned, warmup, companions
        Current parameters; the warm-up, until its end; its companion chains, until the parameters are frozen.
    state, gradient, position : (4 d + 2,), (width,), (d,)
        The engine's state after the last draw handed out, the evaluation there, and the draw in the model's
        coordinates.
    prior : (n, d), optional
        Draws of the prior for the scouts that look for other modes at the end of the warm-up; None without these.
    other_modes
        What they found.
    """

    arguments: MethodArguments
    n_tune: int
    n_draws: int
    key: np.ndarray
    tuned: TunedParameters
    warmup: NoncentringWarmup | None
    companions: Ensemble | None
    state: np.ndarray
    gradient: np.ndarray
    position: np.ndarray
    iteration: int = 0
    transition: int = 0
    n_grad: int = 0
    unstable: int = 0
    pending: int = 0
    prior: np.ndarray | None = None
    other_modes: OtherModes = field(default_factory=OtherModes)
    _chunk: Chunk | None = None
    row: int = 0
    _observed: int = 0
    _ahead: int = 1
    _parts: list[Block] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        arguments: MethodArguments,
        engine: NumbaEngine,
        position: np.ndarray,
        *,
        jitter: bool,
        alone: bool,
        n_tune: int,
        n_draws: int,
        rng: np.random.Generator,
    ) -> Chain:
        """Start at a position or, with ``jitter``, uniformly within one unit of it, as PyMC does for NUTS.

        Raises
        ------
        NotFiniteError
            If the log density or its gradient is not finite there.
        """
        d = len(position)
        key = rng.integers(0, 2**64, size=2, dtype=np.uint64)
        evaluations = 0
        structure = engine.structure
        sites = None if structure is None else structure.none()

        def gradient_at(q: np.ndarray) -> np.ndarray | None:
            nonlocal evaluations
            evaluations += 1
            state = empty_state(to_z(q), np.zeros(d))
            gradient = engine.evaluate(Coordinates(np.zeros(d), np.ones(d), sites), state)
            return None if np.isnan(state[4 * d]) else gradient[:d]

        def to_z(x: np.ndarray) -> np.ndarray:
            return x if structure is None or sites is None else structure.to_z(x, sites)[0]

        def jittered(width: float) -> tuple[np.ndarray, np.ndarray] | None:
            for box in box_widths(lambda: gradient_at(position) is not None):
                start = position + box * width * rng.uniform(-1.0, 1.0, size=d)
                found = gradient_at(start)
                if found is not None:
                    return start, found
            return None

        found = jittered(1.0) if jitter else None
        if found is None:
            at_position = gradient_at(position)
            if at_position is None:
                raise NotFiniteError
            found = position, at_position
        start, gradient = found
        if n_tune == 0:
            tuned, warmup, companions = fixed_setting(arguments, to_z(start), sites), None, None
        else:
            more = (_WARMUP_CHAINS - 1) * alone
            others = [pair for pair in (jittered(1.0 if jitter else _PROBE_WIDTH) for _ in range(more)) if pair]
            pairs = [(start, gradient)]
            for probe in start + _PROBE_WIDTH * rng.uniform(-1.0, 1.0, size=(_PROBES, d)):
                there = gradient_at(probe)
                if there is not None:
                    pairs.append((probe, there))
            at, slopes = (np.array(part) for part in zip(*pairs, *others, strict=True))
            least = max(CALIBRATION.least_adapted, int(CALIBRATION.least_adapted_share * n_tune))
            warmup = NoncentringWarmup.start(arguments, n_tune, to_z(at), slopes, least, sites)
            tuned = warmup.tuned
            companions = None
            if others:
                companions = Ensemble.start(engine, tuned.coordinates, to_z(np.array([x for x, _ in others])), rng)
                evaluations += len(others)
        velocity = rng.standard_normal(d) * (arguments.dynamics == "underdamped")
        state = empty_state(tuned.coordinates.whiten(to_z(start)), velocity)
        gradient = engine.evaluate(tuned.coordinates, state)
        return cls(
            arguments, n_tune, n_draws, key, tuned, warmup, companions, state, gradient, start, pending=evaluations + 1
        )

    @property
    def thin(self) -> int:
        """Current number of transitions for each draw."""
        return self.tuned.steps_per_draw if self.warmup is None else 1

    @property
    def latest(self) -> np.ndarray:
        """The last draw handed out."""
        return self._chunk.model_position[self.row - 1] if self._chunk is not None and self.row else self.position

    def settle(self) -> None:
        """Return to the last draw handed out; later ones will be computed again, with identical values."""
        if self._chunk is None:
            return
        self._observe()
        if self.row:
            row = self.row - 1
            self.state, self.gradient = self._chunk.state[row].copy(), self._chunk.gradient[row].copy()
            self.position = self._chunk.model_position[row].copy()
            self.transition += self.row * self.thin
            self.n_grad += int(self._chunk.n_grad[: self.row].sum())
            self.unstable += int(self._chunk.unstable[: self.row].sum())
            self.pending = 0
        self._chunk, self.row, self._observed = None, 0, 0

    def stop_tuning(self, engine: NumbaEngine) -> None:
        """End the warm-up, early or not.

        A step size that failed its last check is shrunk and checked again, with transitions beyond the ``n_tune``
        requested ones.
        """
        self.settle()
        if self.warmup is not None and self._collected < self.warmup.length - self.warmup.done:
            self._close_block(engine, stop=True)
        self._retune(engine)
        while self.warmup is not None:
            rows = self.warmup.boundary - self.warmup.done
            chunk = self._run(engine, self.state, self.gradient, rows, 1)
            self.transition += rows
            self.pending += int(chunk.n_grad.sum())
            self._parts.append(_as_block(chunk, slice(None)))
            self._close_block(engine)

    def relocate(self, engine: NumbaEngine, position: np.ndarray | None) -> None:
        """Evaluate again, at another position or because the other variables of the model have changed.

        Raises
        ------
        NotFiniteError
            If the log density or its gradient is not finite there.
        """
        self.settle()
        d = engine.d
        state, coordinates = self.state.copy(), self.tuned.coordinates
        if position is not None:
            z = position
            if engine.structure is not None and coordinates.sites is not None:
                z, _ = engine.structure.to_z(position, coordinates.sites)
            state[:d] = coordinates.whiten(z)
            self.position = position
        gradient = engine.evaluate(self.tuned.coordinates, state)
        self.pending += 1
        if np.isnan(state[4 * d]):
            raise NotFiniteError
        self.state, self.gradient = state, gradient

    def look_ahead(self, engine: NumbaEngine, alone: bool) -> tuple[Chunk, TunedParameters, int]:
        """Compute the next draws; return them, the tuned parameters and the number of transitions for each.

        Beside other step methods (not ``alone``) a chain computes one draw at a time.
        """
        self.settle()
        self._retune(engine)
        left = self.n_tune + self.n_draws - self.iteration
        rows = min(self._ahead, left) if alone and left > 0 else 1
        if self.warmup is not None:
            rows = min(rows, self.warmup.boundary - self.warmup.done - self._collected)
        tuned, thin = self.tuned, self.thin
        state, gradient = self.state.copy(), self.gradient.copy()
        began = time.perf_counter()
        chunk = self._run(engine, state, gradient, rows, thin)
        if not alone and engine.kernel.scheme == Scheme.RECYCLED:
            self._end_point(engine, state, chunk)
        seconds = max((time.perf_counter() - began) / rows, 1e-9)
        self._ahead = int(np.clip(SECONDS_AHEAD / seconds, 1, min(MOST_DRAWS_AHEAD, 4 * self._ahead)))
        chunk.n_grad[0] += self.pending
        self._chunk = chunk
        return chunk, tuned, thin

    def _run(self, engine: NumbaEngine, state: np.ndarray, gradient: np.ndarray, rows: int, thin: int) -> Chunk:
        return engine.run(self.tuned, state, gradient, self.key, self.transition, rows, thin, self._tolerance)

    @property
    def _tolerance(self) -> float:
        return 0.0 if self.warmup is None else self.warmup.tolerance

    @property
    def _collected(self) -> int:
        """Number of draws collected for the current block of warm-up."""
        return sum(part.lp.shape[1] for part in self._parts)

    def _end_point(self, engine: NumbaEngine, state: np.ndarray, chunk: Chunk) -> None:
        # Other variables are sampled given this draw, which must be the chain's position and not the last midpoint.
        coordinates, d = self.tuned.coordinates, chunk.position.shape[1]
        gradient = engine.evaluate(coordinates, state)
        chunk.n_grad[0] += 1
        if np.isnan(state[4 * d]):
            # No finite density there: back to the midpoint, with a fresh velocity, as the engine does.
            midpoint = coordinates.whiten(chunk.position[0])
            velocity = np.random.default_rng([*self.key, self.transition]).standard_normal(d)
            chunk.state[0, :d], chunk.state[0, d : 2 * d] = midpoint, velocity
            chunk.unstable[0] += 1
            return
        chunk.state[0], chunk.gradient[0] = state, gradient
        chunk.lp[0] = state[4 * d]
        chunk.position[0] = coordinates.place(state[:d])

    def _observe(self) -> None:
        """Collect the draws of warm-up that were handed out since the last call."""
        chunk, rows = self._chunk, slice(self._observed, self.row)
        if chunk is None or rows.start == rows.stop:
            return
        self._observed = self.row
        if self.warmup is not None:
            self._parts.append(_as_block(chunk, rows))

    def _retune(self, engine: NumbaEngine) -> None:
        """Close the block of warm-up if it is complete."""
        warmup = self.warmup
        if warmup is not None and warmup.done + self._collected >= warmup.boundary:
            self._close_block(engine)

    def _close_block(self, engine: NumbaEngine, stop: bool = False) -> None:
        """Pass the collected draws to warm-up, and take over its tuned parameters."""
        warmup, old = self.warmup, self.tuned
        assert warmup is not None
        block = None
        if self._parts:
            block = Block(*(np.concatenate(part, axis=1) for part in zip(*self._parts, strict=True)))
            self._parts = []
            if self.companions is not None:
                chunk = self.companions.advance(engine, old, block.lp.shape[1], tolerance=self._tolerance)
                self.pending += int(chunk.n_grad.sum())
                others = Block.of(chunk)
                block = Block(*(np.concatenate(part) for part in zip(block, others, strict=True)))
            warmup.observe(block, engine.structure)
        if stop:
            warmup.stop()
        before = warmup.n_grad
        self.tuned = warmup.update(engine.gradient_at, engine.structure)
        self.pending += warmup.n_grad - before
        self._follow(warmup.source)
        new = self.tuned.coordinates
        self.state, self.gradient = change_coordinates(
            self.state, self.gradient, old.coordinates, new, self.arguments.kernel, engine.structure
        )
        if self.companions is not None:
            self.companions.change(engine, old.coordinates, new)
        if warmup.frozen is not None:
            self.companions = None
        if warmup.finished:
            self.warmup, self.companions, self.unstable = None, None, 0
            if self.prior is not None and block is not None:
                spent, rng = self.n_grad + self.pending, np.random.default_rng(self.key)
                self.other_modes, _, more = look_around(engine, self.tuned, block, self.prior, spent, rng)
                self.pending += more
            self.prior = None

    def _follow(self, source: np.ndarray) -> None:
        """Restart chains from others where warm-up says so (:attr:`pmm_mcmc.warmup.schedule.Warmup.source`)."""
        if self.companions is None or np.array_equal(source, np.arange(len(source))):
            return
        everyone = Ensemble(
            np.vstack([self.state, self.companions.state]),
            np.vstack([self.gradient, self.companions.gradient]),
            np.vstack([self.key, self.companions.keys]),
        )
        everyone.copy_from(source)
        self.state, self.gradient = everyone.state[0], everyone.gradient[0]
        self.companions.state, self.companions.gradient = everyone.state[1:], everyone.gradient[1:]


def _as_block(chunk: Chunk, rows: slice) -> Block:
    """Return copies of some draws of one chain's chunk."""
    return Block(*(values[rows].copy()[None] for values in Block.of(chunk)))
