"""Samplers in JAX: the Poisson midpoint method and, to compare, DDPM, DDIM and DPM-Solver++.

Each is one ``lax.scan`` over the calls of the network and can be put under ``jax.jit``; outside of it every call
traces the network anew.  Nothing of JAX's configuration is touched: arrays keep the type of the first state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.interpolation import Row, State, Table, advance, following, make_rows, make_table, start
from pmm_mcmc.diffusion.schedule import PREDICTIONS, DiffusionSchedule
from pmm_mcmc.diffusion.solvers import MultistepRow, multistep_solver

__all__ = ["ddim_sample", "ddpm_sample", "dpm_solver_sample", "poisson_midpoint_sample", "sde_dpm_solver_sample"]

Network = Callable[[jax.Array, jax.Array], jax.Array]


def _checked(x_T: jax.Array, prediction: str) -> jax.Array:
    x_T = jnp.asarray(x_T)
    if x_T.ndim < 2 or not jnp.issubdtype(x_T.dtype, jnp.floating):
        raise ValueError(
            f"x_T has shape {x_T.shape} and type {x_T.dtype}; give floating point numbers of shape (samples, ...)"
        )
    if prediction not in PREDICTIONS:
        raise ValueError(f"prediction={prediction!r} is not known; use one of {', '.join(PREDICTIONS)}")
    return x_T


def _one_midpoint(key: jax.Array, table: Table, blocks: Blocks, samples: int) -> jax.Array:
    """Levels of the calls, ``(calls, samples)``: every sample draws midpoints of its own."""
    starts, sizes = np.array(blocks.edges[:-1]), blocks.sizes
    cells = np.arange(1, max(2, sizes.max()))
    inside = cells < sizes[:, None]
    q = np.where(inside, np.asarray(table.probability)[np.maximum(starts[:, None] - cells, 0)], 0.0)
    # At the last cell that can be drawn the sum is exactly 1, whatever the rounding.
    later = np.cumsum((q > 0.0)[:, ::-1], axis=1)[:, ::-1] - (q > 0.0)
    reached = np.where(later > 0, np.cumsum(q, axis=1), 1.0)
    uniform = jax.random.uniform(key, (blocks.steps, samples))
    found = jax.vmap(lambda c, u: jnp.searchsorted(c, u, side="right"))(jnp.asarray(reached, uniform.dtype), uniform)
    calls = np.where(sizes > 1, 2, 1)
    block = np.repeat(np.arange(blocks.steps), calls)
    is_midpoint = np.diff(block, prepend=-1) == 0
    return starts[block][:, None] - is_midpoint[:, None] * (1 + found[block])


def _marked_cells(key: jax.Array, table: Table) -> jax.Array:
    """Levels of the calls under Option 1, in order and filled up with zeros: the same for all samples."""
    uniform = jax.random.uniform(key, jnp.shape(table.first))
    called = (jnp.asarray(table.first) > 0.0) | (uniform < jnp.asarray(table.probability, uniform.dtype))
    level = jnp.arange(called.size)
    return jnp.sort(jnp.where(called, level, 0), descending=True)[:-1]


def _scan(network: Network, x: jax.Array, rows: Row, timesteps: Any, noise: Any, active: Any = None) -> jax.Array:
    """Run the calls of ``rows``, each ``(calls,)`` or ``(calls, samples)``; ``noise`` is a key or the draws."""
    given = not jnp.issubdtype(getattr(noise, "dtype", None), jax.dtypes.prng_key)
    ones = (1,) * (x.ndim - 1)

    def call(state: State, row: Row, timestep: jax.Array, z: jax.Array) -> State:
        z = z if given else jax.random.normal(z, x.shape, x.dtype)
        row = Row(*(jnp.reshape(c, (-1, *ones)).astype(x.dtype) for c in row))
        output = network(state.y, jnp.broadcast_to(timestep, x.shape[:1]))
        return advance(row, state, output, z)

    def body(state: State, inputs: tuple) -> tuple[State, None]:
        *arguments, called = inputs
        if active is None:
            return call(state, *arguments), None
        return lax.cond(called, call, lambda state, *_: state, state, *arguments), None

    draws = noise if given else jax.random.split(noise, len(timesteps))
    state, _ = lax.scan(body, start(x), (rows, timesteps, draws, active))
    return state.x


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
        How: see :class:`~pmm_mcmc.diffusion.blocks.Blocks` and :func:`~pmm_mcmc.diffusion.planner.plan_blocks`.
    prediction
        What ``eps_fn`` predicts: ``"epsilon"``, ``"score"``, ``"x0"`` or ``"v"``.

    Returns
    -------
    x_0 : as x_T
        The samples.  With one midpoint a block each sample draws its own; under Option 1, where their number varies,
        all samples share the marked cells (each has the right law, but they are not independent).

    Raises
    ------
    ValueError
        If shapes or settings are impossible.

    Notes
    -----
    Equations at :func:`~pmm_mcmc.diffusion.interpolation.advance`; ``eps_fn`` is called ``blocks.calls`` times, on
    average under Option 1, each time with all samples.
    """
    x_T = _checked(x_T, prediction)
    key_midpoints, key_noise = jax.random.split(_typed(key))
    table = make_table(schedule, blocks, prediction)
    real = jnp.promote_types(x_T.dtype, jnp.float32)
    tables = Table(*(jnp.asarray(c, real if c.dtype.kind == "f" else None) for c in table))
    if blocks.midpoint == "bernoulli":
        levels = _marked_cells(key_midpoints, table)
        active = levels > 0
    else:
        levels = _one_midpoint(key_midpoints, table, blocks, x_T.shape[0])
        active = None
    rows = make_rows(tables, levels, jnp.concatenate([levels[1:], jnp.zeros_like(levels[:1])]), jnp)
    return _scan(eps_fn, x_T, rows, tables.timestep[levels], key_noise, active)


def _typed(key: jax.Array) -> jax.Array:
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def ddpm_sample(
    key: jax.Array, eps_fn: Network, x_T: jax.Array, schedule: DiffusionSchedule, *, prediction: str = "epsilon"
) -> jax.Array:
    """Sample by the chain itself, one network call a step; for fewer steps give ``schedule.respaced(n_steps)``.

    Parameters and result as of :func:`poisson_midpoint_sample`.
    """
    x_T = _checked(x_T, prediction)
    levels = np.arange(schedule.N, 0, -1)
    table = make_table(schedule, Blocks((*levels, 0)), prediction)
    rows = Row(*(jnp.asarray(c, x_T.dtype) for c in make_rows(table, levels, following(levels))))
    return _scan(eps_fn, x_T, rows, jnp.asarray(table.timestep[levels]), _typed(key))


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


def dpm_solver_sample(
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    n_calls: int,
    *,
    order: int = 2,
    prediction: str = "epsilon",
) -> jax.Array:
    """Sample by DPM-Solver++ (2M), or (3M) with ``order=3``: the deterministic baseline to beat below 40 calls.

    Parameters and result as of :func:`poisson_midpoint_sample`.
    """
    rows = multistep_solver(schedule, n_calls, order)
    return _multistep(None, eps_fn, x_T, schedule, rows, prediction)


def sde_dpm_solver_sample(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    n_calls: int,
    *,
    prediction: str = "epsilon",
) -> jax.Array:
    """Sample by SDE-DPM-Solver++ (2M), the same solver for the SDE: the stochastic baseline below 40 calls.

    Parameters and result as of :func:`poisson_midpoint_sample`.
    """
    rows = multistep_solver(schedule, n_calls, stochastic=True)
    return _multistep(_typed(key), eps_fn, x_T, schedule, rows, prediction)


def _multistep(
    key: jax.Array | None,
    network: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    rows: list[MultistepRow],
    prediction: str,
) -> jax.Array:
    """Run a solver, without noise where there is no key."""
    x_T = _checked(x_T, prediction)
    on_state, on_output = schedule.conversion(prediction, "x0")
    levels = np.array([row.level for row in rows])
    columns = np.column_stack([on_state[levels], on_output[levels], np.array([row[1:] for row in rows])])

    def body(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        x, before, earlier = carry
        (of_x, of_output, keep, now, then, once, noise), timestep, draw = inputs
        data = of_x * x + of_output * network(x, jnp.broadcast_to(timestep, x.shape[:1]))
        new = keep * x + now * data + then * before + once * earlier
        if draw is not None:
            new = new + noise * jax.random.normal(draw, x.shape, x.dtype)
        return (new, data, before), None

    draws = None if key is None else jax.random.split(key, len(rows))
    inputs = (jnp.asarray(columns, x_T.dtype), jnp.asarray(schedule.timesteps[levels - 1]), draws)
    (x, *_), _ = lax.scan(body, (x_T, jnp.zeros_like(x_T), jnp.zeros_like(x_T)), inputs)
    return x
