"""The CPU engine: chains of one method over one log density, advanced in compiled chunks on threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.arguments import MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import Chunk, empty_state
from pmm_mcmc.engines.numba_chain import Chains, evaluate, run
from pmm_mcmc.engines.numba_step import Functions, Parameters
from pmm_mcmc.langevin.methods import GHMC, Kernel, Scheme
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.langevin.transitions import SUBSTEPS

__all__ = ["NumbaEngine"]

# Slices of the chains for each thread, so that no thread waits long for another: a call costs as much as a few draws.
_SLICES = 4


class NumbaEngine:
    """Chains of one method over one log density, compiled by numba.

    Parameters
    ----------
    kernel
        The method.
    d
        Number of coordinates.
    joint, gradient
        C functions of :data:`~pmm_mcmc.model.native.SIGNATURE`: log density with gradient, and gradient alone.
    joint_table, gradient_table
        Functions of the sites that return the address tables of their data, called before every run.
    threads
        Number of chains that :meth:`advance` runs at the same time; draws do not depend on it.
    structure
        The non-centring that the functions apply, if any.
    width
        Length of an evaluation, where it is not that of :mod:`pmm_mcmc.engines.contract`.
    """

    periods: np.ndarray | None = None

    def __init__(
        self,
        kernel: Kernel,
        d: int,
        joint: Any,
        gradient: Any,
        joint_table: Callable[[np.ndarray | None], np.ndarray],
        gradient_table: Callable[[np.ndarray | None], np.ndarray],
        threads: int = 1,
        structure: Structure | None = None,
        width: int | None = None,
    ):
        self.kernel = kernel
        self.d = d
        self.threads = threads
        self.structure = structure or Structure.identity(d)
        self.width = width or self.structure.width
        self._joint = joint
        self._gradient = gradient
        self._joint_table = joint_table
        self._gradient_table = gradient_table

    @classmethod
    def of(cls, arguments: MethodArguments, density: Any, threads: int = 1) -> NumbaEngine:
        """Compile the functions of a :class:`pmm_mcmc.model.log_density.ModelDensity` that a method needs."""
        midpoint_function = "gradient" if arguments.needs_gradient_only else "joint"
        return cls(
            arguments.kernel,
            density.d,
            density.function("joint"),
            density.function(midpoint_function),
            lambda sites: density.table("joint", sites),
            lambda sites: density.table(midpoint_function, sites),
            threads,
            density.structure,
            density.width,
        )

    def adjusted(self) -> NumbaEngine:
        """Return the engine of adjusted draws: see :class:`pmm_mcmc.engines.contract.Engine`."""
        joint = self._joint
        table = self._joint_table
        return NumbaEngine(GHMC, self.d, joint, joint, table, table, self.threads, self.structure, self.width)

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        self._check_size(state)
        if state.ndim == 1:
            table = self._joint_table(coordinates.sites)
            kind = self.kernel.dynamics
            return evaluate(self._joint, table, kind, _for_loop(coordinates), state, self.width)
        gradient = np.empty((*state.shape[:-1], self.width))
        for index in np.ndindex(*state.shape[:-1]):
            gradient[index] = self.evaluate(coordinates, state[index])
        return gradient

    def gradient_at(self, position: np.ndarray, sites: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)`` for given sites; NaN where a value is not finite."""
        d = self.d
        state = empty_state(position, np.zeros(d))
        gradient = self.evaluate(Coordinates(np.zeros(d), np.ones(d), sites), state)[..., :d].copy()
        gradient[~np.isfinite(state[..., 4 * d])] = np.nan
        return gradient

    def run(
        self,
        setting: TunedParameters,
        state: np.ndarray,
        gradient: np.ndarray,
        key: np.ndarray,
        first_transition: int,
        rows: int,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance one chain: :meth:`advance` of ``state`` ``(4 d + 2,)``, with its state after each draw."""
        self._check_size(state)
        out = Chunk.empty((1, rows), self.d, self.width, rows)
        self._runner(setting, first_transition, thin, tolerance)(gradient[None], state[None], key[None], out)
        return Chunk(*(array[0] for array in out))

    def advance(
        self,
        setting: TunedParameters,
        state: np.ndarray,
        gradient: np.ndarray,
        keys: np.ndarray,
        first_transition: int,
        rows: int,
        *,
        thin: int = 1,
        tolerance: float = 0.0,
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        self._check_size(state)
        out = Chunk.empty((len(state), rows), self.d, self.width)
        runner = self._runner(setting, first_transition, thin, tolerance)
        size = max(1, -(-len(state) // (_SLICES * self.threads))) if self.threads > 1 else len(state)
        slices = [slice(i, i + size) for i in range(0, len(state), size)]

        def some(chain_slice: slice) -> None:
            chunk = Chunk(*(array[chain_slice] for array in out))
            runner(gradient[chain_slice], state[chain_slice], keys[chain_slice], chunk)

        if len(slices) == 1:
            some(slices[0])
        else:
            with ThreadPoolExecutor(min(self.threads, len(slices))) as pool:
                list(pool.map(some, slices))
        return out

    def _check_size(self, state: np.ndarray) -> None:
        """Raise an error if states are not those of this density: compiled code would write beyond its arrays."""
        if state.shape[-1] != 4 * self.d + 2:
            raise ValueError(f"states of {(state.shape[-1] - 2) // 4} coordinates: the density has {self.d}")

    def _runner(
        self, setting: TunedParameters, first_transition: int, thin: int, tolerance: float
    ) -> Callable[..., None]:
        kernel = self.kernel
        step = setting.step_size
        friction = setting.friction
        K = setting.K
        threshold = guard_threshold(kernel, step, friction, K, self.d)
        threshold_of_part = guard_threshold(kernel, step / SUBSTEPS, friction, K, self.d)
        steepest = steepest_curvature(kernel, step, friction, K)
        parameters = Parameters(step, friction, K, threshold, threshold_of_part, steepest, tolerance)
        coordinates = _for_loop(setting.coordinates)
        joint = self._joint, self._joint_table(setting.coordinates.sites)
        if kernel.scheme == Scheme.RECYCLED:
            functions = Functions(*joint, *joint)
        else:
            functions = Functions(*joint, self._gradient, self._gradient_table(setting.coordinates.sites))

        def runner(gradient: np.ndarray, state: np.ndarray, keys: np.ndarray, out: Chunk) -> None:
            run(functions, parameters, kernel, coordinates, Chains(state, gradient, keys), first_transition, thin, out)

        return runner


def _for_loop(coordinates: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale as arrays of the same type for every kind of scale, so that the loop compiles once."""
    return coordinates.centre, np.ascontiguousarray(np.atleast_2d(coordinates.scale))
