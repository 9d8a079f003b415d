"""The ``lax.scan`` over the calls of the network, shared by the samplers in JAX.  Private to :mod:`.jax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.interpolation import (
    Row,
    State,
    Table,
    advance,
    following,
    make_rows,
    noise_between,
    noiseless_next,
    start,
)
from pmm_mcmc.diffusion.schedule import PREDICTIONS, DiffusionSchedule, flow_scale

__all__ = [
    "Network",
    "checked",
    "draw",
    "draw_and_keep",
    "finite",
    "go_to",
    "marked_cells",
    "one_midpoint",
    "rows_at",
    "scan",
    "typed_key",
]

Network = Callable[[jax.Array, jax.Array], jax.Array]


def checked(network: Network, x_T: jax.Array, schedule: DiffusionSchedule, prediction: str, level: int) -> tuple:
    """Return network and state at a level in the terms of the schedule: a flow's state is divided by its scale."""
    x_T = jnp.asarray(x_T)
    if x_T.ndim < 2 or not jnp.issubdtype(x_T.dtype, jnp.floating):
        raise ValueError(
            f"x_T has shape {x_T.shape} and type {x_T.dtype}; give floating point numbers of shape (samples, ...)"
        )
    if prediction not in PREDICTIONS:
        raise ValueError(f"prediction={prediction!r} is not known; use one of {', '.join(PREDICTIONS)}")
    if prediction != "flow":
        return network, x_T
    sigmas = schedule.sigmas
    if not np.allclose(schedule.timesteps, sigmas[1:], atol=1e-6):
        raise ValueError(
            f"prediction='flow' with {schedule!r}, which is not that of a flow: the network is to be told noise levels "
            f"of 0 to 1, not times up to {schedule.timesteps[-1]}. Make it by DiffusionSchedule.flow or from_sigmas"
        )

    def called(y: jax.Array, s: jax.Array) -> jax.Array:
        return network(y * flow_scale(s).reshape(-1, *(1,) * (y.ndim - 1)).astype(y.dtype), s)

    return called, x_T / float(flow_scale(sigmas[min(level, schedule.N)]))


def finite(x: jax.Array) -> jax.Array:
    """Return the samples; raise if one is not finite, which ``jax.jit`` hides."""
    if not isinstance(x, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(x))):
        raise ValueError(
            f"{int(jnp.sum(~jnp.isfinite(x)))} of the {x.size} numbers of the samples are not finite: look at what the "
            "network returns at each of schedule.timesteps, and sample in float32 where it is in half precision"
        )
    return x


def one_midpoint(key: jax.Array, table: Table, blocks: Blocks, samples: int) -> jax.Array:
    """Return the levels of the calls, ``(calls, samples)``, with midpoints drawn for each sample."""
    starts = np.array(blocks.edges[:-1])
    sizes = blocks.sizes
    cells = np.arange(1, max(2, sizes.max()))
    inside = cells < sizes[:, None]
    q = np.where(inside, np.asarray(table.probability)[np.maximum(starts[:, None] - cells, 0)], 0.0)
    # At the last cell that can be drawn the sum is exactly 1, whatever the rounding.
    later = np.cumsum((q > 0.0)[:, ::-1], axis=1)[:, ::-1] - (q > 0.0)
    distribution = np.where(later > 0, np.cumsum(q, axis=1), 1.0)
    uniform = jax.random.uniform(key, (blocks.steps, samples))
    indices = jax.vmap(lambda c, u: jnp.searchsorted(c, u, side="right"))(
        jnp.asarray(distribution, uniform.dtype), uniform
    )
    calls = np.where(sizes > 1, 2, 1)
    block = np.repeat(np.arange(blocks.steps), calls)
    is_midpoint = np.diff(block, prepend=-1) == 0
    return starts[block][:, None] - is_midpoint[:, None] * (1 + indices[block])


def marked_cells(key: jax.Array, table: Table) -> jax.Array:
    """Return the levels of the calls under Option 1, in order and filled up with zeros: the same for all samples."""
    uniform = jax.random.uniform(key, jnp.shape(table.first))
    called = (jnp.asarray(table.first) > 0.0) | (uniform < jnp.asarray(table.probability, uniform.dtype))
    level = jnp.arange(called.size)
    return jnp.sort(jnp.where(called, level, 0), descending=True)[:-1]


# Returns the next state, and what is kept of the call, from its row, the state, the network's output and its input.
Move = Callable[[Row, State, jax.Array, jax.Array], tuple[State, Any]]


def draw(row: Row, state: State, output: jax.Array, key: jax.Array) -> tuple[State, None]:
    """Draw the next state."""
    return advance(row, state, output, jax.random.normal(key, state.y.shape, state.y.dtype)), None


def draw_and_keep(row: Row, state: State, output: jax.Array, key: jax.Array) -> tuple[State, Any]:
    """Draw the next state; keep its point and the noise that leads there."""
    noise = jax.random.normal(key, state.y.shape, state.y.dtype)
    state = advance(row, state, output, noise)
    return state, (state.y, noise)


def go_to(row: Row, state: State, output: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    """Go to a point ``y``; keep the noise that leads there."""
    return noise_between(row, state, noiseless_next(row, state, output), y)


def scan(
    network: Network, x: jax.Array, rows: Row, timesteps: Any, move: Move, inputs: Any, active: Any = None
) -> tuple[jax.Array, Any]:
    """Run the calls of ``rows``, each ``(calls,)`` or ``(calls, samples)``; return the samples and what is kept.

    After each call ``move`` is called with its entry of ``inputs``.  Calls that are not ``active`` are left out.
    """
    ones = (1,) * (x.ndim - 1)

    def call(state: State, row: Row, timestep: jax.Array, input: Any) -> tuple[State, Any]:
        row = Row(*(jnp.reshape(c, (-1, *ones)).astype(x.dtype) for c in row))
        return move(row, state, network(state.y, jnp.broadcast_to(timestep, x.shape[:1])), input)

    def call_if_active(state: State, arguments: tuple) -> tuple[State, Any]:
        *arguments_of_call, called = arguments
        if active is None:
            return call(state, *arguments_of_call)
        return lax.cond(called, call, lambda state, *_: (state, None), state, *arguments_of_call)

    state, kept_values = lax.scan(call_if_active, start(x), (rows, timesteps, inputs, active))
    return state.x, kept_values


def rows_at(table: Table, levels: jax.Array, dtype: Any) -> tuple[Row, jax.Array]:
    """Return the rows of the calls at the levels, and the network's times there."""
    real = jnp.promote_types(dtype, jnp.float32)
    tables = Table(*(jnp.asarray(c, real if c.dtype.kind == "f" else None) for c in table))
    return make_rows(tables, levels, following(levels, jnp), jnp), tables.timestep[levels]


def typed_key(key: jax.Array) -> jax.Array:
    """Return a key as one of the new kind."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
