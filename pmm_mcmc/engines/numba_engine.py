"""The CPU engine: chains of one method over one log density, in compiled chunks, on threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.engines.contract import Chunk, Setting, empty_state
from pmm_mcmc.engines.loop import SIGNATURE, evaluate, run
from pmm_mcmc.guard import guard_threshold, steepest_curvature
from pmm_mcmc.methods import Kernel
from pmm_mcmc.noncentring.funnel_map import FunnelMap

__all__ = ["SIGNATURE", "NumbaEngine"]


class NumbaEngine:
    """Run chains of one method over one log density.

    Parameters
    ----------
    kernel
        The method.
    d
        Number of coordinates.
    joint, gradient
        C functions of :data:`SIGNATURE`: log density with gradient, and gradient alone.
    joint_table, gradient_table
        Functions that return the tables of data to pass to them, read anew for every run.
    threads
        Chains that :meth:`advance` runs at the same time; draws do not depend on it.
    """

    def __init__(
        self,
        kernel: Kernel,
        d: int,
        joint: Any,
        gradient: Any,
        joint_table: Callable[[], np.ndarray],
        gradient_table: Callable[[], np.ndarray],
        threads: int = 1,
    ):
        self.kernel, self.d, self.threads = kernel, d, threads
        self._joint, self._gradient = joint, gradient
        self._joint_table, self._gradient_table = joint_table, gradient_table

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        if state.ndim == 1:
            table, kind = self._joint_table(), self.kernel.dynamics
            return evaluate(self._joint, table, kind, _for_loop(coordinates), state)
        gradient = np.empty((*state.shape[:-1], self.d))
        for index in np.ndindex(*state.shape[:-1]):
            gradient[index] = self.evaluate(coordinates, state[index])
        return gradient

    def gradient_at(self, position: np.ndarray) -> np.ndarray:
        """Gradients at positions ``(..., d)`` of the model's own coordinates; NaN where anything is not finite."""
        d = self.d
        state = empty_state(position, np.zeros(d))
        gradient = self.evaluate(Coordinates(np.zeros(d), np.ones(d)), state)
        gradient[~np.isfinite(state[..., 4 * d])] = np.nan
        return gradient

    def run(
        self,
        setting: Setting,
        state: np.ndarray,
        gradient: np.ndarray,
        key: np.ndarray,
        first: int,
        rows: int,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance one chain: :meth:`advance` of ``state`` ``(4 d + 2,)``, with its state after each draw."""
        out = Chunk.empty((rows,), self.d, rows)
        self._runner(setting, thin, tolerance)(gradient, state, key, first, out)
        return out

    def advance(
        self,
        setting: Setting,
        state: np.ndarray,
        gradient: np.ndarray,
        keys: np.ndarray,
        first: int,
        rows: int,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        out = Chunk.empty((len(state), rows), self.d)
        runner = self._runner(setting, thin, tolerance)

        def one(i: int) -> None:
            runner(gradient[i], state[i], keys[i], first, Chunk(*(part[i] for part in out)))

        if self.threads == 1 or len(state) == 1:
            for i in range(len(state)):
                one(i)
        else:
            with ThreadPoolExecutor(min(self.threads, len(state))) as pool:
                list(pool.map(one, range(len(state))))
        return out

    def _runner(self, setting: Setting, thin: int, tolerance: float) -> Callable[..., None]:
        kernel, step, friction, K = self.kernel, setting.step_size, setting.friction, setting.K
        limits = guard_threshold(kernel, step, friction, K, self.d), steepest_curvature(kernel, step, friction, K)
        joint_table, gradient_table = self._joint_table(), self._gradient_table()
        coordinates = _for_loop(setting.coordinates)

        def runner(gradient: np.ndarray, state: np.ndarray, key: np.ndarray, first: int, out: Chunk) -> None:
            run(
                self._joint, joint_table, self._gradient, gradient_table,
                kernel, step, friction, K, *limits, tolerance, coordinates, gradient, state, key, first, thin, out,
            )  # fmt: skip

        return runner


def _for_loop(coordinates: Coordinates) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """Return arrays of one type for every kind of coordinates, so that the loop is compiled once."""
    centre, scale, funnels = coordinates
    return centre, np.ascontiguousarray(np.atleast_2d(scale)), tuple(FunnelMap.none() if funnels is None else funnels)
