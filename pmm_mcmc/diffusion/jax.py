r"""Samplers in JAX: the Poisson midpoint method and, to compare, DDPM and DDIM.

Each is one ``lax.scan`` over the calls of the network and can be put under ``jax.jit``; outside of it every call
traces the network anew.  Nothing of JAX's configuration is touched: arrays keep the type of the first state.

All take flow-matching models too: with a schedule of :meth:`~pmm_mcmc.diffusion.DiffusionSchedule.flow` and
``prediction="flow"`` the network is called with states :math:`(1 - s) x_0 + s \epsilon` and with their ``s``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    make_table,
    noise_between,
    noiseless_next,
    start,
)
from pmm_mcmc.diffusion.schedule import PREDICTIONS, DiffusionSchedule, flow_scale

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


def poisson_midpoint_sample(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> jax.Array:
    r"""Sample by the Poisson midpoint method: blocks of the chain at about two network calls each.

    Parameters
    ----------
    key
        Random key of JAX.
    eps_fn
        The network: a function of the states ``(samples, ...)`` and of their times ``(samples,)``, whole numbers as in
        ``schedule.timesteps``.
    x_T
        States at the first level of the blocks; for new samples standard normal.
    schedule
        The chain that is approximated.
    blocks
        How: see :class:`~pmm_mcmc.diffusion.Blocks` and :func:`~pmm_mcmc.diffusion.plan_blocks`.
    prediction
        What ``eps_fn`` predicts: ``"epsilon"``, ``"score"``, ``"x0"``, ``"v"`` or ``"flow"``.

    Returns
    -------
    x_0 : as x_T
        The samples.  With one midpoint a block each sample draws its own; under Option 1, where their number varies,
        all samples share the marked cells (each has the right law, but they are not independent).

    Raises
    ------
    ValueError
        If shapes or settings are impossible, or, outside of ``jax.jit``, samples are not finite.

    Notes
    -----
    Equations at ``pmm_mcmc.diffusion.interpolation.advance``; ``eps_fn`` is called ``blocks.calls`` times, on
    average under Option 1, each time with all samples.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, blocks.edges[0])
    key_midpoints, key_noise = jax.random.split(typed_key(key))
    table = make_table(schedule, blocks, prediction)
    if blocks.midpoint == "bernoulli":
        levels = marked_cells(key_midpoints, table)
        active = levels > 0
    else:
        levels = one_midpoint(key_midpoints, table, blocks, x.shape[0])
        active = None
    keys = jax.random.split(key_noise, len(levels))
    x, _ = scan(network, x, *rows_at(table, levels, x.dtype), draw, keys, active)
    return finite(x)


class Trajectory(NamedTuple):
    """Samples with their states and log densities, for policy gradients and importance weights.

    Attributes
    ----------
    states
        ``(calls + 1, samples, ...)``: where the network was called, and at last the samples.
    levels
        ``(calls, samples)``: of the schedule, at which it was called.
    log_prob
        ``(calls, samples)``: log density of each state given those before it in its block.  0 where a call adds no
        noise, as the last does if its midpoint is one update from the end.
    """

    states: jax.Array
    levels: jax.Array
    log_prob: jax.Array


def poisson_midpoint_trajectory(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> Trajectory:
    """Sample as :func:`poisson_midpoint_sample`, with all states on the way and their log-probabilities.

    Parameters and errors as there, but that Option 1, with its varying number of calls, is refused, and so is a chain
    without noise, which has no densities.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, blocks.edges[0])
    _has_densities(schedule, blocks)
    key_midpoints, key_noise = jax.random.split(typed_key(key))
    table = make_table(schedule, blocks, prediction)
    levels = one_midpoint(key_midpoints, table, blocks, x.shape[0])
    rows, timesteps = rows_at(table, levels, x.dtype)
    keys = jax.random.split(key_noise, len(levels))
    _, (visited, noise) = scan(network, x, rows, timesteps, draw_and_keep, keys)
    scales = _scales(schedule, prediction, levels, visited)
    states = jnp.concatenate([jnp.asarray(x_T)[None], visited * scales])
    finite(states)
    return Trajectory(states, levels, _log_density(rows, noise, scales))


def trajectory_log_prob(
    eps_fn: Network,
    trajectory: Trajectory,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> jax.Array:
    """Return a network's log-probabilities of the states of a trajectory, such as one drawn with another network.

    Parameters
    ----------
    eps_fn
        The network; the result can be differentiated by its parameters.
    trajectory
        Of :func:`poisson_midpoint_trajectory` with the same schedule, blocks and kind of prediction.
    schedule, blocks, prediction
        As there.

    Returns
    -------
    log_prob : ``(calls, samples)``
        As ``Trajectory`` has it.
    """
    network, x = checked(eps_fn, trajectory.states[0], schedule, prediction, blocks.edges[0])
    _has_densities(schedule, blocks)
    rows, timesteps = rows_at(make_table(schedule, blocks, prediction), trajectory.levels, x.dtype)
    visited = trajectory.states[1:]
    scales = _scales(schedule, prediction, trajectory.levels, visited)
    _, noise = scan(network, x, rows, timesteps, go_to, visited / scales)
    return _log_density(rows, noise, scales)


def _has_densities(schedule: DiffusionSchedule, blocks: Blocks) -> None:
    """Raise an error if states have no densities, or calls no fixed number."""
    if blocks.midpoint == "bernoulli":
        raise ValueError("midpoint='bernoulli' has a varying number of calls; for log-probabilities use 'importance'")
    if not np.any(schedule.coefficients(blocks.frozen).sigma > 0.0):
        raise ValueError(
            f"{schedule!r} adds no noise, and a state that follows without noise has no density: take eta > 0, of a "
            "flow noise_level > 0"
        )


def _scales(schedule: DiffusionSchedule, prediction: str, levels: jax.Array, states: jax.Array) -> jax.Array:
    """Return the factors that turn the states after each call into the network's, in a shape to multiply."""
    scale = flow_scale(schedule.sigmas) if prediction == "flow" else np.ones(schedule.N + 1)
    return jnp.asarray(scale, states.dtype)[following(levels, jnp)].reshape(*levels.shape, *(1,) * (states.ndim - 2))


def _log_density(rows: Row, noise: jax.Array, scales: jax.Array) -> jax.Array:
    """Return the log density of the states, ``(calls, samples)``, from the standard normal noise that led to each."""
    d = noise[0, 0].size
    deviation = rows.fresh_sd * scales.reshape(rows.fresh_sd.shape)
    squares = jnp.sum(noise.reshape(*noise.shape[:2], -1) ** 2, axis=2, dtype=rows.fresh_sd.dtype)
    log_scale = jnp.log(jnp.where(deviation > 0.0, deviation, 1.0)) + 0.5 * np.log(2.0 * np.pi)
    return jnp.where(deviation > 0.0, -0.5 * squares - d * log_scale, 0.0)


def ddpm_sample(
    key: jax.Array, eps_fn: Network, x_T: jax.Array, schedule: DiffusionSchedule, *, prediction: str = "epsilon"
) -> jax.Array:
    """Sample by the chain itself, one network call a step; for fewer steps give ``schedule.respaced(n_steps)``.

    Parameters and result as of :func:`poisson_midpoint_sample`.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, schedule.N)
    levels = np.arange(schedule.N, 0, -1)
    table = make_table(schedule, Blocks((*levels, 0)), prediction)
    rows = Row(*(jnp.asarray(c, x.dtype) for c in make_rows(table, levels, following(levels))))
    keys = jax.random.split(typed_key(key), len(levels))
    x, _ = scan(network, x, rows, jnp.asarray(table.timestep[levels]), draw, keys)
    return finite(x)


def ddim_sample(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    n_steps: int,
    *,
    eta: float = 0.0,
    prediction: str = "epsilon",
) -> jax.Array:
    """Sample by DDIM with ``n_steps`` evenly spaced steps (Song et al., arXiv:2010.02502, equation 12).

    Parameters and result as of :func:`poisson_midpoint_sample`; ``eta`` scales the noise, of variant 2 whatever that of
    the schedule, and without noise (``eta = 0``) the key has no effect.
    """
    chain = DiffusionSchedule(schedule.signal[1:], "2", timesteps=schedule.timesteps).respaced(n_steps, eta=eta)
    return ddpm_sample(key, eps_fn, x_T, chain, prediction=prediction)
