"""The CPU engine: chains of one method over one log density, advanced in compiled chunks on threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Ensemble, Parameters, TunedParameters, evaluated_at
from pmm_mcmc.engines.numba_chain import evaluate, memory_for, run
from pmm_mcmc.engines.numba_step import Functions
from pmm_mcmc.langevin.methods import GHMC, Kernel, Scheme

__all__ = ["NumbaEngine"]

# Slices of the chains for each thread, so that no thread waits long for another: a call costs as much as a few draws.
_SLICES = 4


class NumbaEngine:
    """Chains of one method over one log density, compiled by numba.

    ``functions`` are numba's C functions of :data:`~pmm_mcmc.model.native.SIGNATURE`, in ``d`` coordinates, and
    ``structure`` is the non-centring that they apply, if any.  :meth:`advance` runs ``threads`` chains at the same
    time, on which draws do not depend.  ``width`` is the length of an evaluation, where it is not that of
    :mod:`pmm_mcmc.engines.contract`.
    """

    periods: np.ndarray | None = None

    def __init__(
        self,
        kernel: Kernel,
        d: int,
        functions: Functions,
        threads: int = 1,
        structure: Structure | None = None,
        width: int | None = None,
    ):
        self.kernel = kernel
        self.d = d
        self.threads = threads
        self.structure = structure or Structure.identity(d)
        self.width = width or self.structure.width
        self._functions = functions

    @classmethod
    def of(cls, arguments: MethodArguments, density: Any, threads: int = 1) -> NumbaEngine:
        """Compile the functions of a :class:`pmm_mcmc.model.pytensor_density.PyTensorDensity` that a method needs."""
        midpoint_function = "gradient" if arguments.needs_gradient_only else "joint"
        return cls(
            arguments.kernel,
            density.d,
            Functions(
                density.function("joint"),
                lambda density_parameters: density.table("joint", density_parameters),
                density.function(midpoint_function),
                lambda density_parameters: density.table(midpoint_function, density_parameters),
            ),
            threads,
            density.structure,
            density.width,
        )

    def adjusted(self) -> NumbaEngine:
        """Return the engine of adjusted draws: see :class:`pmm_mcmc.engines.contract.Engine`."""
        functions = Functions(*self._functions[:2], *self._functions[:2])
        return NumbaEngine(GHMC, self.d, functions, self.threads, self.structure, self.width)

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        self._check_size(state)
        table = self._functions.joint_table(coordinates.density_parameters)
        states = state.reshape(-1, state.shape[-1])
        evaluations = np.empty((len(states), self.width))
        function = self._functions.joint.address
        evaluate(function, table, self.kernel.dynamics, _for_loop(coordinates), states, evaluations)
        state[...] = states.reshape(state.shape)  # where they are a copy, for states that are not contiguous
        return evaluations.reshape(*state.shape[:-1], self.width)

    def gradient_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)``; NaN where a value is not finite."""
        return self.evaluations_at(position, density_parameters)[..., : self.d]

    def evaluations_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return evaluations at positions ``z`` ``(..., d)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        lp, evaluation = evaluated_at(self.evaluate, position, density_parameters)
        return np.where(np.isfinite(lp)[..., None], evaluation, np.nan)

    def run(
        self, setting: TunedParameters, chain: Ensemble, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance one chain, arrays without a leading axis: :meth:`advance`, with its state after each draw."""
        self._check_size(chain.state)
        out = Chunk.empty((1, rows), self.d, self.width, rows)
        one = Ensemble(chain.state[None], chain.evaluation[None], chain.keys[None], chain.transition)
        self._runner(setting, thin, tolerance)(one, out)
        return Chunk(*(array[0] for array in out))

    def advance(
        self, setting: TunedParameters, chains: Ensemble, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        self._check_size(chains.state)
        count = len(chains.state)
        out = Chunk.empty((count, rows), self.d, self.width)
        size = max(1, -(-count // (_SLICES * self.threads))) if self.threads > 1 else count
        slices = [slice(i, i + size) for i in range(0, count, size)]

        # Each has tables of its own: a tape's names a workspace, which one thread may use at a time.
        runners = [self._runner(setting, thin, tolerance) for _ in slices]

        def advance_slice(runner: Callable[[Ensemble, Chunk], None], chain_slice: slice) -> None:
            runner(chains.subset(chain_slice), Chunk(*(array[chain_slice] for array in out)))

        if len(slices) == 1:
            advance_slice(runners[0], slices[0])
        else:
            list(self._pool.map(advance_slice, runners, slices))
        return out

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads, which end with the engine: to start some for each of the blocks of a warm-up costs as much as it."""
        return ThreadPoolExecutor(self.threads)

    def _check_size(self, state: np.ndarray) -> None:
        """Raise an error if states are not those of this density: compiled code would write beyond its arrays."""
        if state.shape[-1] != 4 * self.d + 2:
            raise ValueError(f"states of {(state.shape[-1] - 2) // 4} coordinates: the density has {self.d}")

    def _runner(self, setting: TunedParameters, thin: int, tolerance: float) -> Callable[[Ensemble, Chunk], None]:
        """Return the function that advances chains into a chunk."""
        kernel = self.kernel
        parameters = Parameters.of(kernel, setting, self.d, tolerance)
        coordinates = _for_loop(setting.coordinates)
        joint, joint_table, midpoint, midpoint_table = self._functions
        density_parameters = setting.coordinates.density_parameters
        of_joint = joint.address, joint_table(density_parameters)
        of_midpoint = of_joint
        if kernel.scheme != Scheme.RECYCLED:
            of_midpoint = midpoint.address, midpoint_table(density_parameters)
        functions = Functions(*of_joint, *of_midpoint)
        memory = memory_for(self.d, self.width)

        def runner(chains: Ensemble, out: Chunk) -> None:
            arrays = chains.state, chains.evaluation, chains.keys, memory
            run(functions, parameters, kernel, coordinates, arrays, chains.transition, thin, out)

        return runner


def _for_loop(coordinates: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale as arrays of the same type for every kind of scale, so that the loop compiles once."""
    return coordinates.centre, np.ascontiguousarray(np.atleast_2d(coordinates.scale))
