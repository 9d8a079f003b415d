"""The JAX engine: groups of chains in lockstep, whole chunks compiled, on one or more devices.

Chains advance in groups of fixed size, the last one padded, because matrix products of other shapes would round
differently.  The arithmetic of a group thus does not depend on the number of groups, on the devices or on the length of
a chunk, and random numbers are keyed by (seed, chain, transition).  On one kind of hardware the draws depend on the
same three, bit for bit.

One function is compiled for warm-up and sampling, all tuned parameters and any number of draws up to its capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
from pmm_mcmc.engines.contract import Chunk, Ensemble, Parameters, TunedParameters, chains_of, evaluated_at, log_det_of
from pmm_mcmc.engines.jax_ghmc import adjusted
from pmm_mcmc.engines.jax_poisson import unadjusted
from pmm_mcmc.engines.jax_shared import Counts, Drift, Keyed, words_of
from pmm_mcmc.langevin.methods import GHMC, HARMONIC, OVERDAMPED, Kernel
from pmm_mcmc.model.jax_density import JaxDensity

# Largest group, on CPU and accelerators: larger ones are no faster per chain (benchmarks/many_chains.py).  On
# accelerators a run is split into up to _SHARES groups, so that several devices can share it.
_GROUP_CPU = 256
_GROUP_OTHER = 4096
_SHARES = 8
# Warm-up asks for some hundred gradients one after the other: on a CPU they are not padded to a group, but to this.
_FEW = 8
# Most draws of a compiled call, and most bytes of its buffers on each device.
_MOST_ROWS = 64
_BYTES = 2**26


class JaxEngine:
    """Chains of one method over one log density, a JAX function, compiled by JAX.

    The number of ``chains`` of the run determines the size of a group.  ``precision`` is "float64", "float32" or
    "mixed": log density and gradient in single precision, everything else in double.  Groups are spread over the
    ``devices``, by default those of JAX's default backend.
    """

    periods: np.ndarray | None = None

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
        largest = _GROUP_CPU if self.devices[0].platform == "cpu" else _GROUP_OTHER
        if self.devices[0].platform != "cpu":
            largest = max(min(largest, -(-chains // _SHARES)), _GROUP_CPU)
        self.group = -(-chains // -(-chains // largest))
        self.few = min(self.group, _FEW) if self.devices[0].platform == "cpu" else self.group
        per_row = self.group * (self.d + self.width + 7) * 8
        self.capacity = max(1, min(_MOST_ROWS, _BYTES // per_row))
        self._density = density
        self._chains = chains
        self.dtype = np.dtype(np.float32 if precision == "float32" else np.float64)
        self.traces = 0  # functions traced, for tests
        self._adjusted: JaxEngine | None = None  # kept, so that a second run compiles nothing
        mesh = Mesh(np.array(self.devices), ("chains",))
        self._spread = NamedSharding(mesh, P("chains"))
        self._everywhere = NamedSharding(mesh, P())
        each = P("chains")
        rows = P(None, "chains")
        self._chunk = jax.jit(
            jax.shard_map(
                self._advance_group,
                mesh=mesh,
                in_specs=(P(), each, P()),
                out_specs=(each, each, (rows,) * 8),
                check_vma=False,
            )
        )
        self._evaluate = jax.jit(
            jax.shard_map(
                self._evaluate_group, mesh=mesh, in_specs=(P(), P(), each), out_specs=(each, each), check_vma=False
            )
        )

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
        key_words = words_of(keys)
        transition = adjusted if self.kernel.adjusted else unadjusted
        chains = chains_of(state, evaluation)
        zeros = Counts(jnp.zeros(g, self.dtype), *(jnp.zeros(g, jnp.int32) for _ in range(4)))
        out = (
            jnp.zeros((self.capacity, g, d), self.dtype),
            jnp.zeros((self.capacity, g, self.width), self.dtype),
            jnp.zeros((self.capacity, g), self.dtype),
            *(jnp.zeros((self.capacity, g), count.dtype) for count in zeros),
        )

        def row(i: Array, carry: Any) -> Any:
            """Make one draw of every chain."""
            chains, out = carry

            def once(k: Array, carry: Any) -> Any:
                """Make one transition of every chain."""
                chains, counts = carry
                number = first_transition + i * thin + k
                draws = Keyed(key_words, number, d, self.dtype, pairs)
                chains, more = transition(self.kernel, parameters, drift, chains, draws)
                return chains, Counts(*(a + b for a, b in zip(counts, more, strict=True)))

            chains, counts = lax.fori_loop(0, thin, once, (chains, zeros))
            counts = counts._replace(accept=counts.accept / thin)
            lp = chains.lp[:, 0] - log_det_of(chains.evaluation, d)
            row_values = (coordinates.place(chains.evaluated), chains.evaluation, lp, *counts)
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

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate at the positions of states ``(..., 4 d + 2)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        return self._evaluated(coordinates, state, self.group)

    def _evaluated(self, coordinates: Coordinates, state: np.ndarray, size: int) -> np.ndarray:
        """Evaluate at the positions of states, ``size`` of them together on each device."""
        d = self.d
        flat = state.reshape(-1, 4 * d + 2)
        evaluation = np.empty((len(flat), self.width))
        with self._precisely():
            shared = self._placed(self._density.shared(self.precision, coordinates.density_parameters))
            placed = self._placed(JaxCoordinates.of(coordinates, self.dtype))
            for rows, (u,) in self._batches(size, flat[:, :d]):
                evaluated, slopes = self._evaluate(placed, shared, u)
                flat[rows, 2 * d : 4 * d + 1] = np.asarray(evaluated)[: len(flat[rows])]
                evaluation[rows] = np.asarray(slopes)[: len(flat[rows])]
        state[...] = flat.reshape(state.shape)
        return evaluation.reshape(*state.shape[:-1], self.width)

    def gradient_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return gradients at positions ``z`` ``(..., d)``; NaN where a value is not finite."""
        return self.evaluations_at(position, density_parameters)[..., : self.d]

    def evaluations_at(self, position: np.ndarray, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return evaluations at positions ``z`` ``(..., d)``: see :class:`pmm_mcmc.engines.contract.Engine`."""
        size = self.few if position.size <= self.few * self.d else self.group
        lp, evaluation = evaluated_at(partial(self._evaluated, size=size), position, density_parameters)
        return np.where(np.isfinite(lp)[..., None], evaluation, np.nan)

    def advance(
        self, setting: TunedParameters, chains: Ensemble, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        last = chains.transition + rows * thin
        if last >= 2**31:
            raise ValueError(f"{last} transitions of a chain: at most {2**31 - 1} on this backend")
        state = chains.state
        evaluation = chains.evaluation
        out = Chunk.empty((len(state), rows), self.d, self.width)
        key_words = np.ascontiguousarray(chains.keys).view(np.uint32).reshape(-1, 2, 2)
        with self._precisely():
            numbers = Parameters.of(self.kernel, setting, self.d, tolerance)
            parameters = self._placed(Parameters(*(self.dtype.type(x) for x in numbers)))
            shared = self._placed(self._density.shared(self.precision, setting.coordinates.density_parameters))
            placed = self._placed(JaxCoordinates.of(setting.coordinates, self.dtype))
            for chain_slice, (s, g, w) in self._batches(self.group, state, evaluation, key_words):
                done = 0
                while done < rows or rows == 0:  # a call for no draws compiles
                    n = min(self.capacity, rows - done)
                    span = tuple(np.int32(x) for x in (chains.transition + done * thin, n, thin))
                    s, g, chunk_values = self._chunk((parameters, placed, shared), (s, g, w), span)
                    for buffer, array in zip(out, chunk_values, strict=True):
                        values = np.asarray(array)[:n, : len(state[chain_slice])]
                        buffer[chain_slice, done : done + n] = np.moveaxis(values, 0, 1)
                    done += n
                    if rows == 0:
                        break
                state[chain_slice] = np.asarray(s)[: len(state[chain_slice])]
                evaluation[chain_slice] = np.asarray(g)[: len(state[chain_slice])]
        return out

    def _precisely(self) -> AbstractContextManager[None]:
        return jax.enable_x64(self.precision != "float32")

    def _placed(self, tree: Any) -> Any:
        return jax.device_put(tree, self._everywhere)

    def _batches(self, size: int, *arrays: np.ndarray) -> Iterator[tuple[slice, list[Array]]]:
        """Yield slices of chains and their arrays on the devices, ``size`` chains on each, the last ones padded."""
        size *= len(self.devices)
        for start in range(0, len(arrays[0]), size):
            rows = slice(start, min(start + size, len(arrays[0])))
            placed = []
            for array in arrays:
                values = array[rows] if array.dtype == np.uint32 else array[rows].astype(self.dtype)
                missing = size - len(values)
                padded = np.concatenate([values, np.broadcast_to(values[:1], (missing, *values.shape[1:]))])
                placed.append(jax.device_put(padded, self._spread))
            yield rows, placed
