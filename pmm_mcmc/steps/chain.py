"""One chain as PyMC advances it: its setting, its state, its warm-up, and the draws computed ahead of the asking."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.numba_engine import Chunk, NumbaEngine, change_coordinates, empty_state
from pmm_mcmc.methods import Scheme, Settings
from pmm_mcmc.steps.report import UnstableReport
from pmm_mcmc.tuning.schedule import Tuned, Warmup, fixed_setting

__all__ = ["Chain", "NotFiniteError"]

# A call of the engine costs some 30 microseconds: enough draws ahead to make that small, few enough that the progress
# bar and Ctrl-C stay live.  Draws do not depend on it.
MOST_DRAWS_AHEAD, SECONDS_AHEAD = 256, 0.05
_PROBES, _PROBE_WIDTH = 8, 0.1
_JITTER_TRIES = 20
_WARMUP_TOLERANCE = 0.25


class NotFiniteError(Exception):
    """The log density or its gradient is not finite where the chain must stand."""


@dataclass
class Chain:
    """A chain and everything that it needs to go on, bit for bit.

    Attributes
    ----------
    n_tune, n_draws : int
        Draws of warm-up and after it.
    key : (2,) uint64
        What its randomness depends on, beside the number of the transition.
    iteration, row, transition : int
        Draws handed out, in all and of the present chunk, and transitions made for them.
    n_grad, unstable, pending : int
        Gradients spent for them; transitions rejected in the present phase; gradients not yet charged to a draw.
    tuned, warmup
        Setting in force; the warm-up, until it has ended.
    state, gradient, position : (4 d + 2,), (d,), (d,)
        The engine's state after the last draw handed out, the gradient there and the draw itself.
    report
        What went wrong after warm-up.
    """

    settings: Settings
    n_tune: int
    n_draws: int
    key: np.ndarray
    tuned: Tuned
    warmup: Warmup | None
    state: np.ndarray
    gradient: np.ndarray
    position: np.ndarray
    iteration: int = 0
    transition: int = 0
    n_grad: int = 0
    unstable: int = 0
    pending: int = 0
    report: UnstableReport = field(default_factory=UnstableReport)
    _chunk: Chunk | None = None
    row: int = 0
    _observed: int = 0
    _ahead: int = 1

    @classmethod
    def start(
        cls,
        settings: Settings,
        engine: NumbaEngine,
        position: np.ndarray,
        *,
        jitter: bool,
        n_tune: int,
        n_draws: int,
        rng: np.random.Generator,
    ) -> Chain:
        """Begin at a position or, with ``jitter``, around it: uniformly within one unit, as PyMC does for NUTS.

        Raises
        ------
        NotFiniteError
            If the log density or its gradient is not finite there.
        """
        d = len(position)
        key = rng.integers(0, 2**64, size=2, dtype=np.uint64)
        evaluations = 0

        def gradient_at(q: np.ndarray) -> np.ndarray | None:
            nonlocal evaluations
            evaluations += 1
            state = empty_state(q, np.zeros(d))
            gradient = engine.evaluate(Coordinates(np.zeros(d), np.ones(d)), state)
            return None if np.isnan(state[4 * d]) else gradient

        tries = [position + 0.5 ** (i // 4) * rng.uniform(-1.0, 1.0, size=d) for i in range(_JITTER_TRIES * jitter)]
        for start in (*tries, position):
            gradient = gradient_at(start)
            if gradient is not None:
                break
        else:
            raise NotFiniteError
        if n_tune == 0:
            tuned, warmup = fixed_setting(settings, start), None
        else:
            pairs = [(start, gradient)]
            for probe in start + _PROBE_WIDTH * rng.uniform(-1.0, 1.0, size=(_PROBES, d)):
                found = gradient_at(probe)
                if found is not None:
                    pairs.append((probe, found))
            warmup = Warmup.start(settings, n_tune, np.array([x for x, _ in pairs]), np.array([g for _, g in pairs]))
            tuned = warmup.tuned
        velocity = rng.standard_normal(d) * (settings.dynamics == "underdamped")
        state = empty_state(tuned.coordinates.whiten(start), velocity)
        gradient = engine.evaluate(tuned.coordinates, state)
        return cls(settings, n_tune, n_draws, key, tuned, warmup, state, gradient, start, pending=evaluations + 1)

    @property
    def thin(self) -> int:
        """Transitions for each draw at present."""
        return self.tuned.steps_per_draw if self.warmup is None else 1

    @property
    def latest(self) -> np.ndarray:
        """The last draw handed out."""
        return self._chunk.position[self.row - 1] if self._chunk is not None and self.row else self.position

    def settle(self) -> None:
        """Come back to the last draw handed out; what was computed beyond it will be found again, identically."""
        if self._chunk is None:
            return
        self._observe()
        if self.row:
            row = self.row - 1
            self.state, self.gradient = self._chunk.state[row].copy(), self._chunk.gradient[row].copy()
            self.position = self._chunk.position[row].copy()
            self.transition += self.row * self.thin
            self.n_grad += int(self._chunk.n_grad[: self.row].sum())
            self.unstable += int(self._chunk.unstable[: self.row].sum())
            self.pending = 0
        self._chunk, self.row, self._observed = None, 0, 0

    def stop_tuning(self) -> None:
        """End the warm-up, early or not."""
        self.settle()
        if self.warmup is not None:
            self.warmup.stop()
            self._retune()

    def relocate(self, engine: NumbaEngine, position: np.ndarray | None) -> None:
        """Evaluate anew, at another position or because the other variables of the model have changed.

        Raises
        ------
        NotFiniteError
            If the log density or its gradient is not finite there.
        """
        self.settle()
        d = len(self.gradient)
        state = self.state.copy()
        if position is not None:
            state[:d] = self.tuned.coordinates.whiten(position)
            self.position = position
        gradient = engine.evaluate(self.tuned.coordinates, state)
        self.pending += 1
        if np.isnan(state[4 * d]):
            raise NotFiniteError
        self.state, self.gradient = state, gradient

    def look_ahead(self, engine: NumbaEngine, alone: bool) -> tuple[Chunk, Tuned, int]:
        """Compute the next draws; return them with the setting and the transitions for each.

        Not ``alone``, that is among other step methods, a chain computes one draw at a time.
        """
        self.settle()
        self._retune()
        left = self.n_tune + self.n_draws - self.iteration
        rows = min(self._ahead, left) if alone and left > 0 else 1
        if self.warmup is not None:
            rows = min(rows, self.warmup.boundary - self.warmup.done)
        tuned, thin = self.tuned, self.thin
        state, gradient = self.state.copy(), self.gradient.copy()
        began = time.perf_counter()
        # On the way down from a distant start the energy is large, and so are the steps' errors in it.
        tolerance = _WARMUP_TOLERANCE if self.warmup is not None else 0.0
        chunk = engine.run(
            tuned.coordinates,
            tuned.step_size,
            tuned.friction,
            tuned.K,
            state,
            gradient,
            self.key,
            self.transition,
            rows,
            thin,
            tolerance,
        )
        if not alone and engine.kernel.scheme == Scheme.RECYCLED:
            self._end_point(engine, state, chunk)
        seconds = max((time.perf_counter() - began) / rows, 1e-9)
        self._ahead = int(np.clip(SECONDS_AHEAD / seconds, 1, min(MOST_DRAWS_AHEAD, 4 * self._ahead)))
        chunk.n_grad[0] += self.pending
        self._chunk = chunk
        return chunk, tuned, thin

    def _end_point(self, engine: NumbaEngine, state: np.ndarray, chunk: Chunk) -> None:
        # Other variables are drawn given this draw: it must be the chain's own position, not the midpoint before it.
        coordinates, d = self.tuned.coordinates, chunk.position.shape[1]
        gradient = engine.evaluate(coordinates, state)
        chunk.n_grad[0] += 1
        if np.isnan(state[4 * d]):
            # No density there: back to the midpoint, with a fresh velocity, as the engine does.
            midpoint = coordinates.whiten(chunk.position[0])
            velocity = np.random.default_rng([*self.key, self.transition]).standard_normal(d)
            chunk.state[0, :d], chunk.state[0, d : 2 * d] = midpoint, velocity
            chunk.unstable[0] += 1
            return
        chunk.state[0], chunk.gradient[0], chunk.lp[0] = state, gradient, state[4 * d]
        chunk.position[0] = coordinates.place(state[:d])

    def _observe(self) -> None:
        """Pass the draws handed out since the last time to the tuner or, after warm-up, to the report."""
        chunk, rows = self._chunk, slice(self._observed, self.row)
        if chunk is None or rows.start == rows.stop:
            return
        self._observed = self.row
        if self.warmup is None:
            self.report.observe(chunk.position[rows], chunk.unstable[rows], self.thin)
        else:
            part = (chunk.position, chunk.gradient, chunk.lp, chunk.unstable, chunk.accept)
            self.warmup.observe(*(values[rows].copy() for values in part))

    def _retune(self) -> None:
        """Let the tuner act where a block has ended."""
        warmup = self.warmup
        if warmup is None or warmup.done < warmup.boundary:
            return
        old, new = self.tuned, warmup.update()
        self.state = change_coordinates(
            self.state, self.gradient, old.coordinates, new.coordinates, self.settings.kernel
        )
        self.tuned = new
        if warmup.done >= warmup.length:
            self.warmup, self.unstable = None, 0
