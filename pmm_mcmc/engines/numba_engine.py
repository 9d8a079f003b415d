"""The CPU engine: chains of one method over one log density, advanced in compiled chunks on threads.

Its loop is one numba function that advances a chain over many transitions, compiled once per machine and cached on
disk, for all models.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.engines import contract, numba_ghmc, numba_poisson, numba_shared
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, Parameters, TunedParameters
from pmm_mcmc.engines.numba_ghmc import adjusted
from pmm_mcmc.engines.numba_poisson import unadjusted
from pmm_mcmc.engines.numba_shared import (
    ChainViews,
    Functions,
    copy,
    drift,
    flow,
    inlined,
    memory_for,
    place,
    space_in,
    start_stream,
    uncounted,
)
from pmm_mcmc.langevin import flows, methods, midpoints, transitions
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.model import native

# Slices of the chains for each thread, so that no thread waits long for another: a call costs as much as a few draws.
_SLICES = 4


def _fingerprint() -> str:
    """Return a hash of the files of all that the loop calls: numba's cache key covers this file alone."""
    of_engine = contract, numba_shared, numba_poisson, numba_ghmc, sys.modules[__name__]
    modules = (flows, midpoints, transitions, methods, native, *of_engine)
    return hashlib.sha256(b"".join(inspect.getsource(module).encode() for module in modules)).hexdigest()


@inlined
def _run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, out):
    """Advance one chain, its state, evaluation, key and memory, by ``thin`` transitions a draw; fill in the chunk."""
    state, evaluation, key, memory = chain
    d = coordinates[0].size
    evaluated = state[3 * d : 4 * d]
    views = ChainViews(state[:d], state[d : 2 * d], state[2 * d : 3 * d], evaluated, state, evaluation, key)
    space = space_in(memory, d, evaluation.size, kernel.dynamics != OVERDAMPED)
    transition = first_transition
    step = 0.0
    step_flow = flow(kernel.dynamics, parameters.alpha, parameters.friction)
    cell_flow = step_flow
    for row in range(out.lp.size):
        n_grad = 0
        unstable = 0
        refined = 0
        model_failures = 0
        accept = 0.0
        for _ in range(thin):
            start_stream(space.random[0], key[0], key[1], np.uint64(transition))
            if kernel.scheme == Scheme.GHMC or kernel.scheme == Scheme.MALA:
                acceptance, gradients, failed, repeated = adjusted(
                    functions, parameters, kernel, coordinates, views, space
                )
            else:
                if step != parameters.alpha * state[4 * d + 1]:
                    step = parameters.alpha * state[4 * d + 1]
                    step_flow = flow(kernel.dynamics, step, parameters.friction)
                    cell_flow = flow(kernel.dynamics, step / parameters.K, parameters.friction)
                flows = (step_flow, cell_flow)
                acceptance, gradients, failed, repeated, by_model = unadjusted(
                    functions, parameters, kernel, coordinates, views, transition, flows, space
                )
                model_failures += by_model
            transition += 1
            accept += acceptance
            n_grad += gradients
            unstable += failed
            refined += repeated

        place(coordinates, evaluated, out.position[row])
        copy(evaluation, out.evaluation[row])
        out.lp[row] = state[4 * d]
        out.energy[row] = -state[4 * d]
        for j in range(d):
            out.energy[row] += 0.5 * views.v[j] ** 2
        if evaluation.size > d:  # the last entry of the evaluation is the log determinant of the map from z to x
            out.lp[row] -= evaluation[3 * d]
        out.n_grad[row] = n_grad
        out.unstable[row] = unstable
        out.refined[row] = refined
        out.accept[row] = accept / thin
        out.model_failures[row] = model_failures


def _cached(sources: str) -> tuple[Any, Any]:
    """Return :func:`evaluate` and :func:`run`, cached on disk under a key that contains ``sources``.

    Why a closure: numba's cache key contains the pickled closure variables, and this is the only way to add to it.
    Without ``sources``, a change in another file would run the old machine code (a compiled function as second
    closure variable would notice, but pickles differently in each process and would defeat the cache).
    """

    @numba.njit(cache=True, nogil=True)
    def evaluate(function, table, dynamics, coordinates, states, evaluations):
        """Evaluate at each ``u``; make it the evaluated point and its drift the base drift; fill in the evaluations."""
        sources  # noqa: B018
        d = coordinates[0].size
        scratch = (np.empty(d), np.empty(d))
        for i in range(len(states)):
            state = states[i]
            u = state[:d]
            b = state[2 * d : 3 * d]
            state[4 * d] = drift(function, table, dynamics, u, coordinates, scratch, evaluations[i], b)
            copy(u, state[3 * d : 4 * d])

    @numba.njit(cache=True, nogil=True)
    def run(functions, parameters, kernel, coordinates, chains, first_transition, thin, out):
        """Advance chains one after the other, each into its rows of ``out``.

        ``chains`` are their states, evaluations and keys, and memory of :func:`memory_for`.
        """
        sources  # noqa: B018
        states, evaluations, keys, memory = chains
        joint, joint_table, midpoint, midpoint_table = functions
        functions = Functions(joint, uncounted(joint_table), midpoint, uncounted(midpoint_table))
        coordinates = (uncounted(coordinates[0]), uncounted(coordinates[1]))
        for i in range(len(states)):
            chain = (uncounted(states[i]), uncounted(evaluations[i]), uncounted(keys[i]), uncounted(memory))
            chain_out = Chunk(
                out.position[i], out.evaluation[i], out.lp[i], out.energy[i], out.accept[i], out.n_grad[i],
                out.unstable[i], out.refined[i], out.model_failures[i],
            )  # fmt: skip
            _run_one(functions, parameters, kernel, coordinates, chain, first_transition, thin, chain_out)

    return evaluate, run


evaluate, run = _cached(_fingerprint())


class NumbaEngine(Engine):
    """Chains of one method over one log density, compiled by numba.

    ``functions`` are numba's C functions of :data:`~pmm_mcmc.model.native.SIGNATURE`, in ``d`` coordinates, and
    ``structure`` is the non-centring that they apply, if any.  :meth:`advance` runs ``threads`` chains at the same
    time, on which draws do not depend.  ``width`` is the length of an evaluation, where it is not that of
    :mod:`pmm_mcmc.engines.contract`.
    """

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
        needs_gradient_only = arguments.sees_curvature and arguments.kernel.scheme != Scheme.RECYCLED
        midpoint_function = "gradient" if needs_gradient_only else "joint"
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
        if kernel.scheme != Scheme.RECYCLED and not kernel.adjusted:
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
