"""The JAX engine: groups of chains in lockstep, whole chunks compiled, on one or more devices.

Chains advance in groups of fixed size, the last one padded, because matrix products of other shapes would round
differently.  Each device runs the same program for one group after the other, a call ahead of what is fetched.  The
arithmetic of a group thus does not depend on the number of groups or on the length of a chunk, and random numbers are
keyed by (seed, chain, transition).  On one kind of hardware the draws depend on the same three, bit for bit: on a CPU
for any number of devices up to that of its cores, on accelerators, where each has one group if it can, for the same
number.

One function is compiled for warm-up and sampling, all tuned parameters and any number of draws up to its capacity.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
from jax import Array, lax

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, Parameters, TunedParameters, chains_of, log_det_of
from pmm_mcmc.engines.jax_ghmc import adjusted, begun
from pmm_mcmc.engines.jax_poisson import unadjusted
from pmm_mcmc.engines.jax_shared import Counts, Drift, Keyed, words_of
from pmm_mcmc.langevin.methods import GHMC, HARMONIC, OVERDAMPED, Kernel
from pmm_mcmc.model.jax_density import JaxDensity

# Largest group on a CPU, where larger ones are no faster per chain (benchmarks/many_chains.py).
_GROUP_CPU = 256
# Of an accelerator's memory a call's buffers take at most one over the first, and a transition of a group at most one
# over the second.  XLA's plans for an H100 (benchmarks gpu_program) have 4 to 7 times the numbers of a draw for it and,
# of a regression with 1,000 rows, 3 times the largest array of its density.
_CALLS_IN_MEMORY = 6
_GROUPS_IN_MEMORY = 8
_DRAWS = 8
_LARGEST = 4
# Memory of an accelerator that does not tell it.
_MEMORY = 2**33
# Warm-up asks for some hundred gradients one after the other: they are not padded to a group, but to this.
_FEW = 8
# Most draws of a compiled call, and most bytes of its buffers on a CPU.
_MOST_ROWS = 64
_BYTES = 2**26
# Most bytes of compiled programs on disk, where JAX locks a folder if there is a limit.
_KEPT = 2**30
# The kinds of kernels that XLA records into CUDA graphs, loops included, so that the host waits for no turn of a loop.
_CUDA_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,COLLECTIVES_KERNEL,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"


# Products are the library's own choice: kernels that XLA chooses by a clock cost half of a compilation, and would give
# the next process other last digits.
_PRODUCTS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


def _compiler_options(device: jax.Device) -> dict[str, Any]:
    """Return XLA's options for a device: on NVIDIA's, whole calls as one graph, unless ``PMM_MCMC_CUDA_GRAPHS=0``."""
    if device.platform != "gpu" or not device.device_kind.startswith("NVIDIA"):
        return {}
    if os.environ.get("PMM_MCMC_CUDA_GRAPHS", "1") == "0":
        return _PRODUCTS
    return _PRODUCTS | {"xla_gpu_enable_command_buffer": _CUDA_GRAPHS}


@functools.cache
def keep_programs() -> Counter[str]:
    """Let JAX keep what it compiles for later processes, and return the events that it tells of, counted.

    They go to PyTensor's folder of compiled code, unless the user has set JAX's cache, or switched it off.
    """
    events: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    if jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(pytensor.config.compiledir / "jax"))
        jax.config.update("jax_compilation_cache_max_size", _KEPT)
    return events


def _memory_of(device: jax.Device) -> int:
    """Return the bytes of an accelerator that JAX may use."""
    return int((device.memory_stats() or {}).get("bytes_limit", _MEMORY))


@functools.partial(jax.jit, static_argnums=1)
def _first_rows(arrays: tuple[Array, ...], rows: int) -> tuple[Array, ...]:
    """Return the first rows of arrays."""
    return tuple(array[:rows] for array in arrays)


def _largest_of(program: Any) -> int:
    """Return the size of the largest array that a traced program computes."""
    sizes = [variable.aval.size for equation in program.eqns for variable in equation.outvars]
    below = [getattr(value, "jaxpr", value) for equation in program.eqns for value in equation.params.values()]
    return max([*sizes, *(_largest_of(inner) for inner in below if hasattr(inner, "eqns"))], default=0)


class JaxEngine(Engine):
    """Chains of one method over one log density, a JAX function, compiled by JAX.

    The number of ``chains`` of the run determines the size of a group.  ``precision`` is "float64", "float32" or
    "mixed": log density and gradient in single precision, everything else in double.  Groups are spread over the
    ``devices``, by default those of JAX's default backend.
    """

    def __init__(
        self, kernel: Kernel, density: JaxDensity, chains: int, precision: str = "float64",
        devices: Sequence[jax.Device] | None = None,
    ):  # fmt: skip
        self.kernel = kernel
        self.d = density.d
        self.precision = precision
        self.structure = density.structure
        self.width = density.width
        self.devices = list(jax.local_devices() if devices is None else devices)
        self.accelerated = self.devices[0].platform != "cpu"
        numbers = 8 * (self.d + self.width + 7)  # bytes of a draw
        buffers = _BYTES
        groups = -(-chains // _GROUP_CPU)
        if self.accelerated:
            memory = _memory_of(self.devices[0])
            buffers = memory // _CALLS_IN_MEMORY
            in_run = len(self.devices) * int(jax.process_count())
            in_transition = _DRAWS * numbers + _LARGEST * 8 * self._largest_array(density)
            groups = max(min(in_run, groups), -(-chains * in_transition * _GROUPS_IN_MEMORY // memory))
        self.group = -(-chains // groups)
        self.few = min(self.group, _FEW)
        self.capacity = max(1, min(_MOST_ROWS, buffers // (self.group * numbers)))
        self._density = density
        self._chains = chains
        self.dtype = np.dtype(np.float32 if precision == "float32" else np.float64)
        self.traces = 0  # functions traced, for tests
        self._adjusted: JaxEngine | None = None  # kept, so that a second run compiles nothing
        options = _compiler_options(self.devices[0])
        self._chunk = jax.jit(self._advance_group, compiler_options=options)
        self._evaluate = jax.jit(self._evaluate_group, compiler_options=options)

    def _largest_array(self, density: JaxDensity) -> int:
        """Return the most numbers of an array that the density of one chain needs, such as one for each row of data."""

        def evaluate(z: Array) -> tuple[Array, Array]:
            return density.batch(z, shared, self.precision)

        with self._precisely():
            shared = density.shared(self.precision, density.structure.initial_noncentring())
            return _largest_of(jax.make_jaxpr(evaluate)(jnp.zeros((1, self.d))).jaxpr)

    # -- traced ------------------------------------------------------------------------------------------------------

    def _drift(self, coordinates: JaxCoordinates, shared: Any) -> Drift:
        """Return the function of whitened positions ``(n, d)`` that gives log densities, evaluations and drifts."""

        def drift(y: Array) -> tuple[Array, Array, Array]:
            lp, evaluation = self._density.batch(coordinates.place(y), shared, self.precision)
            lp = lp.astype(self.dtype)[:, None]
            evaluation = evaluation.astype(self.dtype)
            b = coordinates.pull_back(evaluation[:, : self.d])
            lp = jnp.where(jnp.isfinite(lp + jnp.sum(b, axis=-1, keepdims=True)), lp, jnp.nan)
            return lp, evaluation, b + y if self.kernel.dynamics == HARMONIC else b

        return drift

    def _evaluate_group(self, coordinates: JaxCoordinates, shared: Any, u: Array) -> tuple[Array, Array]:
        """Return what :meth:`evaluate` writes into the states at positions ``u`` ``(g, d)``, and the evaluations."""
        self.traces += 1
        lp, evaluation, b = self._drift(coordinates, shared)(u)
        return jnp.concatenate([b, u, lp], axis=-1), evaluation

    def _advance_group(self, setting: tuple[Parameters, JaxCoordinates, Any], arrays: Any, span: Any) -> Any:
        """Advance a group: return its states and evaluations, and the buffers of a chunk, the draws on the first axis.

        ``span`` is the number of the first transition, of draws, and of transitions for each.
        """
        self.traces += 1
        parameters, coordinates, shared = setting
        state, evaluation, keys = arrays
        first_transition, rows, thin = span
        d = self.d
        g = len(state)
        pairs = self.kernel.dynamics != OVERDAMPED and not self.kernel.adjusted  # normals for position and velocity
        drift = self._drift(coordinates, shared)
        draws = Keyed(words_of(keys), first_transition, d, self.dtype, pairs)
        chains = chains_of(state, evaluation)
        if self.kernel.adjusted:
            transition = adjusted(self.kernel, parameters, drift)
            chains = begun(chains._replace(u=chains.evaluated), draws) if self.kernel == GHMC else chains
        else:
            transition = functools.partial(unadjusted, self.kernel, parameters, drift)
        zeros = Counts(jnp.zeros(g, self.dtype), *(jnp.zeros(g, jnp.int32) for _ in range(4)))
        shapes = (g, d), (g, self.width), (len(Chunk._fields) - 2, g)
        out = tuple(jnp.zeros((self.capacity, *shape), self.dtype) for shape in shapes)

        def row(i: Array, carry: Any) -> Any:
            """Make one draw of every chain."""
            chains, out = carry

            def once(k: Array, carry: Any) -> Any:
                """Make one transition of every chain."""
                chains, counts = carry
                chains, more = transition(chains, draws._replace(number=first_transition + i * thin + k))
                return chains, Counts(*(a + b for a, b in zip(counts, more, strict=True)))

            chains, counts = lax.fori_loop(0, thin, once, (chains, zeros))
            counts = counts._replace(accept=counts.accept / thin)
            lp = chains.lp[:, 0] - log_det_of(chains.evaluation, d)
            energy = 0.5 * (chains.v**2).sum(axis=1) - chains.lp[:, 0]
            numbers = jnp.stack([lp, energy, *(count.astype(self.dtype) for count in counts)])
            row_values = (coordinates.place(chains.evaluated), chains.evaluation, numbers)
            return chains, tuple(buffer.at[i].set(value) for buffer, value in zip(out, row_values, strict=True))

        chains, out = lax.fori_loop(0, rows, row, (chains, out))
        u, v, b, evaluated, evaluation, lp, factor = chains
        return jnp.concatenate([u, v, b, evaluated, lp, factor], axis=-1), evaluation, out

    # -- called from Python ------------------------------------------------------------------------------------------

    def adjusted(self) -> JaxEngine:
        """Return the engine of adjusted draws: see :class:`pmm_mcmc.engines.contract.Engine`."""
        if self._adjusted is None:
            self._adjusted = JaxEngine(GHMC, self._density, self._chains, self.precision, self.devices)
        return self._adjusted

    def loaded_programs(self) -> str:
        """Return how many programs JAX has loaded from disk since this was asked, for a line; nothing without cache."""
        loaded = keep_programs().pop("/jax/compilation_cache/cache_hits", 0)
        folder = jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir
        return f"; {loaded} programs were compiled before, in {folder}" if folder else ""

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        d = self.d
        flat = state.reshape(-1, 4 * d + 2)
        size = self.few if len(flat) <= self.few else self.group
        evaluation = np.empty((len(flat), self.width))

        def calls(device: jax.Device, groups: list[slice]) -> Iterator[list[tuple[np.ndarray, Array]]]:
            setting = self._placed(coordinates, device)
            for chains in groups:
                u = self._padded(flat[chains, :d], size, device)
                targets = flat[chains, 2 * d : 4 * d + 1], evaluation[chains]
                values = self._fewer(self._evaluate(*setting, u), len(targets[0]))
                yield list(zip(targets, values, strict=True))

        self._follow(calls, len(flat), size)
        state[...] = flat.reshape(state.shape)
        return evaluation.reshape(*state.shape[:-1], self.width)

    def advance(
        self, setting: TunedParameters, chains: Ensemble, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        last = chains.transition + rows * thin
        if last >= 2**31:
            raise ValueError(f"{last} transitions of a chain: at most {2**31 - 1} on this backend")
        out = Chunk.empty((len(chains.state), rows), self.d, self.width)
        key_words = np.ascontiguousarray(chains.keys).view(np.uint32).reshape(-1, 2, 2)
        numbers = np.empty((rows, len(out) - 2, len(chains.state)))
        parameters = Parameters.of(self.kernel, setting, self.d, tolerance)

        def calls(device: jax.Device, groups: list[slice]) -> Iterator[list[tuple[np.ndarray, Array]]]:
            typed = Parameters(*(self.dtype.type(x) for x in parameters))
            placed = (typed, *self._placed(setting.coordinates, device))
            for group in groups:
                sources = chains.state[group], chains.evaluation[group], key_words[group]
                state, evaluation, keys = (self._padded(source, self.group, device) for source in sources)
                for done in range(0, max(rows, 1), self.capacity):  # a call for no draws compiles
                    n = min(self.capacity, rows - done)
                    span = tuple(np.int32(x) for x in (chains.transition + done * thin, n, thin))
                    state, evaluation, values = self._chunk(placed, (state, evaluation, keys), span)
                    draws = slice(done, done + n)
                    targets = [np.moveaxis(array[group, draws], 0, 1) for array in out[:2]]
                    transfers = list(zip([*targets, numbers[draws, :, group]], self._fewer(values, n), strict=True))
                    if done + n == rows:
                        transfers += [(sources[0], state), (sources[1], evaluation)]
                    yield transfers

        self._follow(calls, len(chains.state), self.group)
        for target, values in zip(out[2:], np.moveaxis(numbers, 1, 0), strict=True):
            target[...] = values.T
        return out

    def _follow(
        self, calls: Callable[[jax.Device, list[slice]], Iterator[list[tuple[np.ndarray, Array]]]], n: int, size: int
    ) -> None:
        """Make calls on every device, for ``size`` of ``n`` chains at a time, and copy results into their targets.

        ``calls`` yields, for a device and slices of chains, targets of each call and the arrays that go there, of which
        only the first rows are of interest.
        """
        groups = [slice(start, min(start + size, n)) for start in range(0, n, size)]
        devices = self.devices[: len(groups)]

        def follow(i: int) -> None:
            """Make the calls on one device, each before the last one's results are fetched."""
            with self._precisely():
                waiting: deque[list[tuple[np.ndarray, Array]]] = deque()
                for transfers in calls(devices[i], groups[i :: len(devices)]):
                    waiting.append(transfers)
                    if len(waiting) > 1:
                        _fetch(waiting.popleft())
                for transfers in waiting:
                    _fetch(transfers)

        if len(devices) < 2:
            for i in range(len(devices)):
                follow(i)
        else:
            with ThreadPoolExecutor(len(devices)) as pool:
                list(pool.map(follow, range(len(devices))))

    def _fewer(self, arrays: tuple[Array, ...], rows: int) -> tuple[Array, ...]:
        """Return arrays with little more than their first rows: all that an accelerator has to send."""
        if not self.accelerated:
            return arrays
        unit = 1 << max(rows.bit_length() - 3, 0)  # three binary digits: slices are compiled for few numbers of rows
        return _first_rows(arrays, min(len(arrays[0]), -(-rows // unit) * unit))

    def _precisely(self) -> AbstractContextManager[None]:
        return jax.enable_x64(self.precision != "float32")

    def _placed(self, coordinates: Coordinates, device: jax.Device) -> tuple[JaxCoordinates, Any]:
        """Return coordinates, and the data of the density, on a device."""
        shared = self._density.shared(self.precision, coordinates.density_parameters)
        return jax.device_put((JaxCoordinates.of(coordinates, self.dtype, not self.accelerated), shared), device)

    def _padded(self, values: np.ndarray, size: int, device: jax.Device) -> Array:
        """Return the values of ``size`` chains on a device, copies of the first one where there are fewer."""
        typed = values if values.dtype == np.uint32 else values.astype(self.dtype)
        missing = size - len(typed)
        return jax.device_put(np.concatenate([typed, np.broadcast_to(typed[:1], (missing, *typed.shape[1:]))]), device)


def _fetch(transfers: list[tuple[np.ndarray, Array]]) -> None:
    """Copy the first rows, and columns, of arrays into their targets."""
    for target, array in transfers:
        target[...] = np.asarray(array)[tuple(slice(length) for length in target.shape)]
